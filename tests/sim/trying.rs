//! A response that a few clients of a proxy try before the others see it. The driver waits for
//! these clients (`--ack canary`).

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use xds_core::proxy::Route;
use xds_core::{ClientOutcome, Constraints, Delivery, Outcome, Snapshot};

use crate::content::{Content, Kind};

/// A variant, by the fields that a client sees.
pub(crate) type Variation = (Kind, String, Constraints);

/// A response under trial.
pub(crate) struct Trying {
    pub(crate) route: Route,
    pub(crate) server: usize,
    pub(crate) frame: Bytes,
    delivery: Delivery,
    pub(crate) until: Duration,
    /// The snapshot that the others see meanwhile.
    pub(crate) before: Arc<Snapshot>,
    /// The contents that are tried.
    pub(crate) tried: BTreeMap<Variation, Content>,
    /// The stream of the response broke during the trial. This takes effect when the trial is over.
    pub(crate) is_lost: bool,
}

/// Contents that a client rejected in a trial.
pub(crate) type Refused = BTreeMap<Variation, Refusal>;

#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) content: Content,
    /// The content that was in its place before.
    pub(crate) had: Option<Content>,
    /// The clients that tried it.
    pub(crate) chosen: BTreeSet<String>,
}

impl Trying {
    pub(crate) fn new(
        (route, server): (&Route, usize),
        frame: Bytes,
        delivery: Delivery,
        until: Duration,
        (before, now): (Arc<Snapshot>, &Snapshot),
    ) -> Self {
        let mut tried = contents(now);
        let had = contents(&before);
        tried.retain(|variation, content| had.get(variation) != Some(content));
        Self { route: route.clone(), server, frame, delivery, until, before, tried, is_lost: false }
    }

    pub(crate) fn is_of(&self, route: &Route, server: usize) -> bool {
        self.route == *route && self.server == server
    }

    /// The results of the clients that try it; `None` while some may still answer.
    pub(crate) fn results(&self, now: Duration) -> Option<Vec<ClientOutcome>> {
        let settled = pin!(self.delivery.decided());
        match settled.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(results) => Some(results),
            Poll::Pending if self.until <= now => Some(self.delivery.results()),
            Poll::Pending => None,
        }
    }

    /// The clients that try it.
    pub(crate) fn chosen(&self) -> BTreeSet<String> {
        self.delivery.results().into_iter().map(|result| result.client.id.to_string()).collect()
    }

    /// The rejected contents of a finished trial.
    pub(crate) fn refused(&self, results: &[ClientOutcome]) -> Refused {
        if !results.iter().any(|result| matches!(result.outcome, Outcome::Nacked { .. })) {
            return Refused::new();
        }
        let (had, chosen) = (contents(&self.before), self.chosen());
        let refusal = |(of, content): (&Variation, &Content)| {
            let (content, had) = (content.clone(), had.get(of).cloned());
            (of.clone(), Refusal { content, had, chosen: chosen.clone() })
        };
        self.tried.iter().map(refusal).collect()
    }
}

/// All contents of a snapshot.
pub(crate) fn contents(snapshot: &Snapshot) -> BTreeMap<Variation, Content> {
    let mut all = BTreeMap::new();
    for kind in Kind::ALL {
        let names = snapshot.of_type(&kind.url().into()).into_iter().flat_map(|names| names.iter());
        for (name, variant) in names.flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
            if let Ok(content) = Content::of(kind, variant.payload()) {
                all.insert((kind, name.to_string(), variant.constraints().clone()), content);
            }
        }
    }
    all
}
