//! What goes into the machine, and what comes out.

use std::collections::BTreeMap;

use super::{Merged, RegionRequest, RegionResponse, Staged, Unanswered};
use crate::clock::Counters;
use crate::commit::{self, Draft, Refused};
use crate::engine::{Batch, EngineError, EngineRevision};
use crate::entry::Foreign;
use crate::key::RecordKey;
use crate::log::LogEntry;
use crate::phase::PeerPhases;
use crate::record::RecordState;
use xds_proto::xds::store::v1 as proto;

/// Names a commit, entries or a compaction between its event and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A commit was requested.
    Commit(Ticket, Draft),
    /// Other nodes have these entries: of each origin in the order of their numbers (SR13). What a peer left out of
    /// them is left out here, too, if these commits are those of the policies of this store
    /// ([`Policies::commits_for`](crate::region::Policies::commits_for)); otherwise it is missing (SG25). `None`: it is
    /// left out in any case.
    Merge(Ticket, Vec<Foreign>, Option<Counters>),
    /// A peer has these states, and this store has all entries that the peer has: those up to these counters (SR51).
    /// `None`: names that are fetched, of a peer that has all of them (SG27). [`Action::Merged`] answers.
    Mend(Ticket, Vec<RecordState>, Option<Counters>),
    /// A node was heard, and has the entries of each origin up to there: keep it over a restart (SR9). No
    /// answer follows.
    Remember(String, Counters),
    /// How far the plans of the peers are: at the start, and whenever one of them says something else (SV42). No answer
    /// follows.
    PeerPhases(PeerPhases),
    /// A node said its region: keep it over a restart. No answer follows.
    OfRegion(String, String),
    /// A snapshot of another node is about to come (SR19). One that was being taken is dropped.
    BeginResync {
        /// It has to replace the records, because a merge could revive what was deleted (SR21).
        must_replace: bool,
        /// An id chosen at random, which the node gets if the records are replaced.
        new_id: String,
    },
    /// The next page of the snapshot.
    Stage(Ticket, proto::SnapshotResponse),
    /// The snapshot came to no end: the records stay as they are (SR23). No answer follows.
    EndResync,
    /// The node shall have this id, chosen at random, because its own may be that of another node (SR29).
    TakeId(Ticket, String),
    /// A node of another region calls (SG30). [`Action::AnswerRegion`] answers.
    Region(Ticket, RegionRequest),
    /// This node is the writer of another region, as it says itself: first, and whenever it is another one. It may lack
    /// the blocks of the one before, so it is told of all references to its names (SG32).
    Writer {
        /// The region; empty: it is not known, and the node counts alone.
        region: String,
        /// Its writer.
        node: String,
    },
    /// Another region answered an [`Action::CallRegion`], or did not.
    RegionAnswered(Ticket, Result<RegionResponse, Unanswered>),
    /// The engine answered the last [`Action::Write`].
    Written(Result<EngineRevision, EngineError>),
    /// Another server of the store may have committed ([`Changes`](crate::engine::Changes)).
    Changed,
    /// The time of [`super::Store::due`] has come.
    Due,
    /// Old revisions shall be forgotten: what the settings allow, or up to this revision.
    Compact(Ticket, Option<u64>),
    /// The compaction shall end after the step that is being written, because the server stops (ST6).
    EndCompaction,
    /// A node of the named region, which has all that this store has, does not hold these records. Those that have the
    /// same revision here, and that the region owns, are copies, and go (SR51). No answer follows.
    Remove(String, Vec<proto::RecordDigest>),
    /// A comparison with a node that has them has found all names of these, which [`Store::fetching`] named (SG27). No
    /// answer follows.
    ///
    /// [`Store::fetching`]: super::Store::fetching
    Fetched {
        /// The names.
        names: Vec<proto::Fetching>,
        /// No record that the node has deleted has a higher incarnation, so new ones here start above it.
        incarnation_floor: u64,
    },
    /// The store shall accept no commits until the process restarts (ST18).
    Halt(String),
}

/// What to do.
#[derive(Debug)]
pub enum Action {
    /// Give this batch to the engine.
    Write(Batch),
    /// These commits are durable, in the order of their revisions: show them to readers.
    Publish(Vec<Published>),
    /// Answer a commit.
    Answer(Ticket, Result<Committed, Refused>),
    /// Answer entries: what was taken is durable.
    Merged(Ticket, Result<Merged, Refused>),
    /// Answer a page of a snapshot.
    Staged(Ticket, Result<Staged, Refused>),
    /// Answer a new id: it is durable.
    TookId(Ticket, Result<(), Refused>),
    /// Answer a node of another region: what it changes is durable.
    AnswerRegion(Ticket, Result<RegionResponse, Refused>),
    /// Call another region. [`Event::RegionAnswered`] has to follow, also if nothing comes in time: after 1 s for
    /// [`RegionRequest::Check`], and 10 s for others.
    CallRegion {
        /// Names the call; the numbers are not those of other tickets.
        call: Ticket,
        /// The region.
        region: String,
        /// The node that has to answer; empty: the writer of the region. If the node is not known, the writer.
        node: String,
        /// What to say.
        request: RegionRequest,
    },
    /// Answer a compaction: revisions up to this one are forgotten.
    Compacted(Ticket, Result<u64, Refused>),
}

/// A durable commit.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its store revision.
    pub revision: u64,
    /// Who made it, when, and what it changed.
    pub entry: LogEntry,
    /// The states of the records that it changed, in the order of keys.
    pub changed: Vec<(RecordKey, RecordState)>,
    /// The records of which clients get something else than their states say, or get again what these say
    /// (SR47): with the states as clients get them. Their records may be unchanged.
    pub shown: BTreeMap<RecordKey, RecordState>,
}

/// The answer of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The store revision of the commit, or the present one if it changed nothing (ST12).
    pub revision: u64,
    /// One for each change, in the order of the request.
    pub results: Vec<commit::ChangeResult>,
    /// What it did to further records.
    pub effects: Vec<commit::Effect>,
    /// For people: allowed, but probably a mistake.
    pub warnings: Vec<String>,
}
