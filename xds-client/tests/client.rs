//! The client with the server of this project, over connections in memory.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use xds_client::bootstrap::{Bootstrap, Server as ServerAddress};
use xds_client::last_good::Secrets;
use xds_client::{
    Client, ClientBuilder, Code, Connector, Event, Io, Protocol, Recorder, SetEvent, WatchError, Watcher,
};
use xds_core::{Cache, ParameterMapping, Resource, Transaction, VariantId};
use xds_server::{Server, ServerConfig};

#[path = "client/csds.rs"]
mod csds;
#[path = "client/damaged_file.rs"]
mod damaged_file;
#[path = "client/faults.rs"]
mod faults;
#[cfg(feature = "prometheus")]
#[path = "client/prometheus.rs"]
mod prometheus;
#[path = "client/reads.rs"]
mod reads;

/// A message of a type that is not in the known types.
#[derive(Clone, PartialEq, Message)]
struct Thing {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    content: String,
}

impl prost::Name for Thing {
    const NAME: &'static str = "Thing";
    const PACKAGE: &'static str = "acme";
}

const THING: &str = "type.googleapis.com/acme.Thing";

/// A server in memory that can be stopped and started again.
struct Origin {
    cache: Arc<Cache>,
    connections: Arc<Mutex<Option<mpsc::Sender<io::Result<DuplexStream>>>>>,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    config: ServerConfig,
}

impl Origin {
    fn start() -> Self {
        let (cache, connections) = (Cache::new(), Arc::default());
        let mut origin = Self { cache, connections, serving: None, config: ServerConfig::default() };
        origin.on();
        origin
    }

    fn on(&mut self) {
        let (sender, connections) = mpsc::channel(16);
        *self.connections.lock().unwrap() = Some(sender);
        let server = Server::new(Arc::clone(&self.cache)).with_config(self.config.clone());
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let connections = ReceiverStream::new(connections);
            server.serve_with_incoming(connections, async { _ = stopped.await }).await.unwrap();
        });
        self.serving = Some((stop, serving));
    }

    /// Closes all connections and refuses new ones.
    async fn off(&mut self) {
        *self.connections.lock().unwrap() = None;
        let (stop, serving) = self.serving.take().unwrap();
        stop.send(()).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), serving).await;
        ended.expect("the server stops").unwrap();
    }

    fn put(&self, things: &[(&str, &str, &str)]) {
        put(&self.cache, things);
    }

    fn remove(&self, name: &str) {
        let mut transaction = Transaction::new();
        transaction.remove(VariantId::unconstrained(THING, name));
        self.cache.commit(transaction).unwrap();
    }

    fn client(&self, protocol: Protocol) -> ClientBuilder {
        self.client_of(protocol, |_| {})
    }

    fn client_of(&self, protocol: Protocol, change: impl FnOnce(&mut Bootstrap)) -> ClientBuilder {
        let mut bootstrap = Bootstrap::to_server("memory:1");
        change(&mut bootstrap);
        Client::builder(bootstrap).protocol(protocol).connector(self.connector())
    }

    fn connector(&self) -> Connector {
        let connections = Arc::clone(&self.connections);
        Arc::new(move |_: &ServerAddress| {
            let sender = connections.lock().unwrap().clone();
            Box::pin(async move {
                let (ours, theirs) = duplex(1 << 20);
                let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
                sender.ok_or_else(refused)?.send(Ok(theirs)).await.map_err(|_| refused())?;
                Ok(Box::new(ours) as Box<dyn Io>)
            })
        })
    }
}

fn put(cache: &Cache, things: &[(&str, &str, &str)]) {
    let mut transaction = Transaction::new();
    for (name, constraints, content) in things {
        let payload = Thing { name: (*name).to_owned(), content: (*content).to_owned() }.encode_to_vec();
        let resource = Resource::new(THING, *name, payload).unwrap();
        transaction.put(match constraints.is_empty() {
            true => resource,
            false => resource.with_constraints(constraints.parse().unwrap()),
        });
    }
    cache.commit(transaction).unwrap();
}

async fn changed(watcher: &mut Watcher<Thing>) -> String {
    match next(watcher).await {
        Event::Changed(thing) => thing.content.clone(),
        other => panic!("expected a change, got {other:?}"),
    }
}

async fn next(watcher: &mut Watcher<Thing>) -> Event<Thing> {
    let next = tokio::time::timeout(Duration::from_secs(20), watcher.next());
    next.await.expect("in time").expect("the client lives")
}

const BOTH: [Protocol; 2] = [Protocol::Sotw, Protocol::Delta];

#[tokio::test]
async fn a_watcher_gets_its_resource_and_each_change() {
    for protocol in BOTH {
        let origin = Origin::start();
        origin.put(&[("a", "", "1"), ("b", "", "1")]);
        let client = origin.client(protocol).start().unwrap();
        let mut a = client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
        assert_eq!(a.borrow().unwrap().name().as_str(), "a");
        origin.put(&[("a", "", "2")]);
        assert_eq!(changed(&mut a).await, "2");
        // Another watcher of the same resource gets it at once.
        let second = client.watch::<Thing>("a").unwrap();
        assert_eq!(second.borrow().unwrap().content, "2");
        drop((a, second));
        // C13: the subscription ended.
        while origin.cache.subscription_counts().names > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn t3_t31_locators_choose_variants_and_a_switch_is_one_change() {
    for protocol in BOTH {
        let origin = Origin::start();
        origin.put(&[("r", "env=prod", "prod"), ("r", "env!=prod", "other")]);
        let client = origin.client(protocol).speaks_locators().start().unwrap();
        let mut production = client.with([("env", "prod")]).watch::<Thing>("r").unwrap();
        let mut test = client.with([("env", "test")]).watch::<Thing>("r").unwrap();
        assert_eq!(
            (changed(&mut production).await, changed(&mut test).await),
            ("prod".into(), "other".into())
        );
        assert_eq!(production.borrow().unwrap().constraints().to_string(), "env=prod");
        let mut transaction = Transaction::new();
        let id = |constraints: &str| VariantId {
            type_url: THING.into(),
            name: "r".into(),
            constraints: constraints.parse().unwrap(),
        };
        transaction.remove(id("env=prod"));
        transaction.remove(id("env!=prod"));
        let payload = Thing { name: "r".into(), content: "all".into() }.encode_to_vec();
        transaction.put(Resource::new(THING, "r", payload).unwrap());
        origin.cache.commit(transaction).unwrap();
        assert_eq!((changed(&mut production).await, changed(&mut test).await), ("all".into(), "all".into()));
    }
}

#[tokio::test]
async fn a_wildcard_watcher_sees_members_come_and_go() {
    for protocol in BOTH {
        let origin = Origin::start();
        origin.put(&[("a", "", "1"), ("b", "", "1")]);
        let client = origin.client(protocol).start().unwrap();
        let mut all = client.watch_all::<Thing>().unwrap();
        let mut members = Vec::new();
        loop {
            match all.next().await.unwrap() {
                SetEvent::Member(name, Event::Changed(thing)) => {
                    members.push(format!("{name}={}", thing.content));
                }
                SetEvent::Complete => break,
                other => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(members, ["a=1", "b=1"]);
        origin.put(&[("c", "", "1")]);
        assert!(
            matches!(all.next().await.unwrap(), SetEvent::Member(name, Event::Changed(_)) if name.as_str() == "c")
        );
        if protocol == Protocol::Delta {
            origin.remove("a");
            assert!(
                matches!(all.next().await.unwrap(), SetEvent::Member(name, Event::Absent(_)) if name.as_str() == "a")
            );
        }
    }
}

/// Names after the first glob of a list used to stay watched forever.
#[tokio::test]
async fn a_list_with_a_glob_in_it_leaves_nothing_watched() {
    let origin = Origin::start();
    let client = origin.client(Protocol::Delta).start().unwrap();
    let watched = client.watch_many::<Thing>(["a", "*", "b"]);
    assert_eq!(watched.unwrap_err(), WatchError::IsSet { name: "*".to_owned() });
    assert!(client.report().is_empty());
}

/// The stream to the next server was already open for another authority, and nothing woke it to
/// send the new subscription.
#[tokio::test(start_paused = true)]
async fn c15_a_server_that_is_in_use_elsewhere_is_asked_when_another_fails() {
    for protocol in BOTH {
        let origin = Origin::start();
        origin.put(&[("a", "", "1"), ("xdstp://x/acme.Thing/b", "", "1")]);
        let server =
            |uri: &str| format!(r#"{{"server_uri": "{uri}", "channel_creds": [{{"type": "insecure"}}]}}"#);
        let (first, second) = (server("away:1"), server("origin:1"));
        let bootstrap = format!(
            r#"{{"xds_servers": [{first}, {second}], "authorities": {{"x": {{"xds_servers": [{second}]}}}}}}"#
        );
        let bootstrap = Bootstrap::from_json(&bootstrap).unwrap();
        let to_origin = origin.connector();
        let connector: Connector = Arc::new(move |server: &ServerAddress| match server.uri.as_str() {
            "away:1" => Box::pin(async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(io::ErrorKind::ConnectionRefused.into())
            }),
            _ => to_origin(server),
        });
        let client = Client::builder(bootstrap).protocol(protocol).connector(connector).start().unwrap();
        let mut b = client.watch::<Thing>("xdstp://x/acme.Thing/b").unwrap();
        assert_eq!(changed(&mut b).await, "1");
        let mut a = client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
    }
}

#[tokio::test(start_paused = true)]
async fn c7_c10_an_outage_is_told_beside_the_copy_and_ends_with_the_server_back() {
    for protocol in BOTH {
        let mut origin = Origin::start();
        origin.put(&[("a", "", "1")]);
        let client = origin.client(protocol).start().unwrap();
        let mut a = client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
        origin.off().await;
        // C7: the end of a stream after a response is no error; a failure to open it again is one.
        let Event::Ambient(Some(error)) = next(&mut a).await else { panic!("an outage") };
        assert_eq!(error.code, Code::UNAVAILABLE);
        assert_eq!(a.borrow().unwrap().content, "1");
        let mut late = client.watch::<Thing>("b").unwrap();
        assert!(matches!(next(&mut late).await, Event::Absent(error) if error.code == Code::UNAVAILABLE));
        origin.on();
        assert!(matches!(next(&mut a).await, Event::Ambient(None)));
        origin.put(&[("a", "", "2"), ("b", "", "1")]);
        assert_eq!(changed(&mut a).await, "2");
    }
}

/// `Complete` used to be reported at once, during the error.
#[tokio::test(start_paused = true)]
async fn a_set_is_said_to_be_complete_again_when_the_error_of_the_whole_is_over() {
    for protocol in BOTH {
        let mut origin = Origin::start();
        origin.put(&[("a", "", "1")]);
        let client = origin.client(protocol).start().unwrap();
        let mut all = client.watch_all::<Thing>().unwrap();
        while !matches!(all.next().await.unwrap(), SetEvent::Complete) {}
        origin.off().await;
        assert!(matches!(all.next().await.unwrap(), SetEvent::Failed(Some(_))));
        origin.on();
        assert!(matches!(all.next().await.unwrap(), SetEvent::Failed(None)));
        assert!(matches!(all.next().await.unwrap(), SetEvent::Complete));
    }
}

/// A deadline so far away cannot be represented; the addition used to panic.
#[tokio::test]
async fn c5_a_timeout_may_be_as_long_as_can_be_said() {
    let origin = Origin::start();
    origin.put(&[("a", "", "1")]);
    let client = origin.client(Protocol::Sotw).resource_timeout(Duration::MAX).start().unwrap();
    let mut a = client.watch::<Thing>("a").unwrap();
    assert_eq!(changed(&mut a).await, "1");
}

/// The client used to wait for requests of a closed stream, which kept its connection open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_the_connection_ends_with_the_last_watcher() {
    for protocol in BOTH.repeat(50) {
        let origin = Origin::start();
        origin.put(&[("a", "", "1")]);
        let (to_origin, (ended, mut endings)) = (origin.connector(), mpsc::channel(1));
        let connector: Connector = Arc::new(move |server: &ServerAddress| {
            let (connecting, ended) = (to_origin(server), ended.clone());
            Box::pin(async move {
                let mut theirs = connecting.await?;
                let (ours, mut between) = duplex(1 << 20);
                tokio::spawn(async move {
                    _ = tokio::io::copy_bidirectional(&mut between, &mut theirs).await;
                    ended.send(()).await
                });
                Ok(Box::new(ours) as Box<dyn Io>)
            })
        });
        let client = Client::builder(Bootstrap::to_server("memory:1")).protocol(protocol);
        let client = client.connector(connector).start().unwrap();
        let mut a = client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "1");
        drop(a);
        let ending = tokio::time::timeout(Duration::from_secs(5), endings.recv());
        assert!(ending.await.expect("in time").is_some());
    }
}

/// A handshake or hook that never ends used to leave watchers without an event, and the next server
/// unused.
#[tokio::test(start_paused = true)]
async fn c7_a_connection_that_does_not_come_about_is_an_outage() {
    let origin = Origin::start();
    let builder = origin.client(Protocol::Delta);
    let client = builder.call_credentials(Arc::new(|_| Box::pin(std::future::pending()))).start().unwrap();
    let mut a = client.watch::<Thing>("a").unwrap();
    let told = tokio::time::timeout(Duration::from_secs(60), a.next()).await.expect("in time");
    assert!(matches!(told, Some(Event::Absent(error)) if error.code == Code::UNAVAILABLE));
}

#[tokio::test]
async fn d10_in_delta_what_does_not_exist_is_told_at_once() {
    let origin = Origin::start();
    origin.put(&[("a", "", "1")]);
    let client = origin.client(Protocol::Delta).start().unwrap();
    let mut none = client.watch::<Thing>("none").unwrap();
    assert!(matches!(next(&mut none).await, Event::Absent(error) if error.code == Code::NOT_FOUND));
    origin.put(&[("none", "", "1")]);
    assert_eq!(changed(&mut none).await, "1");
}

#[tokio::test]
async fn c2_a_payload_that_is_no_message_is_rejected_by_name() {
    let origin = Origin::start();
    let resource = Resource::new(THING, "a", bytes::Bytes::from_static(b"\x12\xff")).unwrap();
    let mut transaction = Transaction::new();
    transaction.put(resource);
    origin.cache.commit(transaction).unwrap();
    let client = origin.client(Protocol::Delta).start().unwrap();
    let mut a = client.watch::<Thing>("a").unwrap();
    let Event::Absent(error) = next(&mut a).await else { panic!("it cannot be used") };
    assert_eq!(error.code, Code::INVALID_ARGUMENT);
    assert!(error.message.starts_with("\"a\": "), "{error}");
    origin.put(&[("a", "", "1")]);
    assert_eq!(changed(&mut a).await, "1");
}

#[tokio::test(start_paused = true)]
async fn a_client_starts_from_its_file_while_the_server_is_away() {
    let folder = std::env::temp_dir().join(format!("xds-client-last-good-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("known");
    let mut origin = Origin::start();
    origin.put(&[("a", "env=prod", "1")]);
    let start = |origin: &Origin| {
        let builder = origin.client(Protocol::Delta).speaks_locators();
        builder.last_good(&path, Secrets::LeftOut).start().map(|client| client.with([("env", "prod")]))
    };
    let client = start(&origin).unwrap();
    let mut a = client.watch::<Thing>("a").unwrap();
    assert_eq!(changed(&mut a).await, "1");
    drop((a, client));
    origin.off().await;
    // The file is unlocked when the first client has written everything.
    let client = loop {
        match start(&origin) {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let mut a = client.watch::<Thing>("a").unwrap();
    let Event::Changed(thing) = next(&mut a).await else { panic!("it is known") };
    assert!(thing.is_stale() && thing.content == "1");
    assert!(matches!(next(&mut a).await, Event::Ambient(Some(_))));
    origin.on();
    // The server confirmed it, although it did not change.
    let confirmed = loop {
        if let Event::Changed(thing) = next(&mut a).await {
            break thing;
        }
    };
    assert!(!confirmed.is_stale());
    drop((a, client));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The calls of a recorder about connections, as lines.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Recorder for Told {
    fn opened(&self, _: &str) {
        self.0.lock().unwrap().push("opened".to_owned());
    }

    fn failed(&self, _: &str, code: Option<Code>, reason: &str) {
        let code = code.map_or_else(|| "no stream".to_owned(), |code| code.to_string());
        self.0.lock().unwrap().push(format!("{code}: {reason}"));
    }
}

#[tokio::test]
async fn a_recorder_is_told_why_a_server_cannot_be_reached_and_when_it_is_asked() {
    let mut origin = Origin::start();
    origin.put(&[("a", "", "1")]);
    origin.off().await;
    let told = Arc::new(Told::default());
    let recorder = Arc::clone(&told);
    let client = origin.client(Protocol::Delta).recorder(recorder).start().unwrap();
    let mut watcher = client.watch::<Thing>("a").unwrap();
    assert!(matches!(next(&mut watcher).await, Event::Absent(_)));
    origin.on();
    assert_eq!(changed(&mut watcher).await, "1");
    let told = told.0.lock().unwrap();
    assert!(
        told[0].starts_with("no stream: cannot connect: ") && told.last().unwrap() == "opened",
        "{told:?}"
    );
}

#[tokio::test]
async fn t46_t40_by_choice_parameters_come_from_the_node_and_go_out_in_locators() {
    let origin = Origin::start();
    origin.put(&[("r", "env=prod", "prod"), ("r", "env!=prod", "other")]);
    let builder = origin.client_of(Protocol::Delta, |bootstrap| {
        let fields = [("env".to_owned(), prost_types::Value::from("prod"))].into();
        bootstrap.node.metadata = Some(prost_types::Struct { fields });
    });
    let client = builder.parameters_from_metadata(ParameterMapping::default()).start().unwrap();
    let mut r = client.watch::<Thing>("r").unwrap();
    assert_eq!(changed(&mut r).await, "prod");
    // T24: clients that send locators get constraints.
    assert_eq!(r.borrow().unwrap().constraints().to_string(), "env=prod");
    let mut other = client.with([("env", "test")]).watch::<Thing>("r").unwrap();
    assert_eq!(changed(&mut other).await, "other");
}
