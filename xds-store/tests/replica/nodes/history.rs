//! What is known of a run from outside: the entries as their origins wrote them, and what each node has of
//! them durably. So the state that a node has to hold is known, too: that of all entries up to its clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::Chain;
use xds_store::engine::{Engine as _, MemoryEngine};
use xds_store::entry::Foreign;
use xds_store::key::RecordKey;
use xds_store::log::Head;
use xds_store::merge::merge;
use xds_store::read::Reads;
use xds_store::record::{RecordState, served};
use xds_store::replica::Counters;
use xds_store::store::{Loaded, Published};

use super::Outcome;
use crate::at_once::all_at_once;

mod snapshots;

/// The entries of all origins, and what the nodes have.
pub(crate) struct History {
    /// The entries of each node, in the order of counters from 1.
    log: BTreeMap<String, Vec<proto::Entry>>,
    nodes: BTreeMap<String, Durable>,
    /// What nodes had when they took another id, by their former one.
    former: BTreeMap<String, (Counters, String)>,
    /// What nodes had whose disks are lost.
    lost: BTreeMap<String, Counters>,
    /// How often clients got something else than the states say.
    pub(crate) shown: u64,
}

/// What a node has durably.
#[derive(Default, Clone)]
pub(super) struct Durable {
    /// The last revision of its store, and the greatest one that is forgotten.
    revision: u64,
    floor: u64,
    /// The ids that it had before.
    pub(super) formers: Vec<String>,
    /// Deleted records, or such that a date ended, were forgotten here (SR25).
    has_forgotten: bool,
    /// A snapshot was taken, in which deletions are missing that its node has forgotten.
    has_taken: bool,
    /// The records that the last snapshot replaced.
    before: BTreeMap<RecordKey, RecordState>,
    counters: Counters,
    /// The counters at its revisions.
    at: BTreeMap<u64, Counters>,
    /// The records, but for what dates ended here.
    states: BTreeMap<RecordKey, RecordState>,
    /// The records as its process last published or loaded them.
    shown: BTreeMap<RecordKey, RecordState>,
    /// The records that its clients have.
    clients: BTreeSet<RecordKey>,
}

impl History {
    pub(crate) fn new(nodes: impl Iterator<Item = String>) -> Self {
        let nodes = nodes.map(|node| (node, Durable::default())).collect();
        Self { log: BTreeMap::new(), nodes, former: BTreeMap::new(), lost: BTreeMap::new(), shown: 0 }
    }

    /// Up to where a node has the entries of each origin durably.
    pub(crate) fn counters(&self, node: &str) -> &Counters {
        let former = self.former.get(node).map(|(counters, _)| counters);
        former.or_else(|| self.lost.get(node)).unwrap_or_else(|| &self.nodes[node].counters)
    }

    /// The entries that a node has, under this id or a later one: an answer to the former one may say more.
    pub(crate) fn at_most(&self, node: &str, origin: &str) -> u64 {
        match self.former.get(node) {
            None => of(self.counters(node), origin),
            Some((counters, next)) => of(counters, origin).max(self.at_most(next, origin)),
        }
    }

    /// What a node has now.
    pub(super) fn had(&self, node: &str) -> Durable {
        self.nodes[node].clone()
    }

    /// The disk of a node is lost. It goes on with another one, under another id.
    pub(super) fn replaced(&mut self, node: &str, id: String, has: Durable) {
        let lost = self.nodes.remove(node).unwrap();
        self.lost.insert(node.to_owned(), lost.counters);
        self.nodes.insert(id, has);
    }

    /// How many nodes had an entry whose disks are lost now, or whose records a snapshot has replaced since.
    pub(super) fn had_once(&self, origin: &str, counter: u64) -> usize {
        let has = |counters: &Counters| of(counters, origin) >= counter;
        let has_lost = |(former, (counters, next)): (&String, &(Counters, String))| {
            former != origin && has(counters) && !has(self.counters(next))
        };
        self.lost.values().filter(|counters| has(counters)).count()
            + self.former.iter().filter(|former| has_lost(*former)).count()
    }

    /// How many ids a node had before.
    pub(crate) fn formers(&self, node: &str) -> usize {
        self.nodes[node].formers.len()
    }

    /// The last revision of the store of a node.
    pub(crate) fn revision(&self, node: &str) -> u64 {
        self.nodes[node].revision
    }

    /// The state of a record, as a node has it.
    pub(crate) fn state(&self, node: &str, key: &RecordKey) -> Option<&RecordState> {
        self.nodes[node].states.get(key)
    }

    /// The states that a node wrote, the newest first.
    pub(crate) fn written(&self, node: &str) -> impl Iterator<Item = &RecordState> + Clone {
        let entries = self.log.get(node).into_iter().flatten().rev();
        entries.flat_map(|entry| &entry.states)
    }

    /// How many entries there are.
    pub(crate) fn entries(&self) -> usize {
        self.log.values().map(Vec::len).sum()
    }

    /// The last revision of a node of which all nodes have the entries.
    pub(crate) fn everywhere(&self, node: &str) -> u64 {
        let everybody = |counters: &Counters| {
            let has =
                |other: &Durable| counters.iter().all(|(origin, at)| of(&other.counters, origin) >= *at);
            self.nodes.values().all(has)
        };
        let at = &self.nodes[node].at;
        at.iter().rev().find(|(_, counters)| everybody(counters)).map_or(0, |(revision, _)| *revision)
    }

    /// The engine of a node has changed: reads what is new there, and checks it. The id that the node has now.
    pub(crate) fn durable(&mut self, node: &str, engine: &MemoryEngine) -> Result<String, String> {
        let view = engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let (head, mut touched) = (reads.head(), BTreeSet::new());
        let mut durable = self.nodes.remove(node).unwrap();
        let outcome = self.read(node, &mut durable, (&reads, head), &mut touched);
        // SR25, SR48: what a node has forgotten is not served for those that name it later.
        let is_forgotten = |key: &RecordKey, state: &RecordState| {
            state.lifecycle() == proto::State::Deleted && reads.last(key).unwrap().is_none()
        };
        let before = durable.shown.len();
        durable.shown.retain(|key, state| !is_forgotten(key, state));
        durable.has_forgotten |= durable.shown.len() < before;
        self.nodes.insert(head.node.clone(), durable);
        outcome?;
        Ok(head.node.clone())
    }

    fn read(
        &mut self,
        former: &str,
        durable: &mut Durable,
        (reads, head): (&Reads<'_>, &Head),
        touched: &mut BTreeSet<RecordKey>,
    ) -> Outcome {
        let node = &*head.node;
        if former != node {
            self.former.insert(former.to_owned(), (durable.counters.clone(), node.to_owned()));
            durable.formers.clone_from(&head.former_nodes);
        }
        if head.revision < durable.revision || head.floor < durable.floor {
            return Err(format!("{node} goes back: {head:?}"));
        }
        let mut entries = Vec::new();
        for revision in durable.revision + 1..=head.revision {
            let Foreign::Entry(entry) = reads.foreign(revision).unwrap() else {
                return Err(format!("{node} skips entries of its own accord at {revision}"));
            };
            entries.push((revision, entry));
        }
        // A snapshot that changed no record has no revision.
        let clock = reads.snapshot("", usize::MAX).unwrap().clock;
        let mut upto = durable.counters.clone();
        let counted = entries.iter().filter(|(_, entry)| entry.counter > 0);
        upto.extend(counted.map(|(_, entry)| (entry.origin.clone(), entry.counter)));
        if former != node || clock.iter().any(|(origin, at)| at.counter > of(&upto, origin)) {
            touched.extend(self.take_snapshot(former, durable, reads)?);
        }
        for (revision, entry) in entries {
            if entry.counter > 0 {
                touched.extend(note(&mut self.log, node, durable, entry)?);
            }
            durable.at.insert(revision, durable.counters.clone());
        }
        (durable.revision, durable.floor) = (head.revision, head.floor);
        if of(&durable.counters, node) != head.counter {
            return Err(format!("{node} has {head:?}, and its log ends at {:?}", durable.counters));
        }
        for key in &*touched {
            let found = reads.last(key).unwrap().map(|version| version.state);
            let expected = durable.states.get(key);
            if !durable.is_right(found.as_ref(), expected) {
                return Err(format!("{node} has {found:?}, and its entries say {expected:?}"));
            }
        }
        Ok(())
    }

    /// A process shows commits to its cache: a record goes only if something ended it.
    pub(crate) fn published(&mut self, node: &str, commits: &[Published], wall: i64) -> Outcome {
        let durable = self.nodes.get_mut(node).unwrap();
        let formers = durable.formers.clone();
        for commit in commits {
            if commit.revision > durable.revision {
                return Err(format!("{node} shows {commit:?}, which is not durable"));
            }
            let before: BTreeMap<_, _> =
                commit.changed.iter().filter_map(|(key, _)| durable.shown.remove_entry(key)).collect();
            durable.shown.extend(commit.changed.iter().cloned());
            self.shown += commit.shown.len() as u64;
            for (key, state) in commit.changed.iter().map(|(key, state)| (key, state)).chain(&commit.shown) {
                durable.serve(key, state);
            }
            let mut gone = commit.changed.iter().filter(|(key, state)| {
                served(state).is_none() && before.get(key).is_some_and(|before| served(before).is_some())
            });
            let is_ended = |(key, state): &(RecordKey, RecordState)| {
                let by_user = commit.entry.identity == super::users::USER;
                let is_withheld = state.lifecycle() != proto::State::Deleted && state.quarantined.is_some();
                // SR36, SR37: another node ended it.
                let from_entry = commit.entry.counter > 0 && commit.entry.origin != node && {
                    let entry = &self.log[&commit.entry.origin][commit.entry.counter as usize - 1];
                    let of_key = |state: &&RecordState| state.key.as_ref() == Some(&key.to_proto());
                    entry.states.iter().find(of_key).is_some_and(|state| served(state).is_none())
                };
                by_user
                    || [RESYNC, REISSUE].contains(&&*commit.entry.identity)
                    || is_withheld
                    || from_entry
                    || before.values().any(|before| is_over((node, &formers), before, wall))
            };
            if let Some(gone) = gone.find(|gone| !is_ended(gone)) {
                return Err(format!("{node} ends {gone:?} by {:?}, before: {before:?}", commit.entry));
            }
        }
        Ok(())
    }

    /// A process has loaded its store, at this time.
    pub(crate) fn loaded(
        &mut self,
        node: &str,
        records: Vec<Loaded>,
        (clock, time): (&Counters, i64),
    ) -> Outcome {
        let durable = self.nodes.get_mut(node).unwrap();
        durable.clients.clear();
        records.iter().for_each(|record| durable.serve(&record.key, record.for_clients()));
        durable.shown = records.into_iter().map(|record| (record.key, record.state)).collect();
        // SR25: it may have forgotten deleted ones, and those that a date ended.
        let is_over = |state: &RecordState| {
            state.lifecycle() == proto::State::Deleted || (has_date(state) && is_past(state, time))
        };
        let mut over = durable.states.iter().filter(|(_, state)| is_over(state));
        durable.has_forgotten |= over.any(|(key, _)| !durable.shown.contains_key(key));
        if *clock != durable.counters {
            return Err(format!("{node} starts with {clock:?}, and had {:?}", durable.counters));
        }
        self.check(node)
    }

    /// The records of a node are those that its entries say, but for dates.
    pub(crate) fn check(&self, node: &str) -> Outcome {
        let durable = &self.nodes[node];
        let (shown, states) = (&durable.shown, &durable.states);
        for key in shown.keys().chain(states.keys()) {
            let (shown, state) = (shown.get(key), states.get(key));
            if !durable.is_right(shown, state) {
                return Err(format!("{node} shows {shown:?}, and has {state:?}"));
            }
        }
        let expected = for_clients(&durable.shown);
        if durable.clients != expected {
            return Err(format!("{node} serves {:?}, and should {expected:?}", durable.clients));
        }
        Ok(())
    }

    /// The records of a node are what the rules of the merge say of all states that it got, in any order. After
    /// the last date they are equal to the last bit.
    pub(crate) fn check_merged(&self, node: &str, is_after_dates: bool) -> Outcome {
        let durable = &self.nodes[node];
        let mut all: BTreeMap<RecordKey, Vec<RecordState>> = BTreeMap::new();
        for (origin, counter) in &durable.counters {
            let entries = &self.log[origin][..*counter as usize];
            for state in entries.iter().flat_map(|entry| &entry.states) {
                all.entry(key_of(state)).or_default().push(state.clone());
            }
        }
        for (key, states) in all {
            let said = all_at_once(&states);
            let Some(shown) = durable.shown.get(&key) else {
                if durable.is_right(None, Some(&said)) {
                    continue;
                }
                return Err(format!("{node} has no {key:?}, and the rules say {said:?} of {states:?}"));
            };
            let is_equal = if durable.has_forgotten && may_be_gone(Some(shown)) && may_be_gone(Some(&said)) {
                true
            } else if is_after_dates && has_date(&said) {
                *shown == RecordState { lifecycle: proto::State::Deleted.into(), ..said.clone() }
            } else {
                without_date(shown.clone()) == without_date(said.clone())
            };
            if !is_equal {
                return Err(format!("{node} has {shown:?}, and the rules say {said:?} of {states:?}"));
            }
        }
        Ok(())
    }
}

impl Durable {
    /// Whether a record may be this one if the entries say that.
    fn is_right(&self, found: Option<&RecordState>, expected: Option<&RecordState>) -> bool {
        let without = |state: Option<&RecordState>| state.cloned().map(without_date);
        without(found) == without(expected)
            || (self.has_taken && found.is_none() && may_be_gone(expected))
            || (self.has_forgotten && may_be_gone(found) && may_be_gone(expected))
    }

    fn serve(&mut self, key: &RecordKey, state: &RecordState) {
        if served(state).is_some() {
            self.clients.insert(key.clone());
        } else {
            self.clients.remove(key);
        }
    }
}

/// What clients get of these records: of variants that overlap, those that come first (SR47).
fn for_clients(records: &BTreeMap<RecordKey, RecordState>) -> BTreeSet<RecordKey> {
    let mut first: Vec<_> =
        records.iter().filter(|(_, state)| state.lifecycle() != proto::State::Deleted).collect();
    first.sort_by_key(|(key, state)| {
        (Reverse((state.incarnation, state.generation)), state.digest.clone(), *key)
    });
    let mut kept: Vec<proto::Key> = Vec::new();
    let mut clients = BTreeSet::new();
    for (key, state) in first {
        let own = key.to_proto();
        let overlaps = |other: &&proto::Key| {
            let are_disjoint =
                [&own.when, &other.when].iter().all(|when| !matches!(&***when, "" | "env in (1,2)"));
            (&other.type_url, &other.name) == (&own.type_url, &own.name) && !are_disjoint
        };
        if !kept.iter().any(|other| overlaps(&other)) {
            kept.push(own);
            clients.extend(served(state).map(|_| key.clone()));
        }
    }
    clients.extend(dangling(records));
    clients
}

/// SR48: the deleted clusters that routes refer to, unless a rule says what goes with a cluster.
fn dangling(records: &BTreeMap<RecordKey, RecordState>) -> impl Iterator<Item = RecordKey> {
    let is_live = |state: &RecordState| state.lifecycle() != proto::State::Deleted;
    let of_type = |name: &'static str| {
        records.iter().filter(move |(key, _)| key.type_url().message_name().ends_with(name))
    };
    let has_rule = of_type("ReferenceRule").any(|(_, state)| is_live(state));
    let names = |state: &RecordState, name: &str| {
        let field = [b"\n", &[name.len() as u8][..], name.as_bytes()].concat();
        let payload = state.content.as_ref().map_or(&[][..], |content| &content.payload);
        payload.windows(field.len()).any(|part| part == field)
    };
    let is_held = move |key: &RecordKey, state: &RecordState| {
        let mut routes = of_type("RouteConfiguration").filter(|(_, state)| is_live(state));
        !has_rule && !is_live(state) && routes.any(|(_, state)| names(state, key.name().as_str()))
    };
    let held: Vec<_> = of_type("Cluster").filter(|(key, state)| is_held(key, state)).collect();
    held.into_iter().map(|(key, _)| key.clone())
}

/// Notes an entry that a node has got or made. The records that it changes.
fn note(
    log: &mut BTreeMap<String, Vec<proto::Entry>>,
    node: &str,
    durable: &mut Durable,
    entry: proto::Entry,
) -> Result<Vec<RecordKey>, String> {
    let (origin, counter) = (entry.origin.clone(), entry.counter);
    let at = durable.counters.entry(origin.clone()).or_default();
    if counter != *at + 1 {
        return Err(format!("{node} has {counter} of {origin} behind {at}"));
    }
    *at = counter;
    let keys: Vec<_> = entry.states.iter().map(key_of).collect();
    for (key, state) in keys.iter().zip(&entry.states) {
        let before = durable.states.remove(key);
        let after = before.as_ref().map_or_else(|| state.clone(), |before| merge(before, state));
        // No incarnation that was deleted comes back.
        let is_back = |before: &RecordState| {
            let is_deleted = |state: &RecordState| state.lifecycle() == proto::State::Deleted;
            (after.incarnation, is_deleted(&after)) < (before.incarnation, is_deleted(before))
        };
        if let Some(before) = before.filter(is_back) {
            return Err(format!("{before:?} comes back at {node} as {after:?}"));
        }
        durable.states.insert(key.clone(), after);
    }
    let entries = log.entry(origin.clone()).or_default();
    match entries.get(counter as usize - 1) {
        Some(known) if *known == entry => {}
        Some(known) => return Err(format!("{node} has {entry:?} instead of {known:?}")),
        None if origin != node => {
            return Err(format!("{node} has {counter} of {origin}, which {origin} lost"));
        }
        None => {
            let before = entries.last().map(|last| Chain::from_wire(&last.chain).unwrap());
            let chain = before.unwrap_or_default().after(&origin, counter, &entry.states);
            if chain.to_wire() != entry.chain {
                return Err(format!("the chain of {node} is broken at {counter}"));
            }
            entries.push(entry);
        }
    }
    Ok(keys)
}

/// Whether a node may end a record by itself: by its date, with a lease that this node renewed last, by any of its
/// ids (ST36, ST39), or as a deletion in progress (SG7).
fn is_over((node, formers): (&str, &[String]), state: &RecordState, wall: i64) -> bool {
    let has_ended = is_past(state, wall)
        && (state.lease.is_none() || state.renewed_by == node || formers.contains(&state.renewed_by));
    has_ended || state.lifecycle() == proto::State::Deleting
}

fn is_past(state: &RecordState, wall: i64) -> bool {
    state.expires_at.is_some_and(|at| xds_store::time::from_proto(&at) <= wall)
}

/// Whether a store may have forgotten a record: a deleted one, or one that a date ends.
pub(super) fn may_be_gone(state: Option<&RecordState>) -> bool {
    state.is_none_or(|state| state.lifecycle() == proto::State::Deleted || has_date(state))
}

/// SR5: whether its date ends the record, at each node by its own clock.
fn has_date(state: &RecordState) -> bool {
    state.lease.is_none() && state.expires_at.is_some()
}

/// What a date ends at each node by itself is no part of the replicated state.
pub(super) fn without_date(state: RecordState) -> RecordState {
    let lifecycle = if has_date(&state) { 0 } else { state.lifecycle };
    RecordState { lifecycle, ..state }
}

pub(super) fn key_of(state: &RecordState) -> RecordKey {
    RecordKey::parse(state.key.as_ref().unwrap()).unwrap()
}

fn of(counters: &Counters, origin: &str) -> u64 {
    counters.get(origin).copied().unwrap_or_default()
}

/// Who makes the commits of a snapshot, and those that give records to others again.
const RESYNC: &str = "resync";
const REISSUE: &str = "reissue";
