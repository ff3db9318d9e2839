//! Nodes of a cluster in virtual time: each has the machine of a store on an engine in memory, and the machine
//! that replicates. One number determines a run: what users commit, what goes wrong, and when.

use std::collections::{BTreeMap, BTreeSet};

use xds_store::engine::{Batch, Engine as _, MemoryEngine};
use xds_store::replica::CallId;
use xds_store::store::{Identity, Store, Ticket};

use crate::random::Random;
pub(crate) use counts::Counts;
use driver::{Answer, Input, Process, Request};
use history::History;
pub(crate) use twins::copy_of;

mod answers;
mod calling;
mod counts;
mod disks;
pub(crate) mod driver;
mod history;
mod lost;
mod network;
mod process;
mod promotions;
mod regions;
mod resyncing;
mod twins;
mod users;

const MS: i64 = 1_000_000;
const SECOND: i64 = 1000 * MS;
const START: i64 = 1_000_000 * SECOND;
/// Until START the nodes only meet: a node that joins knows, and is known, before it accepts commits (SR24).
const MEETING: i64 = 8 * SECOND;
/// How long things go wrong.
const TROUBLE: i64 = START + 15 * SECOND;
/// How long the core may take until its nodes are equal: the longest deadline, the longest back-off, and a few
/// rounds.
const HEALING: i64 = 50 * SECOND;
/// When a day passes, and the steps in which a store counts it.
const AGES: i64 = START + 7 * SECOND;
const DAY: i64 = 25 * 3600 * SECOND;
const STEP: i64 = 1200 * SECOND;
/// After this, all dates are over by the clocks of all nodes.
const DATES: i64 = 10 * 3600 * SECOND;

type Outcome = Result<(), String>;

struct Node {
    id: String,
    engine: MemoryEngine,
    process: Option<Process>,
    /// The number of the process.
    boot: u64,
    /// How far the wall clock is ahead of the timers.
    skew: i64,
    /// How long a batch or a message may take, in milliseconds.
    slowness: u64,
    is_full: bool,
    writing: Option<Batch>,
    /// The next time for which it waits.
    woken_at: Option<i64>,
    /// How often it was due at the present time.
    dues: (i64, u32),
    /// Its calls, with the addresses.
    calls: BTreeMap<CallId, (usize, network::Kind)>,
    /// The answers that its pulls follow.
    streams: BTreeMap<CallId, u64>,
    nudged_at: BTreeMap<usize, i64>,
    commits: BTreeMap<Ticket, Sent>,
    copy: Option<disks::Copy>,
    /// An older state of its folder.
    folder: Option<MemoryEngine>,
}

/// A commit that is not answered yet.
struct Sent {
    peers: usize,
    until: i64,
}

#[derive(Debug)]
enum Happens {
    Due(usize),
    Arrives(Caller, usize, Request),
    /// One message of an answer, which has a number.
    Answered(Caller, u64, Answer),
    Written(usize, u64),
    Commits(usize),
    Compacts(usize),
    Crashes(usize),
    Starts(usize),
    Cuts(usize, usize, bool),
    Fills(usize, bool),
    Jumps(usize, i64),
    LosesDisk(usize),
    /// An operator forgets a node that is lost.
    Forgets(String),
    BacksUp(usize),
    Restores(usize),
    /// The folder of the first one is copied, and runs at the second one, too.
    Clones(usize, usize),
    Copies(usize),
    SetsBack(usize),
    /// A day passes at all nodes.
    Ages,
    Heals,
    /// The regions get the names that they own.
    Policies,
    /// A replica becomes the writer of its region, also while that may be alive.
    Promotes(usize, bool),
}

/// A call of a node: the caller, its boot and the number.
#[derive(Debug, Clone, Copy)]
struct Caller {
    node: usize,
    boot: u64,
    call: CallId,
}

pub(crate) struct Sim {
    random: Random,
    now: i64,
    queue: BTreeMap<(i64, u64), Happens>,
    next: u64,
    nodes: Vec<Node>,
    peers: Vec<Vec<usize>>,
    /// The nodes that heal. The others stay as they are.
    core: BTreeSet<usize>,
    /// Where requests and answers get lost, by sender and receiver.
    cut: BTreeSet<(usize, usize)>,
    loss: u64,
    is_healed: bool,
    /// Logs are forgotten though nodes that are away lack them.
    forgets: bool,
    /// The nodes know each other before things go wrong. Otherwise no record has a date or a lease: a node that ended
    /// one, and forgot it, cannot know that another node wrote it before it knew of that (SR26).
    meets: bool,
    /// These forget nothing, so that not both sides lack what the other one has forgotten.
    away: BTreeSet<usize>,
    /// Calls of peers that were not answered yet.
    tickets: BTreeMap<(usize, Ticket), Caller>,
    history: History,
    /// Instead of the history, if two nodes had one id.
    twins: Option<twins::Twins>,
    /// Instead of the history, if the nodes are of several regions.
    regions: Option<regions::Regions>,
    trace: Option<Vec<String>>,
    counts: Counts,
}

fn name(node: usize) -> String {
    format!("n{node}")
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}

/// Runs one seed, with nodes of one region. What went wrong, with the last lines of the trace.
pub(crate) fn run(seed: u64) -> Result<Counts, String> {
    run_with(seed, Sim::new)
}

/// Runs one seed, with nodes of several regions.
pub(crate) fn run_regions(seed: u64) -> Result<Counts, String> {
    run_with(seed, Sim::regional)
}

fn run_with(seed: u64, new: fn(u64, bool) -> Sim) -> Result<Counts, String> {
    let run = |is_traced| {
        let mut sim = new(seed, is_traced);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.play(seed)));
        (sim, outcome.unwrap_or_else(|_| Err("a panic".into())))
    };
    let (sim, outcome) = run(false);
    outcome.map(|()| sim.counts).map_err(|problem| {
        let trace = run(true).0.trace.unwrap_or_default();
        format!(
            "{problem}\n{}",
            trace[trace.len().saturating_sub(crate::number("LINES").unwrap_or(60) as usize)..].join("\n")
        )
    })
}

impl Sim {
    fn new(seed: u64, is_traced: bool) -> Self {
        Self::with(seed, is_traced, None)
    }

    fn with(seed: u64, is_traced: bool, regions: Option<regions::Regions>) -> Self {
        let mut random = Random(seed);
        let count = match &regions {
            Some(regions) => regions.count(),
            None => 2 + random.below(4) as usize,
        };
        let is_chain = random.chance(25) && regions.is_none();
        let others = |node: usize| (0..count).filter(move |other| *other != node);
        let near =
            |node: usize| others(node).filter(|other| !is_chain || other.abs_diff(node) == 1).collect();
        // A part of a chain is connected.
        let first = random.below(count as u64 - 1) as usize;
        let last = first + 1 + random.below((count - first - 1) as u64) as usize;
        let mut node = |number| {
            let mut engine = MemoryEngine::default();
            let of_one = || Identity { node: name(number), cluster: CLUSTER.into(), ..Identity::default() };
            let identity = regions.as_ref().map_or_else(of_one, |regions| regions.identity(number));
            engine.commit(&Store::init(&identity)).unwrap();
            Node {
                id: name(number),
                engine,
                process: None,
                boot: 0,
                skew: if random.chance(50) { random.below(7200) as i64 - 3600 } else { 0 } * SECOND,
                slowness: *random.pick(&[5, 5, 50, 900]),
                is_full: false,
                writing: None,
                woken_at: None,
                dues: (0, 0),
                calls: BTreeMap::new(),
                streams: BTreeMap::new(),
                nudged_at: BTreeMap::new(),
                commits: BTreeMap::new(),
                copy: None,
                folder: None,
            }
        };
        Self {
            nodes: (0..count).map(&mut node).collect(),
            now: START - MEETING,
            queue: BTreeMap::new(),
            next: 0,
            peers: (0..count).map(near).collect(),
            core: (first..=last).collect(),
            cut: BTreeSet::new(),
            loss: *random.pick(&[0, 2, 20]),
            is_healed: false,
            forgets: random.chance(30),
            meets: true,
            away: BTreeSet::new(),
            tickets: BTreeMap::new(),
            history: History::new((0..count).map(name)),
            twins: None,
            regions,
            trace: is_traced.then(Vec::new),
            counts: Counts::default(),
            random,
        }
    }

    /// A time while things go wrong.
    fn some_time(&mut self) -> i64 {
        START + self.random.below((TROUBLE - START) as u64) as i64
    }

    fn plan(&mut self, seed: u64) {
        // Regions have their policies before things go wrong, so their nodes meet.
        self.meets = !self.forgets || self.regions.is_some() || self.random.chance(40);
        let first = if self.meets { START - MEETING } else { START };
        for node in 0..self.nodes.len() {
            let at = first + self.random.below(2000) as i64 * MS;
            self.at(at, Happens::Starts(node));
            for _ in 0..self.random.below(if self.regions.is_some() { 30 } else { 12 }) {
                let at = self.some_time();
                self.at(at, Happens::Commits(node));
            }
            for _ in 0..self.random.below(3) {
                let at = self.some_time();
                self.at(at, Happens::Crashes(node));
                let at = self.some_time();
                self.at(at, Happens::Compacts(node));
                let other = self.random.below(self.nodes.len() as u64) as usize;
                let (from, to) = (self.some_time(), self.some_time());
                self.at(from, Happens::Cuts(node, other, true));
                self.at(to, Happens::Cuts(node, other, false));
            }
            if self.forgets && self.random.chance(50) {
                self.plan_away(node);
            }
            if self.random.chance(30) {
                let (from, to) = (self.some_time(), self.some_time());
                self.at(from, Happens::Fills(node, true));
                self.at(to, Happens::Fills(node, false));
            }
            if self.random.chance(40) {
                let (at, seconds) = (self.some_time(), self.random.below(1800) as i64 - 600);
                self.at(at, Happens::Jumps(node, seconds * SECOND));
            }
        }
        if self.forgets {
            self.at(AGES, Happens::Ages);
        }
        self.plan_regions(seed);
        self.plan_disks(seed);
        self.at(TROUBLE, Happens::Heals);
    }

    /// A node is cut off before others forget what it lacks, from the start or later, and comes back then.
    fn plan_away(&mut self, node: usize) {
        let start = if self.random.chance(40) { START } else { START + self.random.below(6000) as i64 * MS };
        let end = AGES + self.random.below(((TROUBLE - AGES) / MS) as u64) as i64 * MS;
        self.away.insert(node);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                self.at(start, Happens::Cuts(from, to, true));
                self.at(end, Happens::Cuts(from, to, false));
            }
        }
    }

    fn play(&mut self, seed: u64) -> Outcome {
        self.plan(seed);
        self.play_until(START)?;
        if self.lacks_policies() {
            return Ok(());
        }
        self.play_until(TROUBLE)?;
        self.converge(TROUBLE + HEALING)?;
        self.check_writes()?;
        // All dates end, by the clock of each node, and what follows from that reaches the others.
        self.delete_all()?;
        let core: Vec<_> = self.core.iter().copied().collect();
        for node in core {
            self.happen(Happens::Jumps(node, DATES))?;
        }
        self.play_until(self.now + 2 * SECOND)?;
        self.converge(self.now + HEALING)?;
        self.check_twins()?;
        let checked = if self.is_exact() { self.core.clone() } else { BTreeSet::new() };
        for node in checked {
            self.history.check(&self.nodes[node].id)?;
            self.history.check_merged(&self.nodes[node].id, true)?;
        }
        self.counts.entries = self.history.entries() as u64;
        self.counts.shown = self.history.shown;
        Ok(())
    }

    fn play_until(&mut self, until: i64) -> Outcome {
        while let Some((&(at, _), _)) = self.queue.first_key_value() {
            if at > until {
                break;
            }
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            self.now = at;
            self.note(|| format!("{event:?}"));
            self.counts.events += 1;
            if self.counts.events > EVENTS {
                return Err("liveness: too many events".into());
            }
            self.happen(event)?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    /// The nodes of the core become equal, and answer all commits.
    fn converge(&mut self, until: i64) -> Outcome {
        loop {
            self.play_until((self.now + SECOND).min(until))?;
            let clocks: BTreeSet<_> =
                self.core.iter().map(|node| self.history.counters(&self.nodes[*node].id)).collect();
            let unanswered = self.core.iter().map(|node| self.nodes[*node].commits.len()).sum::<usize>();
            let difference = self.difference_of_regions();
            let is_waiting = |node: &&usize| {
                self.is_fetching(**node) || self.is_hearing(**node) || self.is_resyncing(**node)
            };
            let waiting: Vec<_> = self.core.iter().filter(is_waiting).collect();
            let are_equal =
                waiting.is_empty() && (clocks.len() == 1 || self.regions.is_some()) && difference.is_none();
            if are_equal && unanswered == 0 && self.have_twins_converged() {
                return Ok(());
            }
            if self.now >= until {
                let twins =
                    self.twins.as_ref().map(|twins| twins.differences(&self.core)).unwrap_or_default();
                let awaited: Vec<_> = waiting.iter().filter_map(|node| self.awaited(**node)).collect();
                return Err(format!(
                    "liveness: {unanswered} commits without answer, clocks {clocks:?}, {twins:?} {difference:?} \
                     {waiting:?} {awaited:?}"
                ));
            }
        }
    }

    /// Whether a clock says what a node has.
    fn is_exact(&self) -> bool {
        self.twins.is_none() && self.regions.is_none()
    }

    /// Whether things go wrong.
    fn is_troubled(&self) -> bool {
        self.now >= START && !self.is_healed
    }

    fn at(&mut self, at: i64, event: Happens) {
        self.next += 1;
        self.queue.insert((at, self.next), event);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let mut line = format!("{:>7} ms {}", (self.now - START) / MS, line());
            let width = crate::number("WIDTH").unwrap_or(300) as usize;
            line.truncate((0..=width).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0));
            trace.push(line);
        }
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].id.clone()
    }

    /// The timers, and the wall clock of a node.
    fn times(&self, node: usize) -> (i64, i64) {
        (self.now, self.now + self.nodes[node].skew)
    }

    fn happen(&mut self, event: Happens) -> Outcome {
        match event {
            Happens::Due(node) => {
                let due = &mut self.nodes[node];
                if due.woken_at != Some(self.now) {
                    return Ok(());
                }
                due.woken_at = None;
                due.dues = if due.dues.0 == self.now { (self.now, due.dues.1 + 1) } else { (self.now, 1) };
                if due.dues.1 > 10 {
                    return Err(format!("liveness: {} is due at once, again and again", name(node)));
                }
                self.input(node, Input::Due)
            }
            Happens::Arrives(caller, callee, request) => self.arrive(caller, callee, request),
            Happens::Answered(caller, stream, answer) => self.answered(caller, stream, answer),
            Happens::Written(node, boot) => self.written(node, boot),
            Happens::Commits(node) => self.commit(node),
            Happens::Compacts(node) if self.away.contains(&node) || self.twins.is_some() => Ok(()),
            // SR60: a store keeps what a known node may lack.
            Happens::Compacts(node) if self.regions.is_some() => self.input(node, Input::Compact(u64::MAX)),
            Happens::Compacts(node) => {
                let id = self.id(node);
                let upto =
                    if self.forgets { self.history.revision(&id) } else { self.history.everywhere(&id) };
                self.input(node, Input::Compact(upto))
            }
            Happens::Crashes(node) => self.crash(node),
            Happens::Starts(node) => self.start(node),
            Happens::Cuts(from, to, true) => {
                self.cut.insert((from, to));
                Ok(())
            }
            Happens::Cuts(from, to, false) => {
                self.cut.remove(&(from, to));
                Ok(())
            }
            Happens::Fills(node, is_full) => {
                self.nodes[node].is_full = is_full;
                Ok(())
            }
            Happens::Jumps(node, by) => {
                self.nodes[node].skew += by;
                self.wake(node);
                Ok(())
            }
            Happens::LosesDisk(node) if self.regions.is_some() => self.lose_disk_in_region(node),
            Happens::LosesDisk(node) => self.lose_disk(node),
            Happens::Forgets(id) => self.forget(id),
            Happens::BacksUp(node) => {
                self.back_up(node);
                Ok(())
            }
            Happens::Restores(node) => self.restore(node),
            Happens::Clones(of, at) => {
                self.copy_folder(of);
                self.run_copy(of, at)
            }
            Happens::Copies(node) => {
                self.copy_folder(node);
                Ok(())
            }
            Happens::SetsBack(node) => self.run_copy(node, node),
            Happens::Heals => self.heal(),
            Happens::Ages => self.age(),
            Happens::Policies => self.commit_policies(),
            Happens::Promotes(node, is_forced) => self.promote(node, is_forced),
        }
    }

    /// What nobody was heard to lack for a day may be forgotten (SR60).
    fn age(&mut self) -> Outcome {
        for node in 0..self.nodes.len() {
            for _ in 0..DAY / STEP {
                self.nodes[node].skew += STEP;
                self.input(node, Input::Due)?;
            }
            for _ in 0..self.random.below(3) {
                let at = self.now + self.random.below(((TROUBLE - AGES) / MS) as u64) as i64 * MS;
                self.at(at, Happens::Compacts(node));
            }
        }
        Ok(())
    }

    /// The core is connected, and has room. No other node reaches it any more, though it may hear it.
    fn heal(&mut self) -> Outcome {
        self.is_healed = true;
        self.forget_region();
        self.demote_second_writers()?;
        for one in 0..self.nodes.len() {
            for other in 0..self.nodes.len() {
                match (self.core.contains(&one), self.core.contains(&other)) {
                    (true, true) => drop(self.cut.remove(&(one, other))),
                    (false, true) => drop(self.cut.insert((one, other))),
                    (true | false, false) => {}
                }
            }
            if self.core.contains(&one) {
                (self.nodes[one].is_full, self.nodes[one].slowness) = (false, 5);
                self.start(one)?;
            } else if self.random.chance(30) {
                self.crash(one)?;
            }
        }
        Ok(())
    }
}

const CLUSTER: &str = "c";
/// More than any run has.
const EVENTS: u64 = 10_000;
