//! Ports for programs that a test starts.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A free port of the loopback address, another one for each call. The port after it is free, too:
/// without `--admin`, `xds serve` and `xds proxy` open it for the admin page.
///
/// It is below the ports that systems give to outgoing connections. One of those, free now, may be
/// taken before the program listens there.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % u32::from(COUNT)).expect("it is below COUNT");
    loop {
        let port = LOWEST + 2 * ((first + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT);
        if [port, port + 1].iter().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()) {
            return port;
        }
    }
}

const LOWEST: u16 = 20_000;
const COUNT: u16 = 6_000;
