//! Previews: the contents of a response that some clients of a proxy try before it is applied.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::Client;
use super::apply::status_of_refused;
use super::cache_changes::{CacheChanges, RemovalReason};
use super::received::{ReceivedPayload, ReceivedResource, ReceivedResponse, Removal};
use super::watched_type::WatchedType;
use crate::cache::{Audience, Cache, Candidate};
use crate::extras::Extras;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::protocol::Protocol;
use crate::resource::{Resource, VariantId};
use crate::subscription::{Locator, is_set};

/// The new contents of a response, before it is applied.
#[derive(Debug)]
pub(crate) struct Preview {
    pub(crate) type_url: TypeUrl,
    /// The variants that are new or changed, with the version of their content.
    pub(crate) variants: Vec<(VariantId, Version)>,
    changes: CacheChanges,
}

/// A content of a variant that a client of a proxy NACKed, with the message of the NACK.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) version: Version,
    pub(super) detail: Arc<str>,
}

impl Client {
    /// A response of this server waits from now on, until it is
    /// [applied](Self::on_response) or [dropped](Self::end_wait).
    pub(crate) fn begin_wait(&mut self, server: usize) {
        self.late = Some((server, BTreeSet::new()));
    }

    /// The response that waited is dropped.
    pub(crate) fn end_wait(&mut self) {
        self.late = None;
    }

    /// The new contents of a delta response, as far as they say which clients they are for; `None`
    /// if there are none.
    pub(crate) fn preview(&self, server: usize, frame: &Bytes) -> Option<Preview> {
        if self.servers[server].config.protocol != Protocol::Delta {
            return None;
        }
        // An unreadable response is reported when it is applied.
        let response = ReceivedResponse::read(frame, Protocol::Delta).ok()?;
        let watched = &self.store.types[self.store.number_of(response.type_url)?];
        let (mut changes, mut variants, mut seen) = (CacheChanges::default(), Vec::new(), BTreeSet::new());
        for received in &response.resources {
            let key = (ResourceName::new(&*received.name), received.constraints.clone());
            let Some(resource) = self.previewed(watched, received, &key.0) else { continue };
            let id = resource.id.clone();
            let is_refused =
                self.store.refused.get(&id).is_some_and(|refusal| refusal.version == resource.version);
            // T45: what this response replaces may be the variant of clients of a wildcard that get a
            // refused one instead. That is no absence for them.
            for entry in watched.collections.iter().map(|at| watched.entry(*at)).filter(|_| is_refused) {
                if key.1.matches(&entry.parameters) {
                    let locator = Locator { name: key.0.clone(), parameters: entry.parameters.clone() };
                    changes.statuses.push((locator, Some(status_of_refused(&key.0))));
                }
            }
            if !is_refused && seen.insert(key.clone()) {
                variants.push((id, resource.version));
                changes.put.insert(key, resource);
            }
        }
        if variants.is_empty() {
            return None;
        }
        // T31: the removals of the variants that these replace are part of the same step. So are the
        // removals of names (S33): without them, a client may get both the old and the new user of an
        // address.
        for Removal { name, constraints } in response.removed {
            let keys = match constraints {
                Some(constraints) => vec![(name, constraints)],
                // T30b: it is for each variant of the name.
                None => watched.keys_of(&name),
            };
            changes.removed.extend(keys.into_iter().map(|key| (key, RemovalReason::Explicit)));
        }
        Some(Preview { type_url: watched.type_url.clone(), variants, changes })
    }

    /// A resource of a response, if it is new and clients may try it.
    fn previewed(
        &self,
        watched: &WatchedType,
        received: &ReceivedResource<'_>,
        name: &ResourceName,
    ) -> Option<Resource> {
        let (payload, is_redirect) = match received.payload {
            ReceivedPayload::Message(payload) => (payload, false),
            ReceivedPayload::Redirect(payload) => (payload, true),
            ReceivedPayload::Absent => return None,
        };
        // T43c: a resource that is valid for one locator only is not for other clients to try.
        if received.is_plain || received.do_not_cache || is_set(name.as_str()) {
            return None;
        }
        let mut watching = Vec::new();
        watched.watching(name.as_str(), &mut watching);
        if !watching.iter().any(|at| received.constraints.matches(&watched.entry(*at).parameters)) {
            return None;
        }
        let stored = watched
            .names
            .get(name)
            .and_then(|named| Some(&named.variants[named.position(&received.constraints).ok()?]));
        if stored.is_some_and(|stored| *stored.accepted.payload() == payload) {
            return None;
        }
        let own_aliases = watched.own_aliases(received);
        let mut extras = Extras::received(received.ttl, own_aliases, false, received.metadata);
        if is_redirect {
            extras.get_or_insert_default().is_redirect = true;
        }
        let payload = Bytes::copy_from_slice(payload);
        let resource = Resource::received(watched.type_url.clone(), name.clone(), payload, extras);
        Some(resource.with_constraints(received.constraints.clone()))
    }

    /// Rejects this content of a variant from now on (C2), with this message.
    pub(crate) fn refuse(&mut self, id: VariantId, version: Version, detail: Arc<str>) {
        self.store.refused.insert(id, Refusal { version, detail });
    }
}

impl Preview {
    /// Lets some clients of the cache try it, without variants that the cache refuses.
    pub(crate) fn begin(&mut self, cache: &Arc<Cache>, audience: &Audience) -> Option<Candidate> {
        let mut candidate = None;
        let begin = |transaction| {
            candidate = Some(cache.begin(transaction, audience)?);
            Ok(())
        };
        self.changes.commit_with(begin, cache, &self.type_url, |_| false);
        candidate
    }
}
