//! `xds serve` is killed (SIGKILL) and started again while its folder changes, also with a durable
//! store to which it applies the folder. Meanwhile clients
//! keep their resources, and after they reconnect they get exactly the differences.
//!
//! There are three clients: one uses the bare messages and records every response, and two use the
//! client library, in delta and in SotW.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use xds::client::Protocol;

use clients::{Library, follow_raw};
use origin::{Files, Origin, Writer};

#[path = "restart/clients.rs"]
mod clients;
#[path = "restart/origin.rs"]
mod origin;

/// The resources of a client, and the responses that brought them.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// The content of each cluster by its name.
    holds: BTreeMap<String, String>,
    /// The version of each cluster.
    versions: BTreeMap<String, String>,
    /// The removed names that it received.
    removed: BTreeSet<String>,
    /// Resources that were sent although the client had this version already; must be empty.
    sent_again: Vec<String>,
    /// How many streams were opened so far.
    streams: usize,
    /// How many resources each response of the newest stream had.
    responses: Vec<usize>,
    /// How often the server could not be reached.
    failures: usize,
}

/// Waits until the condition holds.
async fn until(client: &mut watch::Receiver<Seen>, what: &str, holds: impl FnMut(&Seen) -> bool) -> Seen {
    if let Ok(seen) = tokio::time::timeout(LONG, client.wait_for(holds)).await {
        return seen.unwrap().clone();
    }
    panic!("waited in vain: {what}; {:?}", client.borrow());
}

/// The clients of one test.
struct Clients {
    delta: Library,
    sotw: Library,
    raw: watch::Sender<Seen>,
}

impl Clients {
    fn start(origin: &Origin) -> Self {
        let client = |protocol| Library::start(&origin.address, protocol);
        let clients = Self {
            delta: client(Protocol::Delta),
            sotw: client(Protocol::Sotw),
            raw: watch::Sender::default(),
        };
        clients.connect(origin);
        clients
    }

    /// The library reconnects by itself; the bare client reconnects here.
    fn connect(&self, origin: &Origin) {
        tokio::spawn(follow_raw(origin.address.clone(), self.raw.clone()));
    }

    fn all(&self) -> [(&'static str, watch::Receiver<Seen>); 3] {
        [("raw", self.raw.subscribe()), ("delta", self.delta.seen()), ("sotw", self.sotw.seen())]
    }

    /// Waits until all clients have the content of the folder.
    async fn have(&self, files: &Files) {
        let newest = files.newest();
        for (name, mut client) in self.all() {
            until(&mut client, &format!("{name} has what the folder has"), |seen| seen.holds == newest).await;
        }
    }

    /// Kills the server, and waits until all clients notice. None loses a resource.
    async fn lose(&self, origin: &mut Origin) {
        let before = self.all().map(|(_, client)| client.borrow().failures);
        origin.kill();
        for ((name, mut client), before) in self.all().into_iter().zip(before) {
            let noticed = |seen: &Seen| seen.failures > before;
            let seen = until(&mut client, &format!("{name} cannot reach the server"), noticed).await;
            assert_eq!(seen.holds.len(), CLUSTERS, "{name} keeps what it has");
        }
    }

    /// Starts the server; returns the first response of each client.
    async fn regain(&self, origin: &mut Origin) {
        let before = self.all().map(|(_, client)| client.borrow().streams);
        origin.start();
        self.connect(origin);
        for ((name, mut client), before) in self.all().into_iter().zip(before) {
            until(&mut client, &format!("{name} is back"), |seen| seen.streams > before).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d21_a_server_that_is_killed_while_files_change_takes_nothing_from_its_clients() {
    let files = Files::new("killed", CLUSTERS);
    let origin = Origin::new(&files);
    killed_while_files_change(files, origin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn st16_st57_the_same_with_a_durable_store_that_is_killed_during_commits() {
    let files = Files::new("killed-store", CLUSTERS);
    let origin = Origin::with_store(&files);
    killed_while_files_change(files, origin).await;
}

async fn killed_while_files_change(files: Files, mut origin: Origin) {
    let clients = Clients::start(&origin);
    clients.have(&files).await;
    let writer = Writer::start(files);
    for _ in 0..KILLS {
        // Kill it during commits.
        for (name, mut client) in clients.all() {
            until(&mut client, &format!("{name} is sent changes"), |seen| seen.responses.len() > 2).await;
        }
        clients.lose(&mut origin).await;
        clients.regain(&mut origin).await;
    }
    let files = writer.stop();
    clients.have(&files).await;
    for (name, client) in clients.all() {
        let seen = client.borrow();
        assert_eq!(seen.removed, BTreeSet::new(), "{name} got a removal of an existing resource");
        assert_eq!(seen.sent_again, Vec::<String>::new(), "{name} was sent what it had");
        assert!(seen.streams > KILLS, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d21_s32_after_a_restart_clients_get_exactly_the_difference() {
    let files = Files::new("difference", CLUSTERS);
    let origin = Origin::new(&files);
    exactly_the_difference(files, origin).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn st57_after_a_restart_of_a_durable_store_clients_get_exactly_the_difference() {
    let files = Files::new("difference-store", CLUSTERS);
    let origin = Origin::with_store(&files);
    exactly_the_difference(files, origin).await;
}

async fn exactly_the_difference(mut files: Files, mut origin: Origin) {
    let clients = Clients::start(&origin);
    clients.have(&files).await;
    for changed in [0, 7, 1, CLUSTERS] {
        clients.lose(&mut origin).await;
        (0..changed).for_each(|cluster| files.change(cluster));
        clients.regain(&mut origin).await;
        clients.have(&files).await;
        // The next change shows that nothing else was sent before.
        files.change(0);
        clients.have(&files).await;
        // D21: unchanged resources are not sent, and without changes there is no response.
        let difference: Vec<_> = [changed, 1].into_iter().filter(|count| *count > 0).collect();
        // S25: in SotW each change sends all clusters; without a change nothing is sent.
        let state = vec![CLUSTERS; difference.len()];
        // D21b: our client has the server answer for one cluster, which may have changed or not.
        let mut of_client = vec![vec![changed + 1, 1]];
        of_client.extend((changed > 0).then(|| difference.clone()));
        let expected = [vec![difference], of_client, vec![state]];
        for ((name, mut client), sent) in clients.all().into_iter().zip(expected) {
            let what = format!("{name} is sent one of these numbers of resources: {sent:?}");
            until(&mut client, &what, |seen| sent.contains(&seen.responses)).await;
        }
    }
    for (name, client) in clients.all() {
        assert_eq!(client.borrow().removed, BTreeSet::new(), "{name}");
        assert_eq!(client.borrow().sent_again, Vec::<String>::new(), "{name}");
    }
    // Removals during the outage are sent, too, and nothing else.
    clients.lose(&mut origin).await;
    let gone = files.remove(3);
    clients.regain(&mut origin).await;
    clients.have(&files).await;
    for (name, client) in clients.all() {
        assert_eq!(client.borrow().removed, BTreeSet::from([gone.clone()]), "{name}");
    }
    assert_eq!(clients.raw.borrow().responses.iter().sum::<usize>(), 0);
}

const CLUSTERS: usize = 50;
const KILLS: usize = 4;

/// The longest time for a step.
const LONG: Duration = Duration::from_secs(30);
