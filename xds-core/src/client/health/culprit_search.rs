//! Finds the type that ends the stream, among the types without a response.
//!
//! The suspects are halved. If a stream ends while it subscribes to one half, the culprit is in
//! this half. If this half has responses, the culprit is in the other half, and the same stream can
//! subscribe to that. So only an end of the stream costs a reconnect, and each end leaves half of
//! the suspects. If there are several culprits, the others are found after the first one.

use std::collections::BTreeSet;

use crate::name::TypeUrl;

/// The types that may end the stream; each is in one of the sets. Without a search all sets are
/// empty.
#[derive(Debug, Default)]
pub(super) struct CulpritSearch {
    /// The stream may subscribe to them: if it ends, one of these is the reason. Never empty when
    /// another set is not.
    trial: BTreeSet<TypeUrl>,
    /// If none of the trial is the culprit, one of these is.
    suspects: BTreeSet<TypeUrl>,
    /// They may be culprits too, and wait.
    deferred: BTreeSet<TypeUrl>,
}

impl CulpritSearch {
    pub(super) fn is_active(&self) -> bool {
        !self.trial.is_empty()
    }

    pub(super) fn must_wait(&self, type_url: &TypeUrl) -> bool {
        self.suspects.contains(type_url) || self.deferred.contains(type_url)
    }

    pub(super) fn has(&self, type_url: &TypeUrl) -> bool {
        self.trial.contains(type_url) || self.must_wait(type_url)
    }

    pub(super) fn types(&self) -> impl Iterator<Item = &TypeUrl> {
        self.trial.iter().chain(&self.suspects).chain(&self.deferred)
    }

    /// A new type waits until the search is over.
    pub(super) fn defer(&mut self, type_url: TypeUrl) {
        self.deferred.insert(type_url);
    }

    /// Whether the end of a stream shows something: one of the types without a response may have
    /// caused it.
    pub(super) fn concerns(&self, unanswered: &BTreeSet<TypeUrl>) -> bool {
        match self.is_active() {
            true => !self.trial.is_disjoint(unanswered),
            false => !unanswered.is_empty(),
        }
    }

    /// The stream ended after it subscribed to these types without a response; during a search some
    /// of the trial are among them. Returns the culprit, once only one suspect is left.
    pub(super) fn on_end(&mut self, mut unanswered: BTreeSet<TypeUrl>) -> Option<TypeUrl> {
        debug_assert!(self.concerns(&unanswered));
        if self.is_active() {
            // A type that was cleared before is no culprit, although it had no response this time.
            unanswered.retain(|type_url| self.trial.contains(type_url));
            self.trial.retain(|type_url| !unanswered.contains(type_url));
            self.deferred.append(&mut self.trial);
            self.deferred.append(&mut self.suspects);
        }
        if unanswered.len() == 1 {
            self.advance();
            return unanswered.pop_first();
        }
        self.suspects = unanswered;
        self.advance();
        None
    }

    /// A type is no suspect: it had a response, or is not requested any more.
    pub(super) fn clear(&mut self, type_url: &TypeUrl) {
        self.suspects.remove(type_url);
        self.deferred.remove(type_url);
        self.trial.remove(type_url);
        if self.trial.is_empty() {
            self.advance();
        }
    }

    /// Chooses the next trial.
    fn advance(&mut self) {
        if self.suspects.is_empty() {
            // Nothing is known of these types yet. Mostly there is one culprit, and they all have
            // responses.
            std::mem::swap(&mut self.trial, &mut self.deferred);
            return;
        }
        let half = (self.suspects.len() / 2).max(1);
        let rest = self.suspects.iter().nth(half).cloned();
        let rest = rest.map(|first| self.suspects.split_off(&first)).unwrap_or_default();
        self.trial = std::mem::replace(&mut self.suspects, rest);
    }
}
