//! The words for how a type stands with an upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::client::Code;
use crate::name::TypeUrl;

/// Counts the streams to one upstream. Local: it never goes on the wire.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

/// The status by which an upstream refused, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its code.
    pub code: Code,
    /// Its text, for people.
    pub message: Arc<str>,
}

/// How one type stands with one upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncState {
    /// Nothing is known of it that may be used.
    Requested,
    /// The upstream answered in this generation.
    Synced(Generation),
    /// The upstream does not serve it, as it said in this generation or before.
    Rejected(Generation, Status),
    /// The upstream answered in this earlier generation, and not yet in the present one.
    Stale(Generation),
}

/// What is told first of a generation, before any of its data: how each type stands. None is in two
/// of the lists.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Init {
    /// The generation.
    pub generation: Generation,
    /// Types that were answered.
    pub confirmed: BTreeSet<TypeUrl>,
    /// Types that are not served, each with the original status.
    pub rejected: BTreeMap<TypeUrl, Status>,
    /// Types that were silent; a later event says which of the others they are.
    pub pending: BTreeSet<TypeUrl>,
}

/// What there is to tell of the types of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The newest generation is healthy, but for what it says.
    Init(Init),
    /// A type changed since.
    Reclassified {
        /// The type.
        type_url: TypeUrl,
        /// How it stands now; pending unless it is synced or rejected.
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
    /// Whether servers end a stream with it when they do not know a type. Others speak of the
    /// server or the network.
    #[must_use]
    pub fn may_mean_a_type(&self) -> bool {
        [UNIMPLEMENTED, Code::INVALID_ARGUMENT, Code::NOT_FOUND].contains(&self.code)
    }
}

impl SyncState {
    /// Whether what is held of the type may be used: it was answered, in this generation or before.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        match self {
            Self::Synced(_) | Self::Stale(_) => true,
            Self::Requested | Self::Rejected(..) => false,
        }
    }
}

impl Init {
    pub(in crate::proxy) fn new<'s>(
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

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

const UNIMPLEMENTED: Code = Code(12);
