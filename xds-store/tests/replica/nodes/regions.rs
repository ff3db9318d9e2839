//! Nodes of several regions: each region owns the names with its prefix, refers to names of the others, hands its names
//! over, and leaves regions out (SG21 to SG36).
//!
//! A clock does not say what a node has, as each region gets what is for it (SG25). What holds after each step: no
//! reference leads to a record that its region has deleted (SG32), a copy goes only because its record was deleted or a
//! policy leaves the region out (SG27, SG29), and each name has one writer at a time (SG22, SG28). In the end all that
//! have a record have the same one, and without references everything can be deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message as _;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Engine as _, MemoryEngine, Value};
use xds_store::entry::Foreign;
use xds_store::key::RecordKey;
use xds_store::merge::merge;
use xds_store::read::Reads;
use xds_store::record::{RecordState, served};
use xds_store::region::{POLICY_TYPE, Policies};
use xds_store::store::{Identity, Published, ToFetch};

use super::driver::Process;
use super::history::key_of;
use super::{CLUSTER, Outcome, SECOND, START, Sim, name};
use crate::driven::envoy::{cluster_key, delete_at, drain_at, eds_cluster, put_at, routes, routes_key};
use crate::driven::{envoy, of};
use crate::random::Random;

mod requests;
mod runs;

const REGIONS: [&str; 3] = ["eu", "us", "ap"];
/// A name that no policy is about.
const GLOBAL: &str = "g";
/// Names of a longer prefix of one of the regions, which may have a policy of their own (SG21).
const NESTED: &str = "eu/n";
const CLUSTERS: [&str; 2] = ["x", "y"];
const ROUTES: [&str; 2] = ["r", "s"];

/// What is known of a run.
pub(super) struct Regions {
    regions: usize,
    pub(super) nodes: Vec<Has>,
    /// A writer went on without all that another one of its region had written, so some names had two writers.
    pub(super) is_split: bool,
    /// The last incarnation of a record that its writer deleted.
    deleted: BTreeMap<RecordKey, u64>,
    /// What a writer wrote as some generation of a record.
    written: BTreeMap<(RecordKey, u64, u64), Bytes>,
    /// The prefixes that were handed over.
    moved: BTreeSet<String>,
    /// The region that never comes back, once an operator forgets its nodes (SR33); empty: none.
    pub(super) gone: &'static str,
    /// The prefixes whose policy was deleted.
    freed: BTreeSet<String>,
    /// The records of which some state was lost with a disk, at all nodes of its region.
    pub(super) lost: BTreeSet<RecordKey>,
    /// Those of them of which a node heard something later: a message was under way.
    late: BTreeSet<RecordKey>,
    /// A node came back from a backup.
    pub(super) is_restored: bool,
    /// What nodes had when their backups were made.
    pub(super) backups: BTreeMap<usize, Has>,
}

/// What a node has durably.
#[derive(Default, Clone)]
pub(super) struct Has {
    pub(super) region: &'static str,
    pub(super) is_replica: bool,
    revision: u64,
    pub(super) states: BTreeMap<RecordKey, RecordState>,
    policies: Policies,
    /// What its clients were shown.
    shown: BTreeMap<RecordKey, RecordState>,
}

impl Has {
    /// The node has another disk. The answer is what it had.
    pub(super) fn begin_anew(&mut self) -> Self {
        let Self { region, is_replica, .. } = *self;
        std::mem::replace(self, Self { region, is_replica, ..Self::default() })
    }

    fn live(&self, key: &RecordKey) -> Option<&RecordState> {
        self.states.get(key).filter(|state| is_live(state))
    }

    /// The clusters that it has.
    fn clusters(&self) -> Vec<String> {
        let of_type = |key: &RecordKey| *key == parsed(&cluster_key(key.name().as_str()));
        let live = self.states.iter().filter(|(key, state)| is_live(state) && of_type(key));
        live.map(|(key, _)| key.name().as_str().to_owned()).collect()
    }

    /// SG25: whether its region has the record.
    fn keeps(&self, key: &RecordKey) -> bool {
        self.policies.owner_of(key).is_none_or(|owner| self.policies.is_for(key, owner, self.region))
    }
}

impl Regions {
    /// The first nodes are the writers of their regions.
    pub(super) fn new(count: usize, nodes: usize) -> Self {
        let has =
            |node: usize| Has { region: REGIONS[node % count], is_replica: node >= count, ..Has::default() };
        Self {
            regions: count,
            nodes: (0..nodes).map(has).collect(),
            is_split: false,
            deleted: BTreeMap::new(),
            written: BTreeMap::new(),
            moved: BTreeSet::new(),
            gone: "",
            freed: BTreeSet::new(),
            lost: BTreeSet::new(),
            late: BTreeSet::new(),
            is_restored: false,
            backups: BTreeMap::new(),
        }
    }

    /// How many nodes there are.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn identity(&self, node: usize) -> Identity {
        let Has { region, is_replica, .. } = self.nodes[node];
        let (region, cluster) = (region.into(), CLUSTER.into());
        Identity { node: name(node), cluster, region, is_replica }
    }

    /// The beginnings of all names.
    fn prefixes(&self) -> impl Iterator<Item = &'static str> {
        REGIONS[..self.regions].iter().chain([&GLOBAL, &NESTED]).copied()
    }

    /// The engine of a node has changed: reads what is new there, and checks what holds then.
    pub(super) fn durable(&mut self, (node, id): (usize, &str), engine: &MemoryEngine) -> Outcome {
        let view = engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let has = &mut self.nodes[node];
        if has.revision == reads.head().revision {
            return Ok(());
        }
        for revision in has.revision + 1..=reads.head().revision {
            let Foreign::Entry(entry) = reads.foreign(revision).unwrap() else { continue };
            for state in entry.states {
                let key = key_of(&state);
                if entry.counter > 0 && entry.origin == id {
                    // What is lost may have had the same generation.
                    let is_freed = self.freed.iter().any(|prefix| key.name().as_str().starts_with(prefix));
                    let is_alone = !self.is_split && !self.lost.contains(&key) && !is_freed;
                    // SG21: nodes merge what they write of global names.
                    let frees = Policies::is_policy(&key) && !is_live(&state);
                    self.freed.extend(frees.then(|| key.name().as_str().to_owned()));
                    wrote(&mut self.deleted, &mut self.written, &mut self.moved, (&key, &state), is_alone)?;
                }
                self.late.extend(self.lost.get(&key).cloned());
                has.states.extend(reads.last(&key).unwrap().map(|version| (key, version.state)));
            }
        }
        // What other nodes do not get is in no entry: copies that end here (SG27).
        for (key, state) in &mut has.states {
            *state = reads.last(key).unwrap().map(|version| version.state).unwrap_or_else(|| state.clone());
        }
        has.revision = reads.head().revision;
        has.policies.clone_from(reads.policies().unwrap());
        self.check_references()
    }

    /// SG32: a reference that exists never loses its block, so what it leads to is there.
    fn check_references(&self) -> Outcome {
        if self.is_split {
            return Ok(());
        }
        let all = REGIONS[..self.regions].iter().copied();
        let staying: Vec<_> = all.filter(|region| !self.moved.contains(*region)).collect();
        for source in &staying {
            for key in ROUTES.map(|routes| parsed(&routes_key(&format!("{source}/{routes}")))) {
                // The region of the target was answered without what is lost.
                let state = self.writer(source).live(&key).filter(|_| !self.lost.contains(&key));
                let Some(state) = state else { continue };
                for target in staying.iter().filter(|target| *target != source) {
                    let named = CLUSTERS.map(|cluster| format!("{target}/{cluster}"));
                    for named in named.iter().filter(|cluster| names(state, cluster)) {
                        let cluster = parsed(&cluster_key(named));
                        let is_lost = self.lost.contains(&cluster);
                        if self.writer(target).live(&cluster).is_none() && !is_lost {
                            return Err(format!("{key:?} leads to {cluster:?}, which {target} has deleted"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn writer(&self, region: &str) -> &Has {
        &self.nodes[self.writer_of(region)]
    }

    fn writer_of(&self, region: &str) -> usize {
        self.nodes.iter().position(|has| has.region == region && !has.is_replica).unwrap()
    }

    /// A process shows commits to its clients.
    pub(super) fn published(&mut self, node: usize, commits: &[Published]) -> Outcome {
        let Self { nodes, deleted, .. } = self;
        let has = &mut nodes[node];
        for commit in commits {
            for (key, state) in &commit.changed {
                let before = has.shown.insert(key.clone(), state.clone());
                let Some(before) = before.filter(|before| served(before).is_some()) else { continue };
                let is_deleted = deleted.get(key).is_some_and(|last| *last >= before.incarnation);
                // SG27, SG29
                if served(state).is_none() && !is_deleted && has.keeps(key) {
                    return Err(format!("{} takes {before:?} from its clients", name(node)));
                }
            }
        }
        Ok(())
    }

    /// What is not yet as it shall be at these nodes, which fetch the names with these prefixes.
    pub(super) fn difference(
        &self,
        nodes: &BTreeSet<usize>,
        fetched: &BTreeMap<usize, Vec<String>>,
    ) -> Option<String> {
        let of = || nodes.iter().map(|node| (*node, &self.nodes[*node]));
        // SG26: what a region wrote that is not here comes from that region alone.
        let is_whole = nodes.len() == self.nodes.len();
        let keys: BTreeSet<_> = of().flat_map(|(_, has)| has.states.keys()).collect();
        for (node, has) in of() {
            for key in &keys {
                // SG26: what the nodes of a region wrote that is gone, others have as they heard it.
                let is_of_gone = |owner: &str| owner == self.gone;
                let is_its = |other: &&Has| match has.policies.owner_of(key) {
                    Some(owner) if is_of_gone(owner) => other.region == has.region,
                    _ if !is_whole && self.gone.is_empty() => other.region == has.region,
                    None => true,
                    Some(owner) => other.region == owner && !other.is_replica,
                };
                let expected = of().map(|(_, has)| has).find(is_its).and_then(|other| other.live(key));
                let (found, expected) = (has.live(key), expected.filter(|_| has.keeps(key)));
                // SR51: a comparison waits for all that the peer has, also of a region that is away. SG26: what that
                // made comes from it alone.
                let is_away = |state: &RecordState| !nodes.iter().any(|node| is_of(*node, &state.origin));
                let is_made_away = || found.into_iter().chain(expected).any(is_away);
                let is_awaited = !is_whole && self.gone.is_empty() && has.policies.owner_of(key).is_none();
                // SG27: what a region committed that is away may have these names.
                let is_fetched = || {
                    let mut prefixes = fetched.values().flatten();
                    prefixes.any(|prefix| key.name().as_str().starts_with(prefix))
                };
                let is_excused = !is_whole && self.gone.is_empty() && is_fetched()
                    || is_awaited && (self.lost.contains(key) || is_made_away())
                    || self.has_lost_state(key, has);
                if found != expected && !is_excused {
                    let policy = has.policies.of(key);
                    let (found, expected) = (found.map(brief), expected.map(brief));
                    return Some(format!(
                        "{} of {} has {key:?} as {found:?}, and not as {expected:?}, by {policy:?}",
                        name(node),
                        has.region
                    ));
                }
            }
        }
        None
    }

    /// No write is lost that a node had durably: the region that owns the name has it, or something newer.
    fn lost_write(&self) -> Outcome {
        let policies = &self.nodes[0].policies;
        for (key, incarnation, generation) in self.written.keys().filter(|(key, ..)| !self.lost.contains(key))
        {
            let node = policies.owner_of(key).map_or(0, |owner| self.writer_of(owner));
            let is_deleted = self.deleted.get(key).is_some_and(|last| last >= incarnation);
            let found = self.nodes[node].states.get(key);
            let is_there = found
                .is_some_and(|found| (found.incarnation, found.generation) >= (*incarnation, *generation));
            if !is_there && !is_deleted {
                let found = found.map(brief);
                return Err(format!(
                    "{} has {key:?} as {found:?}: {incarnation}.{generation} is lost",
                    name(node)
                ));
            }
        }
        Ok(())
    }

    /// Whether a node has a state of a record that its owner lacks, as the disk of another node was lost: it stays
    /// (SR51), and is at least as new as that of the owner. The only node of a region fetches it from the only other
    /// region (SG27).
    fn has_lost_state(&self, key: &RecordKey, has: &Has) -> bool {
        let owner =
            has.policies.owner_of(key).filter(|owner| self.lost.contains(key) && *owner != has.region);
        let is_fetched = |owner| {
            self.regions == 2
                && self.others_of_region(self.writer_of(owner)).is_empty()
                && has.policies.is_for(key, has.region, owner)
        };
        let owner = owner.filter(|owner| self.late.contains(key) || !is_fetched(owner));
        let of_owner = owner.and_then(|owner| self.writer(owner).states.get(key));
        let found = has.states.get(key);
        owner.is_some() && found.is_some_and(|found| of_owner.is_none_or(|of| merge(found, of) == *found))
    }

    /// What is left at these nodes, when everything shall be deleted.
    fn left(&self, nodes: &BTreeSet<usize>) -> Vec<&RecordKey> {
        let states = nodes.iter().flat_map(|node| &self.nodes[*node].states);
        states.filter(|(key, state)| !is_configuration(key) && is_live(state)).map(|(key, _)| key).collect()
    }
}

/// Whether an id is one that a node has or had.
fn is_of(node: usize, id: &str) -> bool {
    id.split('.').next() == Some(&*name(node))
}

/// Notes a state that its writer wrote. SG22, SG28: a name has one writer at a time, so no two states are the same
/// generation of it. SR34: what two writers of a region write is merged.
fn wrote(
    deleted: &mut BTreeMap<RecordKey, u64>,
    written: &mut BTreeMap<(RecordKey, u64, u64), Bytes>,
    moved: &mut BTreeSet<String>,
    (key, state): (&RecordKey, &RecordState),
    is_alone: bool,
) -> Outcome {
    let name = key.name().as_str().to_owned();
    if state.lifecycle() == proto::State::Deleted {
        let last = deleted.entry(key.clone()).or_default();
        *last = state.incarnation.max(*last);
    }
    if Policies::is_policy(key) {
        let policy = proto::RegionPolicy::decode(&*state.content.as_ref().unwrap().payload).unwrap();
        let prefix = name.trim_end_matches('/');
        // Without its policy, they are global, or of the region of a shorter prefix.
        if policy.owner_region != prefix || !is_live(state) {
            moved.insert(prefix.to_owned());
        }
        return Ok(());
    }
    if name.starts_with(GLOBAL) {
        return Ok(());
    }
    let generation = (key.clone(), state.incarnation, state.generation);
    let before = written.entry(generation).or_insert_with(|| state.digest.clone());
    if *before == state.digest || !is_alone {
        return Ok(());
    }
    Err(format!("two writers made {} of {key:?}", state.generation))
}

/// Which state of its record it is.
fn brief(state: &RecordState) -> String {
    let RecordState { incarnation, generation, origin, .. } = state;
    format!("{:?} {incarnation}.{generation} of {origin}", state.lifecycle())
}

/// Policies, and the records of forgotten nodes, which stay (SR33).
fn is_configuration(key: &RecordKey) -> bool {
    key.type_url().message_name().starts_with("xds.store.v1.")
}

fn is_live(state: &RecordState) -> bool {
    state.lifecycle() != proto::State::Deleted
}

fn parsed(key: &proto::Key) -> RecordKey {
    RecordKey::parse(key).unwrap()
}

/// Whether routes lead to a cluster.
fn names(state: &RecordState, cluster: &str) -> bool {
    let payload = state.content.as_ref().map_or(&[][..], |content| &content.payload);
    payload.windows(cluster.len()).any(|part| part == cluster.as_bytes())
}
