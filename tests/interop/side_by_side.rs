//! A new server and an old one of one store in a real etcd. Each has an Envoy under load, and a recorder
//! between them.

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

/// All programs of a test. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct SideBySide {
    pub(crate) mode: Mode,
    /// The new one, and the old one, or what it was upgraded to.
    pub(crate) servers: [Server; 2],
    /// In front of the servers.
    pub(crate) recorders: [Recorder; 2],
    pub(crate) envoys: Vec<Envoy>,
    loads: Vec<Load>,
    /// The connection timeout of the cluster, which each change makes another one.
    timeout: u32,
    _scratch: [Folder; 2],
    _upstream: Upstream,
    pub(crate) store: SharedStore,
}

/// Options that make a server an old one.
pub(crate) type Ceiling<'a> = [&'a str; 2];

impl SideBySide {
    /// Whether the foreign programs are installed.
    pub(crate) fn is_possible() -> bool {
        [peers::ENVOY, peers::ETCD].into_iter().all(|program| peers::find(program).is_some())
    }

    /// Requests go to a cluster of this name.
    pub(crate) async fn start(
        mode: Mode,
        name: &str,
        store: SharedStore,
        options: &[&str],
        ceilings: &[Ceiling<'_>],
    ) -> Self {
        let servers =
            [store.server(options).await, store.server(&[options, ceilings.as_flattened()].concat()).await];
        let upstream = Upstream::start("red").await;
        let resources = [
            listener(mode, "web", "routes"),
            routes("routes", &[("/", name)]),
            cluster(mode, name),
            endpoints(name, upstream.port),
        ];
        store.commit(&servers[0], &resources).await;
        let scratch = [Folder::new(), Folder::new()];
        let recorders = [Recorder::before(servers[0].port).await, Recorder::before(servers[1].port).await];
        let (mut envoys, mut loads) = (Vec::new(), Vec::new());
        for (scratch, recorder) in scratch.iter().zip(&recorders) {
            let envoy = Envoy::start(scratch.path(), mode, recorder.port).await.expect("it was found before");
            let port = envoy.port("web").await;
            loads.extend([Connections::New, Connections::Kept].map(|of| Load::start(port, "/v1", of)));
            envoys.push(envoy);
        }
        let (timeout, _scratch, _upstream) = (1, scratch, upstream);
        Self { mode, servers, recorders, envoys, loads, timeout, _scratch, _upstream, store }
    }

    /// `xds store migrate` by the new server.
    pub(crate) async fn migrate(&self, plan: &str, step: &str) -> Output {
        self.store.run(&self.servers[0], &["store", "migrate", step, plan]).await
    }

    pub(crate) async fn go(&self, plan: &str, step: &str, phase: u32) {
        succeeds(&self.migrate(plan, step).await);
        eprintln!("{}: {plan}: F{phase}", self.mode);
    }

    /// The step waits for something that others have to do.
    pub(crate) async fn waits(&self, plan: &str, step: &str, reason: &str) {
        let output = self.migrate(plan, step).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(4) && error.contains(reason), "{error}");
    }

    /// Changes the cluster through a server, by one of the names that it may have. Both Envoys get the change.
    pub(crate) async fn change_cluster(&mut self, server: usize, name: &str, service: &str, names: &[&str]) {
        self.timeout += 1;
        let timeout = format!("{}s", self.timeout);
        let mut changed = cluster(self.mode, name);
        changed["connect_timeout"] = Value::from(&*timeout);
        changed["eds_cluster_config"]["service_name"] = service.into();
        self.store.commit(&self.servers[server], &[changed]).await;
        for envoy in &self.envoys {
            let what = format!("{}: the change through server {server} arrives", self.mode);
            let has_it = async || {
                for name in names {
                    if let Some(cluster) = envoy.active_cluster(name).await {
                        return (cluster["connect_timeout"] == *timeout).then_some(());
                    }
                }
                None
            };
            until(&what, SOON, has_it).await;
        }
    }

    /// The old server ends, and a new one starts in its place.
    pub(crate) async fn upgrade(&mut self, [option, value]: Ceiling<'_>) {
        assert!(self.servers[1].terminate().await.success());
        self.servers[1].restart_without(option, value).await;
    }

    /// And an old one again.
    pub(crate) async fn downgrade(&mut self, [option, value]: Ceiling<'_>) {
        assert!(self.servers[1].terminate().await.success());
        self.servers[1].restart_with(option, value).await;
    }

    /// No request failed, no client was sent anything unchanged, and Envoy took all that it was sent.
    pub(crate) async fn finish(self) {
        let mode = self.mode;
        for load in self.loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
        for (recorder, of) in self.recorders.iter().zip(["the new server", "the old server"]) {
            recorder.assert_nothing_unchanged(&format!("{mode}: {of}"));
        }
        for envoy in &self.envoys {
            let rejected = envoy.stats().await.ending(&[".update_rejected"]);
            assert!(rejected.values().all(|count| *count == 0), "{mode}: {rejected:?}");
        }
    }
}
