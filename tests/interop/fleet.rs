//! A fleet of Envoys that are sent a few bad assignments among many good ones (S6c, S6d).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::http;
use crate::mode::Mode;
use crate::peers;
use crate::resources::{cluster, endpoints};
use crate::server::Server;
use crate::wait::{SOON, until};
use crate::world::one_turn;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s6c_s6d_a_fleet_uses_all_good_assignments_beside_bad_ones() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turn = one_turn().await;
    for mode in Mode::ADS {
        run(mode).await;
    }
}

async fn run(mode: Mode) {
    let folder = Folder::new();
    let names: Vec<_> = (0..ASSIGNMENTS).map(|number| format!("c{number}")).collect();
    let clusters: Vec<_> = names.iter().map(|name| cluster(mode, name)).collect();
    folder.write("clusters.json", &clusters);
    // `changed` has another port.
    let write = |port: u16, bad: &[usize], changed: Option<usize>| {
        let of = |(at, name): (usize, &String)| {
            let port = if changed == Some(at) { port + 1 } else { port };
            assignment(name, port, bad.contains(&at))
        };
        let all: Vec<_> = names.iter().enumerate().map(of).collect();
        folder.write("assignments.json", &all);
    };
    write(OLD, &[], None);
    let server = Server::start_with(folder.path(), &["--admin", "127.0.0.1:0"]).await;
    let scratches: Vec<_> = (0..FLEET).map(|_| Folder::new()).collect();
    let mut fleet = Vec::new();
    for scratch in &scratches {
        fleet.push(Envoy::start(scratch.path(), mode, server.port).await.expect("it is installed"));
    }
    let before = counts(&server).await;
    let start = Instant::now();
    write(NEW, &BAD, None);
    let expected = ASSIGNMENTS - BAD.len();
    for envoy in &fleet {
        until(&format!("{mode}: all good ones are in use"), SOON, async || {
            (using(envoy, NEW).await == expected).then_some(())
        })
        .await;
    }
    eprintln!("{mode}: {FLEET} Envoys use {expected} assignments after {:.1?}", start.elapsed());
    // The first client finds what is bad; the others are sent it last. The NACKs of parts count as one.
    let what = format!("{mode}: each client rejected something");
    let nacks = until(&what, SOON, async || {
        let nacks = counts(&server).await.nacks - before.nacks;
        (nacks >= FLEET as u64).then_some(nacks)
    });
    let (nacks, _) = nacks.await;
    // The rest of the bad ones.
    sleep(Duration::from_secs(1)).await;
    let after = counts(&server).await;
    let sent = after.responses - before.responses;
    eprintln!("{mode}: {sent} responses, {nacks} NACKs");

    // What is bad is not sent again while others change.
    for change in 0..CHANGES {
        write(NEW, &BAD, Some(change % BAD[0]));
        sleep(Duration::from_millis(100)).await;
    }
    let last = counts(&server).await;
    let (sent, again) = (last.responses - after.responses, last.nacks - after.nacks);
    eprintln!("{mode}: {CHANGES} changes: {sent} responses, {again} NACKs");
    assert_eq!(again, 0, "{mode}: nothing that was rejected is sent again");
}

/// How many clusters have endpoints with this port.
async fn using(envoy: &Envoy, port: u16) -> usize {
    let clusters = envoy.clusters().await;
    clusters.values().filter(|ports| **ports == [u64::from(port)]).count()
}

/// What a server sent and heard of assignments.
struct Counts {
    responses: u64,
    nacks: u64,
}

async fn counts(server: &Server) -> Counts {
    let port = server.admin_port().await;
    let answer = http::get_from(port, &format!("127.0.0.1:{port}"), "/metrics").await;
    let metrics = answer.expect("the admin page answers").body;
    let sum = |name: &str| {
        let lines =
            metrics.lines().filter(|line| line.starts_with(name) && line.contains("ClusterLoadAssignment"));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    };
    Counts { responses: sum("xds_server_responses_total{"), nacks: sum("xds_server_nacks_total{") }
}

/// Of a cluster, with an address that only Envoy can find bad, or a good one.
fn assignment(name: &str, port: u16, is_bad: bool) -> Value {
    let mut assignment = endpoints(name, port);
    if is_bad {
        let address = json!({"address": "a.example", "port_value": port, "resolver_name": "none"});
        assignment["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"] = address;
    }
    assignment
}

const FLEET: usize = 4;
const ASSIGNMENTS: usize = 100;
const BAD: [usize; 3] = [40, 50, 97];
const CHANGES: usize = 30;
const OLD: u16 = 1;
const NEW: u16 = 2;
