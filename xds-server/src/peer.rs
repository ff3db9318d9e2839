//! The other end of a connection: its address and its certificate.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;
use tonic::transport::server::TcpConnectInfo;

/// The other end of a connection. The transport shows it, unlike a node, which a client declares
/// without proof.
#[derive(Debug, Default, Clone)]
pub struct Peer {
    /// Its address; `None` for connections without an IP address.
    pub address: Option<SocketAddr>,
    /// The names in its certificate; `None` without TLS, or if the server requests no certificate.
    pub identity: Option<Arc<Identity>>,
    /// When the server closes its streams, because the connection reaches its maximal age.
    pub(crate) ends_at: Option<Instant>,
    /// The number of the connection, unique in this process; `None` if another server accepted the
    /// connection.
    pub(crate) connection: Option<u64>,
}

/// The client certificate, which an authority of the server has signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    names: Vec<String>,
    expires: SystemTime,
}

impl Identity {
    /// An identity with these names, valid until `expires`.
    #[must_use]
    pub fn new(names: Vec<String>, expires: SystemTime) -> Self {
        Self { names, expires }
    }

    /// The SPIFFE id (`spiffe://..`), if the certificate has one, else its DNS names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// When the certificate expires.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// Whether the certificate has expired. A connection may last longer than the certificate from
    /// its handshake.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires < SystemTime::now()
    }
}

impl Peer {
    /// The peer of a request: the [`Peer`] in its extensions, else the address in them.
    #[must_use]
    pub fn of(extensions: &http::Extensions) -> Self {
        if let Some(peer) = extensions.get::<Self>() {
            return peer.clone();
        }
        let address = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        Self { address, ..Self::default() }
    }

    /// Its address without the port. For IPv6 it is the /64 network, because the owner of one address
    /// has the whole network.
    #[must_use]
    pub fn network(&self) -> Option<IpAddr> {
        self.address.map(|address| network(address.ip()))
    }

    /// The first name, for logs and lists; empty without an identity.
    #[must_use]
    pub fn name(&self) -> &str {
        self.identity.as_ref().and_then(|identity| identity.names.first()).map_or("", String::as_str)
    }
}

/// The address for limits: see [`Peer::network`].
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}
