//! Comparing records with a peer (SR51), with real stores of two nodes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use prost::Message as _;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
use xds_store::engine::{Batch, Engine as _, MemoryEngine};
use xds_store::key::RecordKey;
use xds_store::read::{Knows, Reads};
use xds_store::record::RecordState;
use xds_store::region::POLICY_TYPE;
use xds_store::replica::{Action, Alarm, Digests, Event};
use xds_store::store::{Identity, Store, Ticket};

use crate::fixture::{One, clock, config, counters, hello, last, pulls};
use crate::nodes::driver::{Answer, Input, Output, Process};
use crate::sim::SECOND;

/// Two nodes whose calls are answered at once.
struct Pair {
    engines: [MemoryEngine; 2],
    processes: [Process; 2],
    now: i64,
    runs: u64,
    mended: [u64; 2],
    alarms: Vec<Alarm>,
    peeks: usize,
}

impl Pair {
    fn new() -> Self {
        Self::in_regions(["", ""])
    }

    fn in_regions(regions: [&str; 2]) -> Self {
        let engine = |name: &str, region: &str| {
            let mut engine = MemoryEngine::default();
            let (cluster, region) = ("c".into(), region.into());
            let identity = Identity { node: name.into(), cluster, region, ..Identity::default() };
            engine.commit(&Store::init(&identity)).unwrap();
            engine
        };
        let engines = [engine("0", regions[0]), engine("1", regions[1])];
        let now = 1_000_000_000_000_000;
        let start = |node: usize| Self::process(&engines, node, 1, now);
        let processes = [start(0), start(1)];
        let (mended, alarms) = ([0; 2], Vec::new());
        let mut pair = Self { engines, processes, now, runs: 1, mended, alarms, peeks: 0 };
        pair.input(0, Input::Peers(vec!["1".into()]));
        pair.input(1, Input::Peers(vec!["0".into()]));
        pair
    }

    fn process(engines: &[MemoryEngine; 2], node: usize, run: u64, now: i64) -> Process {
        Process::start(engines[node].clone(), (&node.to_string(), run), (now, now), |_| {})
    }

    /// Both nodes stop and start.
    fn restart(&mut self) {
        self.runs += 1;
        self.processes = [0, 1].map(|node| Self::process(&self.engines, node, self.runs, self.now));
        self.input(0, Input::Peers(vec!["1".into()]));
        self.input(1, Input::Peers(vec!["0".into()]));
    }

    /// Does all that follows from an input, at both nodes.
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
                    Output::Call(call, _, request) => {
                        let ticket = Ticket(1_000_000 + call.0);
                        callers.insert((1 - node, ticket), call);
                        inputs.push_back((1 - node, Input::Called(ticket, request)));
                    }
                    Output::Answer(ticket, parts) => {
                        let call = callers[&(node, ticket)];
                        let peeks = parts.iter().filter(|part| matches!(part, Answer::Peek(_)));
                        self.peeks += peeks.count();
                        inputs.extend(parts.into_iter().map(|part| (1 - node, Input::Answered(call, part))));
                    }
                    Output::Mended(mended) => self.mended[node] += mended,
                    Output::Raise(alarm) => self.alarms.push(alarm),
                    Output::Refused(_, refused) => panic!("{refused:?}"),
                    output @ (Output::TakesId(_) | Output::Resynced(_)) => panic!("{output:?}"),
                    Output::Published(_) | Output::Cancel(_) | Output::Committed(..) | Output::Compacted => {}
                }
            }
        }
    }

    fn run(&mut self, seconds: i64) {
        let until = self.now + seconds * 1_000_000_000;
        loop {
            let due = |node: usize| Some((self.processes[node].due((self.now, self.now))?, node));
            let Some((at, node)) = due(0).into_iter().chain(due(1)).min().filter(|(at, _)| *at <= until)
            else {
                break;
            };
            self.now = self.now.max(at);
            self.input(node, Input::Due);
        }
        self.now = until;
    }

    fn put(&mut self, node: usize, name: &str, payload: &str) {
        let content = proto::Content { payload: payload.as_bytes().to_vec().into(), ..Default::default() };
        let put = proto::Put { content: Some(content), ..Default::default() };
        self.change(node, name, proto::change::Act::Put(put));
    }

    fn change(&mut self, node: usize, name: &str, act: proto::change::Act) {
        self.change_at(node, &key(name), act);
    }

    fn change_at(&mut self, node: usize, key: &RecordKey, act: proto::change::Act) {
        let change = proto::Change { key: Some(key.to_proto()), act: Some(act), condition: None };
        let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
        let draft = Draft::parse(request, "user".into()).unwrap();
        self.input(node, Input::Commit { ticket: Ticket(self.now as u64), draft, peers: 0, until: 0 });
    }

    fn state(&self, node: usize, name: &str) -> Option<RecordState> {
        let view = self.engines[node].view().unwrap();
        Reads::new(&*view).unwrap().last(&key(name)).unwrap().map(|version| version.state)
    }

    /// A node loses all versions of a record, and starts again.
    fn lose(&mut self, node: usize, name: &str) {
        let view = self.engines[node].view().unwrap();
        let mut lost = Vec::new();
        let find = |stored: &[u8]| {
            stored.starts_with(b"v") && stored.windows(name.len()).any(|at| at == name.as_bytes())
        };
        view.range(b"v", b"w", &mut |stored, _| {
            lost.extend(find(stored).then(|| (bytes::Bytes::copy_from_slice(stored), None)));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(!lost.is_empty());
        drop(view);
        self.engines[node].commit(&Batch { compares: Vec::new(), writes: lost }).unwrap();
        self.restart();
    }
}

fn key(name: &str) -> RecordKey {
    let key = proto::Key { type_url: "t/T".into(), name: name.into(), when: String::new() };
    RecordKey::parse(&key).unwrap()
}

#[test]
fn sr51_a_record_that_one_node_lost_comes_back_with_its_newest_state_and_an_alarm() {
    let mut pair = Pair::new();
    for at in 0..10 {
        pair.put(at % 2, &format!("r{at}"), "1");
    }
    pair.put(0, "r4", "2");
    pair.run(20);
    assert_eq!((pair.mended, pair.peeks), ([0, 0], 0));
    let whole = pair.state(1, "r4").unwrap();
    assert_eq!(pair.state(0, "r4"), Some(whole.clone()));
    pair.lose(1, "r4");
    pair.lose(1, "r7");
    assert_eq!(pair.state(1, "r4"), None);
    pair.run(20);
    // Equal bytes (SR43), without a counter of this node (SR5).
    assert_eq!((pair.state(1, "r4"), pair.state(1, "r7")), (Some(whole), pair.state(0, "r7")));
    assert_eq!((pair.mended, pair.processes[1].store.head().counter), ([0, 2], 5));
    assert_eq!(pair.alarms, [Alarm::Differed("0".into())]);
    // The next comparison finds nothing, so the alarm is over.
    assert_eq!(pair.processes[1].replica.alarms().count(), 0);
}

/// A node with a peer `p` of the region that owns a record, which that node lacks twice. What the store removes, if a
/// peer is known to have this of `q`, a node of that region.
fn removed_beside(of_q: u64) -> Vec<Action> {
    let mut config = config();
    (config.hello.region, config.compare_interval) = ("here".into(), Some(SECOND));
    let (mut one, calls) = One::with(config, &clock(&[("p", 4)]), &["a"]);
    let callee = proto::HelloRequest {
        clock: clock(&[("p", 4)]).to_wire(),
        region: "there".into(),
        ..hello("p", "1")
    };
    let answer = proto::HelloResponse { protocol: 1, callee: Some(callee) };
    let pull = pulls(&one.step(Event::HelloAnswered(calls[0], Ok(answer))))[0].0;
    let of_q = proto::Clock { counters: counters(&[("q", of_q)]).into_iter().collect() };
    one.step(Event::PullPart(
        pull,
        proto::PullResponse {
            others: [("r".to_owned(), of_q)].into(),
            node: "p".into(),
            ..last(&[("p", 4)])
        },
    ));
    let record = proto::RecordDigest { key: Some(key("x").to_proto()), ..Default::default() };
    let mut removed = Vec::new();
    let mut actions = Vec::new();
    for _ in 0..100 {
        for action in std::mem::take(&mut actions) {
            let event = match action {
                Action::CallDigest(call, _, request) => {
                    let (own, records) = match request.records_of.is_empty() {
                        true => (1, Vec::new()),
                        false => (0, vec![record.clone()]),
                    };
                    let mut buckets = vec![bytes::Bytes::new(); 256];
                    let clock = clock(&[("p", 4)]).to_wire();
                    let theirs =
                        proto::DigestResponse { buckets: buckets.clone(), clock, ..Default::default() };
                    buckets[0] = vec![own].into();
                    let own = proto::DigestResponse { buckets, records, ..theirs.clone() };
                    Event::DigestAnswered(call, Ok(Box::new(Digests { own, theirs })))
                }
                Action::CallPeek(call, ..) => {
                    let clock = clock(&[("p", 4)]).to_wire();
                    Event::PeekAnswered(
                        call,
                        Ok(proto::PeekResponse { clock, keys_done: 1, ..Default::default() }),
                    )
                }
                Action::CallPull(call, ..) => Event::PullPart(call, last(&[("p", 4)])),
                Action::Remove(..) => {
                    removed.push(action);
                    continue;
                }
                _ => continue,
            };
            actions.extend(one.step(event));
        }
        if actions.is_empty() {
            actions = one.wait();
        }
    }
    removed
}

#[test]
fn sr51_a_copy_stays_while_the_owner_lacks_commits_that_another_node_has() {
    assert!(removed_beside(0).len() > 1);
    assert_eq!(removed_beside(5), []);
}

#[test]
fn sr51_a_deletion_wins_over_the_record_that_another_node_still_has() {
    let mut pair = Pair::new();
    pair.put(0, "kept", "1");
    pair.put(0, "gone", "1");
    pair.run(2);
    // Node 1 gets the deletion, and loses it: it has the record as it was before.
    let before = pair.engines[1].clone();
    let view = before.view().unwrap();
    let mut old = Vec::new();
    view.range(b"v", b"w", &mut |stored, value| {
        old.push((bytes::Bytes::copy_from_slice(stored), Some(value.bytes)));
        ControlFlow::Continue(())
    })
    .unwrap();
    drop(view);
    pair.change(0, "gone", proto::change::Act::Delete(proto::Delete::default()));
    pair.run(2);
    assert_eq!(pair.state(1, "gone").unwrap().lifecycle(), proto::State::Deleted);
    pair.lose(1, "gone");
    pair.engines[1].commit(&Batch { compares: Vec::new(), writes: old }).unwrap();
    pair.restart();
    assert_eq!(pair.state(1, "gone").unwrap().lifecycle(), proto::State::Live);
    pair.run(20);
    assert_eq!(pair.state(1, "gone"), pair.state(0, "gone"));
    assert_eq!((pair.mended, pair.state(0, "gone").unwrap().lifecycle()), ([0, 1], proto::State::Deleted));
}

#[test]
fn sr49_states_of_peers_are_merged_with_what_the_store_has_and_a_deletion_counts() {
    let mut pair = Pair::new();
    pair.put(0, "a", "1");
    let states = |pair: &Pair, node: usize, name: &str| {
        let view = pair.engines[node].view().unwrap();
        Reads::new(&*view).unwrap().peek(&[key(name)]).unwrap().records
    };
    let found = states(&pair, 0, "a");
    assert_eq!(found, [pair.state(0, "a").unwrap()]);
    let other = Pair::new();
    let peeked = |states: &[RecordState]| {
        let view = other.engines[1].view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        reads.peeked(&key("a"), states, pair.now, &Knows::default()).unwrap()
    };
    let (record, from) = peeked(&found).unwrap();
    assert_eq!((record.content.unwrap().payload, from), ("1".into(), Some(0)));
    assert_eq!((record.store_revision, peeked(&[])), (String::new(), None));
    // One of two peers has the deletion.
    let deleted = RecordState { lifecycle: proto::State::Deleted.into(), ..found[0].clone() };
    assert_eq!(peeked(&[found[0].clone(), deleted]), None);
    // A peer that answers another record, or one that cannot be, has nothing.
    let wrong = RecordState { digest: bytes::Bytes::new(), ..found[0].clone() };
    assert_eq!(peeked(&[wrong, RecordState { key: Some(key("b").to_proto()), ..found[0].clone() }]), None);
}

#[test]
fn sr51_sg25_two_regions_compare_what_one_of_them_tells_the_other() {
    let mut pair = Pair::in_regions(["eu", "us"]);
    let policy = |pair: &mut Pair, node: usize, prefix: &str, owner: &str, regions: &[&str]| {
        let regions = regions.iter().map(ToString::to_string).collect();
        let policy = proto::RegionPolicy { owner_region: owner.into(), regions, disabled: Vec::new() };
        let content = proto::Content { payload: policy.encode_to_vec().into(), ..Default::default() };
        let put = proto::Put { content: Some(content), ..Default::default() };
        let (type_url, name) = (POLICY_TYPE.to_owned(), prefix.to_owned());
        let key = RecordKey::parse(&proto::Key { type_url, name, when: String::new() }).unwrap();
        pair.change_at(node, &key, proto::change::Act::Put(put));
        pair.now += 1;
    };
    policy(&mut pair, 0, "own-", "eu", &[]);
    policy(&mut pair, 0, "eu-", "eu", &["us"]);
    policy(&mut pair, 0, "us-", "us", &["eu"]);
    pair.run(2);
    for name in ["own-a", "eu-a", "eu-b", "global"] {
        pair.put(0, name, "1");
        pair.now += 1;
    }
    pair.put(1, "us-a", "1");
    pair.run(20);
    assert_eq!((pair.mended, pair.peeks, &pair.alarms[..]), ([0, 0], 0, &[][..]));
    assert_eq!((pair.state(1, "own-a"), pair.state(0, "us-a")), (None, pair.state(1, "us-a")));
    // A copy that was lost comes back, and nothing that is of the owner alone.
    pair.lose(1, "eu-a");
    pair.run(20);
    assert_eq!((pair.mended, pair.state(1, "own-a")), ([0, 1], None));
    assert_eq!(pair.state(1, "eu-a"), pair.state(0, "eu-a"));
    assert!(pair.state(1, "eu-a").is_some());
    // It may have been left out by a node that knew other policies.
    assert_eq!(pair.alarms, []);
}
