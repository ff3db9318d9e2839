//! The fixed ports of the examples.

use std::fs::File;
use std::net::TcpListener;

/// Fixed ports, which no other test on this machine uses until this is dropped.
pub(super) struct Taken {
    /// The lock ends when the file is closed.
    _lock: File,
}

impl Taken {
    /// Waits until no other run of these tests uses fixed ports.
    ///
    /// # Panics
    /// Another program listens on one of the ports.
    pub(super) fn of(example: &str, ports: &[u16]) -> Self {
        let path = std::env::temp_dir().join("xds-examples-ports.lock");
        // Do not create a file that exists: it may belong to another user.
        let lock = File::open(&path).or_else(|_missing| File::create(&path)).unwrap();
        lock.lock().unwrap();
        for port in ports {
            if let Err(error) = TcpListener::bind(("127.0.0.1", *port)) {
                panic!(
                    "{example} uses port {port}, which this test cannot open: {error}. Stop the program that \
                     listens there (`ss -ltnp 'sport = :{port}'`), and run the test again"
                );
            }
        }
        Self { _lock: lock }
    }
}

#[test]
fn a_port_that_is_in_use_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let error = std::panic::catch_unwind(|| Taken::of("examples/a.rs", &[port])).err().unwrap();
    let message = error.downcast::<String>().unwrap();
    assert!(message.starts_with(&format!("examples/a.rs uses port {port}, which")), "{message}");
}
