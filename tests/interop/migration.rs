//! The migration of `examples/migrations/new-names`, with an old and a new server of one store in a real
//! etcd, and real Envoys under load.

use std::fs;
use std::path::Path;

use crate::mode::Mode;
use crate::resources::{cluster, routes};
use crate::shared_store::SharedStore;
use crate::side_by_side::{Ceiling, SideBySide};
use crate::wait::{SOON, until};
use crate::world::every_turn;

const PLAN: &str = "new-names";
const OLD: &str = "shop-web";
const NEW: &str = "xdstp://shop/envoy.config.cluster.v3.Cluster/shop-web";
const CEILING: Ceiling<'static> = ["--schema-ceiling", "CDS=1"];

/// Clusters get `xdstp://` names, their plain names back, and the new ones again. In F0 to F3 an old server,
/// which knows only the old names, is side by side with a new one; then it is upgraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sv18_sv27_sv29_sv30_clusters_get_new_names_the_old_ones_and_the_new_ones_and_no_request_is_lost() {
    if !SideBySide::is_possible() {
        return;
    }
    let _turns = every_turn().await;
    for (mode, references) in
        Mode::ADS.into_iter().flat_map(|mode| [References::ByUser, References::ByPlan].map(|by| (mode, by)))
    {
        eprintln!("--- {mode}, references rewritten {references:?}");
        let mut migrating = Migrating::start(mode, references).await;
        migrating.forward().await;
        migrating.back().await;
        migrating.all.downgrade(CEILING).await;
        migrating.forward().await;
        migrating.all.finish().await;
    }
}

/// Who puts the new names of clusters into routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum References {
    ByUser,
    /// `rewrite_references`.
    ByPlan,
}

#[derive(Debug)]
struct Migrating {
    references: References,
    all: SideBySide,
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
        let all = SideBySide::start(mode, OLD, store, &["--schemas", &schemas], &[CEILING]).await;
        Self { references, all }
    }

    /// From F0 to F5, with an old server to F3.
    async fn forward(&mut self) {
        for phase in 1..=3 {
            self.all.go(PLAN, "next", phase).await;
            // A write reaches the clients of both servers. Once clients see the new names, the old server does
            // not write what it cannot write whole (row W9).
            self.change_cluster(0, OLD).await;
            match phase {
                1 => self.change_cluster(1, OLD).await,
                _ => self.refused_by_the_old_server().await,
            }
        }
        self.all.upgrade(CEILING).await;
        self.all.go(PLAN, "next", 4).await;
        self.change_cluster(0, NEW).await;
        if self.references == References::ByUser {
            // The step that ends the old names waits until no route has them.
            self.all.waits(PLAN, "next", "still name").await;
            self.put_routes(NEW).await;
        }
        self.until_routes(NEW).await;
        self.all.go(PLAN, "next", 5).await;
        self.until_clusters(&[NEW]).await;
        self.change_cluster(1, NEW).await;
    }

    /// From F5 to F0, with what was written meanwhile.
    async fn back(&mut self) {
        for phase in [4, 3, 2] {
            self.all.go(PLAN, "back", phase).await;
        }
        if self.references == References::ByUser {
            self.all.waits(PLAN, "back", "still name").await;
            self.put_routes(OLD).await;
        }
        self.until_routes(OLD).await;
        for phase in [1, 0] {
            self.all.go(PLAN, "back", phase).await;
        }
        self.until_clusters(&[OLD]).await;
        self.change_cluster(1, OLD).await;
    }

    /// Changes the cluster by one of its names through a server. Both Envoys get the change in the form that
    /// they have. X16: the endpoints keep their name.
    async fn change_cluster(&mut self, server: usize, name: &str) {
        let other = if name == OLD { NEW } else { OLD };
        self.all.change_cluster(server, name, OLD, &[name, other]).await;
    }

    async fn refused_by_the_old_server(&self) {
        let all = &self.all;
        let output = all.store.put(&all.servers[1], &[cluster(all.mode, OLD)], &[]).await;
        assert_eq!(output.status.code(), Some(4));
    }

    async fn put_routes(&self, name: &str) {
        self.all.store.commit(&self.all.servers[0], &[routes("routes", &[("/", name)])]).await;
    }

    /// Waits until the routes of both Envoys name this cluster.
    async fn until_routes(&self, name: &str) {
        for envoy in &self.all.envoys {
            let named = async || {
                let routes = envoy.dynamic_routes().await;
                routes.iter().any(|routes| routes.to_string().contains(&format!("{name:?}"))).then_some(())
            };
            until(&format!("{}: the routes name {name}", self.all.mode), SOON, named).await;
        }
    }

    /// Waits until both Envoys have these clusters alone.
    async fn until_clusters(&self, names: &[&str]) {
        for envoy in &self.all.envoys {
            let alone = async || envoy.clusters().await.keys().eq(names.iter()).then_some(());
            until(&format!("{}: the clusters are {names:?}", self.all.mode), SOON, alone).await;
        }
    }
}
