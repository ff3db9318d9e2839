//! The steps of docs/grpc.md: with each gRPC client that the page names, and with our own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use xds_client::Protocol;
use xds_client::bootstrap::Bootstrap;

use crate::calls::Calls;
use crate::folder::Folder;
use crate::follower::Follower;
use crate::grpc_peer::{GrpcPeer, Implementation};
use crate::mtls::Secured;
use crate::server::Server;
use crate::wait::{SOON, until};

#[allow(dead_code, reason = "tests/docs.rs uses the rest")]
#[path = "../docs/page.rs"]
mod page;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_client_walks_the_steps_of_the_page() {
    for implementation in Implementation::OF_PAGE {
        let Some(mut shop) = Shop::start().await else { return };
        eprintln!("--- {implementation}");
        let bootstrap = |id: &str, env: &str| shop.bootstrap(implementation, id, env);
        let start = |text: &str| GrpcPeer::client_of(implementation, "xds:///shop", text);
        let Some(prod) = start(&bootstrap("shop-client-1", "prod")) else { return };
        let canary = start(&bootstrap("shop-client-2", "canary")).expect("found before");
        let mut prod = Calls::start(implementation, prod);
        let mut canary = Calls::start(implementation, canary);
        prod.until_answer("stable").await;
        canary.until_answer("stable").await;

        // Variants by node metadata.
        shop.write("routes.yaml", 1);
        canary.until_answer("canary").await;
        prod.go_on(20).await;
        canary.finish_without_loss().await;

        // What a client has.
        let clusters = shop.of_client("shop-client-1").await;
        assert!(clusters.contains("Cluster stable"), "{implementation}: {clusters}");
        assert!(clusters.contains("ACKed"), "{implementation}: {clusters}");

        // A rejected resource: the last good one stays, and the server says why.
        if !takes_static(implementation) {
            let eds = "type: EDS\neds_cluster_config:\n  eds_config: { ads: {}, resource_api_version: V3 }\n";
            let clusters = shop.text("clusters.yaml", 0);
            assert!(clusters.contains(eds), "{clusters}");
            let folder = shop.folder.path();
            fs::write(folder.join("clusters.yaml"), clusters.replacen(eds, "type: STATIC\n", 1))
                .expect("the folder is writable");
            let rejected = async || (!shop.server.lines_with("rejected").is_empty()).then_some(());
            until(&format!("{implementation}: our server logs what is rejected"), SOON, rejected).await;
            prod.go_on(20).await;
            shop.write("clusters.yaml", 0);
        }

        // The server is away.
        shop.server.kill().await;
        prod.go_on(50).await;
        shop.server.restart().await;
        prod.go_on(20).await;
        prod.finish_without_loss().await;
    }
}

/// tonic-xds ACKs a cluster of the type STATIC, which the others reject.
fn takes_static(implementation: Implementation) -> bool {
    implementation == Implementation::Rust
}

/// Our client library, from the bootstrap of the page to the port of an endpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_walks_the_steps_of_the_page() {
    let Some(mut shop) = Shop::start().await else { return };
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        shop.write("routes.yaml", 0);
        let follow = |env: &str| {
            let text = shop.bootstrap(Implementation::Core, &format!("follower-{env}"), env);
            let bootstrap = Bootstrap::from_json(&text).expect("the bootstrap of the page");
            Follower::of(bootstrap, "shop", protocol)
        };
        let (mut prod, mut canary) = (follow("prod"), follow("canary"));
        let what = format!("{protocol:?}");
        prod.until(&what, Some(shop.stable)).await;
        canary.until(&what, Some(shop.stable)).await;
        shop.write("routes.yaml", 1);
        canary.until(&what, Some(shop.canary)).await;
        prod.until(&what, Some(shop.stable)).await;
        shop.server.kill().await;
        prod.until(&what, Some(shop.stable)).await;
        shop.server.restart().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_client_takes_the_certificate_of_the_page() {
    // grpc-js-xds 1.14 cannot resolve a name with these credentials in its bootstrap.
    let takes_tls = |it: &Implementation| *it != Implementation::Js;
    for implementation in Implementation::OF_PAGE.into_iter().filter(takes_tls) {
        let Some(mut shop) = Shop::start().await else { return };
        let secured = Secured::new();
        let [cert, key] = ["server.pem", "server.key"].map(|file| secured.path(file));
        shop.server =
            Server::start_with(shop.folder.path(), &["--listen-cert", &cert, "--listen-key", &key]).await;
        let mut bootstrap: Value = serde_json::from_str(&shop.text("tls.json", 0)).expect("JSON");
        let server = &mut bootstrap["xds_servers"][0];
        assert_eq!(server["server_uri"], "localhost:18000");
        let scheme = if implementation == Implementation::Rust { "https://" } else { "" };
        server["server_uri"] = format!("{scheme}localhost:{}", shop.server.port).into();
        server["channel_creds"][0]["config"]["ca_certificate_file"] = secured.path("ca.pem").into();
        let client = GrpcPeer::client_of(implementation, "xds:///shop", &bootstrap.to_string());
        let Some(client) = client else { return };
        let mut calls = Calls::start(implementation, client);
        calls.until_answer("stable").await;
        calls.finish_without_loss().await;
    }
}

/// The folder of the page, a server of it, and the gRPC servers that it names.
struct Shop {
    /// The files of the page by name, the earlier before the later.
    files: BTreeMap<String, Vec<String>>,
    folder: Folder,
    server: Server,
    stable: u16,
    canary: u16,
    _servers: [GrpcPeer; 2],
}

impl Shop {
    async fn start() -> Option<Self> {
        let (stable_server, stable) = GrpcPeer::server("stable").await?;
        let (canary_server, canary) = GrpcPeer::server("canary").await?;
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/grpc.md"));
        let mut files = BTreeMap::<_, Vec<_>>::new();
        for step in page::steps(&text.expect("the page is there")).expect("a page that is tested") {
            if let page::What::File { name, text } = step.what {
                let text = text.replace(": 50051", &format!(": {stable}"));
                let text = text.replace(": 50052", &format!(": {canary}"));
                files.entry(name.trim_start_matches("shop/").to_owned()).or_default().push(text);
            }
        }
        let folder = Folder::new();
        for (name, texts) in files.iter().filter(|(name, _)| name.ends_with(".yaml")) {
            fs::write(folder.path().join(name), &texts[0]).expect("the folder is writable");
        }
        let server = Server::start(folder.path()).await;
        Some(Self { files, folder, server, stable, canary, _servers: [stable_server, canary_server] })
    }

    /// The file of this name as the page has it for the `at`th time, with the ports of this test.
    fn text(&self, name: &str, at: usize) -> String {
        self.files[name][at].clone()
    }

    fn write(&self, name: &str, at: usize) {
        let aside = self.folder.path().join(".new");
        fs::write(&aside, self.text(name, at)).expect("the folder is writable");
        fs::rename(aside, self.folder.path().join(name)).expect("renames within a directory");
    }

    /// That of the page, for a node of this name in this environment.
    fn bootstrap(&self, implementation: Implementation, id: &str, env: &str) -> String {
        let mut bootstrap: Value = serde_json::from_str(&self.text("bootstrap.json", 0)).expect("JSON");
        assert_eq!(bootstrap["xds_servers"][0]["server_uri"], "127.0.0.1:18000");
        bootstrap["xds_servers"][0]["server_uri"] = implementation.uri(self.server.port).into();
        bootstrap["node"]["id"] = id.into();
        bootstrap["node"]["metadata"] = json!({"env": env});
        bootstrap.to_string()
    }

    /// What `xds get --as-client` prints of the clusters of this client, once it ACKed them.
    async fn of_client(&self, id: &str) -> String {
        let address = format!("127.0.0.1:{}", self.server.port);
        let acked = async || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
            command.args(["get", "--server", &address, "--as-client", id, "CDS"]);
            let output = command.output().await.expect("cargo built the binary");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.contains("ACKed").then_some(text)
        };
        until("the client ACKs", Duration::from_secs(12), acked).await.0
    }
}
