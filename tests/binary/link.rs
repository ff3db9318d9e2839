//! A way to a server, which a test can cut.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Forwards connections to a port of this machine, until it is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    target: Arc<AtomicU16>,
    is_cut: Arc<AtomicBool>,
    /// How many bytes each connection gives back, until this changes.
    limit: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// It leads nowhere yet.
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (target, is_cut) = (Arc::new(AtomicU16::new(0)), Arc::new(AtomicBool::new(false)));
        let limit = Arc::new(AtomicU64::new(u64::MAX));
        let (port, cut, most) = (Arc::clone(&target), Arc::clone(&is_cut), Arc::clone(&limit));
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let (port, cut, most) = (port.load(Ordering::Relaxed), Arc::clone(&cut), Arc::clone(&most));
                tokio::spawn(async move {
                    let forward = async {
                        if let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await {
                            let ((mut asks, asked), (answers, mut answered)) = (from.split(), to.split());
                            let forward = async {
                                tokio::io::copy(&mut asks, &mut answered).await?;
                                answered.shutdown().await
                            };
                            // Either side may end it; an error of one ends both.
                            _ = tokio::try_join!(forward, forward_at_most(&most, answers, asked));
                        }
                    };
                    let until_cut = async {
                        while !cut.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    };
                    tokio::select! { () = forward => {}, () = until_cut => {} }
                });
            }
        });
        Self { address, target, is_cut, limit, accepting }
    }

    /// New connections go to this port.
    pub(crate) fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::Relaxed);
    }

    /// Ends all connections, and those that begin, until it is mended.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Each connection gives back so many bytes, and holds what follows until there is no such limit.
    pub(crate) fn stall(&self, after: Option<u64>) {
        self.limit.store(after.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

async fn forward_at_most(limit: &AtomicU64, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
    let (mut buffer, mut forwarded) = (vec![0; 16 << 10], 0);
    loop {
        while forwarded >= limit.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        forwarded += read as u64;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut(true);
    }
}
