//! The migrations of `examples/migrations`, with servers of one store in a real etcd, and real Envoys
//! under load.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::peers;
use crate::recorder::Recorder;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::shared_store::{SharedStore, succeeds};
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

const OLD: &str = "shop-web";
const NEW: &str = "xdstp://shop/envoy.config.cluster.v3.Cluster/shop-web";

/// Clusters get `xdstp://` names, their plain names back, and the new ones again. In F0 to F3 an old server,
/// which knows only the old names, is side by side with a new one; then it is upgraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sv18_sv27_sv29_sv30_clusters_get_new_names_the_old_ones_and_the_new_ones_and_no_request_is_lost() {
    if [peers::ENVOY, peers::ETCD].into_iter().any(|program| peers::find(program).is_none()) {
        return;
    }
    let _turns = every_turn().await;
    for (mode, references) in
        Mode::ADS.into_iter().flat_map(|mode| [References::ByUser, References::ByPlan].map(|by| (mode, by)))
    {
        eprintln!("--- {mode}, references rewritten {references:?}");
        let mut migrating = Migrating::start(mode, references).await;
        let loads: Vec<_> = migrating
            .envoys
            .iter()
            .flat_map(|(_, port)| {
                [Connections::New, Connections::Kept].map(|of| Load::start(*port, "/v1", of))
            })
            .collect();
        migrating.forward().await;
        migrating.back().await;
        migrating.downgrade().await;
        migrating.forward().await;
        for load in loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
        for (recorder, of) in migrating.recorders.iter().zip(["the new server", "the old server"]) {
            recorder.assert_nothing_unchanged(&format!("{mode}: {of}"));
        }
        for (envoy, _) in &migrating.envoys {
            let rejected = envoy.stats().await.ending(&[".update_rejected"]);
            assert!(rejected.values().all(|count| *count == 0), "{mode}: {rejected:?}");
        }
    }
}

/// Who puts the new names of clusters into routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum References {
    ByUser,
    /// `rewrite_references`.
    ByPlan,
}

/// All programs of the test. Dropping this ends them.
#[derive(Debug)]
struct Migrating {
    mode: Mode,
    references: References,
    /// The new one, and the old one, or what it was upgraded to.
    servers: [Server; 2],
    /// In front of the two servers.
    recorders: [Recorder; 2],
    /// The clients of the two servers, each with the port of its listener.
    envoys: Vec<(Envoy, u16)>,
    /// The connection timeout of the cluster, which each change makes another one.
    timeout: u32,
    _scratch: [Folder; 2],
    _upstream: Upstream,
    store: SharedStore,
}

impl Migrating {
    async fn start(mode: Mode, references: References) -> Self {
        let store = SharedStore::start().await;
        let example =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/migrations/new-names/schemas.yaml");
        let mut plan = fs::read_to_string(example).expect("the example is there");
        if references == References::ByPlan {
            plan.push_str("  rewrite_references: true\n");
        }
        let schemas = store.path("schemas.yaml");
        fs::write(&schemas, plan).expect("the temporary directory is writable");
        let options = ["--schemas", &schemas];
        let new = store.server(&options).await;
        let old = store.server(&[&options[..], &["--schema-ceiling", "CDS=1"]].concat()).await;
        let servers = [new, old];
        let upstream = Upstream::start("red").await;
        let resources = [
            listener(mode, "web", "routes"),
            routes("routes", &[("/", OLD)]),
            cluster(mode, OLD),
            endpoints(OLD, upstream.port),
        ];
        store.commit(&servers[0], &resources).await;
        let scratch = [Folder::new(), Folder::new()];
        let mut envoys = Vec::new();
        let recorders = [Recorder::before(servers[0].port).await, Recorder::before(servers[1].port).await];
        for (scratch, recorder) in scratch.iter().zip(&recorders) {
            let envoy = Envoy::start(scratch.path(), mode, recorder.port).await.expect("it was found before");
            let port = envoy.port("web").await;
            envoys.push((envoy, port));
        }
        Self {
            mode,
            references,
            servers,
            recorders,
            envoys,
            timeout: 1,
            _scratch: scratch,
            _upstream: upstream,
            store,
        }
    }

    /// From F0 to F5, with an old server to F3.
    async fn forward(&mut self) {
        for phase in 1..=3 {
            self.go("next", phase).await;
            // A write reaches the clients of both servers. Once clients see the new names, the old server does
            // not write what it cannot write whole (row W9).
            self.change_cluster(0, OLD).await;
            match phase {
                1 => self.change_cluster(1, OLD).await,
                _ => self.refused_by_the_old_server().await,
            }
        }
        self.upgrade().await;
        self.go("next", 4).await;
        self.change_cluster(0, NEW).await;
        if self.references == References::ByUser {
            // The step that ends the old names waits until no route has them.
            self.refused("next").await;
            self.put_routes(NEW).await;
        }
        self.until_routes(NEW).await;
        self.go("next", 5).await;
        self.until_clusters(&[NEW]).await;
        self.change_cluster(1, NEW).await;
    }

    /// From F5 to F0, with what was written meanwhile.
    async fn back(&mut self) {
        for phase in [4, 3, 2] {
            self.go("back", phase).await;
        }
        if self.references == References::ByUser {
            self.refused("back").await;
            self.put_routes(OLD).await;
        }
        self.until_routes(OLD).await;
        for phase in [1, 0] {
            self.go("back", phase).await;
        }
        self.until_clusters(&[OLD]).await;
        self.change_cluster(1, OLD).await;
    }

    /// `xds store migrate` by the new server.
    async fn migrate(&self, step: &str) -> Output {
        self.store.run(&self.servers[0], &["store", "migrate", step, "new-names"]).await
    }

    async fn go(&self, step: &str, phase: u32) {
        succeeds(&self.migrate(step).await);
        eprintln!("{}: F{phase}", self.mode);
    }

    /// The step waits for something that others have to do.
    async fn refused(&self, step: &str) {
        let output = self.migrate(step).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(4) && error.contains("still name"), "{error}");
    }

    /// Changes the cluster by one of its names through a server. Both Envoys get the change in the form that
    /// they have.
    async fn change_cluster(&mut self, server: usize, name: &str) {
        self.timeout += 1;
        let timeout = format!("{}s", self.timeout);
        let mut changed = cluster(self.mode, name);
        changed["connect_timeout"] = Value::from(&*timeout);
        // X16.
        changed["eds_cluster_config"]["service_name"] = OLD.into();
        self.store.commit(&self.servers[server], &[changed]).await;
        for (envoy, _) in &self.envoys {
            let what = format!("{}: the change through server {server} arrives", self.mode);
            let has_it = async || {
                let cluster = match envoy.active_cluster(name).await {
                    Some(cluster) => cluster,
                    None => envoy.active_cluster(if name == OLD { NEW } else { OLD }).await?,
                };
                (cluster["connect_timeout"] == *timeout).then_some(())
            };
            until(&what, SOON, has_it).await;
        }
    }

    async fn refused_by_the_old_server(&self) {
        let output = self.store.put(&self.servers[1], &[cluster(self.mode, OLD)], &[]).await;
        assert_eq!(output.status.code(), Some(4));
    }

    async fn put_routes(&self, name: &str) {
        self.store.commit(&self.servers[0], &[routes("routes", &[("/", name)])]).await;
    }

    /// Waits until the routes of both Envoys name this cluster.
    async fn until_routes(&self, name: &str) {
        for (envoy, _) in &self.envoys {
            let named = async || {
                let routes = envoy.dynamic_routes().await;
                routes.iter().any(|routes| routes.to_string().contains(&format!("{name:?}"))).then_some(())
            };
            until(&format!("{}: the routes name {name}", self.mode), SOON, named).await;
        }
    }

    /// Waits until both Envoys have these clusters alone.
    async fn until_clusters(&self, names: &[&str]) {
        for (envoy, _) in &self.envoys {
            let alone = async || envoy.clusters().await.keys().eq(names.iter()).then_some(());
            until(&format!("{}: the clusters are {names:?}", self.mode), SOON, alone).await;
        }
    }

    /// The old server ends, and a new one starts in its place.
    async fn upgrade(&mut self) {
        assert!(self.servers[1].terminate().await.success());
        self.servers[1].restart_without("--schema-ceiling").await;
    }

    /// And an old one again.
    async fn downgrade(&mut self) {
        assert!(self.servers[1].terminate().await.success());
        self.servers[1].restart_with("--schema-ceiling", "CDS=1").await;
    }
}
