//! What a client has, told to whoever asks: CSDS (C19, gRFC A40).

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
/// An answer has one entry per client that lives, with its node as servers are told it, and therein
/// one entry per resource that is watched:
///
/// - The name of a variant is followed by its constraints: `r [env=prod]`. Where several locators
///   have one name, one without a resource is followed by its parameters: `r {env="prod"}`.
/// - Content and version are those in use, also beside an error; what was rejected is not shown,
///   only its version and why.
/// - There is no time for content from the last-known-good file: it came in an earlier life. No
///   server confirmed it yet, so it is in use though its status is `REQUESTED`.
/// - Content of secrets is never shown. The rest is: it is for those who may see the configuration,
///   so serve it to them only.
///
/// Whoever asks must send no `node_matchers`: a client knows of no other nodes. The dump of many
/// resources exceeds the 4 MiB that gRPC clients take by default; `exclude_resource_contents`
/// leaves the content out.
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

/// One client, which is not kept alive for being shown.
#[derive(Debug, Clone)]
struct StatusClient {
    scope: Arc<str>,
    handle: Weak<Handle>,
    node: Arc<Node>,
}

/// Whether the resources themselves are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payloads {
    Included,
    Excluded,
}

impl ClientStatus {
    /// The state of no client yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows a client too, as long as anybody else uses it. The scope tells what it is for: gRPC
    /// says its target, or `#server`.
    pub fn add(&self, scope: impl Into<Arc<str>>, client: &Client) {
        let (handle, node) = (Arc::downgrade(client.handle()), Arc::clone(client.shared_node()));
        let mut clients = self.lock();
        clients.retain(|shown| shown.handle.strong_count() > 0);
        clients.push(StatusClient { scope: scope.into(), handle, node });
    }

    /// The service; all of them show the same clients.
    #[must_use]
    pub fn service(&self) -> ClientStatusDiscoveryServiceServer<Self> {
        ClientStatusDiscoveryServiceServer::new(self.clone())
    }

    fn answer(&self, request: &ClientStatusRequest) -> Result<ClientStatusResponse, Status> {
        if !request.node_matchers.is_empty() {
            return Err(Status::invalid_argument(
                "node_matchers must be empty: a client tells of itself only",
            ));
        }
        let payloads =
            if request.exclude_resource_contents { Payloads::Excluded } else { Payloads::Included };
        // Not under the lock: a client may end with what is held here.
        let clients = self.lock().clone();
        let config = clients.iter().filter_map(|shown| shown.config(payloads)).collect();
        Ok(ClientStatusResponse { config })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StatusClient>> {
        // A list is whole whoever panicked.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl ClientStatusDiscoveryService for ClientStatus {
    type StreamClientStatusStream = BoxStream<ClientStatusResponse>;

    /// P6.1: each request is answered once, as by the other method.
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

/// Answers requests in turn, when there is room for an answer.
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
    /// `None` when nobody uses the client any more.
    fn config(&self, payloads: Payloads) -> Option<ClientConfig> {
        let handle = self.handle.upgrade()?;
        let hub = handle.hub();
        let reports = hub.read(Machine::report);
        Some(ClientConfig {
            node: Some((*self.node).clone()),
            generic_xds_configs: entries(&reports, hub.started_at(), payloads),
            client_scope: self.scope.to_string(),
        })
    }
}

/// One entry for each variant in use, and for each locator that has none.
fn entries(reports: &[Report], started_at: SystemTime, payloads: Payloads) -> Vec<GenericXdsConfig> {
    let of_names =
        reports.chunk_by(|one, other| (&one.type_url, &one.name) == (&other.type_url, &other.name));
    let mut entries = Vec::new();
    for of_name in of_names {
        let is_one_of_many = of_name.iter().any(|report| report.parameters != of_name[0].parameters);
        let from = entries.len();
        for report in of_name {
            let entry = entry(report, is_one_of_many, started_at, payloads);
            // Locators that get the same variant.
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
    // Keys and certificates are for those who ask for them by SDS.
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
