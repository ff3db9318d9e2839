//! Changes of which Envoy could reject a part for ever: new resources that take the place of removed
//! ones (S33, S6e), and one bad resource beside good ones (S6c). Each case is served directly and
//! through a proxy; some also with rollouts, and with quarantines.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::http;
use crate::mode::{Mode, Protocol};
use crate::on_demand;
use crate::peers;
use crate::port::free_port;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::store;
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
    /// The type of the resources of which `n2` is bad in some steps.
    bad_type: Option<&'static str>,
}

/// What the server does with a change that Envoy rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serving {
    /// The server sends it to all clients.
    AtOnce,
    /// The server takes the whole change back.
    InRollouts,
    /// The server takes the resource back.
    WithQuarantine,
}

/// A commit of these resources, which replace all before.
struct Step {
    resources: Vec<Value>,
    /// Whether Envoy rejects `n2`.
    has_bad: bool,
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
        run(Serving::AtOnce, |mode, _| make(mode)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6f_a_rollout_is_refused_for_a_bad_resource_and_not_for_a_place_that_was_taken() {
    run(Serving::InRollouts, |mode, _| scopes(mode)).await;
    run(Serving::InRollouts, |mode, _| all_hosts(mode)).await;
    run(Serving::InRollouts, assignments).await;
    run(Serving::InRollouts, |mode, _| secrets(mode)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st63_a_bad_resource_is_quarantined_and_not_one_whose_place_was_taken() {
    run(Serving::WithQuarantine, |mode, _| scopes(mode)).await;
    run(Serving::WithQuarantine, |mode, _| all_hosts(mode)).await;
    run(Serving::WithQuarantine, assignments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_good_assignments_work_beside_a_bad_one() {
    run(Serving::AtOnce, assignments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_good_routes_work_beside_bad_ones() {
    run(Serving::AtOnce, |mode, _| route_configurations(mode)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_good_secrets_work_beside_a_bad_one() {
    run(Serving::AtOnce, |mode, _| secrets(mode)).await;
}

/// Runs a case, which is made with the ports of two upstreams: one that answers `old`, and one that
/// answers `new`.
async fn run(serving: Serving, make: impl Fn(Mode, [u16; 2]) -> Case) {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turn = one_turn().await;
    let (old, new) = (Upstream::start("old").await, Upstream::start("new").await);
    for mode in Mode::ADS {
        for is_proxied in [false, true] {
            let case = make(mode, [old.port, new.port]);
            if !case.is_delta_only || mode.protocol == Protocol::Delta {
                run_one(&case, serving, mode, is_proxied).await;
            }
        }
    }
}

async fn run_one(case: &Case, serving: Serving, mode: Mode, is_proxied: bool) {
    let through = if is_proxied { ", through a proxy" } else { "" };
    let what = format!("{}, {serving:?}, {mode}{through}", case.name);
    eprintln!("--- {what}");
    let mut run = Run::start(case, serving, mode, is_proxied, what).await;
    for number in 0..case.steps.len() {
        if number > 0 {
            run.commit(number);
        }
        run.check(number, &format!("change {number}")).await;
    }
    run.server.kill().await;
    run.commit(1);
    run.server.restart().await;
    run.check(1, "a change while the server is away").await;
    run.check_nacks(0).await;
    // With trials (`--ack canary`) a proxy that starts without a cache takes 10 s for its first responses, and
    // a rollout ends while it is away.
    if let Some(proxy) = run.proxy.as_mut().filter(|_| serving == Serving::AtOnce) {
        proxy.kill().await;
        run.commit(2);
        run.proxy.as_mut().expect("it is there").restart().await;
        run.check(2, "a change while the proxy is away").await;
        // The proxy does not know what Envoy has, so it may send it both at once (S6e).
        run.check_nacks(1).await;
    }
}

/// A case with all of its programs. Dropping this ends them.
struct Run<'a> {
    case: &'a Case,
    serving: Serving,
    what: String,
    /// The number of the step whose resources are served, other than in a refused rollout.
    current: usize,
    folder: Folder,
    /// Of a rollout.
    state: Folder,
    server: Server,
    proxy: Option<Server>,
    envoy: Envoy,
    _scratch: Folder,
    _store: Option<Folder>,
}

impl<'a> Run<'a> {
    async fn start(case: &'a Case, serving: Serving, mode: Mode, is_proxied: bool, what: String) -> Self {
        let (mut folder, state, scratch) = (Folder::new(), Folder::new(), Folder::new());
        folder.swap(&[("all.json", case.steps[0].resources.clone())]);
        let (mut store_folder, mut place) = (None, String::new());
        if serving == Serving::WithQuarantine {
            let (folder, path) = store::store();
            (store_folder, place) = (Some(folder), path);
        }
        let of_state = state.path().to_str().expect("a text");
        let (of_server, of_proxy): (&[&str], &[&str]) = match serving {
            Serving::AtOnce => (&[], &[]),
            Serving::InRollouts => {
                let steps = ["--rollout", "1 client, 100%", "--rollout-wait", "1s"];
                (&[&steps[..], &["--rollout-state", of_state]].concat(), &["--ack", "canary"])
            }
            Serving::WithQuarantine => {
                (&["--store", &place, "--quarantine-nacks", "1"], &["--ack", "canary"])
            }
        };
        let page = ["--admin", "127.0.0.1:0"];
        let options = [case.options, of_server, &page].concat();
        let server = Server::start_with(folder.path(), &options).await;
        let mut proxy = None;
        if is_proxied {
            proxy = Some(Server::proxy(server.port, &[case.options, of_proxy, &page].concat()).await);
        }
        let port = proxy.as_ref().map_or(server.port, |proxy| proxy.port);
        let envoy = Envoy::start(scratch.path(), mode, port).await.expect("it was found before");
        Self {
            case,
            serving,
            what,
            current: 0,
            folder,
            state,
            server,
            proxy,
            envoy,
            _scratch: scratch,
            _store: store_folder,
        }
    }

    fn commit(&mut self, step: usize) {
        self.folder.swap(&[("all.json", self.case.steps[step].resources.clone())]);
    }

    /// Checks what Envoy does, and what the operator sees.
    async fn check(&mut self, step: usize, name: &str) {
        let what = format!("{}, {name}", self.what);
        // The first state is stable at once.
        let is_refused = self.serving == Serving::InRollouts && self.case.steps[step].has_bad && step > 0;
        if is_refused {
            let is_it = async || self.refusal().is_some().then_some(());
            until(&format!("{what}: the rollout is refused"), SOON, is_it).await;
            let reason = self.refusal().expect("it was there");
            eprintln!("refused: {reason}");
            // Which secret is bad, nobody knows (S6f).
            if self.case.bad_type != Some(SECRET) {
                assert_names_n2(&reason, &what);
                let lines = self.server.lines_with("refused");
                assert_names_n2(lines.last().unwrap_or(&String::new()), &what);
            }
        } else {
            self.current = step;
        }
        self.case.steps[self.current].check(&self.envoy, &what).await;
        if self.serving == Serving::InRollouts && step > 0 && !is_refused {
            // A commit during a rollout would become a part of it.
            let is_it = async || {
                let lines = self.server.lines_with("rollout");
                lines.last()?.contains("the rollout reached all clients").then_some(())
            };
            until(&format!("{what}: the rollout reached all clients"), SOON, is_it).await;
        }
        let bad_type = self.case.bad_type.filter(|_| self.case.steps[step].has_bad);
        if let (Serving::AtOnce, Some(bad_type)) = (self.serving, bad_type) {
            self.check_page(bad_type, &what).await;
        }
        if let (Serving::AtOnce, Some(_)) = (self.serving, bad_type.filter(|bad| *bad != SECRET)) {
            let lines = async || {
                let lines = self.door().lines_with(ALONE);
                (!lines.is_empty()).then_some(lines)
            };
            let (lines, _) = until(&format!("{what}: the log names it"), SOON, lines).await;
            for line in lines {
                assert_names_n2(&line, &what);
            }
        }
        if let (Serving::WithQuarantine, Some(_)) = (self.serving, bad_type) {
            let is_it = async || (!self.quarantined().is_empty()).then_some(());
            until(&format!("{what}: it is quarantined"), 2 * SOON, is_it).await;
            self.case.steps[step].check(&self.envoy, &format!("{what}, in quarantine")).await;
        }
    }

    /// What Envoy is connected to.
    fn door(&self) -> &Server {
        self.proxy.as_ref().unwrap_or(&self.server)
    }

    /// Waits until the page shows that Envoy rejects `n2`, and has the newest of all others.
    async fn check_page(&self, bad_type: &str, what: &str) {
        let port = self.door().admin_port().await;
        let path = format!("/api/clients/interop?type={bad_type}");
        let is_it = async || {
            let answer = http::get_from(port, &format!("127.0.0.1:{port}"), &path).await.ok()?;
            let client: Value = serde_json::from_str(&answer.body).ok()?;
            let rows = client["resources"]["rows"].as_array()?;
            let as_expected = |row: &Value| match row["name"].as_str() {
                Some("n2") => row["status"] == "rejected" && row["detail"].is_string(),
                // Which secret is bad, nobody knows (S6f).
                _ if bad_type == SECRET => true,
                _ => row["status"] == "synced" && row["detail"].is_null(),
            };
            (rows.len() == NAMES.len() && rows.iter().all(as_expected)).then_some(())
        };
        let ((), took) = until(&format!("{what}: the page shows n2 alone as rejected"), SOON, is_it).await;
        eprintln!("the page shows it after {took:.1?}");
    }

    /// The reason of the last refused rollout.
    fn refusal(&self) -> Option<String> {
        let text = fs::read_to_string(self.state.path().join("status.json")).ok()?;
        let status: Value = serde_json::from_str(&text).ok()?;
        Some(status["refused"].as_array()?.last()?["reason"].as_str()?.to_owned())
    }

    /// The lines of the log about quarantines.
    fn quarantined(&self) -> Vec<String> {
        self.server.lines_with("quarantined: ")
    }

    /// Checks that Envoy rejected nothing that is good, other than so many responses with a name whose
    /// place was taken.
    async fn check_nacks(&self, allowed: u64) {
        let what = &self.what;
        if self.case.bad_type.is_none() {
            let rejected = self.envoy.stats().await.ending(&[".update_rejected"]);
            let count: u64 = rejected.values().sum();
            assert!(count <= allowed, "{what}: {rejected:?}");
            if count > 0 && self.serving == Serving::WithQuarantine {
                eprintln!("{count} NACKs: {rejected:?}");
                sleep(UNTIL_IT_COUNTS).await;
            }
        }
        for line in self.quarantined() {
            eprintln!("{line}");
            assert!(self.case.bad_type.is_some(), "{what}: {line}");
            assert_names_n2(&line, what);
        }
    }
}

/// Checks that a text names the bad one of four resources, and no other.
fn assert_names_n2(text: &str, what: &str) {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let named: BTreeSet<_> = words.filter(|word| NAMES.contains(word)).collect();
    assert!(named.iter().eq(&["n2"]), "{what}: {text}");
}

/// In the line of the log for a resource that was found bad.
const ALONE: &str = "of the rejected response, the client rejects this resource";

/// After this time a NACK counts, whatever may have caused it: 16 s (S6f), and 5 s for other clients (ST63).
const UNTIL_IT_COUNTS: Duration = Duration::from_secs(22);

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
            scoped_listener(mode, "web"),
            answering("r1", "one"),
            answering("r2", "two"),
            key_scope(scope, "k", routes),
            key_scope("s-other", "o", "r1"),
        ]
    };
    let of = |host| Probe::Request { listener: "web", host, path: "/" };
    let step = |scope, routes, answer| Step {
        resources: resources(scope, routes),
        has_bad: false,
        expected: vec![(of("k"), answer), (of("o"), "one")],
    };
    let steps = vec![step("s-old", "r1", "one"), step("s-new", "r2", "two"), step("s-old", "r1", "one")];
    Case { name: "scopes", is_delta_only: false, options: &[], steps, bad_type: None }
}

/// A virtual host takes the domain of a removed one; Envoy has them all (D33).
fn all_hosts(mode: Mode) -> Case {
    hosts(mode, "all virtual hosts", listener(mode, "web", "rc"), |host| host)
}

/// The same; Envoy subscribes to a domain at the first request for it.
fn hosts_on_demand(mode: Mode) -> Case {
    let alias = |host: Value| {
        let domain = host["domains"][0].as_str().expect("a domain");
        let aliases = [format!("rc/{domain}")];
        let r#type = "type.googleapis.com/envoy.service.discovery.v3.Resource";
        json!({"@type": r#type, "name": host["name"], "aliases": aliases, "resource": host})
    };
    hosts(mode, "virtual hosts on demand", on_demand::demanding(mode, "web", "rc"), alias)
}

fn hosts(mode: Mode, name: &'static str, listener: Value, wrap: impl Fn(Value) -> Value) -> Case {
    let step = |host: &'static str| Step {
        resources: vec![
            listener.clone(),
            on_demand::routes_on_demand(mode, "rc"),
            wrap(virtual_host("keep", "b.example")),
            wrap(virtual_host(host, "a.example")),
        ],
        has_bad: false,
        expected: [("a.example", host), ("b.example", "keep")]
            .map(|(host, answer)| (Probe::Request { listener: "web", host, path: "/" }, answer))
            .into(),
    };
    Case {
        name,
        is_delta_only: true,
        options: &[],
        steps: ["old", "new", "old"].map(step).into(),
        bad_type: None,
    }
}

/// A listener takes the address of a removed one.
fn listeners(_: Mode) -> Case {
    let port = free_port();
    let step = |name: &'static str| {
        let mut listener = inline_listener(name, &routes_of(name, direct(name)));
        listener["address"]["socket_address"]["port_value"] = port.into();
        let expected = vec![(Probe::Request { listener: name, host: http::ANY_HOST, path: "/" }, name)];
        Step { resources: vec![listener], has_bad: false, expected }
    };
    let steps = ["old", "new", "old"].map(step).into();
    Case { name: "listeners", is_delta_only: false, options: &[], steps, bad_type: None }
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
    four(
        "assignments",
        ASSIGNMENT,
        probe,
        "503",
        [all(with_bad(old)), all(of(old)), all(with_bad(new)), all(of(new))],
    )
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
    four("route configurations", ROUTES, probe, "404", steps)
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
    four("secrets", SECRET, |at| Probe::Certificate(NAMES[at]), "", steps)
}

/// Four resources, of which `n2` is bad in the first and the third step, and corrected after each.
fn four(
    name: &'static str,
    bad_type: &'static str,
    probe: impl Fn(usize) -> Probe,
    without: &'static str,
    steps: [Vec<Value>; 4],
) -> Case {
    let answers = [[without, "old"], ["old"; 2], ["old", "new"], ["new"; 2]];
    let steps = steps.into_iter().zip(answers).enumerate().map(|(number, (resources, [of_bad, of_good]))| {
        // The good ones first: Envoy must not need the correction for them.
        let order = [0, 2, 3, 1].map(|at| (probe(at), if at == 1 { of_bad } else { of_good }));
        Step { resources, has_bad: number % 2 == 0, expected: order.into() }
    });
    Case { name, is_delta_only: false, options: &[], steps: steps.collect(), bad_type: Some(bad_type) }
}

const ASSIGNMENT: &str = "envoy.config.endpoint.v3.ClusterLoadAssignment";
const ROUTES: &str = "envoy.config.route.v3.RouteConfiguration";
/// Envoy ACKs a bad secret when it gets it again, so nothing shows which one is bad.
const SECRET: &str = "envoy.extensions.transport_sockets.tls.v3.Secret";

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
pub(crate) fn scoped_listener(mode: Mode, name: &str) -> Value {
    let mut listener = listener(mode, name, "");
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
pub(crate) fn inline_listener(name: &str, routes: &Value) -> Value {
    let mut listener = listener(Mode::ADS[0], name, "");
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager.as_object_mut().expect("a map").remove("rds");
    let mut routes = routes.clone();
    routes.as_object_mut().expect("a map").remove("@type");
    manager["route_config"] = routes;
    listener
}

/// A certificate for `NAME.GENERATION`, with its private key or another one.
pub(crate) fn secret(name: &str, generation: &str, is_bad: bool) -> Value {
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
