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
/// full state, all that the client may mean count. The memory is bounded: 1,000 variants, and 100 client names for each,
/// but 10,000 in all. When there are too many variants, it forgets those that the fewest clients rejected, the oldest
/// first: so a client that rejects everything does not hide what others reject.
#[derive(Debug)]
pub struct Rejections {
    cache: Arc<Cache>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    of_variants: BTreeMap<(VariantId, Version), Counted>,
    /// The number of the last variant.
    last: u64,
    /// The client names of all variants.
    clients: usize,
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
    /// Grows from one variant to the next.
    number: u64,
    count: u64,
    clients: BTreeMap<ClientName, u64>,
    detail: String,
}

impl Rejections {
    /// The rejections of the streams of this cache. It counts nothing until it is an
    /// [observer](crate::ServerConfig::observer) of a server.
    #[must_use]
    pub fn new(cache: Arc<Cache>) -> Arc<Self> {
        Arc::new(Self { cache, counts: Mutex::default() })
    }

    /// The rejected variants whose rejected version is still the newest; the most often rejected
    /// first.
    #[must_use]
    pub fn list(&self) -> Vec<RejectedVariant> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        self.forget(&mut counts);
        let of_variants = &counts.of_variants;
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

    fn note(&self, client: &ClientName, type_url: &TypeUrl, variants: &[Arc<Variant>], detail: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for variant in variants {
            let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
            let key = (VariantId { type_url: type_url.clone(), name, constraints }, variant.version());
            if !counts.of_variants.contains_key(&key) && counts.of_variants.len() >= VARIANTS_LIMIT {
                self.make_room(&mut counts);
            }
            let Counts { of_variants, last, clients } = &mut *counts;
            let counted = of_variants.entry(key).or_insert_with(|| {
                *last += 1;
                Counted { number: *last, ..Counted::default() }
            });
            counted.count += 1;
            counted.detail = detail.chars().take(DETAIL_LIMIT).collect();
            let has_room = counted.clients.len() < CLIENTS_LIMIT && *clients < ALL_CLIENTS_LIMIT;
            if let Some(count) = counted.clients.get_mut(client) {
                *count += 1;
            } else if has_room {
                counted.clients.insert(client.clone(), 1);
                *clients += 1;
            }
        }
    }

    /// Forgets versions that are no longer in the cache, and then those that matter least.
    fn make_room(&self, counts: &mut Counts) {
        self.forget(counts);
        if let Some(excess) = counts.of_variants.len().checked_sub(VARIANTS_KEPT) {
            let mut ranks: Vec<_> = counts.of_variants.values().map(Counted::rank).collect();
            ranks.sort_unstable();
            counts.of_variants.retain(|_, counted| counted.rank() >= ranks[excess]);
            counts.count_clients();
        }
    }

    /// Removes versions that are no longer in the cache.
    fn forget(&self, counts: &mut Counts) {
        let snapshot = self.cache.snapshot();
        counts.of_variants.retain(|(id, version), _| {
            let variants = snapshot.get(&id.type_url, &id.name);
            let variant = variants.and_then(|variants| variants.get(&id.constraints));
            variant.is_some_and(|variant| variant.version() == *version)
        });
        counts.count_clients();
    }
}

impl Counts {
    fn count_clients(&mut self) {
        self.clients = self.of_variants.values().map(|counted| counted.clients.len()).sum();
    }
}

impl Counted {
    /// Those with the fewest clients come first, then the oldest.
    fn rank(&self) -> (usize, u64) {
        (self.clients.len(), self.number)
    }
}

impl Observer for Rejections {
    fn on_event(&self, client: &Client, event: Event<'_>) {
        if let Event::Rejected { type_url, variants, detail, .. } = event {
            self.note(&client.name(), type_url, variants, detail);
        }
    }
}

const VARIANTS_LIMIT: usize = 1000;
/// How many remain at most when there are too many: it takes long to find the ones that matter least.
const VARIANTS_KEPT: usize = 750;
const CLIENTS_LIMIT: usize = 100;
/// The client names of all variants; each has up to 1 KB.
const ALL_CLIENTS_LIMIT: usize = 10_000;
/// The limit for an error message, in characters.
const DETAIL_LIMIT: usize = 1000;

#[cfg(test)]
mod tests {
    use xds_core::{Resource, Transaction};

    use super::*;

    /// Regression: the first thousand rejected variants stayed, so one client could hide all others.
    #[test]
    fn who_rejects_everything_hides_nothing_and_client_names_have_a_limit() {
        let (cache, type_url) = (Cache::new(), TypeUrl::new("x/acme.Thing"));
        let mut transaction = Transaction::new();
        for number in 0..=VARIANTS_LIMIT {
            transaction.put(Resource::new(type_url.clone(), number.to_string(), "content").unwrap());
        }
        cache.commit(transaction).unwrap();
        let snapshot = cache.snapshot();
        let resources = snapshot.of_type(&type_url).unwrap();
        let mut variants: Vec<_> =
            resources.iter().flat_map(|(_, variants)| variants.iter()).cloned().collect();
        let rejections = Rejections::new(cache);
        let client = |id: usize| ClientName { id: id.to_string().into(), cluster: "".into() };
        let good = variants.pop().unwrap();
        for id in 0..20 {
            rejections.note(&client(id), &type_url, &variants, "everything");
        }
        assert_eq!(rejections.counts.lock().unwrap().clients, ALL_CLIENTS_LIMIT);
        rejections.note(&client(99), &type_url, &[Arc::clone(&good)], "bad");
        let listed = rejections.list();
        assert!(listed.len() <= VARIANTS_LIMIT);
        let found = listed.iter().find(|rejected| rejected.id.name == *good.name()).unwrap();
        assert_eq!((found.count, &*found.detail), (1, "bad"));
        let names: usize = listed.iter().map(|rejected| rejected.clients.len()).sum();
        assert_eq!(rejections.counts.lock().unwrap().clients, names);
    }
}
