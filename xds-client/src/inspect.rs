//! Requests from a server, by CSDS, what its clients have.

use xds_proto::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use xds_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest};

use crate::bootstrap::{Server, ServerUriError};
use crate::transport::{Transport, TransportError};

/// Why a server did not report its clients.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The address of the server is not valid.
    #[error(transparent)]
    Address(#[from] ServerUriError),
    /// There is no connection, or the server refused the request.
    #[error("{reason}")]
    Refused {
        /// The reason, with its cause.
        reason: String,
    },
}

/// The clients of a server that match a request, with their resources. A client with many resources
/// may be several entries with the same node.
///
/// # Errors
/// See [`InspectError`]. A server with a policy refuses peers that may not inspect its clients.
pub async fn inspect(
    server: &Server,
    request: ClientStatusRequest,
) -> Result<Vec<ClientConfig>, InspectError> {
    let transport = Transport::new(server.clone(), None, None)?;
    fetch(&transport, request).await.map_err(|error| InspectError::Refused { reason: error.with_cause() })
}

async fn fetch(
    transport: &Transport,
    request: ClientStatusRequest,
) -> Result<Vec<ClientConfig>, TransportError> {
    let client = ClientStatusDiscoveryServiceClient::new(transport.connect().await?);
    let mut client = client.max_decoding_message_size(RESPONSE_LIMIT_BYTES);
    let mut request = tonic::Request::new(tokio_stream::once(request));
    transport.authenticate(&mut request).await?;
    let responses = client.stream_client_status(request).await.map_err(TransportError::Refused)?;
    let (mut responses, mut clients) = (responses.into_inner(), Vec::new());
    while let Some(response) = responses.message().await.map_err(TransportError::Refused)? {
        clients.extend(response.config);
    }
    Ok(clients)
}

/// The server splits what exceeds 4 MiB, except a single resource.
const RESPONSE_LIMIT_BYTES: usize = 64 << 20;
