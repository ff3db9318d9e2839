//! TLS, identities and their access, with real certificates over real sockets.
#![cfg(feature = "tls")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use common::{ask, next, put, put_for};
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};
use tonic::{Code, Status, Streaming};
use xds_core::{Access, Cache, Constraints, NamePatterns, Parameters};
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use xds_proto::envoy::service::status::v3::ClientStatusRequest;
use xds_proto::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use xds_proto::type_url::{CLUSTER, LISTENER, ROUTE_CONFIGURATION};
use xds_server::skim::Client;
use xds_server::{
    Authorizer, Denied, Event, HandshakeFailure, Identity as PeerIdentity, Observer, Peer, Server,
    ServerConfig, Tls, TlsError, TlsFiles,
};

/// A certificate authority.
struct Ca(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Signed {
    certificate: String,
    key: String,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: SanType, days: i64) -> Signed {
        self.sign_for(name, days * DAY)
    }

    /// A certificate that expires after this number of seconds.
    fn sign_for(&self, name: SanType, seconds: i64) -> Signed {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        // A time some days after 1970; it only matters that it has passed.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        let date = |seconds: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds as u64);
        params.not_before = date(now - 10 * DAY);
        params.not_after = date(now + seconds);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    fn client(&self, identity: &str) -> Signed {
        self.sign(SanType::URI(Ia5String::try_from(identity).unwrap()), 1)
    }

    fn server(&self) -> Signed {
        self.sign(SanType::DnsName(Ia5String::try_from("localhost").unwrap()), 1)
    }

    fn pem(&self) -> String {
        self.0.pem()
    }
}

/// The files of a server, in a temporary folder.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xds-server-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    fn write(&self, server: &Signed, clients: &Ca) -> TlsFiles {
        let path = |name: &str| self.folder.join(name);
        fs::write(path("cert"), &server.certificate).unwrap();
        fs::write(path("key"), &server.key).unwrap();
        fs::write(path("ca"), clients.pem()).unwrap();
        TlsFiles { certificate: path("cert"), key: path("key"), client_authorities: Some(path("ca")) }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn serve(cache: &Arc<Cache>, tls: &Arc<Tls>, config: ServerConfig) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(Arc::clone(cache)).with_config(config);
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(server.serve_tls(listener, Arc::clone(tls), std::future::pending()));
    address
}

async fn connect(
    address: SocketAddr,
    ca: &Ca,
    client: Option<&Signed>,
) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca.pem())).domain_name("localhost");
    let tls = match client {
        Some(Signed { certificate, key }) => tls.identity(Identity::from_pem(certificate, key)),
        None => tls,
    };
    let endpoint = Channel::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    endpoint.connect().await
}

async fn sotw(
    channel: Channel,
) -> Result<(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>), Status> {
    let (sender, requests) = mpsc::channel(16);
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let stream = client.stream_aggregated_resources(ReceiverStream::new(requests)).await?;
    Ok((sender, stream.into_inner()))
}

async fn delta(channel: Channel) -> (mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>) {
    let (sender, requests) = mpsc::channel(16);
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let stream = client.delta_aggregated_resources(ReceiverStream::new(requests)).await.unwrap();
    (sender, stream.into_inner())
}

/// Reports failed handshakes.
#[derive(Debug)]
struct Failures(mpsc::UnboundedSender<HandshakeFailure>);

impl Observer for Failures {
    fn on_event(&self, _: &Client, event: Event<'_>) {
        if let Event::HandshakeFailed(failure) = event {
            _ = self.0.send(failure);
        }
    }
}

/// Allows clusters `team-a/*`, with the environment in the identity, until the test changes it.
#[derive(Debug, Default)]
struct ByPath {
    is_revoked: Mutex<bool>,
}

impl ByPath {
    fn revoke(&self) {
        *self.is_revoked.lock().unwrap() = true;
    }
}

impl Authorizer for ByPath {
    fn authorize(&self, peer: &Peer, _: &Client) -> Result<Arc<Access>, Denied> {
        let env = peer.name().strip_prefix("spiffe://example.org/env/");
        let env = env.filter(|_| !*self.is_revoked.lock().unwrap());
        let env = env.ok_or_else(|| Denied(format!("{:?} is not of this fleet", peer.name())))?;
        let access = Access::nothing().with_type(CLUSTER, NamePatterns::from_iter(["team-a/*"]));
        let access = access.with_type(ROUTE_CONFIGURATION, NamePatterns::everything());
        Ok(Arc::new(access.with_parameters(Parameters::from_iter([("env", env)]))))
    }

    fn may_inspect(&self, peer: &Peer) -> bool {
        peer.name() == "spiffe://example.org/ops" && !*self.is_revoked.lock().unwrap()
    }
}

#[tokio::test]
async fn who_shows_no_certificate_or_that_of_another_authority_is_refused_and_so_is_plain_text() {
    let (files, ca, other) = (Files::new("refused"), Ca::new(), Ca::new());
    let tls = Tls::load(files.write(&ca.server(), &ca)).unwrap();
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let (failures, mut failed) = mpsc::unbounded_channel();
    let observer: Option<Arc<dyn Observer>> = Some(Arc::new(Failures(failures)));
    let address = serve(&cache, &tls, ServerConfig { observer, ..ServerConfig::default() });
    let wrong = [
        (None, HandshakeFailure::NoClientCertificate),
        (Some(other.client("spiffe://a/b")), HandshakeFailure::UnknownAuthority),
        (Some(ca.sign(SanType::DnsName("x".try_into().unwrap()), -1)), HandshakeFailure::CertificateExpired),
    ];
    for (client, reason) in &wrong {
        // The client may regard its handshake as complete before it receives the alert of the
        // server.
        if let Ok(channel) = connect(address, &ca, client.as_ref()).await {
            assert!(sotw(channel).await.is_err());
        }
        assert_eq!(failed.recv().await, Some(*reason));
    }
    assert!(
        connect(address, &other, Some(&ca.client("spiffe://a/b"))).await.is_err(),
        "clients check the server"
    );
    assert_eq!(failed.recv().await, Some(HandshakeFailure::RefusedByPeer));
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut answer = Vec::new();
    _ = plain.read_to_end(&mut answer).await;
    assert!(answer.first().is_none_or(|kind| *kind == ALERT), "{answer:?}");
    assert_eq!(failed.recv().await, Some(HandshakeFailure::NotTls));
    drop(TcpStream::connect(address).await.unwrap());
    assert_eq!(failed.recv().await, Some(HandshakeFailure::Closed));
    let (requests, mut responses) =
        sotw(connect(address, &ca, Some(&ca.client("spiffe://a/b"))).await.unwrap()).await.unwrap();
    requests.send(ask("n", CLUSTER, &["a"])).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap().unwrap().resources.len(), 1);
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_with_what_is_wrong_and_the_former_stay() {
    let (files, ca) = (Files::new("files"), Ca::new());
    let paths = files.write(&ca.server(), &ca);
    let tls = Tls::load(paths.clone()).unwrap();
    let expires = tls.expires().duration_since(SystemTime::now()).unwrap().as_secs();
    assert!(expires.abs_diff(DAY.unsigned_abs()) < 60, "{expires}");
    assert!(!tls.reload().unwrap(), "nothing is new");
    let fares = || (tls.reloads().is_current(), tls.reloads().changes(), tls.reloads().refusals());
    assert_eq!(fares(), (true, 1, 0));
    let key = fs::read_to_string(&paths.key).unwrap();
    let secret = key.lines().nth(1).unwrap();
    let told = |tls: &Tls| {
        let error = tls.reload().unwrap_err();
        let text = format!("{error} {error:?} {tls:?}");
        assert!(!text.contains(secret), "keys do not come into logs");
        error
    };
    fs::write(&paths.key, "no key").unwrap();
    assert!(matches!(told(&tls), TlsError::Malformed { expected: "private key", .. }));
    fs::write(&paths.key, ca.server().key).unwrap();
    assert!(matches!(told(&tls), TlsError::Unusable { .. }), "of another certificate");
    let old = ca.sign(SanType::DnsName("localhost".try_into().unwrap()), -1);
    files.write(&old, &ca);
    assert!(matches!(told(&tls), TlsError::Expired { .. }));
    fs::remove_file(&paths.certificate).unwrap();
    assert!(matches!(told(&tls), TlsError::Unreadable { .. }));
    _ = told(&tls);
    assert_eq!(fares(), (false, 1, 4), "what stays wrong is counted once");
    assert_eq!(tls.expires().duration_since(SystemTime::now()).unwrap().as_secs() / 60, expires / 60);
    let address = serve(&Cache::new(), &tls, ServerConfig::default());
    connect(address, &ca, Some(&ca.client("spiffe://a/b"))).await.unwrap();
    files.write(&ca.sign(SanType::DnsName("localhost".try_into().unwrap()), 2), &ca);
    assert!(tls.reload().unwrap());
    assert_eq!(fares(), (true, 2, 4));
    assert!(tls.expires() > SystemTime::now() + Duration::from_secs(expires + 3600));
}

#[tokio::test]
async fn certificates_change_while_a_hundred_streams_live_and_none_of_them_ends() {
    let (files, ca, next_ca) = (Files::new("rotated"), Ca::new(), Ca::new());
    let tls = Tls::load(files.write(&ca.server(), &ca)).unwrap();
    let cache = Cache::new();
    put(&cache, CLUSTER, "a", "1");
    let address = serve(&cache, &tls, ServerConfig::default());
    let client = ca.client("spiffe://a/b");
    let mut streams = Vec::new();
    for _ in 0..100 {
        let (requests, mut responses) =
            sotw(connect(address, &ca, Some(&client)).await.unwrap()).await.unwrap();
        requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
        let nonce = next(&mut responses).await.unwrap().unwrap().nonce;
        let ack =
            DiscoveryRequest { response_nonce: nonce, version_info: "1".into(), ..ask("", CLUSTER, &["a"]) };
        requests.send(ack).await.unwrap();
        streams.push((requests, responses));
    }
    files.write(&next_ca.server(), &next_ca);
    assert!(tls.reload().unwrap());
    put(&cache, CLUSTER, "a", "2");
    for (_, responses) in &mut streams {
        assert_eq!(next(responses).await.unwrap().unwrap().resources.len(), 1, "its stream goes on");
    }
    assert!(connect(address, &ca, Some(&client)).await.is_err(), "new ones see the new certificate");
    let newer = next_ca.client("spiffe://a/b");
    let (requests, mut responses) =
        sotw(connect(address, &next_ca, Some(&newer)).await.unwrap()).await.unwrap();
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    next(&mut responses).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_identity_reads_what_it_may_as_who_it_is_and_nothing_else() {
    let (files, ca) = (Files::new("identity"), Ca::new());
    let tls = Tls::load(files.write(&ca.server(), &ca)).unwrap();
    let cache = Cache::new();
    for name in ["team-a/x", "team-b/x"] {
        put(&cache, CLUSTER, name, "1");
    }
    let whom = |env: &str| format!("env={env}").parse::<Constraints>().unwrap();
    put_for(&cache, ROUTE_CONFIGURATION, "r", "for prod", whom("prod"));
    put_for(&cache, ROUTE_CONFIGURATION, "r", "for test", whom("test"));
    let authorizer = Arc::new(ByPath::default());
    let config = ServerConfig {
        authorizer: Some(Arc::clone(&authorizer) as Arc<_>),
        authorize_every: Duration::from_millis(50),
        ..ServerConfig::default()
    };
    let address = serve(&cache, &tls, config);

    let prod = connect(address, &ca, Some(&ca.client("spiffe://example.org/env/prod"))).await.unwrap();
    let (requests, mut responses) = delta(prod.clone()).await;
    let mut request = DeltaDiscoveryRequest {
        type_url: CLUSTER.into(),
        resource_names_subscribe: vec!["team-a/x".into(), "team-b/x".into()],
        node: Some(common::node("n")),
        ..DeltaDiscoveryRequest::default()
    };
    // The declared node does not count, only the certificate.
    let claimed = prost_types::Value { kind: Some(prost_types::value::Kind::StringValue("test".into())) };
    let metadata = prost_types::Struct { fields: [("env".to_owned(), claimed)].into() };
    request.node.as_mut().unwrap().metadata = Some(metadata);
    requests.send(request.clone()).await.unwrap();
    let response = next(&mut responses).await.unwrap().unwrap();
    assert_eq!(
        response.resources.iter().map(|resource| resource.name.as_str()).collect::<Vec<_>>(),
        ["team-a/x"]
    );
    let errors: Vec<_> = response
        .resource_errors
        .iter()
        .map(|error| {
            let name = error.resource_name.as_ref().unwrap().name.clone();
            (name, error.error_detail.as_ref().unwrap().code)
        })
        .collect();
    assert_eq!(errors, [("team-b/x".to_owned(), Code::PermissionDenied as i32)]);
    request.type_url = ROUTE_CONFIGURATION.into();
    request.resource_names_subscribe = vec!["r".into()];
    requests.send(request).await.unwrap();
    let routes = next(&mut responses).await.unwrap().unwrap();
    let value = &routes.resources[0].resource.as_ref().unwrap().value;
    assert!(String::from_utf8_lossy(value).contains("for prod"), "its certificate says so");

    let mut status = ClientStatusDiscoveryServiceClient::new(prod);
    let inspected = status.fetch_client_status(ClientStatusRequest::default()).await;
    assert_eq!(inspected.unwrap_err().code(), Code::PermissionDenied, "what others have is not for clients");

    let other = connect(address, &ca, Some(&ca.client("spiffe://elsewhere"))).await.unwrap();
    let (denied, mut answers) = sotw(other).await.unwrap();
    denied.send(ask("n", CLUSTER, &["team-a/x"])).await.unwrap();
    let told = next(&mut answers).await.unwrap_err();
    assert_eq!(
        (told.code(), told.message()),
        (Code::PermissionDenied, "\"spiffe://elsewhere\" is not of this fleet")
    );

    authorizer.revoke();
    assert_eq!(next(&mut responses).await.unwrap_err().code(), Code::PermissionDenied, "it is asked again");
}

/// A server that asks its authorizer every 50 ms, its certificate authority, and the authorizer.
struct Guarded {
    _files: Files,
    ca: Ca,
    address: SocketAddr,
}

impl Guarded {
    fn new(name: &str, authorizer: Arc<dyn Authorizer>) -> Self {
        let (files, ca, cache) = (Files::new(name), Ca::new(), Cache::new());
        let tls = Tls::load(files.write(&ca.server(), &ca)).unwrap();
        put(&cache, CLUSTER, "team-a/x", "1");
        let config = ServerConfig {
            authorizer: Some(authorizer),
            authorize_every: Duration::from_millis(50),
            ..ServerConfig::default()
        };
        let address = serve(&cache, &tls, config);
        Self { _files: files, ca, address }
    }

    async fn channel(&self, client: &Signed) -> Channel {
        connect(self.address, &self.ca, Some(client)).await.unwrap()
    }
}

fn without_node() -> DiscoveryRequest {
    DiscoveryRequest { node: None, ..ask("", CLUSTER, &["team-a/x"]) }
}

#[tokio::test]
async fn g6_a_client_that_sends_no_node_is_asked_about_again_like_all_others() {
    let authorizer = Arc::new(ByPath::default());
    let guarded = Guarded::new("nodeless", Arc::clone(&authorizer) as Arc<_>);
    let client = guarded.ca.client("spiffe://example.org/env/prod");
    let (sotw_requests, mut responses) = sotw(guarded.channel(&client).await).await.unwrap();
    sotw_requests.send(without_node()).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap().unwrap().resources.len(), 1);
    let (delta_requests, mut deltas) = delta(guarded.channel(&client).await).await;
    let request = DeltaDiscoveryRequest { type_url: CLUSTER.into(), ..DeltaDiscoveryRequest::default() };
    delta_requests.send(request).await.unwrap();
    assert_eq!(next(&mut deltas).await.unwrap().unwrap().resources.len(), 1);
    authorizer.revoke();
    assert_eq!(next(&mut responses).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(next(&mut deltas).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn g6_an_expired_certificate_ends_the_stream_of_a_client_that_sends_no_node() {
    let guarded = Guarded::new("nodeless-expired", Arc::new(ByPath::default()));
    let identity = Ia5String::try_from("spiffe://example.org/env/prod").unwrap();
    let client = guarded.ca.sign_for(SanType::URI(identity), 3);
    let (requests, mut responses) = sotw(guarded.channel(&client).await).await.unwrap();
    requests.send(without_node()).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap().unwrap().resources.len(), 1);
    assert_eq!(next(&mut responses).await.unwrap_err().code(), Code::Unauthenticated);
}

/// Authorizes by the declared node, as a hook may.
#[derive(Debug)]
struct ByNode;

impl Authorizer for ByNode {
    fn authorize(&self, _: &Peer, client: &Client) -> Result<Arc<Access>, Denied> {
        match client.id.as_str() {
            "stranger" => Err(Denied("no strangers".into())),
            _ => Ok(Arc::new(Access::everything())),
        }
    }
}

#[tokio::test]
async fn g6_a_node_that_comes_late_is_asked_about_when_it_comes() {
    let guarded = Guarded::new("late-node", Arc::new(ByNode));
    let client = guarded.ca.client("spiffe://example.org/env/prod");
    let (requests, mut responses) = sotw(guarded.channel(&client).await).await.unwrap();
    requests.send(without_node()).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap().unwrap().resources.len(), 1);
    requests.send(ask("stranger", LISTENER, &[])).await.unwrap();
    assert_eq!(next(&mut responses).await.unwrap_err().message(), "no strangers");
}

#[tokio::test]
async fn c20_who_may_look_at_others_is_asked_again_with_each_request_of_a_stream() {
    let (files, ca) = (Files::new("inspect"), Ca::new());
    let tls = Tls::load(files.write(&ca.server(), &ca)).unwrap();
    let authorizer = Arc::new(ByPath::default());
    let config =
        ServerConfig { authorizer: Some(Arc::clone(&authorizer) as Arc<_>), ..ServerConfig::default() };
    let address = serve(&Cache::new(), &tls, config);
    let ops = connect(address, &ca, Some(&ca.client("spiffe://example.org/ops"))).await.unwrap();
    let (requests, receiver) = mpsc::channel(1);
    requests.send(ClientStatusRequest::default()).await.unwrap();
    let mut status = ClientStatusDiscoveryServiceClient::new(ops);
    let mut answers = status.stream_client_status(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    assert!(next(&mut answers).await.unwrap().is_some());
    authorizer.revoke();
    requests.send(ClientStatusRequest::default()).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap_err().code(), Code::PermissionDenied);
}

#[test]
fn with_a_certificate_that_has_expired_nobody_looks_at_others() {
    let ops = |expires| {
        let mut peer = Peer::default();
        peer.identity = Some(Arc::new(PeerIdentity::new(vec!["spiffe://example.org/ops".into()], expires)));
        peer
    };
    let config = ServerConfig { authorizer: Some(Arc::new(ByPath::default())), ..ServerConfig::default() };
    let (now, minute) = (SystemTime::now(), Duration::from_secs(60));
    assert!(config.may_inspect(&ops(now + minute)) && !config.may_inspect(&ops(now - minute)));
}

const DAY: i64 = 24 * 3600;
/// The type of a TLS alert record.
const ALERT: u8 = 21;

/// The ClientHello of this library.
async fn client_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("https://{}", listener.local_addr().unwrap());
    let tls = ClientTlsConfig::new()
        .domain_name("localhost")
        .ca_certificate(Certificate::from_pem(Ca::new().pem()));
    let endpoint = Channel::from_shared(uri).unwrap().tls_config(tls).unwrap();
    let connecting = tokio::spawn(async move { endpoint.connect().await.map(drop) });
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut hello = vec![0; 4096];
    let len = connection.read(&mut hello).await.unwrap();
    connecting.abort();
    hello.truncate(len);
    hello
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_do_not_go_on_with_their_handshake_hold_up_nobody() {
    // Each silent peer took one of 256 places for 10 s: with 1,500 of them, a new client waited for
    // 44 s.
    let (cache, ca) = (Cache::new(), Ca::new());
    put(&cache, CLUSTER, "a", "1");
    let files = Files::new("silent");
    let tls = Tls::load(files.write(&ca.server(), &ca)).unwrap();
    let address = serve(&cache, &tls, ServerConfig::default());
    let hello = client_hello().await;
    let mut silent = Vec::new();
    for say in [&hello[..0], &hello[..5], &hello] {
        for _ in 0..150 {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.write_all(say).await.unwrap();
            silent.push(connection);
        }
    }
    let began = std::time::Instant::now();
    let client = ca.client("spiffe://example.org/edge");
    let (requests, mut stream) = sotw(connect(address, &ca, Some(&client)).await.unwrap()).await.unwrap();
    requests.send(ask("", CLUSTER, &["a"])).await.unwrap();
    next(&mut stream).await.unwrap().unwrap();
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}
