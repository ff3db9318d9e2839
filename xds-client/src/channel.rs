//! A connection to a server for other services than xDS.

use tonic::transport::Channel;

use crate::bootstrap::{Server, ServerUriError};
use crate::transport::{Connector, Transport};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address of the server is not valid.
    #[error(transparent)]
    Address(#[from] ServerUriError),
    /// The server cannot be reached, or a file with certificates cannot be used.
    #[error("{reason}")]
    Failed {
        /// The reason, with its cause.
        reason: String,
    },
}

/// Connects to a server with the addresses, TLS files and keepalive of a client of xDS, for calls of
/// other services. The call credentials of the server are not added.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(server: &Server) -> Result<Channel, ConnectError> {
    open(server, None).await
}

/// Connects as [`connect`] does, over the connections of a connector: for one address of several that a
/// name has. The certificate of the server is for the name.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_through(server: &Server, connector: Connector) -> Result<Channel, ConnectError> {
    open(server, Some(connector)).await
}

async fn open(server: &Server, connector: Option<Connector>) -> Result<Channel, ConnectError> {
    let transport = Transport::new(server.clone(), connector, None)?;
    transport.connect().await.map_err(|error| ConnectError::Failed { reason: error.with_cause() })
}
