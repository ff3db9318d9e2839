use std::pin::pin;

use axum::http::HeaderMap;
use serde_json::{Value, json};
use xds_core::{Resource, Transaction, VariantId};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT, RESOURCE, ROUTE_CONFIGURATION};
use xds_server::NodeParameters;

use super::*;

/// A payload with its name in field 1.
fn resource(type_url: &str, name: &str, rest: &[u8]) -> Resource {
    let payload = [&[0x0a, u8::try_from(name.len()).unwrap()], name.as_bytes(), rest].concat();
    Resource::new(type_url, name, payload).unwrap()
}

fn put(cache: &Cache, resources: impl IntoIterator<Item = Resource>) {
    let mut transaction = Transaction::new();
    for resource in resources {
        transaction.put(resource);
    }
    cache.commit(transaction).unwrap();
}

fn endpoint(cache: &Arc<Cache>, type_url: &str, config: RestConfig) -> Endpoint {
    let state = RestState {
        cache: Arc::clone(cache),
        descriptors: Arc::new(Descriptors::envoy()),
        config,
        conversions: Arc::new(Semaphore::new(1)),
        last_failure: Mutex::default(),
    };
    Endpoint { state: Arc::new(state), type_url: type_url.into() }
}

/// Answers like the path of a type; an empty body is `null`.
async fn answer(endpoint: &Endpoint, request: Value) -> (u16, HeaderMap, Value) {
    let (state, body) = (State(endpoint.clone()), request.to_string().into());
    let response = poll(state, None, None, HeaderMap::new(), body).await;
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    (parts.status.as_u16(), parts.headers, body)
}

/// The status and the message of an error.
async fn error(cache: &Arc<Cache>, type_url: &str, config: RestConfig, request: Value) -> (u16, String) {
    let (status, _, body) = answer(&endpoint(cache, type_url, config), request).await;
    (status, body["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn t46_s41_a_poll_by_name_gets_the_variant_of_its_node() {
    let cache = Cache::new();
    // The variants have different domains of a virtual host.
    let variant = |when: &str, domain: u8| {
        let host = [0x12, 6, 0x0a, 1, b'h', 0x12, 1, domain];
        resource(ROUTE_CONFIGURATION, "r", &host).with_constraints(when.parse().unwrap())
    };
    put(&cache, [variant("env=prod", b'p'), variant("env=test", b't')]);
    let endpoint = endpoint(&cache, ROUTE_CONFIGURATION, RestConfig::default());
    let mut versions = Vec::new();
    for (env, domain) in [("prod", "p"), ("test", "t")] {
        let node = json!({ "id": "n", "metadata": { "env": env, "pod": "web-1" } });
        let (_, _, body) = answer(&endpoint, json!({ "resource_names": ["r"], "node": node })).await;
        assert_eq!(body["resources"][0]["virtualHosts"][0]["domains"], json!([domain]));
        assert_eq!(body["resources"].as_array().unwrap().len(), 1);
        versions.push(body["versionInfo"].clone());
    }
    assert_ne!(versions[0], versions[1]);
    // T4: no variant matches a client without parameters.
    let (status, _, body) = answer(&endpoint, json!({ "resource_names": ["r"] })).await;
    assert_eq!((status, &body["resources"]), (200, &json!([])));
}

#[tokio::test]
async fn t46_s41_a_function_gives_polls_their_parameters() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "c", &[]).with_constraints("env=prod".parse().unwrap())]);
    let parameters = NodeParameters::by(|node, _| [("env", node.cluster.as_str())].into_iter().collect());
    let server = ServerConfig { parameters, ..ServerConfig::default() };
    let endpoint = endpoint(&cache, CLUSTER, RestConfig { server, ..RestConfig::default() });
    for (cluster, count) in [("prod", 1), ("test", 0)] {
        let (_, _, body) = answer(&endpoint, json!({ "node": { "id": "n", "cluster": cluster } })).await;
        assert_eq!(body["resources"].as_array().unwrap().len(), count, "{cluster}");
    }
}

#[tokio::test]
async fn t27_s41_a_poll_with_locators_gets_wrappers_with_constraints() {
    let cache = Cache::new();
    let prod = resource(CLUSTER, "c", &[]).with_constraints("env=prod".parse().unwrap());
    put(&cache, [prod]);
    let locator = json!({ "name": "c", "dynamicParameters": { "env": "prod" } });
    let request = json!({ "resourceLocators": [locator] });
    let endpoint = endpoint(&cache, CLUSTER, RestConfig::default());
    let (status, _, body) = answer(&endpoint, request.clone()).await;
    assert_eq!(status, 200, "{body}");
    let wrapper = &body["resources"][0];
    assert_eq!(wrapper["@type"], RESOURCE);
    assert_eq!(wrapper["resource"], json!({ "@type": CLUSTER, "name": "c" }));
    let constraints = json!({ "constraint": { "key": "env", "value": "prod" } });
    assert_eq!(wrapper["resourceName"], json!({ "name": "c", "dynamicParameterConstraints": constraints }));

    let mut again = request;
    again["version_info"] = body["versionInfo"].clone();
    assert_eq!(answer(&endpoint, again).await.0, 304);
}

#[tokio::test]
async fn s25_s41_what_was_deleted_is_missing_from_the_next_full_state() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "a", &[]), resource(CLUSTER, "b", &[])]);
    let endpoint = endpoint(&cache, CLUSTER, RestConfig::default());
    let (_, _, first) = answer(&endpoint, json!({})).await;
    for name in ["a", "b"] {
        let mut transaction = Transaction::new();
        transaction.remove(VariantId::unconstrained(CLUSTER, name));
        cache.commit(transaction).unwrap();
    }
    // S27: an empty state is an answer too.
    let (status, _, last) = answer(&endpoint, json!({ "version_info": first["versionInfo"] })).await;
    assert_eq!((status, &last["resources"]), (200, &json!([])));
    assert_eq!(answer(&endpoint, json!({ "version_info": last["versionInfo"] })).await.0, 304);
}

#[tokio::test]
async fn s41_a_nonce_is_neither_given_nor_asked_for() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "a", &[])]);
    let endpoint = endpoint(&cache, CLUSTER, RestConfig::default());
    let request = json!({ "response_nonce": "7", "error_detail": { "code": 13, "message": "bad" } });
    let (status, _, body) = answer(&endpoint, request).await;
    assert_eq!((status, body.get("nonce")), (200, None));
}

#[tokio::test]
async fn s41_a_resource_that_json_cannot_carry_is_named_and_nothing_is_left_out() {
    let cache = Cache::new();
    // The descriptors have no field 1000 of a cluster.
    put(&cache, [resource(CLUSTER, "good", &[]), resource(CLUSTER, "newer", &[0xc2, 0x3e, 1, b'x'])]);
    let names = json!({ "resource_names": ["good", "newer"] });
    for request in [json!({}), names, json!({ "resource_locators": [{ "name": "newer" }] })] {
        let (status, text) = error(&cache, CLUSTER, RestConfig::default(), request).await;
        assert_eq!(status, 500);
        assert!(text.contains("Cluster \"newer\" cannot be sent as JSON"), "{text}");
    }
    let good = endpoint(&cache, CLUSTER, RestConfig::default());
    assert_eq!(answer(&good, json!({ "resource_names": ["good"] })).await.0, 200);

    let opaque = Cache::new();
    let payload = b"whatever".as_slice();
    put(&opaque, [Resource::new("x/acme.Thing", "thing", payload).unwrap()]);
    let (status, text) =
        error(&opaque, "x/acme.Thing", RestConfig::default(), json!({ "resource_names": ["thing"] })).await;
    assert_eq!(status, 500);
    assert!(text.contains("\"thing\" cannot be sent as JSON: no descriptor"), "{text}");
}

#[tokio::test]
async fn g9_s41_more_than_is_allowed_is_413_with_the_limit() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER_LOAD_ASSIGNMENT, "a", &[])]);
    let mut config = RestConfig::default();
    config.server.stream.names_limit = 2;
    config.server.stream.parameters_limit = 1;
    let parameters = json!({ "name": "a", "dynamic_parameters": { "k": "1", "l": "2" } });
    for (request, limit) in [
        (json!({ "resource_names": ["a", "b", "c"] }), "limit of 2"),
        (json!({ "resource_locators": [parameters] }), "limit of 1"),
    ] {
        let (status, text) = error(&cache, CLUSTER_LOAD_ASSIGNMENT, config.clone(), request).await;
        assert_eq!(status, 413);
        assert!(text.contains(limit), "{text}");
    }
    let config = RestConfig { answer_limit_bytes: 100, ..RestConfig::default() };
    put(&cache, (0..9).map(|n| resource(CLUSTER, &format!("c{n}"), &[])));
    let (status, text) = error(&cache, CLUSTER, config, json!({})).await;
    assert_eq!(status, 500);
    assert!(text.contains("limit of 100 bytes"), "{text}");
}

#[tokio::test]
async fn w2_g8_s41_a_name_that_cannot_exist_is_left_out_and_nothing_but_such_is_400() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "a", &[])]);
    let endpoint = endpoint(&cache, CLUSTER, RestConfig::default());
    let (status, _, body) = answer(&endpoint, json!({ "resource_names": ["a", "", "\u{1}"] })).await;
    assert_eq!((status, body["resources"].as_array().unwrap().len()), (200, 1), "{body}");
    for request in [
        // An Envoy would delete its clusters after an answer without clusters.
        json!({ "resource_names": [""] }),
        json!({ "resource_locators": [{}] }),
        json!({ "resource_locators": [{ "name": "a", "dynamic_parameters": { "\u{1}": "" } }] }),
        json!({ "type_url": CLUSTER_LOAD_ASSIGNMENT }),
    ] {
        let (status, text) = error(&cache, CLUSTER, RestConfig::default(), request.clone()).await;
        assert_eq!(status, 400, "{request}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn g13_s41_a_poll_before_the_first_commit_waits_for_it_and_is_told_to_come_back() {
    let cache = Cache::new();
    let endpoint = endpoint(&cache, CLUSTER, RestConfig::default());
    let asked_at = Instant::now();
    let (status, headers, body) = answer(&endpoint, json!({})).await;
    assert_eq!((status, &body["code"]), (503, &json!(14)));
    assert_eq!(headers[header::RETRY_AFTER], "1");
    assert_eq!(asked_at.elapsed().as_millis() / 10, 50);

    let mut poll = pin!(answer(&endpoint, json!({})));
    // Poll the future once, so that the request waits.
    tokio::select! { biased; _ = &mut poll => panic!("nothing is known"), () = std::future::ready(()) => {} }
    // A commit of another type: now it is known that there are no clusters.
    put(&cache, [resource(CLUSTER_LOAD_ASSIGNMENT, "a", &[])]);
    let (status, _, body) = poll.await;
    assert_eq!((status, &body["resources"]), (200, &json!([])));
}

#[tokio::test(start_paused = true)]
async fn s41_a_poll_is_held_until_something_changes_for_it() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "a", &[])]);
    let config = RestConfig { hold: Duration::from_secs(30), ..RestConfig::default() };
    let endpoint = endpoint(&cache, CLUSTER, config);
    // A request with another version is answered at once.
    let asked_at = Instant::now();
    let (_, _, first) = answer(&endpoint, json!({})).await;
    let request = json!({ "version_info": first["versionInfo"] });
    let mut poll = pin!(answer(&endpoint, request.clone()));
    tokio::select! { biased; _ = &mut poll => panic!("nothing changed"), () = std::future::ready(()) => {} }
    put(&cache, [resource(CLUSTER_LOAD_ASSIGNMENT, "a", &[])]);
    tokio::select! { biased; _ = &mut poll => panic!("nothing changed"), () = std::future::ready(()) => {} }
    put(&cache, [resource(CLUSTER, "b", &[])]);
    let (status, _, body) = poll.await;
    assert_eq!((status, body["resources"].as_array().unwrap().len()), (200, 2));
    assert!(asked_at.elapsed() < Duration::from_secs(1));

    let request = json!({ "version_info": body["versionInfo"] });
    assert_eq!(answer(&endpoint, request).await.0, 304);
    assert!(asked_at.elapsed() >= Duration::from_secs(30));
}

/// Allows everything until it is revoked.
#[derive(Debug, Default)]
struct UntilRevoked(std::sync::atomic::AtomicBool);

impl xds_server::Authorizer for UntilRevoked {
    fn authorize(&self, _: &Peer, _: &StreamClient) -> Result<Arc<Access>, xds_server::Denied> {
        match self.0.load(std::sync::atomic::Ordering::Relaxed) {
            false => Ok(Arc::new(Access::everything())),
            true => Err(xds_server::Denied("not any more".into())),
        }
    }
}

#[tokio::test]
async fn a_poll_that_was_held_while_the_policy_changed_is_authorized_again() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "a", &[])]);
    let authorizer = Arc::<UntilRevoked>::default();
    let mut config = RestConfig { hold: Duration::from_secs(30), ..RestConfig::default() };
    config.server.authorizer = Some(Arc::clone(&authorizer) as Arc<_>);
    let endpoint = endpoint(&cache, CLUSTER, config);
    let (_, _, first) = answer(&endpoint, json!({})).await;
    let mut poll = pin!(answer(&endpoint, json!({ "version_info": first["versionInfo"] })));
    tokio::select! { biased; _ = &mut poll => panic!("held"), () = std::future::ready(()) => {} }
    authorizer.0.store(true, std::sync::atomic::Ordering::Relaxed);
    put(&cache, [resource(CLUSTER, "b", &[])]);
    let (status, _, body) = poll.await;
    assert_eq!((status, &body["message"]), (403, &json!("not any more")));
}

#[tokio::test]
async fn a_poll_leaves_the_cache_when_it_is_answered_or_given_up() {
    let cache = Cache::new();
    put(&cache, [resource(CLUSTER, "a", &[])]);
    let references = Arc::strong_count(&cache);
    let config = RestConfig { hold: Duration::from_secs(30), ..RestConfig::default() };
    let endpoint = endpoint(&cache, CLUSTER, config);
    let (_, _, first) = answer(&endpoint, json!({})).await;
    {
        let mut poll = pin!(answer(&endpoint, json!({ "version_info": first["versionInfo"] })));
        tokio::select! { biased; _ = &mut poll => panic!("held"), () = std::future::ready(()) => {} }
        assert_eq!(Arc::strong_count(&cache), references + 2);
    }
    // That of the endpoint is left.
    assert_eq!(Arc::strong_count(&cache), references + 1);
}

#[test]
fn the_paths_are_those_of_the_table() {
    let paths: Vec<_> = SERVICES.iter().filter_map(|row| row.rest).collect();
    assert_eq!(paths.len(), 8);
    assert!(routes(Cache::new(), Arc::new(Descriptors::envoy()), RestConfig::default()).has_routes());
    assert!(paths.iter().all(|path| path.starts_with("/v3/discovery:")));
}
