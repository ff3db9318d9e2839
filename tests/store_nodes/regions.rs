//! Two regions with a node each, and links between them that are cut (SG21 to SG35).

use std::process::Output;
use std::thread;

use super::*;

/// A node of the region `eu` and one of `us`: each owns the names that begin so, and has copies of the others.
async fn regions(test: &str) -> [Node; 2] {
    let (mut eu, mut us) = (Node::new(test, "eu").await, Node::new(test, "us").await);
    let urls = [eu.url(), us.url()];
    eu.init(None, &["--region", "eu"]);
    eu.start(&urls, &[]);
    us.init(Some(&eu), &["--region", "us"]);
    us.start(&urls, &[]);
    us.accepts_commits().await;
    eu.put(&policy("eu-", "eu", &["us"]), &["--ack", "1"]).succeeds();
    us.put(&policy("us-", "us", &["eu"]), &["--ack", "1"]).succeeds();
    eu.put(&cluster_of("eu-one"), &["--ack", "1"]).succeeds();
    us.put(&routes("us-web", "eu-one"), &["--ack", "1"]).succeeds();
    [eu, us]
}

pub(super) fn policy(prefix: &str, owner: &str, copies: &[&str]) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.service.discovery.v3.Resource", "name": prefix,
        "resource": {
            "@type": "type.googleapis.com/xds.store.v1.RegionPolicy", "owner_region": owner, "regions": copies,
        },
    })
}

pub(super) fn cluster_of(name: &str) -> Value {
    json!({ "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": name })
}

pub(super) fn routes(name: &str, cluster: &str) -> Value {
    let route = json!({ "match": { "prefix": "/" }, "route": { "cluster": cluster } });
    let host = json!({ "name": "all", "domains": ["*"], "routes": [route] });
    json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": name,
        "virtual_hosts": [host],
    })
}

/// What a command said.
pub(super) struct Said(pub(super) Output);

impl Node {
    pub(super) fn xds(&self, arguments: &[&str]) -> Said {
        Said(xds().args(arguments).args(["--store", &self.path("store")]).output().unwrap())
    }

    pub(super) fn put(&self, resource: &Value, more: &[&str]) -> Said {
        fs::write(self.scratch.path("resource.json"), resource.to_string()).unwrap();
        self.xds(&[&["put", &self.path("resource.json")], more].concat())
    }

    /// What the admin page shows.
    pub(super) fn shown(&self, path: &str) -> Value {
        let admin = &self.process.as_ref().unwrap().admin;
        let request = format!("GET /api/store{path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        let answer = http(admin, &request);
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Whether the node has a resource.
    fn has(&self, type_and_name: [&str; 2]) -> bool {
        self.xds(&["list", type_and_name[0], type_and_name[1]]).0.status.success()
    }

    pub(super) fn until(&self, what: &str, is_it: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_it(self) {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {what}; {:#}", self.peers().1);
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Said {
    pub(super) fn text(&self) -> String {
        let Output { stdout, stderr, .. } = &self.0;
        format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
    }

    pub(super) fn succeeds(self) -> String {
        assert!(self.0.status.success(), "{}", self.text());
        self.text()
    }

    /// It fails, and says all of this.
    pub(super) fn fails(self, with: &[&str]) {
        let text = self.text();
        assert!(!self.0.status.success(), "{text}");
        for part in with {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
    }
}

#[test]
fn sg34_sg35_a_delete_is_refused_while_another_region_refers_to_it_and_a_drain_ends_when_the_link_heals() {
    Runtime::new().unwrap().block_on(async {
        let [eu, us] = regions("delete").await;
        let delete = |more: &[&str]| eu.xds(&[&["delete", "CDS", "eu-one"], more].concat());
        delete(&[]).fails(&["us-web in region us"]);
        assert!(eu.xds(&["refs", "why", "CDS", "eu-one"]).succeeds().contains("us-web"));
        // With the other region silent it counts as holding, and is named.
        us.link.cut(true);
        delete(&[]).fails(&["us-web in region us", "no answer from region us"]);
        delete(&["--drain"]).succeeds();
        us.xds(&["delete", "RDS", "us-web"]).succeeds();
        thread::sleep(Duration::from_secs(7));
        assert!(eu.has(["CDS", "eu-one"]), "nobody said that the reference is gone");
        us.link.cut(false);
        eu.until("the drain ends", |eu| !eu.has(["CDS", "eu-one"]));
        us.until("and its copy goes", |us| !us.has(["CDS", "eu-one"]) && !us.has(["RDS", "us-web"]));
        for mut node in [eu, us] {
            node.kill();
            let check = xds().args(["store", "check", &node.path("store")]).output().unwrap();
            assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
        }
    });
}

#[test]
fn sg22_sg29_sg30_a_silent_region_takes_no_writes_and_no_references_and_others_go_on() {
    Runtime::new().unwrap().block_on(async {
        let [eu, mut us] = regions("silent").await;
        us.put(&cluster_of("eu-two"), &[]).fails(&["region eu", &eu.url()]);
        // The command goes there by itself if it may.
        let (url, token) = (us.url(), us.path("token"));
        fs::write(us.scratch.path("resource.json"), cluster_of("eu-two").to_string()).unwrap();
        let file = us.path("resource.json");
        let sent = xds().args(["put", &file, "--server", &url, "--token-file", &token]).output().unwrap();
        Said(sent).succeeds();
        assert!(eu.has(["CDS", "eu-two"]));
        us.until("the copy comes", |us| us.has(["CDS", "eu-two"]));
        eu.link.cut(true);
        us.put(&routes("us-new", "eu-two"), &[]).fails(&["region eu"]);
        us.put(&cluster_of("us-one"), &[]).succeeds();
        us.put(&routes("us-own", "us-one"), &[]).succeeds();
        let peers = |us: &Node| us.xds(&["store", "peers"]).text();
        us.until("its copies have an age", |us| peers(us).contains("region eu cannot be reached: copies"));
        let age = us.process.as_ref().unwrap().metric("xds_store_region_age_seconds{region=\"eu\"}");
        assert!(age.is_some_and(|age| age > 0.0), "{age:?}");
        let regions = us.shown("")["regions"].take();
        let [own, other] = regions.as_array().unwrap().as_slice() else { panic!("{regions:#}") };
        assert_eq!(
            (&own["region"], &own["is_own"], &own["is_reachable"]),
            (&"us".into(), &true.into(), &true.into())
        );
        assert_eq!(own["prefixes"][0]["prefix"], "us-");
        assert_eq!((&other["region"], &other["is_reachable"]), (&"eu".into(), &false.into()), "{other}");
        assert!(other["age_ms"].as_u64() > Some(0), "{other}");
        assert_eq!(
            (&other["writer"]["address"], &other["prefixes"][0]["regions"]),
            (&eu.url().into(), &json!(["us"]))
        );
        for (record, region, is_copy) in [("CDS/eu-two", "eu", true), ("RDS/us-web", "us", false)] {
            let record = us.shown(&format!("/records/{record}"));
            assert_eq!(
                (&record["region"], &record["is_copy"]),
                (&region.into(), &is_copy.into()),
                "{record}"
            );
        }
        // What it knows of the other region survives a restart without it.
        us.kill();
        let urls = [eu.url(), us.url()];
        us.start(&urls, &[]);
        us.accepts_commits().await;
        assert!(us.has(["CDS", "eu-two"]) && us.has(["RDS", "us-web"]));
        us.put(&routes("us-new", "eu-two"), &[]).fails(&["region eu"]);
        eu.link.cut(false);
        us.until("its copies are new", |us| !peers(us).contains("region eu"));
        us.until("the region is back", |us| us.put(&routes("us-new", "eu-two"), &[]).0.status.success());
        eu.xds(&["delete", "CDS", "eu-two"]).fails(&["us-new"]);
    });
}

#[test]
fn sg27_sg28_a_region_without_copies_fetches_the_names_and_takes_them_over() {
    Runtime::new().unwrap().block_on(async {
        let [eu, us] = regions("added").await;
        eu.put(&policy("own-", "eu", &[]), &["--ack", "1"]).succeeds();
        for name in ["own-one", "own-two"] {
            eu.put(&cluster_of(name), &["--ack", "1"]).succeeds();
        }
        assert!(!us.has(["CDS", "own-one"]));
        eu.put(&policy("own-", "us", &[]), &[]).fails(&["own-", "name eu in its regions"]);
        eu.put(&policy("own-", "us", &["eu"]), &["--ack", "1"]).succeeds();
        eu.put(&cluster_of("own-one"), &[]).fails(&["belongs to region us"]);
        us.until("the names come", |us| us.has(["CDS", "own-one"]) && us.has(["CDS", "own-two"]));
        us.until("it writes them", |us| us.put(&cluster_of("own-new"), &[]).0.status.success());
        eu.until("and the others get that", |eu| eu.has(["CDS", "own-new"]));
        us.put(&policy("own-", "us", &[]), &[]).succeeds();
        eu.until("the former owner drops them", |eu| !eu.has(["CDS", "own-one"]));
        assert!(us.has(["CDS", "own-one"]));
    });
}
