//! The incidents of docs/incidents.md, replayed with the binary.
//!
//! Each test makes one, looks at the page on a wide and on a narrow screen, and ends it. All lines
//! that its section of the document quotes from the log, the metrics and `/readyz` must occur.

use std::fs;
use std::path::Path;

use tonic::transport::Channel;
use xds::type_url::{CLUSTER, ROUTE_CONFIGURATION};

use crate::fleet::Client;
use crate::running::{Running, Scratch, http};
use crate::troubles::{dot, shows};
use crate::web_driver::Browser;
use crate::{FITS, READABLE, browser};

/// A section of the document: what it quotes, and what was seen so far.
struct Incident {
    section: String,
    seen: String,
}

impl Incident {
    fn of(heading: &str) -> Self {
        let page = fs::read_to_string("docs/incidents.md").expect("the document is there");
        let sections = page.split("\n## ").find(|section| section.starts_with(heading));
        Self { section: sections.expect("the document has the section").to_owned(), seen: String::new() }
    }

    /// Waits for a line of the log.
    fn logs(&mut self, server: &Running, text: &str) {
        self.seen.push_str(&server.logs(text));
        self.seen.push('\n');
    }

    /// Notes the metrics and the readiness.
    fn look(&mut self, server: &Running) {
        ["/metrics", "/readyz"].into_iter().for_each(|path| self.get(server, path));
    }

    /// Notes an answer of the admin port.
    fn get(&mut self, server: &Running, path: &str) {
        let host = &server.admin;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        self.seen.push_str(&http(host, &request));
    }

    /// The pictures of the page, which must be readable on both screens.
    async fn show(&self, browser: &Browser, name: &str) {
        for (width, height) in [(1400, 700), (400, 800)] {
            browser.resize(width, height).await;
            browser.until(FITS).await;
            browser.until(READABLE).await;
            browser.picture(&format!("incident-{name}-{width}")).await;
        }
        browser.resize(1400, 700).await;
    }

    /// Every line that the section quotes was seen. `..` stands for what is left out.
    fn check(&self) {
        let quoted =
            self.section.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("text\n"));
        let lines: Vec<_> = quoted.flat_map(str::lines).collect();
        assert!(!lines.is_empty(), "the section quotes nothing");
        for line in lines {
            let parts: Vec<_> = line.split("..").collect();
            let is_seen = self.seen.lines().any(|seen| {
                let mut rest = seen;
                parts.iter().all(|part| rest.split_once(part).map(|(_, after)| rest = after).is_some())
            });
            assert!(is_seen, "docs/incidents.md quotes {line:?}; seen was\n{}", self.seen);
        }
    }
}

fn kill(server: &mut Running) {
    server.child.kill().expect("it runs");
    server.child.wait().expect("it ends");
}

fn page(server: &Running) -> String {
    format!("http://{}/", server.admin)
}

fn copy(example: &str, to: &Scratch) {
    for file in fs::read_dir(Path::new(example)).expect("the example is there") {
        let file = file.expect("it can be read").path();
        let name = file.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        to.write(&name, fs::read(&file).expect("it can be read"));
    }
}

async fn connect(server: &Running) -> Channel {
    let uri = format!("http://{}", server.address);
    Channel::from_shared(uri).expect("a URI").connect().await.expect("the server listens")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_refused() {
    let Some(browser) = browser("incident-folder").await else { return };
    let (mut incident, folder) = (Incident::of("A folder is refused"), Scratch::new("incident-folder"));
    copy("examples/quickstart", &folder);
    let server = Running::start(&["serve", folder.text()]);
    browser.open(&page(&server)).await;
    browser.until(&dot("good", "no trouble")).await;

    let good = fs::read_to_string(folder.path("clusters.yaml")).expect("it is there");
    folder.write("clusters.yaml", good.replacen("connect_timeout:", "conect_timeout:", 1));
    browser.until(&dot("bad", "1 error")).await;
    browser.until(&shows("The folder is refused")).await;
    incident.logs(&server, "conect_timeout");
    incident.logs(&server, "the last good state of the folder stays in use");
    incident.look(&server);
    incident.show(&browser, "folder").await;

    folder.write("clusters.yaml", good);
    browser.until(&dot("good", "no trouble")).await;
    incident.logs(&server, "the folder is good again");
    incident.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_of_a_proxy_is_killed() {
    let Some(browser) = browser("incident-upstream").await else { return };
    let mut incident = Incident::of("The upstream of a proxy is down");
    let mut upstream = Running::start(&["serve", "examples/quickstart"]);
    let proxy = Running::start(&["proxy", "--upstream", &upstream.address]);
    let channel = connect(&proxy).await;
    let _client = Client::join(&channel, "edge-1", &[], CLUSTER, "one").await;
    browser.open(&page(&proxy)).await;
    browser.until(&dot("good", "no trouble")).await;

    kill(&mut upstream);
    browser.until(&shows("cannot connect: Connection refused")).await;
    incident.logs(&proxy, "the stream ended");
    incident.logs(&proxy, "Connection refused");
    incident.look(&proxy);
    incident.get(&proxy, "/readyz/SDS");
    incident.show(&browser, "upstream").await;

    let _upstream = Running::start_on(&upstream.address, &["serve", "examples/quickstart"]);
    browser.until(&dot("good", "no trouble")).await;
    incident.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_clients_reject_a_cluster() {
    let Some(browser) = browser("incident-rejected").await else { return };
    let (mut incident, folder) =
        (Incident::of("Clients reject a cluster"), Scratch::new("incident-rejected"));
    copy("examples/quickstart", &folder);
    let server = Running::start(&["serve", folder.text()]);
    let channels = [connect(&server).await, connect(&server).await];
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let channel = &channels[number % 2];
        clients.push(Client::join(channel, &format!("edge-{number}"), &[], CLUSTER, "one").await);
    }
    browser.open(&page(&server)).await;
    browser.until(&dot("good", "no trouble")).await;

    let good = fs::read_to_string(folder.path("clusters.yaml")).expect("it is there");
    folder.write("clusters.yaml", good.replacen("connect_timeout: 1s", "connect_timeout: 2s", 1));
    for client in &mut clients {
        client.answer(Some(REJECTION)).await;
    }
    browser.until(&shows(&format!("{CLIENTS} clients reject"))).await;
    incident.logs(&server, "NACK: a client rejected configuration");
    incident.look(&server);
    incident.show(&browser, "rejected").await;

    folder.write("clusters.yaml", good);
    for client in &mut clients {
        client.answer(None).await;
    }
    browser.until(&dot("good", "no trouble")).await;
    incident.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_starts_without_its_upstream() {
    let Some(browser) = browser("incident-cold").await else { return };
    let mut incident = Incident::of("A proxy starts without its upstream");
    // The port of a server that has ended.
    let mut upstream = Running::start(&["serve", "examples/quickstart"]);
    kill(&mut upstream);
    let proxy = Running::start(&["proxy", "--upstream", &upstream.address]);
    browser.open(&page(&proxy)).await;
    browser.until(&shows("The proxy is not ready")).await;
    incident.logs(&proxy, "not ready");
    incident.look(&proxy);
    incident.show(&browser, "cold").await;

    let _upstream = Running::start_on(&upstream.address, &["serve", "examples/quickstart"]);
    incident.logs(&proxy, "ready: an upstream answers");
    browser.until(&dot("good", "no trouble")).await;
    incident.check();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_leaves_a_gap() {
    let Some(browser) = browser("incident-gap").await else { return };
    let (mut incident, folder) = (Incident::of("A migration leaves a gap"), Scratch::new("incident-gap"));
    copy("examples/variants", &folder);
    let server = Running::start(&["serve", folder.text()]);
    browser.open(&page(&server)).await;
    browser.until(&dot("good", "no trouble")).await;

    let channel = connect(&server).await;
    let mut clients = Vec::new();
    for (id, env, version) in
        [("edge-1", "prod", "v1"), ("edge-2", "prod", "v3"), ("batch-1", "canary", "v3")]
    {
        let parameters = [("env", env), ("version", version)];
        clients.push(Client::join(&channel, id, &parameters, ROUTE_CONFIGURATION, "web-routes").await);
    }
    // The other version of each variant becomes v2, so that v3 has none.
    let good = fs::read_to_string(folder.path("routes.yaml")).expect("it is there");
    folder.write("routes.yaml", good.replace("version!=v1", "version=v2"));
    browser.until(&shows("the kind gap")).await;
    incident.logs(&server, "uncovered-reference");
    incident.logs(&server, "kind=\"gap\"");
    incident.look(&server);
    incident.show(&browser, "gap").await;

    folder.write("routes.yaml", good);
    browser.until(&dot("good", "no trouble")).await;
    incident.check();
}

const CLIENTS: usize = 400;

/// Words as Envoy has them.
const REJECTION: &str = "Error adding/updating cluster(s) one: cluster: LB policy requires a subset";
