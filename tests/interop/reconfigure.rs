//! A hundred reconfigurations of all kinds under load, without a lost request.
//!
//! The answer to a request shows every change of a commit, except for the runtime:
//!
//! ```text
//! load -> edge -- cluster `inner`, TLS --> web -- two clusters that come, go and move --> red, blue
//!         adds the certificate             its name, its certificate, its extension
//!         that `web` showed                and its routes change
//!
//! load -> demand ------------------------------> the same two clusters
//!         its virtual hosts come on demand, in delta alone
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::time;

use crate::envoy::{Envoy, bootstrap};
use crate::folder::Folder;
use crate::http;
use crate::load::{Connections, Load};
use crate::mode::{Mode, Protocol};
use crate::on_demand::{ask, demanding, domain, routes_on_demand, virtual_host};
use crate::peers;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hundred_reconfigurations_lose_no_request() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let seed = match env::var("XDS_INTEROP_SEED") {
        Ok(seed) => seed.parse().expect("XDS_INTEROP_SEED is a number"),
        Err(_) => RandomState::new().hash_one(()),
    };
    eprintln!("XDS_INTEROP_SEED={seed} repeats these reconfigurations");
    let _turns = every_turn().await;
    for [sotw, delta] in Mode::PAIRS {
        tokio::join!(reconfigure(sotw, seed), reconfigure(delta, seed));
    }
}

async fn reconfigure(mode: Mode, seed: u64) {
    let mut random = Random(seed);
    let kinds = Change::ALL.into_iter().filter(|kind| *kind != Change::Host || has_hosts(mode));
    let mut changes = Vec::from_iter(kinds.cycle().take(RECONFIGURATIONS));
    random.shuffle(&mut changes);
    let mut stage = Stage::start(mode).await;
    let mut loads = vec![Load::start(stage.edge, "/", Connections::New)];
    if let Some(demand) = stage.demand {
        loads.push(Load::start_from(demand, &domain(STEADY), "/", Connections::New));
    }
    let mut slowest = BTreeMap::<Change, Duration>::new();

    // 0 and 1 are the clusters at the start.
    for (number, change) in (2..).zip(changes) {
        stage.apply(change, number);
        // For one in three, the next commit comes before it is complete.
        let pause = if random.below(3) == 0 {
            random.below(50)
        } else {
            let took = stage.until_in_force().await;
            let slowest = slowest.entry(change).or_default();
            *slowest = took.max(*slowest);
            random.below(200)
        };
        time::sleep(Duration::from_millis(pause)).await;
    }
    stage.until_in_force().await;
    stage.until_old_hosts_are_gone().await;

    for load in loads {
        let report = load.finish().await;
        eprintln!("{mode}: {report}");
        report.assert_nothing_lost();
    }
    eprintln!("{mode}: the slowest of each kind: {slowest:.0?}");
    let stats = stage.envoy.stats().await;
    for gauge in ["cluster_manager.warming_clusters", "listener_manager.total_listeners_warming"] {
        assert_eq!(stats.get(gauge), 0, "{mode}: {gauge}");
    }
    let mut troubles = stats.ending(&[".update_rejected", ".config_fail", ".init_fetch_timeout"]);
    assert!(!troubles.is_empty(), "{mode}: Envoy counts what it rejects");
    troubles.retain(|_, count| *count > 0);
    assert!(troubles.is_empty(), "{mode}: {troubles:?}");
    assert_eq!(stage.server.lines_with("NACK"), [] as [String; 0], "{mode}");
}

/// One kind of commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// The route names the other cluster.
    Route,
    /// A new cluster with its endpoints replaces the cluster in use, which is removed.
    Cluster,
    /// The clusters swap their endpoints.
    Endpoints,
    Listener,
    /// `web` gets another certificate.
    Secret,
    /// A layer of the runtime has another value.
    Runtime,
    /// A filter of `web` gets another configuration.
    Extension,
    /// A new virtual host is added, the newest one moves to another cluster, and the one before it
    /// is removed.
    ///
    /// Their clusters stay. The removal of a cluster that a removed virtual host named may be
    /// withheld, because Envoy stays subscribed to the host.
    Host,
}

impl Change {
    const ALL: [Self; 8] = [
        Self::Route,
        Self::Cluster,
        Self::Endpoints,
        Self::Listener,
        Self::Secret,
        Self::Runtime,
        Self::Extension,
        Self::Host,
    ];
}

/// The content of the folder. Each number is that of the commit that wrote it last.
#[derive(Debug)]
struct Plan {
    /// The numbers of the two clusters.
    clusters: [u32; 2],
    /// The cluster in use.
    active: usize,
    /// Whether the first cluster leads to blue and the second one to red.
    swapped: bool,
    listener: u32,
    secret: u32,
    runtime: u32,
    extension: u32,
    /// The virtual hosts, the newest last. All but the last two are removed.
    hosts: Vec<u32>,
}

/// The configuration in effect, as far as it changes.
#[derive(Debug, PartialEq, Eq)]
struct InForce {
    upstream: String,
    listener: String,
    secret: String,
    extension: String,
    runtime: String,
    clusters: BTreeSet<String>,
    /// The answers of the virtual hosts on demand.
    hosts: Vec<String>,
}

/// All programs of the test. Dropping this ends them.
#[derive(Debug)]
struct Stage {
    mode: Mode,
    plan: Plan,
    authority: Authority,
    red: Upstream,
    blue: Upstream,
    folder: Folder,
    server: Server,
    envoy: Envoy,
    /// The port of the listener `edge`.
    edge: u16,
    /// The port of the listener `demand`, if there is one.
    demand: Option<u16>,
    _scratch: Folder,
}

impl Stage {
    async fn start(mode: Mode) -> Self {
        let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
        let (folder, scratch) = (Folder::new(), Folder::new());
        let plan = Plan {
            clusters: [0, 1],
            active: 0,
            swapped: false,
            listener: 0,
            secret: 0,
            runtime: 0,
            extension: 0,
            hosts: Vec::new(),
        };
        let authority = Authority::new();
        folder.write("traffic.json", &traffic(mode, &plan, [&red, &blue]));
        folder.write("web.json", &[web(mode, plan.listener)]);
        folder.write("secret.json", &[authority.certificate(plan.secret)]);
        folder.write("authority.json", &[authority.itself()]);
        folder.write("runtime.json", &[runtime(plan.runtime)]);
        folder.write("extension.json", &[extension(plan.extension)]);
        if has_hosts(mode) {
            let routes = [demanding(mode, "demand", "demand"), routes_on_demand(mode, "demand")];
            let resting = [cluster(mode, RESTING), endpoints(RESTING, blue.port)];
            folder.write("demand.json", &[routes, resting].concat());
        }
        let server = Server::start(folder.path()).await;
        let mut bootstrap = bootstrap(mode, server.port, &json!({}));
        let layer = json!({"name": "over-xds", "rtds_config": mode.config_source()});
        bootstrap["layered_runtime"] = json!({"layers": [{"name": "over-xds", "rtds_layer": layer}]});
        let text = bootstrap.to_string();
        let envoy = Envoy::start_patient(scratch.path(), &text, "bootstrap.json", PATIENCE).await;
        let envoy = envoy.expect("it was found before");
        // The port of the listener is known only now.
        let inner_endpoints = endpoints("inner", envoy.port("web").await);
        folder.write("edge.json", &[edge(mode), inner(mode), inner_endpoints]);
        let edge = envoy.port("edge").await;
        let demand = if has_hosts(mode) { Some(envoy.port("demand").await) } else { None };
        let stage =
            Self { mode, plan, authority, red, blue, folder, server, envoy, edge, demand, _scratch: scratch };
        stage.until_in_force().await;
        stage
    }

    /// Commits one change with a new number.
    fn apply(&mut self, change: Change, number: u32) {
        let (folder, plan) = (&self.folder, &mut self.plan);
        match change {
            Change::Route => plan.active = 1 - plan.active,
            // It has the other endpoints, so that the answer changes.
            Change::Cluster => {
                plan.clusters[plan.active] = number;
                plan.swapped = !plan.swapped;
            }
            Change::Endpoints => plan.swapped = !plan.swapped,
            Change::Listener => plan.listener = number,
            Change::Secret => plan.secret = number,
            Change::Runtime => plan.runtime = number,
            Change::Extension => plan.extension = number,
            Change::Host => plan.hosts.push(number),
        }
        match change {
            Change::Route | Change::Cluster | Change::Endpoints | Change::Host => {
                folder.write("traffic.json", &traffic(self.mode, plan, [&self.red, &self.blue]));
            }
            Change::Listener => folder.write("web.json", &[web(self.mode, number)]),
            Change::Secret => folder.write("secret.json", &[self.authority.certificate(number)]),
            Change::Runtime => folder.write("runtime.json", &[runtime(number)]),
            Change::Extension => folder.write("extension.json", &[extension(number)]),
        }
    }

    /// Waits until Envoy uses the configuration of the folder, and returns how long that took.
    async fn until_in_force(&self) -> Duration {
        let plan = &self.plan;
        let upstream = |index: usize| ["red", "blue"][usize::from(plan.swapped) ^ index];
        let of_hosts = plan.hosts().into_iter().map(|(_, to)| match to.as_str() {
            RESTING => "200 blue".to_owned(),
            // `inner` also leads to the cluster in use.
            _ => format!("200 {}", upstream(plan.active)),
        });
        let staying = ["inner", RESTING].into_iter().take(if self.demand.is_some() { 2 } else { 1 });
        let expected = InForce {
            upstream: upstream(plan.active).to_owned(),
            listener: format!("web-{}", plan.listener),
            secret: format!("CN=certificate-{}", plan.secret),
            extension: plan.extension.to_string(),
            runtime: plan.runtime.to_string(),
            clusters: plan.clusters.map(cluster_name).into_iter().chain(staying.map(str::to_owned)).collect(),
            hosts: if self.demand.is_some() { of_hosts.collect() } else { Vec::new() },
        };
        let what = format!("{} has {expected:?} in force", self.mode);
        until(&what, SOON, async || (self.in_force().await? == expected).then_some(())).await.1
    }

    /// The configuration that Envoy uses; `None` if a request fails.
    async fn in_force(&self) -> Option<InForce> {
        let answer = http::get(self.edge, "/").await.ok()?;
        let mut hosts = Vec::new();
        if let Some(demand) = self.demand {
            for (host, _) in self.plan.hosts() {
                hosts.push(ask(demand, &host).await);
            }
        }
        let field = |name| answer.field(name).unwrap_or_default().to_owned();
        Some(InForce {
            upstream: answer.body.clone(),
            listener: field("server"),
            secret: field(CERTIFICATE),
            extension: field(EXTENSION),
            runtime: self.envoy.runtime(RUNTIME_KEY).await?,
            clusters: self.envoy.clusters().await.into_keys().collect(),
            hosts,
        })
    }

    /// Waits until Envoy has dropped the virtual hosts that the folder removed.
    async fn until_old_hosts_are_gone(&self) {
        let Some(demand) = self.demand else { return };
        let gone = self.plan.hosts.len() - HOSTS_TO.len();
        for host in self.plan.hosts[..gone].iter().copied().map(host_name) {
            let gone = async || (ask(demand, &host).await == "404 ").then_some(());
            until(&format!("{host} is gone"), SOON, gone).await;
        }
    }
}

impl Plan {
    /// The virtual hosts on demand, each with its cluster.
    fn hosts(&self) -> Vec<(String, String)> {
        let newest = self.hosts.iter().rev().copied().map(host_name);
        let moving = newest.zip(HOSTS_TO.map(str::to_owned));
        moving.chain([(STEADY.to_owned(), cluster_name(self.clusters[self.active]))]).collect()
    }
}

/// Virtual hosts exist only in delta.
fn has_hosts(mode: Mode) -> bool {
    mode.protocol == Protocol::Delta
}

fn host_name(number: u32) -> String {
    format!("host-{number}")
}

fn cluster_name(number: u32) -> String {
    format!("cluster-{number}")
}

/// The route, the clusters and their endpoints, which change together.
fn traffic(mode: Mode, plan: &Plan, upstreams: [&Upstream; 2]) -> Vec<Value> {
    let [one, two] = plan.clusters.map(cluster_name);
    let at = |index: usize| upstreams[usize::from(plan.swapped) ^ index].port;
    let mut traffic = vec![
        routes("routes", &[("/", &cluster_name(plan.clusters[plan.active]))]),
        cluster(mode, &one),
        cluster(mode, &two),
        endpoints(&one, at(0)),
        endpoints(&two, at(1)),
    ];
    if has_hosts(mode) {
        let host = |(host, to): (String, String)| virtual_host("demand", &host, &to);
        traffic.extend(plan.hosts().into_iter().map(host));
    }
    traffic
}

/// The listener behind TLS. Its number is in the header field `server`.
fn web(mode: Mode, number: u32) -> Value {
    let mut web = listener(mode, "web", "routes");
    let chain = &mut web["filter_chains"][0];
    let manager = &mut chain["filters"][0]["typed_config"];
    manager["server_name"] = format!("web-{number}").into();
    let filters = manager["http_filters"].as_array_mut().expect("it has a router");
    let discovery = json!({"config_source": mode.config_source(), "type_urls": [HEADER_MUTATION]});
    filters.insert(0, json!({"name": "extension", "config_discovery": discovery}));
    let certificate = json!({"name": "web-certificate", "sds_config": mode.config_source()});
    chain["transport_socket"] = tls(
        "Downstream",
        &json!({
            "tls_certificate_sds_secret_configs": [certificate],
        }),
    );
    web
}

/// The listener before it, which adds the certificate of `web` to the answer.
fn edge(mode: Mode) -> Value {
    let mut edge = listener(mode, "edge", "");
    let manager = &mut edge["filter_chains"][0]["filters"][0]["typed_config"];
    let mut to_inner = routes("to-inner", &[("/", "inner")]);
    to_inner.as_object_mut().expect("a message").remove("@type");
    let subject = json!({"key": CERTIFICATE, "value": "%UPSTREAM_PEER_SUBJECT%"});
    to_inner["response_headers_to_add"] = json!([{"header": subject}]);
    manager["route_config"] = to_inner;
    manager["server_header_transformation"] = "PASS_THROUGH".into();
    manager.as_object_mut().expect("a message").remove("rds");
    edge
}

/// The cluster of `web`. Each request has a connection of its own, and so a handshake.
fn inner(mode: Mode) -> Value {
    let mut inner = cluster(mode, "inner");
    inner["connect_timeout"] = format!("{PATIENCE}s").into();
    let authority = json!({"name": "authority", "sds_config": mode.config_source()});
    inner["transport_socket"] = tls("Upstream", &json!({"validation_context_sds_secret_config": authority}));
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    inner["typed_extension_protocol_options"] = json!({options: {
        "@type": format!("type.googleapis.com/{options}"),
        "common_http_protocol_options": {"max_requests_per_connection": 1},
        "explicit_http_config": {"http_protocol_options": {}},
    }});
    inner
}

fn tls(side: &str, common: &Value) -> Value {
    let context = format!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{side}TlsContext");
    json!({"name": "tls", "typed_config": {"@type": context, "common_tls_context": common}})
}

fn runtime(number: u32) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.service.runtime.v3.Runtime",
        "name": "over-xds",
        "layer": {RUNTIME_KEY: number},
    })
}

/// The filter of `web`, which adds its number to the answer.
fn extension(number: u32) -> Value {
    let field = json!({"header": {"key": EXTENSION, "value": number.to_string()}});
    json!({
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": "extension",
        "typed_config": {"@type": HEADER_MUTATION, "mutations": {"response_mutations": [{"append": field}]}},
    })
}

/// The authority that signs the certificates of `web`.
#[derive(Debug)]
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = params("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The authorities that `edge` trusts.
    fn itself(&self) -> Value {
        json!({
            "@type": SECRET,
            "name": "authority",
            "validation_context": {"trusted_ca": {"inline_string": self.pem}},
        })
    }

    /// The certificate of `web`.
    fn certificate(&self, number: u32) -> Value {
        let key = KeyPair::generate().expect("a key");
        let params = params(&format!("certificate-{number}"));
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        json!({
            "@type": SECRET,
            "name": "web-certificate",
            "tls_certificate": {
                "certificate_chain": {"inline_string": certificate.pem()},
                "private_key": {"inline_string": key.serialize_pem()},
            },
        })
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Numbers that depend on a seed alone (SplitMix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

const RECONFIGURATIONS: usize = 100;

/// How many seconds a handshake may take on a busy machine before Envoy closes the connection.
const PATIENCE: u32 = 10;

/// The clusters of virtual hosts on demand, the newest first.
const HOSTS_TO: [&str; 2] = ["inner", RESTING];

/// A cluster for virtual hosts on demand, which stays.
const RESTING: &str = "resting";

/// The virtual host on demand that stays.
const STEADY: &str = "steady";

const CERTIFICATE: &str = "x-certificate";
const EXTENSION: &str = "x-extension";
const RUNTIME_KEY: &str = "interop.commit";
const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
const HEADER_MUTATION: &str =
    "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";
