//! The NACKs of all clients as few lines of the log.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, sleep_until};
use tracing::warn;
use xds_core::{ClientName, Revision, TypeUrl, Variant, shortened};

use crate::line_times::{LineTimes, LogAction};

/// G15: Sums up NACKs of one type with the same error message, of whatever clients. The first one
/// is logged at once, with its client; further ones as [`LineTimes`] says, with the number of
/// clients. A rejection of newer content is news.
///
/// Messages can contain words of one client, such as its address. So only the first
/// [`DETAILS_LIMIT`] messages about the same resources get lines of their own; all others about
/// them are summed up together. The memory is bounded: [`LIMIT`] sums, then one for all others, and
/// [`CLIENTS_LIMIT`] clients in all sums.
#[derive(Debug, Default)]
pub(crate) struct NackLog {
    sums: Mutex<Sums>,
    hasher: RandomState,
}

/// One NACK.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nack<'a> {
    pub(crate) client: &'a ClientName,
    /// The identity of its connection.
    pub(crate) identity: &'a str,
    pub(crate) type_url: &'a TypeUrl,
    /// What the client rejected, as far as it is still the newest content.
    pub(crate) variants: &'a [Arc<Variant>],
    pub(crate) detail: &'a str,
    pub(crate) found: Found,
}

/// What the server knows of the resources that a client rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Found {
    /// They were in one response.
    InResponse,
    /// The response was sent again in parts (S6c): this resource was rejected alone.
    Alone,
    /// The same, but too many were rejected: some of these are bad.
    Together,
}

#[derive(Debug, Default)]
struct Sums {
    by_key: BTreeMap<Key, Sum>,
    /// The clients of all sums.
    clients: usize,
}

/// Which NACKs are summed up together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Detail(TypeUrl, String),
    /// Further messages about these resources: the hash of their names and constraints.
    Resources(TypeUrl, u64),
    /// What parts of a response have shown of these resources.
    Found(TypeUrl, Found, u64),
    /// NACKs beyond the limit.
    Others,
}

#[derive(Debug)]
struct Sum {
    times: LineTimes,
    /// The hash of the resources of the first NACK.
    resources: u64,
    /// The newest revision of rejected content.
    newest: Revision,
    /// Hashes of the clients that rejected it.
    clients: BTreeSet<u64>,
    line: Line,
}

/// The fields of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    client: ClientName,
    identity: String,
    type_url: TypeUrl,
    resources: String,
    /// How many variants it is about.
    variants: usize,
    detail: String,
    found: Found,
    /// The numbers of clients, and of NACKs since the line before; `None` in the first line.
    sums: Option<(usize, u64)>,
}

impl NackLog {
    /// Notes a NACK, and logs it now or later.
    pub(crate) fn on(self: &Arc<Self>, nack: Nack<'_>) {
        let (key, action) = self.note(nack, Instant::now());
        match action {
            LogAction::Nothing => {}
            LogAction::Log => Line::of(nack).log(),
            LogAction::LogAt(at) => {
                let nacks = Arc::clone(self);
                tokio::spawn(async move {
                    sleep_until(at).await;
                    if let Some(line) = nacks.take(&key, Instant::now()) {
                        line.log();
                    }
                });
            }
        }
    }

    fn note(&self, nack: Nack<'_>, now: Instant) -> (Key, LogAction) {
        let mut sums = self.sums();
        let key = sums.key(nack, &self.hasher, now);
        let newest = nack.variants.iter().map(|variant| variant.changed_at()).max();
        let newest = newest.unwrap_or(Revision::ZERO);
        let Sums { by_key, clients } = &mut *sums;
        let (sum, action) = match by_key.entry(key.clone()) {
            Entry::Occupied(entry) => {
                let sum = entry.into_mut();
                let is_news = newest > sum.newest;
                // Later clients get what is bad in a response of its own (S6d).
                if nack.variants.len() == 1 && sum.line.variants > 1 {
                    (sum.line.variants, sum.line.resources) = (1, resources(nack.variants, nack.found));
                }
                if is_news || sum.times.is_over(now) {
                    (sum.newest, sum.line) = (newest, Line::of(nack));
                    *clients -= std::mem::take(&mut sum.clients).len();
                }
                let action = if is_news { sum.times.on_news(now) } else { sum.times.on_event(now) };
                (sum, action)
            }
            Entry::Vacant(entry) => {
                let (times, action) = LineTimes::start(now);
                let resources = resources_hash(nack.variants, &self.hasher);
                let line = Line::of(nack);
                (entry.insert(Sum { times, resources, newest, clients: BTreeSet::new(), line }), action)
            }
        };
        let client = self.hasher.hash_one((nack.client, nack.identity));
        if *clients < CLIENTS_LIMIT && sum.clients.insert(client) {
            *clients += 1;
        }
        (key, action)
    }

    /// The line for the NACKs since the last line; `None` if no line is due.
    fn take(&self, key: &Key, now: Instant) -> Option<Line> {
        let mut sums = self.sums();
        let sum = sums.by_key.get_mut(key)?;
        let nacks = sum.times.take(now)?;
        Some(Line { sums: Some((sum.clients.len(), nacks)), ..sum.line.clone() })
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    /// The key of a NACK. It makes room for a new one if it can.
    fn key(&mut self, nack: Nack<'_>, hasher: &RandomState, now: Instant) -> Key {
        let resources = resources_hash(nack.variants, hasher);
        let key = match nack.found {
            Found::InResponse => Key::Detail(nack.type_url.clone(), nack.detail.to_owned()),
            found => Key::Found(nack.type_url.clone(), found, resources),
        };
        if self.by_key.contains_key(&key) {
            return key;
        }
        let is_same = |(key, sum): &(&Key, &Sum)| {
            matches!(key, Key::Detail(type_url, _) if type_url == nack.type_url) && sum.resources == resources
        };
        let messages = self.by_key.iter().filter(is_same).count();
        let key = match key {
            Key::Detail(type_url, _) if messages >= DETAILS_LIMIT => Key::Resources(type_url, resources),
            key => key,
        };
        if self.by_key.len() < LIMIT || self.by_key.contains_key(&key) {
            return key;
        }
        self.by_key.retain(|_, sum| !sum.times.is_over(now));
        self.clients = self.by_key.values().map(|sum| sum.clients.len()).sum();
        if self.by_key.len() < LIMIT { key } else { Key::Others }
    }
}

impl Line {
    fn of(nack: Nack<'_>) -> Self {
        Self {
            client: nack.client.clone(),
            identity: nack.identity.to_owned(),
            type_url: nack.type_url.clone(),
            resources: resources(nack.variants, nack.found),
            variants: nack.variants.len(),
            detail: nack.detail.to_owned(),
            found: nack.found,
            sums: None,
        }
    }

    fn log(&self) {
        let (node, cluster, identity) = (&*self.client.id, &*self.client.cluster, &*self.identity);
        let (r#type, detail) = (self.type_url.message_name(), &*self.detail);
        // Empty if other content has become the newest in the meantime.
        let resources = Some(&*self.resources).filter(|resources| !resources.is_empty());
        match (self.sums, self.found) {
            (None, Found::Alone) => warn!(
                node,
                cluster,
                identity,
                r#type,
                resources,
                detail,
                "NACK: of the rejected response, the client rejects this resource; it uses the others"
            ),
            (None, Found::Together) => warn!(
                node,
                cluster,
                identity,
                r#type,
                resources,
                detail,
                "NACK: the client rejects many resources; these stay rejected together until one that it \
                 rejects is corrected"
            ),
            (None, Found::InResponse) => warn!(
                node,
                cluster, identity, r#type, resources, detail, "NACK: a client rejected configuration"
            ),
            (Some((clients, nacks)), _) => warn!(
                clients,
                more_nacks = nacks,
                node,
                cluster,
                identity,
                r#type,
                resources,
                detail,
                "NACK: more rejections like an earlier one; node is one of the clients"
            ),
        }
    }
}

/// A hash of the names and constraints, in any order.
fn resources_hash(variants: &[Arc<Variant>], hasher: &RandomState) -> u64 {
    let hash = |variant: &Arc<Variant>| hasher.hash_one((variant.name(), variant.constraints()));
    variants.iter().map(hash).fold(0, u64::wrapping_add)
}

/// The variants with their versions, the newest content first: it is the most likely cause.
fn resources(variants: &[Arc<Variant>], found: Found) -> String {
    let mut newest: Vec<_> = variants.iter().collect();
    newest.sort_by_key(|variant| (std::cmp::Reverse(variant.changed_at()), variant.name()));
    let mut text = String::new();
    for (number, variant) in newest.iter().take(SHOWN_LIMIT).enumerate() {
        let separator = if number == 0 { "" } else { ", " };
        let name = shortened(variant.name().as_str(), NAME_LIMIT_BYTES);
        _ = write!(text, "{separator}{name}");
        if !variant.constraints().is_unconstrained() {
            let constraints = variant.constraints().to_string();
            _ = write!(text, " [{}]", shortened(&constraints, NAME_LIMIT_BYTES));
        }
        _ = write!(text, " version {}", variant.version());
    }
    let more = newest.len().saturating_sub(SHOWN_LIMIT);
    if more > 0 {
        let place = if found == Found::InResponse { " in the same response" } else { "" };
        _ = write!(text, " and {more} more{place}");
    }
    text
}

/// How many sums are kept.
const LIMIT: usize = 256;
/// How many messages about the same resources are kept apart.
const DETAILS_LIMIT: usize = 4;
/// How many clients are counted in all sums; each is 8 bytes.
const CLIENTS_LIMIT: usize = 100_000;
/// How many variants a line names, and the limit for each name and its constraints.
const SHOWN_LIMIT: usize = 3;
const NAME_LIMIT_BYTES: usize = 200;

#[cfg(test)]
mod tests;
