//! Compares the metrics of `xds serve` and `xds proxy` with docs/metrics.md.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use rcgen::{Certificate, CertificateParams, KeyPair};

use super::*;

/// A process, killed at its end.
struct Process {
    child: Child,
    address: SocketAddr,
    metrics: SocketAddr,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("RUST_LOG");
        command.args(arguments).args(["--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut after = |start: &str| -> SocketAddr {
            let line = lines.find_map(|line| line.strip_prefix(start).map(str::to_owned)).unwrap();
            line.trim_end_matches('/').parse().unwrap()
        };
        let (address, metrics) = (after("listening on "), after("admin page on http://"));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, metrics }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A folder with a server certificate, removed at the end.
struct Secrets(PathBuf, Certificate);

impl Secrets {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xds-metrics-{test}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("config")).unwrap();
        let (key, params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        let secrets = Self(folder, params.self_signed(&key).unwrap());
        secrets.write("server.pem", &secrets.1.pem());
        secrets.write("server.key", &key.serialize_pem());
        secrets
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
    }

    fn write(&self, file: &str, content: &str) {
        // By a rename, so that nobody reads a part.
        let new = self.0.join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, self.0.join(file)).unwrap();
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The names in the table of the document, with their types and labels.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let rows = include_str!("../../docs/metrics.md").lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").filter(|label| !label.is_empty()).map(str::to_owned);
        (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels.collect()))
    };
    rows.map(row).collect()
}

#[tokio::test]
async fn the_document_has_each_metric_that_is_exported_and_no_other() {
    let origin = Process::start(&["serve", "examples/variants"]);
    let upstream = origin.address.to_string();
    // Nothing listens there, so a failure is counted.
    let nobody = "127.0.0.1:1";
    let secrets = Secrets::new("document");
    let file = secrets.path("cache");
    let arguments = ["proxy", "--upstream", nobody, "--upstream", &upstream, "--cache-file", &file];
    let proxy = Process::start(&arguments);
    let secured = Process::start(&[
        "serve",
        "examples/variants",
        "--listen-cert",
        &secrets.path("server.pem"),
        "--listen-key",
        &secrets.path("server.key"),
        "--label",
        "v1",
        "--rollout",
        "2 clients",
        "--rollout-state",
        &secrets.path("rollout"),
    ]);
    let store = secrets.path("store");
    let init = Command::new(env!("CARGO_BIN_EXE_xds")).args(["store", "init", &store]).status().unwrap();
    assert!(init.success());
    let backups = secrets.path("backups");
    let stored = Process::start(&[
        "serve",
        "--store",
        &store,
        "--backup-dir",
        &backups,
        "--peer",
        "http://127.0.0.1:1",
        "--schemas",
        "examples/migrations/new-names/schemas.yaml",
        "examples/variants",
    ]);
    let mut client = Client::new(proxy.address, "n").await;
    client.ask(CLUSTER, &["*"]).await;
    let first = client.receive().await.unwrap();
    client.answer(&first, None).await;
    let clusters = r#"{type="envoy.config.cluster.v3.Cluster"}"#;
    let (acks, propagated) =
        (format!("xds_server_acks_total{clusters}"), format!("xds_propagation_seconds_count{clusters}"));
    let seen =
        until(proxy.metrics, "the ACK", |seen| seen.value(&acks) == 1.0 && seen.value(&propagated) > 0.0)
            .await;
    let lookups = |result: &str| seen.value(&format!("xds_proxy_lookups_total{{result=\"{result}\"}}"));
    assert_eq!((lookups("hit"), lookups("miss")), (0.0, 1.0));
    let health = r#"route="shared",type="envoy.config.cluster.v3.Cluster",state="synced""#;
    assert_eq!(seen.value(&format!("xds_proxy_upstream_types{{{health}}}")), 1.0);
    let server = format!("route=\"shared\",server=\"{upstream}\",state=\"connected\"");
    assert_eq!(seen.value(&format!("xds_proxy_upstream_connections{{{server}}}")), 1.0);

    let documented = documented();
    // Metrics that a proxy does not have: those of a folder, and here of a certificate.
    secrets.write("server.pem", "no certificate");
    let refused = r#"xds_troubles{kind="certificates_refused",severity="error"}"#;
    let is_complete =
        |seen: &Scrape| seen.families.contains_key("xds_source_warnings") && seen.value(refused) == 1.0;
    let served = until(secured.metrics, "a trouble and the first check for warnings", is_complete).await;
    let has_backup = |seen: &Scrape| seen.families.contains_key("xds_store_last_backup_timestamp_seconds");
    let stored = until(stored.metrics, "a backup", has_backup).await;
    assert_eq!(stored.value(r#"xds_store_commits_total{outcome="committed",reason=""}"#), 1.0);
    assert_eq!(stored.value("xds_store_accepts_commits"), 1.0);
    let families = || seen.families.iter().chain(&served.families).chain(&stored.families);
    let exported: BTreeMap<_, _> = families()
        .map(|(name, kind)| {
            let name = if kind == "counter" { format!("{name}_total") } else { name.clone() };
            (name, kind.clone())
        })
        .collect();
    let in_table = documented.iter().map(|(name, (kind, _))| (name.clone(), kind.clone())).collect();
    assert_eq!(exported, in_table);
    // It needs a node of another region: the tests of nodes have one.
    let has_sample = |name: &&String| *name != "xds_store_region_age_seconds";
    for name in documented.keys().filter(has_sample) {
        let (_, labels) = &documented[name];
        let found = [&seen, &served, &stored].map(|seen| seen.labels_of(name)).into_iter().flatten();
        assert_eq!(found.collect::<BTreeSet<_>>(), *labels, "{name}");
    }
}

#[tokio::test]
async fn the_server_of_a_folder_exports_what_is_its_own() {
    let served = Process::start(&["serve", "examples/variants"]);
    let seen = scrape(served.metrics).await;
    assert!(seen.value(r#"xds_cache_resources{type="envoy.config.cluster.v3.Cluster"}"#) > 0.0);
    assert_eq!(seen.value(&format!("xds_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"))), 1.0);
    let alone = Process::start(&["proxy", "--upstream", "127.0.0.1:1"]);
    let not_ready = scrape(alone.metrics).await;
    assert!(not_ready.families.contains_key("xds_ready"));
    assert_eq!([&seen, &not_ready].map(|seen| seen.value("xds_ready")), [1.0, 0.0]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((0.0..3600.0).contains(&(now - seen.value("process_start_time_seconds"))), "{seen:#?}");
    if cfg!(target_os = "linux") {
        assert!(seen.value("process_resident_memory_bytes") > 1e6, "{seen:#?}");
        assert!(seen.value("process_threads") >= 1.0 && seen.value("process_open_fds") > 3.0, "{seen:#?}");
    }
    let names = documented();
    for family in seen.families.keys() {
        let is_told = names.contains_key(family) || names.contains_key(&format!("{family}_total"));
        assert!(is_told && (family.starts_with("xds_server_") || !family.contains("proxy")), "{family}");
    }
}

#[tokio::test]
async fn a_source_whose_newest_content_was_refused_is_told_and_when_the_certificate_expires() {
    let secrets = Secrets::new("sources");
    let cluster = "'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: a\n";
    let policy = "rules: [{client: '*', read: [{}]}]";
    secrets.write("config/a.yaml", cluster);
    secrets.write("policy.yaml", policy);
    secrets.write("ca.pem", &secrets.1.pem());
    let pem = std::fs::read_to_string(secrets.path("server.pem")).unwrap();
    let files =
        ["config", "server.pem", "server.key", "ca.pem", "policy.yaml"].map(|file| secrets.path(file));
    let [folder, cert, key, ca, policy_file] = &files;
    let options =
        ["--listen-cert", cert, "--listen-key", key, "--listen-client-ca", ca, "--policy", policy_file];
    let served = Process::start(&[&["serve", folder], &options[..]].concat());
    let seen = scrape(served.metrics).await;
    let expires = seen.value("xds_server_certificate_expiration_timestamp_seconds");
    // The expiry that `rcgen` uses for "never".
    assert_eq!(expires, 67_090_118_400.0);
    let of = |source: &str| {
        let (labels, source) = (format!("{{source=\"{source}\"}}"), source.to_owned());
        let reloads =
            |outcome: &str| format!("xds_source_reloads_total{{source=\"{source}\",outcome=\"{outcome}\"}}");
        let metrics =
            [format!("xds_source_last_reload_successful{labels}"), reloads("changed"), reloads("refused")];
        let good_at = format!("xds_source_last_reload_success_timestamp_seconds{labels}");
        (move |seen: &Scrape| metrics.each_ref().map(|metric| seen.value(metric)), good_at)
    };
    for (source, file, wrong, right) in [
        ("folder", "config/a.yaml", "nme: a", cluster),
        ("certificates", "server.pem", "no certificate", &*pem),
        ("policy", "policy.yaml", "rules: []", policy),
    ] {
        let (fares, good_at) = of(source);
        let before = scrape(served.metrics).await;
        assert_eq!(fares(&before), [1.0, 1.0, 0.0], "{source}");
        secrets.write(file, wrong);
        let refused = until(served.metrics, source, |seen| fares(seen) == [0.0, 1.0, 1.0]).await;
        assert!(
            refused.value(&good_at) >= before.value(&good_at) && before.value(&good_at) > 1.7e9,
            "{source}"
        );
        // The old content again: nothing changes for clients, and the newest content is in use.
        secrets.write(file, right);
        until(served.metrics, source, |seen| fares(seen) == [1.0, 1.0, 1.0]).await;
    }
    secrets.write("config/a.yaml", &cluster.replace("name: a", "name: b"));
    let (fares, _) = of("folder");
    until(served.metrics, "another folder", |seen| fares(seen) == [1.0, 2.0, 1.0]).await;
}

#[tokio::test]
async fn who_asks_a_proxy_for_types_that_there_are_not_makes_no_labels_and_no_rows_of_them() {
    let origin = Process::start(&["serve", "examples/variants"]);
    let proxy = Process::start(&["proxy", "--upstream", &origin.address.to_string()]);
    let mut client = Client::new(proxy.address, "n").await;
    client.ask("example.com/acme.Invented", &["x"]).await;
    assert!(client.receive().await.unwrap().resources.is_empty());
    client.ask(CLUSTER, &["*"]).await;
    assert!(!client.receive().await.unwrap().resources.is_empty());
    let seen = scrape(proxy.metrics).await;
    let labels = seen.labels("type");
    assert!(!labels.iter().any(|label| label.contains("Invented")), "{labels:?}");
    assert_eq!(seen.value(r##"xds_cache_subscriptions{type="#other"}"##), 1.0);
    let types = scrape::get(proxy.metrics, "/api/types").await;
    assert!(types.contains("envoy.config.cluster.v3.Cluster") && !types.contains("Invented"), "{types}");
}
