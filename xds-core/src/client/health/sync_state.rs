//! The state of a type in an upstream, and the events about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::code::Code;
use crate::name::TypeUrl;

/// Counts the streams to one upstream. Local: it never goes on the wire.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

/// The status with which an upstream refused, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its code.
    pub code: Code,
    /// Its text, for people.
    pub message: Arc<str>,
}

/// The state of one type in one upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncState {
    /// It has had no response yet that may be used.
    Requested,
    /// It had a response in this generation.
    Synced(Generation),
    /// The upstream does not serve it: it said so in this generation or before.
    Rejected(Generation, Status),
    /// It had a response in this earlier generation, and none yet in the present one.
    Stale(Generation),
}

/// The first report of a generation, before its resources: the state of each type. No type is in
/// two of the lists.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Init {
    /// The generation.
    pub generation: Generation,
    /// Types that had a response.
    pub confirmed: BTreeSet<TypeUrl>,
    /// Types that are not served, each with the original status.
    pub rejected: BTreeMap<TypeUrl, Status>,
    /// Types without a response; a later event has their state.
    pub pending: BTreeSet<TypeUrl>,
}

/// A report on the types of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The newest generation has the state of every type.
    Init(Init),
    /// A type has another state since then.
    Reclassified {
        /// The type.
        type_url: TypeUrl,
        /// Its state now; pending unless it is synced or rejected.
        state: SyncState,
    },
}

impl Generation {
    /// Before the first stream.
    pub const ZERO: Self = Self(0);

    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Status {
    /// Whether servers end a stream with this status when they do not know a type (G4b).
    ///
    /// | code | taken as | reason |
    /// | --- | --- | --- |
    /// | UNIMPLEMENTED | the type | what gRPC says of a method that does not exist, and servers say of a type |
    /// | INVALID_ARGUMENT, NOT_FOUND | the type | servers that look up the type of a request, and have none |
    /// | OK | the server | it ends streams, for example because of their age |
    /// | UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED | the server | an outage, a shutdown, a proxy in between |
    /// | INTERNAL, UNKNOWN, DATA_LOSS | the server | a defect, which may be over at the next stream |
    /// | UNAUTHENTICATED, PERMISSION_DENIED | the server | about the client, whatever it subscribes to; watchers get the code |
    /// | RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, ALREADY_EXISTS | the server | a limit or a state, which changes |
    ///
    /// A wrong guess costs little: the search leaves a type out only if it ends the stream alone.
    #[must_use]
    pub fn may_mean_a_type(&self) -> bool {
        [UNIMPLEMENTED, Code::INVALID_ARGUMENT, Code::NOT_FOUND].contains(&self.code)
    }
}

impl SyncState {
    /// Whether the cached resources of the type may be used: it had a response, in this generation
    /// or before.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        match self {
            Self::Synced(_) | Self::Stale(_) => true,
            Self::Requested | Self::Rejected(..) => false,
        }
    }
}

impl Init {
    pub(crate) fn new<'s>(
        generation: Generation,
        states: impl IntoIterator<Item = (&'s TypeUrl, &'s SyncState)>,
    ) -> Self {
        let mut init = Self { generation, ..Self::default() };
        for (type_url, state) in states {
            let type_url = type_url.clone();
            match state {
                SyncState::Synced(_) => _ = init.confirmed.insert(type_url),
                SyncState::Rejected(_, status) => _ = init.rejected.insert(type_url, status.clone()),
                SyncState::Requested | SyncState::Stale(_) => _ = init.pending.insert(type_url),
            }
        }
        init
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// For people.
impl fmt::Display for SyncState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("requested, without a response"),
            Self::Synced(generation) => write!(f, "synced on stream {generation}"),
            Self::Stale(generation) => write!(f, "stale, with the resources of stream {generation}"),
            Self::Rejected(generation, status) => write!(f, "rejected on stream {generation}: {status}"),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

const UNIMPLEMENTED: Code = Code(12);
