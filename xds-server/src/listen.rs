//! Ports, with room for a storm of clients.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Opens a port as [`TcpListener::bind`] does, but lets the system keep as many connections that
/// wait to be accepted as it is set up for (`net.core.somaxconn` on Linux).
///
/// `TcpListener::bind` keeps 128. When more clients connect at once, the system drops what they
/// send, and they try again only after a second.
///
/// # Errors
/// As those of [`TcpListener::bind`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that starts again finds connections of the one before, which wait for their end.
    // Elsewhere than on Unix the option would let two servers share a port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// More than any system is set up for: each takes its own limit then.
const BACKLOG: u32 = 65_535;
