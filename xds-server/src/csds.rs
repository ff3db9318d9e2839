//! CSDS of the server (C20): reports the resources of each client, and whether it ACKed them.

use std::sync::Arc;

use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Extensions, Request, Response, Status, Streaming};
use xds_core::server::{ReportStatus, ResourceReport, TypeReport};
use xds_core::{TypeUrl, shortened};
use xds_proto::Any;
use xds_proto::envoy::admin::v3::UpdateFailureState;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use xds_proto::envoy::service::status::v3::client_status_discovery_service_server::ClientStatusDiscoveryService;
use xds_proto::envoy::service::status::v3::{
    ClientConfig, ClientStatusRequest, ClientStatusResponse, ConfigStatus,
};
use xds_proto::envoy::r#type::matcher::v3::NodeMatcher;
use xds_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;

use crate::config::ServerConfig;
use crate::peer::Peer;
use crate::stream_registry::{ClientDetails, OpenStream, StreamRegistry};

pub(crate) use calls::LimitedCalls;

mod calls;

/// The CSDS service for all streams of a server.
#[derive(Debug)]
pub(crate) struct StatusService {
    registry: Arc<StreamRegistry>,
    config: Arc<ServerConfig>,
    stopping: watch::Receiver<bool>,
}

/// The selection in a request: clients, and whether to include payloads.
#[derive(Debug)]
struct Query {
    /// A client matches if one of these patterns matches; without patterns, all clients match.
    ids: Vec<IdPattern>,
    payloads: Payloads,
}

#[derive(Debug)]
enum IdPattern {
    Exact(String),
    Prefix(String),
}

/// Whether the response includes the payloads of the resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payloads {
    Included,
    Excluded,
}

impl StatusService {
    pub(crate) fn new(
        registry: Arc<StreamRegistry>,
        config: Arc<ServerConfig>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self { registry, config, stopping }
    }
}

/// The peer that sent a request.
#[derive(Debug)]
struct Requester {
    peer: Peer,
    config: Arc<ServerConfig>,
}

impl Requester {
    fn of(extensions: &Extensions, config: &Arc<ServerConfig>) -> Self {
        let peer = extensions.get::<Peer>().cloned().unwrap_or_default();
        Self { peer, config: Arc::clone(config) }
    }

    /// Not every client may see the resources of all clients. The permission may change while a
    /// stream is open.
    fn check(&self) -> Result<(), Status> {
        if self.config.may_inspect(&self.peer) {
            return Ok(());
        }
        Err(Status::permission_denied("this client may not inspect the state of all clients"))
    }
}

#[tonic::async_trait]
impl ClientStatusDiscoveryService for StatusService {
    type StreamClientStatusStream = ReceiverStream<Result<ClientStatusResponse, Status>>;

    /// Each request gets one response, or several if one would exceed the default message limit of
    /// gRPC clients. A client that does not fit into one response is split into several entries
    /// with the same node.
    async fn stream_client_status(
        &self,
        request: Request<Streaming<ClientStatusRequest>>,
    ) -> Result<Response<Self::StreamClientStatusStream>, Status> {
        let requester = Requester::of(request.extensions(), &self.config);
        requester.check()?;
        let (answers, responses) = mpsc::channel(1);
        let (registry, mut stopping) = (Arc::clone(&self.registry), self.stopping.clone());
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let status = tokio::select! {
                result = answer_all(&requester, &registry, &mut requests, &answers) => result.err(),
                _ = stopping.wait_for(|stopping| *stopping) => {
                    Some(Status::unavailable("the server is shutting down"))
                }
                () = answers.closed() => None,
            };
            if let Some(status) = status {
                // Fails if the client has disconnected, and then the status is not needed.
                _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn fetch_client_status(
        &self,
        request: Request<ClientStatusRequest>,
    ) -> Result<Response<ClientStatusResponse>, Status> {
        Requester::of(request.extensions(), &self.config).check()?;
        let query = Query::of(&request.into_inner())?;
        let mut batch = Batch::default();
        for streams in self.registry.clients(|id| query.matches(id)) {
            let Some(config) = query.ask(&streams).await else { continue };
            if !batch.add(config) {
                let limit = MESSAGE_LIMIT_BYTES;
                return Err(Status::resource_exhausted(format!(
                    "the response exceeds {limit} bytes: select fewer clients with node_matchers, omit the payloads \
                     with exclude_resource_contents, or use StreamClientStatus"
                )));
            }
        }
        Ok(Response::new(batch.response))
    }
}

/// Answers requests in order. For a client that reads slowly, the server makes one response at a
/// time.
async fn answer_all(
    requester: &Requester,
    registry: &StreamRegistry,
    requests: &mut Streaming<ClientStatusRequest>,
    answers: &mpsc::Sender<Result<ClientStatusResponse, Status>>,
) -> Result<(), Status> {
    let disconnected = |_| Status::cancelled("the client went away");
    while let Some(request) = requests.message().await? {
        requester.check()?;
        let query = Query::of(&request)?;
        let (mut batch, mut is_answered) = (Batch::default(), false);
        for streams in registry.clients(|id| query.matches(id)) {
            let Some(config) = query.ask(&streams).await else { continue };
            for part in split(config, MESSAGE_LIMIT_BYTES) {
                if !batch.has_room(&part) {
                    answers.send(Ok(std::mem::take(&mut batch).response)).await.map_err(disconnected)?;
                    is_answered = true;
                }
                batch.add(part);
            }
        }
        if !is_answered || batch.len > 0 {
            answers.send(Ok(batch.response)).await.map_err(disconnected)?;
        }
    }
    Ok(())
}

/// A response and its size in bytes.
#[derive(Debug, Default)]
struct Batch {
    response: ClientStatusResponse,
    len: usize,
}

impl Batch {
    fn has_room(&self, config: &ClientConfig) -> bool {
        self.len == 0 || self.len + entry_len(config.encoded_len()) <= MESSAGE_LIMIT_BYTES
    }

    /// Adds an entry. Returns whether the response is still within the limit.
    fn add(&mut self, config: ClientConfig) -> bool {
        self.len += entry_len(config.encoded_len());
        self.response.config.push(config);
        self.len <= MESSAGE_LIMIT_BYTES
    }
}

impl Query {
    /// Reads the selection in a request.
    fn of(request: &ClientStatusRequest) -> Result<Self, Status> {
        let ids = request.node_matchers.iter().map(IdPattern::of).collect::<Result<_, _>>()?;
        let payloads =
            if request.exclude_resource_contents { Payloads::Excluded } else { Payloads::Included };
        Ok(Self { ids, payloads })
    }

    fn matches(&self, id: &str) -> bool {
        self.ids.is_empty() || self.ids.iter().any(|pattern| pattern.matches(id))
    }

    /// Asks the streams of one client for reports; `None` if all have ended.
    async fn ask(&self, streams: &[Arc<OpenStream>]) -> Option<ClientConfig> {
        let ClientDetails { client, user_agent, .. } = streams.first()?.details()?;
        let mut config = ClientConfig {
            node: Some(Node {
                id: client.id.to_string(),
                cluster: client.cluster.to_string(),
                user_agent_name: user_agent.clone(),
                ..Node::default()
            }),
            ..ClientConfig::default()
        };
        let mut labels = Vec::new();
        for stream in streams {
            let Some(report) = stream.report().await else { continue };
            labels.push(stream.label.as_str());
            config.generic_xds_configs.extend(report.iter().flat_map(|of| self.entries(of)));
        }
        config.client_scope = labels.join(", ");
        (!labels.is_empty()).then_some(config)
    }

    fn entries<'a>(&'a self, report: &'a TypeReport) -> impl Iterator<Item = GenericXdsConfig> {
        report.resources.iter().map(|resource| self.entry(&report.type_url, resource))
    }

    fn entry(&self, type_url: &TypeUrl, resource: &ResourceReport) -> GenericXdsConfig {
        let ResourceReport { name, constraints, content, status, .. } = resource;
        // Keys and certificates are only for clients that subscribe to them by SDS.
        let is_shown =
            self.payloads == Payloads::Included && type_url.as_str() != xds_proto::type_url::SECRET;
        let payload = content.as_ref().filter(|_| is_shown).map(|(variant, _)| variant.payload().clone());
        let version = content.as_ref().map(|(_, version)| version.to_string()).unwrap_or_default();
        let (status, error_state) = match status {
            ReportStatus::NotSent => (ConfigStatus::NotSent, None),
            ReportStatus::Stale => (ConfigStatus::Stale, None),
            ReportStatus::Synced => (ConfigStatus::Synced, None),
            ReportStatus::Rejected { .. } => {
                let details = status.rejection().unwrap_or_default().into_owned();
                let version_info = version.clone();
                let failure = UpdateFailureState { details, version_info, ..UpdateFailureState::default() };
                (ConfigStatus::Error, Some(failure))
            }
        };
        // C19: one entry per variant; the constraints are part of the name.
        let name = match constraints.is_unconstrained() {
            true => name.to_string(),
            false => format!("{name} [{constraints}]"),
        };
        // A client may subscribe to an absent resource with a name or parameters of megabytes.
        let name = shortened(&name, NAME_LIMIT_BYTES).into_owned();
        GenericXdsConfig {
            type_url: type_url.to_string(),
            name,
            version_info: version,
            xds_config: payload.map(|value| Any { type_url: type_url.to_string(), value }),
            config_status: status.into(),
            error_state,
            ..GenericXdsConfig::default()
        }
    }
}

impl IdPattern {
    fn of(matcher: &NodeMatcher) -> Result<Self, Status> {
        let pattern =
            matcher.node_id.as_ref().filter(|id| !id.ignore_case && matcher.node_metadatas.is_empty());
        match pattern.and_then(|id| id.match_pattern.as_ref()) {
            Some(MatchPattern::Exact(id)) => Ok(Self::Exact(id.clone())),
            Some(MatchPattern::Prefix(id)) => Ok(Self::Prefix(id.clone())),
            _ => Err(Status::invalid_argument(
                "each of node_matchers must be `exact` or `prefix` of node_id, without ignore_case; nothing else is \
                 supported",
            )),
        }
    }

    fn matches(&self, id: &str) -> bool {
        match self {
            Self::Exact(expected) => id == expected,
            Self::Prefix(prefix) => id.starts_with(prefix),
        }
    }
}

/// Splits a client into entries that are each below the limit, as far as the sizes of single
/// resources allow.
fn split(config: ClientConfig, limit: usize) -> Vec<ClientConfig> {
    let ClientConfig { node, generic_xds_configs, client_scope } = config;
    let head = ClientConfig { node, client_scope, ..ClientConfig::default() };
    let head_len = head.encoded_len();
    let (mut parts, mut len) = (vec![head.clone()], head_len);
    for resource in generic_xds_configs {
        let added = entry_len(resource.encoded_len());
        if len + added > limit && len > head_len {
            parts.push(head.clone());
            len = head_len;
        }
        len += added;
        parts.last_mut().expect("there is a first part").generic_xds_configs.push(resource);
    }
    parts
}

/// The size of an entry of a repeated message, with its tag and length.
fn entry_len(len: usize) -> usize {
    1 + prost::length_delimiter_len(len) + len
}

/// The limit for a name with its constraints.
const NAME_LIMIT_BYTES: usize = 4096;

/// gRPC clients accept messages of 4 MiB by default. The difference is for the tags and lengths
/// around entries.
const MESSAGE_LIMIT_BYTES: usize = (4 << 20) - 1024;

#[cfg(test)]
mod tests {
    use xds_proto::envoy::r#type::matcher::v3::{StringMatcher, StructMatcher};

    use super::*;

    fn matcher(pattern: Option<MatchPattern>) -> NodeMatcher {
        NodeMatcher {
            node_id: pattern.map(|of| StringMatcher { match_pattern: Some(of), ignore_case: false }),
            ..NodeMatcher::default()
        }
    }

    fn query(node_matchers: Vec<NodeMatcher>) -> Result<Query, Status> {
        Query::of(&ClientStatusRequest { node_matchers, ..ClientStatusRequest::default() })
    }

    #[test]
    fn c20_clients_are_chosen_by_their_id() {
        let exact = || matcher(Some(MatchPattern::Exact("a-1".into())));
        let prefix = || matcher(Some(MatchPattern::Prefix("b-".into())));
        let matching = |matchers| {
            let query = query(matchers).unwrap();
            ["a-1", "a-10", "b-2", ""].into_iter().filter(|id| query.matches(id)).collect::<Vec<_>>()
        };
        assert_eq!(matching(vec![]), ["a-1", "a-10", "b-2", ""]);
        assert_eq!(matching(vec![exact()]), ["a-1"]);
        assert_eq!(matching(vec![exact(), prefix()]), ["a-1", "b-2"]);
    }

    #[test]
    fn c20_other_matchers_are_refused_and_told_what_there_is() {
        let metadata = NodeMatcher {
            node_metadatas: vec![StructMatcher {}],
            ..matcher(Some(MatchPattern::Exact("a".into())))
        };
        let suffix = matcher(Some(MatchPattern::Suffix("a".into())));
        for refused in [metadata, suffix, matcher(None)] {
            let status = query(vec![refused]).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            assert!(status.message().contains("`exact` or `prefix` of node_id"));
        }
    }

    #[test]
    fn c20_a_client_with_much_is_told_in_several_entries() {
        let resource =
            |size: usize| GenericXdsConfig { name: "x".repeat(size), ..GenericXdsConfig::default() };
        let config = ClientConfig {
            client_scope: "scope".into(),
            generic_xds_configs: [400, 400, 2000, 10].map(resource).into(),
            ..ClientConfig::default()
        };
        let parts = split(config, 1000);
        let counts: Vec<_> = parts.iter().map(|part| part.generic_xds_configs.len()).collect();
        assert_eq!(counts, [2, 1, 1]);
        assert!(parts.iter().all(|part| part.client_scope == "scope"));
    }
}
