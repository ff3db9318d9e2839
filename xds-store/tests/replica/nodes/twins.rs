//! Two nodes with one id: a folder that was copied and runs twice, or that was set back to an older copy (SR28).
//!
//! Nodes may follow different logs of that id then (SR30), so a clock does not say what a node has. What holds: the
//! nodes of the core become equal, have all that any of them had durably, and revive nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Batch, Engine as _, MemoryEngine, Value};
use xds_store::entry::Foreign;
use xds_store::key::RecordKey;
use xds_store::merge::merge;
use xds_store::read::Reads;
use xds_store::record::RecordState;
use xds_store::replica::Alarm;

use super::history::{key_of, may_be_gone, without_date};
use super::{Happens, Outcome, START, Sim, disks, name};
use crate::random::Random;

/// What is known of a run with twins.
#[derive(Default)]
pub(super) struct Twins {
    nodes: BTreeMap<usize, Has>,
    /// The ids that two nodes had.
    ids: BTreeSet<String>,
    /// The chains of the entries with a number of an origin.
    chains: BTreeMap<(String, u64), BTreeSet<Vec<u8>>>,
}

/// What a node has durably.
#[derive(Default)]
struct Has {
    revision: u64,
    states: BTreeMap<RecordKey, RecordState>,
    /// What it wrote and merged since its folder is this one.
    got: Vec<RecordState>,
}

impl Twins {
    pub(super) fn state(&self, node: usize, key: &RecordKey) -> Option<&RecordState> {
        self.nodes.get(&node)?.states.get(key)
    }

    /// Another folder is at a node.
    fn begin_anew(&mut self, node: usize, engine: &MemoryEngine) -> Outcome {
        self.nodes.insert(node, Has::default());
        self.durable(node, engine)?;
        let view = engine.view().unwrap();
        self.ids.insert(Reads::new(&*view).unwrap().head().node.clone());
        Ok(())
    }

    /// The engine of a node has changed: reads what is new there.
    pub(super) fn durable(&mut self, node: usize, engine: &MemoryEngine) -> Outcome {
        let view = engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let has = self.nodes.entry(node).or_default();
        for revision in has.revision + 1..=reads.head().revision {
            let Foreign::Entry(entry) = reads.foreign(revision).unwrap() else {
                return Err(format!("{} skips entries of its own accord at {revision}", name(node)));
            };
            if entry.counter > 0 {
                let chains = self.chains.entry((entry.origin.clone(), entry.counter)).or_default();
                chains.insert(entry.chain.to_vec());
                // SR4; SR28: two logs of one id, until the nodes find it.
                if chains.len() > if self.ids.contains(&entry.origin) { 2 } else { 1 } {
                    return Err(format!("{} of {} is {} entries", entry.counter, entry.origin, chains.len()));
                }
            }
            for state in entry.states {
                let key = key_of(&state);
                has.states.extend(reads.last(&key).unwrap().map(|version| (key, version.state)));
                has.got.push(state);
            }
        }
        has.revision = reads.head().revision;
        Ok(())
    }

    /// SR30: an origin with two logs raises an alarm where they meet. SR51: what one of them had comes by a comparison.
    pub(super) fn may_raise(&self, alarm: &Alarm) -> bool {
        match alarm {
            Alarm::Forked(_, id) | Alarm::Twins(id) => self.ids.contains(id),
            Alarm::Differed(_) => true,
            _ => false,
        }
    }

    /// The records that are not the same at all of these nodes, but for what each may have forgotten (SR25) or
    /// ended (SR5).
    pub(super) fn differences(&self, nodes: &BTreeSet<usize>) -> BTreeSet<&RecordKey> {
        let records = |node: &usize| -> BTreeMap<_, _> {
            let states = self.nodes.get(node).into_iter().flat_map(|has| &has.states);
            let kept = states.filter(|(_, state)| !may_be_gone(Some(state)));
            kept.map(|(key, state)| (key, compared(state))).collect()
        };
        let all: Vec<_> = nodes.iter().map(records).collect();
        let differs = |key: &RecordKey| all.iter().any(|records| records.get(key) != all[0].get(key));
        all.iter().flat_map(BTreeMap::keys).copied().filter(|key| differs(key)).collect()
    }

    /// SR29, SR31: each of these nodes has all that it has got, and nothing that was deleted is back. They are equal.
    fn check(&self, nodes: &BTreeSet<usize>) -> Outcome {
        for node in nodes {
            for state in self.nodes.get(node).into_iter().flat_map(|has| &has.got) {
                let found = self.state(*node, &key_of(state));
                let is_covered = found.is_some_and(|found| match found.incarnation.cmp(&state.incarnation) {
                    std::cmp::Ordering::Less => false,
                    // SR37, SR51: a comparison leaves out what is deleted.
                    std::cmp::Ordering::Equal if found.lifecycle() == proto::State::Deleted => true,
                    std::cmp::Ordering::Equal => compared(&merge(found, state)) == compared(found),
                    std::cmp::Ordering::Greater => true,
                });
                if !(is_covered || may_be_gone(found) && may_be_gone(Some(state))) {
                    return Err(format!("{} has {found:?}, which {state:?} was to change", name(*node)));
                }
            }
        }
        Ok(())
    }
}

impl Sim {
    /// A folder of a node is copied, and the copy runs in its place or in that of another node.
    pub(super) fn plan_twins(&mut self, random: &mut Random) {
        let count = self.nodes.len();
        let (is_planned, is_clone) = (random.chance(20), random.chance(50));
        let (of, at) = (random.below(count as u64) as usize, random.below(count as u64) as usize);
        let copied_at = disks::time(random, START);
        let set_back_at = disks::time(random, copied_at);
        // Nodes of a chain hear the twin of another one by its entries alone, and those do not reach them if they
        // differ on the way (SR30).
        let is_chain = self.peers.iter().any(|peers| peers.len() + 1 < count);
        if !is_planned || is_chain || self.forgets || self.regions.is_some() || !disks::has("twins") {
            return;
        }
        self.twins = Some(Twins::default());
        if is_clone && of != at {
            self.at(copied_at, Happens::Clones(of, at));
        } else {
            self.at(copied_at, Happens::Copies(of));
            self.at(set_back_at, Happens::SetsBack(of));
        }
    }

    pub(super) fn copy_folder(&mut self, node: usize) {
        self.nodes[node].folder = Some(copy_of(&self.nodes[node].engine));
    }

    pub(super) fn run_copy(&mut self, of: usize, at: usize) -> Outcome {
        let Some(folder) = self.nodes[of].folder.take() else { return Ok(()) };
        self.crash(at)?;
        self.nodes[at].engine = folder;
        self.counts.twins += 1;
        let Some(twins) = &mut self.twins else { return Ok(()) };
        twins.begin_anew(at, &self.nodes[at].engine)
    }

    pub(super) fn have_twins_converged(&self) -> bool {
        self.twins.as_ref().is_none_or(|twins| twins.differences(&self.core).is_empty())
    }

    pub(super) fn check_twins(&self) -> Outcome {
        self.twins.as_ref().map_or(Ok(()), |twins| twins.check(&self.core))
    }
}

/// What nodes compare of a state (SR51): no touch changes a record revision, so one on the other log of an id stays
/// there.
fn compared(state: &RecordState) -> RecordState {
    let state = without_date(state.clone());
    match state.lease {
        Some(_) => RecordState { expires_at: None, renewal: 0, renewed_by: String::new(), ..state },
        None => state,
    }
}

/// An engine that has the same.
pub(crate) fn copy_of(engine: &MemoryEngine) -> MemoryEngine {
    let mut copy = Batch::default();
    let each = &mut |key: &[u8], value: Value| {
        copy.writes.push((Bytes::copy_from_slice(key), Some(value.bytes)));
        ControlFlow::Continue(())
    };
    engine.view().unwrap().range(b"a", b"{", each).unwrap();
    let mut engine = MemoryEngine::default();
    engine.commit(&copy).unwrap();
    engine
}
