//! Variants: real clients of one server get the variants that their node's metadata selects, and no
//! other updates.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;
use tokio::sync::SemaphorePermit;

use crate::elsewhere;
use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::grpc_peer::{Bootstrap, GrpcPeer, Implementation};
use crate::http;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::peers;
use crate::resources::{api_listener, cluster, endpoints, listener, routes, when};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t46_four_envoys_get_the_four_variants_of_the_example() {
    let mut upstreams = Vec::new();
    for (name, _, _) in EXAMPLE {
        upstreams.push(Upstream::start(name).await);
    }
    let Some(mut fleet) = Fleet::of(|folder| {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/variants");
        let ports: Vec<(u16, u16)> = (8081..).zip(&upstreams).map(|(port, it)| (port, it.port)).collect();
        for (name, ports) in [
            ("listener.yaml", &[][..]),
            ("routes.yaml", &[]),
            ("clusters.yaml", &[]),
            ("endpoints.yaml", &ports),
        ] {
            let text = fs::read_to_string(example.join(name)).expect("the example is there");
            fs::write(folder.path().join(name), elsewhere(&text, ports)).expect("the folder is writable");
        }
    })
    .await
    else {
        return;
    };
    let modes = [SOTW, DELTA, DELTA, SOTW];
    for (mode, (name, env, version)) in modes.into_iter().zip(EXAMPLE) {
        fleet.join(name, mode, &metadata(env, Some(version))).await;
    }

    for member in &fleet.members {
        member.until_answer(member.name).await;
    }

    for _ in 0..20 {
        for member in &fleet.members {
            assert_eq!(member.ask().await, member.name, "{}", member.mode);
        }
    }

    /// The upstreams in the order of their ports in the example, each with parameters that lead to
    /// it.
    const EXAMPLE: [(&str, &str, &str); 4] = [
        ("prod-v1", "prod", "v1"),
        ("prod-rest", "prod", "v2"),
        ("rest-v1", "canary", "v1"),
        ("rest", "test", "v3"),
    ];
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_a_value_outside_coverage_gets_no_variant_until_there_is_one() {
    let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
    let routed = |env: &str, cluster| when(&format!("env={env}"), routes("routes", &[("/", cluster)]));
    let Some(mut fleet) = Fleet::of(|folder| {
        write_shared(folder, &red, &blue);
        // SotW cannot report that a resource does not exist, so an Envoy waits for its timeout.
        let mut impatient = listener(SOTW, "web", "routes");
        let manager = &mut impatient["filter_chains"][0]["filters"][0]["typed_config"];
        manager["rds"]["config_source"]["initial_fetch_timeout"] = "1s".into();
        folder.write("listener.json", &[impatient]);
        folder.write("routes.json", &[routed("prod", "red"), routed("test", "blue")]);
    })
    .await
    else {
        return;
    };
    fleet.join("prod", DELTA, &metadata("prod", None)).await;
    fleet.join("qa", SOTW, &metadata("qa", None)).await;
    let scratch = Folder::new();
    let no_routes = Envoy::launch_as(scratch.path(), DELTA, fleet.server.port, &metadata("qa", None)).await;
    let no_routes = no_routes.expect("it was found before");
    let [prod, qa] = &fleet.members[..] else { unreachable!("two joined") };

    prod.until_answer("red").await;
    assert_eq!(http::get(qa.port, "/").await.map(|answer| answer.status), Ok(404));
    assert_eq!(qa.rds_responses().await, 0);
    // The report that the routes do not exist is a response, so it ends the wait of
    // `initial_fetch_timeout`. Envoy 1.40 then keeps the listener warming as long as there are no
    // routes.
    until("Envoy gets the answer that it has no routes", SOON, async || {
        (rds_responses(&no_routes).await == 1).then_some(())
    })
    .await;
    assert!(!no_routes.is_ready().await);
    for envoy in [&qa.envoy, &no_routes] {
        assert_eq!(envoy.dynamic_routes().await, [] as [Value; 0]);
    }

    // They get the resource as soon as it exists.
    fleet.folder.write("routes.json", &[routed("prod", "red"), routed("test", "blue"), routed("qa", "blue")]);
    qa.until_answer("blue").await;
    let port = no_routes.port("web").await;
    until("blue answers the Envoy that had no routes", SOON, async || {
        (http::get(port, "/").await.ok()?.body == "blue").then_some(())
    })
    .await;
    assert_eq!(prod.ask().await, "red");
    assert_eq!(prod.rds_responses().await, 1, "another variant is no news to it");
}

/// T48, clients send the key first: then one batch splits the variant in two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t48_t16_a_split_variant_moves_the_envoys_concerned_and_no_other() {
    let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
    let generation = |folder: &mut Folder, variants: &[(&str, &str)]| {
        swap_routes(folder, &red, &blue, variants);
    };
    let Some(mut fleet) =
        Fleet::of(|folder| generation(folder, &[("env=prod", "red"), ("env!=prod", "blue")])).await
    else {
        return;
    };
    fleet.join("prod-v1", DELTA, &metadata("prod", Some("v1"))).await;
    fleet.join("prod-v2", DELTA, &metadata("prod", Some("v2"))).await;
    fleet.join("prod", SOTW, &metadata("prod", None)).await;
    fleet.join("test-v1", SOTW, &metadata("test", Some("v1"))).await;
    let [prod_v1, prod_v2, prod, test] = &fleet.members[..] else { unreachable!("four joined") };
    for (member, answer) in [(prod_v1, "red"), (prod_v2, "red"), (prod, "red"), (test, "blue")] {
        member.until_answer(answer).await;
    }
    let others = [(prod_v2, "red"), (prod, "red"), (test, "blue")];
    let loads = others.map(|(member, _)| Load::start(member.port, "/", Connections::New));
    let moved = Load::start(prod_v1.port, "/", Connections::Kept);

    generation(
        &mut fleet.folder,
        &[("env=prod,version=v1", "blue"), ("env=prod,version!=v1", "red"), (ANY_VERSION_BUT_PROD, "blue")],
    );
    prod_v1.until_answer("blue").await;

    // An update for all clients shows that everything before it has been sent, and that the other
    // clients got only this update.
    generation(
        &mut fleet.folder,
        &[
            ("env=prod,version=v1", "blue"),
            ("env=prod,version!=v1", "red-too"),
            (ANY_VERSION_BUT_PROD, "blue-too"),
        ],
    );
    for (member, _) in others {
        member.until_rds_responses(2).await;
    }
    assert_eq!(prod_v1.rds_responses().await, 2, "the second change was none for it");
    for ((member, answer), load) in others.into_iter().zip(loads) {
        let report = load.finish().await;
        eprintln!("{}: {report}", member.name);
        report.assert_nothing_lost();
        assert!(report.answers.keys().eq([answer]), "{} moved: {report}", member.name);
        assert_eq!(member.rds_responses().await, 2, "{} heard of its own change alone", member.name);
    }
    moved.finish().await.assert_nothing_lost();
}

/// T48, the server has the key first: `!version` is for the clients that do not send it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v29_t48_a_key_migration_that_leaves_an_envoys_payload_sends_it_nothing() {
    let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
    let generation = |folder: &mut Folder, variants: &[(&str, &str)]| {
        swap_routes(folder, &red, &blue, variants);
    };
    let Some(mut fleet) =
        Fleet::of(|folder| generation(folder, &[("env=prod", "red"), ("env!=prod", "blue")])).await
    else {
        return;
    };
    fleet.join("old-delta", DELTA, &metadata("prod", None)).await;
    fleet.join("old-sotw", SOTW, &metadata("prod", None)).await;
    fleet.join("new-sotw", SOTW, &metadata("prod", Some("v1"))).await;
    for member in &fleet.members {
        member.until_answer("red").await;
    }

    // The client that sends the new key moves.
    let migrated =
        |old| [("env=prod,!version", old), ("env=prod,version=v1", "blue"), (ANY_VERSION_BUT_PROD, "blue")];
    generation(&mut fleet.folder, &migrated("red"));
    fleet.members[2].until_answer("blue").await;
    // Envoys start to send a new key when they restart.
    fleet.join("new-delta", DELTA, &metadata("prod", Some("v1"))).await;
    fleet.members[3].until_answer("blue").await;

    // The old clients get a change of their payload, as the first update since their start.
    generation(&mut fleet.folder, &migrated("blue"));
    for old in &fleet.members[..2] {
        old.until_answer("blue").await;
        assert_eq!(old.rds_responses().await, 2, "{}: the migration was no news to it", old.name);
    }
    // All variants have one payload now. Removing the key sends nothing to any client; the next
    // change shows that.
    generation(&mut fleet.folder, &[("env=prod", "blue"), ("env!=prod", "blue")]);
    generation(&mut fleet.folder, &[("env=prod", "red"), ("env!=prod", "blue")]);
    for (member, responses) in fleet.members.iter().zip([3, 3, 3, 2]) {
        member.until_answer("red").await;
        assert_eq!(member.rds_responses().await, responses, "{}", member.name);
    }
}

/// Endpoints for each group of clients, behind one shared cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t46_grpc_clients_get_the_endpoints_of_their_metadata() {
    for implementation in Implementation::ALL {
        let Some((_red, red)) = GrpcPeer::server("red").await else { return };
        let Some((_blue, blue)) = GrpcPeer::server("blue").await else { return };
        let mut folder = Folder::new();
        let generation = |folder: &mut Folder, prod, rest| {
            folder.swap(&[
                ("listener.json", vec![api_listener(SOTW, "svc", "routes")]),
                ("routes.json", vec![routes("routes", &[("", "backends")])]),
                ("clusters.json", vec![cluster(SOTW, "backends")]),
                (
                    "endpoints.json",
                    vec![
                        when("env=prod", endpoints("backends", prod)),
                        when("env!=prod", endpoints("backends", rest)),
                    ],
                ),
            ]);
        };
        generation(&mut folder, red, blue);
        let server = Server::start(folder.path()).await;
        let scratches = [Folder::new(), Folder::new()];
        let client = |scratch: &Folder, env| {
            let bootstrap = Bootstrap::File(scratch.path());
            GrpcPeer::client(implementation, bootstrap, "xds:///svc", server.port, &metadata(env, None))
        };
        let Some(mut prod) = client(&scratches[0], "prod") else { continue };
        let Some(mut test) = client(&scratches[1], "test") else { continue };

        for _ in 0..10 {
            assert_eq!(prod.call().await, Ok("red".to_owned()), "{implementation}");
            assert_eq!(test.call().await, Ok("blue".to_owned()), "{implementation}");
        }

        // One of the two groups moves, then the other.
        generation(&mut folder, blue, blue);
        until_answer(&mut prod, "blue").await;
        assert_eq!(test.call().await, Ok("blue".to_owned()), "{implementation}");
        generation(&mut folder, blue, red);
        until_answer(&mut test, "red").await;
        assert_eq!(prod.call().await, Ok("blue".to_owned()), "{implementation}");
    }

    async fn until_answer(client: &mut GrpcPeer, name: &str) {
        let edited = Instant::now();
        while client.call().await.expect("no call is lost") != name {
            assert!(edited.elapsed() < SOON, "the calls do not move to {name}");
        }
    }
}

/// Several Envoys on one server; everything ends when dropped.
#[derive(Debug)]
struct Fleet {
    members: Vec<Member>,
    folder: Folder,
    server: Server,
    _turns: SemaphorePermit<'static>,
}

impl Fleet {
    /// A server of the files that `fill` writes; Envoys join later. `None` if Envoy is not
    /// installed.
    async fn of(fill: impl FnOnce(&mut Folder)) -> Option<Self> {
        peers::find(peers::ENVOY)?;
        let turns = every_turn().await;
        let mut folder = Folder::new();
        fill(&mut folder);
        let server = Server::start(folder.path()).await;
        Some(Self { members: Vec::new(), folder, server, _turns: turns })
    }

    /// Starts one more Envoy with this node metadata.
    async fn join(&mut self, name: &'static str, mode: Mode, metadata: &Value) {
        let scratch = Folder::new();
        let envoy = Envoy::start_as(scratch.path(), mode, self.server.port, metadata).await;
        let envoy = envoy.expect("it was found before");
        let port = envoy.port("web").await;
        self.members.push(Member { name, mode, envoy, port, _scratch: scratch });
    }
}

/// One Envoy of a fleet.
#[derive(Debug)]
struct Member {
    name: &'static str,
    mode: Mode,
    envoy: Envoy,
    /// The port of the listener `web`.
    port: u16,
    _scratch: Folder,
}

impl Member {
    /// Its answer to a request.
    async fn ask(&self) -> String {
        match http::get(self.port, "/hello").await {
            Ok(answer) if answer.status == 200 => answer.body,
            other => format!("{other:?}"),
        }
    }

    async fn until_answer(&self, upstream: &str) {
        let what = format!("{} over {} is answered by {upstream}", self.name, self.mode);
        until(&what, SOON, async || (self.ask().await == upstream).then_some(())).await;
    }

    /// How many responses with the route configuration it has accepted.
    async fn rds_responses(&self) -> u64 {
        rds_responses(&self.envoy).await
    }

    async fn until_rds_responses(&self, count: u64) {
        let what = format!("{} over {} has {count} RDS responses", self.name, self.mode);
        until(&what, SOON, async || (self.rds_responses().await >= count).then_some(())).await;
    }
}

async fn rds_responses(envoy: &Envoy) -> u64 {
    envoy.stats().await.get("http.web.rds.routes.update_success")
}

/// The metadata of a node, with many keys that the server does not need, as in real deployments.
fn metadata(env: &str, version: Option<&str>) -> Value {
    let random = RandomState::new();
    let mut metadata = json!({"env": env});
    if let Some(version) = version {
        metadata["version"] = version.into();
    }
    for number in 0..20 {
        metadata[format!("pod-name-{number}")] = format!("{:016x}", random.hash_one(number)).into();
    }
    metadata
}

/// Replaces the whole folder by one rename. `variants` are constraints, each with its cluster.
fn swap_routes(folder: &mut Folder, red: &Upstream, blue: &Upstream, variants: &[(&str, &str)]) {
    let variants: Vec<Value> = variants
        .iter()
        .map(|(constraints, cluster)| when(constraints, routes("routes", &[("/", cluster)])))
        .collect();
    let mut files = shared(red, blue);
    files.push(("routes.json", variants));
    folder.swap(&files);
}

fn write_shared(folder: &Folder, red: &Upstream, blue: &Upstream) {
    for (name, resources) in shared(red, blue) {
        folder.write(name, &resources);
    }
}

/// The resources that are the same for all clients: the listener, and two clusters for each
/// upstream.
fn shared(red: &Upstream, blue: &Upstream) -> Vec<(&'static str, Vec<Value>)> {
    let clusters = [("red", red), ("red-too", red), ("blue", blue), ("blue-too", blue)];
    vec![
        // With ADS, a config source names the stream and not its protocol.
        ("listener.json", vec![listener(SOTW, "web", "routes")]),
        ("clusters.json", clusters.iter().map(|(name, _)| cluster(SOTW, name)).collect()),
        ("endpoints.json", clusters.iter().map(|(name, it)| endpoints(name, it.port)).collect()),
    ]
}

const SOTW: Mode = Mode::ADS[0];
const DELTA: Mode = Mode::ADS[1];

/// All variants of a name list the same keys (T12); this lists `version` and does not restrict it.
const ANY_VERSION_BUT_PROD: &str = "env!=prod,version || env!=prod,!version";
