//! A fault at each step of the transport in turn: none of them may leave a watcher without news, or
//! a connection open.

use std::pin::Pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The connection is refused or reset.
    Closed,
    /// The connection passes no more bytes.
    Silent,
    /// The server shuts down and starts again.
    Restart,
}

/// The fault of a run, and the step of its connections at which it happens.
#[derive(Debug)]
struct Plan {
    fault: Fault,
    at: usize,
    steps: AtomicUsize,
    restart: Notify,
}

impl Plan {
    /// Counts a step. Returns the fault if the connection has it from now on.
    fn step(&self) -> Option<Fault> {
        if self.steps.fetch_add(1, Ordering::Relaxed) != self.at {
            return None;
        }
        if self.fault == Fault::Restart {
            self.restart.notify_one();
            return None;
        }
        Some(self.fault)
    }
}

/// A connection that counts its steps.
struct Faulty {
    io: Box<dyn Io>,
    plan: Arc<Plan>,
    fault: Option<Fault>,
    _open: Weak<()>,
}

impl Faulty {
    /// Counts a step of the connection, and fails if it has a fault.
    fn poll_step(&mut self) -> Poll<io::Result<()>> {
        self.fault = self.fault.or_else(|| self.plan.step());
        match self.fault {
            None | Some(Fault::Restart) => Poll::Ready(Ok(())),
            Some(Fault::Closed) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(Fault::Silent) => Poll::Pending,
        }
    }
}

impl AsyncRead for Faulty {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_step())?;
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Faulty {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_step())?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_step())?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_step())?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A connector with the fault of a plan. It and its open connections have weak references to `open`.
fn faulty(origin: &Origin, plan: &Arc<Plan>, open: &Arc<()>) -> Connector {
    let (connector, plan, open) = (origin.connector(), Arc::clone(plan), Arc::downgrade(open));
    Arc::new(move |server: &ServerAddress| {
        let (connecting, plan, _open) = (connector(server), Arc::clone(&plan), open.clone());
        Box::pin(async move {
            match plan.step() {
                Some(Fault::Closed) => return Err(io::ErrorKind::ConnectionRefused.into()),
                Some(Fault::Silent) => std::future::pending().await,
                Some(Fault::Restart) | None => {}
            }
            Ok(Box::new(Faulty { io: connecting.await?, plan, fault: None, _open }) as Box<dyn Io>)
        })
    })
}

async fn until(watcher: &mut Watcher<Thing>, content: &str) {
    while watcher.borrow().is_none_or(|thing| thing.content != content) {
        watcher.next().await.expect("the client lives");
    }
}

/// Runs a client with one fault, and returns the number of steps.
async fn run(protocol: Protocol, fault: Fault, at: usize) -> usize {
    let plan = Arc::new(Plan { fault, at, steps: AtomicUsize::new(0), restart: Notify::new() });
    let mut origin = Origin::start();
    let (cache, open) = (Arc::clone(&origin.cache), Arc::new(()));
    put(&cache, &[("a", "", "1")]);
    let connector = faulty(&origin, &plan, &open);
    let builder = Client::builder(Bootstrap::to_server("memory:1")).protocol(protocol);
    let client = builder.connector(connector).start().unwrap();
    let of_server = Arc::clone(&plan);
    let server = tokio::spawn(async move {
        of_server.restart.notified().await;
        origin.off().await;
        origin.on();
        std::future::pending::<()>().await;
    });
    let in_time = async {
        let mut a = client.watch::<Thing>("a").unwrap();
        until(&mut a, "1").await;
        put(&cache, &[("a", "", "2")]);
        until(&mut a, "2").await;
        drop((a, client));
        while Arc::weak_count(&open) > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let in_time = tokio::time::timeout(LONG, in_time).await;
    in_time.unwrap_or_else(|_| panic!("{protocol:?} does not recover: {fault:?} at step {at}"));
    server.abort();
    plan.steps.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn c7_c13_a_client_recovers_from_a_fault_at_any_step_of_its_connection() {
    for protocol in BOTH {
        for fault in [Fault::Closed, Fault::Silent, Fault::Restart] {
            let mut at = 0;
            while at < run(protocol, fault, at).await {
                at += 1;
            }
        }
    }
}

/// Longer than pings and retries take, in the time of the test.
const LONG: Duration = Duration::from_secs(1000);
