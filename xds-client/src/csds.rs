//! CSDS for a client: reports its resources (C19, gRFC A40).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use futures_core::Stream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};
use xds_core::client::{Accepted, Client as Machine, Report, ResourceFailure, ResourceStatus};
use xds_proto::Any;
use xds_proto::envoy::admin::v3::{ClientResourceStatus, UpdateFailureState};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use xds_proto::envoy::service::status::v3::client_status_discovery_service_server::{
    ClientStatusDiscoveryService, ClientStatusDiscoveryServiceServer,
};
use xds_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ClientStatusResponse};

use crate::client::Client;
use crate::hub::Handle;

/// The service `envoy.service.status.v3.ClientStatusDiscoveryService` over one or several clients
/// of a program.
///
/// A response has one entry per live client, with its node as it is sent to servers. The entry has
/// one element per watched resource:
///
/// - The name of a variant is followed by its constraints: `r [env=prod]`. If several locators have
///   the same name, a locator without a resource is followed by its parameters: `r {env="prod"}`.
/// - Content and version are those in use, also beside an error. Rejected content is not included,
///   only its version and the reason.
/// - A resource from the last-known-good file has no time, because an earlier process received it.
///   Until a server confirms it, it is in use although its status is `REQUESTED`.
/// - Content of secrets is never included. All other content is, so serve it only to peers that may
///   see the configuration.
///
/// A request must have no `node_matchers`, because a client knows no other nodes. A response with
/// many resources exceeds the 4 MiB that gRPC clients accept by default;
/// `exclude_resource_contents` omits their content.
///
/// ```no_run
/// # async fn run(client: xds_client::Client) -> Result<(), tonic::Status> {
/// use xds_client::ClientStatus;
///
/// let status = ClientStatus::new();
/// status.add("checkout", &client);
/// // `tonic::transport::Server` and `tonic::service::Routes` take it.
/// let service = status.service();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct ClientStatus {
    clients: Arc<Mutex<Vec<StatusClient>>>,
}

/// One client; it is not kept alive for this service.
#[derive(Debug, Clone)]
struct StatusClient {
    scope: Arc<str>,
    handle: Weak<Handle>,
    node: Arc<Node>,
}

/// Whether a response includes the payloads of the resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payloads {
    Included,
    Excluded,
}

impl ClientStatus {
    /// A service without clients.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a client, for as long as it is used elsewhere. The scope says what the client is for:
    /// gRPC uses its target, or `#server`.
    pub fn add(&self, scope: impl Into<Arc<str>>, client: &Client) {
        let (handle, node) = (Arc::downgrade(client.handle()), Arc::clone(client.shared_node()));
        let mut clients = self.lock();
        clients.retain(|shown| shown.handle.strong_count() > 0);
        clients.push(StatusClient { scope: scope.into(), handle, node });
    }

    /// The gRPC service. All services of one `ClientStatus` report the same clients.
    #[must_use]
    pub fn service(&self) -> ClientStatusDiscoveryServiceServer<Self> {
        ClientStatusDiscoveryServiceServer::new(self.clone())
    }

    fn answer(&self, request: &ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
        if !request.node_matchers.is_empty() {
            return Err(Status::invalid_argument(
                "node_matchers must be empty: a client reports only itself",
            ));
        }
        let payloads =
            if request.exclude_resource_contents { Payloads::Excluded } else { Payloads::Included };
        // Not under the lock: the last reference to a client may be dropped here.
        let clients = self.lock().clone();
        let config = clients.iter().filter_map(|shown| shown.config(payloads)).collect();
        Ok(ClientStatusResponse { config })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StatusClient>> {
        // The list is consistent even after a panic.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl ClientStatusDiscoveryService for ClientStatus {
    type StreamClientStatusStream = BoxStream<ClientStatusResponse>;

    /// P6.1: each request gets one response, as with the other method.
    async fn stream_client_status(
        &self,
        request: Request<Streaming<ClientStatusRequest>>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        let answers = Answers { requests: request.into_inner(), clients: self.clone() };
        Ok(Response::new(Box::pin(answers)))
    }

    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        self.answer(request.get_ref()).map(Response::new)
    }
}

/// Answers requests in order, when there is room for a response.
struct Answers {
    requests: Streaming<ClientStatusRequest>,
    clients: ClientStatus,
}

impl Stream for Answers {
    type Item = Result<ClientStatusResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let request = ready!(Pin::new(&mut self.requests).poll_next(cx));
        Poll::Ready(request.map(|request| self.clients.answer(&request?)))
    }
}

impl StatusClient {
    /// `None` if the client is no longer used.
    fn config(&self, payloads: Payloads) -> Option<ClientConfig> {
        let handle = self.handle.upgrade()?;
        let hub = handle.hub();
        let reports = hub.read(Machine::report)?;
        Some(ClientConfig {
            node: Some((*self.node).clone()),
            generic_xds_configs: entries(&reports, hub.started_at(), payloads),
            client_scope: self.scope.to_string(),
        })
    }
}

/// One element for each variant in use, and for each locator without one.
fn entries(reports: &[Report], started_at: SystemTime, payloads: Payloads) -> Vec<GenericXdsConfig> {
    let of_names =
        reports.chunk_by(|one, other| (&one.type_url, &one.name) == (&other.type_url, &other.name));
    let mut entries = Vec::new();
    for of_name in of_names {
        let is_one_of_many = of_name.iter().any(|report| report.parameters != of_name[0].parameters);
        let from = entries.len();
        for report in of_name {
            let entry = entry(report, is_one_of_many, started_at, payloads);
            // Several locators may get the same variant.
            if !entries[from..].contains(&entry) {
                entries.push(entry);
            }
        }
    }
    entries
}

fn entry(
    report: &Report,
    is_one_of_many: bool,
    started_at: SystemTime,
    payloads: Payloads,
) -> GenericXdsConfig {
    let Report { type_url, name, parameters, status, copy, version, error } = report;
    // Keys and certificates are only for clients that subscribe to them by SDS.
    let is_shown = payloads == Payloads::Included && type_url.as_str() != xds_proto::type_url::SECRET;
    let name = match copy {
        Some(copy) if !copy.constraints().is_unconstrained() => format!("{name} [{}]", copy.constraints()),
        None if is_one_of_many && !parameters.is_empty() => format!("{name} {{{parameters}}}"),
        Some(_) | None => name.to_string(),
    };
    let any = |copy: &Arc<Accepted>| Any { type_url: type_url.to_string(), value: copy.payload().clone() };
    let came = copy.as_ref().filter(|copy| !copy.is_restored);
    GenericXdsConfig {
        type_url: type_url.to_string(),
        name,
        version_info: version.as_deref().unwrap_or_default().to_owned(),
        xds_config: copy.as_ref().filter(|_| is_shown).map(any),
        last_updated: came.map(|copy| (started_at + copy.at).into()),
        client_status: number(*status).into(),
        error_state: error.as_ref().map(|error| error_state(error, started_at)),
        ..GenericXdsConfig::default()
    }
}

fn error_state(error: &ResourceFailure, started_at: SystemTime) -> UpdateFailureState {
    UpdateFailureState {
        details: error.to_string(),
        version_info: error.rejected_version.as_deref().unwrap_or_default().to_owned(),
        last_update_attempt: Some((started_at + error.at).into()),
        ..UpdateFailureState::default()
    }
}

fn number(status: ResourceStatus) -> ClientResourceStatus {
    match status {
        ResourceStatus::Requested => ClientResourceStatus::Requested,
        ResourceStatus::DoesNotExist => ClientResourceStatus::DoesNotExist,
        ResourceStatus::Acked => ClientResourceStatus::Acked,
        ResourceStatus::Nacked => ClientResourceStatus::Nacked,
        ResourceStatus::ReceivedError => ClientResourceStatus::ReceivedError,
        ResourceStatus::Timeout => ClientResourceStatus::Timeout,
    }
}

#[cfg(test)]
mod tests;
