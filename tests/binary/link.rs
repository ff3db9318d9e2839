//! A way to a server, which a test can cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Forwards connections to a port of this machine, until it is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    target: Arc<AtomicU16>,
    is_cut: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

impl Link {
    /// It leads nowhere yet.
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (target, is_cut) = (Arc::new(AtomicU16::new(0)), Arc::new(AtomicBool::new(false)));
        let (port, cut) = (Arc::clone(&target), Arc::clone(&is_cut));
        let accepting = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let (port, cut) = (port.load(Ordering::Relaxed), Arc::clone(&cut));
                tokio::spawn(async move {
                    let forward = async {
                        if let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await {
                            // Either side may end it.
                            _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
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
        Self { address, target, is_cut, accepting }
    }

    /// New connections go to this port.
    pub(crate) fn lead_to(&self, port: u16) {
        self.target.store(port, Ordering::Relaxed);
    }

    /// Ends all connections, and those that begin, until it is mended.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut(true);
    }
}
