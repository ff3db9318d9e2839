//! What commands that run until they are stopped share: the log, and how they end.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use super::metrics::Sources;

/// One of those who see spans and events.
pub(super) type Beside = Box<dyn Layer<Registry> + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

impl LogFormat {
    /// Starts the log, and beside it what else wants to see spans and events.
    pub(super) fn start(self, beside: Option<Beside>) {
        // The file watcher reports each watch that went with its directory, which is how Kubernetes changes a volume.
        // HTTP/2 warns of each connection that breaks its rules, which may be thousands a second; the server counts them.
        let default = || EnvFilter::new("info,notify=warn,h2=error");
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default());
        let log = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
        let log: Beside = match self {
            Self::Text => Box::new(log.with_target(false).with_filter(filter)),
            Self::Json => Box::new(log.json().flatten_event(true).with_filter(filter)),
        };
        let layers: Vec<_> = beside.into_iter().chain([log]).collect();
        tracing_subscriber::registry().with(layers).init();
    }

    /// Says what a user waits for: in text on standard output, in JSON as a log line like all others.
    pub(super) fn announce(self, line: &str) {
        match self {
            // Who reads no further has seen what he waited for.
            Self::Text => super::say(line),
            Self::Json => tracing::info!("{}", line.trim_start()),
        }
    }
}

/// Has everything read again at each SIGHUP, which no longer ends the process once this was made. To be made within a runtime.
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
