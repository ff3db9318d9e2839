//! Resources from an earlier run of the program.

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

/// A resource that was accepted in an earlier run of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Its type, name and constraints.
    pub id: VariantId,
    /// The encoded message.
    pub payload: Bytes,
    /// The version that its server gave it.
    pub version: Arc<str>,
    /// How long it may still be used (S38).
    pub ttl: Option<Duration>,
    /// Its aliases (D24).
    pub aliases: Vec<ResourceName>,
}

impl Client {
    /// Stores resources from an earlier run. Call this before the first watch. Watchers see such a
    /// resource at once, marked as [restored](Accepted::is_restored), until a server sends it or
    /// reports its absence. Resources that can no longer be used are left out. Returns how many
    /// were stored.
    pub fn restore(&mut self, now: Duration, restored: Vec<Restored>) -> usize {
        let mut stored = 0;
        for Restored { id, payload, version, ttl, aliases } in restored {
            let of_type = self.store.type_number(&id.type_url);
            let watched = &mut self.store.types[of_type];
            let decoded = watched.decode.as_ref().map(|decode| decode(&id.name, &payload)).transpose();
            let Ok(decoded) = decoded else { continue };
            let extras = Extras::received(ttl, aliases.clone(), false, &[]);
            let resource = Resource::received(id.type_url.clone(), id.name.clone(), payload, extras);
            let mut changes = CacheChanges::default();
            let key = (id.name.clone(), id.constraints.clone());
            changes.put.insert(key, resource.with_constraints(id.constraints.clone()));
            let refused = changes.commit(&self.store.cache, &id.type_url, |_| false);
            let snapshot = self.store.cache.snapshot();
            let variants = snapshot.get(&id.type_url, &id.name);
            let variant = variants.and_then(|variants| variants.get(&id.constraints));
            let Some(variant) = variant.filter(|_| refused.is_empty()).cloned() else { continue };
            // T34: the commit may have removed older variants that overlap this one.
            if let Some(named) = watched.names.get_mut(&id.name) {
                let is_gone = |older: &mut StoredVariant| {
                    variants.is_none_or(|all| all.get(older.accepted.constraints()).is_none())
                };
                let gone = named.variants.extract_if(.., is_gone);
                self.store.not_restored.extend(gone.map(|older| older.accepted.id()));
            }
            if let Some(decoded) = decoded {
                variant.keep_decoded(decoded);
            }
            let accepted = Arc::new(Accepted {
                type_url: id.type_url.clone(),
                server: Arc::default(),
                variant,
                version: Arc::clone(&version),
                generation: 0,
                is_restored: true,
                at: now,
            });
            let expires = expiry_of(ttl, now);
            accepted.variant.extend(expires);
            if let Some(at) = expires {
                self.store.expiries.insert((at, of_type, id.name.clone(), id.constraints.clone()));
            }
            watched.store(
                &id.name,
                StoredVariant { accepted, version, server: None, last_response: 0, expires },
            );
            for alias in aliases {
                watched.add_alias(alias, &id.name);
            }
            stored += 1;
        }
        stored
    }
}
