//! Questions that nobody relies on any more: kept for a while, as who left may come back.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::time::Duration;

use super::config::ProxyConfig;
use super::name::QuestionId;
use super::{Key, Proxy};
use crate::client::is_set;
use crate::hash::FixedState;
use crate::variants::Variants;

/// When a question ends that is kept although nobody relies on it, and what it keeps.
pub(super) type Idle = (Duration, Key, QuestionId);

impl ProxyConfig {
    /// How long a question stays: not all that went at once end at once.
    pub(super) fn lingers(&self, question: &QuestionId) -> Duration {
        let hash = FixedState::default().hash_one(question);
        let share = u32::try_from(hash % 201).unwrap_or(0);
        self.linger * (900 + share) / 1000
    }
}

impl Proxy {
    /// Notes what a question keeps that ends later.
    pub(super) fn keep_idle(&mut self, idle: Idle) {
        let (_, (type_url, name), (_, parameters)) = &idle;
        let bytes = self.cache.read(|snapshot| {
            let len = |variants: &Variants| {
                variants.resolve(parameters).map_or(0, |variant| variant.payload().len())
            };
            match is_set(name.as_str()) {
                true => snapshot
                    .of_type(type_url)
                    .into_iter()
                    .flat_map(|of| of.iter())
                    .map(|(_, of)| len(of))
                    .sum(),
                false => snapshot.get(type_url, name).map_or(0, len),
            }
        });
        if self.idle.insert(idle, bytes).is_none() {
            self.idle_bytes += bytes;
        }
    }

    /// It ended, or somebody relies on it again.
    pub(super) fn forget_idle(&mut self, idle: &Idle) {
        if let Some(bytes) = self.idle.remove(idle) {
            self.idle_bytes -= bytes;
        }
    }

    /// Names whose questions have to end, as too much is kept: those first that would have ended first.
    pub(super) fn end_idle(&mut self, now: Duration) -> BTreeSet<Key> {
        let mut ended = BTreeSet::new();
        while self.idle_bytes > self.config.linger_bytes
            && let Some(((_, key, id), bytes)) = self.idle.pop_first()
        {
            self.idle_bytes -= bytes;
            let question = self.names.get_mut(&key).and_then(|name| name.questions.get_mut(&id));
            if let Some(question) = question {
                question.ends_at = Some(now);
                ended.insert(key);
            }
        }
        ended
    }
}
