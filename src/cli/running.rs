//! What commands that run until they are stopped share: the log, and how they end.

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

/// One of those who see spans and events.
pub(super) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

/// The log; what waits is written when this is dropped, for a second at most.
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

/// Says in the log that lines of it were dropped, for ever.
pub(super) async fn report_dropped(dropped: ErrorCounter) {
    let mut reported = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let lines = dropped.dropped_lines();
        if lines > reported {
            // It may be dropped as well, and then the next one says so.
            tracing::warn!(
                lines,
                "lines of the log were dropped, as they were not taken as fast as they came"
            );
            reported = lines;
        }
    }
}

/// Lines that wait to be written. The longest have some KB, so that this is not much even where all
/// are.
const LINES_LIMIT: usize = 4096;
/// How often it is seen whether lines were dropped.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl LogFormat {
    /// Starts the log, and beside it what else wants to see spans and events.
    ///
    /// Lines are written by a thread of their own: standard error may be a pipe that nobody reads,
    /// and then a thread that serves clients would wait in a write. Lines that do not fit into the
    /// queue are dropped and counted.
    pub(super) fn start(self, more: Option<BoxedLayer>) -> Log {
        let writer = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_LIMIT);
        let (writer, guard) = writer.thread_name("log").finish(io::stderr());
        let log = Log { dropped: writer.error_counter(), _guard: guard };
        // The file watcher reports each watch that went with its directory, which is how Kubernetes
        // changes a volume. HTTP/2 warns of each connection that breaks its rules, which may be
        // thousands a second; the server counts them.
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

    /// Says what a user waits for: in text on standard output, in JSON as a log line like all
    /// others.
    pub(super) fn announce(self, line: &str) {
        match self {
            // Who reads no further has seen what he waited for.
            Self::Text => super::say(line),
            Self::Json => tracing::info!("{}", line.trim_start()),
        }
    }
}

/// Has everything read again at each SIGHUP, which no longer ends the process once this was made.
/// To be made within a runtime.
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

    /// There is no such signal.
    #[cfg(not(unix))]
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// To be spawned. Those that came before count.
    #[cfg(unix)]
    pub(super) async fn follow(mut self, sources: Sources) {
        while self.signals.recv().await.is_some() {
            let names: Vec<_> = sources.all().iter().map(|(name, _)| *name).collect();
            tracing::info!(sources = names.join(" "), "SIGHUP: files are read again");
            sources.all().iter().for_each(|(_, reloads)| reloads.request());
        }
    }

    #[cfg(not(unix))]
    pub(super) async fn follow(self, _: Sources) {}
}

/// Sends the spans that are left, and ends what still runs. A write to the cache file is waited
/// for, but not for long: a read of a file system that hangs never ends.
pub(super) fn end(runtime: Runtime, traces: impl Sized) {
    drop(traces);
    runtime.shutdown_timeout(LAST_WRITES);
}

/// How long files may take when all streams have ended.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Ends with the first signal to stop; the second one ends the process.
#[cfg(unix)]
pub(super) fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; once more to stop at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(1);
        });
    })
}

/// Ends with the first Ctrl-C; the second one ends the process.
#[cfg(not(unix))]
pub(super) fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        _ = tokio::signal::ctrl_c().await;
        tracing::info!("stopping; once more to stop at once");
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
        // To drop the runtime would wait for ever.
        end(runtime, ());
    }
}
