//! The types that a client requested on a stream.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::owed::Owed;
use super::type_state::TypeState;
use crate::name::ResourceName;

/// One type: what was sent, and what the server owes. Types do not share nonces, names or versions
/// (S13).
#[derive(Debug)]
pub(super) struct TypeEntry {
    pub(super) state: TypeState,
    pub(super) owed: Owed,
}

impl TypeEntry {
    /// Owes those of these assignments to which the client subscribes. Their cluster was sent (S34).
    pub(super) fn owe_endpoints<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n ResourceName>,
        now: Duration,
    ) {
        let Self { state, owed } = self;
        let before = owed.endpoints.len();
        let covered = names.into_iter().filter(|name| state.subscription.covers(name));
        owed.endpoints.extend(covered.cloned());
        if owed.endpoints.len() > before {
            owed.answer_at(now);
        }
    }
}

/// The types that a client requested on a stream, in the order of S33.
#[derive(Debug, Default)]
pub(super) struct TypeEntries(Vec<TypeEntry>);

impl TypeEntries {
    /// Adds a type that the client has just requested, and returns its index.
    pub(super) fn add(&mut self, state: TypeState) -> usize {
        let rank = state.terms.known.rank;
        let at = self.partition_point(|entry| entry.state.terms.known.rank <= rank);
        self.0.insert(at, TypeEntry { state, owed: Owed::default() });
        at
    }

    /// The states of all types.
    pub(super) fn states(&self) -> impl Iterator<Item = &TypeState> {
        self.iter().map(|entry| &entry.state)
    }

    /// The same, to change them.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut TypeState> {
        self.iter_mut().map(|entry| &mut entry.state)
    }

    /// The index of a type; `None` if the client never requested it.
    pub(super) fn find(&self, type_url: &str) -> Option<usize> {
        self.states().position(|state| state.terms.type_url.as_str() == type_url)
    }

    /// A type, if the client ever requested it.
    pub(super) fn of_type(&self, type_url: &str) -> Option<&TypeEntry> {
        Some(&self[self.find(type_url)?])
    }

    /// The same, to change it.
    pub(super) fn of_type_mut(&mut self, type_url: &str) -> Option<&mut TypeEntry> {
        let at = self.find(type_url)?;
        Some(&mut self[at])
    }

    /// Endpoints, if the client ever requested them.
    pub(super) fn endpoints(&mut self) -> Option<&mut TypeEntry> {
        self.of_type_mut(xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT)
    }
}

impl Deref for TypeEntries {
    type Target = [TypeEntry];

    fn deref(&self) -> &[TypeEntry] {
        &self.0
    }
}

impl DerefMut for TypeEntries {
    fn deref_mut(&mut self) -> &mut [TypeEntry] {
        &mut self.0
    }
}
