//! How a driver connects the two machines of a node: the store and the replica.
//!
//! One input is done to its end before the next one comes, as in a driver of one task. So the replica hears of
//! a commit before a peer can be answered from a store that has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use xds_proto::xds::store::v1 as proto;
use xds_store::clock::{Chain, Clock, Position};
use xds_store::commit::{Draft, Refused};
use xds_store::engine::{Batch, Engine as _, EngineError, EngineRevision, MemoryEngine};
use xds_store::entry::Foreign;
use xds_store::key::RecordKey;
use xds_store::read::{ReadError, Reads};
use xds_store::replica::{self, Alarm, CallId, Failure, IdLost, Refusal, Replica, ReplicaConfig};
use xds_store::store::{
    self, Committed, Config, Loaded, OutOfSync, Published, RegionRequest, RegionResponse, Resynced, Store,
    Ticket, Unanswered,
};

use super::calling::Calling;
use super::resyncing::Resyncing;

/// A call of a node to a peer.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Hello(proto::HelloRequest),
    Pull(proto::PullRequest),
    Nudge(proto::NudgeRequest),
    Digest(proto::DigestRequest),
    Peek(proto::PeekRequest),
    Snapshot(proto::SnapshotRequest),
    Region(RegionRequest),
}

/// One message of the answer to a call.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Hello(Result<proto::HelloResponse, Failure>),
    Pull(Result<proto::PullResponse, Failure>),
    Nudge(Result<proto::NudgeResponse, Failure>),
    Digest(Result<proto::DigestResponse, Failure>),
    Peek(Result<proto::PeekResponse, Failure>),
    Snapshot(Result<proto::SnapshotResponse, Failure>),
    Region(Result<RegionResponse, Unanswered>),
}

impl Request {
    /// The answer, if the callee does not answer.
    pub(crate) fn unreachable(&self) -> Answer {
        let failure = Failure::Unreachable;
        match self {
            Self::Hello(_) => Answer::Hello(Err(failure)),
            Self::Pull(_) => Answer::Pull(Err(failure)),
            Self::Nudge(_) => Answer::Nudge(Err(failure)),
            Self::Digest(_) => Answer::Digest(Err(failure)),
            Self::Peek(_) => Answer::Peek(Err(failure)),
            Self::Snapshot(_) => Answer::Snapshot(Err(failure)),
            Self::Region(_) => Answer::Region(Err(Unanswered::Silent)),
        }
    }
}

/// What happens to a process.
#[derive(Debug)]
pub(crate) enum Input {
    /// A client commits, and waits until so many peers have it.
    Commit { ticket: Ticket, draft: Draft, peers: usize, until: i64 },
    /// The engine answered the last batch.
    Written(Result<EngineRevision, EngineError>),
    /// Revisions up to this one shall be forgotten.
    Compact(u64),
    /// The time of [`Process::due`] has come.
    Due,
    /// The addresses of the peers.
    Peers(Vec<String>),
    /// A peer calls.
    Called(Ticket, Request),
    /// A call was answered.
    Answered(CallId, Answer),
}

/// What a process does.
#[derive(Debug)]
pub(crate) enum Output {
    Write(Batch),
    Published(Vec<Published>),
    Call(CallId, String, Request),
    Cancel(CallId),
    Answer(Ticket, Vec<Answer>),
    /// A commit is answered with OK.
    Committed(Ticket, Committed, Acked),
    Refused(Ticket, Refused),
    Compacted,
    /// So many records were mended.
    Mended(u64),
    Raise(Alarm),
    /// What a snapshot made of the records.
    Resynced(Resynced),
    /// SR28: the id of the node is lost.
    TakesId(IdLost),
}

/// The counter of the last commit of the node when a commit is answered, and how many peers have it: also enough, if
/// the client waits for them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    pub(crate) counter: u64,
    /// How many ids the node had before.
    pub(crate) formers: usize,
    pub(crate) peers: Option<(usize, bool)>,
}

/// How many peers, until when, and the answer with the own counter.
type Awaited = (usize, i64, Option<(Acked, Committed)>);

pub(super) enum Step {
    Store(store::Event),
    Replica(replica::Event),
}

/// The process of a node.
pub(crate) struct Process {
    pub(crate) store: Store,
    pub(crate) replica: Replica,
    pub(super) engine: MemoryEngine,
    pub(super) steps: VecDeque<Step>,
    pub(super) outputs: Vec<Output>,
    /// Pulls of peers that are not answered yet, with their clocks.
    pulls: BTreeMap<Ticket, (proto::PullRequest, Clock)>,
    /// Peers that read records and are not answered yet.
    looks: BTreeMap<Ticket, Request>,
    /// What this node has asked peers to compare.
    digests: BTreeMap<CallId, proto::DigestRequest>,
    mending: BTreeMap<Ticket, CallId>,
    /// The names that the store fetches, as the replica knows.
    fetching: Vec<store::ToFetch>,
    /// The commits that wrote policies, as the replica knows.
    policies: u64,
    /// The nodes that are forgotten, as the replica knows.
    forgotten: BTreeSet<String>,
    /// Entries that the store has not answered yet, with the calls that brought them.
    applying: BTreeMap<Ticket, CallId>,
    /// Commits that wait for peers: how many and how long; with the answer once it is durable here.
    acks: BTreeMap<Ticket, Awaited>,
    pub(super) resyncing: Resyncing,
    pub(super) calling: Calling,
    pub(super) next: u64,
    pub(super) now: i64,
    /// Its address, but for its own id.
    pub(super) place: String,
}

impl Process {
    /// Reads the store of an engine. The times are those of timers and of the wall clock.
    pub(crate) fn start(
        engine: MemoryEngine,
        run: (&str, u64),
        (now, wall): (i64, i64),
        each: impl FnMut(Loaded),
    ) -> Self {
        let (address, boot) = run;
        let mut config = Config::new(engine.limits(), boot);
        config.is_replicated = true;
        // Long before a run ends.
        config.reference_block = 5_000_000_000;
        let store = Store::load(&*engine.view().unwrap(), config, wall, each).unwrap();
        let hello = proto::HelloRequest {
            cluster: store.head().cluster.clone(),
            node: store.head().node.clone(),
            boot: format!("{address}-{boot}"),
            address: address.to_owned(),
            region: store.head().region.clone(),
            is_replica: store.head().is_replica,
            formerly: store.head().former_nodes.clone(),
            ..Default::default()
        };
        let mut config = ReplicaConfig::new(hello, boot);
        config.known = store.known().map(|(node, counters)| (node.to_owned(), counters.clone())).collect();
        config.is_joining = store.head().is_joining;
        config.owes_reissue = store.head().owes_reissue;
        config.max_entries = 4;
        // Much more often than once a day, so that entries are under way.
        config.compare_interval = Some(3_000_000_000);
        let replica = Replica::new(config, store.clock(), now);
        Self {
            store,
            replica,
            engine,
            steps: VecDeque::new(),
            outputs: Vec::new(),
            pulls: BTreeMap::new(),
            looks: BTreeMap::new(),
            digests: BTreeMap::new(),
            mending: BTreeMap::new(),
            fetching: Vec::new(),
            policies: 0,
            forgotten: BTreeSet::new(),
            applying: BTreeMap::new(),
            acks: BTreeMap::new(),
            resyncing: Resyncing::default(),
            calling: Calling::default(),
            next: 0,
            now,
            place: address.to_owned(),
        }
    }

    /// When an [`Input::Due`] shall come, by the timers.
    pub(crate) fn due(&self, (now, wall): (i64, i64)) -> Option<i64> {
        let id = self.resyncing.takes_id_at;
        let of_store = self.store.due().map(|due| due.saturating_sub(wall).saturating_add(now));
        of_store
            .into_iter()
            .chain(self.replica.due())
            .chain(self.resyncing.due())
            .chain(self.calling.due())
            .chain(id)
            .min()
    }

    /// Does all that follows from an input.
    pub(crate) fn handle(&mut self, input: Input, (now, wall): (i64, i64)) -> Vec<Output> {
        self.end_late_snapshot(now);
        self.take_id_again(now);
        self.end_late_region_calls(now);
        self.take(input, now);
        self.hear_of_writers();
        while let Some(step) = self.next_step() {
            match step {
                Step::Store(event) => {
                    let reader = self.engine.reader();
                    let actions = self.store.step(event, wall, &*reader);
                    self.report_renamed(&actions);
                    actions.into_iter().for_each(|action| self.do_of_store(action));
                    if !self.store.forgotten().eq(self.forgotten.iter().map(String::as_str)) {
                        self.forgotten = self.store.forgotten().map(str::to_owned).collect();
                        self.tell(replica::Event::Forgotten(self.forgotten.clone()));
                    }
                    if self.store.policies().changes() != self.policies {
                        self.policies = self.store.policies().changes();
                        let commits = self.store.policies().commits_for(&self.store.head().region);
                        self.tell(replica::Event::Policies(commits));
                    }
                    let fetching = self.store.fetching();
                    if fetching != self.fetching {
                        self.fetching.clone_from(&fetching);
                        self.tell(replica::Event::Fetching(fetching));
                    }
                }
                Step::Replica(event) => {
                    let actions = self.replica.step(event, now);
                    actions.into_iter().for_each(|action| self.do_of_replica(action, now));
                }
            }
        }
        std::mem::take(&mut self.outputs)
    }

    fn take(&mut self, input: Input, now: i64) {
        let store = |event| [Step::Store(event)];
        match input {
            Input::Commit { ticket, draft, peers, until } => {
                if peers > 0 {
                    self.acks.insert(ticket, (peers, until, None));
                }
                self.steps.extend(store(store::Event::Commit(ticket, draft)));
            }
            Input::Written(result) => self.steps.extend(store(store::Event::Written(result))),
            Input::Compact(upto) => self.steps.extend(store(store::Event::Compact(Ticket(0), Some(upto)))),
            Input::Due => {
                self.steps.extend([Step::Store(store::Event::Due), Step::Replica(replica::Event::Due)]);
            }
            Input::Peers(addresses) => self.tell(replica::Event::Peers(addresses)),
            Input::Called(ticket, Request::Hello(request)) => {
                let (_, forked) = self.compare(&request.clock);
                self.tell(replica::Event::Hello(ticket, request, forked));
            }
            Input::Called(ticket, Request::Pull(request)) => {
                let (clock, forked) = self.compare(&request.clock);
                self.pulls.insert(ticket, (request.clone(), clock));
                self.tell(replica::Event::Pull(ticket, request, forked));
            }
            Input::Called(ticket, Request::Nudge(request)) => {
                let (_, forked) = self.compare(&request.clock);
                self.tell(replica::Event::Nudge(ticket, request, forked));
            }
            Input::Called(ticket, Request::Snapshot(request)) => {
                let pages = self.give_snapshot(&request);
                self.outputs.push(Output::Answer(ticket, pages));
            }
            Input::Called(ticket, Request::Region(request)) => self.called_by_region(ticket, request),
            Input::Called(ticket, request) => {
                let (Request::Digest(proto::DigestRequest { node, .. })
                | Request::Peek(proto::PeekRequest { node, .. })) = &request
                else {
                    unreachable!("the others are above");
                };
                let node = node.clone();
                self.looks.insert(ticket, request);
                self.tell(replica::Event::Look(ticket, node));
            }
            Input::Answered(call, Answer::Digest(result)) => {
                let Some(request) = self.digests.remove(&call) else { return };
                let digests = result.map(|theirs| Box::new(self.digests_for(&request, theirs)));
                self.tell(replica::Event::DigestAnswered(call, digests));
            }
            Input::Answered(call, Answer::Region(answer)) => self.on_region_answered(call, answer),
            Input::Answered(call, Answer::Snapshot(page)) => self.on_page(call, page, now),
            Input::Answered(call, Answer::Peek(result)) => {
                self.tell(replica::Event::PeekAnswered(call, result));
            }
            Input::Answered(call, Answer::Hello(result)) => {
                self.tell(replica::Event::HelloAnswered(call, result));
            }
            Input::Answered(call, Answer::Pull(Ok(part))) => self.tell(replica::Event::PullPart(call, part)),
            Input::Answered(call, Answer::Pull(Err(failure))) => {
                self.tell(replica::Event::PullFailed(call, failure));
            }
            Input::Answered(call, Answer::Nudge(result)) => {
                self.tell(replica::Event::NudgeAnswered(call, result));
            }
        }
    }

    pub(super) fn tell(&mut self, event: replica::Event) {
        self.steps.push_back(Step::Replica(event));
    }

    /// The clock of a peer, and the origins whose entries differ there. The replica refuses a clock that cannot
    /// be read.
    fn compare(&self, clock: &BTreeMap<String, proto::Position>) -> (Clock, Vec<String>) {
        let clock = Clock::from_wire(clock).unwrap_or_default();
        let forked = self.store.lacking(&clock, 0).forked;
        (clock, forked)
    }

    fn do_of_store(&mut self, action: store::Action) {
        match action {
            store::Action::Write(batch) => self.outputs.push(Output::Write(batch)),
            store::Action::Publish(commits) => {
                let own = |commit: &&Published| {
                    commit.entry.counter > 0 && commit.entry.origin == self.store.head().node
                };
                if let Some(last) = commits.iter().rfind(own) {
                    let chain = Chain::from_wire(&last.entry.chain).unwrap();
                    let position = Position { counter: last.entry.counter, chain };
                    self.tell(replica::Event::Committed(position));
                }
                self.outputs.push(Output::Published(commits));
            }
            store::Action::Answer(ticket, Ok(committed)) => {
                // A commit that changed nothing may repeat one that peers lack yet.
                let counter = self.store.head().counter;
                let formers = self.store.head().former_nodes.len();
                match self.acks.get_mut(&ticket) {
                    Some((peers, until, answer)) => {
                        let (peers, until) = (*peers, *until);
                        *answer = Some((Acked { counter, formers, peers: None }, committed));
                        self.tell(replica::Event::Await { ticket, counter, peers, until });
                    }
                    None => {
                        let acked = Acked { counter, formers, peers: None };
                        self.outputs.push(Output::Committed(ticket, committed, acked));
                    }
                }
            }
            store::Action::Answer(ticket, Err(refused)) => {
                self.acks.remove(&ticket);
                self.outputs.push(Output::Refused(ticket, refused));
            }
            store::Action::Merged(ticket, result) if self.mending.contains_key(&ticket) => {
                let call = self.mending.remove(&ticket).unwrap();
                let merged = result.ok();
                let mended = merged.as_ref().map(|merged| merged.mended);
                self.outputs.extend(mended.filter(|mended| *mended > 0).map(Output::Mended));
                self.tell(replica::Event::Mended(call, merged.map(|merged| merged.lost)));
            }
            store::Action::Merged(ticket, result) => {
                let call = self.applying.remove(&ticket).unwrap();
                // Entries that the engine refused come again with the next round.
                let stopped = result.map(|merged| merged.stopped).unwrap_or_default();
                self.tell(replica::Event::Applied { call, clock: self.store.clock(), stopped });
            }
            store::Action::Staged(_, staged) => self.on_staged(staged),
            store::Action::TookId(_, took) => self.on_took_id(took.is_ok()),
            store::Action::AnswerRegion(ticket, answer) => {
                let answer = Answer::Region(answer.map_err(Unanswered::Refused));
                self.outputs.push(Output::Answer(ticket, vec![answer]));
            }
            store::Action::CallRegion { call, region, node, request } => {
                self.call_region(call, (&region, &node), request);
            }
            store::Action::Compacted(..) => self.outputs.push(Output::Compacted),
        }
    }

    fn do_of_replica(&mut self, action: replica::Action, now: i64) {
        use replica::Action;
        let output = match action {
            Action::CallHello(call, address, request) => Output::Call(call, address, Request::Hello(request)),
            Action::CallPull(call, address, request) => {
                // SR22: what a node that was not known would revive.
                let counters = self.replica.counters_at(&address);
                if !counters.is_empty() && self.store.may_revive(&counters) {
                    return self.tell(replica::Event::PullFailed(call, Failure::Unreachable));
                }
                Output::Call(call, address, Request::Pull(request))
            }
            Action::CallNudge(call, address, request) => Output::Call(call, address, Request::Nudge(request)),
            Action::CallDigest(call, address, request) => {
                self.digests.insert(call, request.clone());
                Output::Call(call, address, Request::Digest(request))
            }
            Action::CallPeek(call, address, request) => Output::Call(call, address, Request::Peek(request)),
            Action::Mend(call, states, of_peer) => {
                self.next += 1;
                let ticket = Ticket(self.next);
                self.mending.insert(ticket, call);
                return self.steps.push_back(Step::Store(store::Event::Mend(ticket, states, of_peer)));
            }
            Action::AnswerLook(ticket, accepted) => {
                let request = self.looks.remove(&ticket).unwrap();
                Output::Answer(ticket, vec![self.look(&request, accepted.map_err(Failure::Refused))])
            }
            Action::Cancel(call) => Output::Cancel(call),
            Action::Apply(call, pieces, policies) => {
                self.next += 1;
                let ticket = Ticket(self.next);
                self.applying.insert(ticket, call);
                return self.steps.push_back(Step::Store(store::Event::Merge(
                    ticket,
                    pieces,
                    Some(policies),
                )));
            }
            Action::AnswerHello(ticket, result) => {
                Output::Answer(ticket, vec![Answer::Hello(result.map_err(Failure::Refused))])
            }
            Action::AnswerNudge(ticket, result) => {
                Output::Answer(ticket, vec![Answer::Nudge(result.map_err(Failure::Refused))])
            }
            Action::AnswerPull(ticket, result) => {
                let (request, clock) = self.pulls.remove(&ticket).unwrap();
                Output::Answer(ticket, self.parts(&request, &clock, result))
            }
            Action::Acked { ticket, peers, is_enough } => {
                let (_, _, committed) = self.acks.remove(&ticket).unwrap();
                let (acked, committed) = committed.expect("a commit is awaited once it is durable");
                Output::Committed(ticket, committed, Acked { peers: Some((peers, is_enough)), ..acked })
            }
            Action::Remember(node, counters) => {
                let remember = store::Event::Remember(node, counters);
                return self.steps.push_back(Step::Store(remember));
            }
            Action::OfRegion(node, region) => {
                let of_region = store::Event::OfRegion(node, region);
                return self.steps.push_back(Step::Store(of_region));
            }
            Action::PeerPhases(phases) => {
                return self.steps.push_back(Step::Store(store::Event::PeerPhases(phases)));
            }
            Action::Raise(alarm) => Output::Raise(alarm),
            Action::TakeNewId(why) => {
                self.take_id();
                Output::TakesId(why)
            }
            Action::TakeSnapshot { address, must_replace, .. } => {
                return self.take_snapshot(address, must_replace, now);
            }
            Action::Remove(region, records) => {
                return self.steps.push_back(Step::Store(store::Event::Remove(region, records)));
            }
            Action::Fetched(names, incarnation_floor) => {
                let fetched = store::Event::Fetched { names, incarnation_floor };
                return self.steps.push_back(Step::Store(fetched));
            }
            // For the log of the server.
            Action::Dropped(..) | Action::End(_) => return,
        };
        self.outputs.push(output);
    }

    /// What a peer reads.
    fn look(&self, request: &Request, accepted: Result<(), Failure>) -> Answer {
        let view = self.engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        match request {
            Request::Peek(request) => {
                let keys: Result<Vec<_>, _> = request.keys.iter().map(RecordKey::parse).collect();
                let caller = (&*request.region, &*request.fetching);
                // As the service answers keys that are none.
                let keys = accepted.and_then(|()| keys.map_err(|_| Failure::Unreachable));
                Answer::Peek(keys.map(|keys| reads.peek_in(caller, &keys).unwrap()))
            }
            Request::Digest(request) => {
                let source_region = self.store.head().region.clone();
                let request = proto::DigestRequest { source_region, ..request.clone() };
                Answer::Digest(accepted.map(|()| reads.digest(&request, None, 3).unwrap()))
            }
            request => unreachable!("{request:?}"),
        }
    }

    /// Both answers to a request for digests.
    fn digests_for(&self, request: &proto::DigestRequest, theirs: proto::DigestResponse) -> replica::Digests {
        let view = self.engine.view().unwrap();
        let last = theirs.records.last().filter(|_| theirs.more).and_then(|last| last.key.as_ref());
        let until = last.and_then(|key| RecordKey::parse(key).ok());
        let own = Reads::new(&*view).unwrap().digest(request, until.as_ref(), usize::MAX).unwrap();
        replica::Digests { own, theirs }
    }

    /// The messages of the answer to a pull: one, which the network takes apart. The entries are those that the
    /// machine knows, and all of them are in the engine.
    fn parts(
        &self,
        request: &proto::PullRequest,
        clock: &Clock,
        accepted: Result<BTreeMap<String, proto::Clock>, Refusal>,
    ) -> Vec<Answer> {
        let others = match accepted {
            Ok(others) => others,
            Err(refusal) => return vec![Answer::Pull(Err(Failure::Refused(refusal)))],
        };
        let lacking = self.store.lacking_in(&request.region, clock, request.max_entries as usize);
        let view = self.engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let mut answer = proto::PullResponse {
            is_last: true,
            is_behind: lacking.is_behind,
            clock: self.store.clock().to_wire(),
            node: self.store.head().node.clone(),
            others,
            forked: lacking.forked,
            is_fetching: reads.is_fetching().unwrap(),
            ..Default::default()
        };
        for OutOfSync { origin, floor, must_replace, .. } in lacking.out_of_sync {
            answer.out_of_sync.push(proto::OutOfSync { origin, floor, must_replace });
        }
        for revision in lacking.revisions {
            match reads.foreign_in(&request.region, revision) {
                Ok(Foreign::Entry(entry)) => answer.entries.push(entry),
                Ok(Foreign::Skip(skip)) => answer.skips.push(skip),
                // A compaction is durable that the machine has not heard of.
                Err(ReadError::Compacted { .. }) => return vec![Answer::Pull(Err(Failure::Unreachable))],
                Err(error) => panic!("{error}"),
            }
        }
        vec![Answer::Pull(Ok(answer))]
    }
}
