//! The parts that `xds serve` and `xds proxy` share: the log, signals, and how they end.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::ValueEnum;
use tokio::runtime::Runtime;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt as lines};

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
    /// Starts the log, and another layer that receives spans and events.
    ///
    /// A separate thread writes the lines. If standard error is a pipe that nobody reads, only that
    /// thread waits, and no thread that serves clients. Lines that do not fit into the queue are
    /// dropped and counted.
    pub(super) fn start(self, more: Option<BoxedLayer>) -> Log {
        let writer = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_LIMIT);
        let (writer, guard) = writer.thread_name("log").finish(io::stderr());
        let log = Log { dropped: writer.error_counter(), _guard: guard };
        // The file watcher logs each watch of a directory that was removed, which happens whenever
        // Kubernetes changes a volume. The HTTP/2 library warns of each connection that breaks the
        // protocol, which may be thousands per second; the server counts them.
        let default = || EnvFilter::new("info,notify=warn,h2=error");
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default());
        let layer = lines::layer().with_writer(writer).with_ansi(io::stderr().is_terminal());
        let layer: BoxedLayer = match self {
            Self::Text => Box::new(layer.with_target(false).with_filter(filter)),
            Self::Json => Box::new(layer.json().flatten_event(true).with_filter(filter)),
        };
        let layers: Vec<_> = more.into_iter().chain([layer]).collect();
        tracing_subscriber::registry().with(layers).init();
        log
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
            let names: Vec<_> = sources.all().iter().map(|(name, _)| *name).collect();
            tracing::info!(sources = names.join(" "), "SIGHUP: reading files again");
            sources.all().iter().for_each(|(_, reloads)| reloads.request());
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
