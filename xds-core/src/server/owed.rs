//! What the server owes a client for one type: answers to requests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::name::{ResourceName, Version};
use crate::parameters::Parameters;
use crate::subscription::{Locator, Locators};
use crate::wire::{Failure, ResourceKey};

/// What the server owes the client for one type. Answers to requests go at once (D9, D10, D18),
/// those to stale requests of SotW a little later (S8).
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub(super) locators: Locators,
    /// Locators from which the client unsubscribed while a wildcard stays (D18, S22).
    pub(super) unsubscribed: Locators,
    /// Delta: the same while changes must wait: without those changes the answer would leave the
    /// wildcard without a variant (T31). And while the wildcard cannot be answered (D18).
    pub(super) unsubscribed_later: Locators,
    /// Delta: removals of such locators that were withheld, of invalid names, and of names that are
    /// not served.
    pub(super) removals: BTreeSet<ResourceKey>,
    /// The answer to a wildcard.
    pub(super) everything: bool,
    /// SotW: whether the client subscribed to names while a full state was on its way that may
    /// contain them, or has an error for them. They may not exist any more, and only another full
    /// state says so (S25, S37).
    pub(super) is_overtaken: bool,
    /// Errors about names and types that cannot be served (G4, G8).
    pub(super) errors: BTreeSet<Failure>,
    /// Delta: the client subscribed to nothing, and waits for an empty response (S21).
    pub(super) nothing: bool,
    /// What is sent once more because a resource that names it was sent (S34, S34b, S36). The client did
    /// not request it, so no removal is sent for what does not exist.
    pub(super) followers: BTreeSet<ResourceName>,
    /// What the client has from another stream, for the first response.
    pub(super) brought: Brought,
    /// When it is answered, if no other request comes first.
    due: Option<Duration>,
}

/// What a client that reconnects says that it has.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// SotW: the version of its first request (S32).
    pub(super) version: Option<String>,
    /// Delta: the resources with their versions (D1).
    pub(super) versions: BTreeMap<ResourceName, String>,
}

impl Owed {
    fn is_empty(&self) -> bool {
        let has_answers = !self.locators.is_empty()
            || !self.unsubscribed.is_empty()
            || !self.removals.is_empty()
            || !self.followers.is_empty();
        !has_answers && !self.everything && !self.nothing && self.errors.is_empty()
    }

    /// How many answers wait that are not about names of the subscription: the names of errors, of removals, or those
    /// that the client unsubscribed from, whichever are most.
    pub(super) fn answers_of_the_past(&self) -> usize {
        let unsubscribed = self.unsubscribed.len() + self.unsubscribed_later.len();
        unsubscribed.max(self.removals.len()).max(self.errors.len())
    }

    /// When the answer is due; `None` when nothing is owed.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due.filter(|_| !self.is_empty())
    }

    /// Makes the answer due at this time, unless it is due earlier.
    pub(super) fn answer_at(&mut self, time: Duration) {
        self.due = if self.is_empty() { None } else { Some(self.due.map_or(time, |due| due.min(time))) };
    }

    /// Other changes of the type may be sent now, so the answer may too.
    pub(super) fn resume(&mut self, now: Duration) {
        self.unsubscribed.append(&mut self.unsubscribed_later);
        self.answer_at(now);
    }

    /// Removes the locators that cannot be answered yet, and returns them.
    pub(super) fn defer(&mut self, is_unknown: impl Fn(&Locator) -> bool) -> Locators {
        let unknown = self.locators.take(is_unknown);
        self.due = self.due();
        unknown
    }

    /// Removes all other locators.
    pub(super) fn keep(&mut self, locators: Locators) {
        self.locators = locators;
        self.due = self.due();
    }

    /// Owes the answers to these locators.
    pub(super) fn owe(&mut self, locators: Vec<Locator>, now: Duration) {
        self.locators.extend(locators.into_iter().collect());
        self.answer_at(now);
    }

    /// D21: whether the client brought a name, unsubscribed from it or subscribed to it again since, and is
    /// owed an answer for the name.
    pub(super) fn has_given_up(&self, name: &ResourceName) -> bool {
        let has_error = || self.errors.iter().any(|failure| failure.name == *name);
        let is_cleared = self.brought.versions.get(name).is_some_and(String::is_empty);
        is_cleared && self.locators.has_name(name) && !has_error()
    }

    pub(super) fn owe_error(&mut self, failure: Failure, now: Duration) {
        self.forget_brought(&failure.name);
        self.errors.insert(failure);
        self.answer_at(now);
    }

    /// An error that the client has not been sent is not true any more. It is searched for if it was for other
    /// constraints, as those of other variants may have changed.
    pub(super) fn withdraw_error(&mut self, failure: &Failure, parameters: &Parameters) {
        if !self.errors.remove(failure) {
            let is_it = |error: &Failure| error.name == failure.name && error.constraints.matches(parameters);
            self.errors.retain(|error| !is_it(error));
        }
    }

    /// S37: the client has an error for a name until it is sent the resource, even if it brought the
    /// same version (D21).
    pub(super) fn forget_brought(&mut self, name: &ResourceName) {
        if let Some(version) = self.brought.versions.get_mut(name) {
            version.clear();
        }
    }
}

impl Brought {
    /// SotW: whether the client brought this version; `None` when it brought none.
    pub(super) fn has(&self, version: Version) -> Option<bool> {
        self.version.as_ref().map(|brought| *brought == version.to_string())
    }
}
