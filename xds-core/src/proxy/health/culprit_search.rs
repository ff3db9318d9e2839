//! Which of the types that did not answer ends the stream.
//!
//! The suspects are halved. If a stream ends while one half is asked, the culprit is in it; if that
//! half answers, it is in the rest, which the same stream can be asked for. So only ends cost a
//! reconnect, and each leaves half of the suspects. What there is to say of the others, when there
//! are several culprits, is found out once one is known.

use std::collections::BTreeSet;

use crate::name::TypeUrl;

/// The types of which any may end the stream; each is in one of the sets. No set has any when
/// nothing is searched.
#[derive(Debug, Default)]
pub(super) struct CulpritSearch {
    /// May be asked now: if the stream ends it is because of one of these. Never empty when another
    /// set is not.
    trial: BTreeSet<TypeUrl>,
    /// If none of the trial is the culprit, one of these is.
    suspects: BTreeSet<TypeUrl>,
    /// May be culprits too.
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

    /// A type that is new waits until the search is over.
    pub(super) fn defer(&mut self, type_url: TypeUrl) {
        self.deferred.insert(type_url);
    }

    /// Whether an end of the stream says something: one of the unanswered types may have caused it.
    pub(super) fn concerns(&self, unanswered: &BTreeSet<TypeUrl>) -> bool {
        match self.is_active() {
            true => !self.trial.is_disjoint(unanswered),
            false => !unanswered.is_empty(),
        }
    }

    /// The stream ended, and these had been asked without an answer, some of the trial among them
    /// if there is one. The culprit, once there is only one left.
    pub(super) fn on_end(&mut self, mut unanswered: BTreeSet<TypeUrl>) -> Option<TypeUrl> {
        debug_assert!(self.concerns(&unanswered));
        if self.is_active() {
            // Who was cleared before and did not answer again is none.
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

    /// A type is none of them: it answered, or is not wanted any more.
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
            // Nothing was proved of these yet: mostly there is one culprit, and they all answer.
            std::mem::swap(&mut self.trial, &mut self.deferred);
            return;
        }
        let half = (self.suspects.len() / 2).max(1);
        let rest = self.suspects.iter().nth(half).cloned();
        let rest = rest.map(|first| self.suspects.split_off(&first)).unwrap_or_default();
        self.trial = std::mem::replace(&mut self.suspects, rest);
    }
}
