//! Real stores of several regions whose calls are answered at once, or fail.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use prost::Message as _;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::engine::{Batch, Engine as _, MemoryEngine};
use xds_store::key::RecordKey;
use xds_store::read::{ConflictsQuery, Reads};
use xds_store::record::RecordState;
use xds_store::region::POLICY_TYPE;
use xds_store::store::{Identity, Store, Ticket};

use crate::driven::forget;
use crate::nodes::copy_of;
use crate::nodes::driver::{Input, Output, Process, Request};
use crate::random::Random;

/// Nodes whose calls are answered at once, or fail.
pub(super) struct Nodes {
    pub(super) regions: Vec<&'static str>,
    pub(super) engines: Vec<MemoryEngine>,
    pub(super) processes: Vec<Process>,
    pub(super) now: i64,
    pub(super) runs: u64,
    pub(super) random: Random,
    /// How many of a hundred calls fail.
    pub(super) failing: u64,
    /// Whether comparisons fail.
    pub(super) cannot_compare: bool,
    /// Nodes that reach no other one.
    pub(super) cut: Vec<usize>,
    /// Nodes that do not reach another one, which may reach them.
    pub(super) mute: Vec<(usize, usize)>,
    /// Whether nodes may lose their ids.
    takes_ids: bool,
    pub(super) refused: Vec<Refused>,
    pub(super) alarms: Vec<String>,
}

impl Nodes {
    /// The first node of each region is its writer.
    pub(super) fn new(regions: &[&'static str], seed: u64) -> Self {
        let mut nodes = Self {
            regions: Vec::new(),
            engines: Vec::new(),
            processes: Vec::new(),
            now: 1_000_000_000_000_000,
            runs: 1,
            random: Random(seed),
            failing: 0,
            cannot_compare: false,
            cut: Vec::new(),
            mute: Vec::new(),
            takes_ids: false,
            refused: Vec::new(),
            alarms: Vec::new(),
        };
        regions.iter().for_each(|region| nodes.add(region, false));
        nodes
    }

    pub(super) fn add(&mut self, region: &'static str, is_joining: bool) {
        let is_replica = self.regions.contains(&region);
        self.add_as(region, is_joining, is_replica);
    }

    /// A node joins as the writer of its region, whose other nodes are lost.
    pub(super) fn add_writer(&mut self, region: &'static str) {
        self.add_as(region, true, false);
    }

    fn add_as(&mut self, region: &'static str, is_joining: bool, is_replica: bool) {
        let mut engine = MemoryEngine::default();
        let identity = Identity {
            node: self.engines.len().to_string(),
            cluster: "c".into(),
            region: region.into(),
            is_replica,
        };
        let init = if is_joining { Store::init_joining } else { Store::init };
        engine.commit(&init(&identity)).unwrap();
        self.regions.push(region);
        self.engines.push(engine);
        let node = self.engines.len() - 1;
        let started = self.start(node);
        self.processes.push(started);
        for node in 0..self.engines.len() {
            self.tell_peers(node);
        }
    }

    fn start(&mut self, node: usize) -> Process {
        self.runs += 1;
        let run = (&*node.to_string(), self.runs);
        Process::start(self.engines[node].clone(), run, (self.now, self.now), |_| {})
    }

    fn tell_peers(&mut self, node: usize) {
        let others = (0..self.engines.len()).filter(|other| *other != node);
        let peers = others.map(|other| other.to_string()).collect();
        self.input(node, Input::Peers(peers));
    }

    /// The process ends without a word, and another one starts.
    pub(super) fn crash(&mut self, node: usize) {
        self.processes[node] = self.start(node);
        self.tell_peers(node);
    }

    /// Does all that follows from an input, at all nodes.
    fn input(&mut self, node: usize, input: Input) {
        let mut inputs = VecDeque::from([(node, input)]);
        let mut callers = BTreeMap::new();
        while let Some((node, input)) = inputs.pop_front() {
            for output in self.processes[node].handle(input, (self.now, self.now)) {
                match output {
                    Output::Write(batch) => {
                        let written = self.engines[node].commit(&batch);
                        inputs.push_back((node, Input::Written(written)));
                    }
                    Output::Call(call, address, request) => {
                        let to: usize = address.parse().unwrap();
                        let is_digest = matches!(request, Request::Digest(_));
                        let is_cut = (self.cannot_compare && is_digest)
                            || self.cut.contains(&node)
                            || self.cut.contains(&to)
                            || self.mute.contains(&(node, to));
                        if is_cut || to >= self.processes.len() || self.random.below(100) < self.failing {
                            inputs.push_back((node, Input::Answered(call, request.unreachable())));
                            continue;
                        }
                        let ticket = Ticket((node as u64) << 40 | call.0 | 1 << 30);
                        callers.insert((to, ticket), (node, call));
                        inputs.push_back((to, Input::Called(ticket, request)));
                    }
                    Output::Answer(ticket, parts) => {
                        let (caller, call) = callers[&(node, ticket)];
                        inputs.extend(parts.into_iter().map(|part| (caller, Input::Answered(call, part))));
                    }
                    Output::Refused(_, refused) => self.refused.push(refused),
                    Output::Raise(alarm) => self.alarms.push(format!("{node}: {alarm:?}")),
                    Output::TakesId(why) => assert!(self.takes_ids, "{why}"),
                    Output::Mended(_)
                    | Output::Resynced(_)
                    | Output::Published(_)
                    | Output::Cancel(_)
                    | Output::Committed(..)
                    | Output::Compacted => {}
                }
            }
        }
    }

    pub(super) fn run(&mut self, seconds: i64) {
        let until = self.now + seconds * 1_000_000_000;
        loop {
            let due = |node: usize| Some((self.processes[node].due((self.now, self.now))?, node));
            let next = (0..self.processes.len()).filter_map(due).min();
            let Some((at, node)) = next.filter(|(at, _)| *at <= until) else { break };
            self.now = self.now.max(at);
            self.input(node, Input::Due);
        }
        self.now = until;
    }

    /// A day passes, and a node forgets its log: nobody was heard to lack it for that long (SR60).
    pub(super) fn forget_log(&mut self, node: usize) {
        for _ in 0..80 {
            self.now += 1_200_000_000_000;
            (0..self.engines.len()).for_each(|node| self.input(node, Input::Due));
        }
        self.input(node, Input::Compact(u64::MAX));
    }

    pub(super) fn commit(
        &mut self,
        node: usize,
        key: proto::Key,
        act: proto::change::Act,
    ) -> Result<(), RefusalCode> {
        self.commit_all(node, vec![proto::Change { key: Some(key), act: Some(act), condition: None }])
    }

    pub(super) fn commit_all(&mut self, node: usize, changes: Vec<proto::Change>) -> Result<(), RefusalCode> {
        let request = proto::CommitRequest { changes, ..Default::default() };
        let draft = Draft::parse(request, "user".into()).unwrap();
        self.now += 1;
        self.input(node, Input::Commit { ticket: Ticket(self.now as u64), draft, peers: 0, until: 0 });
        self.refused.pop().map_or(Ok(()), |refused| Err(refused.code))
    }

    pub(super) fn put(&mut self, node: usize, name: &str, payload: &str) -> Result<(), RefusalCode> {
        self.commit(node, key(name), put(payload.as_bytes().to_vec()))
    }

    /// One commit.
    pub(super) fn put_all(&mut self, node: usize, names: &[&str]) -> Result<(), RefusalCode> {
        let change = |name: &&str| proto::Change {
            key: Some(key(name)),
            act: Some(put(b"1".to_vec())),
            condition: None,
        };
        self.commit_all(node, names.iter().map(change).collect())
    }

    /// A node forgets another one, which does not come back (SR33).
    pub(super) fn forget(&mut self, node: usize, other: usize) {
        self.commit_all(node, vec![forget(&other.to_string())]).unwrap();
    }

    pub(super) fn policy(
        &mut self,
        node: usize,
        prefix: &str,
        owner: &str,
        regions: &[&str],
    ) -> Result<(), RefusalCode> {
        let regions = regions.iter().map(ToString::to_string).collect();
        let policy = proto::RegionPolicy { owner_region: owner.into(), regions, disabled: Vec::new() };
        self.commit(node, policy_key(prefix), put(policy.encode_to_vec()))
    }

    pub(super) fn state(&self, node: usize, name: &str) -> Option<RecordState> {
        let view = self.engines[node].view().unwrap();
        let key = RecordKey::parse(&key(name)).unwrap();
        let state = Reads::new(&*view).unwrap().last(&key).unwrap().map(|version| version.state);
        state.filter(|state| state.lifecycle() != proto::State::Deleted)
    }

    /// What the journal of a node has (SR44).
    pub(super) fn journal(&self, node: usize) -> Vec<proto::Conflict> {
        let view = self.engines[node].view().unwrap();
        let query = ConflictsQuery { before: None, may_read: &|_| true, limit: 10, limit_bytes: usize::MAX };
        Reads::new(&*view).unwrap().conflicts(query).unwrap().conflicts
    }

    /// Two nodes of `eu`, and one of `us`, which is given neither `n-a` nor its deletion. Node 1 is cut off before the
    /// deletion.
    pub(super) fn with_deletion_that_1_lacks(seed: u64) -> Self {
        let mut nodes = Self::new(&["eu", "eu", "us"], seed);
        nodes.policy(0, "n-", "eu", &[]).unwrap();
        nodes.put(0, "n-a", "1").unwrap();
        nodes.run(20);
        nodes.cut = vec![1];
        nodes.commit(0, key("n-a"), delete()).unwrap();
        nodes.run(20);
        nodes
    }

    /// Node 2 commits `n-x` before it hears that `eu` owns the name, and is cut off from node 0. So node 0 lacks it,
    /// and node 1 drops it.
    pub(super) fn with_name_that_0_lacks(regions: &[&'static str], seed: u64) -> Self {
        let mut nodes = Self::new(regions, seed);
        nodes.run(20);
        nodes.cut = vec![2];
        nodes.put(2, "n-x", "1").unwrap();
        nodes.policy(0, "n-", "eu", &[]).unwrap();
        nodes.run(20);
        nodes.cut = vec![0];
        nodes.run(40);
        nodes
    }

    /// Node 0 is of `eu`, which owns `n-`, and has given `n-a` to these regions.
    pub(super) fn with_names_of_eu(regions: &[&'static str], copies: &[&str], seed: u64) -> Self {
        let mut nodes = Self::new(regions, seed);
        nodes.policy(0, "n-", "eu", copies).unwrap();
        nodes.put(0, "n-a", "1").unwrap();
        nodes.run(20);
        nodes
    }

    /// Names are given away. All nodes hear of that, and none has fetched them yet when this one is cut off.
    pub(super) fn give_away(&mut self, change: impl FnOnce(&mut Self), cut: usize) {
        self.cannot_compare = true;
        change(self);
        self.run(20);
        assert!(self.is_fetching(1));
        self.cut = vec![cut];
        self.cannot_compare = false;
        self.run(60);
    }

    /// A replica becomes a second writer, and starts again (SG22).
    pub(super) fn promote(&mut self, node: usize) {
        let engine = &mut self.engines[node];
        let (batch, _) = Store::with_replica(&*engine.view().unwrap(), false).unwrap();
        engine.commit(&batch).unwrap();
        self.crash(node);
    }

    /// What the disk of a node has.
    pub(super) fn copy(&self, node: usize) -> MemoryEngine {
        copy_of(&self.engines[node])
    }

    /// A node goes on from an older state of its disk, under the same id.
    pub(super) fn set_back(&mut self, node: usize, before: MemoryEngine) {
        self.engines[node] = before;
        self.takes_ids = true;
        self.crash(node);
    }

    /// A node loses all versions of a record, and starts again.
    pub(super) fn lose(&mut self, node: usize, name: &str) {
        let view = self.engines[node].view().unwrap();
        let mut lost = Vec::new();
        let is_it = |stored: &[u8]| stored.windows(name.len()).any(|at| at == name.as_bytes());
        view.range(b"v", b"w", &mut |stored, _| {
            lost.extend(is_it(stored).then(|| (bytes::Bytes::copy_from_slice(stored), None)));
            ControlFlow::Continue(())
        })
        .unwrap();
        drop(view);
        self.engines[node].commit(&Batch { compares: Vec::new(), writes: lost }).unwrap();
        self.crash(node);
    }

    /// What the only names wait for that a node fetches.
    pub(super) fn awaited(&self, node: usize) -> String {
        self.processes[node].replica.awaited().pop_first().unwrap().1
    }

    pub(super) fn is_fetching(&self, node: usize) -> bool {
        !self.processes[node].store.fetching().is_empty()
    }
}

pub(super) fn put(payload: Vec<u8>) -> proto::change::Act {
    let content = proto::Content { payload: payload.into(), ..Default::default() };
    proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() })
}

pub(super) fn delete() -> proto::change::Act {
    proto::change::Act::Delete(proto::Delete::default())
}

pub(super) fn key(name: &str) -> proto::Key {
    proto::Key { type_url: "t/T".into(), name: name.into(), when: String::new() }
}

pub(super) fn policy_key(prefix: &str) -> proto::Key {
    proto::Key { type_url: POLICY_TYPE.into(), name: prefix.into(), when: String::new() }
}
