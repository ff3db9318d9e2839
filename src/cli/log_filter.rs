//! Which events are logged: the levels of `RUST_LOG`.

use std::env;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Levels by target. A target is the path of a module, such as `xds_server` or
/// `xds_server::connections`.
///
/// The syntax is that of `RUST_LOG` in most Rust programs, with two differences. A level without a
/// target is that of this program: libraries log frames of HTTP/2 and polls of sockets at `debug`,
/// so they log only warnings until a directive names them. And an invalid directive is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogFilter {
    level: LevelFilter,
    /// The directives with a target.
    targets: Vec<(String, LevelFilter)>,
}

/// Why `RUST_LOG` is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LogFilterError {
    #[error("RUST_LOG is not UTF-8")]
    NotUtf8,
    #[error("RUST_LOG: {directive:?} is not a level; {SYNTAX}")]
    NoLevel { directive: String },
    #[error("RUST_LOG: {directive:?} has no level after `=`; {SYNTAX}")]
    NoLevelOfTarget { directive: String },
    #[error("RUST_LOG: {directive:?} has no module before `=`; {SYNTAX}")]
    NoTarget { directive: String },
    #[error("RUST_LOG: {directive:?} names no module of this program; its modules begin with {}", CRATES.join(", "))]
    UnknownTarget { directive: String },
}

impl LogFilter {
    /// The filter of `RUST_LOG`; `None` if it is not set, or is empty.
    pub(super) fn from_env() -> Result<Option<Self>, LogFilterError> {
        match env::var("RUST_LOG") {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => Self::parse(&text).map(Some),
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => Err(LogFilterError::NotUtf8),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, LogFilterError> {
        let mut filter = Self::default();
        for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
            let of = || directive.to_owned();
            let Some((target, level_name)) = directive.split_once('=') else {
                filter.level = level(directive).ok_or_else(|| LogFilterError::NoLevel { directive: of() })?;
                continue;
            };
            let level =
                level(level_name).ok_or_else(|| LogFilterError::NoLevelOfTarget { directive: of() })?;
            let target = target.trim();
            let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
            if target.is_empty() || !target.chars().all(is_word) {
                return Err(LogFilterError::NoTarget { directive: of() });
            }
            let name = target.split("::").next().unwrap_or_default();
            if name.starts_with(OURS) && !CRATES.contains(&name) {
                return Err(LogFilterError::UnknownTarget { directive: of() });
            }
            filter.targets.push((target.to_owned(), level));
        }
        Ok(filter)
    }

    /// The same filter with at least this level for the modules of this program.
    pub(super) fn raised_to(&self, level: LevelFilter) -> Self {
        let is_lower = |target: &str, own: LevelFilter| target.starts_with(OURS) && own < level;
        let raise = |(target, own): &(String, LevelFilter)| {
            (target.clone(), if is_lower(target, *own) { level } else { *own })
        };
        Self { level: self.level.max(level), targets: self.targets.iter().map(raise).collect() }
    }

    pub(super) fn targets(&self) -> Targets {
        // A longer target overrides a shorter one that it begins with.
        let libraries = self.level.min(LevelFilter::WARN);
        let targets = Targets::new()
            .with_default(libraries)
            .with_target(OURS, self.level)
            // The spans of commits are for a trace collector.
            .with_target(xds::TRACE_TARGET, LevelFilter::OFF)
            // The HTTP/2 library warns of each connection that breaks the protocol, which may be
            // thousands per second; the server counts them.
            .with_target("h2", self.level.min(LevelFilter::ERROR));
        targets.with_targets(self.targets.iter().cloned())
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self { level: LevelFilter::INFO, targets: Vec::new() }
    }
}

fn level(word: &str) -> Option<LevelFilter> {
    let word = word.trim().to_ascii_lowercase();
    LEVELS.into_iter().find(|(name, _)| *name == word).map(|(_, level)| level)
}

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
const SYNTAX: &str = "write a level (off, error, warn, info, debug, trace) or MODULE=LEVEL, with commas between \
                      them, for example info,xds_server=debug";
/// All modules of this program begin with it.
const OURS: &str = "xds";
/// The crates whose events may be logged. `xds` is also the prefix of the others.
const CRATES: [&str; 5] = ["xds", "xds_server", "xds_client", "xds_core", "xds_file"];

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn logs(filter: &str, target: &str, level: Level) -> bool {
        LogFilter::parse(filter).unwrap().targets().would_enable(target, &level)
    }

    #[test]
    fn a_level_is_that_of_this_program_and_libraries_log_warnings_until_they_are_named() {
        for (filter, target, most) in [
            ("info", "xds_server::driver", Level::INFO),
            ("debug", "xds_server::driver", Level::DEBUG),
            ("debug", "xds::cli::running", Level::DEBUG),
            ("debug", "h2::codec", Level::ERROR),
            ("debug", "hyper", Level::WARN),
            ("trace", "notify", Level::WARN),
            ("debug,h2=debug", "h2::codec", Level::DEBUG),
            ("error", "hyper", Level::ERROR),
            ("info,xds_server=debug", "xds_server::driver", Level::DEBUG),
            ("info,xds_server=debug", "xds_client", Level::INFO),
            ("xds_server=debug", "xds_client", Level::INFO),
            (" Warn , xds_server::connections = DEBUG ,", "xds_server::connections::x", Level::DEBUG),
            ("xds=debug,warn", "xds_server", Level::DEBUG),
        ] {
            let enabled: Vec<_> = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE]
                .into_iter()
                .filter(|level| logs(filter, target, *level))
                .collect();
            assert_eq!(enabled.last(), Some(&most), "{filter} {target}");
        }
        assert!(!logs("off", "xds", Level::ERROR) && !logs("trace", xds::TRACE_TARGET, Level::ERROR));
    }

    #[test]
    fn an_error_names_the_invalid_directive() {
        let error = |text| LogFilter::parse(text).unwrap_err().to_string();
        for (text, start) in [
            ("info,debgu", "RUST_LOG: \"debgu\" is not a level; write a level (off, "),
            ("xds_server", "RUST_LOG: \"xds_server\" is not a level; "),
            ("xds_server=verbose", "RUST_LOG: \"xds_server=verbose\" has no level after `=`; "),
            ("xds_server=", "RUST_LOG: \"xds_server=\" has no level after `=`; "),
            ("=debug", "RUST_LOG: \"=debug\" has no module before `=`; "),
            ("h2[frame]=debug", "RUST_LOG: \"h2[frame]=debug\" has no module before `=`; "),
            ("xds_sever=debug", "RUST_LOG: \"xds_sever=debug\" names no module of this program; its modules"),
        ] {
            assert!(error(text).starts_with(start), "{}", error(text));
        }
    }

    #[test]
    fn a_raised_level_lowers_nothing_and_leaves_libraries_alone() {
        let raised = |text| {
            let targets = LogFilter::parse(text).unwrap().raised_to(LevelFilter::DEBUG).targets();
            ["xds_server", "xds_client", "hyper"].map(|target| {
                let levels = [Level::INFO, Level::DEBUG, Level::TRACE];
                levels.into_iter().filter(|level| targets.would_enable(target, level)).count()
            })
        };
        assert_eq!(raised("warn"), [2, 2, 0]);
        assert_eq!(raised("error,xds_server=trace,xds_client=off"), [3, 2, 0]);
        assert_eq!(raised("hyper=trace"), [2, 2, 3]);
    }
}
