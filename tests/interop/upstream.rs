//! HTTP servers that answer every request with their name.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One such server; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) port: u16,
    accepting: JoinHandle<()>,
}

impl Upstream {
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_on(Ipv4Addr::LOCALHOST, name).await
    }

    /// The same on this address of the machine.
    pub(crate) async fn start_on(address: Ipv4Addr, name: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let answer: Arc<str> =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()).into();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_all(stream, Arc::clone(&answer)));
            }
        });
        Self { port, accepting }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers requests without bodies until the connection ends.
async fn answer_all(stream: TcpStream, answer: Arc<str>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while let Ok(1..) = stream.read_line(&mut line).await {
        if line == "\r\n" && stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
    }
}
