//! Responses that a few clients try before the others see them, and before the client of the
//! upstream applies them (`--ack canary`).
//!
//! The contents of a response become a [`Candidate`], so that only the clients that try it see
//! them. Then the response is applied like any other: as it came, or with its contents as invalid
//! ones (C2), so that the upstream is sent a NACK that names them.

use std::sync::Arc;

use bytes::Bytes;

use super::route::Route;
use super::{Notice, Proxy};
use crate::cache::{Audience, Candidate, ClientOutcome, Delivery, Outcome, Snapshot};
use crate::client::Client;
use crate::name::Version;
use crate::resource::VariantId;

/// The trial of one response.
#[derive(Debug)]
pub(super) struct ResponseTrial {
    /// Dropped when the response was applied: then it is stable, or taken back.
    candidate: Candidate,
    contents: Vec<(VariantId, Version)>,
    /// The clients answered, or their time is over; the response is being applied.
    is_concluded: bool,
}

impl Proxy {
    /// Starts a trial of a response, if clients subscribe to its contents. To be called for each
    /// response before its client takes it. The response and later responses of this server then
    /// wait until the clients have [answered](Delivery::decided) or [the time is
    /// over](super::ProxyConfig::canary_timeout); requests continue. After that comes
    /// [`conclude`](Self::conclude), or [`abandon`](Self::abandon) if the stream ended meanwhile.
    ///
    /// One response is tried at a time, of delta upstreams with TP2.
    pub fn try_first(
        &mut self,
        route: &Route,
        client: &mut Client,
        server: usize,
        frame: &Bytes,
    ) -> Option<Delivery> {
        if self.config.canaries == 0 || *route != Route::Shared || self.trial.is_some() {
            return None;
        }
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
        self.trial = Some(ResponseTrial { candidate, contents, is_concluded: false });
        Some(delivery)
    }

    /// What the clients see that try a response; `None` without a trial.
    #[must_use]
    pub fn tried(&self) -> Option<Arc<Snapshot>> {
        self.trial.as_ref().map(|trial| trial.candidate.snapshot())
    }

    /// Takes the answers of the clients that tried a response. To be called right before its client
    /// takes the response.
    pub fn conclude(&mut self, client: &mut Client, results: &[ClientOutcome]) {
        let Some(trial) = &mut self.trial else { return };
        trial.is_concluded = true;
        let refusal = results.iter().find_map(|result| match &result.outcome {
            Outcome::Nacked { detail, .. } => Some((&result.client, detail)),
            _ => None,
        });
        let Some((by, detail)) = refusal else { return };
        let text: Arc<str> = format!("client {:?} of the proxy rejected it: {detail}", &*by.id).into();
        for (id, version) in &trial.contents {
            client.refuse(id.clone(), *version, Arc::clone(&text));
        }
        self.counts.refused_by_clients += 1;
        self.notices.push(Notice::Refused {
            variants: trial.contents.iter().map(|(id, _)| id.clone()).collect(),
            client: by.clone(),
            detail: Arc::clone(detail),
        });
    }

    /// The stream of a response ended during its trial; the response is not applied.
    pub fn abandon(&mut self, client: &mut Client) {
        client.end_wait();
        self.trial = None;
    }

    /// The response of a trial was applied.
    pub(super) fn end_concluded_trial(&mut self) {
        self.trial.take_if(|trial| trial.is_concluded);
    }
}
