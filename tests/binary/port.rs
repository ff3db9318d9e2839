//! Ports for programs that a test starts.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A free port of the loopback address, another one for each call.
///
/// It is below the ports that systems give to outgoing connections. One of those, free now, may be
/// taken before the program listens there.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % u32::from(COUNT)).expect("it is below COUNT");
    loop {
        let offset = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = LOWEST + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

const LOWEST: u16 = 20_000;
const COUNT: u16 = 12_000;
