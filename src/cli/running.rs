//! The parts that `xds serve` and `xds proxy` share: the log, signals, and how they end.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::ValueEnum;
use tokio::runtime::{Handle, Runtime};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt as lines, reload};

use super::Failure;
use super::log_fields::PrintableFields;
use super::log_filter::LogFilter;
use super::metrics::Sources;

/// A layer that receives spans and events.
pub(super) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

/// The log. Dropping this writes the waiting lines, for at most a second.
pub(super) struct Log {
    dropped: ErrorCounter,
    _guard: WorkerGuard,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("dropped", &self.dropped.dropped_lines()).finish_non_exhaustive()
    }
}

impl Log {
    /// Counts the lines that were dropped.
    pub(super) fn dropped(&self) -> ErrorCounter {
        self.dropped.clone()
    }
}

/// Logs a warning each time that log lines were dropped; runs until the future is dropped.
pub(super) async fn report_dropped(dropped: ErrorCounter) {
    let mut reported = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let lines = dropped.dropped_lines();
        if lines > reported {
            // If this line is dropped as well, the next one counts it.
            tracing::warn!(lines, "log lines were dropped: the reader of standard error is too slow");
            reported = lines;
        }
    }
}

/// How many lines may wait to be written. The longest lines have some KB, so the queue stays small.
const LINES_LIMIT: usize = 4096;
/// How often to check whether lines were dropped.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl LogFormat {
    /// Starts the log, and another layer that receives spans and events. Signals change its level
    /// from now on.
    ///
    /// A separate thread writes the lines. If standard error is a pipe that nobody reads, only that
    /// thread waits, and no thread that serves clients. Lines that do not fit into the queue are
    /// dropped and counted.
    pub(super) fn start(self, more: Option<BoxedLayer>, runtime: &Handle) -> Result<Log, Failure> {
        let configured = LogFilter::from_env().map_err(Failure::LogFilter)?.unwrap_or_default();
        let writer = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_LIMIT);
        let (writer, guard) = writer.thread_name("log").finish(io::stderr());
        let log = Log { dropped: writer.error_counter(), _guard: guard };
        let (filter, in_use) = reload::Layer::new(configured.targets());
        let layer = lines::layer().with_writer(writer).with_ansi(io::stderr().is_terminal());
        let layer: BoxedLayer = match self {
            Self::Text => Box::new(layer.with_target(false).fmt_fields(PrintableFields).with_filter(filter)),
            Self::Json => Box::new(layer.json().flatten_event(true).with_filter(filter)),
        };
        let layers: Vec<_> = more.into_iter().chain([layer]).collect();
        tracing_subscriber::registry().with(layers).init();
        let _runtime = runtime.enter();
        let signals = LevelSignals::listen().map_err(Failure::System)?;
        tokio::spawn(signals.follow(LogLevel { configured, in_use }));
        Ok(log)
    }

    /// Announces that the server started: as text on standard output, or in JSON as a log line.
    pub(super) fn announce(self, line: &str) {
        match self {
            // Errors are ignored: the reader may have closed the pipe after the line that it waited
            // for.
            Self::Text => super::say(line),
            Self::Json => tracing::info!("{}", line.trim_start()),
        }
    }
}

/// The level of the running log.
struct LogLevel {
    configured: LogFilter,
    in_use: reload::Handle<Targets, Registry>,
}

impl LogLevel {
    fn raise(&self) {
        // An error means that the log has ended.
        _ = self.in_use.reload(self.configured.raised_to(LevelFilter::DEBUG).targets());
        tracing::info!("SIGUSR1: the log level is debug now; SIGUSR2 restores the configured level");
    }

    fn restore(&self) {
        // Before the change, because the configured level may leave it out.
        tracing::info!("SIGUSR2: the log level is the configured one again");
        _ = self.in_use.reload(self.configured.targets());
    }
}

/// Changes the level of the log: SIGUSR1 to debug, SIGUSR2 to the configured level. Only the user of
/// the process and root may send signals. Once this exists, the signals do not end the process.
/// Make it within a runtime.
struct LevelSignals {
    #[cfg(unix)]
    raise: tokio::signal::unix::Signal,
    #[cfg(unix)]
    restore: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl LevelSignals {
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        let (raise, restore) = (SignalKind::user_defined1(), SignalKind::user_defined2());
        Ok(Self { raise: signal(raise)?, restore: signal(restore)? })
    }

    async fn follow(mut self, level: LogLevel) {
        loop {
            tokio::select! {
                Some(()) = self.raise.recv() => level.raise(),
                Some(()) = self.restore.recv() => level.restore(),
                else => return,
            }
        }
    }
}

/// This system has no such signals.
#[cfg(not(unix))]
impl LevelSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    async fn follow(self, _: LogLevel) {}
}

/// Reads all files again at each SIGHUP. Once this exists, SIGHUP does not end the process. Make it
/// within a runtime.
#[derive(Debug)]
pub(super) struct Hangups {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangups {
    #[cfg(unix)]
    pub(super) fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self { signals: signal(SignalKind::hangup())? })
    }

    /// This system has no SIGHUP.
    #[cfg(not(unix))]
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Handles signals until the task is aborted, also those that came before this call.
    #[cfg(unix)]
    pub(super) async fn follow(mut self, sources: Sources) {
        while self.signals.recv().await.is_some() {
            let mut files = sources.all();
            files.retain(|(name, _)| *name != "kubernetes");
            let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
            tracing::info!(sources = names.join(" "), "SIGHUP: reading files again");
            files.iter().for_each(|(_, reloads)| reloads.request());
        }
    }

    #[cfg(not(unix))]
    pub(super) async fn follow(self, _: Sources) {}
}

/// Sends the remaining spans and ends all tasks. It waits for a write to the cache file, but not
/// for long: a read from a file system that hangs never ends.
pub(super) fn end(runtime: Runtime, traces: impl Sized) {
    drop(traces);
    runtime.shutdown_timeout(LAST_WRITES);
}

/// How long to wait for file operations after all streams have ended.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Completes at the first SIGTERM or SIGINT. The second one ends the process.
#[cfg(unix)]
pub(super) fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; send the signal again to stop at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(1);
        });
    })
}

/// Completes at the first Ctrl-C. The second one ends the process.
#[cfg(not(unix))]
pub(super) fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        _ = tokio::signal::ctrl_c().await;
        tracing::info!("stopping; send the signal again to stop at once");
        tokio::spawn(async {
            _ = tokio::signal::ctrl_c().await;
            std::process::exit(1);
        });
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_reads_a_file_system_that_hangs_does_not_keep_the_process() {
        let runtime = Runtime::new().unwrap();
        let (begin, begun) = mpsc::channel();
        let (_hold, held) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || {
            begin.send(()).unwrap();
            held.recv()
        });
        begun.recv().unwrap();
        // Dropping the runtime would wait forever.
        end(runtime, ());
    }
}
