//! Who is at the other end of a connection, as far as the connection shows it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tonic::transport::server::TcpConnectInfo;

/// Who is at the other end of a connection: unlike a node, which a client says of itself, this is
/// shown by the transport.
#[derive(Debug, Default, Clone)]
pub struct Peer {
    /// Where it is; `None` for connections without an IP address.
    pub address: Option<SocketAddr>,
    /// What its certificate says; `None` without TLS, or where no certificate is asked for.
    pub identity: Option<Arc<Identity>>,
    /// When its streams are to end, as the connection is old enough then.
    pub(crate) ends_at: Option<Instant>,
    /// The number of the connection, unique in this process; `None` where another server accepted
    /// it.
    pub(crate) connection: Option<u64>,
}

/// What the certificate of a client says, which an authority of the server has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    names: Vec<String>,
    expires: SystemTime,
}

impl Identity {
    /// Of these names, until then.
    #[must_use]
    pub fn new(names: Vec<String>, expires: SystemTime) -> Self {
        Self { names, expires }
    }

    /// The SPIFFE id (`spiffe://..`), if the certificate has one, else its DNS names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Until when the certificate is valid.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// Whether it is not valid any more: a connection may last longer than the certificate that it
    /// was opened with.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires < SystemTime::now()
    }
}

impl Peer {
    /// The peer of a request: a [`Peer`] among its extensions, else what there is of the
    /// connection.
    #[must_use]
    pub fn of(extensions: &http::Extensions) -> Self {
        if let Some(peer) = extensions.get::<Self>() {
            return peer.clone();
        }
        let address = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        Self { address, ..Self::default() }
    }

    /// The first of its names, for people; empty when it showed none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.identity.as_ref().and_then(|identity| identity.names.first()).map_or("", String::as_str)
    }
}
