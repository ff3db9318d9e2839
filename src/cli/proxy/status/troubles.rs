//! The troubles of a proxy with its upstreams and its file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use xds::admin::{Trouble, Troubles};
use xds::client::health::{Status, SyncState};
use xds::client::proxy::{NotReady, Proxy, Upstream};
use xds::client::{ServerFailure, ServerState};
use xds::{TypeUrl, type_name};

/// Adds them.
pub(in crate::cli::proxy) fn add(troubles: &Troubles, proxy: &Proxy) {
    let proxy = proxy.clone();
    troubles.add(move || {
        let upstreams = proxy.upstreams();
        let file = proxy.cache_file().filter(|file| file.is_behind).map(|file| Trouble {
            count: file.failures,
            cure: "Usually the disk is full. The proxy tries again at least once a minute.".into(),
            ..Trouble::warning(
                "cache_file_behind",
                "Changes could not be written to the cache file: no wildcard would be restored from it",
            )
        });
        away(&upstreams)
            .into_iter()
            .chain(rejected(&upstreams))
            .chain(silent(&upstreams))
            .chain(not_ready(&proxy))
            .chain(file)
            .collect()
    });
}

/// A proxy that can serve nobody. At its start nothing is known yet.
fn not_ready(proxy: &Proxy) -> Option<Trouble> {
    let Err(NotReady::Unreachable { reason, since }) = proxy.readiness(None) else { return None };
    Some(Trouble {
        detail: reason,
        since: Some(since),
        cure:
            "No upstream answers, and the cache is empty. `/readyz` answers 503, so that clients use other \
               proxies. The proxy tries again by itself."
                .into(),
        ..Trouble::error("not_ready", "The proxy is not ready: it has nothing to serve")
    })
}

/// Upstreams that clients need. There may be one for each set of parameters, so they are one
/// trouble: an error if some of them have no connected server, else a warning.
fn away(upstreams: &[Upstream]) -> Option<Trouble> {
    let needed = |upstream: &&Upstream| upstream.servers.iter().any(|server| server.is_needed);
    let failed: Vec<_> = upstreams.iter().filter(needed).filter_map(Failed::of).collect();
    let cut_off = failed.iter().filter(|failed| failed.is_cut_off).count();
    let shown: Vec<_> = failed.iter().filter(|failed| failed.is_cut_off || cut_off == 0).collect();
    let first = shown.first()?;
    let reasons: BTreeSet<_> = shown.iter().flat_map(|failed| &failed.reasons).collect();
    let trouble = if cut_off > 0 {
        Trouble {
            cure: "Repair the server, or the way to it; the proxy tries again at least every 2 minutes. Clients keep \
                   their resources. New clients get what the proxy has in its cache, and wait for everything else. \
                   Do not restart the proxy: without --cache-file its cache is lost."
                .into(),
            ..Trouble::error(
                "upstream_away",
                match cut_off {
                    1 => "No server of the upstream can be reached".to_owned(),
                    _ => format!("No server of {cut_off} upstreams can be reached"),
                },
            )
        }
    } else {
        Trouble {
            cure: "Another server is in use. The proxy returns by itself.".into(),
            ..Trouble::warning("upstream_fallback", "A preferred server of the upstream cannot be reached")
        }
    };
    Some(Trouble {
        detail: reasons.into_iter().take(REASONS_SHOWN).cloned().collect::<Vec<_>>().join("\n"),
        since: shown.iter().map(|failed| failed.since).min(),
        last_at: shown.iter().map(|failed| failed.last_at).max(),
        count: shown.iter().map(|failed| failed.count).sum::<u64>().max(first.count),
        link: "upstreams".into(),
        ..trouble
    })
}

/// An upstream with servers that cannot be reached.
#[derive(Debug)]
struct Failed {
    /// No server is connected.
    is_cut_off: bool,
    /// Since when all of these servers are away.
    since: SystemTime,
    last_at: SystemTime,
    count: u64,
    reasons: Vec<String>,
}

impl Failed {
    fn of(upstream: &Upstream) -> Option<Self> {
        let failures = upstream.servers.iter().filter_map(|server| Some((server, server.failure.as_ref()?)));
        let failures: Vec<_> = failures.collect();
        let reason = |(server, failure): &(&ServerState, &ServerFailure)| {
            format!("{}: {}", server.uri, failure.reason)
        };
        Some(Self {
            is_cut_off: !upstream.servers.iter().any(|server| server.is_connected),
            since: failures.iter().map(|(_, failure)| failure.since).max()?,
            last_at: failures.iter().map(|(_, failure)| failure.last_at).max()?,
            count: failures.iter().map(|(_, failure)| failure.count).sum(),
            reasons: failures.iter().map(reason).collect(),
        })
    }
}

/// Types that an upstream refuses, one trouble each.
fn rejected(upstreams: &[Upstream]) -> Vec<Trouble> {
    let mut types = BTreeMap::<&TypeUrl, (&Status, u64)>::new();
    for (type_url, state) in upstreams.iter().flat_map(|upstream| &upstream.types) {
        if let SyncState::Rejected(_, status) = state {
            types.entry(type_url).or_insert((status, 0)).1 += 1;
        }
    }
    let trouble = |(type_url, (status, count)): (&TypeUrl, (&Status, u64))| Trouble {
        detail: status.to_string(),
        count,
        cure: "Clients of this type get this error. Other types are not affected.".into(),
        link: "upstreams".into(),
        ..Trouble::error("upstream_rejects_type", format!("The upstream does not serve {}", name(type_url)))
    };
    types.into_iter().take(TYPES_SHOWN).map(trouble).collect()
}

/// Types that a connected upstream leaves without a response.
fn silent(upstreams: &[Upstream]) -> Option<Trouble> {
    let is_connected = |upstream: &&Upstream| upstream.servers.iter().any(|server| server.is_connected);
    let is_silent =
        |upstream: &&Upstream| upstream.silent_for.is_some_and(|silent_for| silent_for >= SILENT_AFTER);
    let all: Vec<_> = upstreams.iter().filter(is_connected).filter(is_silent).collect();
    let longest = all.iter().filter_map(|upstream| upstream.silent_for).max();
    let unanswered = all.iter().flat_map(|upstream| &upstream.types);
    let unanswered =
        unanswered.filter(|(_, state)| matches!(state, SyncState::Requested | SyncState::Stale(_)));
    let types: BTreeSet<_> = unanswered.map(|(type_url, _)| name(type_url)).collect();
    if types.is_empty() {
        return None;
    }
    let types: Vec<_> = types.into_iter().take(TYPES_SHOWN).collect();
    Some(Trouble {
        since: longest.and_then(|longest| SystemTime::now().checked_sub(longest)),
        count: types.len() as u64,
        cure: "The connection is open. Check whether the control plane has these resources, and whether it hangs."
            .into(),
        link: "upstreams".into(),
        ..Trouble::warning("upstream_silent", format!("The upstream has not answered {}", types.join(", ")))
    })
}

fn name(type_url: &TypeUrl) -> &str {
    type_name::service(type_url).unwrap_or_else(|| type_url.message_name())
}

/// Reasons that a trouble quotes.
const REASONS_SHOWN: usize = 10;
/// Types that a trouble lists, and troubles about one type each.
const TYPES_SHOWN: usize = 20;
/// An upstream that owes a response for so long is silent.
const SILENT_AFTER: Duration = Duration::from_secs(30);
