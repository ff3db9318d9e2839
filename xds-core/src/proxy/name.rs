//! What is wanted of one name, and what is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use super::route::Route;
use crate::cache::Answer;
use crate::client::WatchId;
use crate::parameters::Parameters;

/// One name of one type; also a wildcard or a glob.
#[derive(Debug, Default)]
pub(super) struct Name {
    /// By the parameters as streams ask with them, bound.
    pub(super) wants: BTreeMap<Parameters, Want>,
    pub(super) questions: BTreeMap<QuestionId, Question>,
    /// T43c: each locator has to be asked for alone.
    pub(super) is_unshared: bool,
    /// Its variants were found to overlap, so each locator is asked for.
    pub(super) is_eager: bool,
}

/// What a stream upstream is asked with.
pub(super) type QuestionId = (Route, Parameters);

/// A locator that streams ask for.
#[derive(Debug)]
pub(super) struct Want {
    /// The parameters as clients sent them.
    pub(super) parameters: Parameters,
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
    /// When it ends, as nobody does.
    pub(super) ends_at: Option<Duration>,
    /// It is only asked to see whether the upstream agrees, until it ends.
    pub(super) is_audit: bool,
    /// Its age.
    pub(super) number: u64,
}

impl Want {
    pub(super) fn new(bound: &Parameters, number: u64) -> Self {
        let parameters = bound.unbound();
        Self { parameters, asking: 0, via: None, joined: None, is_found: false, told: None, number }
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
            ends_at: None,
            is_audit: false,
            number,
        }
    }
}
