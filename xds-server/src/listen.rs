//! Opens ports with a long accept queue, for many clients that connect at once.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Opens a port as [`TcpListener::bind`] does, but with the longest accept queue that the system
/// allows (`net.core.somaxconn` on Linux).
///
/// The queue of `TcpListener::bind` has 128 places. When more clients connect at once, the system
/// drops their packets, and the clients retry only after a second.
///
/// # Errors
/// The same as [`TcpListener::bind`].
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // After a restart, connections of the former process may still be in TIME_WAIT. On systems
    // other than Unix, the option would let two servers share a port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// More than systems allow; each system uses its own limit instead.
const BACKLOG: u32 = 65_535;
