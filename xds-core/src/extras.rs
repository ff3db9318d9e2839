//! The fields besides the payload in a `Resource` wrapper: time to live, aliases, flags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::access::NamePatterns;
use crate::hash::digest;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::wire::fields::put_field;

/// The fields of a `Resource` wrapper besides name, version and payload. They are content, so a
/// change of them changes the version.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) ttl: Option<Duration>,
    pub(crate) aliases: Vec<ResourceName>,
    pub(crate) do_not_cache: bool,
    /// An encoded `core.v3.Metadata`.
    pub(crate) metadata: Bytes,
    /// X14: the payload is a locator that says where the resource is.
    pub(crate) is_redirect: bool,
    /// All fields except the TTL, encoded.
    fields: Bytes,
    /// The number of bytes of aliases in `fields`; they come first.
    aliases_len: usize,
    ttl_field: Bytes,
    /// Only for a received resource with a TTL.
    pub(crate) lease: Option<Lease>,
}

/// The end of the TTL of a received resource (S38), which each heartbeat of its server extends
/// (S39). All copies of the resource share it. It is not content, so all leases compare equal.
#[derive(Debug, Default, Clone)]
pub(crate) struct Lease(Arc<AtomicU64>);

/// Which TTL to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ttl {
    /// None: the client does not honour TTLs (S38).
    Omitted,
    /// The whole TTL of the resource. It counts for the version.
    Full,
    /// The remaining time at this time.
    Remaining(Duration),
}

impl Extras {
    /// The fields received with a payload; `None` when all are empty.
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

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.ttl_field.is_empty() && !self.is_redirect
    }

    /// Encodes the fields again. Call this after each change.
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

    /// The encoded fields, with only the aliases that a client may read (`scope`). The version
    /// always covers all aliases.
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
            Ttl::Omitted => None,
            Ttl::Full => Some(self.ttl_field.clone()),
            Ttl::Remaining(now) => self.remaining_ttl(now).map(ttl_field),
        };
        [Some(fields), ttl].into_iter().flatten()
    }

    /// The remaining time of the TTL. That is the whole TTL, unless a server extends it with
    /// heartbeats. A TTL that has ended is sent as the shortest one: a resource without a TTL would
    /// live for ever.
    pub(crate) fn remaining_ttl(&self, now: Duration) -> Option<Duration> {
        let end = self.lease.as_ref().and_then(Lease::end);
        let remaining = end.map(|end| end.saturating_sub(now).max(SHORTEST_REMAINING));
        remaining.or(self.ttl)
    }

    /// The type of the payload of a resource of type `type_url` with these fields.
    pub(crate) fn payload_type<'a>(extras: Option<&Self>, type_url: &'a TypeUrl) -> &'a str {
        if extras.is_some_and(|extras| extras.is_redirect) { RESOURCE_LOCATOR } else { type_url.as_str() }
    }

    /// The version of a payload with these fields (D22).
    pub(crate) fn version(&self, of_payload: Version) -> Version {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&of_payload.0.to_be_bytes());
        let redirect = self.is_redirect.then_some(RESOURCE_LOCATOR.as_bytes());
        for part in self.wire(Ttl::Full, None).chain(redirect.map(Bytes::from_static)) {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(&part);
        }
        Version(digest(&hasher))
    }
}

impl Lease {
    /// The end, by the clock of its cache; `None` if the resource lives for ever or no end was set.
    fn end(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|millis| *millis > 0).map(Duration::from_millis)
    }

    /// Sets the end; `None` means for ever.
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
    let nanos = ttl.subsec_nanos().try_into().expect("the nanoseconds of a second fit into an i32");
    let mut field = BytesMut::new();
    put_field(&mut field, TTL, &prost_types::Duration { seconds, nanos }.encode_to_vec());
    field.freeze()
}

const RESOURCE_LOCATOR: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";
/// The TTL that is sent for one that has ended.
const SHORTEST_REMAINING: Duration = Duration::from_millis(1);
const ALIASES: u32 = 4;
const TTL: u32 = 6;
const CACHE_CONTROL: u32 = 7;
const METADATA: u32 = 9;
/// Field 1 is true.
const DO_NOT_CACHE: [u8; 2] = [1 << 3, 1];
