//! Which variants clients reject, by version and client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use xds_core::{Cache, ClientName, TypeUrl, Variant, VariantId, Version};

use crate::observe::{Event, Observer};
use crate::skim::Client;

/// Counts the rejections of each variant: an [`Observer`]. It forgets a variant when the variant
/// has another version or is removed.
///
/// A variant counts when it was rejected in a response of its own (S6f). Where that is not known, as for a
/// full state, all that the client may mean count. The memory is bounded: 1,000 variants, and 100 client names for each.
#[derive(Debug)]
pub struct Rejections {
    cache: Arc<Cache>,
    of_variants: Mutex<BTreeMap<(VariantId, Version), Counted>>,
}

/// A variant that clients rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedVariant {
    /// The variant.
    pub id: VariantId,
    /// The version that was rejected.
    pub version: Version,
    /// How often it was rejected.
    pub count: u64,
    /// How often by each of the first 100 clients.
    pub clients: BTreeMap<ClientName, u64>,
    /// The error message of the last rejection.
    pub detail: String,
}

#[derive(Debug, Default)]
struct Counted {
    count: u64,
    clients: BTreeMap<ClientName, u64>,
    detail: String,
}

impl Rejections {
    /// The rejections of the streams of this cache. It counts nothing until it is an
    /// [observer](crate::ServerConfig::observer) of a server.
    #[must_use]
    pub fn new(cache: Arc<Cache>) -> Arc<Self> {
        Arc::new(Self { cache, of_variants: Mutex::default() })
    }

    /// The rejected variants whose rejected version is still the newest; the most often rejected
    /// first.
    #[must_use]
    pub fn list(&self) -> Vec<RejectedVariant> {
        let mut of_variants = self.of_variants.lock().unwrap_or_else(PoisonError::into_inner);
        self.forget(&mut of_variants);
        let listed = of_variants.iter().map(|((id, version), counted)| RejectedVariant {
            id: id.clone(),
            version: *version,
            count: counted.count,
            clients: counted.clients.clone(),
            detail: counted.detail.clone(),
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by_key(|rejected| std::cmp::Reverse(rejected.count));
        listed
    }

    fn note(&self, client: &Client, type_url: &TypeUrl, variants: &[Arc<Variant>], detail: &str) {
        let mut of_variants = self.of_variants.lock().unwrap_or_else(PoisonError::into_inner);
        for variant in variants {
            let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
            let key = (VariantId { type_url: type_url.clone(), name, constraints }, variant.version());
            if !of_variants.contains_key(&key) && of_variants.len() >= VARIANTS_LIMIT {
                self.forget(&mut of_variants);
                if of_variants.len() >= VARIANTS_LIMIT {
                    return;
                }
            }
            let counted = of_variants.entry(key).or_default();
            counted.count += 1;
            counted.detail = detail.chars().take(DETAIL_LIMIT).collect();
            let name = client.name();
            if counted.clients.len() < CLIENTS_LIMIT || counted.clients.contains_key(&name) {
                *counted.clients.entry(name).or_default() += 1;
            }
        }
    }

    /// Removes versions that are no longer in the cache.
    fn forget(&self, of_variants: &mut BTreeMap<(VariantId, Version), Counted>) {
        let snapshot = self.cache.snapshot();
        of_variants.retain(|(id, version), _| {
            let variants = snapshot.get(&id.type_url, &id.name);
            let variant = variants.and_then(|variants| variants.get(&id.constraints));
            variant.is_some_and(|variant| variant.version() == *version)
        });
    }
}

impl Observer for Rejections {
    fn on_event(&self, client: &Client, event: Event<'_>) {
        if let Event::Rejected { type_url, variants, detail, .. } = event {
            self.note(client, type_url, variants, detail);
        }
    }
}

const VARIANTS_LIMIT: usize = 1000;
const CLIENTS_LIMIT: usize = 100;
/// The limit for an error message, in characters.
const DETAIL_LIMIT: usize = 1000;
