//! As much of HTTP/1.1 as the tests need, for Envoy's admin page and to count failed requests.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time;

/// A complete answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    /// The lines before the body.
    head: String,
}

impl Answer {
    /// The value of the header field `name`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Whether the connection may be used again.
    pub(crate) fn keeps_connection(&self) -> bool {
        self.field("connection") != Some("close")
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    Connect(io::ErrorKind),
    /// The connection ended before the first byte of an answer.
    Closed,
    /// The connection ended before the answer was complete.
    Truncated,
    Timeout,
    /// An answer other than 200, with Envoy's text.
    Status(u16, String),
}

/// One connection to a port of this machine.
#[derive(Debug)]
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Self, Failure> {
        let opening = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let stream = time::timeout(PATIENCE, opening).await.map_err(|_elapsed| Failure::Timeout)?;
        Ok(Self(BufReader::new(stream.map_err(|error| Failure::Connect(error.kind()))?)))
    }

    /// Sends a request to `host` and reads the whole answer.
    pub(crate) async fn get(&mut self, host: &str, path: &str) -> Result<Answer, Failure> {
        time::timeout(PATIENCE, self.ask(host, path)).await.map_err(|_elapsed| Failure::Timeout)?
    }

    async fn ask(&mut self, host: &str, path: &str) -> Result<Answer, Failure> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        self.0.write_all(request.as_bytes()).await.map_err(|_error| Failure::Closed)?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match self.0.read_line(&mut head).await {
                Ok(1..) => {}
                _ if head.is_empty() => return Err(Failure::Closed),
                _ => return Err(Failure::Truncated),
            }
        }
        let body = match field(&head, "content-length").and_then(|length| length.parse().ok()) {
            Some(length) => self.exactly(length).await,
            None => self.chunks().await,
        };
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Answer {
            status: status.ok_or(Failure::Truncated)?,
            body: String::from_utf8_lossy(&body.map_err(|_error| Failure::Truncated)?).into_owned(),
            head,
        })
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut whole = Vec::new();
        loop {
            let mut size = String::new();
            self.0.read_line(&mut size).await?;
            let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            whole.extend(self.exactly(size).await?);
            self.exactly("\r\n".len()).await?;
            if size == 0 {
                return Ok(whole);
            }
        }
    }
}

/// Sends a request on a new connection.
pub(crate) async fn get(port: u16, path: &str) -> Result<Answer, Failure> {
    get_from(port, ANY_HOST, path).await
}

/// The same with this host name.
pub(crate) async fn get_from(port: u16, host: &str, path: &str) -> Result<Answer, Failure> {
    Connection::open(port).await?.get(host, path).await
}

/// The host name for routes that match every host.
pub(crate) const ANY_HOST: &str = "interop";

const PATIENCE: Duration = Duration::from_secs(5);
