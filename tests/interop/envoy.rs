//! A real Envoy, its bootstrap and its admin page.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use serde_json::Value;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::http;
use crate::mode::{Mode, Streams};
use crate::peers;
use crate::wait::{SOON, until};

/// A running Envoy; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct Envoy {
    admin: u16,
    log: PathBuf,
    _child: Child,
}

impl Envoy {
    /// Starts Envoy with the server at `xds_port`, and waits until it is ready: it then has an
    /// answer for each cluster and listener. `None` if Envoy is not installed.
    pub(crate) async fn start(scratch: &Path, mode: Mode, xds_port: u16) -> Option<Self> {
        Self::start_as(scratch, mode, xds_port, &json!({})).await
    }

    /// The same with this node metadata.
    pub(crate) async fn start_as(
        scratch: &Path,
        mode: Mode,
        xds_port: u16,
        metadata: &Value,
    ) -> Option<Self> {
        let envoy = Self::launch_as(scratch, mode, xds_port, metadata).await?;
        envoy.until_ready().await;
        Some(envoy)
    }

    /// The same without waiting until it is ready.
    pub(crate) async fn launch_as(
        scratch: &Path,
        mode: Mode,
        xds_port: u16,
        metadata: &Value,
    ) -> Option<Self> {
        let bootstrap = bootstrap(mode, xds_port, metadata);
        let text = serde_json::to_string_pretty(&bootstrap).expect("JSON values");
        Self::launch(scratch, &text, "bootstrap.json", DRAIN).await
    }

    /// The same with the text of a bootstrap. The extension of `file_name` is its format.
    pub(crate) async fn start_with(scratch: &Path, text: &str, file_name: &str) -> Option<Self> {
        Self::start_patient(scratch, text, file_name, DRAIN).await
    }

    /// The same. Connections of a changed or removed listener are closed after `drain` seconds.
    pub(crate) async fn start_patient(
        scratch: &Path,
        text: &str,
        file_name: &str,
        drain: u32,
    ) -> Option<Self> {
        let envoy = Self::launch(scratch, text, file_name, drain).await?;
        envoy.until_ready().await;
        Some(envoy)
    }

    async fn launch(scratch: &Path, text: &str, file_name: &str, drain: u32) -> Option<Self> {
        let binary = peers::find(peers::ENVOY)?;
        let bootstrap = scratch.join(file_name);
        fs::write(&bootstrap, text).expect("the temporary directory is writable");
        let (admin_file, log) = (scratch.join("admin"), scratch.join("envoy.log"));
        let child = Command::new(binary)
            .arg("--config-path")
            .arg(bootstrap)
            .arg("--admin-address-path")
            .arg(&admin_file)
            .arg("--log-path")
            .arg(&log)
            .args(["--concurrency", "1", "--disable-hot-restart", "--drain-time-s", &drain.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("Envoy starts");
        let admin = until("Envoy opens its admin page", SOON, async || {
            fs::read_to_string(&admin_file).ok()?.trim().rsplit_once(':')?.1.parse().ok()
        });
        Some(Self { admin: admin.await.0, log, _child: child })
    }

    async fn until_ready(&self) {
        let ready = async || self.is_ready().await.then_some(());
        until("Envoy is ready", SOON, ready).await;
    }

    /// Whether it has an answer for each cluster and listener, and for all resources that these
    /// need.
    pub(crate) async fn is_ready(&self) -> bool {
        http::get(self.admin, "/ready").await.is_ok_and(|it| it.status == 200)
    }

    /// The port on which the listener `name` accepts.
    pub(crate) async fn port(&self, name: &str) -> u16 {
        until(&format!("listener {name} is active"), SOON, async || self.port_now(name).await).await.0
    }

    /// The same; `None` if the listener is not active.
    pub(crate) async fn port_now(&self, name: &str) -> Option<u16> {
        let listeners = self.json("/listeners?format=json").await;
        let statuses = listeners["listener_statuses"].as_array()?;
        let ours = statuses.iter().find(|status| status["name"] == name)?;
        u16::try_from(ours["local_address"]["socket_address"]["port_value"].as_u64()?).ok()
    }

    /// The DNS names in all certificates in use.
    pub(crate) async fn certificate_names(&self) -> Vec<String> {
        let certificates = self.json("/certs").await;
        let all = certificates["certificates"].as_array().cloned().unwrap_or_default();
        let chains = all.iter().filter_map(|of| of["cert_chain"].as_array()).flatten();
        let names = chains.filter_map(|chain| chain["subject_alt_names"].as_array()).flatten();
        names.filter_map(|name| name["dns"].as_str()).map(ToOwned::to_owned).collect()
    }

    /// All counters and gauges.
    pub(crate) async fn stats(&self) -> Stats {
        let answer = http::get(self.admin, "/stats").await.expect("the admin page answers");
        let values = answer.body.lines().filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Stats(values.collect())
    }

    /// The names of the listeners that are active.
    pub(crate) async fn listeners(&self) -> Vec<String> {
        let listeners = self.json("/listeners?format=json").await;
        names(&listeners["listener_statuses"])
    }

    /// The names of the clusters that are in use, with the ports of their hosts; the static one is
    /// left out.
    pub(crate) async fn clusters(&self) -> BTreeMap<String, Vec<u64>> {
        let clusters = self.json("/clusters?format=json").await;
        let statuses = clusters["cluster_statuses"].as_array().cloned().unwrap_or_default();
        let ports = |status: &Value| {
            let hosts = status["host_statuses"].as_array().cloned().unwrap_or_default();
            hosts.iter().filter_map(|host| host["address"]["socket_address"]["port_value"].as_u64()).collect()
        };
        let named = statuses.iter().map(|it| (it["name"].as_str().unwrap_or_default().to_owned(), ports(it)));
        named.filter(|(name, _)| name != "xds").collect()
    }

    /// The open connections to each port of the cluster `name`.
    pub(crate) async fn connections(&self, name: &str) -> BTreeMap<u16, u64> {
        let clusters = self.json("/clusters?format=json").await;
        let statuses = clusters["cluster_statuses"].as_array().cloned().unwrap_or_default();
        let ours = statuses.iter().find(|status| status["name"] == name);
        let hosts = ours.and_then(|ours| ours["host_statuses"].as_array().cloned()).unwrap_or_default();
        let open = |host: &Value| {
            let port = host["address"]["socket_address"]["port_value"].as_u64()?;
            let stats = host["stats"].as_array()?;
            let active = stats.iter().find(|stat| stat["name"] == "cx_active")?;
            // A number of 64 bits is a text in JSON.
            let count = active["value"].as_str().map_or(Some(0), |count| count.parse().ok())?;
            Some((u16::try_from(port).ok()?, count))
        };
        hosts.iter().filter_map(open).collect()
    }

    /// The configuration of the active cluster `name`.
    pub(crate) async fn active_cluster(&self, name: &str) -> Option<Value> {
        let dump = self.json("/config_dump?resource=dynamic_active_clusters").await;
        let clusters = dump["configs"].as_array()?;
        clusters.iter().map(|it| &it["cluster"]).find(|it| it["name"] == name).cloned()
    }

    /// The route configurations that came over RDS.
    pub(crate) async fn dynamic_routes(&self) -> Vec<Value> {
        let dump = self.json("/config_dump?resource=dynamic_route_configs").await;
        dump["configs"].as_array().cloned().unwrap_or_default()
    }

    /// The value of `key` in the runtime.
    pub(crate) async fn runtime(&self, key: &str) -> Option<String> {
        let runtime = self.json("/runtime").await;
        runtime["entries"][key]["final_value"].as_str().map(str::to_owned)
    }

    /// The whole configuration as text, including endpoints.
    pub(crate) async fn config_dump(&self) -> String {
        http::get(self.admin, "/config_dump?include_eds").await.expect("the admin page answers").body
    }

    async fn json(&self, path: &str) -> Value {
        let answer = http::get(self.admin, path).await.expect("the admin page answers");
        serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.body))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LINES_OF_LOG)..];
            eprintln!("--- the last that Envoy logged:\n{}", last.join("\n"));
        }
    }
}

/// Envoy's counters and gauges at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Stats(BTreeMap<String, u64>);

impl Stats {
    /// The value of `name`; a statistic that Envoy has not made yet is zero.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Those whose name ends in one of `suffixes`.
    pub(crate) fn ending(&self, suffixes: &[&str]) -> BTreeMap<String, u64> {
        let wanted = |name: &String| suffixes.iter().any(|suffix| name.ends_with(suffix));
        self.0.iter().filter(|(name, _)| wanted(name)).map(|(name, value)| (name.clone(), *value)).collect()
    }
}

/// Envoy's counters of configuration changes.
pub(crate) const CHANGES: &[&str] = &[
    "cluster_manager.cluster_added",
    "cluster_manager.cluster_modified",
    "cluster_manager.cluster_removed",
    "listener_manager.listener_added",
    "listener_manager.listener_modified",
    "listener_manager.listener_removed",
    "rds.routes.config_reload",
];

/// Envoy's counters of accepted responses.
pub(crate) const RESPONSES: &[&str] = &[".update_success"];

fn names(list: &Value) -> Vec<String> {
    let items = list.as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
}

/// A bootstrap that takes all listeners and clusters from the server at `xds_port`.
pub(crate) fn bootstrap(mode: Mode, xds_port: u16, metadata: &Value) -> Value {
    let local = |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let mut dynamic = json!({"cds_config": mode.config_source(), "lds_config": mode.config_source()});
    if mode.streams == Streams::Ads {
        dynamic["ads_config"] = mode.api_config_source();
    }
    json!({
        "node": {"id": "interop", "cluster": "tests", "metadata": metadata},
        "admin": {"address": local(0)},
        "dynamic_resources": dynamic,
        "static_resources": {"clusters": [{
            "name": "xds",
            "type": "STATIC",
            "connect_timeout": "1s",
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }},
            "load_assignment": {"cluster_name": "xds", "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": local(xds_port)}}]},
            ]},
        }]},
    })
}

/// Short, as a removed listener stays in the configuration until it has drained.
const DRAIN: u32 = 1;

const LINES_OF_LOG: usize = 40;
