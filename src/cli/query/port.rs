//! Finds out whether a port speaks TLS that broke off a connection without TLS.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Whether the port of a server URI answers the first bytes of HTTP/2 without TLS by an alert of TLS. Takes a second
/// at most.
pub(super) async fn speaks_tls(uri: &str) -> bool {
    let address = uri.split_once("://").map_or(uri, |(_, address)| address).trim_matches('/');
    let first_byte = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(PREFACE).await.ok()?;
        let mut first = [0];
        stream.read_exact(&mut first).await.ok()?;
        Some(first[0])
    };
    matches!(timeout(WITHIN, first_byte).await, Ok(Some(ALERT)))
}

/// What a client of HTTP/2 sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The type of a TLS record with an alert.
const ALERT: u8 = 21;
const WITHIN: Duration = Duration::from_secs(1);
