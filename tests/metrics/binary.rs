//! What `xds serve` and `xds proxy` export, against the document that tells of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

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

/// The names of the document's table, with their types and labels.
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
    // Nobody listens there, so that a failure is counted.
    let nobody = "127.0.0.1:1";
    let proxy = Process::start(&["proxy", "--upstream", nobody, "--upstream", &upstream]);
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
    let exported: BTreeMap<_, _> = seen
        .families
        .iter()
        .map(|(name, kind)| {
            let name = if kind == "counter" { format!("{name}_total") } else { name.clone() };
            (name, kind.clone())
        })
        .collect();
    let in_table = documented.iter().map(|(name, (kind, _))| (name.clone(), kind.clone())).collect();
    assert_eq!(exported, in_table);
    for (name, (_, labels)) in &documented {
        assert_eq!(seen.labels_of(name), *labels, "{name}");
    }
}

#[tokio::test]
async fn the_server_of_a_folder_exports_what_is_its_own() {
    let served = Process::start(&["serve", "examples/variants"]);
    let seen = scrape(served.metrics).await;
    assert!(seen.value(r#"xds_cache_resources{type="envoy.config.cluster.v3.Cluster"}"#) > 0.0);
    let names = documented();
    for family in seen.families.keys() {
        let is_told = names.contains_key(family) || names.contains_key(&format!("{family}_total"));
        assert!(is_told && (family.starts_with("xds_server_") || !family.contains("proxy")), "{family}");
    }
}
