//! The log of a store: what each commit changed, and the head that the next one follows.

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::clock::Position;
use crate::time::SECOND;

/// The state of the store as a whole. Each batch writes it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Head {
    /// The store revision of the last commit; 0 before the first.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// The format of all stored values (ST4).
    #[prost(uint32, tag = "2")]
    pub format: u32,
    /// The id of this node.
    #[prost(string, tag = "3")]
    pub node: String,
    /// The number of the last commit that this node made, of those that other nodes get (SR4).
    #[prost(uint64, tag = "4")]
    pub counter: u64,
    /// ST41: the greatest time that was acted on, in nanoseconds since 1970.
    #[prost(int64, tag = "5")]
    pub time: i64,
    /// New keys start above this incarnation.
    #[prost(uint64, tag = "6")]
    pub incarnation_floor: u64,
    /// Revisions up to this one are forgotten.
    #[prost(uint64, tag = "7")]
    pub floor: u64,
    /// The id that all nodes of one cluster have.
    #[prost(string, tag = "8")]
    pub cluster: String,
    /// The region of this node; empty without regions.
    #[prost(string, tag = "9")]
    pub region: String,
    /// The [`Chain`](crate::clock::Chain) at [`counter`](Self::counter); no bytes at 0.
    #[prost(bytes = "bytes", tag = "10")]
    pub chain: bytes::Bytes,
    /// Other nodes get the entries of this store, or got them. So what they got stays as it is, and a touch
    /// is an entry, too.
    #[prost(bool, tag = "16")]
    pub is_replicated: bool,
    /// How long processes have run with this store since it replicates, in nanoseconds. Each batch has what is
    /// counted so far, so a crash loses some of it.
    #[prost(int64, tag = "17")]
    pub running: i64,
    /// The ids that the node had before its store was restored from backups, the first one first
    /// (SR31).
    #[prost(string, repeated, tag = "14")]
    pub former_nodes: Vec<String>,
    /// A restore has begun here and has not finished: this is no store (ST46).
    #[prost(bool, tag = "15")]
    pub is_incomplete: bool,
    /// How many conflicts were journaled, those that are forgotten included (SR44).
    #[prost(uint64, tag = "1010")]
    pub conflicts: u64,
    /// The engine may have records of a snapshot that is being taken, or that came to no end (SR20).
    #[prost(bool, tag = "1020")]
    pub has_staged: bool,
    /// A new node of a cluster, which waits for its first snapshot (SR24).
    #[prost(bool, tag = "1021")]
    pub is_joining: bool,
    /// The node took its id, and peers may lack what it wrote under a former one (SR31).
    #[prost(bool, tag = "1022")]
    pub owes_reissue: bool,
    /// Another node may have written other entries under the former id (SR28), so that some peers follow those.
    /// What the entries in the log changed is owed, whatever one peer has.
    #[prost(bool, tag = "1023")]
    pub owes_log: bool,
    /// A snapshot has replaced the records (SR21) at the revision behind this one. Other nodes get no older
    /// entry of the log from here.
    #[prost(uint64, tag = "1024")]
    pub replaced_at: u64,
    /// The node is not the writer of its region: it accepts no writes of names that the region owns (SG22).
    #[prost(bool, tag = "1030")]
    pub is_replica: bool,
    /// There are region policies, or there were.
    #[prost(bool, tag = "1031")]
    pub has_policies: bool,
    /// The policies for which each reference of this node to a name of another region has its block (SG34): a digest;
    /// no bytes, if that is not known of any.
    #[prost(bytes = "bytes", tag = "1050")]
    pub blocked_by: bytes::Bytes,
    /// The node became the writer of its region, and may lack references of other regions to its names (SG32), until
    /// [`running`](Self::running) is this; 0: it lacks none.
    #[prost(int64, tag = "1070")]
    pub hears_until: i64,
    /// The last request of a commit for a rollout.
    #[prost(message, optional, tag = "1080")]
    pub rollout: Option<StoredRollout>,
}

/// How far the store follows the log of an origin (SR9), and how much of it compaction has forgotten (SR18).
/// Of this node itself the [`Head`] says how far.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StoredOrigin {
    /// Everything up to it is applied or skipped.
    #[prost(uint64, tag = "1")]
    pub counter: u64,
    /// The chain at it.
    #[prost(bytes = "bytes", tag = "2")]
    pub chain: bytes::Bytes,
    /// Entries up to it are forgotten.
    #[prost(uint64, tag = "3")]
    pub floor: u64,
    /// The chain at it.
    #[prost(bytes = "bytes", tag = "4")]
    pub floor_chain: bytes::Bytes,
    /// Up to it, deletions are forgotten with their records. It is at most the floor.
    #[prost(uint64, tag = "5")]
    pub deletion_floor: u64,
    /// The region of the origin.
    #[prost(string, tag = "1030")]
    pub region: String,
}

/// Another node that this one knows, with the newest clock that is known of it (SR9).
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StoredNode {
    /// Of each origin, up to where it has the entries.
    #[prost(btree_map = "string, uint64", tag = "1")]
    pub counters: BTreeMap<String, u64>,
    /// [`Head::running`] when it was heard last.
    #[prost(int64, tag = "2")]
    pub heard_at: i64,
    /// The time of this store when it was heard last, in nanoseconds since 1970; 0: it is not known.
    #[prost(int64, tag = "3")]
    pub heard_time: i64,
    /// The region that it said; empty: it has none, or has not said it.
    #[prost(string, tag = "4")]
    pub region: String,
}

/// The last request of a commit for a rollout.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StoredRollout {
    /// The store revision of the commit.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// The node that made the commit, and its number there.
    #[prost(string, tag = "3")]
    pub origin: String,
    /// See [`origin`](Self::origin).
    #[prost(uint64, tag = "4")]
    pub counter: u64,
    /// The steps.
    #[prost(message, optional, tag = "2")]
    pub rollout: Option<proto::Rollout>,
}

/// Names that a policy gave to the region of this node, and that are not all here (SG27).
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StoredFetching {
    /// The region that gave them; empty: it is not known.
    #[prost(string, tag = "1040")]
    pub(crate) region: String,
    /// What a node that gives them needs of each origin. None: this node does not have all that came before the policy.
    #[prost(message, optional, tag = "1042")]
    pub(crate) upto: Option<StoredCounters>,
    /// All nodes are forgotten of the regions that could give them, but for the owner.
    #[prost(bool, tag = "1043")]
    pub(crate) is_last: bool,
    /// No region is left that could give them, but other nodes of this one may have them.
    #[prost(bool, tag = "1044")]
    pub(crate) is_lost: bool,
}

/// Of each origin, up to where a node has its entries.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StoredCounters {
    #[prost(btree_map = "string, uint64", tag = "1")]
    pub(crate) counters: BTreeMap<String, u64>,
}

impl StoredFetching {
    pub(crate) fn given_by(region: &str) -> Self {
        Self { region: region.to_owned(), ..Self::default() }
    }
}

/// What the journal keeps with a state that lost (SR44).
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StoredConflict {
    /// Equal if the same loss is found again.
    #[prost(bytes = "bytes", tag = "1010")]
    pub(crate) id: bytes::Bytes,
    #[prost(enumeration = "xds_proto::xds::store::v1::conflict::Kind", tag = "1011")]
    pub(crate) kind: i32,
    /// When it was found here, in nanoseconds since 1970.
    #[prost(int64, tag = "1012")]
    pub(crate) at: i64,
    #[prost(string, tag = "1013")]
    pub(crate) winner_revision: String,
    #[prost(string, tag = "1014")]
    pub(crate) winner_origin: String,
    #[prost(string, tag = "1015")]
    pub(crate) detail: String,
}

/// One commit, with its time, identity, owner and message (ST23). It has keys only: the states of the
/// records are stored under the same revision.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LogEntry {
    /// The node that made the commit, and its number there.
    #[prost(string, tag = "1")]
    pub origin: String,
    /// See [`origin`](Self::origin); 0 if it is not replicated.
    #[prost(uint64, tag = "2")]
    pub counter: u64,
    /// The [`Chain`](crate::clock::Chain) at the counter; no bytes if it is not replicated.
    #[prost(bytes = "bytes", tag = "3")]
    pub chain: bytes::Bytes,
    /// When, in nanoseconds since 1970.
    #[prost(int64, tag = "4")]
    pub time: i64,
    /// Who, by the certificate or token of the connection.
    #[prost(string, tag = "5")]
    pub identity: String,
    /// The owner that it acted as.
    #[prost(string, tag = "6")]
    pub owner: String,
    /// For people.
    #[prost(string, tag = "7")]
    pub message: String,
    /// In the order of keys.
    #[prost(message, repeated, tag = "8")]
    pub changes: Vec<LogChange>,
    /// The run of the server that wrote it, and the number of the batch there: how a server finds
    /// out whether a batch was applied (ST20).
    #[prost(fixed64, tag = "9")]
    pub server: u64,
    /// See [`server`](Self::server).
    #[prost(uint64, tag = "10")]
    pub batch: u64,
    /// The records whose states are stored as the origin wrote them too, because the merged ones are
    /// others (SR7). In the order of keys.
    #[prost(message, repeated, tag = "11")]
    pub originals: Vec<proto::Key>,
    /// So many numbers of the origin, up to the counter, hold nothing for this node (SR14).
    #[prost(uint64, tag = "12")]
    pub skipped: u64,
    /// When it was merged here, in nanoseconds since 1970: the time of another node is that of its clock. 0 for
    /// a commit of this store.
    #[prost(int64, tag = "13")]
    pub merged_at: i64,
    /// The region of the origin.
    #[prost(string, tag = "1030")]
    pub region: String,
    /// It came without the states that are not for the region of this node (SG25), so its chain does not follow
    /// from those here.
    #[prost(bool, tag = "1031")]
    pub is_partial: bool,
    /// The steps in which servers give the commit to their clients, if its writer asked for some.
    #[prost(message, optional, tag = "1080")]
    pub rollout: Option<proto::Rollout>,
}

/// One record that a commit changed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LogChange {
    /// The record.
    #[prost(message, required, tag = "1")]
    pub key: proto::Key,
    /// The store revision of its state before; 0 if there was none.
    #[prost(uint64, tag = "2")]
    pub previous: u64,
    /// What happened to it.
    #[prost(enumeration = "proto::Outcome", tag = "3")]
    pub outcome: i32,
}

impl Head {
    /// SG32: the node, as the writer of its region, may lack what other regions have told a former one, or this one
    /// before it lost that. Deletions of its names wait until all have said what refers to them.
    pub(crate) fn hear_again(&mut self) {
        if !self.is_replica && !self.region.is_empty() {
            self.hears_until = self.running.saturating_add(HEARS_FOR);
        }
    }

    /// Whether this is the id of the node, or one that it had.
    pub(crate) fn is_node(&self, id: &str) -> bool {
        id == self.node || self.former_nodes.iter().any(|former| former == id)
    }
}

impl LogEntry {
    /// What a snapshot of another node made of the records (SR20). Other nodes do not get it.
    pub(crate) fn resync() -> Self {
        Self { identity: RESYNC.to_owned(), ..Self::default() }
    }

    pub(crate) fn is_resync(&self) -> bool {
        self.counter == 0 && self.identity == RESYNC
    }

    /// When the store revision was made here.
    pub(crate) fn logged_at(&self) -> i64 {
        if self.merged_at == 0 { self.time } else { self.merged_at }
    }
}

impl StoredOrigin {
    pub(crate) fn new(position: Position, floor: Position, deletion_floor: u64, region: &str) -> Self {
        Self {
            counter: position.counter,
            chain: position.chain.to_wire(),
            floor: floor.counter,
            floor_chain: floor.chain.to_wire(),
            deletion_floor,
            region: region.to_owned(),
        }
    }
}

/// A store revision as users see it: `s7f3a-48` is revision 48 of the store whose node id has the
/// digest `7f3a..`. So a revision of another store is recognised (ST30).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRevision {
    store: u16,
    /// The number of the commit; 0 before the first.
    pub number: u64,
}

/// Why a text is no revision of this store (ST30).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RevisionError {
    /// It does not have the form of a store revision.
    #[error("this is no store revision; they look like s7f3a-48")]
    Malformed,
    /// It belongs to another store.
    #[error("the revision belongs to another store")]
    OtherStore,
}

impl StoreRevision {
    /// A revision of the store with this head.
    #[must_use]
    pub fn of(head: &Head, number: u64) -> Self {
        let digest = blake3::hash(head.node.as_bytes());
        let store = u16::from_be_bytes(*digest.as_bytes().first_chunk().expect("a hash has 32 bytes"));
        Self { store, number }
    }

    /// Reads a printed revision of the store with this head.
    ///
    /// # Errors
    /// See [`RevisionError`].
    pub fn parse(head: &Head, text: &str) -> Result<Self, RevisionError> {
        let (store, number) =
            text.strip_prefix('s').and_then(|text| text.split_once('-')).ok_or(RevisionError::Malformed)?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let store = u16::from_str_radix(store, 16).ok().filter(|_| store.len() == 4 && is_number(store));
        let number = number.parse().ok().filter(|_| is_number(number));
        let read = store.zip(number).map(|(store, number)| Self { store, number });
        let read = read.ok_or(RevisionError::Malformed)?;
        if read == Self::of(head, read.number) { Ok(read) } else { Err(RevisionError::OtherStore) }
    }
}

impl fmt::Display for StoreRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:04x}-{}", self.store, self.number)
    }
}

const RESYNC: &str = "resync";

/// The format that this version writes.
pub const FORMAT: u32 = 1;

/// How long a new writer waits for nodes that do not say what they refer to (SG32).
const HEARS_FOR: i64 = 300 * SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st30_a_revision_of_another_store_is_recognised() {
        let (one, other) = (head("one"), head("other"));
        let text = StoreRevision::of(&one, 48).to_string();
        assert_eq!(StoreRevision::parse(&one, &text).map(|revision| revision.number), Ok(48));
        assert_eq!(StoreRevision::parse(&other, &text), Err(RevisionError::OtherStore));
        for text in ["", "48", "s-48", "s12345-48", "s7f3a-", "s7f3a-+4", "s+f3a-4", "s7f3a-4a"] {
            assert_eq!(StoreRevision::parse(&one, text), Err(RevisionError::Malformed), "{text}");
        }
    }

    fn head(node: &str) -> Head {
        Head { node: node.to_owned(), ..Head::default() }
    }
}
