//! Two regions with a node and a real Envoy each, under load, while the links between the regions are cut.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

use crate::envoy::{Envoy, bootstrap};
use crate::folder::Folder;
use crate::http;
use crate::link::Link;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::peers;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::shared_store::{SharedStore, succeeds};
use crate::upstream::Upstream;
use crate::wait::{CONTACT, until};
use crate::world::every_turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sg34_sg35_sg28_envoys_of_two_regions_lose_no_request_while_links_are_cut() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    for mode in Mode::ADS {
        eprintln!("--- {mode}");
        let regions = Regions::start(mode).await;
        let loads = regions.envoys.iter().flat_map(|(_, port)| {
            [Connections::New, Connections::Kept].map(|of| Load::start(*port, "/v1", of))
        });
        let loads: Vec<_> = loads.collect();
        regions.go_on_without_each_other().await;
        regions.delete_what_the_other_one_refers_to().await;
        regions.drain_while_the_other_one_is_silent().await;
        regions.hand_over().await;
        for load in loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
        for (envoy, _) in &regions.envoys {
            let rejected = envoy.stats().await.ending(&[".update_rejected"]);
            assert!(rejected.values().all(|count| *count == 0), "{mode}: {rejected:?}");
        }
    }
}

/// Each owns the names that begin so, and the other one has copies. Dropping this ends all programs.
struct Regions {
    mode: Mode,
    red: Upstream,
    blue: Upstream,
    store: SharedStore,
    nodes: [Server; 2],
    /// How each node reaches the other one: first `eu`.
    links: [Link; 2],
    /// The Envoy of each region, and the port of its own listener.
    envoys: Vec<(Envoy, u16)>,
    /// The folder of each Envoy.
    scratch: Vec<Folder>,
}

const NAMES: [&str; 2] = ["eu", "us"];
const EU: usize = 0;
const US: usize = 1;

impl Regions {
    /// The Envoy of `us` gets routes of `us`, which lead to the cluster `eu-shared` of `eu`.
    async fn start(mode: Mode) -> Self {
        let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
        let (store, links) = (SharedStore::of_nodes(), [Link::new().await, Link::new().await]);
        let url = |link: &Link| format!("http://{}", link.address);
        store.init_with("eu", None, &["--region", "eu"]).await;
        let eu = store.node("eu", &[url(&links[EU])]).await;
        links[US].lead_to(eu.admin_port().await);
        store.init_with("us", Some(&url(&links[US])), &["--region", "us"]).await;
        let us = store.node("us", &[url(&links[US])]).await;
        links[EU].lead_to(us.admin_port().await);
        let mut regions =
            Self { mode, red, blue, store, nodes: [eu, us], links, envoys: Vec::new(), scratch: Vec::new() };
        regions.until_put(EU, &[policy("eu-", "eu", "us"), policy("us-", "us", "eu")]).await;
        let one = |name: &str, upstream: &Upstream| [cluster(mode, name), endpoints(name, upstream.port)];
        let of_eu = [listener(mode, "eu-web", "eu-routes"), routes("eu-routes", &[("/", "eu-one")])];
        let of_eu = [&of_eu[..], &one("eu-one", &regions.red), &one("eu-shared", &regions.red)].concat();
        regions.until_put(EU, &of_eu).await;
        let of_us = [listener(mode, "us-web", "us-routes"), routes("us-routes", &[("/", "eu-shared")])];
        // It waits until the records of the other region are there.
        regions.until_put(US, &[&of_us[..], &one("us-one", &regions.red)].concat()).await;
        for (number, name) in NAMES.iter().enumerate() {
            let text = bootstrap(mode, regions.nodes[number].port, &json!({})).to_string();
            let scratch = Folder::new();
            let envoy = Envoy::start_with(scratch.path(), &text, "bootstrap.json").await;
            let envoy = envoy.expect("it was found before");
            let port = envoy.port(&format!("{name}-web")).await;
            regions.envoys.push((envoy, port));
            regions.scratch.push(scratch);
            regions.until_answers(number, "red").await;
        }
        regions
    }

    /// Each takes commits of its own, and Envoys keep what they have of the other one.
    async fn go_on_without_each_other(&self) {
        self.cut(true);
        self.put(EU, &[endpoints("eu-one", self.blue.port), endpoints("eu-shared", self.blue.port)]).await;
        self.put(US, &[endpoints("us-one", self.blue.port)]).await;
        self.until_answers(EU, "blue").await;
        let refused = self.store.put(&self.nodes[US], &[routes("us-new", &[("/", "eu-one")])], &[]).await;
        fails(&refused, &["region eu"]);
        let answer = http::get(self.envoys[US].1, "/v1").await.expect("Envoy answers").body;
        assert_eq!(answer, "red", "nobody said otherwise");
        self.cut(false);
        self.until_answers(US, "blue").await;
    }

    async fn delete_what_the_other_one_refers_to(&self) {
        fails(&self.delete(&[]).await, &["us-routes", "region us"]);
        self.cut(true);
        // The node finds out within a second, and the region counts as holding.
        fails(&self.delete(&[]).await, &["us-routes", "no answer from region us"]);
        self.cut(false);
    }

    async fn drain_while_the_other_one_is_silent(&self) {
        self.cut(true);
        succeeds(&self.delete(&["--drain"]).await);
        self.put(US, &[endpoints("us-one", self.red.port)]).await;
        self.put(US, &[routes("us-routes", &[("/", "us-one")])]).await;
        self.until_answers(US, "red").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(self.has(EU, "eu-shared").await, "nobody said that the reference is gone");
        self.cut(false);
        for node in [EU, US] {
            let is_gone = async || (!self.has(node, "eu-shared").await).then_some(());
            until("the drain ends once the link is mended", CONTACT, is_gone).await;
        }
    }

    /// Names of `us` come to `eu`.
    async fn hand_over(&self) {
        self.put(US, &[policy("us-", "eu", "us")]).await;
        self.until_put(EU, &[endpoints("us-one", self.blue.port)]).await;
        self.until_answers(US, "blue").await;
    }

    fn cut(&self, is_cut: bool) {
        self.links.iter().for_each(|link| link.cut(is_cut));
    }

    async fn put(&self, node: usize, resources: &[Value]) {
        succeeds(&self.store.put(&self.nodes[node], resources, &[]).await);
    }

    /// Puts resources as soon as the node has what it needs for that.
    async fn until_put(&self, node: usize, resources: &[Value]) {
        let put = async || {
            let output = self.store.put(&self.nodes[node], resources, &[]).await;
            output.status.success().then_some(())
        };
        until(&format!("{} takes a commit", NAMES[node]), CONTACT, put).await;
    }

    async fn delete(&self, options: &[&str]) -> Output {
        self.store.run(&self.nodes[EU], &[&["delete", "CDS", "eu-shared"], options].concat()).await
    }

    async fn has(&self, node: usize, cluster: &str) -> bool {
        self.store.run(&self.nodes[node], &["list", "CDS", cluster]).await.status.success()
    }

    async fn until_answers(&self, region: usize, upstream: &str) {
        let port = self.envoys[region].1;
        let answers = async || (http::get(port, "/v1").await.ok()?.body == upstream).then_some(());
        let what = format!("{}: {upstream} answers in {}", self.mode, NAMES[region]);
        until(&what, CONTACT, answers).await;
    }
}

fn policy(prefix: &str, owner: &str, copies: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.service.discovery.v3.Resource",
        "name": prefix,
        "resource": {
            "@type": "type.googleapis.com/xds.store.v1.RegionPolicy",
            "owner_region": owner,
            "regions": [copies],
        },
    })
}

/// The command failed, and said all of this.
fn fails(output: &Output, with: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    for part in with {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
}
