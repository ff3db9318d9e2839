//! Envoys behind a proxy, in front of our server and of a foreign server.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::foreign::{Foreign, ForeignServer};
use crate::http;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::peers;
use crate::resources::{cluster, endpoints, listener, routes, when};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

/// T43, V26: the origin is down for a minute under load. Then the proxy is killed, too, and starts
/// from its file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_behind_a_proxy_get_their_variants_and_outlive_the_origin() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
    let mut folder = Folder::new();
    folder.swap(&files(red.port, blue.port, "red"));
    let mut origin = Server::start(folder.path()).await;
    let mut fleets = Vec::new();
    for protocol in ["--delta-upstream", "--sotw"] {
        let scratch = Folder::new();
        let file = scratch.path().join("cache");
        let file = file.to_str().expect("a text");
        // Real nodes have different names. Members of wildcards depend only on the parameters that
        // matter.
        let mut options = vec!["--wildcard-keys", "env", "--cache-file", file];
        options.extend(Some(protocol).filter(|protocol| *protocol == "--sotw"));
        let proxy = Server::proxy(origin.port, &options).await;
        let mut fleet = Fleet { proxy, members: Vec::new(), _scratch: scratch };
        fleet.join(DELTA, "prod", "red").await;
        fleet.join(SOTW, "test", "blue").await;
        fleets.push(fleet);
    }

    let loads: Vec<_> = fleets
        .iter()
        .flat_map(|fleet| &fleet.members)
        .map(|member| Load::start(member.port, "/", Connections::New))
        .collect();
    origin.kill().await;
    sleep(Duration::from_secs(20)).await;
    for (fleet, mode) in fleets.iter_mut().zip([SOTW, DELTA]) {
        fleet.join(mode, "prod", "red").await;
    }
    sleep(Duration::from_secs(30)).await;
    for (fleet, mode) in fleets.iter_mut().zip([DELTA, SOTW]) {
        fleet.proxy.kill().await;
        fleet.proxy.restart().await;
        fleet.join(mode, "test", "blue").await;
    }
    sleep(Duration::from_secs(10)).await;
    for load in loads {
        load.finish().await.assert_nothing_lost();
    }

    // The changes reach the affected clients, and no others.
    folder.swap(&files(red.port, blue.port, "blue"));
    origin.restart().await;
    for fleet in &fleets {
        for member in &fleet.members {
            member.until_answer("blue").await;
        }
    }
    folder.swap(&files(red.port, blue.port, "red"));
    for fleet in &fleets {
        for member in &fleet.members {
            member.until_answer(if member.env == "prod" { "red" } else { "blue" }).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_behind_a_proxy_follow_a_foreign_server_without_tp2_and_outlive_it() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    for kind in [Foreign::GoControlPlane, Foreign::GoControlPlaneLinear] {
        for protocol in ["--delta-upstream", "--sotw"] {
            let Some(mut server) = ForeignServer::start(kind).await else { return };
            let _turns = every_turn().await;
            eprintln!("{kind}, {protocol}");
            let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
            let resources = |to: &str| -> Vec<Value> {
                let all = plain(red.port, blue.port);
                all.into_iter().chain([routes("routes", &[("/", to)])]).collect()
            };
            server.set("one", &resources("red")).await;
            let mut options = vec!["--by-node", "none"];
            options.extend(Some(protocol).filter(|protocol| *protocol == "--sotw"));
            let proxy = Server::proxy(server.port, &options).await;
            let mut fleet = Fleet { proxy, members: Vec::new(), _scratch: Folder::new() };
            fleet.join(DELTA, "a", "red").await;
            fleet.join(SOTW, "b", "red").await;
            server.set("two", &resources("blue")).await;
            for member in &fleet.members {
                member.until_answer("blue").await;
            }
            server.stop().await;
            fleet.join(DELTA, "c", "blue").await;
            server.start_again().await;
            server.set("three", &resources("red")).await;
            for member in &fleet.members {
                member.until_answer("red").await;
            }
        }
    }
}

/// V29: the constraints of a listener, a cluster and a route configuration get one more key, and
/// the payloads stay. Neither Envoys behind a proxy nor Envoys of the origin are sent anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_behind_a_proxy_are_sent_nothing_when_keys_migrate() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
    for protocol in ["--delta-upstream", "--sotw"] {
        let mut folder = Folder::new();
        folder.swap(&keyed(red.port, blue.port, &["env=prod", "env!=prod"], "red"));
        let origin = Server::start(folder.path()).await;
        let options = Some(protocol).filter(|protocol| *protocol == "--sotw");
        let options: Vec<&str> = options.into_iter().collect();
        let proxy = Server::proxy(origin.port, &options).await;
        let mut fleet = Fleet { proxy, members: Vec::new(), _scratch: Folder::new() };
        fleet.join(DELTA, "prod", "red").await;
        fleet.join(SOTW, "prod", "red").await;
        let mut before = Vec::new();
        for member in &fleet.members {
            before.push(member.envoy.stats().await.ending(RESPONSES));
        }

        let with_version =
            ["env=prod, version=1", "env=prod, version!=1", "env!=prod, (version || !version)"];
        folder.swap(&keyed(red.port, blue.port, &with_version, "red"));
        sleep(Duration::from_secs(8)).await;
        for (member, before) in fleet.members.iter().zip(&before) {
            let after = member.envoy.stats().await.ending(RESPONSES);
            assert_eq!(after, *before, "{} behind {protocol}", member.mode);
        }

        // A change that arrives shows that the migration has arrived, too.
        folder.swap(&keyed(red.port, blue.port, &with_version, "blue"));
        for (member, mut expected) in fleet.members.iter().zip(before) {
            member.until_answer("blue").await;
            *expected.get_mut("http.web.rds.routes.update_success").expect("its routes come over RDS") += 1;
            let after = member.envoy.stats().await.ending(RESPONSES);
            assert_eq!(after, expected, "{} behind {protocol}", member.mode);
        }
    }
}

/// Some Envoys behind one proxy.
struct Fleet {
    proxy: Server,
    members: Vec<Member>,
    _scratch: Folder,
}

struct Member {
    mode: Mode,
    env: &'static str,
    port: u16,
    envoy: Envoy,
    _scratch: Folder,
}

impl Fleet {
    /// Starts one more Envoy, and waits until this upstream answers it.
    async fn join(&mut self, mode: Mode, env: &'static str, answer: &str) {
        let scratch = Folder::new();
        let pod = format!("pod-{}", self.members.len());
        let address = format!("10.0.0.{}", self.members.len());
        let metadata = json!({"env": env, "version": "1", "pod": pod, "address": address});
        let envoy = Envoy::start_as(scratch.path(), mode, self.proxy.port, &metadata).await;
        let envoy = envoy.expect("it was found before");
        let port = envoy.port("web").await;
        let member = Member { mode, env, port, envoy, _scratch: scratch };
        member.until_answer(answer).await;
        self.members.push(member);
    }
}

impl Member {
    async fn until_answer(&self, upstream: &str) {
        let what = format!("{} over {} is answered by {upstream}", self.env, self.mode);
        let is_answered = async || {
            let answer = http::get(self.port, "/").await.ok()?;
            (answer.status == 200 && answer.body == upstream).then_some(())
        };
        until(&what, SOON, is_answered).await;
    }
}

/// A listener and two clusters, with the ports of their endpoints.
fn plain(red: u16, blue: u16) -> Vec<Value> {
    vec![
        listener(SOTW, "web", "routes"),
        cluster(SOTW, "red"),
        cluster(SOTW, "blue"),
        endpoints("red", red),
        endpoints("blue", blue),
    ]
}

/// The same, with a variant of the routes for `env=prod`, which leads to this cluster, and one for
/// all other clients.
fn files(red: u16, blue: u16, prod: &str) -> Vec<(&'static str, Vec<Value>)> {
    let variants = [("env=prod", prod), ("env!=prod", "blue")];
    let variants = variants.map(|(for_whom, to)| when(for_whom, routes("routes", &[("/", to)])));
    vec![("all.json", plain(red, blue)), ("routes.json", variants.into())]
}

/// The same, but the listener, the clusters and the routes have a variant for each of these
/// conditions, with equal payloads. The routes lead to `to`.
fn keyed(red: u16, blue: u16, variants: &[&str], to: &str) -> Vec<(&'static str, Vec<Value>)> {
    let plain = plain(red, blue);
    let (keyed, endpoints) = plain.split_at(3);
    let keyed = keyed.iter().cloned().chain([routes("routes", &[("/", to)])]);
    let keyed = keyed.flat_map(|resource| variants.iter().map(move |it| when(it, resource.clone())));
    vec![("keyed.json", keyed.collect()), ("endpoints.json", endpoints.to_vec())]
}

/// Envoy's counters of accepted responses.
const RESPONSES: &[&str] = &[".update_success"];

const SOTW: Mode = Mode::ADS[0];
const DELTA: Mode = Mode::ADS[1];
