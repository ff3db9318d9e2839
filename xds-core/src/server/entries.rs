//! The types that a client requested on a stream.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::owed::Owed;
use super::response::StreamError;
use super::type_state::TypeState;
use crate::name::ResourceName;
use crate::subscription::{Locator, WILDCARD, is_set};

/// One type: what was sent, and what the server owes. Types do not share nonces, names or versions
/// (S13).
#[derive(Debug)]
pub(super) struct TypeEntry {
    pub(super) state: TypeState,
    pub(super) owed: Owed,
}

impl TypeEntry {
    /// G9: a client that reads nothing may subscribe to other names again and again. Their answers have the limit of
    /// the names.
    pub(super) fn check_owed(&self, limit: usize) -> Result<(), StreamError> {
        self.state.terms.check_limit(self.owed.answers_of_the_past(), limit)
    }

    /// Owes those of these resources to which the client subscribes. What names them was sent (S34, S34b).
    pub(super) fn owe_followers<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n ResourceName>,
        now: Duration,
    ) {
        let Self { state, owed } = self;
        let before = owed.followers.len();
        for name in names {
            if name.as_str() == WILDCARD {
                // All resources of the type: what the client subscribes to without their names.
                owed.everything |= state.subscription.is_wildcard();
                let is_glob = |of: &Locator| of.name.as_str() != WILDCARD && is_set(of.name.as_str());
                owed.locators.extend(state.subscription.locators().take(is_glob));
                owed.answer_at(now);
            } else if state.subscription.covers(name) {
                owed.followers.insert(name.clone());
            }
        }
        if owed.followers.len() > before {
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
