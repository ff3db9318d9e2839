//! The admin API over its port, with clients on real streams.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "admin")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use xds::admin::{self, Admin, HostNames};
use xds::{
    Cache, CommitOrigin, Constraints, OnChange, Resource, RolloutPlan, Rollouts, Server, Transaction,
    type_url,
};
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use xds_proto::google::rpc::Status;

const THING: &str = "type.googleapis.com/acme.Thing";
const SOON: Duration = Duration::from_secs(20);

/// A server with its admin port.
struct Served {
    cache: Arc<Cache>,
    uri: String,
    admin: SocketAddr,
}

impl Served {
    async fn start() -> Self {
        Self::start_with(|page| page).await
    }

    async fn start_with(change: impl FnOnce(Admin) -> Admin) -> Self {
        let cache = Cache::new();
        let page = change(Admin::new(&cache));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::new(Arc::clone(&cache));
        let admin_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = admin_listener.local_addr().unwrap();
        tokio::spawn(admin::serve(admin_listener, page.routes(server.clients()), HostNames::default(), None));
        tokio::spawn(server.serve(listener, std::future::pending()));
        Self { cache, uri, admin }
    }

    fn put(&self, of_type: &str, variants: &[(&str, &str)], content: &str) {
        let mut transaction = Transaction::new();
        for (name, when) in variants {
            let resource = Resource::new(of_type, *name, content.to_owned()).unwrap();
            transaction.put(resource.with_constraints(when.parse::<Constraints>().unwrap()));
        }
        self.cache.commit(transaction).unwrap();
    }

    async fn text(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let head = format!("GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.admin);
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.text(path).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    }

    /// Requests the path until the condition holds: what a client sent takes a moment to arrive.
    async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let asked = async {
            loop {
                let answer = self.get(path).await;
                if is_so(&answer) {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(SOON, asked).await.unwrap_or_else(|_| panic!("{path} never becomes what it should"))
    }
}

/// A delta client of one name.
struct Client {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    async fn new(served: &Served, id: &str, name: &str) -> Self {
        let node = Node { id: id.into(), cluster: "web".into(), ..Node::default() };
        Self::with_node(served, node, name).await
    }

    async fn with_node(served: &Served, node: Node, name: &str) -> Self {
        let channel = Channel::from_shared(served.uri.clone()).unwrap().connect().await.unwrap();
        let (requests, receiver) = mpsc::channel(8);
        let request = DeltaDiscoveryRequest {
            node: Some(node),
            type_url: THING.into(),
            resource_names_subscribe: vec![name.into()],
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(request).await.unwrap();
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let responses = client.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
        Self { requests, responses: responses.into_inner() }
    }

    /// Receives the next response and ACKs it, or NACKs it with this message.
    async fn answer(&mut self, error: Option<&str>) {
        let response = timeout(SOON, self.responses.message()).await.unwrap().unwrap().unwrap();
        let error_detail =
            error.map(|message| Status { code: 3, message: message.into(), details: Vec::new() });
        let request = DeltaDiscoveryRequest {
            type_url: THING.into(),
            response_nonce: response.nonce,
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_with_what_they_have_and_what_they_rejected() {
    let served = Served::start().await;
    served.put(THING, &[("a", "true")], "one");
    let mut client = Client::new(&served, "edge/1", "a").await;
    client.answer(None).await;
    let list = served.until("/api/clients", |list| list["rows"][0]["acked"] == 1).await;
    assert_eq!((&list["total"], &list["connected"]), (&json!(1), &json!(1)));
    let path = list["rows"][0]["path"].as_str().unwrap().to_owned();
    assert_eq!(path, "/api/clients/edge%2F1?cluster=web");
    let one = served.get(&path).await;
    let row = &one["resources"]["rows"][0];
    assert_eq!(row["status"], "synced");
    // In delta, by name, the version is the digest.
    let digest = &served.get("/api/resources").await["rows"][0]["digest"];
    assert!(digest.is_string() && row["digest"] == *digest && row["version"] == *digest, "{row}");
    assert_eq!(one["streams"][0]["label"], "ADS delta");

    served.put(THING, &[("a", "true")], "two");
    client.answer(Some("no such <port>")).await;
    let list = served.until("/api/clients?rejecting=true", |list| list["total"] == 1).await;
    assert_eq!(list["rows"][0]["last_nack"]["detail"], "no such <port>");
    let one = served.get(&path).await;
    assert_eq!(one["resources"]["rows"][0]["status"], "rejected");
    let commit =
        served.until("/api/commits/2", |commit| commit["clients"]["rows"][0]["outcome"] == "nacked").await;
    assert_eq!(commit["clients"]["rows"][0]["detail"], "no such <port>");

    served.put(THING, &[("a", "true")], "three");
    client.answer(None).await;
    served.until("/api/clients?rejecting=true", |list| list["total"] == 0).await;
    assert_eq!(served.get("/api/clients?search=EDGE%20web").await["total"], 1);
    assert_eq!(served.get("/api/clients?search=other").await["total"], 0);
    drop(client);
    served.until("/api/clients", |list| list["total"] == 0).await;
    assert!(served.text(&path).await.starts_with("HTTP/1.0 404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_metadata_without_a_parameter_is_listed_with_its_cure() {
    let served = Served::start().await;
    served.put(THING, &[("a", "bucket=0"), ("a", "bucket!=0")], "one");
    let number = |number| prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(number)) };
    let fields = [("bucket".to_owned(), number(0.0)), ("age".to_owned(), number(0.5))].into();
    let node = Node { id: "n".into(), metadata: Some(prost_types::Struct { fields }), ..Node::default() };
    let mut client = Client::with_node(&served, node, "a").await;
    client.answer(None).await;
    let one = served.until("/api/clients/n", |one| one["acked"] == 1).await;
    assert_eq!(
        one["skipped_metadata"],
        json!([
            {
                "parameter": "bucket", "path": "node.metadata.bucket", "found": "the number 0", "is_named": true,
                "cure": "write it as the string \"0\" in the node of the client, or start the server with \
                         --param bucket=node.metadata.bucket",
            },
            {
                "parameter": "age", "path": "node.metadata.age", "found": "the number 0.5", "is_named": false,
                "cure": "write it as a string in the node of the client",
            },
        ])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_a_decision_says_which_variant_why_and_why_not_the_others() {
    let served = Served::start().await;
    served.put(THING, &[("a", "env=prod"), ("a", "env=test"), ("b", "true")], "one");
    let answer = served.get("/api/decide?type=Thing&name=a&parameters=env=prod,zone=b").await;
    assert_eq!(answer["variant"]["when"], "env=prod");
    assert_eq!(answer["tests"], json!([{ "key": "env", "value": "prod", "is_named": true }]));
    assert_eq!(answer["unused"], json!(["zone"]));
    let fails = json!([{ "needs": "env=test", "key": "env", "found": "prod" }]);
    assert_eq!((&answer["others"][0]["fails"], &answer["other_count"]), (&fails, &json!(1)));
    let none = served.get("/api/decide?type=Thing&name=a").await;
    assert_eq!((&none["variant"], &none["other_count"]), (&Value::Null, &json!(2)));

    let one = served.get("/api/resources/Thing/a").await;
    assert_eq!(one["rows"][0]["rows"], json!([{ "env": "prod" }]));
    assert!(!one["gaps"]["gaps"].as_array().unwrap().is_empty());
    let gaps = served.until("/api/gaps", |gaps| gaps["state"] == "done").await;
    assert_eq!((&gaps["total"], &gaps["rows"][0]["name"]), (&json!(1), &json!("a")));
    for (wrong, status, message) in [
        ("/api/decide?name=a", 400, "type is missing"),
        ("/api/decide?type=Thing", 400, "name is missing"),
        ("/api/decide?type=Thing&name=a&parameters=env", 400, "KEY=VALUE"),
        ("/api/decide?type=Nothing&name=a", 404, "Nothing"),
        ("/api/clients?page=x", 400, "page=x"),
        ("/api/clients?rejecting=yes", 400, "expected true or false"),
        ("/api/clients?serach=a", 400, "page, rejecting, search"),
        ("/api/commits/1?outcome=nack", 400, "nacked, pending, gone, acked"),
        ("/api/resources?page=1&name=a", 400, "unknown parameter"),
        ("/api/resources/Thing/c", 404, "there is no Thing"),
        ("/api/nothing", 404, "unknown path"),
        ("/api/clients/a/b", 404, "unknown path"),
    ] {
        let answer = served.text(wrong).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.0 {status}")), "{wrong}: {answer}");
        let error = serde_json::from_str::<Value>(body).unwrap()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(message), "{wrong}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_has_anything_of_a_payload() {
    let served = Served::start().await;
    // Its name, and an extension in place of a certificate.
    served.put(type_url::SECRET, &[("tls", "true")], "\u{a}\u{3}tls\u{12}\u{1b}-----BEGIN PRIVATE KEY-----");
    let client = Client::new(&served, "a", "tls").await;
    let paths = [
        "/",
        "/api/",
        "/api/clients",
        "/api/clients/a",
        "/api/types",
        "/api/resources?type=SDS",
        "/api/resources/SDS/tls",
        "/api/decide?type=SDS&name=tls",
        "/api/gaps",
        "/api/commits",
        "/api/commits/1",
    ];
    served.until("/api/clients", |list| list["total"] == 1).await;
    for path in paths {
        let answer = served.text(path).await;
        assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        assert!(!answer.contains("PRIVATE"), "{path}: {answer}");
    }
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_bounded_however_much_there_is() {
    let served = Served::start().await;
    let names: Vec<_> = (0..2000).map(|number| format!("n-{number:04}")).collect();
    let all: Vec<_> = names.iter().map(|name| (&**name, "true")).collect();
    served.put(THING, &all, "one");
    let list = served.get("/api/resources?search=n-1&page=2").await;
    assert_eq!((&list["total"], &list["pages"]), (&json!(1000), &json!(20)));
    let rows = list["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["name"]), (50, &json!("n-1050")));
    for number in 0..100 {
        served.put(THING, &[("n-0000", "true")], &number.to_string());
    }
    let commits = served.until("/api/commits", |commits| commits["rows"][0]["number"] == 101).await;
    assert_eq!(commits["total"], 50);
    // The variants of one name also come in pages.
    let when: Vec<_> = (0..120).map(|number| format!("k=v{number:03}")).collect();
    let variants: Vec<_> = when.iter().map(|when| ("many", &**when)).collect();
    served.put(THING, &variants, "one");
    let one = served.get("/api/resources/Thing/many?page=3").await;
    assert_eq!((one["rows"].as_array().unwrap().len(), &one["total"]), (20, &json!(120)));
    let answer = served.get("/api/decide?type=Thing&name=many&parameters=k=v001").await;
    assert_eq!((answer["others"].as_array().unwrap().len(), &answer["other_count"]), (50, &json!(119)));
    for path in ["/api/resources", "/api/resources/Thing/many", "/api/commits"] {
        assert!(served.text(path).await.len() < 64 << 10, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g15_whatever_a_client_calls_itself_and_asks_for_answers_stay_small() {
    use prost_types::{Struct, Value as ProtoValue, value::Kind};

    let served = Served::start().await;
    served.put(THING, &[("a", "env=prod"), ("a", "env=test")], "one");
    let huge = "x".repeat(900_000);
    let value = |text: &str| ProtoValue { kind: Some(Kind::StringValue(text.into())) };
    let metadata = Struct {
        fields: [("env".to_owned(), value("prod")), (huge.clone(), value(&huge)), ("z".into(), value(&huge))]
            .into(),
    };
    let node = Node {
        id: huge.clone(),
        cluster: huge.clone(),
        user_agent_name: huge.clone(),
        metadata: Some(metadata),
        ..Node::default()
    };
    let channel = Channel::from_shared(served.uri.clone()).unwrap().connect().await.unwrap();
    let (requests, receiver) = mpsc::channel(8);
    let request = DeltaDiscoveryRequest {
        node: Some(node),
        type_url: THING.into(),
        resource_names_subscribe: vec!["a".into(), huge.clone()],
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(request).await.unwrap();
    let mut grpc = AggregatedDiscoveryServiceClient::new(channel);
    let responses = grpc.delta_aggregated_resources(ReceiverStream::new(receiver)).await.unwrap();
    let mut client = Client { requests, responses: responses.into_inner() };
    client.answer(Some(&huge)).await;
    let list = served.until("/api/clients", |list| list["rows"][0]["nacked"] == 1).await;
    let path = list["rows"][0]["path"].as_str().unwrap().to_owned();
    let one = served.get(&path).await;
    assert_eq!(one["resources"]["total"], 2, "what it has is shown as that of all others");
    for path in
        ["/api/clients", &*path, "/api/commits", "/api/commits/1", &format!("/api/decide?name={huge:.20000}")]
    {
        let len = served.text(path).await.len();
        assert!(len < 64 << 10, "{path:.80}: {len} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_has_what_it_changed_and_where_it_comes_from() {
    let served = Served::start().await;
    served.put(THING, &[("a", "env=prod"), ("b", "true")], "one");
    served.put(THING, &[("a", "env=prod")], "two");
    let of = |name: &str, content: &str| {
        let resource = Resource::new(THING, name, content.to_owned()).unwrap();
        resource.id().clone()
    };
    let mut transaction = Transaction::new();
    transaction.remove(of("b", ""));
    *transaction.origin() = CommitOrigin {
        source: "store".into(),
        author: "alice".into(),
        message: "x".repeat(100_000).into(),
        label: "1a2b3c".into(),
        files: vec!["a.yaml".into()],
        file_count: 7,
        rollout: None,
    };
    served.cache.commit(transaction).unwrap();
    let commits = served.until("/api/commits", |commits| commits["total"] == 3).await;
    let [third, second, first] = ["3", "2", "1"].map(|revision| format!("/api/commits/{revision}"));
    let change = async |path: &str, at: usize| {
        let change = served.get(path).await["changes"]["rows"][at].clone();
        (change["name"].clone(), change["when"].clone(), change["before"].clone(), change["after"].clone())
    };
    let (name, when, before, after) = change(&first, 0).await;
    assert_eq!((name, when, before), (json!("a"), json!("env=prod"), json!(null)));
    assert_eq!(change(&second, 0).await.2, after, "it was added by the first commit");
    assert_ne!(change(&second, 0).await.3, after);
    let (name, _, before, after) = change(&third, 0).await;
    assert_eq!((name, before.is_string(), after), (json!("b"), true, json!(null)));
    let origin = &commits["rows"][0]["origin"];
    let texts = ["source", "author", "label"].map(|key| origin[key].as_str().unwrap());
    assert_eq!(texts, ["store", "alice", "1a2b3c"]);
    assert_eq!((&origin["files"], &origin["file_count"]), (&json!(["a.yaml"]), &json!(7)));
    assert!(origin["message"].as_str().unwrap().len() <= 256);
    assert_eq!(commits["rows"][1]["origin"]["label"], json!(null));
    let many: Vec<_> = (0..120).map(|number| format!("n-{number:03}")).collect();
    served.put(THING, &many.iter().map(|name| (&**name, "true")).collect::<Vec<_>>(), "one");
    served.until("/api/commits", |commits| commits["total"] == 4).await;
    let changes = served.get("/api/commits/4?changes_page=2").await["changes"].clone();
    assert_eq!((&changes["total"], changes["rows"].as_array().unwrap().len()), (&json!(100), 50));
}

/// In delta, an ACK may be about other resources than those that the client rejected.
#[tokio::test(flavor = "multi_thread")]
async fn d8_a_rejection_lasts_until_a_later_response_corrects_it() {
    let served = Served::start().await;
    served.put(THING, &[("a", "env=prod || !env"), ("b", "true")], "one");
    let mut client = Client::new(&served, "edge-1", "*").await;
    client.answer(None).await;
    served.put(THING, &[("a", "env=prod || !env")], "bad");
    client.answer(Some("no port")).await;
    let troubles = served.until("/api/troubles", |troubles| troubles["errors"] == 1).await;
    let trouble = &troubles["rows"][0];
    let what = trouble["what"].as_str().unwrap();
    assert!(what.starts_with("1 client rejects Thing a ["), "{what}");
    assert_eq!((&trouble["kind"], &trouble["detail"]), (&json!("clients_reject"), &json!("no port")));
    let since = trouble["since_ms"].clone();
    // The correction of another resource.
    served.put(THING, &[("b", "true")], "two");
    client.answer(None).await;
    let acked = |list: &Value| list["rows"][0]["acked"] == 2;
    served.until("/api/clients", acked).await;
    assert_eq!(served.get("/api/clients?rejecting=true").await["total"], 1);
    assert_eq!(served.get("/api/troubles").await["rows"][0]["since_ms"], since);
    served.put(THING, &[("a", "env=prod || !env")], "good");
    client.answer(None).await;
    served.until("/api/clients?rejecting=true", |list| list["total"] == 0).await;
    served.until("/api/troubles", |troubles| troubles["total"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_a_commit_and_of_the_same_state_once() {
    let served = Served::start().await;
    let stream = TcpStream::connect(served.admin).await.unwrap();
    let mut lines = BufReader::new(stream);
    lines.write_all(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut next = async || {
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            timeout(SOON, lines.read_line(&mut line)).await.unwrap().unwrap();
        }
        serde_json::from_str::<Value>(&line[6..]).unwrap()
    };
    assert_eq!(next().await["revision"], "0");
    served.put(THING, &[("a", "true")], "one");
    let event = next().await;
    assert_eq!(event["revision"], "1");
    served.put(THING, &[("a", "true")], "two");
    while next().await["revision"] != "2" {}
}

#[tokio::test]
async fn the_rollout_that_runs_has_its_steps_and_what_it_changes() {
    let (source, stable) = (Cache::new(), Cache::new());
    let put = |cache: &Cache, content: &'static str| {
        let mut transaction = Transaction::new();
        transaction.put(Resource::new(THING, "a", content).unwrap());
        cache.commit(transaction).unwrap();
    };
    put(&stable, "one");
    put(&source, "two");
    let plan = RolloutPlan::new(vec!["1 client".parse().unwrap(), "100%".parse().unwrap()], SOON);
    let rollouts = Arc::new(Rollouts::new(source, stable, plan, OnChange::Wait));
    let running = Arc::clone(&rollouts);
    tokio::spawn(async move { running.run().await });
    let served = Served::start_with(|page| page.with_rollouts(rollouts)).await;
    assert_eq!(served.get("/api/").await["has_rollouts"], true);
    let answer = loop {
        let answer = served.get("/api/rollout").await;
        if !answer["running"].is_null() {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(answer["steps"], json!(["1 client", "100%"]));
    let running = &answer["running"];
    assert_eq!(
        (&running["step"], &running["clients"], &running["variants"]),
        (&json!(1), &json!(0), &json!(1))
    );
    assert_eq!(running["first_variants"], json!([{ "type": THING, "name": "a", "when": null }]));
    assert!(Served::start().await.get("/api/rollout").await["error"].is_string());
}
