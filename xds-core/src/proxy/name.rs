//! What is wanted of one name, and what is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::route::Route;
use crate::cache::LocatorStatus;
use crate::client::WatchId;
use crate::constraint::Constraints;
use crate::parameters::Parameters;
use crate::variants::{Variant, Variants};

/// One name of one type; also a wildcard or a glob.
#[derive(Debug, Default)]
pub(super) struct Name {
    /// By the parameters as streams ask with them, bound.
    pub(super) downstream: BTreeMap<Parameters, DownstreamSubscription>,
    pub(super) upstream: BTreeMap<SubscriptionId, UpstreamSubscription>,
    /// Wants to look at again, by age: that came or went, or that may wait no more.
    pub(super) to_match: BTreeMap<u64, Parameters>,
    /// Wants that rely on no question, as there are too many; by age.
    pub(super) refused: BTreeMap<u64, Parameters>,
    /// The constraints of its variants when it was looked at last.
    constraints: BTreeSet<Constraints>,
    /// The keys in them.
    pub(super) keys: BTreeSet<Arc<str>>,
    /// All wants may go another way than when they were looked at last.
    pub(super) is_stale: bool,
    /// T43c: each locator has to be asked for alone.
    pub(super) is_unshared: bool,
    /// Its variants were found to overlap, so each locator is asked for.
    pub(super) is_eager: bool,
}

/// What a stream upstream is asked with, bound, unless it is only some of the parameters of those
/// who want it.
pub(super) type SubscriptionId = Arc<(Route, Parameters)>;

/// A locator that streams ask for.
#[derive(Debug)]
pub(super) struct DownstreamSubscription {
    /// How many subscriptions there are.
    pub(super) streams: usize,
    /// What its variant came by, or will come by.
    pub(super) relies_on: Option<SubscriptionId>,
    /// The question of another that it waits for, or waited for last.
    pub(super) joined: Option<SubscriptionId>,
    /// A variant was for it when it was looked at last.
    pub(super) has_variant: bool,
    /// What the cache says of it.
    pub(super) reported: Option<LocatorStatus>,
    /// Its age.
    pub(super) number: u64,
}

/// A locator that an upstream is asked for.
#[derive(Debug)]
pub(super) struct UpstreamSubscription {
    /// `None` until the order was carried out.
    pub(super) watch: Option<WatchId>,
    /// Since when the upstream could answer.
    pub(super) sent_at: Option<Duration>,
    /// Something was said of it: a resource, its absence, or why there is neither.
    pub(super) is_answered: bool,
    /// What was said, unless it was a resource.
    pub(super) answer: Option<LocatorStatus>,
    /// How many wants rely on it.
    pub(super) users: usize,
    /// Those of them that no variant was for when they were looked at last, by age.
    pub(super) waiting: BTreeMap<u64, Parameters>,
    /// When it ends, as nobody does.
    pub(super) ends_at: Option<Duration>,
    /// It is only asked to see whether the upstream agrees, until it ends.
    pub(super) is_audit: bool,
    /// Its age.
    pub(super) number: u64,
}

impl Name {
    /// Notes how its variants differ from those of the last time: which wants that concerns.
    ///
    /// Who has a variant loses it only when one goes: what is added is for those who have none.
    /// They hear of it by the question that they wait for, unless they wait for that of another and
    /// other keys decide than before.
    pub(super) fn follow(&mut self, variants: Option<&Variants>) {
        let now =
            || variants.into_iter().flat_map(Variants::iter).map(|variant| Variant::constraints(variant));
        let kept = now().filter(|constraints| self.constraints.contains(*constraints)).count();
        let is_shrunk = kept < self.constraints.len();
        let is_grown = now().count() > kept;
        if is_shrunk || is_grown {
            self.constraints = now().cloned().collect();
            let keys: BTreeSet<_> = now().flat_map(Constraints::keys).cloned().collect();
            if self.keys != keys {
                self.keys = keys;
                self.match_all_waiting();
            }
            self.to_match.append(&mut self.refused);
        }
        if std::mem::take(&mut self.is_stale) || is_shrunk {
            let all = self.downstream.iter().map(|(bound, downstream)| (downstream.number, bound.clone()));
            self.to_match.extend(all.collect::<Vec<_>>());
        }
    }

    fn match_all_waiting(&mut self) {
        for subscription in self.upstream.values_mut() {
            self.to_match.append(&mut subscription.waiting);
        }
    }

    /// The wants to look at, oldest first; whether somebody asks for them still. They rely on
    /// nothing until they were looked at.
    pub(super) fn take_to_match(&mut self) -> Vec<(Parameters, bool)> {
        let mut taken = Vec::with_capacity(self.to_match.len());
        for (number, bound) in std::mem::take(&mut self.to_match) {
            let Some(downstream) =
                self.downstream.get_mut(&bound).filter(|downstream| downstream.number == number)
            else {
                continue;
            };
            self.refused.remove(&number);
            if let Some(subscription) = downstream.relies_on.take().and_then(|id| self.upstream.get_mut(&id))
            {
                subscription.users -= 1;
                subscription.waiting.remove(&number);
            }
            taken.push((bound, downstream.streams > 0));
        }
        taken
    }

    /// Who waited long for the first answer of another's question asks, as many as were asked
    /// before: where it is slow to come, each round asks twice as many and waits twice as long, and
    /// not all of a fleet ask at once. Gives the time to look again where it is too early.
    pub(super) fn match_overdue(&mut self, now: Duration, coalesce: Duration) -> Option<Duration> {
        let due = self.first_response_overdue(coalesce).filter(|_| self.keys.is_empty())?;
        if due > now {
            return Some(due);
        }
        let unanswered = self.upstream.iter().filter(|(_, subscription)| subscription.is_unanswered());
        let joined = unanswered.flat_map(|(id, subscription)| {
            let others = subscription.waiting.iter().filter(|(_, bound)| **bound != id.1);
            others.map(|(number, bound)| (*number, bound.clone()))
        });
        let mut joined: Vec<_> = joined.collect();
        joined.sort_unstable_by_key(|(number, _)| *number);
        joined.truncate(self.unanswered().count());
        self.to_match.extend(joined);
        None
    }

    /// Questions of the shared stream that nothing was said of yet.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (&SubscriptionId, &UpstreamSubscription)> {
        self.upstream
            .iter()
            .filter(|(id, subscription)| id.0 == Route::Shared && subscription.is_unanswered())
    }

    /// From when on the first answer is late; `None` when the upstream is away: there is nobody to
    /// ask.
    pub(super) fn first_response_overdue(&self, coalesce: Duration) -> Option<Duration> {
        let sent_at: Option<Vec<_>> =
            self.unanswered().map(|(_, subscription)| subscription.sent_at).collect();
        let sent_at = sent_at?;
        let rounds = u32::try_from(sent_at.len()).unwrap_or(u32::MAX);
        Some(sent_at.into_iter().max()? + coalesce.saturating_mul(rounds))
    }

    /// Something may be known of a question: who waits for it is looked at again.
    pub(super) fn wake(&mut self, id: &SubscriptionId) {
        if let Some(subscription) = self.upstream.get_mut(id) {
            self.to_match.append(&mut subscription.waiting);
        }
    }
}

impl DownstreamSubscription {
    pub(super) fn new(number: u64) -> Self {
        Self { streams: 0, relies_on: None, joined: None, has_variant: false, reported: None, number }
    }
}

impl UpstreamSubscription {
    pub(super) fn new(number: u64) -> Self {
        Self {
            watch: None,
            sent_at: None,
            is_answered: false,
            answer: None,
            users: 0,
            waiting: BTreeMap::new(),
            ends_at: None,
            is_audit: false,
            number,
        }
    }

    fn is_unanswered(&self) -> bool {
        !self.is_answered && !self.is_audit
    }
}
