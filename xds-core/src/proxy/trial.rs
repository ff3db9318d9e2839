//! Responses that a few clients try before the others see them, and before the client of the
//! upstream applies them (`--ack canary`).
//!
//! The contents of a response are put into the cache under a [trial](Cache::begin_trial), so that
//! only the clients that try it see them. Then the response is applied like any other: as it came,
//! or with its contents as invalid ones (C2), so that the upstream is sent a NACK that names them.
//! This is the one exception to T45 and C1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::route::Route;
use super::{Notice, Proxy};
use crate::cache::{ClientOutcome, Delivery, Outcome, Snapshot, Transaction};
use crate::client::Client;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::resource::{Resource, VariantId};
use crate::variants::Variants;

/// The trial of one response.
#[derive(Debug)]
pub(super) struct ResponseTrial {
    before: Arc<Snapshot>,
    type_url: TypeUrl,
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
        let preview = client.preview(server, frame)?;
        self.cache.begin_trial(self.config.canaries);
        let (before, type_url) = (self.cache.snapshot(), preview.type_url.clone());
        let contents = preview.commit(&self.cache);
        let delivery = self.cache.tried();
        self.counts.tried += u64::from(delivery.is_some());
        if delivery.is_some() {
            client.begin_wait(server);
        }
        // If no client tries it, it is applied at once. Contents that are not used go all the same.
        self.trial = Some(ResponseTrial { before, type_url, contents, is_concluded: delivery.is_none() });
        delivery
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
        self.take_back(client);
        if let Some(trial) = &mut self.trial {
            trial.contents.clear();
        }
    }

    /// The stream of a response ended during its trial; the response is not applied.
    pub fn abandon(&mut self, client: &mut Client) {
        client.end_wait();
        if self.trial.is_some() {
            self.take_back(client);
            self.end_trial();
        }
    }

    /// The response of a trial was applied. Contents that are not used go, because no client
    /// watches them any more.
    pub(super) fn end_concluded_trial(&mut self, client: &Client) {
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.is_concluded) else { return };
        trial.contents.retain(|(id, version)| client.stored_version(id) != Some(*version));
        self.take_back(client);
        self.end_trial();
    }

    fn end_trial(&mut self) {
        self.trial = None;
        self.cache.end_trial();
    }

    /// Removes the tried contents, and puts back those from before that the client still has.
    fn take_back(&mut self, client: &Client) {
        let Some(ResponseTrial { before, type_url, contents, .. }) = &self.trial else { return };
        self.taken_back.extend(contents.iter().map(|(id, _)| (type_url.clone(), id.name.clone())));
        let now = self.cache.snapshot();
        let is_there = |name: &ResourceName, constraints: &Constraints| {
            now.get(type_url, name).is_some_and(|there| there.get(constraints).is_some())
        };
        let is_unchanged = |(id, version): &&(VariantId, Version)| {
            let variants = now.get(&id.type_url, &id.name);
            let variant = variants.and_then(|variants| variants.get(&id.constraints));
            variant.is_some_and(|variant| variant.version() == *version)
        };
        let removed: BTreeSet<&VariantId> = contents.iter().filter(is_unchanged).map(|(id, _)| id).collect();
        let names: BTreeSet<&ResourceName> = contents.iter().map(|(id, _)| &id.name).collect();
        let were = names.iter().filter_map(|name| before.get(type_url, name)).flat_map(Variants::iter);
        let were = were.map(|variant| variant.resource(type_url)).filter(|were| {
            let is_gone = removed.contains(&were.id) || !is_there(&were.id.name, &were.id.constraints);
            is_gone && client.stored_version(&were.id) == Some(were.version)
        });
        let restored: BTreeMap<VariantId, Resource> = were.map(|were| (were.id.clone(), were)).collect();
        let mut transaction = Transaction::new();
        for id in removed.iter().filter(|id| !restored.contains_key(**id)) {
            transaction.remove((*id).clone());
        }
        restored.into_values().for_each(|resource| transaction.put(resource));
        if self.cache.commit(transaction).is_err() {
            // Variants from other responses are in the way, so they stay. A locator without a
            // variant waits for its response.
            let mut transaction = Transaction::new();
            removed.into_iter().for_each(|id| transaction.remove(id.clone()));
            self.cache
                .commit(transaction)
                .expect("a transaction that removes variants leaves no two that overlap");
        }
    }
}
