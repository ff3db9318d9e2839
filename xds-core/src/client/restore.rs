//! What is known from an earlier life of the program.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Client;
use super::accepted::Accepted;
use super::cache_changes::CacheChanges;
use super::watched_type::{StoredVariant, expiry_of};
use crate::extras::Extras;
use crate::name::ResourceName;
use crate::resource::{Resource, VariantId};

/// A resource as it was accepted in an earlier life of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Its type, name and constraints.
    pub id: VariantId,
    /// The encoded message.
    pub payload: Bytes,
    /// What its server called it.
    pub version: Arc<str>,
    /// How long it may be used from now on (S38).
    pub ttl: Option<Duration>,
    /// The other names it was told to go by (D24).
    pub aliases: Vec<ResourceName>,
}

impl Client {
    /// Takes what was known in an earlier life, before anything is watched. Watchers see it at
    /// once, as [restored](Accepted::is_restored) until a server brings it or says that it is gone.
    /// What cannot be used any more is left out; how many were taken.
    pub fn restore(&mut self, now: Duration, restored: Vec<Restored>) -> usize {
        let mut taken = 0;
        for Restored { id, payload, version, ttl, aliases } in restored {
            let of_type = self.type_number(&id.type_url);
            let watched = &mut self.types[of_type];
            let decoded = watched.decode.as_ref().map(|decode| decode(&id.name, &payload)).transpose();
            let Ok(decoded) = decoded else { continue };
            let extras = Extras::received(ttl, aliases.clone(), false, &[]);
            let resource = Resource::received(id.type_url.clone(), id.name.clone(), payload, extras);
            let mut changes = CacheChanges::default();
            let key = (id.name.clone(), id.constraints.clone());
            changes.put.insert(key, resource.with_constraints(id.constraints.clone()));
            let refused = changes.commit(&self.cache, &id.type_url, |_| false);
            let snapshot = self.cache.snapshot();
            let variants = snapshot.get(&id.type_url, &id.name);
            let variant = variants.and_then(|variants| variants.get(&id.constraints));
            let Some(variant) = variant.filter(|_| refused.is_empty()).cloned() else { continue };
            // What it replaced goes here, too (T34).
            if let Some(named) = watched.names.get_mut(&id.name) {
                named.variants.retain(|stored| {
                    variants.is_some_and(|all| all.get(stored.accepted.constraints()).is_some())
                });
            }
            let accepted = Arc::new(Accepted {
                type_url: id.type_url.clone(),
                server: Arc::default(),
                variant,
                decoded,
                version: Arc::clone(&version),
                generation: 0,
                is_restored: true,
                at: now,
            });
            let expires = expiry_of(ttl, now);
            accepted.variant.extend(expires);
            if let Some(at) = expires {
                self.expiries.insert((at, of_type, id.name.clone(), id.constraints.clone()));
            }
            watched.store(
                &id.name,
                StoredVariant { accepted, version, server: None, last_response: 0, expires },
            );
            for alias in aliases {
                watched.add_alias(alias, &id.name);
            }
            taken += 1;
        }
        taken
    }
}
