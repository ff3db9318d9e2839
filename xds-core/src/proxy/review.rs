//! Which want relies on which question (T43, T43b).
//!
//! Looked at again is a name: when somebody asks for it whom nothing at hand is for, when its variants changed, when a
//! question was answered. That costs O(wants of the name). Who asks for what is at hand costs a lookup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::config::{Sharing, UpstreamKind};
use super::name::{Name, Question, QuestionId};
use super::route::Route;
use super::settle::Order;
use super::{Key, Notice, Proxy};
use crate::cache::{Answer, Snapshot, Transaction};
use crate::client::is_set;
use crate::code::Code;
use crate::name::TypeUrl;
use crate::parameters::Parameters;
use crate::subscription::Locator;
use crate::variants::{Variant, Variants};

/// How wants of a name come to questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// By what the constraints of its variants match.
    Lazy,
    /// Each has its own, whatever is at hand.
    Direct,
}

impl Proxy {
    fn mode(&self, key: &Key, name: &Name) -> Mode {
        let is_lazy = matches!(self.config.upstream, UpstreamKind::Locators { .. })
            && self.config.sharing(&key.0) != Sharing::Off
            && !name.is_unshared
            && !name.is_eager
            && !self.is_aside(&Route::Shared, &key.0)
            && !is_set(key.1.as_str());
        if is_lazy { Mode::Lazy } else { Mode::Direct }
    }

    /// What a want is asked for with when it is asked for by itself.
    fn question_of(&self, key: &Key, is_unshared: bool, parameters: &Parameters) -> QuestionId {
        match &self.config.upstream {
            UpstreamKind::Node { keys } => {
                let projected = parameters.project(|key| keys.contains(key));
                (self.way(Route::Node(projected.clone()), &key.0), projected)
            }
            UpstreamKind::Locators { .. } if is_unshared => {
                (Route::Alone(parameters.clone()), parameters.bound())
            }
            UpstreamKind::Locators { set_keys: Some(keys) } if is_set(key.1.as_str()) => {
                (self.way(Route::Shared, &key.0), parameters.project(|key| keys.contains(key)))
            }
            UpstreamKind::Locators { .. } => (self.way(Route::Shared, &key.0), parameters.clone()),
        }
    }

    /// The stream that a type is asked for on.
    fn way(&self, main: Route, type_url: &TypeUrl) -> Route {
        if self.is_aside(&main, type_url) { main.aside(type_url) } else { main }
    }

    /// The common case of a new want: what is at hand is for it, and stays subscribed. Whether that was so.
    pub(super) fn share(&mut self, now: Duration, key: &Key, bound: &Parameters) -> bool {
        let (name, audit) = (&self.names[key], self.config.sharing(&key.0));
        if self.mode(key, name) != Mode::Lazy {
            return false;
        }
        let snapshot = self.cache.snapshot();
        let variants = snapshot.get(&key.0, &key.1);
        let Some(variant) = variants.and_then(|variants| variants.resolve(bound)) else { return false };
        self.counts.hits += 1;
        if let Sharing::Audit { one_in } = audit
            && self.counts.hits.is_multiple_of(one_in.max(1).into())
        {
            let parameters = name.wants[bound].parameters.clone();
            self.audit(now, key, (Route::Shared, parameters));
        }
        let name = self.names.get_mut(key).expect("it was looked up above");
        let is_cover = |id: &QuestionId| variant.constraints().matches(&id.1);
        // Few questions bring many wants what they need.
        let used = name
            .questions
            .iter_mut()
            .filter(|(id, question)| id.0 == Route::Shared && question.users > 0 && !question.is_audit);
        let Some((id, question)) = used.into_iter().find(|(id, _)| is_cover(id)) else { return false };
        let want = name.wants.get_mut(bound).expect("somebody asks for it");
        if want.via.is_some() {
            return false;
        }
        question.users += 1;
        want.via = Some(id.clone());
        want.is_found = true;
        true
    }

    /// Nobody asks for it any more; whether nothing else has to be done.
    pub(super) fn let_go(&mut self, key: &Key, bound: &Parameters) -> bool {
        let Some(name) = self.names.get_mut(key) else { return true };
        let Some(want) = name.wants.get(bound) else { return true };
        let Some(question) = want.via.as_ref().and_then(|via| name.questions.get_mut(via)) else {
            return false;
        };
        if want.told.is_some() || question.users <= 1 {
            return false;
        }
        question.users -= 1;
        name.wants.remove(bound);
        true
    }

    fn audit(&mut self, now: Duration, key: &Key, id: QuestionId) {
        let number = self.next_number();
        let name = self.names.get_mut(key).expect("it was looked up before");
        if name.questions.contains_key(&id) {
            return;
        }
        self.counts.audited += 1;
        let ends_at = Some(now + AUDIT_TIME);
        let question = Question { is_audit: true, ends_at, ..Question::new(number) };
        name.questions.insert(id.clone(), question);
        self.timers.insert((now + AUDIT_TIME, key.clone()));
        self.order(&id.0, Order::Watch { key: key.clone(), parameters: id.1 });
    }

    pub(super) fn review_all(&mut self, now: Duration, keys: BTreeSet<Key>) {
        let mut transaction = Transaction::new();
        let mut keys = keys;
        while !keys.is_empty() {
            for key in keys {
                self.review(now, &key, &mut transaction);
            }
            keys = self.end_idle(now);
        }
        if !transaction.is_empty() {
            self.cache.commit(transaction).expect("what is answered breaks no rule of variants");
        }
    }

    /// Looks at one name again.
    fn review(&mut self, now: Duration, key: &Key, transaction: &mut Transaction) {
        let Some(mut name) = self.names.remove(key) else { return };
        let snapshot = self.cache.snapshot();
        let variants = snapshot.get(&key.0, &key.1);
        self.end_audits(now, key, &mut name, variants);
        loop {
            for want in name.wants.values_mut() {
                want.via = None;
            }
            match self.mode(key, &name) {
                Mode::Lazy => self.review_lazy(now, key, &mut name, variants),
                Mode::Direct => self.review_direct(key, &mut name),
            }
            let is_refused = name.wants.values().any(|want| want.asking > 0 && want.via.is_none());
            // Who was refused may ask when others went.
            if !self.drop_unused(now, key, &mut name, variants) || !is_refused {
                break;
            }
        }
        self.tell(key, &mut name, &snapshot, transaction);
        if !name.wants.is_empty() || !name.questions.is_empty() {
            self.names.insert(key.clone(), name);
        }
    }

    /// An upstream that agrees sends what is at hand once more, or nothing. Where it has another variant for the same
    /// parameters, that evicts the one at hand (T34), and others lose theirs.
    fn end_audits(&mut self, now: Duration, key: &Key, name: &mut Name, variants: Option<&Variants>) {
        let resolves = |parameters| variants.is_some_and(|variants| variants.resolve(parameters).is_some());
        let is_lost = name.wants.iter().any(|(bound, want)| want.is_found && !resolves(bound));
        let mut is_eager = false;
        for (id, question) in name.questions.iter_mut().filter(|(_, question)| question.is_audit) {
            let disagrees = is_lost || question.answer.is_some() || !resolves(&id.1);
            if disagrees || question.ends_at.is_some_and(|at| at <= now) {
                (question.is_audit, question.ends_at) = (false, None);
                is_eager |= disagrees;
            }
        }
        if is_eager && !name.is_eager {
            self.counts.disagreed += 1;
            name.is_eager = true;
            let (type_url, name) = key.clone();
            self.notices.push(Notice::Overlapping { type_url, name });
        }
    }

    fn review_direct(&mut self, key: &Key, name: &mut Name) {
        let wanted: Vec<_> = wanted(name);
        for (bound, parameters) in wanted {
            let id = self.question_of(key, name.is_unshared, &parameters);
            self.rely(key, name, &bound, id);
        }
    }

    fn review_lazy(&mut self, now: Duration, key: &Key, name: &mut Name, variants: Option<&Variants>) {
        let resolve = |parameters: &Parameters| variants.and_then(|variants| variants.resolve(parameters));
        // T43b: one question for each variant, the oldest.
        let mut covers = BTreeMap::<*const Variant, QuestionId>::new();
        let shared = |(id, question): &(&QuestionId, &Question)| id.0 == Route::Shared && !question.is_audit;
        let mut asked: Vec<_> = name.questions.iter().filter(shared).collect();
        asked.sort_unstable_by_key(|(_, question)| question.number);
        for (id, _) in asked {
            if let Some(variant) = resolve(&id.1) {
                covers.entry(Arc::as_ptr(variant)).or_insert_with(|| id.clone());
            }
        }
        let mut unmatched = Vec::new();
        for (bound, parameters) in wanted(name) {
            match resolve(&bound) {
                Some(variant) => {
                    let own = || (Route::Shared, parameters.clone());
                    let id = covers.entry(Arc::as_ptr(variant)).or_insert_with(own).clone();
                    self.rely(key, name, &bound, id);
                }
                None => unmatched.push((bound, parameters)),
            }
        }
        let keys: BTreeSet<&str> = variants
            .into_iter()
            .flat_map(Variants::iter)
            .flat_map(|variant| variant.constraints().keys().iter().map(AsRef::as_ref))
            .collect();
        let project = |parameters: &Parameters| parameters.project(|key| keys.contains(key));
        let is_unanswered = |(id, question): &(&QuestionId, &Question)| {
            id.0 == Route::Shared && !question.is_answered && !question.is_audit
        };
        let unanswered = name.questions.iter().filter(is_unanswered);
        let pending = unanswered.clone().map(|(id, _)| (project(&id.1), id.clone()));
        let mut pending: BTreeMap<Parameters, QuestionId> = pending.collect();
        // Who waited long for the first answer asks, as many as were asked before: where it is slow to come, each round asks twice
        // as many, and not all of a fleet at once.
        let asked_at = unanswered.map(|(_, question)| question.asked_at);
        let mut allowed = asked_at.clone().count();
        // The upstream is away: there is nobody to ask.
        let newest = asked_at.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        for (bound, parameters) in unmatched {
            let want = name.wants.get_mut(&bound).expect("it is wanted");
            if std::mem::replace(&mut want.is_found, false) {
                self.counts.requalified += 1;
            }
            let own = (Route::Shared, parameters.clone());
            // T35: whom another's answer brought nothing for asks by itself, at once with all who waited for it.
            let is_in_vain = want.joined.as_ref().and_then(|id| name.questions.get(id));
            let is_in_vain = is_in_vain.is_some_and(|question| question.answer.is_some());
            let is_asked = is_in_vain || name.questions.contains_key(&own);
            // While no keys are known, the first answer may be for all. Once they are, whose parameters agree on them get the same.
            let joined = pending.get(&project(&parameters)).filter(|_| !is_asked).cloned();
            let until = match newest {
                Some(at) if keys.is_empty() => at + self.config.coalesce,
                _ => Duration::MAX,
            };
            let has_waited = until <= now && allowed > 0;
            match joined {
                Some(id) if !has_waited => {
                    // Who may not ask now may when those who do have waited.
                    let again = if until > now { until } else { now + self.config.coalesce };
                    if until < Duration::MAX {
                        self.timers.insert((again, key.clone()));
                    }
                    let want = name.wants.get_mut(&bound).expect("it is wanted");
                    self.counts.joined += u64::from(want.joined.replace(id.clone()).is_none());
                    self.rely(key, name, &bound, id);
                }
                joined => {
                    allowed -= usize::from(joined.is_some());
                    if !is_asked {
                        pending.entry(project(&parameters)).or_insert_with(|| own.clone());
                    }
                    self.rely(key, name, &bound, own);
                }
            }
        }
    }

    /// Has a want rely on a question, which is asked if it was not.
    fn rely(&mut self, key: &Key, name: &mut Name, bound: &Parameters, id: QuestionId) {
        if !name.questions.contains_key(&id) {
            if name.questions.len() >= self.config.questions_limit && !self.make_room(key, name) {
                return;
            }
            let number = self.next_number();
            self.counts.misses += 1;
            name.questions.insert(id.clone(), Question::new(number));
            self.order(&id.0, Order::Watch { key: key.clone(), parameters: id.1.clone() });
        }
        let question = name.questions.get_mut(&id).expect("it was asked above");
        question.users += 1;
        // An audit ends all the same, and then is a question like others.
        if !question.is_audit
            && let Some(ends_at) = question.ends_at.take()
        {
            self.forget_idle(&(ends_at, key.clone(), id.clone()));
        }
        name.wants.get_mut(bound).expect("it is wanted").via = Some(id);
    }

    /// Ends the question that would have ended first of those that nobody relies on, if there is one.
    fn make_room(&mut self, key: &Key, name: &mut Name) -> bool {
        let idle = name.questions.iter().filter(|(_, question)| !question.is_audit);
        let idle = idle.filter_map(|(id, question)| Some((question.ends_at?, id)));
        let Some((ends_at, id)) = idle.min().map(|(ends_at, id)| (ends_at, id.clone())) else { return false };
        self.end(key, name, ends_at, id);
        true
    }

    fn end(&mut self, key: &Key, name: &mut Name, ends_at: Duration, id: QuestionId) {
        let question = name.questions.remove(&id);
        self.order(&id.0, Order::Unwatch { watch: question.and_then(|question| question.watch) });
        self.forget_idle(&(ends_at, key.clone(), id));
    }

    /// Questions that only ask what another one asks as well go at once; others linger. Whether there is
    /// more room than before.
    fn drop_unused(
        &mut self,
        now: Duration,
        key: &Key,
        name: &mut Name,
        variants: Option<&Variants>,
    ) -> bool {
        let mut users = BTreeMap::<QuestionId, usize>::new();
        for want in name.wants.values().filter(|want| want.asking > 0) {
            if let Some(via) = &want.via {
                *users.entry(via.clone()).or_default() += 1;
            }
        }
        let mut unused = Vec::new();
        for (id, question) in &mut name.questions {
            question.users = users.get(id).copied().unwrap_or(0);
            if question.users == 0 && !question.is_audit {
                unused.push(id.clone());
            }
        }
        let resolve =
            |id: &QuestionId| variants.and_then(|variants| variants.resolve(&id.1)).map(Arc::as_ptr);
        let covered: BTreeSet<_> = users.keys().filter_map(resolve).collect();
        let is_lazy = self.mode(key, name) == Mode::Lazy;
        let mut has_room = false;
        for id in unused {
            has_room |= name.questions[&id].ends_at.is_none();
            let is_redundant = is_lazy && resolve(&id).is_some_and(|variant| covered.contains(&variant));
            let is_aside = self.is_aside(&id.0.main(), &key.0);
            let is_stale = match &id.0 {
                Route::Shared => name.is_unshared || is_aside,
                Route::Node(_) => is_aside,
                Route::Aside { .. } => !is_aside,
                Route::Alone(_) => !name.is_unshared,
            };
            let question = name.questions.get_mut(&id).expect("it was seen above");
            let lingers = matches!(id.0, Route::Shared | Route::Node(_)) && !is_redundant && !is_stale;
            let begins = question.ends_at.is_none();
            let ends_at = *question.ends_at.get_or_insert_with(|| match lingers {
                true => now + self.config.lingers(&id),
                false => now,
            });
            if ends_at <= now || is_redundant || is_stale {
                // What came aside stays until the main stream is answered.
                if is_stale && let Route::Aside { .. } = &id.0 {
                    name.questions.remove(&id);
                    self.forget_idle(&(ends_at, key.clone(), id.clone()));
                    self.retire(&id.0);
                    continue;
                }
                self.end(key, name, ends_at, id);
                has_room = true;
            } else if begins {
                self.timers.insert((ends_at, key.clone()));
                self.keep_idle((ends_at, key.clone(), id));
            }
        }
        has_room
    }

    /// Has the cache say of each want what its own question was answered.
    fn tell(&mut self, key: &Key, name: &mut Name, snapshot: &Snapshot, transaction: &mut Transaction) {
        let mut refusals = 0;
        let is_set = is_set(key.1.as_str());
        let Name { wants, questions, is_unshared, .. } = name;
        let variants = snapshot.get(&key.0, &key.1);
        wants.retain(|bound, want| {
            let is_found = !is_set && variants.is_some_and(|variants| variants.resolve(bound).is_some());
            want.is_found = is_found;
            let own = self.question_of(key, *is_unshared, &want.parameters);
            let refused = || Answer::Failed {
                code: Code::RESOURCE_EXHAUSTED,
                message: "too many parameter sets of this name are asked for".into(),
            };
            let answer = match &want.via {
                _ if want.asking == 0 || is_found => None,
                // T35: what is absent for one locator is so for no other.
                Some(via) if *via == own => {
                    let question = questions.get(via);
                    let answer = question.and_then(|question| question.answer.clone());
                    answer.or_else(|| self.refusal(&via.0, &key.0))
                }
                Some(_) => None,
                None => Some(refused()),
            };
            if answer != want.told {
                refusals += u64::from(want.asking > 0 && !is_found && want.via.is_none());
                let locator = Locator { name: key.1.clone(), parameters: bound.clone() };
                transaction.answer(key.0.clone(), locator, answer.clone());
                want.told = answer;
            }
            want.asking > 0
        });
        self.counts.refused += refusals;
    }
}

/// How long an upstream has to say that it does not agree.
const AUDIT_TIME: Duration = Duration::from_secs(5);

/// The wants that somebody asks for, oldest first: bound, and as they were sent.
fn wanted(name: &Name) -> Vec<(Parameters, Parameters)> {
    let mut wanted: Vec<_> = name.wants.iter().filter(|(_, want)| want.asking > 0).collect();
    wanted.sort_unstable_by_key(|(_, want)| want.number);
    wanted.into_iter().map(|(bound, want)| (bound.clone(), want.parameters.clone())).collect()
}
