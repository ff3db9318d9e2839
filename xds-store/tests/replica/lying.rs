//! A peer that lies: each field of each message that it sends, with values that are extreme, missing or contradict
//! the rest. Whatever it says, the honest nodes accept commits, become equal, and keep little of it.
//!
//!     LIE=PullResponse.entries cargo test -p xds-store --test replica -- lying --nocapture

use std::collections::{BTreeMap, BTreeSet};

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
use xds_store::engine::{Engine as _, MemoryEngine};
use xds_store::read::Reads;
use xds_store::replica::CallId;
use xds_store::store::{Identity, Store, Ticket};

use self::lies::{Liar, Lie};
use crate::nodes::driver::{Input, Output, Process, Request};

mod lies;

const MS: i64 = 1_000_000;
const SECOND: i64 = 1_000 * MS;
const START: i64 = 1_000_000 * SECOND;
/// The one that lies.
const LIAR: usize = 2;

/// Two honest nodes and a liar, in virtual time.
struct World {
    processes: Vec<Process>,
    engines: Vec<MemoryEngine>,
    liar: Liar,
    /// Nobody can reach it any more.
    is_gone: bool,
    now: i64,
    queue: BTreeMap<(i64, u64), (usize, Input)>,
    next: u64,
    /// Calls that are not answered: who called, and with what.
    calls: BTreeMap<(usize, Ticket), (usize, CallId)>,
    committed: BTreeSet<Ticket>,
    /// How much has happened.
    events: u64,
}

impl World {
    /// `joins`: the first node has nothing yet, and takes the snapshot of the liar.
    fn new(lie: &Lie, joins: bool) -> Self {
        let mut engines = Vec::new();
        let mut processes = Vec::new();
        for node in 0..3 {
            let identity = Identity { node: name(node), cluster: "c".into(), ..Identity::default() };
            let is_joining = joins && node == 0;
            let first = if is_joining { Store::init_joining(&identity) } else { Store::init(&identity) };
            let mut engine = MemoryEngine::default();
            engine.commit(&first).unwrap();
            processes.push(Process::start(engine.clone(), (&name(node), 1), (START, START), |_| {}));
            engines.push(engine);
        }
        let mut world = Self {
            processes,
            engines,
            liar: Liar::new(lie),
            is_gone: false,
            now: START,
            queue: BTreeMap::new(),
            next: 0,
            calls: BTreeMap::new(),
            committed: BTreeSet::new(),
            events: 0,
        };
        for node in 0..3 {
            // One that joins has the liar alone at first.
            let peers = (0..3).filter(|peer| *peer != node && (!joins || node != 0 || *peer == LIAR));
            world.put(0, node, Input::Peers(peers.map(name).collect()));
        }
        world
    }

    fn put(&mut self, after: i64, node: usize, input: Input) {
        self.next += 1;
        self.queue.insert((self.now + after, self.next), (node, input));
    }

    fn commit(&mut self, node: usize, record: &str, payload: &str) -> Ticket {
        let key = proto::Key {
            type_url: "type.googleapis.com/acme.v1.Thing".into(),
            name: record.into(),
            when: String::new(),
        };
        let content = Some(proto::Content { payload: payload.to_owned().into(), ..Default::default() });
        let act = Some(proto::change::Act::Put(proto::Put { content, ..Default::default() }));
        let changes = vec![proto::Change { key: Some(key), act, condition: None }];
        let request = proto::CommitRequest { changes, ..Default::default() };
        let draft = Draft::parse(request, "user".into()).unwrap();
        self.next += 1;
        let ticket = Ticket(1 << 50 | self.next);
        self.put(0, node, Input::Commit { ticket, draft, peers: 0, until: 0 });
        ticket
    }

    fn run_until(&mut self, until: i64) {
        loop {
            let due = self.processes.iter().enumerate();
            let due =
                due.filter_map(|(node, process)| Some((process.due((self.now, self.now))?, node))).min();
            let arrives = self.queue.first_key_value().map(|((at, _), _)| *at);
            let (at, node, input) = match (due, arrives) {
                (Some((at, node)), arrives) if arrives.is_none_or(|arrives| at < arrives) => {
                    (at, node, Input::Due)
                }
                (_, Some(at)) => {
                    if at > until {
                        break;
                    }
                    let (_, (node, input)) = self.queue.pop_first().unwrap();
                    (at, node, input)
                }
                _ => break,
            };
            if at > until {
                break;
            }
            // A timer that is due again at once goes on a little later, as in a driver.
            let is_due = matches!(input, Input::Due);
            self.now = self.now.max(at) + i64::from(is_due);
            self.handle(node, input);
        }
        self.now = until;
    }

    fn handle(&mut self, node: usize, input: Input) {
        self.events += 1;
        let outputs = self.processes[node].handle(input, (self.now, self.now));
        for output in outputs {
            match output {
                Output::Write(batch) => {
                    let written = self.engines[node].commit(&batch);
                    self.put(MS, node, Input::Written(written));
                }
                Output::Call(call, address, request) => self.call(node, call, &address, request),
                Output::Cancel(call) => self.calls.retain(|_, caller| *caller != (node, call)),
                Output::Answer(ticket, answers) => {
                    let Some((caller, call)) = self.calls.remove(&(node, ticket)) else { continue };
                    for answer in answers {
                        let answer = if node == LIAR { self.liar.answer(answer) } else { answer };
                        self.put(5 * MS, caller, Input::Answered(call, answer));
                    }
                }
                Output::Committed(ticket, ..) => _ = self.committed.insert(ticket),
                Output::Published(_)
                | Output::Refused(..)
                | Output::Compacted
                | Output::Mended(_)
                | Output::Raise(_)
                | Output::Resynced(_)
                | Output::TakesId(_) => {}
            }
        }
    }

    fn call(&mut self, node: usize, call: CallId, address: &str, request: Request) {
        let Some(callee) = (0..3).find(|callee| name(*callee) == *address) else {
            return self.put(5 * MS, node, Input::Answered(call, request.unreachable()));
        };
        if self.is_gone && [node, callee].contains(&LIAR) {
            return self.put(5 * MS, node, Input::Answered(call, request.unreachable()));
        }
        let request = if node == LIAR { self.liar.request(request) } else { request };
        self.next += 1;
        let ticket = Ticket(self.next);
        self.calls.insert((callee, ticket), (node, call));
        self.put(5 * MS, callee, Input::Called(ticket, request));
    }

    /// The live records of a node.
    fn records(&self, node: usize) -> BTreeMap<String, String> {
        let view = self.engines[node].view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let mut records = BTreeMap::new();
        let mut resume = String::new();
        loop {
            let page = reads.snapshot(&resume, 1 << 20).unwrap();
            for state in page.records.iter().filter(|state| state.lifecycle() != proto::State::Deleted) {
                records.insert(format!("{:?}", state.key), format!("{state:?}"));
            }
            if page.is_last {
                return records;
            }
            resume = page.resume;
        }
    }

    fn stored_bytes(&self, node: usize) -> usize {
        let (view, mut bytes) = (self.engines[node].view().unwrap(), 0);
        let each = &mut |key: &[u8], value: xds_store::engine::Value| {
            bytes += key.len() + value.bytes.len();
            std::ops::ControlFlow::Continue(())
        };
        view.range(b"\0", b"\xff\xff", each).unwrap();
        bytes
    }
}

fn name(node: usize) -> String {
    ["one", "other", "liar"][node].to_owned()
}

/// What is wrong after a lie; `None`: the lie was never told.
fn outcome(lie: &Lie, joins: bool) -> Option<Result<(), String>> {
    let mut world = World::new(lie, joins);
    for node in 1..3 {
        world.commit(node, &format!("of-{node}"), "1");
    }
    world.run_until(START + 4 * SECOND);
    if joins {
        // Whoever cannot join by the liar does so by another node.
        world.put(0, 0, Input::Peers(vec![name(1), name(2)]));
    }
    for round in 0..4 {
        for node in 0..3 {
            world.commit(node, &format!("of-{node}"), &format!("{round}"));
            world.commit(node, "of-all", &format!("{round} of {node}"));
        }
        world.run_until(world.now + 2 * SECOND);
    }
    if !world.liar.has_lied {
        return None;
    }
    let before = world.events;
    world.is_gone = true;
    world.run_until(world.now + 50 * SECOND);
    let tickets = [0, 1].map(|node| world.commit(node, &format!("after-{node}"), "1"));
    world.run_until(world.now + SECOND);
    if let Some(node) = (0..2).find(|node| !world.committed.contains(&tickets[*node])) {
        return Some(Err(format!("{} accepts no commit", name(node))));
    }
    world.run_until(world.now + 12 * SECOND);
    let [one, other] = [0, 1].map(|node| world.records(node));
    if one != other {
        let differs = one.iter().filter(|(key, state)| other.get(*key) != Some(state));
        let also = other.iter().filter(|(key, state)| one.get(*key) != Some(state));
        let (at_one, at_other): (Vec<_>, Vec<_>) = (differs.collect(), also.collect());
        return Some(Err(format!("the honest nodes differ: {at_one:#?} and {at_other:#?}")));
    }
    if before > 20_000 {
        return Some(Err(format!("{before} events in 12 s")));
    }
    let bytes = (0..2).map(|node| world.stored_bytes(node)).max().unwrap();
    Some(if bytes < 4 << 20 { Ok(()) } else { Err(format!("{bytes} bytes are stored")) })
}

#[test]
fn sr15_whatever_a_peer_says_the_honest_nodes_accept_commits_and_are_equal() {
    let only = std::env::var("LIE").unwrap_or_default();
    let (mut told, mut untold, mut wrong) = (0, BTreeSet::new(), Vec::new());
    for lie in lies::all().into_iter().filter(|lie| lie.to_string().contains(&only)) {
        let mut is_told = false;
        let run = || outcome(&lie, lie.is_of_snapshot());
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        match outcome.unwrap_or_else(|_| Some(Err("a panic".into()))) {
            None => {}
            Some(Ok(())) => is_told = true,
            Some(Err(problem)) => {
                is_told = true;
                wrong.push(format!("{lie}: {problem}"));
            }
        }
        if is_told { told += 1 } else { _ = untold.insert(lie.field()) }
    }
    println!("{told} lies were told; never sent: {untold:?}");
    assert!(wrong.is_empty(), "{} lies did harm:\n{}", wrong.len(), wrong.join("\n"));
    assert!(told > 800 || !only.is_empty(), "{told}");
}
