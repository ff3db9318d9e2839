//! What goes with a payload in its `Resource` wrapper: time to live, aliases, flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::access::NamePatterns;
use crate::hash::digest;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::wire::fields::put_field;

/// The fields of a `Resource` beside name, version and payload. Part of the content: they count for
/// the version.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) ttl: Option<Duration>,
    pub(crate) aliases: Vec<ResourceName>,
    pub(crate) do_not_cache: bool,
    /// An encoded `core.v3.Metadata`.
    pub(crate) metadata: Bytes,
    /// X14: the payload is a locator of where the resource stands.
    pub(crate) is_redirect: bool,
    /// All but the TTL, as it goes on the wire.
    fields: Bytes,
    /// How many bytes of that are aliases, which come first.
    aliases_len: usize,
    ttl_field: Bytes,
    /// Of what was received and has a TTL.
    pub(crate) lease: Option<Lease>,
}

/// Until when its server lets a received resource live (S38), which each heartbeat extends (S39).
/// All copies share it; it is not content, so two that differ in nothing else are the same.
#[derive(Debug, Default, Clone)]
pub(crate) struct Lease(Arc<AtomicU64>);

/// What is said of a TTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ttl {
    /// S38: nothing, to who does not honour it.
    Untold,
    /// As it stands in the resource, where it counts for the version.
    Whole,
    /// What is left of it now.
    Left(Duration),
}

impl Extras {
    /// What came with a payload; `None` when that is nothing.
    pub(crate) fn received(
        ttl: Option<Duration>,
        mut aliases: Vec<ResourceName>,
        do_not_cache: bool,
        metadata: &[u8],
    ) -> Option<Box<Self>> {
        if ttl.is_none() && aliases.is_empty() && !do_not_cache && metadata.is_empty() {
            return None;
        }
        aliases.sort_unstable();
        aliases.dedup();
        let metadata = Bytes::copy_from_slice(metadata);
        let lease = ttl.map(|_| Lease::default());
        let mut extras = Self { ttl, aliases, do_not_cache, metadata, lease, ..Self::default() };
        extras.encode();
        Some(Box::new(extras))
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.ttl_field.is_empty() && !self.is_redirect
    }

    /// To be called after each change.
    pub(crate) fn encode(&mut self) {
        let mut fields = BytesMut::new();
        put_aliases(&mut fields, self.aliases.iter());
        self.aliases_len = fields.len();
        if self.do_not_cache {
            put_field(&mut fields, CACHE_CONTROL, &DO_NOT_CACHE);
        }
        if !self.metadata.is_empty() {
            put_field(&mut fields, METADATA, &self.metadata);
        }
        self.fields = fields.freeze();
        self.ttl_field = self.ttl.map(ttl_field).unwrap_or_default();
    }

    /// The fields on the wire, with the aliases that a client may read; the version is of all of
    /// them.
    pub(crate) fn wire(&self, ttl: Ttl, scope: Option<&NamePatterns>) -> impl Iterator<Item = Bytes> {
        let is_hidden = |alias| scope.is_some_and(|scope| !scope.matches(alias));
        let fields = if self.aliases.iter().any(is_hidden) {
            let mut fields = BytesMut::new();
            put_aliases(&mut fields, self.aliases.iter().filter(|alias| !is_hidden(alias)));
            fields.put_slice(&self.fields[self.aliases_len..]);
            fields.freeze()
        } else {
            self.fields.clone()
        };
        let ttl = match ttl {
            Ttl::Untold => None,
            Ttl::Whole => Some(self.ttl_field.clone()),
            Ttl::Left(now) => self.left(now).map(ttl_field),
        };
        [Some(fields), ttl].into_iter().flatten()
    }

    /// What is left of its TTL: the whole of it, unless its server is who extends it. What ended is
    /// told as good as ended: no TTL at all would be for ever.
    pub(crate) fn left(&self, now: Duration) -> Option<Duration> {
        let end = self.lease.as_ref().and_then(Lease::end);
        let left = end.map(|end| end.saturating_sub(now).max(SHORTEST_LEFT));
        left.or(self.ttl)
    }

    /// The type of a payload that comes with this, under the type of its resource.
    pub(crate) fn payload_type<'a>(extras: Option<&Self>, type_url: &'a TypeUrl) -> &'a str {
        if extras.is_some_and(|extras| extras.is_redirect) { RESOURCE_LOCATOR } else { type_url.as_str() }
    }

    /// The version of a payload with all this (D22).
    pub(crate) fn version(&self, of_payload: Version) -> Version {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&of_payload.0.to_be_bytes());
        let redirect = self.is_redirect.then_some(RESOURCE_LOCATOR.as_bytes());
        for part in self.wire(Ttl::Whole, None).chain(redirect.map(Bytes::from_static)) {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(&part);
        }
        Version(digest(&hasher))
    }
}

impl Lease {
    /// By the clock of its cache; `None` while nobody said so.
    fn end(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|millis| *millis > 0).map(Duration::from_millis)
    }

    /// `None` is for ever.
    pub(crate) fn extend(&self, until: Option<Duration>) {
        let millis = until.map_or(0, |until| until.as_millis().try_into().unwrap_or(u64::MAX));
        self.0.store(millis, Ordering::Relaxed);
    }
}

impl PartialEq for Lease {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lease {}

fn put_aliases<'a>(fields: &mut BytesMut, aliases: impl Iterator<Item = &'a ResourceName>) {
    for alias in aliases {
        put_field(fields, ALIASES, alias.as_str().as_bytes());
    }
}

fn ttl_field(ttl: Duration) -> Bytes {
    let seconds = ttl.as_secs().try_into().unwrap_or(i64::MAX);
    let nanos = ttl.subsec_nanos().try_into().expect("there are less than 2^30 nanoseconds");
    let mut field = BytesMut::new();
    put_field(&mut field, TTL, &prost_types::Duration { seconds, nanos }.encode_to_vec());
    field.freeze()
}

const RESOURCE_LOCATOR: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";
/// What a TTL is told as that ended.
const SHORTEST_LEFT: Duration = Duration::from_millis(1);
const ALIASES: u32 = 4;
const TTL: u32 = 6;
const CACHE_CONTROL: u32 = 7;
const METADATA: u32 = 9;
/// Field 1 is true.
const DO_NOT_CACHE: [u8; 2] = [1 << 3, 1];
