//! Responses that a few clients try before the others see them, and before the client of the
//! upstream applies them (`--ack canary`).
//!
//! The contents of a response become a [`Candidate`], so that only the clients that try it see
//! them. Then the response is applied like any other: as it came, or with its contents as invalid
//! ones (C2), so that the upstream is sent a NACK that names them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::route::Route;
use super::{Notice, Proxy};
use crate::cache::{Audience, Candidate, ClientOutcome, Delivery, Outcome, Snapshot};
use crate::client::{Client, Effects};
use crate::name::Version;
use crate::resource::VariantId;

/// The trial of one response.
#[derive(Debug)]
pub(super) struct ResponseTrial {
    /// Whose response it is.
    route: Route,
    /// Dropped when the response was applied: then it is stable, or taken back.
    candidate: Candidate,
    contents: Vec<(VariantId, Version)>,
}

impl Proxy {
    /// Starts a trial of a response, if clients subscribe to its contents. To be called for each
    /// response before its client takes it. The response and later responses of this server then
    /// wait until the clients have [answered](Delivery::decided) or [the time is
    /// over](super::ProxyConfig::canary_timeout); requests continue. After that comes
    /// [`conclude`](Self::conclude), or [`abandon`](Self::abandon) if the stream ended meanwhile.
    ///
    /// One response is tried at a time, of delta upstreams with TP2.
    pub fn try_first(&mut self, route: &Route, server: usize, frame: &Bytes) -> Option<Delivery> {
        if self.config.canaries == 0 || !route.is_shared() || self.trial.is_some() {
            return None;
        }
        let client = &mut self.upstreams.get_mut(route)?.client;
        let mut preview = client.preview(server, frame)?;
        let candidate = preview.begin(&self.cache, &Audience::Clients(self.config.canaries))?;
        let delivery = candidate.delivery();
        // If no client tries it, it is applied at once.
        if delivery.is_empty() {
            return None;
        }
        self.counts.tried += 1;
        client.begin_wait(server);
        let contents = preview.variants;
        self.trial = Some(ResponseTrial { route: route.clone(), candidate, contents });
        Some(delivery)
    }

    /// What the clients see that try a response; `None` without a trial.
    #[must_use]
    pub fn tried(&self) -> Option<Arc<Snapshot>> {
        self.trial.as_ref().map(|trial| trial.candidate.snapshot())
    }

    /// Takes the answers of the clients that tried a response, and [gives](Self::change) the response
    /// to its client.
    pub fn conclude(
        &mut self,
        now: Duration,
        results: &[ClientOutcome],
        event: impl FnOnce(&mut Client) -> Effects,
    ) -> Option<Effects> {
        let trial = self.trial.take()?;
        let refusal = results.iter().find_map(|result| match &result.outcome {
            Outcome::Nacked { detail, .. } => Some((&result.client, detail)),
            _ => None,
        });
        let text = refusal.map(|(by, detail)| {
            self.counts.refused_by_clients += 1;
            self.notices.push(Notice::Refused {
                variants: trial.contents.iter().map(|(id, _)| id.clone()).collect(),
                client: by.clone(),
                detail: Arc::clone(detail),
            });
            Arc::<str>::from(format!("client {:?} of the proxy rejected it: {detail}", &*by.id))
        });
        let route = trial.route.clone();
        self.change(now, &route, |client| {
            if let Some(text) = text {
                let contents = trial.contents.iter().cloned();
                contents.for_each(|(id, version)| client.refuse(id, version, Arc::clone(&text)));
            }
            let effects = event(client);
            drop(trial);
            effects
        })
    }

    /// The stream of a response ended during its trial; the response is not applied.
    pub fn abandon(&mut self) {
        let Some(trial) = self.trial.take() else { return };
        if let Some(upstream) = self.upstreams.get_mut(&trial.route) {
            upstream.client.end_wait();
        }
    }
}
