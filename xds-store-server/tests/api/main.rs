//! The API of the store over gRPC: each call, each code with its detail, and clients that attack.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use prost::{Message, Name};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::service::{Interceptor, Routes};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use xds_core::Access;
use xds_proto::google::rpc;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::maintenance_client::MaintenanceClient;
use xds_proto::xds::store::v1::store_client::StoreClient;
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::phase::Schemas;
use xds_store::store::{Identity, Store};
use xds_store_server::{
    AccessControl, ApiClient, ApiConfig, Rights, StatusAdditions, StatusSource, StoreApi, StoreAuthorizer,
    StoreConfig, StoreHandle, Tokens,
};

mod across;
mod attacks;
#[path = "../../../tests/binary/link.rs"]
mod link;
mod maintenance;
mod migration;
mod offline;
mod peers;
mod reads;
mod references;
mod resync;
mod rights;
mod watches;
mod wildcards;
mod writes;

/// A server of the API, which ends with the test.
struct Served {
    store: StoreHandle,
    access: Arc<AccessControl>,
    policy: Arc<Policy>,
    address: SocketAddr,
    api: StoreApi,
}

/// Rights by client, which a test may change.
#[derive(Debug, Default)]
struct Policy(Mutex<BTreeMap<String, Arc<Rights>>>);

impl Policy {
    fn set(&self, client: &str, rights: Rights) {
        self.0.lock().unwrap().insert(client.to_owned(), Arc::new(rights));
    }
}

impl StoreAuthorizer for Policy {
    fn rights(&self, client: &ApiClient) -> Arc<Rights> {
        let rights = self.0.lock().unwrap();
        rights.get(&client.identity()).cloned().unwrap_or_else(|| Arc::new(Rights::nothing()))
    }
}

const LOCAL: &str = "the-local-token-of-a-test";
const CI: &str = "the-token-of-ci-jobs";

/// Adds a token to each call.
#[derive(Clone)]
struct Token(Option<MetadataValue<Ascii>>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

type Api = InterceptedService<Channel, Token>;

async fn serve() -> Served {
    serve_with(|_| {}).await
}

async fn serve_with(change: impl FnOnce(&mut ApiConfig)) -> Served {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    serve_store(engine, change).await
}

/// A server of the store in this engine.
async fn serve_store(engine: impl Engine + 'static, change: impl FnOnce(&mut ApiConfig)) -> Served {
    serve_configured(engine, StoreConfig::default(), change).await
}

/// The same, with settings of the store.
async fn serve_configured(
    engine: impl Engine + 'static,
    settings: StoreConfig,
    change: impl FnOnce(&mut ApiConfig),
) -> Served {
    let store = StoreHandle::start(Box::new(engine), settings).unwrap();
    let policy = Arc::new(Policy::default());
    let access = AccessControl::local(LOCAL).with_authorizer(Arc::clone(&policy) as Arc<_>);
    access.set_tokens(Tokens::parse(&format!("ci {CI}\n")).unwrap());
    let access = Arc::new(access);
    let mut config = ApiConfig::default();
    config.authorize_every = Duration::from_millis(10);
    change(&mut config);
    let api = StoreApi::new(store.clone(), Arc::clone(&access), config);
    let routes = Routes::from(api.routes());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpListenerStream::new(listener)));
    Served { store, access, policy, address, api }
}

impl Served {
    async fn channel(&self) -> Channel {
        let channel = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        channel.connect().await.unwrap()
    }

    /// The service Store as this token.
    async fn store_as(&self, token: Option<&str>) -> StoreClient<Api> {
        StoreClient::with_interceptor(self.channel().await, bearer(token))
    }

    async fn store(&self) -> StoreClient<Api> {
        self.store_as(Some(LOCAL)).await
    }

    async fn maintenance_as(&self, token: Option<&str>) -> MaintenanceClient<Api> {
        MaintenanceClient::with_interceptor(self.channel().await, bearer(token))
    }

    async fn commit(&self, changes: Vec<proto::Change>) -> proto::CommitResponse {
        let request = proto::CommitRequest { changes, ..Default::default() };
        self.store().await.commit(request).await.unwrap().into_inner()
    }
}

fn bearer(token: Option<&str>) -> Token {
    Token(token.map(|token| format!("Bearer {token}").parse().unwrap()))
}

fn key(name: &str) -> proto::Key {
    proto::Key { type_url: TYPE.into(), name: name.into(), when: String::new() }
}

fn put(name: &str, payload: &str) -> proto::Change {
    let content = proto::Content { payload: payload.to_owned().into(), ..Default::default() };
    act(name, proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() }))
}

fn delete(name: &str) -> proto::Change {
    act(name, proto::change::Act::Delete(proto::Delete::default()))
}

fn act(name: &str, act: proto::change::Act) -> proto::Change {
    proto::Change { key: Some(key(name)), condition: None, act: Some(act) }
}

fn commit_of(changes: Vec<proto::Change>) -> proto::CommitRequest {
    proto::CommitRequest { changes, ..Default::default() }
}

fn only(names: &[&str]) -> Access {
    Access::nothing().with_every_type(&names.iter().copied().collect())
}

fn get(name: &str) -> proto::GetRequest {
    proto::GetRequest { key: Some(key(name)), ..Default::default() }
}

/// The detail of a status, which has to be of this type.
fn detail<M: Message + Name + Default>(status: &Status) -> M {
    let details = rpc::Status::decode(status.details()).unwrap();
    assert_eq!(Code::from(details.code), status.code());
    assert_eq!(details.message, status.message());
    let [any] = &details.details[..] else { panic!("one detail: {details:?}") };
    assert_eq!(any.type_url, M::type_url());
    M::decode(&*any.value).unwrap()
}

/// The only violation of a refusal with this code.
fn violation(status: &Status, code: Code) -> proto::Violation {
    assert_eq!(status.code(), code, "{status:?}");
    let refusal: proto::Refusal = detail(status);
    let [violation] = &refusal.violations[..] else { panic!("one violation: {refusal:?}") };
    assert!(!violation.message.is_empty());
    violation.clone()
}

fn names(records: &[proto::Record]) -> Vec<&str> {
    records.iter().map(|record| &*record.key.as_ref().unwrap().name).collect()
}

const TYPE: &str = "type.googleapis.com/acme.Thing";
