//! The troubles of `xds serve` and `xds proxy` that the admin page shows: of files that are read
//! again, of certificates, and of the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tracing_appender::non_blocking::ErrorCounter;
use xds::Reloads;
use xds::admin::{Severity, Trouble, Troubles};
use xds::folder::lint::Warning;
use xds::folder::{StandingWarning, StandingWarnings};

use super::metrics::Sources;

/// Adds the troubles of these sources and of the log.
pub(super) fn add(troubles: &Troubles, sources: Sources, dropped: ErrorCounter) {
    let log = DroppedLines { counter: dropped, seen: Mutex::default() };
    troubles.add(move || {
        let of_files = sources.all().into_iter().flat_map(|(source, reloads)| of_source(source, reloads));
        let expires = sources.tls().and_then(|tls| certificate(tls.expires(), SystemTime::now()));
        of_files.chain(expires).chain(log.trouble()).collect()
    });
}

/// Adds the warnings about a folder: a trouble for each kind.
pub(super) fn add_warnings(troubles: &Troubles, warnings: Arc<StandingWarnings>) {
    troubles.add(move || {
        let (list, mut by_kind) = (warnings.list(), BTreeMap::<_, Vec<_>>::new());
        for standing in &*list {
            by_kind.entry(standing.warning.kind()).or_default().push(standing);
        }
        let counts: BTreeMap<_, _> = warnings.counts().into_iter().flatten().collect();
        let kinds = by_kind.into_iter();
        kinds
            .map(|(kind, all)| of_warnings(kind, &all, counts.get(kind).copied().unwrap_or_default()))
            .collect()
    });
}

fn of_warnings(kind: &str, listed: &[&StandingWarning], count: usize) -> Trouble {
    let mut lines: Vec<_> = listed.iter().take(WARNINGS_SHOWN).map(|of| warning_line(&of.warning)).collect();
    if count > lines.len() {
        lines.push(format!("and {} more", count - lines.len()));
    }
    Trouble {
        detail: lines.join("\n"),
        since: listed.iter().map(|standing| standing.since).min(),
        count: count as u64,
        cure: format!(
            "Correct the folder: `xds check DIR` lists all warnings. If they are intended, --allow {kind} drops those \
             of this kind."
        ),
        link: if kind == "gap" { "gaps".into() } else { String::new() },
        ..Trouble::warning(
            "folder_warnings",
            format!("The folder has {count} warning{} of the kind {kind}", if count == 1 { "" } else { "s" }),
        )
    }
}

fn warning_line(warning: &Warning) -> String {
    let place = warning.locations.first().map_or_else(String::new, |place| format!("{place}: "));
    let hint = warning.hint().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
    format!("{place}{warning}{hint}")
}

fn of_source(source: &'static str, reloads: &Reloads) -> Vec<Trouble> {
    let hangs = reloads.longest_read().filter(|(_, age)| *age >= HANGS_AFTER).map(|(file, age)| Trouble {
        detail: file,
        since: SystemTime::now().checked_sub(age),
        cure: "The file system does not answer. Changes are not followed until it does.".into(),
        ..Trouble::error("read_hangs", format!("A read of the {source} has not ended"))
    });
    refused(source, reloads).into_iter().chain(hangs).collect()
}

fn refused(source: &'static str, reloads: &Reloads) -> Option<Trouble> {
    let (refusal, isolated) = (reloads.refusal()?, reloads.isolated());
    let trouble = match (source, isolated) {
        ("folder", 0) => Trouble {
            count: refusal.count,
            cure: "Correct the files (`xds check DIR` lists all errors), or restore them. Until then clients keep \
                   the last good content."
                .into(),
            ..Trouble::error("folder_refused", "The folder is refused; its last good content is served")
        },
        ("folder", files) => Trouble {
            count: files as u64,
            cure: "Correct the files, or restore them. All other files are served.".into(),
            link: "resources".into(),
            ..Trouble::error("files_isolated", in_parts("file", "of the folder", files))
        },
        ("kubernetes", 0) => Trouble {
            count: refusal.count,
            cure: "Look at the API server, and at the rights of the service account. Until then everything stays as \
                   it is; changes are not seen."
                .into(),
            ..Trouble::error("kubernetes_away", "Kubernetes cannot be read; what is known stays in use")
        },
        ("kubernetes", objects) => Trouble {
            count: objects as u64,
            cure: "Correct the objects, or restore them. All others are served.".into(),
            ..Trouble::error("objects_isolated", in_parts("object", "of Kubernetes", objects))
        },
        (source, _) => Trouble {
            count: refusal.count,
            cure: "Correct the file, or restore it.".into(),
            ..Trouble::error(
                match source {
                    "policy" | "api_policy" => "policy_refused",
                    "tokens" => "tokens_refused",
                    _ => "certificates_refused",
                },
                format!("The new content of the {source} is refused; the last good content is in use"),
            )
        },
    };
    let (since, last_at) = (Some(refusal.since), Some(refusal.last_at));
    Some(Trouble { detail: refusal.mistake, since, last_at, ..trouble })
}

fn in_parts(part: &str, of: &str, count: usize) -> String {
    match count {
        1 => format!("1 {part} {of} has errors and keeps its last good content"),
        _ => format!("{count} {part}s {of} have errors and keep their last good content"),
    }
}

/// The certificate of the server, if it expires soon.
fn certificate(expires: SystemTime, now: SystemTime) -> Option<Trouble> {
    // The end of a certificate that could not be parsed is not known.
    if expires == SystemTime::UNIX_EPOCH {
        return None;
    }
    let left = expires.duration_since(now).unwrap_or_default();
    let severity = match left {
        left if left < ERROR_BEFORE_END => Severity::Error,
        left if left < WARNING_BEFORE_END => Severity::Warning,
        _ => return None,
    };
    let what = match left.as_secs() {
        0 => "The certificate of the server has expired: new clients cannot connect".to_owned(),
        seconds if left < DAY => format!("The certificate of the server expires in {} hours", seconds / 3600),
        seconds => format!("The certificate of the server expires in {} days", seconds / DAY.as_secs()),
    };
    let cure =
        "Replace the files of --listen-cert and --listen-key. The server reads them again by itself.".into();
    Some(Trouble { severity, cure, ..Trouble::error("certificate_expires", what) })
}

/// The lines of the log that were dropped, if some were dropped a short time ago.
#[derive(Debug)]
struct DroppedLines {
    counter: ErrorCounter,
    /// The count when it last grew, and the first and last time when it was seen to grow.
    seen: Mutex<Option<Growth>>,
}

#[derive(Debug, Clone, Copy)]
struct Growth {
    lines: usize,
    since: SystemTime,
    last_at: (Instant, SystemTime),
}

impl DroppedLines {
    fn trouble(&self) -> Option<Trouble> {
        let (lines, now) = (self.counter.dropped_lines(), SystemTime::now());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.filter(|growth| growth.last_at.0.elapsed() < RECENTLY);
        if lines > seen.map_or(0, |growth| growth.lines) {
            let since = before.map_or(now, |growth| growth.since);
            *seen = Some(Growth { lines, since, last_at: (Instant::now(), now) });
        }
        let Growth { since, last_at, .. } = seen.filter(|growth| growth.last_at.0.elapsed() < RECENTLY)?;
        Some(Trouble {
            since: Some(since),
            last_at: Some(last_at.1),
            count: lines as u64,
            cure: "The reader of standard error is too slow, or has stopped. Dropped lines are lost.".into(),
            ..Trouble::warning("log_lines_dropped", format!("{lines} log lines were dropped since the start"))
        })
    }
}

/// Warnings of a kind that a trouble quotes.
const WARNINGS_SHOWN: usize = 10;

/// A read that takes longer hangs, as in the log.
const HANGS_AFTER: Duration = Duration::from_secs(10);

const DAY: Duration = Duration::from_secs(24 * 3600);
/// From when on the end of a certificate is a warning.
const WARNING_BEFORE_END: Duration = Duration::from_secs(14 * 24 * 3600);
/// From when on it is an error.
const ERROR_BEFORE_END: Duration = Duration::from_secs(3 * 24 * 3600);

/// How long an event without an end is shown.
const RECENTLY: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_a_warning_two_weeks_before_its_end_and_an_error_three_days_before() {
        let now = SystemTime::now();
        let of = |days: f64| {
            let trouble = certificate(now + DAY.mul_f64(days), now)?;
            Some((trouble.severity, trouble.what))
        };
        assert_eq!(of(14.5), None);
        let days = |days| format!("The certificate of the server expires in {days} days");
        assert_eq!(of(13.5), Some((Severity::Warning, days(13))));
        assert_eq!(of(2.5), Some((Severity::Error, days(2))));
        assert!(of(0.5).unwrap().1.ends_with("expires in 12 hours"));
        assert!(certificate(now - DAY, now).unwrap().what.contains("has expired"));
    }

    #[test]
    fn a_refused_source_is_an_error_until_it_is_good_again() {
        let reloads = Reloads::default();
        assert_eq!(of_source("folder", &reloads), []);
        reloads.on_new();
        reloads.on_refused("a.yaml:1:1: no".into());
        reloads.on_refused("a.yaml:1:1: no".into());
        let kind = |source| {
            let troubles = of_source(source, &reloads);
            assert_eq!((troubles.len(), troubles[0].count), (1, 2));
            assert_eq!((&*troubles[0].detail, troubles[0].severity), ("a.yaml:1:1: no", Severity::Error));
            troubles[0].kind
        };
        let kinds = ["folder", "policy", "api_policy", "tokens", "certificates"].map(kind);
        let refused =
            ["folder_refused", "policy_refused", "policy_refused", "tokens_refused", "certificates_refused"];
        assert_eq!(kinds, refused);
        reloads.on_isolated(2, "a.yaml:1:1: no".into(), false);
        let isolated = of_source("folder", &reloads);
        assert_eq!((isolated[0].kind, isolated[0].count), ("files_isolated", 2));
        let objects = of_source("kubernetes", &reloads);
        assert_eq!((objects[0].kind, objects[0].count), ("objects_isolated", 2));
        // Then the folder as a whole cannot be read.
        reloads.on_refused("it cannot be read".into());
        assert_eq!(of_source("folder", &reloads)[0].kind, "folder_refused");
        assert_eq!(of_source("kubernetes", &reloads)[0].kind, "kubernetes_away");
        reloads.on_same();
        assert_eq!(of_source("folder", &reloads), []);
    }
}
