//! Rollouts of a server: what the source commits is tried by more and more clients first. The driver
//! looks at the machine when something happens (`xds serve --rollout`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xds_core::{
    Audience, Cache, ClientOutcome, Parameters, RefusedChange, RolloutEvent, RolloutMachine, RolloutOrder,
    RolloutPlan, Snapshot, Transaction, VariantId,
};

use crate::content::{Content, Kind, put};
use crate::script::RolloutProfile;
use crate::trying::{Refusal, Refused, Variation, contents};

/// What carries the commits of the source to the clients of a replica.
pub(crate) struct Rollouts {
    profile: RolloutProfile,
    /// The source commits here.
    pub(crate) source: Arc<Cache>,
    served: Arc<Cache>,
    machine: RolloutMachine,
    /// The stable state on the disk.
    stored: BTreeMap<VariantId, Bytes>,
    /// The rollout that runs, as the model knows it.
    pub(crate) tried: Option<Tried>,
    /// What rollouts tried that ended otherwise, and the clients that were sent some of it.
    left: BTreeMap<Variation, (Content, BTreeSet<String>)>,
    /// What was refused, until other content was in its place.
    pub(crate) refused: Refused,
    /// A rollout was refused at some time.
    pub(crate) has_refused: bool,
}

/// A rollout that runs.
#[derive(Default)]
pub(crate) struct Tried {
    /// The contents that are tried.
    pub(crate) contents: BTreeMap<Variation, Content>,
    pub(crate) began: Duration,
    /// How many variants change; those that are removed have no content.
    variants: usize,
    /// Those who try it, step by step.
    steps: Vec<Audience>,
    /// The clients that were chosen one by one.
    chosen: BTreeSet<String>,
    /// The clients that were sent some of it.
    pub(crate) sent_to: BTreeSet<String>,
}

impl Rollouts {
    pub(crate) fn new(profile: &RolloutProfile) -> Self {
        Self::restored(profile, BTreeMap::new())
    }

    /// After a restart: a server that has the stored state.
    pub(crate) fn after_crash(&self) -> Self {
        Self { has_refused: self.has_refused, ..Self::restored(&self.profile, self.stored.clone()) }
    }

    fn restored(profile: &RolloutProfile, stored: BTreeMap<VariantId, Bytes>) -> Self {
        let (source, served) = (Cache::new(), Cache::new());
        if !stored.is_empty() {
            put(&served, stored.iter().map(|(id, payload)| (id, Some(payload))));
        }
        let plan = RolloutPlan::new(profile.steps.clone(), profile.wait);
        let (from, to) = (Arc::clone(&source), Arc::clone(&served));
        Self {
            machine: RolloutMachine::new(from, to, plan, profile.on_change),
            profile: profile.clone(),
            source,
            served,
            stored,
            tried: None,
            left: BTreeMap::new(),
            refused: Refused::new(),
            has_refused: false,
        }
    }

    /// The cache that the clients read.
    pub(crate) fn served(&self) -> &Arc<Cache> {
        &self.served
    }

    /// From now on the clients get what the source commits, without rollouts.
    pub(crate) fn finish(self) {
        drop(self.machine);
        let wanted = Transaction::between(&self.served.snapshot(), &self.source.snapshot());
        self.served.commit(wanted).unwrap();
    }

    /// Returns whether there is something to promote or to abort.
    pub(crate) fn order(&mut self, order: RolloutOrder) -> bool {
        self.machine.order(order)
    }

    /// What is tried.
    pub(crate) fn candidate(&self) -> Option<Arc<Snapshot>> {
        self.machine.running().map(|running| running.candidate().snapshot())
    }

    /// The names that the rollout which runs changes.
    pub(crate) fn changed_names(&self) -> BTreeSet<(Kind, String)> {
        let Some(candidate) = self.candidate() else { return BTreeSet::new() };
        let (stable, tried) = (contents(&self.served.snapshot()), contents(&candidate));
        let variations = stable.keys().chain(tried.keys());
        let changed = variations.filter(|variation| stable.get(variation) != tried.get(variation));
        changed.map(|(kind, name, _)| (*kind, name.clone())).collect()
    }

    /// Whether a rollout runs.
    pub(crate) fn is_running(&self) -> bool {
        self.machine.running().is_some()
    }

    /// Whether the stable state is not that of the source.
    pub(crate) fn is_behind(&self) -> bool {
        !Transaction::between(&self.served.snapshot(), &self.source.snapshot()).is_empty()
    }

    /// When the step of the rollout ends.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.machine.running().map(|running| running.step_ends_at())
    }

    /// Does the next thing that is due.
    pub(crate) fn advance(&mut self, now: Duration) -> Option<RolloutEvent> {
        let before = clients_of(&self.outcomes());
        let event = self.machine.advance(now)?;
        match &event {
            RolloutEvent::Began { audience, variants } => {
                let (stable, running) = (contents(&self.served.snapshot()), self.machine.running());
                let mut tried = running.map(|on| contents(&on.candidate().snapshot())).unwrap_or_default();
                tried.retain(|variation, content| stable.get(variation) != Some(content));
                let mut tried =
                    Tried { contents: tried, began: now, variants: *variants, ..Tried::default() };
                tried.widen(audience, &clients_of(&self.outcomes()));
                self.tried = Some(tried);
            }
            RolloutEvent::Widened(audience) => {
                let added = &clients_of(&self.outcomes()) - &before;
                self.tried.iter_mut().for_each(|tried| tried.widen(audience, &added));
            }
            RolloutEvent::Promoted | RolloutEvent::Committed => {
                self.tried = None;
                self.store();
            }
            RolloutEvent::Refused(_) => {
                self.has_refused = true;
                let had = contents(&self.served.snapshot());
                let tried = self.leave();
                self.refused.extend(tried.into_iter().flat_map(|tried| tried.refused(&had)));
            }
            RolloutEvent::Overtaken | RolloutEvent::Replaced(_) => drop(self.leave()),
        }
        self.follow();
        Some(event)
    }

    /// The clients that tried it go back, which may take until they do not use it any more (S33).
    fn leave(&mut self) -> Option<Tried> {
        let tried = self.tried.take();
        let contents = tried.iter().flat_map(|tried| tried.contents.iter().map(|of| (of, &tried.sent_to)));
        for ((variation, content), sent_to) in contents {
            let new = || (content.clone(), BTreeSet::new());
            let left = self.left.entry(variation.clone()).or_insert_with(new);
            if left.0 != *content {
                *left = new();
            }
            left.1.extend(sent_to.iter().cloned());
        }
        tried
    }

    /// Whether a client may still have this since such a rollout.
    pub(crate) fn may_keep(&self, client: &str, variation: &Variation, content: &Content) -> bool {
        self.left.get(variation).is_some_and(|(left, clients)| left == content && clients.contains(client))
    }

    /// What was refused may be sent again after other content was in its place.
    fn follow(&mut self) {
        let there = contents(&self.served.snapshot());
        let refused = self.machine.refused().iter().flat_map(RefusedChange::contents);
        let refused: BTreeSet<_> = refused.map(|(id, _)| id).collect();
        let is_refused = |(kind, name, constraints): &Variation| {
            let (type_url, name) = (kind.url().into(), name.as_str().into());
            refused.contains(&VariantId { type_url, name, constraints: constraints.clone() })
        };
        self.refused.retain(|variation, refusal| {
            there.get(variation) == refusal.had.as_ref() && is_refused(variation)
        });
    }

    fn store(&mut self) {
        let snapshot = self.served.snapshot();
        let of_types =
            snapshot.counts().filter_map(|(type_url, _)| Some((type_url, snapshot.of_type(type_url)?)));
        let variants = of_types.flat_map(|(type_url, of_type)| {
            let variants = of_type.iter().flat_map(|(_, variants)| variants.iter());
            variants.map(move |variant| {
                let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
                let id = VariantId { type_url: type_url.clone(), name, constraints };
                (id, Bytes::copy_from_slice(variant.payload()))
            })
        });
        self.stored = variants.collect();
    }

    fn outcomes(&self) -> Vec<ClientOutcome> {
        self.machine.running().map(|on| on.candidate().delivery().results()).unwrap_or_default()
    }
}

fn clients_of(outcomes: &[ClientOutcome]) -> BTreeSet<String> {
    outcomes.iter().map(|of| of.client.id.to_string()).collect()
}

impl Tried {
    /// The next step begins, with these clients.
    fn widen(&mut self, audience: &Audience, added: &BTreeSet<String>) {
        if let Audience::Clients(_) = audience {
            self.chosen.extend(added.iter().cloned());
        }
        self.steps.push(audience.clone());
    }

    /// Whether a client may try it.
    pub(crate) fn is_for(&self, client: &str, node: &Parameters) -> bool {
        self.steps.iter().any(|step| match step {
            Audience::Clients(_) => self.chosen.contains(client),
            Audience::Percent(percent) => *percent == 100,
            Audience::When(condition) => condition.matches(node),
        })
    }

    /// Whether more clients were chosen one by one than the numbers of the steps for each variant.
    pub(crate) fn is_for_too_many(&self) -> bool {
        let limit = self.steps.iter().map(|step| match step {
            Audience::Clients(count) => count * self.variants,
            Audience::Percent(_) | Audience::When(_) => 0,
        });
        self.chosen.len() > limit.sum()
    }

    fn refused(self, had: &BTreeMap<Variation, Content>) -> Refused {
        let Self { contents, mut chosen, sent_to, .. } = self;
        chosen.extend(sent_to);
        let refusal = |(of, content): (Variation, Content)| {
            let had = had.get(&of).cloned();
            (of, Refusal { content, had, chosen: chosen.clone() })
        };
        contents.into_iter().map(refusal).collect()
    }
}
