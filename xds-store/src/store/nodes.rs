//! The other nodes that this one knows, as a restart has to find them (SR9).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use bytes::Bytes;

use super::{Store, Writing};
use crate::checked::{self, Damaged};
use crate::clock::Counters;
use crate::engine::View;
use crate::key::stored;
use crate::log::StoredNode;
use crate::stored::ReadError;
use crate::time::SECOND;

/// The nodes that are known, by id.
///
/// The clock of a node only grows, so what is known of it stays true, whether or not it is durable here.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<Box<str>, Node>);

#[derive(Debug)]
struct Node {
    counters: Counters,
    /// How long this node had run when it was heard last.
    heard_at: i64,
    /// The time of this store then; 0: it is not known.
    heard_time: i64,
    /// The region that it said, which is not known otherwise before it commits.
    region: Box<str>,
    stored: InEngine,
}

/// Whether the engine has what is known of a node.
#[derive(Debug, PartialEq, Eq)]
enum InEngine {
    Yes,
    /// The batch that is being written has it.
    Soon,
    No,
}

impl Nodes {
    /// The nodes of a store.
    pub(super) fn load(view: &dyn View) -> Result<Self, ReadError> {
        let mut nodes = BTreeMap::new();
        let mut failed: Option<Damaged> = None;
        view.range(stored::NODES.0, stored::NODES.1, &mut |key, value| {
            let Some(id) = stored::parse_node(key) else {
                failed = Some(Damaged { key: Bytes::copy_from_slice(key) });
                return ControlFlow::Break(());
            };
            match checked::decode(key, value.bytes) {
                Ok(StoredNode { counters, heard_at, heard_time, region }) => {
                    let (region, stored) = (region.into(), InEngine::Yes);
                    nodes.insert(id.into(), Node { counters, heard_at, heard_time, region, stored });
                    ControlFlow::Continue(())
                }
                Err(damaged) => {
                    failed = Some(damaged);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(Self(nodes)), |damaged| Err(damaged.into()))
    }

    /// A node was heard, and has at least this.
    pub(super) fn hear(&mut self, id: &str, counters: Counters, (running, time): (i64, i64)) {
        let new = || Node {
            counters: Counters::new(),
            heard_at: running,
            heard_time: time,
            region: Box::default(),
            stored: InEngine::No,
        };
        let node = self.0.entry(id.into()).or_insert_with(new);
        for (origin, counter) in counters {
            let known = node.counters.entry(origin).or_default();
            *known = counter.max(*known);
        }
        (node.heard_at, node.heard_time) = (running, time);
        node.stored = InEngine::No;
    }

    /// A node that was heard said its region.
    pub(super) fn set_region(&mut self, id: &str, region: String) {
        if let Some(node) = self.0.get_mut(id).filter(|node| *node.region != *region) {
            (node.region, node.stored) = (region.into(), InEngine::No);
        }
    }

    /// The nodes with their clocks, in the order of ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Counters)> {
        self.0.iter().map(|(id, node)| (&**id, &node.counters))
    }

    /// What the engine has of a node is all that it gets.
    pub(super) fn keep_as_stored(&mut self, id: &str) {
        if let Some(node) = self.0.get_mut(id) {
            node.stored = InEngine::Yes;
        }
    }

    /// These nodes are known no longer.
    pub(super) fn drop_all(&mut self, ids: &BTreeSet<Box<str>>) {
        self.0.retain(|id, _| !ids.contains(id));
    }

    /// Whether the engine lacks something.
    pub(super) fn has_news(&self) -> bool {
        self.0.values().any(|node| node.stored == InEngine::No)
    }

    /// The batch is durable.
    pub(super) fn written(&mut self) {
        let soon = self.0.values_mut().filter(|node| node.stored == InEngine::Soon);
        soon.for_each(|node| node.stored = InEngine::Yes);
    }

    /// No batch is being written any more.
    pub(super) fn not_written(&mut self) {
        let soon = self.0.values_mut().filter(|node| node.stored == InEngine::Soon);
        soon.for_each(|node| node.stored = InEngine::No);
    }
}

impl Store {
    /// The nodes that were remembered, with their clocks (SR9), but for forgotten ones.
    pub fn known(&self) -> impl Iterator<Item = (&str, &Counters)> {
        self.nodes.iter().filter(|(id, _)| !self.index.forgotten().contains(id))
    }

    /// The region of a node; empty if it has none, or is not known.
    pub(super) fn region_of(&self, node: &str) -> &str {
        match self.origins.region(node) {
            "" => self.nodes.0.get(node).map_or("", |node| &node.region),
            region => region,
        }
    }

    /// When a node of each region was heard last, in nanoseconds since 1970, as far as the engine has it (SG29).
    #[must_use]
    pub fn regions_heard(&self) -> BTreeMap<String, i64> {
        let mut heard = BTreeMap::new();
        for (id, node) in self.nodes.0.iter().filter(|(_, node)| node.heard_time > 0) {
            let last: &mut i64 = heard.entry(self.region_of(id).to_owned()).or_default();
            *last = node.heard_time.max(*last);
        }
        heard.remove("");
        heard
    }

    /// Whether what a node with these entries has may revive what is deleted: the records of the deletions that it
    /// lacks are forgotten here (SR21). Its entries can be taken once it has replaced its records.
    #[must_use]
    pub fn may_revive(&self, counters: &Counters) -> bool {
        self.origins.lacks_deletions(counters)
    }

    /// SR60: the revision up to which the log may be forgotten: entries are kept for a node that lacks them, for
    /// 24 h after it was heard. This is running time, so a stop of all nodes puts none of them out of sync.
    pub(super) fn forgettable(&self) -> u64 {
        let forgotten = self.index.forgotten();
        let nodes = self.nodes.0.iter().filter(|(id, node)| {
            let since = self.running.length().saturating_sub(node.heard_at);
            since < KEPT_FOR && !forgotten.contains(id)
        });
        nodes.map(|(_, node)| self.origins.covered(&node.counters)).min().unwrap_or(u64::MAX)
    }

    /// Adds what the engine lacks of nodes, as far as the batch has room. It makes no revision: no other node
    /// and no reader gets it.
    pub(super) fn add_nodes(&mut self, writing: &mut Writing, now: i64) {
        if writing.batch.writes.is_empty() && now < self.ends_again_at {
            return;
        }
        let limits = &self.config.engine;
        let operations = limits.operations.saturating_sub(writing.positions.len() + 1);
        for (id, node) in self.nodes.0.iter_mut().filter(|(_, node)| node.stored == InEngine::No) {
            let key = stored::node(id);
            let Node { heard_at, heard_time, .. } = *node;
            let (counters, region) = (node.counters.clone(), node.region.to_string());
            let value = checked::encode(&key, &StoredNode { counters, heard_at, heard_time, region });
            let is_alone = writing.batch.writes.is_empty();
            let has_room =
                writing.batch.writes.len() < operations && writing.bytes + value.len() < limits.bytes / 2;
            if !is_alone && !has_room {
                break;
            }
            writing.write(key, value);
            node.stored = InEngine::Soon;
        }
    }
}

/// How long after a node was heard the log has what it lacks (SR60).
const KEPT_FOR: i64 = 24 * 3600 * SECOND;
