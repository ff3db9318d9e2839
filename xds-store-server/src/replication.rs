//! What the writer keeps for the machine that replicates: its calls, and those of peers that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Clock;
use xds_store::commit::Refused;
use xds_store::replica::{Alarm, CallId, IdLost, PeerView, Replica, ReplicaConfig, StoppedAt};
use xds_store::store::{Committed, RegionResponse, Store, Ticket, ToFetch};
use xds_store::time;

use crate::peers::{Answer, PageEnd, PeersConfig, PeersStatus, Pulled};
use crate::queue::{Acked, Caller};
use crate::standing::Condition;

pub(crate) use calls::{Calls, SNAPSHOT_WAIT, SNAPSHOT_WAIT_WITH_OTHERS};

mod calls;

/// A snapshot that this node takes (SR19).
#[derive(Debug)]
pub(crate) struct Taking {
    /// Pages of another number are late ones of an earlier snapshot.
    pub(crate) number: u64,
    /// Where it comes from.
    pub(crate) address: String,
    /// The page that was given to the store, and the task that waits until the store has kept it.
    pub(crate) page: Option<(Ticket, oneshot::Sender<PageEnd>)>,
}

/// A call of a peer that waits for the machine.
#[derive(Debug)]
pub(crate) enum Inbound {
    Hello(Answer<proto::HelloResponse>),
    Pull(proto::PullRequest, Answer<Pulled>),
    Nudge(Answer<proto::NudgeResponse>),
    Look(Answer<()>),
}

/// The machine with all that waits for it.
#[derive(Debug)]
pub(crate) struct Replication {
    pub(crate) machine: Replica,
    pub(crate) calls: Calls,
    pub(crate) inbound: BTreeMap<Ticket, Inbound>,
    /// The calls whose entries were given to the store.
    pub(crate) applying: BTreeMap<Ticket, CallId>,
    /// The states of a peer that were given to the store (SR51).
    pub(crate) mending: BTreeMap<Ticket, CallId>,
    /// How many records they have changed.
    pub(crate) mended: u64,
    /// Nodes of other regions that wait for the store.
    pub(crate) regions: BTreeMap<Ticket, oneshot::Sender<Result<RegionResponse, Refused>>>,
    /// SR17: commits that are durable here, and wait for peers.
    pub(crate) awaiting: BTreeMap<Ticket, (Caller, Committed)>,
    /// The own counter that the machine knows of.
    pub(crate) told: u64,
    pub(crate) taking: Option<Taking>,
    pub(crate) snapshots: u64,
    /// Why the last one was not taken, for an operator; `None` once one was.
    pub(crate) snapshot_refused: Option<String>,
    /// SR23.
    pub(crate) snapshot_patience: Duration,
    /// Since when no page came, while the records are not those that this node shall serve (SR20).
    pub(crate) unsynced_at: Option<i64>,
    /// A new id is requested from the store. If that failed, when it is requested again.
    pub(crate) takes_id: Option<Option<i64>>,
    /// Why it is requested.
    pub(crate) id_lost: Option<IdLost>,
    /// The last time that this node got another id, for an operator.
    pub(crate) renamed: Option<String>,
    /// SR33: the nodes that the machine knows to be forgotten.
    pub(crate) forgotten: BTreeSet<String>,
    /// SG27: the names that the machine knows the store to fetch.
    pub(crate) fetching: Vec<ToFetch>,
    /// SG25: the policies that the machine knows ([`Policies::changes`](xds_store::region::Policies::changes)).
    pub(crate) policies: u64,
    /// The regions that own names.
    pub(crate) owners: BTreeSet<String>,
    began: (i64, Instant),
    /// When the process before had heard of each region last.
    heard_before: BTreeMap<String, i64>,
    /// What readers see of the peers, and when it is made anew; `None`: nothing happened since.
    shown: Arc<ArcSwap<PeersStatus>>,
    show_at: Option<i64>,
}

impl Replication {
    pub(crate) fn new(config: &PeersConfig, store: &Store, calls: Calls, seed: u64, now: i64) -> Self {
        let head = store.head();
        let hello = proto::HelloRequest {
            cluster: head.cluster.clone(),
            node: head.node.clone(),
            boot: format!("{seed:016x}"),
            region: head.region.clone(),
            is_replica: head.is_replica,
            address: config.address.clone(),
            build: config.build.clone(),
            formerly: head.former_nodes.clone(),
            schemas: store.known_versions(),
            ..proto::HelloRequest::default()
        };
        let mut settings = ReplicaConfig::new(hello, seed);
        settings.pull_interval = nanoseconds(config.pull_interval);
        settings.compare_interval = Some(nanoseconds(config.compare_interval));
        settings.max_entries = config.pull_entries;
        settings.max_bytes = config.pull_bytes;
        settings.known = store.known().map(|(node, counters)| (node.to_owned(), counters.clone())).collect();
        settings.is_joining = head.is_joining;
        settings.owes_reissue = head.owes_reissue;
        Self {
            machine: Replica::new(settings, store.clock(), now),
            calls,
            inbound: BTreeMap::new(),
            applying: BTreeMap::new(),
            mending: BTreeMap::new(),
            mended: 0,
            regions: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            told: head.counter,
            taking: None,
            snapshots: 0,
            snapshot_refused: None,
            snapshot_patience: config.snapshot_patience,
            unsynced_at: None,
            takes_id: None,
            id_lost: None,
            renamed: None,
            forgotten: BTreeSet::new(),
            fetching: Vec::new(),
            policies: 0,
            owners: BTreeSet::new(),
            began: (now, Instant::now()),
            heard_before: store.regions_heard(),
            shown: Arc::default(),
            show_at: Some(now),
        }
    }

    /// The time of the machine. It goes on evenly: the clock of the system may be set back, and all calls
    /// would stop until it is where it was.
    pub(crate) fn now(&self) -> i64 {
        let (began, since) = self.began;
        began.saturating_add(nanoseconds(since.elapsed()))
    }

    /// How long until there is something to do, in nanoseconds; 0 if it is due now.
    pub(crate) fn due_in(&self) -> Option<i64> {
        let patience = nanoseconds(self.snapshot_patience);
        let read_only_at =
            self.unsynced_at.map(|at| at.saturating_add(patience)).filter(|at| *at > self.now());
        let due = self.machine.due().into_iter().chain(self.show_at);
        let due = due.chain(self.takes_id.flatten()).chain(read_only_at).min();
        due.map(|due| due.saturating_sub(self.now()).max(0))
    }

    /// What readers see of the peers.
    pub(crate) fn shown(&self) -> Arc<ArcSwap<PeersStatus>> {
        Arc::clone(&self.shown)
    }

    /// Shows readers what has happened, at most every [`SHOW_EVERY`]. The regions that have another writer than before,
    /// with its node (SG32).
    pub(crate) fn show_if_due(&mut self) -> Vec<(String, String)> {
        if self.show_at.is_none_or(|at| at > self.now()) {
            return Vec::new();
        }
        self.show_at = None;
        let status = self.status();
        let before = self.shown.load();
        let is_new = |(region, (node, _)): &(&String, &(String, String))| {
            before.writers.get(*region).is_none_or(|(before, _)| before != node)
        };
        let writers = status.writers.iter().filter(is_new);
        let writers = writers.map(|(region, (node, _))| (region.clone(), node.clone())).collect();
        self.shown.store(Arc::new(status));
        writers
    }

    /// Something has happened.
    pub(crate) fn show_soon(&mut self) {
        let soon = self.now().saturating_add(SHOW_EVERY);
        self.show_at.get_or_insert(soon);
    }

    /// One line for an operator, with what is known of it now.
    pub(crate) fn alarm_text(&self, alarm: &Alarm) -> String {
        let at = match alarm {
            Alarm::Stopped(origin) => self.machine.stopped_at(origin).map(|at| (origin, at)),
            _ => None,
        };
        let Some((origin, StoppedAt { counter, reason, since, .. })) = at else { return alarm_text(alarm) };
        let since = time::to_proto(*since);
        format!(
            "commit {counter} of node {origin} cannot be applied here, since {since}: {reason}. Later commits of that \
             node wait; if this server is an older version, upgrade it"
        )
    }

    fn status(&self) -> PeersStatus {
        let now = self.now();
        let clock = counters(self.machine.clock());
        let errors = self.calls.errors();
        // SG22: a writer that answers counts, even if another one did before.
        let of_regions = self.machine.peers().filter(|peer| !peer.region.is_empty() && !peer.is_replica);
        let writers = of_regions.map(|peer| (peer.region, (peer.is_up, peer.node, peer.address)));
        let mut writers: Vec<_> = writers.collect();
        writers.sort_unstable();
        let writers = writers.into_iter().map(|(region, (_, node, address))| (region, (node, address)));
        let peers = self.machine.peers().map(|peer| proto::PeerStatus {
            is_up: peer.is_up,
            last_contact: peer.heard_at.map(time::to_proto),
            error: errors.get(&peer.address).filter(|_| !peer.is_up).cloned().unwrap_or_default(),
            clock: peer.counters,
            entries_behind: peer.behind,
            lag: peer.behind_since.map(|since| time::length_to_proto(now.saturating_sub(since))),
            build: peer.build,
            phases: peer.phases.unwrap_or_default(),
            schemas: peer.schemas,
            is_duplicate: peer.is_duplicate,
            node: peer.node,
            address: peer.address,
            region: peer.region,
            ..proto::PeerStatus::default()
        });
        let peers = peers.collect();
        let alarms = self.machine.alarms().map(|alarm| self.alarm_text(alarm));
        let alarms = alarms.chain(self.snapshot_refused.clone()).chain(self.renamed.clone()).collect();
        let fetching = self.fetching.iter().map(|fetched| fetched.names.prefix.clone()).collect();
        let (regions, mended, awaited) = (self.regions(now), self.mended, self.machine.awaited());
        PeersStatus { clock, peers, writers: writers.collect(), regions, fetching, awaited, mended, alarms }
    }

    /// SG29: how old what this node has of other regions may be.
    fn regions(&self, now: i64) -> Vec<proto::RegionStatus> {
        let mut regions: BTreeMap<String, (bool, i64)> = BTreeMap::new();
        let unheard = |region: &str| (false, self.heard_before.get(region).copied().unwrap_or(self.began.0));
        for peer in self.machine.peers() {
            let unheard = unheard(&peer.region);
            let (is_up, heard_at) = regions.entry(peer.region).or_insert(unheard);
            *is_up |= peer.is_up;
            *heard_at = peer.heard_at.map_or(*heard_at, |at| at.max(*heard_at));
        }
        for owner in &self.owners {
            regions.entry(owner.clone()).or_insert_with(|| unheard(owner));
        }
        let of = |(region, (is_reachable, heard_at)): (String, (bool, i64))| {
            let age = Some(time::length_to_proto(now.saturating_sub(heard_at).max(0)));
            proto::RegionStatus { region, is_reachable, age }
        };
        let is_other = |(region, _): &(String, _)| !region.is_empty() && region != self.machine.region();
        regions.into_iter().filter(is_other).map(of).collect()
    }

    /// Where to call the node of a region, which may be unknown, or its writer if that node is forgotten or none is
    /// named. `None`: it is not up. Another node than that of a reference may not have it yet; the store asks the
    /// writer by itself if that one cannot tell (SG32).
    pub(crate) fn address_of(&self, region: &str, node: &str) -> Option<String> {
        let is_writer = node.is_empty() || self.forgotten.contains(node);
        let is_it = |peer: &PeerView| {
            let is_it = if is_writer { !peer.is_replica } else { peer.node == node };
            peer.is_up && (region.is_empty() || peer.region == region) && is_it
        };
        self.machine.peers().find(is_it).map(|peer| peer.address)
    }

    /// SR49: asks all nodes that are up for a record.
    pub(crate) fn peek(&self, key: &proto::Key, answers: &UnboundedSender<(String, proto::PeekResponse)>) {
        for peer in self.machine.peers().filter(|peer| peer.is_up) {
            let (node, region) = (self.machine.node().to_owned(), self.machine.region().to_owned());
            let (keys, fetching) = (vec![key.clone()], Vec::new());
            let request = proto::PeekRequest { keys, node, region, fetching };
            self.calls.peek_for((peer.address, peer.node), request, answers.clone());
        }
    }

    /// What this node does about its records, if they are not those that it shall serve (SR20, SR23).
    pub(crate) fn condition(&self) -> Option<Condition> {
        let since = self.now().saturating_sub(self.unsynced_at?);
        Some(if since < nanoseconds(self.snapshot_patience) {
            Condition::Resyncing
        } else {
            Condition::ReadOnly
        })
    }

    /// ST6: commits that wait for peers are durable here, and are answered before the server ends.
    pub(crate) fn stop(self) {
        for (caller, committed) in self.awaiting.into_values() {
            caller.answer(Ok((committed, Acked { peers: 0, is_enough: false })));
        }
    }
}

fn counters(clock: &Clock) -> BTreeMap<String, u64> {
    clock.iter().map(|(origin, at)| (origin.to_owned(), at.counter)).collect()
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

const SHOW_EVERY: i64 = 100_000_000;

/// One line for an operator (ST72).
pub(crate) fn alarm_text(alarm: &Alarm) -> String {
    match alarm {
        Alarm::Twins(node) => {
            format!("two processes run as node {node}: stop one, and give its store a new id")
        }
        Alarm::Forked(address, origin) => format!(
            "the log of node {origin} at {address} is another one than here: two nodes had this id, or one lost data"
        ),
        Alarm::Stopped(origin) => {
            format!("an entry of node {origin} cannot be applied here: later entries of that node wait")
        }
        Alarm::Refused(address, refusal) => format!("the node at {address} refuses this one: {refusal}"),
        Alarm::Malformed(address, malformed) => {
            format!("the node at {address} answers what no node of this version does: {malformed}")
        }
        Alarm::Differed(address) => format!(
            "records were not as at {address}, though no commit was missing, and were mended: look at the disk of \
             this node"
        ),
        Alarm::TwoWriters(address) => format!(
            "the node at {address} is a writer of the region of this node, too: make one of them a replica"
        ),
        Alarm::TooManyPeers => "there are more than 64 peers: only 64 are used".to_owned(),
        Alarm::TooManyNodes => "there are more than 256 nodes: forget those that are gone".to_owned(),
        Alarm::IdLostAgain => {
            "the id of this node was lost again within ten minutes: look whether a copy of its store runs"
                .to_owned()
        }
    }
}
