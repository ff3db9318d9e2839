//! The machine of one store. Commits go in; batches for the engine and answers come out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use xds_proto::xds::store::v1 as proto;

use crate::checked;
use crate::clock::{Clock, Counters, Position};
use crate::commit::{Draft, RefusalCode, Refused};
use crate::conflict::Conflict;
use crate::engine::{Batch, EngineRevision, Reader};
pub use crate::index::FormCounts;
use crate::index::{Index, Pending};
use crate::key::{RecordKey, stored};
use crate::log::{FORMAT, Head};
use crate::phase::PeerPhases;
use crate::region::{FetchingChanges, Policies};
use crate::stored::{ReadError, Stored};
use crate::time::SECOND;
use across::{Across, Asked};
pub use across::{RegionRequest, RegionResponse, Unanswered};
use catch_up::Mark;
use compaction::Compaction;
pub use config::{Config, Identity};
pub use event::{Action, Committed, Event, Published, Ticket};
pub use fetching::ToFetch;
pub use forgetting::Forgetting;
use journal::{Journal, Journaled};
pub use load::{LoadError, Loaded};
use merging::Merging;
pub use merging::{Merged, Stopped};
use nodes::Nodes;
use origins::Origins;
pub use origins::{Lacking, OutOfSync};
use pass::Pass;
pub use pass::PassProgress;
pub use plans::PlanProgress;
pub use references::{DeletionInProgress, FoundReferrers, ReferrersQuery};
pub use resync::Resynced;
use running::Running;
pub use staging::Staged;
use staging::{Alone, Staging};
use wall::Wall;

mod across;
mod catch_up;
mod collecting;
mod compaction;
mod config;
mod draining;
mod dropping;
mod event;
mod fetching;
mod forgetting;
mod journal;
mod judging;
mod leases;
mod load;
mod mending;
mod merging;
mod nodes;
mod origins;
mod outcome;
mod owning;
mod pass;
mod plans;
mod references;
mod refusing;
mod renaming;
mod resync;
mod running;
mod serving;
mod staging;
mod wall;
mod writing;

/// One store.
///
/// Events go in, actions come out; the caller performs them in order. The machine has no engine,
/// clock or thread. It waits for one batch at a time: commits that arrive meanwhile are judged when
/// that batch is durable, and are written together (ST17).
#[derive(Debug)]
pub struct Store {
    config: Config,
    /// As the engine has it.
    head: Head,
    head_revision: Option<EngineRevision>,
    index: Index,
    origins: Origins,
    /// The other nodes.
    nodes: Nodes,
    journal: Journal,
    running: Running,
    /// ST21: why the store accepts no commits until the process restarts.
    read_only: Option<String>,
    waiting: VecDeque<Waiting>,
    /// Entries of other nodes.
    merging: VecDeque<Merging>,
    /// A snapshot that is being taken.
    staging: Option<Staging>,
    /// A new id that waits.
    take_id: Option<(Ticket, String)>,
    /// The batch that is being written, or whose outcome is not known yet.
    writing: Option<Writing>,
    /// ST20: whether the batch was applied is not known.
    unknown: Option<Unknown>,
    /// The last entry of the log that was read or written; `None` if it was forgotten before.
    newest: Option<Mark>,
    /// Whether other servers may have committed since the head was read.
    is_behind: bool,
    /// Whether other servers forgot revisions that this one has not read.
    has_lost_log: bool,
    /// After a batch was refused, records end again from this time on.
    ends_again_at: i64,
    /// ST40: the engine did not take a batch, or could not be read, and has taken no batch since.
    is_cut_off: bool,
    /// ST22: the disk was full; when to find out whether there is room.
    room_at: Option<i64>,
    wall: Wall,
    /// The number of the last batch of this run.
    batch: u64,
    compaction: Compaction,
    /// By the number of the plan.
    passes: BTreeMap<u32, Pass>,
    /// When the next step of deletions in progress may be.
    drains_at: i64,
    /// When the next owners may be checked.
    owners_at: i64,
    /// How far the plans of other nodes are.
    peer_phases: PeerPhases,
    /// Other regions.
    across: Across,
    dropping: dropping::Dropping,
    /// When to look again which leases this node ends.
    leases_at: i64,
    /// Names that were fetched, until the next batch says so.
    fetched: Vec<(Vec<proto::Fetching>, u64)>,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    draft: Draft,
    /// When it arrived.
    since: i64,
    /// What other regions said about it.
    asked: Asked,
}

/// A batch may have been applied (ST20).
#[derive(Debug)]
struct Unknown {
    /// When the commits are answered `UNKNOWN`, by the clock as it is: it may have gone back, and then the time
    /// of the store waits for it.
    until: i64,
    /// When to read the head again; `None` while the batch is being written again.
    read_at: Option<i64>,
}

impl Unknown {
    fn since(now: i64) -> Self {
        Self { until: now.saturating_add(PATIENCE), read_at: None }
    }
}

/// A batch, and what follows once it is durable.
#[derive(Debug)]
struct Writing {
    batch: Batch,
    bytes: usize,
    number: u64,
    head: Head,
    pending: Pending,
    /// Deleted records that are forgotten.
    collected: Vec<RecordKey>,
    published: Vec<Published>,
    /// Of the origins whose entries it has.
    positions: BTreeMap<Box<str>, Position>,
    /// Their regions.
    regions: BTreeMap<Box<str>, String>,
    /// Up to where it forgets deletions of each origin.
    deletion_floors: BTreeMap<Box<str>, u64>,
    /// Forgotten nodes of which it keeps nothing.
    dropped_nodes: BTreeSet<Box<str>>,
    /// What its commits lost, until it is journaled.
    lost: Vec<Conflict>,
    journaled: Vec<Journaled>,
    merged: Vec<(Ticket, Merged)>,
    commits: Vec<(Waiting, Result<Committed, Refused>)>,
    /// Changes of references between regions, with their answers.
    requests: Vec<(across::Request, across::Answered)>,
    /// What it changes of the names that the store fetches.
    fetching: FetchingChanges,
    /// Commits that are not decided, because they need other regions.
    parked: Vec<(Waiting, across::Wait)>,
    compacted: bool,
    /// The entry that asked for the rollout in a snapshot.
    rollout_of_snapshot: Option<(String, u64)>,
    alone: Option<Alone>,
}

impl Store {
    /// The batch that makes a store in an empty engine (ST1).
    #[must_use]
    pub fn init(identity: &Identity) -> Batch {
        Self::first_batch(identity, false)
    }

    /// The same for a new node of a cluster, which waits for its first snapshot (SR24).
    #[must_use]
    pub fn init_joining(identity: &Identity) -> Batch {
        Self::first_batch(identity, true)
    }

    fn first_batch(identity: &Identity, is_joining: bool) -> Batch {
        let Identity { node, cluster, region, is_replica } = identity.clone();
        let mut head =
            Head { format: FORMAT, node, cluster, region, is_replica, is_joining, ..Head::default() };
        // The former writer of the region may be lost.
        if is_joining {
            head.hear_again();
        }
        Batch {
            compares: vec![(stored::HEAD.into(), None)],
            writes: vec![(stored::HEAD.into(), Some(checked::encode(stored::HEAD, &head)))],
        }
    }

    /// The key that each batch writes, whose changes show commits of other servers.
    #[must_use]
    pub fn head_key() -> &'static [u8] {
        stored::HEAD
    }

    /// The revision of the last durable commit.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.head.revision
    }

    /// The head of the last durable commit.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The greatest time that was acted on, in nanoseconds since 1970 (ST41).
    #[must_use]
    pub fn time(&self) -> i64 {
        self.head.time
    }

    /// Up to where the store has the entries of each origin (SR9).
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.origins.clock()
    }

    /// What a node with this clock lacks, at most so many entries of each origin.
    #[must_use]
    pub fn lacking(&self, clock: &Clock, limit: usize) -> Lacking {
        self.origins.lacking(clock, limit, None)
    }

    /// The same for a node of a region. One of another region gets entries of nodes of this region only (SG26):
    /// so nobody but the region of an origin decides what of it is for others.
    #[must_use]
    pub fn lacking_in(&self, region: &str, clock: &Clock, limit: usize) -> Lacking {
        let own = self.head.region.as_str();
        self.origins.lacking(clock, limit, Some(own).filter(|own| *own != region))
    }

    /// The policies of regions.
    #[must_use]
    pub fn policies(&self) -> &Policies {
        self.index.policies()
    }

    /// How many records exist, and how many are deleted and not forgotten yet.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        self.index.counts()
    }

    /// Why the store accepts no commits until the process restarts, for people; `None` while it
    /// accepts them.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sets the time between two steps of the background work of a plan, in nanoseconds; `None`: the default
    /// (SV22). With a time, passes begin again at once.
    pub fn set_pass_pause(&mut self, pause: Option<i64>) {
        self.config.pass_pause = pause.unwrap_or(pass::STEP_EVERY);
        if pause.is_some() {
            self.restart_passes();
        }
    }

    /// Whether other servers of the store forgot revisions before this one read them, or go on from an older state: it
    /// was paused or cut off for long. It accepts no commits any more, and the store has to be loaded again.
    #[must_use]
    pub fn has_lost_log(&self) -> bool {
        self.has_lost_log
    }

    /// Whether a record exists: it is not deleted.
    #[must_use]
    pub fn exists(&self, key: &RecordKey) -> bool {
        self.index.get(key).is_some_and(|record| !record.is_deleted())
    }

    /// How many records are being deleted, and since when the one that has waited the longest is, in
    /// nanoseconds since 1970 (SG10).
    #[must_use]
    pub fn deleting_since(&self) -> (usize, Option<i64>) {
        self.index.deleting_since()
    }

    /// Imports of authorities that are a circle, such as `a > b > a`, because two nodes registered them at once (SG37).
    #[must_use]
    pub fn import_circles(&self) -> &[String] {
        self.index.authorities().circles()
    }

    /// Whether no commit waits for its answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_idle = self.waiting.is_empty() && self.merging.is_empty() && self.writing.is_none();
        is_idle && self.take_id.is_none() && self.across.is_idle()
    }

    /// When to call [`step`](Self::step) with [`Event::Due`], unless something else happens before,
    /// in nanoseconds since 1970.
    #[must_use]
    pub fn due(&self) -> Option<i64> {
        match (&self.writing, &self.unknown) {
            (Some(_), Some(unknown)) => unknown.read_at,
            (Some(_), None) => None,
            (None, _) if self.read_only.is_some() || self.has_lost_log => None,
            (None, _) if self.is_closed() => {
                let remembers = self.nodes.has_news().then_some(self.ends_again_at);
                let due = remembers.into_iter().chain(self.room_at).chain(self.running_due()).min();
                due.map(|due| self.wall.at(due))
            }
            (None, _) => {
                let next_lease = self.index.ends.next_lease().filter(|_| !self.is_cut_off);
                let end = self.index.ends.next_date().into_iter().chain(next_lease).min();
                let end = end.map(|end| end.max(self.ends_again_at));
                let due = end
                    .into_iter()
                    .chain(self.room_at)
                    .chain(self.pass_due())
                    .chain(self.drain_due())
                    .chain(self.owner_check_due())
                    .chain(self.drop_due())
                    .chain(self.older_due())
                    .chain(self.nodes.has_news().then_some(self.ends_again_at))
                    .chain(self.running_due())
                    .chain(self.has_remains().then_some(self.ends_again_at))
                    .chain(self.across_due())
                    .min()
                    .map(|due| self.wall.at(due));
                due.into_iter().chain(self.watch_due()).min()
            }
        }
    }

    /// What to do about an event at this time, in nanoseconds since 1970. `reader` shows what the
    /// engine has.
    pub fn step(&mut self, event: Event, now: i64, reader: &dyn Reader) -> Vec<Action> {
        let now = self.note_time(now);
        if self.replicates() {
            self.running.count(now);
        }
        let mut actions = Vec::new();
        match event {
            Event::Commit(ticket, draft) => {
                self.waiting.push_back(Waiting { ticket, draft, since: now, asked: Asked::default() });
            }
            Event::Merge(ticket, entries, policies) => {
                let entries = entries.into();
                self.merging.push_back(Merging { entries, policies, ..Merging::new(ticket) });
            }
            Event::Mend(ticket, states, of_peer) => {
                self.merging.push_back(Merging { states: states.into(), of_peer, ..Merging::new(ticket) });
            }
            Event::BeginResync { must_replace, new_id } => {
                self.begin_resync(must_replace, new_id, &mut actions);
            }
            Event::Stage(ticket, page) => self.stage(ticket, page, &mut actions),
            Event::EndResync => self.end_resync(&mut actions),
            Event::TakeId(ticket, id) => self.take_new_id(ticket, id),
            Event::Region(ticket, request) => self.on_region(ticket, request, &mut actions),
            Event::Writer { region, node } => self.on_writer(region, node),
            Event::RegionAnswered(call, answer) => self.on_region_answered(call, answer, &mut actions),
            Event::Written(result) => self.on_written(result, now, reader, &mut actions),
            Event::Changed => self.is_behind = true,
            Event::Due => {
                let read_at = self.unknown.as_ref().and_then(|unknown| unknown.read_at);
                if read_at.is_some_and(|at| at <= self.wall.shown()) {
                    self.find_out(now, reader, &mut actions);
                }
            }
            Event::Compact(ticket, upto) => self.compaction.request(ticket, upto),
            Event::EndCompaction => {
                let refused = Refused::whole(RefusalCode::Unavailable, "the server is stopping");
                self.compaction.refuse(&refused, &mut actions);
            }
            Event::Remember(node, counters) => {
                // It needs no memory of itself, and drops that of forgotten nodes.
                if node != self.head.node && !self.index.forgotten().contains(&node) {
                    self.nodes.hear(&node, counters, (self.running.length(), self.wall.time()));
                }
            }
            Event::PeerPhases(phases) => self.peer_phases = phases,
            Event::OfRegion(node, region) => {
                if node != self.head.node && !self.index.forgotten().contains(&node) {
                    let now = (self.running.length(), self.wall.time());
                    self.nodes.hear(&node, Counters::new(), now);
                    self.nodes.set_region(&node, region);
                }
            }
            Event::Remove(region, records) => self.dropping.remove(&region, records, &self.index, &self.head),
            Event::Fetched { names, incarnation_floor } => self.fetched.push((names, incarnation_floor)),
            Event::Halt(reason) => self.read_only = Some(reason),
        }
        self.end_parked(now, &mut actions);
        if self.writing.is_none() {
            self.write_next(now, reader, &mut actions);
        }
        self.call_regions(now, &mut actions);
        actions
    }

    /// Whether other nodes get the entries of this store, or got them.
    fn replicates(&self) -> bool {
        self.head.is_replicated || self.config.is_replicated
    }

    /// When the head has to say how long the node has run.
    fn running_due(&self) -> Option<i64> {
        self.replicates().then(|| self.running.due(&self.head).max(self.ends_again_at))
    }

    /// Judges the commits that wait, one after another, each on the state that its predecessors
    /// leave, and writes those that change something in one batch (ST17).
    fn write_next(&mut self, now: i64, reader: &dyn Reader, actions: &mut Vec<Action>) {
        if self.has_lost_log || self.read_only.is_some() {
            return self.refuse_all(actions);
        }
        let stored = Stored::new(reader);
        if self.is_behind
            && let Err(error) = self.catch_up(&stored, now, actions)
        {
            self.on_unreadable(error, now, actions);
            return;
        }
        if self.has_lost_log || self.read_only.is_some() {
            return self.refuse_all(actions);
        }
        self.batch += 1;
        self.nodes.not_written();
        self.take_over_leases(now);
        let mut writing = Writing::new(self.head.clone(), self.head_revision, self.batch);
        writing.head.time = now;
        writing.head.is_replicated = self.replicates();
        writing.head.running = self.running.length();
        self.find_unheard(&mut writing);
        match self.add_alone(&mut writing, &stored, now, actions) {
            Ok(true) => {
                self.add_fetching(&mut writing, &stored);
                return self.write(writing, actions);
            }
            Ok(false) => {}
            Err(refused) => {
                self.try_later(now);
                self.refuse_alone(&refused, actions);
                return self.write_next(now, reader, actions);
            }
        }
        if self.is_closed() {
            self.refuse_closed(actions);
            self.add_waiting(&mut writing, &stored, now, actions);
            if let Err(refused) = self.add_entries(&mut writing, &stored, now) {
                self.refuse_entries(&refused, actions);
            }
        } else if let Err(error) = self.add_all(&mut writing, &stored, now, actions) {
            return self.on_unreadable(error, now, actions);
        }
        // ST22: a batch of the head alone finds out whether there is room. Writers that wait for room
        // send no commit.
        self.add_nodes(&mut writing, now);
        self.add_fetching(&mut writing, &stored);
        let changes_blocks = !writing.pending.blocks.is_empty() || !writing.pending.own_blocks.is_empty();
        let is_fetched = !writing.fetching.is_empty();
        let looks_for_room = self.room_at.is_some_and(|at| at <= now) || self.looks_for_engine(now);
        let looks_for_room = looks_for_room && writing.commits.is_empty();
        let is_of_head = looks_for_room
            || writing.head.blocked_by != self.head.blocked_by
            || writing.head.hears_until != self.head.hears_until
            || self.running_due().is_some_and(|due| due <= now);
        if writing.batch.writes.is_empty() && !is_of_head && !changes_blocks && !is_fetched {
            // The condition of a write proves that nobody else committed meanwhile; an answer without
            // a write needs that proof, too.
            let merged = mem::take(&mut writing.merged).into_iter();
            actions.extend(merged.map(|(ticket, merged)| Action::Merged(ticket, Ok(merged))));
            self.answer_requests(mem::take(&mut writing.requests), None, actions);
            if writing.commits.is_empty() {
                return;
            }
            match stored.head() {
                Ok((_, revision)) if Some(revision) == self.head_revision => {}
                Ok(_) => {
                    self.is_behind = true;
                    let commits = writing.commits.into_iter().map(|(waiting, _)| waiting);
                    self.try_again(commits, now, actions);
                    return self.write_next(now, reader, actions);
                }
                Err(error) => {
                    self.waiting.extend(writing.commits.into_iter().map(|(waiting, _)| waiting));
                    return self.on_unreadable(error, now, actions);
                }
            }
            // Nothing was changed, and nothing that is not durable was seen.
            let commits = writing.commits.into_iter();
            commits.for_each(|(waiting, answer)| self.answer(waiting, answer, actions));
            return;
        }
        self.write(writing, actions);
    }

    /// Adds what time has ended, what runs in the background, commits and entries.
    fn add_all(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        actions: &mut Vec<Action>,
    ) -> Result<(), ReadError> {
        self.add_ended(writing, stored, now)?;
        if writing.batch.writes.is_empty() {
            self.add_copies(writing, stored, now);
        }
        if writing.batch.writes.is_empty() {
            self.add_drained(writing, stored, now)?;
        }
        if writing.batch.writes.is_empty() {
            self.add_owner_checks(writing, stored, now);
        }
        if writing.batch.writes.is_empty() {
            self.add_dropped(writing, stored, now);
        }
        if writing.batch.writes.is_empty() {
            self.add_older(writing, stored, now);
        }
        // Commits go first, and wait for one step of a compaction at most (ST44).
        if writing.batch.writes.is_empty() && self.compaction.is_next(self.waiting.is_empty()) {
            self.add_compaction(writing, stored, now, actions)?;
        }
        if !writing.compacted {
            self.add_blocks(writing, stored, now);
        }
        self.add_waiting(writing, stored, now, actions);
        if !writing.compacted
            && let Err(refused) = self.add_entries(writing, stored, now)
        {
            self.refuse_entries(&refused, actions);
        }
        Ok(())
    }

    /// Adds the commits that wait.
    fn add_waiting(
        &mut self,
        writing: &mut Writing,
        stored: &Stored<'_>,
        now: i64,
        actions: &mut Vec<Action>,
    ) {
        while !writing.compacted
            && let Some(waiting) = self.waiting.pop_front()
        {
            if let Some(waiting) = self.add_commit(writing, stored, waiting, now) {
                self.waiting.push_front(waiting);
                break;
            }
            mem::take(&mut writing.parked)
                .into_iter()
                .for_each(|(waiting, wait)| self.park(waiting, wait, now, actions));
        }
    }

    fn write(&mut self, mut writing: Writing, actions: &mut Vec<Action>) {
        self.add_positions(&mut writing);
        self.add_conflicts(&mut writing);
        self.write_blocks(&mut writing);
        self.write_fetching(&mut writing);
        writing.seal();
        actions.push(Action::Write(writing.batch.clone()));
        self.writing = Some(writing);
    }
}

#[cfg(test)]
mod cost_tests;

/// How long the outcome of a commit may be unknown, or others may be faster (ST19, ST20).
const PATIENCE: i64 = 10 * SECOND;
/// When to read the head again after that failed.
const READ_AGAIN: i64 = SECOND / 10;
