//! Reads of the cache in the process: of a client, and of the subscriptions of a proxy.

use xds_client::proxy::{Proxy, SubscribeError};
use xds_client::{CachedResource, Parameters, ReadError, ReadGuard, ReadRoute};
use xds_core::TypeUrl;
use xds_core::server::{Serving, TypeConfig};
use xds_server::ServerConfig;

use super::*;

/// Another type, which servers of these tests lack.
#[derive(Clone, PartialEq, Message)]
struct Part {
    #[prost(string, tag = "1")]
    name: String,
}

impl prost::Name for Part {
    const NAME: &'static str = "Part";
    const PACKAGE: &'static str = "acme";
}

fn get<T: xds_client::ResourceType>(
    guard: &ReadGuard<T>,
    name: &str,
) -> Result<Option<CachedResource<T>>, ReadError> {
    match guard.route() {
        ReadRoute::Cache(resources) => resources.get(name),
        ReadRoute::Upstream(status) => Err(ReadError::Unknown { name: name.into(), status }),
    }
}

fn content(guard: &ReadGuard<Thing>, name: &str) -> String {
    match get(guard, name) {
        Ok(found) => found.map_or_else(|| "-".to_owned(), |thing| thing.content.clone()),
        Err(error) => error.to_string(),
    }
}

/// An origin that serves things, and parts like this.
fn origin(serving: Serving) -> Origin {
    let mut config = ServerConfig::default();
    let type_url = TypeUrl::of::<Part>();
    let of_type = TypeConfig { serving, ..TypeConfig::of(type_url.as_str()) };
    config.stream.types.insert(type_url, of_type);
    let mut origin = Origin { cache: Cache::new(), connections: Arc::default(), serving: None, config };
    origin.on();
    origin.put(&[("a", "env=prod", "prod"), ("a", "env!=prod", "other"), ("b", "env=prod", "2")]);
    let mut transaction = Transaction::new();
    let payload = Part { name: "p".into() }.encode_to_vec();
    transaction.put(Resource::new(TypeUrl::of::<Part>(), "p", payload).unwrap());
    origin.cache.commit(transaction).unwrap();
    origin
}

#[tokio::test]
async fn g13_t2_a_client_reads_what_it_watches_with_its_parameters() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let origin = origin(Serving::Served);
        let client = origin.client(protocol).speaks_locators().start().unwrap().with([("env", "prod")]);
        assert_eq!(
            content(&client.read(), "a"),
            "\"a\": UNAVAILABLE: the upstream has sent no response for type.googleapis.com/acme.Thing yet"
        );
        let mut a = client.watch::<Thing>("a").unwrap();
        assert_eq!(changed(&mut a).await, "prod");
        let guard = client.read::<Thing>();
        assert_eq!([content(&guard, "a"), content(&guard, "none")], ["prod", "-"], "{protocol:?}");
        // The watcher and all readers share one message.
        let read = get(&guard, "a").unwrap().unwrap();
        assert!(Arc::ptr_eq(read.value(), a.borrow().unwrap().value()), "{protocol:?}");
        assert!(Arc::ptr_eq(read.value(), get(&client.read::<Thing>(), "a").unwrap().unwrap().value()));
        origin.put(&[("a", "env=prod", "new"), ("a", "env!=prod", "other")]);
        assert_eq!(changed(&mut a).await, "new");
        assert_eq!(content(&guard, "a"), "prod", "a guard stays where it was");
        assert_eq!(content(&client.read(), "a"), "new");
        let raw = client.read_raw(&THING.into());
        let ReadRoute::Cache(resources) = raw.route() else { panic!("it is served") };
        assert_eq!(
            resources.get("a").unwrap().unwrap().0,
            *get(&client.read::<Thing>(), "a").unwrap().unwrap().variant().payload()
        );
    }
}

#[tokio::test]
async fn g4_a_client_reads_the_status_of_a_type_that_its_server_lacks() {
    for serving in [Serving::Refused, Serving::NotServed] {
        let mut origin = origin(serving);
        let client = origin.client(Protocol::Delta).start().unwrap();
        let (mut thing, mut part) = (client.watch::<Thing>("a").unwrap(), client.watch::<Part>("p").unwrap());
        assert_eq!(changed(&mut thing).await, "other");
        let event = tokio::time::timeout(Duration::from_secs(20), part.next()).await.unwrap().unwrap();
        assert!(matches!(event, Event::Absent(_)), "{serving:?}");
        let error = get(&client.read::<Part>(), "p").unwrap_err();
        let code = if serving == Serving::Refused { Code::INVALID_ARGUMENT } else { Code::UNIMPLEMENTED };
        assert!(matches!(&error, ReadError::Unknown { status, .. } if status.code == code), "{error}");
        assert_eq!(content(&client.read(), "a"), "other");
        // An upgrade.
        origin.off().await;
        origin.config = ServerConfig::default();
        origin.on();
        while part.borrow().is_none() {
            part.next().await;
        }
        assert_eq!(get(&client.read::<Part>(), "p").unwrap().unwrap().name, "p", "{serving:?}");
    }
}

/// The payload is not checked on arrival, because nobody declared its type before.
#[tokio::test]
async fn a_payload_that_is_no_message_is_an_error_of_its_resource_alone() {
    let origin = Origin::start();
    let mut transaction = Transaction::new();
    for (name, payload) in [("bad", b"\x0a\x03bad\x12\xff".as_slice()), ("good", b"\x0a\x04good")] {
        transaction.put(Resource::new(THING, name, payload).unwrap());
    }
    origin.cache.commit(transaction).unwrap();
    let client = origin.client(Protocol::Delta).start().unwrap();
    let mut all = client.watch_set_raw(&THING.into(), "*").unwrap();
    while !matches!(all.next().await, Some(SetEvent::Complete)) {}
    let guard = client.read::<Thing>();
    assert!(matches!(get(&guard, "bad"), Err(ReadError::Payload { name, .. }) if name.as_str() == "bad"));
    assert_eq!(get(&guard, "good").unwrap().unwrap().name, "good");
    let ReadRoute::Cache(things) = guard.route() else { panic!("it is served") };
    assert_eq!(things.iter().filter(Result::is_ok).count(), 1);
    assert_eq!(things.iter().filter(Result::is_err).count(), 1);
}

fn proxy(origin: &Origin) -> Proxy {
    Proxy::builder(Bootstrap::to_server("memory:1")).connector(origin.connector()).start().unwrap()
}

async fn soon(ready: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(20), ready).await.expect("in time");
}

#[tokio::test]
async fn a_program_subscribes_to_its_proxy_until_it_drops_the_subscription() {
    let origin = origin(Serving::Served);
    let proxy = proxy(&origin);
    let prod: Parameters = [("env", "prod")].into_iter().collect();
    let things = proxy.subscribe::<Thing>(["a", "none"], prod).unwrap();
    assert!(!things.is_ready());
    assert!(content(&things.read(), "a").contains("UNAVAILABLE"));
    soon(things.ready()).await;
    let guard = things.read();
    assert_eq!([content(&guard, "a"), content(&guard, "none")], ["prod", "-"]);
    assert!(content(&guard, "b").contains("nobody subscribes to it"), "{}", content(&guard, "b"));
    let read = get(&guard, "a").unwrap().unwrap();
    assert!(Arc::ptr_eq(read.value(), get(&things.read(), "a").unwrap().unwrap().value()));
    // The view of the proxy reads it too.
    assert!(matches!(proxy.read::<Thing>().route(), ReadRoute::Cache(_)));
    assert_eq!(proxy.load().downstream, 2);
    // The last proxy is that of the subscription.
    let load = proxy.clone();
    drop(proxy);
    assert_eq!(content(&things.read(), "a"), "prod");
    drop(things);
    while load.load().downstream > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn g4b_a_type_that_ends_the_stream_has_the_status_of_the_server() {
    let origin = origin(Serving::Refused);
    let proxy = proxy(&origin);
    let things = proxy.subscribe::<Thing>(["a"], Parameters::new()).unwrap();
    let parts = proxy.subscribe::<Part>(["p"], Parameters::new()).unwrap();
    soon(things.ready()).await;
    soon(parts.ready()).await;
    assert_eq!(content(&things.read(), "a"), "other");
    let error = get(&parts.read(), "p").unwrap_err();
    assert!(error.to_string().contains("acme.Part is not served here"), "{error}");
    let error = proxy.subscribe::<Part>(["\u{1}"], Parameters::new()).unwrap_err();
    assert!(matches!(&error, SubscribeError::Invalid(_)) && error.to_string().contains("\\u{1}"), "{error}");
}
