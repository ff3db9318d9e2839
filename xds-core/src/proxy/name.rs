//! What is wanted of one name, and what is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::route::Route;
use crate::cache::Answer;
use crate::client::WatchId;
use crate::constraint::Constraints;
use crate::parameters::Parameters;
use crate::variants::{Variant, Variants};

/// One name of one type; also a wildcard or a glob.
#[derive(Debug, Default)]
pub(super) struct Name {
    /// By the parameters as streams ask with them, bound.
    pub(super) wants: BTreeMap<Parameters, Want>,
    pub(super) questions: BTreeMap<QuestionId, Question>,
    /// Wants to look at again, by age: that came or went, or that may wait no more.
    pub(super) asked: BTreeMap<u64, Parameters>,
    /// Wants that rely on no question, as there are too many; by age.
    pub(super) refused: BTreeMap<u64, Parameters>,
    /// The constraints of its variants when it was looked at last.
    shape: BTreeSet<Constraints>,
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
pub(super) type QuestionId = Arc<(Route, Parameters)>;

/// A locator that streams ask for.
#[derive(Debug)]
pub(super) struct Want {
    /// How many subscriptions there are.
    pub(super) asking: usize,
    /// What its variant came by, or will come by.
    pub(super) via: Option<QuestionId>,
    /// The question of another that it waits for, or waited for last.
    pub(super) joined: Option<QuestionId>,
    /// A variant was for it when it was looked at last.
    pub(super) is_found: bool,
    /// What the cache says of it.
    pub(super) told: Option<Answer>,
    /// Its age.
    pub(super) number: u64,
}

/// A locator that an upstream is asked for.
#[derive(Debug)]
pub(super) struct Question {
    /// `None` until the order was carried out.
    pub(super) watch: Option<WatchId>,
    /// Since when the upstream could answer.
    pub(super) asked_at: Option<Duration>,
    /// Something was said of it: a resource, its absence, or why there is neither.
    pub(super) is_answered: bool,
    /// What was said, unless it was a resource.
    pub(super) answer: Option<Answer>,
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
        let kept = now().filter(|constraints| self.shape.contains(*constraints)).count();
        let is_shrunk = kept < self.shape.len();
        let is_grown = now().count() > kept;
        if is_shrunk || is_grown {
            self.shape = now().cloned().collect();
            let keys: BTreeSet<_> = now().flat_map(Constraints::keys).cloned().collect();
            if self.keys != keys {
                self.keys = keys;
                self.ask_all_waiting();
            }
            self.asked.append(&mut self.refused);
        }
        if std::mem::take(&mut self.is_stale) || is_shrunk {
            let all = self.wants.iter().map(|(bound, want)| (want.number, bound.clone()));
            self.asked.extend(all.collect::<Vec<_>>());
        }
    }

    fn ask_all_waiting(&mut self) {
        for question in self.questions.values_mut() {
            self.asked.append(&mut question.waiting);
        }
    }

    /// The wants to look at, oldest first; whether somebody asks for them still. They rely on
    /// nothing until they were looked at.
    pub(super) fn take_asked(&mut self) -> Vec<(Parameters, bool)> {
        let mut taken = Vec::with_capacity(self.asked.len());
        for (number, bound) in std::mem::take(&mut self.asked) {
            let Some(want) = self.wants.get_mut(&bound).filter(|want| want.number == number) else {
                continue;
            };
            self.refused.remove(&number);
            if let Some(question) = want.via.take().and_then(|via| self.questions.get_mut(&via)) {
                question.users -= 1;
                question.waiting.remove(&number);
            }
            taken.push((bound, want.asking > 0));
        }
        taken
    }

    /// Who waited long for the first answer of another's question asks, as many as were asked
    /// before: where it is slow to come, each round asks twice as many and waits twice as long, and
    /// not all of a fleet ask at once. Gives the time to look again where it is too early.
    pub(super) fn ask_overdue(&mut self, now: Duration, coalesce: Duration) -> Option<Duration> {
        let due = self.first_answer_overdue(coalesce).filter(|_| self.keys.is_empty())?;
        if due > now {
            return Some(due);
        }
        let unanswered = self.questions.iter().filter(|(_, question)| question.is_unanswered());
        let joined = unanswered.flat_map(|(id, question)| {
            let others = question.waiting.iter().filter(|(_, bound)| **bound != id.1);
            others.map(|(number, bound)| (*number, bound.clone()))
        });
        let mut joined: Vec<_> = joined.collect();
        joined.sort_unstable_by_key(|(number, _)| *number);
        joined.truncate(self.unanswered().count());
        self.asked.extend(joined);
        None
    }

    /// Questions of the shared stream that nothing was said of yet.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (&QuestionId, &Question)> {
        self.questions.iter().filter(|(id, question)| id.0 == Route::Shared && question.is_unanswered())
    }

    /// From when on the first answer is late; `None` when the upstream is away: there is nobody to
    /// ask.
    pub(super) fn first_answer_overdue(&self, coalesce: Duration) -> Option<Duration> {
        let asked_at: Option<Vec<_>> = self.unanswered().map(|(_, question)| question.asked_at).collect();
        let asked_at = asked_at?;
        let rounds = u32::try_from(asked_at.len()).unwrap_or(u32::MAX);
        Some(asked_at.into_iter().max()? + coalesce.saturating_mul(rounds))
    }

    /// Something may be known of a question: who waits for it is looked at again.
    pub(super) fn wake(&mut self, id: &QuestionId) {
        if let Some(question) = self.questions.get_mut(id) {
            self.asked.append(&mut question.waiting);
        }
    }
}

impl Want {
    pub(super) fn new(number: u64) -> Self {
        Self { asking: 0, via: None, joined: None, is_found: false, told: None, number }
    }
}

impl Question {
    pub(super) fn new(number: u64) -> Self {
        Self {
            watch: None,
            asked_at: None,
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
