//! Hostile clients at the port of `xds serve` or `xds proxy`, and a healthy client, which gets each update within
//! two seconds.
//!
//! A new attack is a function in `attacks` and a test here. It runs until it is dropped, reports
//! when it is in full force ([`Target::is_on`]), and keeps its connections open. Most attacks call
//! `attacks::flood`, which sends without a pause, or `attacks::hold`, which opens connections,
//! sends something on each and reads nothing. Each test prints the cost of the attack: `cargo test
//! --test attack -- --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", target_os = "linux"))]

use std::time::{Duration, Instant};

use tokio::sync::{Mutex, watch};

use Newcomers::{AreServed, MayWait};
use server::{Server, Setup};
use witness::Witness;

mod attacks;
mod http2;
mod server;
mod spam;
mod witness;

/// The target of an attack.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: std::net::SocketAddr,
    /// The folder of the server, with its store.
    pub(crate) folder: std::path::PathBuf,
    on: watch::Sender<bool>,
}

impl Target {
    /// The attack is in full force from now on.
    pub(crate) fn is_on(&self) {
        self.on.send_replace(true);
    }
}

/// Whether clients that connect during the attack are served, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newcomers {
    AreServed,
    /// Connections with requests have all places.
    MayWait,
}

/// Runs an attack until a witness got updates before, during and after its full force. Returns the most memory that
/// the server had, in MB.
async fn bears<A>(name: &str, setup: Setup, newcomers: Newcomers, attack: impl FnOnce(Target) -> A) -> usize
where
    A: Future<Output = ()> + Send + 'static,
{
    // One attack at a time has the machine.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _turn = ONE_AT_A_TIME.lock().await;
    let mut server = Server::start(name, setup).await;
    let mut witness = Witness::connect(&server).await;
    witness.sees(&server.content()).await;
    let before = server.resident_mb();
    let (on, mut is_on) = watch::channel(false);
    let target = Target { address: server.address, folder: server.folder.clone(), on };
    let attack = tokio::spawn(attack(target));
    let (mut updates, mut slowest, mut slowest_newcomer) = (0, Duration::ZERO, Duration::ZERO);
    let began = Instant::now();
    let mut on_since = None;
    let mut peak = before;
    let in_force = in_force();
    while on_since.is_none_or(|since: Instant| since.elapsed() < in_force) {
        if *is_on.borrow_and_update() {
            on_since.get_or_insert_with(Instant::now);
        }
        assert!(on_since.is_some() || began.elapsed() < PATIENCE, "{name}: it does not come to full force");
        assert!(!attack.is_finished(), "{name}: the attack ended");
        let content = server.change();
        let changed = Instant::now();
        witness.sees(&content).await;
        updates += 1;
        slowest = slowest.max(changed.elapsed());
        assert!(slowest < IN_TIME, "{name}: an update took {slowest:?}");
        if newcomers == AreServed {
            let came = Instant::now();
            Witness::connect(&server).await.sees(&content).await;
            slowest_newcomer = slowest_newcomer.max(came.elapsed());
            assert!(slowest_newcomer < IN_TIME, "{name}: a new client waited {slowest_newcomer:?}");
        }
        peak = peak.max(server.resident_mb());
    }
    attack.abort();
    let lines = server.log_lines();
    println!(
        "{name}: slowest of {updates} updates {slowest:.1?}, slowest new client {slowest_newcomer:.1?}; server {before} MB \
         before, {peak} MB at most; {lines} lines of log"
    );
    assert!(lines < updates + 20, "{name}: a flood must not flood the log: {lines} lines");
    peak
}

/// As [`bears`], for keys that clients make up without end: the server keeps none of the past, so its memory has a
/// bound.
async fn forgets<A>(name: &str, setup: Setup, attack: impl FnOnce(Target) -> A)
where
    A: Future<Output = ()> + Send + 'static,
{
    let peak = bears(name, setup, AreServed, attack).await;
    assert!(peak < MADE_UP_MB, "{name}: {peak} MB");
}

/// How long an update may take, and the first response to a new client.
const IN_TIME: Duration = Duration::from_secs(2);
/// How long an attack is in full force: 3 s, or as many seconds as `XDS_ATTACK_SECONDS` says.
fn in_force() -> Duration {
    let seconds = std::env::var("XDS_ATTACK_SECONDS").ok();
    Duration::from_secs(seconds.map_or(3, |seconds| seconds.parse().unwrap()))
}

/// The memory of a server, in MB, whose clients make up keys (docs/security.md).
const MADE_UP_MB: usize = 250;
/// How long an attack may take until it is in full force.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_as_soon_as_they_are_opened() {
    bears("rapid reset", Setup::Plain, AreServed, attacks::rapid_reset).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_end() {
    bears("requests", Setup::Plain, AreServed, attacks::requests).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_streams_without_end() {
    bears("new streams", Setup::Plain, AreServed, attacks::new_streams).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_and_pings_without_end() {
    bears("SETTINGS and PING", Setup::Plain, AreServed, attacks::control_frames).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_connections_at_once() {
    bears("connections at once", Setup::Plain, AreServed, attacks::connections_at_once).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections() {
    bears("idle connections", Setup::Plain, AreServed, attacks::idle_connections).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifteen_hundred_silent_tls_connections() {
    bears("silent TLS connections", Setup::Tls, AreServed, attacks::silent_tls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eighty_thousand_streams_without_a_request() {
    bears("silent streams", Setup::Plain, AreServed, attacks::silent_streams).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_request_on_each_of_a_thousand_streams() {
    bears("half requests", Setup::Plain, AreServed, attacks::half_requests).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_answers_to_polls_that_nobody_reads() {
    bears("unread polls", Setup::Large, AreServed, attacks::unread_polls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_idle_connections_than_descriptors() {
    bears("full descriptors, idle", Setup::Descriptors(256), AreServed, attacks::a_thousand_idle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_with_streams_than_descriptors() {
    bears("full descriptors, streams", Setup::Descriptors(256), MayWait, attacks::a_thousand_with_streams)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_names_without_end() {
    forgets("new names", Setup::Plain, spam::new_names).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_names_without_end_at_a_proxy() {
    forgets("new names at a proxy", Setup::Proxy, spam::new_names).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_names_without_end_whose_answers_nobody_reads() {
    forgets("unread answers", Setup::Plain, spam::unread_answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_names_without_end_whose_answers_nobody_reads_at_a_proxy() {
    forgets("unread answers at a proxy", Setup::Proxy, spam::unread_answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_parameters_without_end() {
    forgets("new parameters", Setup::Plain, spam::new_parameters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_parameters_without_end_at_a_proxy() {
    forgets("new parameters at a proxy", Setup::Proxy, spam::new_parameters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_types_without_end() {
    forgets("new types", Setup::Plain, spam::new_types).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_types_without_end_at_a_proxy() {
    forgets("new types at a proxy", Setup::Proxy, spam::new_types).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_nodes_without_end() {
    forgets("new nodes", Setup::Plain, spam::new_nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_nodes_without_end_at_a_proxy() {
    forgets("new nodes at a proxy", Setup::Proxy, spam::new_nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_page_tokens_without_end() {
    forgets("new page tokens", Setup::Store, spam::new_page_tokens).await;
}
