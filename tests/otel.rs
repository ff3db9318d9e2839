//! `--otlp-endpoint`: a trace collector in this process receives the span of a commit.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::DiscoveryRequest;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;

/// The parts of OTLP that this test reads, with the field numbers of its .proto files.
#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportResponse {}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(fixed64, tag = "7")]
    start_ns: u64,
    #[prost(fixed64, tag = "8")]
    end_ns: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
    #[prost(int64, optional, tag = "3")]
    int: Option<i64>,
}

/// The trace service: forwards the spans that it receives.
#[derive(Debug, Clone)]
struct Collector(mpsc::UnboundedSender<ExportRequest>);

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl UnaryService<ExportRequest> for Collector {
    type Response = ExportResponse;
    type Future = BoxFuture<Response<ExportResponse>, Status>;

    fn call(&mut self, request: Request<ExportRequest>) -> Self::Future {
        _ = self.0.send(request.into_inner());
        Box::pin(async { Ok(Response::new(ExportResponse {})) })
    }
}

impl Service<http::Request<Body>> for Collector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let collector = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<ExportResponse, ExportRequest>::default();
            Ok(Grpc::new(codec).unary(collector, request).await)
        })
    }
}

impl Span {
    fn attribute(&self, key: &str) -> String {
        let value = self.attributes.iter().find(|attribute| attribute.key == key);
        let value = value.and_then(|attribute| attribute.value.clone()).unwrap_or_default();
        value.string.or_else(|| value.int.map(|int| int.to_string())).unwrap_or_default()
    }
}

#[tokio::test]
async fn a_collector_is_sent_a_span_of_each_commit_with_one_until_each_ack() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut exports) = mpsc::unbounded_channel();
    let collector = tonic::transport::Server::builder().add_service(Collector(sender));
    tokio::spawn(collector.serve_with_incoming(TcpIncoming::from(listener)));

    let folder =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("otel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |timeout: &str| {
        let cluster = "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: a\n";
        std::fs::write(folder.join("a.yaml"), format!("{cluster}connect_timeout: {timeout}\n")).unwrap();
    };
    write("1s");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
    command.arg("serve").arg(&folder).args(["--listen", "127.0.0.1:0", "--admin", "none"]);
    command.args(["--otlp-endpoint", &endpoint]).env_remove("RUST_LOG").env_remove("OTEL_SERVICE_NAME");
    let mut child = command.env("OTEL_BSP_SCHEDULE_DELAY", "100").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned)).unwrap();

    let (requests, receiver) = mpsc::channel(4);
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let stream = client.stream_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    let mut stream = stream.into_inner();
    let ask = |nonce: &str| DiscoveryRequest {
        node: Some(Node { id: "n".into(), cluster: "edge".into(), ..Node::default() }),
        type_url: xds::type_url::CLUSTER.into(),
        response_nonce: nonce.into(),
        ..DiscoveryRequest::default()
    };
    requests.send(ask("")).await.unwrap();
    let first = stream.message().await.unwrap().unwrap();
    requests.send(ask(&first.nonce)).await.unwrap();
    write("2s");
    let second = stream.message().await.unwrap().unwrap();
    requests.send(ask(&second.nonce)).await.unwrap();

    let (mut spans, mut resources) = (Vec::new(), Vec::new());
    while !spans.iter().any(|span: &Span| span.name == "commit") {
        let export = tokio::time::timeout(Duration::from_secs(20), exports.recv()).await.unwrap().unwrap();
        for of_resource in export.resource_spans {
            resources.extend(of_resource.resource);
            spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let service = resources[0].attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
    assert_eq!(service.value.as_ref().unwrap().string.as_deref(), Some("xds"));
    let [answer, commit] = spans.as_slice() else { panic!("{spans:#?}") };
    let attributes = ["changed", "types", "concerned", "acked", "undecided"].map(|key| commit.attribute(key));
    assert_eq!(attributes, ["1", "envoy.config.cluster.v3.Cluster", "1", "1", "0"]);
    let attributes = ["type", "node", "cluster", "outcome"].map(|key| answer.attribute(key));
    assert_eq!(attributes, ["envoy.config.cluster.v3.Cluster", "n", "edge", "acked"]);
    assert_eq!((&answer.parent_span_id, &answer.trace_id), (&commit.span_id, &commit.trace_id));
    assert!(answer.start_ns < answer.end_ns && commit.start_ns <= answer.start_ns);
    assert!(answer.end_ns <= commit.end_ns);
}
