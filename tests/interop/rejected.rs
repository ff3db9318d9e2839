//! Changes of which Envoy could reject a part for ever: new resources that take the place of removed
//! ones (S33, S6e), and one bad resource beside good ones (S6c). Each case is served directly and
//! through a proxy.

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::http;
use crate::mode::{Mode, Protocol};
use crate::on_demand;
use crate::peers;
use crate::port::free_port;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::one_turn;

/// A sequence of commits, and what Envoy does after each.
struct Case {
    name: &'static str,
    /// There is no SotW for virtual hosts.
    is_delta_only: bool,
    /// Of the server and the proxy.
    options: &'static [&'static str],
    steps: Vec<Step>,
    /// Whether Envoy may reject anything.
    rejects: bool,
}

/// A commit of these resources, which replace all before.
struct Step {
    resources: Vec<Value>,
    expected: Vec<(Probe, &'static str)>,
}

/// A question to Envoy, whose answer is a text.
#[derive(Debug, Clone, Copy)]
enum Probe {
    /// The body of the answer to a request.
    Request { listener: &'static str, host: &'static str, path: &'static str },
    /// The generation of the certificate of this name.
    Certificate(&'static str),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s33_a_new_resource_takes_the_place_of_a_removed_one() {
    for make in [scopes as fn(Mode) -> Case, all_hosts, hosts_on_demand, listeners] {
        run(|mode, _| make(mode)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_good_assignments_work_beside_a_bad_one() {
    run(assignments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_good_routes_work_beside_bad_ones() {
    run(|mode, _| route_configurations(mode)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_good_secrets_work_beside_a_bad_one() {
    run(|mode, _| secrets(mode)).await;
}

/// Runs a case, which is made with the ports of two upstreams: one that answers `old`, and one that
/// answers `new`.
async fn run(make: impl Fn(Mode, [u16; 2]) -> Case) {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turn = one_turn().await;
    let (old, new) = (Upstream::start("old").await, Upstream::start("new").await);
    for mode in Mode::ADS {
        for is_proxied in [false, true] {
            let case = make(mode, [old.port, new.port]);
            if !case.is_delta_only || mode.protocol == Protocol::Delta {
                run_one(&case, mode, is_proxied).await;
            }
        }
    }
}

async fn run_one(case: &Case, mode: Mode, is_proxied: bool) {
    let what = format!("{}, {mode}{}", case.name, if is_proxied { ", through a proxy" } else { "" });
    eprintln!("--- {what}");
    let (mut folder, scratch) = (Folder::new(), Folder::new());
    let [first, later @ ..] = &case.steps[..] else { panic!("a case has steps") };
    folder.swap(&[("all.json", first.resources.clone())]);
    let mut server = Server::start_with(folder.path(), case.options).await;
    let proxy = if is_proxied { Some(Server::proxy(server.port, case.options).await) } else { None };
    let port = proxy.as_ref().map_or(server.port, |proxy| proxy.port);
    let envoy = Envoy::start(scratch.path(), mode, port).await.expect("it was found before");
    first.check(&envoy, &format!("{what}, at first")).await;
    for (number, step) in later.iter().enumerate() {
        folder.swap(&[("all.json", step.resources.clone())]);
        step.check(&envoy, &format!("{what}, change {}", number + 1)).await;
    }
    // A change while the server is away.
    let step = &case.steps[1];
    server.kill().await;
    folder.swap(&[("all.json", step.resources.clone())]);
    server.restart().await;
    step.check(&envoy, &format!("{what}, after a restart")).await;
    let rejected = envoy.stats().await.ending(&[".update_rejected"]);
    assert!(case.rejects || rejected.values().all(|count| *count == 0), "{what}: {rejected:?}");
}

impl Step {
    async fn check(&self, envoy: &Envoy, what: &str) {
        for (probe, expected) in &self.expected {
            let what = format!("{what}: {probe:?} has the answer {expected:?}");
            let is_it = async || (probe.ask(envoy).await == *expected).then_some(());
            let ((), took) = until(&what, SOON, is_it).await;
            eprintln!("{probe:?} {expected:?} after {took:.1?}");
        }
    }
}

impl Probe {
    async fn ask(self, envoy: &Envoy) -> String {
        match self {
            Self::Request { listener, host, path } => {
                let Some(port) = envoy.port_now(listener).await else { return "no listener".to_owned() };
                match http::get_from(port, host, path).await {
                    Ok(answer) if answer.status == 200 => answer.body,
                    Ok(answer) => answer.status.to_string(),
                    Err(failure) => format!("{failure:?}"),
                }
            }
            Self::Certificate(name) => {
                let names = envoy.certificate_names().await;
                let generations = names.iter().filter_map(|of| of.strip_prefix(name)?.strip_prefix('.'));
                generations.collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// A scope takes the key of a removed one.
fn scopes(mode: Mode) -> Case {
    let resources = |scope: &str, routes: &str| {
        vec![
            scoped_listener(mode),
            answering("r1", "one"),
            answering("r2", "two"),
            key_scope(scope, "k", routes),
            key_scope("s-other", "o", "r1"),
        ]
    };
    let of = |host| Probe::Request { listener: "web", host, path: "/" };
    let step = |scope, routes, answer| Step {
        resources: resources(scope, routes),
        expected: vec![(of("k"), answer), (of("o"), "one")],
    };
    let steps = vec![step("s-old", "r1", "one"), step("s-new", "r2", "two"), step("s-old", "r1", "one")];
    Case { name: "scopes", is_delta_only: false, options: &[], steps, rejects: false }
}

/// A virtual host takes the domain of a removed one; Envoy has them all.
fn all_hosts(mode: Mode) -> Case {
    hosts(mode, "all virtual hosts", listener(mode, "web", "rc"), &["--legacy-wildcard", "VHDS=on"], |host| {
        host
    })
}

/// The same; Envoy subscribes to a domain at the first request for it.
fn hosts_on_demand(mode: Mode) -> Case {
    let alias = |host: Value| {
        let domain = host["domains"][0].as_str().expect("a domain");
        let aliases = [format!("rc/{domain}")];
        let r#type = "type.googleapis.com/envoy.service.discovery.v3.Resource";
        json!({"@type": r#type, "name": host["name"], "aliases": aliases, "resource": host})
    };
    hosts(mode, "virtual hosts on demand", on_demand::demanding(mode, "web", "rc"), &[], alias)
}

fn hosts(
    mode: Mode,
    name: &'static str,
    listener: Value,
    options: &'static [&'static str],
    wrap: impl Fn(Value) -> Value,
) -> Case {
    let step = |host: &'static str| Step {
        resources: vec![
            listener.clone(),
            on_demand::routes_on_demand(mode, "rc"),
            wrap(virtual_host("keep", "b.example")),
            wrap(virtual_host(host, "a.example")),
        ],
        expected: [("a.example", host), ("b.example", "keep")]
            .map(|(host, answer)| (Probe::Request { listener: "web", host, path: "/" }, answer))
            .into(),
    };
    Case { name, is_delta_only: true, options, steps: ["old", "new", "old"].map(step).into(), rejects: false }
}

/// A listener takes the address of a removed one.
fn listeners(_: Mode) -> Case {
    let port = free_port();
    let step = |name: &'static str| {
        let mut listener = inline_listener(name, &routes_of(name, direct(name)));
        listener["address"]["socket_address"]["port_value"] = port.into();
        let expected = vec![(Probe::Request { listener: name, host: http::ANY_HOST, path: "/" }, name)];
        Step { resources: vec![listener], expected }
    };
    let steps = ["old", "new", "old"].map(step).into();
    Case { name: "listeners", is_delta_only: false, options: &[], steps, rejects: false }
}

/// One of four assignments has an address that only Envoy can find bad.
fn assignments(mode: Mode, [old, new]: [u16; 2]) -> Case {
    let bad = || {
        let mut assignment = endpoints("n2", new);
        assignment["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"] =
            json!({"address": "a.example", "port_value": new, "resolver_name": "none"});
        assignment
    };
    let all = |mut of_each: [Value; 4]| {
        let paths = NAMES.map(|name| (format!("/{name}"), name));
        let paths = paths.each_ref().map(|(path, name)| (path.as_str(), *name));
        let mut resources = vec![listener(mode, "web", "routes"), routes("routes", &paths)];
        resources.extend(NAMES.map(|name| cluster(mode, name)));
        resources.extend(of_each.each_mut().map(Value::take));
        resources
    };
    let of = |port| NAMES.map(|name| endpoints(name, port));
    let with_bad = |port| {
        let mut all = of(port);
        all[1] = bad();
        all
    };
    let probe = |at: usize| Probe::Request {
        listener: "web",
        host: http::ANY_HOST,
        path: ["/n1", "/n2", "/n3", "/n4"][at],
    };
    four("assignments", probe, "503", [all(with_bad(old)), all(of(old)), all(with_bad(new)), all(of(new))])
}

/// One of four route configurations names a cluster that does not exist, which only Envoy rejects.
fn route_configurations(mode: Mode) -> Case {
    let all = |text: &str, has_bad: bool| {
        let mut resources: Vec<_> = NAMES.map(|name| listener(mode, name, name)).into();
        let of = |name| match name {
            "n2" if has_bad => {
                let mut routes = routes(name, &[("/", "none")]);
                routes["validate_clusters"] = true.into();
                routes
            }
            _ => answering(name, text),
        };
        resources.extend(NAMES.map(of));
        resources
    };
    let probe = |at: usize| Probe::Request { listener: NAMES[at], host: http::ANY_HOST, path: "/" };
    let steps = [all("old", true), all("old", false), all("new", true), all("new", false)];
    four("route configurations", probe, "404", steps)
}

/// One of four secrets has the private key of another certificate.
fn secrets(mode: Mode) -> Case {
    let all = |generation: &str, has_bad: bool| {
        let mut resources: Vec<_> = NAMES
            .map(|name| {
                let mut listener = inline_listener(name, &routes_of(name, direct(name)));
                listener["filter_chains"][0]["transport_socket"] = json!({"name": "tls", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                    "common_tls_context": {"tls_certificate_sds_secret_configs": [
                        {"name": name, "sds_config": mode.config_source()},
                    ]},
                }});
                listener
            })
            .into();
        resources.extend(NAMES.map(|name| secret(name, generation, has_bad && name == "n2")));
        resources
    };
    let steps = [all("old", true), all("old", false), all("new", true), all("new", false)];
    four("secrets", |at| Probe::Certificate(NAMES[at]), "", steps)
}

/// Four resources, of which `n2` is bad in the first and the third step, and corrected after each.
fn four(
    name: &'static str,
    probe: impl Fn(usize) -> Probe,
    without: &'static str,
    steps: [Vec<Value>; 4],
) -> Case {
    let answers = [[without, "old"], ["old"; 2], ["old", "new"], ["new"; 2]];
    let steps = steps.into_iter().zip(answers).map(|(resources, [of_bad, of_good])| {
        // The good ones first: Envoy must not need the correction for them.
        let order = [0, 2, 3, 1].map(|at| (probe(at), if at == 1 { of_bad } else { of_good }));
        Step { resources, expected: order.into() }
    });
    Case { name, is_delta_only: false, options: &[], steps: steps.collect(), rejects: true }
}

const NAMES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// A route that answers by itself.
fn direct(text: &str) -> Value {
    json!([{"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": text}}}])
}

fn routes_of(name: &str, routes: Value) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": name,
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
    })
}

/// A route configuration that answers all requests with this text.
fn answering(name: &str, text: &str) -> Value {
    routes_of(name, direct(text))
}

fn virtual_host(name: &str, domain: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.VirtualHost",
        "name": format!("rc/{name}"),
        "domains": [domain],
        "routes": direct(name),
    })
}

fn key_scope(name: &str, key: &str, routes: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration",
        "name": name,
        "route_configuration_name": routes,
        "key": {"fragments": [{"string_key": key}]},
    })
}

/// A listener whose scopes are found by the host of a request.
fn scoped_listener(mode: Mode) -> Value {
    let mut listener = listener(mode, "web", "");
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager.as_object_mut().expect("a map").remove("rds");
    let extractor = json!({"name": ":authority", "index": 0, "element_separator": ";"});
    manager["scoped_routes"] = json!({
        "name": "sc",
        "scope_key_builder": {"fragments": [{"header_value_extractor": extractor}]},
        "rds_config_source": mode.config_source(),
        "scoped_rds": {"scoped_rds_config_source": mode.config_source()},
    });
    listener
}

/// A listener with its routes in it.
fn inline_listener(name: &str, routes: &Value) -> Value {
    let mut listener = listener(Mode::ADS[0], name, "");
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager.as_object_mut().expect("a map").remove("rds");
    let mut routes = routes.clone();
    routes.as_object_mut().expect("a map").remove("@type");
    manager["route_config"] = routes;
    listener
}

/// A certificate for `NAME.GENERATION`, with its private key or another one.
fn secret(name: &str, generation: &str, is_bad: bool) -> Value {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([format!("{name}.{generation}")]).expect("a domain");
    let certificate = params.self_signed(&key).expect("signed");
    let key = if is_bad { KeyPair::generate().expect("a key") } else { key };
    json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "name": name,
        "tls_certificate": {
            "certificate_chain": {"inline_string": certificate.pem()},
            "private_key": {"inline_string": key.serialize_pem()},
        },
    })
}
