//! Encodes the resources of a response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::terms::Terms;
use crate::cache::Update;
use crate::constraint::Constraints;
use crate::extras::Ttl;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::protocol::Protocol;
use crate::variants::{KeyedBy, Variant};
use crate::wire::fields::field_len;
use crate::wire::{Body, BodyWriter, Failure, ResourceKey};

/// How resources of one type are sent on one stream: under which keys, and in which form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoding<'a> {
    /// The streams of a class send the same TTLs, and their clients may read the same names.
    pub(super) terms: &'a Terms,
    pub(super) keyed_by: KeyedBy,
    /// Names that the client spells differently (X5).
    pub(super) spelled: &'a BTreeMap<ResourceName, ResourceName>,
}

impl<'a> Encoding<'a> {
    /// A name as the client spells it.
    fn spell<'n>(&self, name: &'n ResourceName) -> &'n ResourceName
    where
        'a: 'n,
    {
        if self.spelled.is_empty() { name } else { self.spelled.get(name).unwrap_or(name) }
    }

    /// Whether a variant is sent by name or with constraints. A variant that is bound to one
    /// locator is sent by name, as it was received (T43c).
    fn keyed_by(&self, variant: &Variant) -> KeyedBy {
        if variant.constraints().is_exact() { KeyedBy::Name } else { self.keyed_by }
    }

    fn sent_ttl(&self, content: ResourceContent) -> Ttl {
        match content {
            _ if !self.terms.ttl => Ttl::Omitted,
            ResourceContent::Payload => Ttl::Full,
            ResourceContent::Heartbeat(now) => Ttl::Remaining(now),
        }
    }

    /// Whether the bytes are the same for all streams of a class.
    pub(super) fn is_shared(&self) -> bool {
        self.spelled.is_empty()
    }

    /// The keys of an update, changes and removals alike, in order and each once.
    pub(super) fn keys(self, update: &Update) -> Arc<[ResourceKey]> {
        let keys = || {
            let changed = update.changed.iter().map(|variant| variant.key(self.keyed_by));
            let mut keys: Vec<_> = changed.chain(self.immediate_removals(update)).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.into()
        };
        Arc::clone(update.made.keys.get_or_init(keys))
    }

    /// The removals of an update that are not withheld (S33). D29: they are also sent for types
    /// whose removals clients ignore.
    pub(super) fn immediate_removals(self, update: &Update) -> impl Iterator<Item = ResourceKey> {
        let removed = if self.terms.withholds_removals() { &[] } else { update.removed.as_slice() };
        let removed = removed.iter().map(|removed| &removed.variant);
        let removed = removed.chain(&update.replaced).map(move |variant| variant.key(self.keyed_by));
        let unmatched = update.unmatched.iter();
        let unmatched =
            unmatched.map(|(name, constraints)| ResourceKey::of_variant(name, constraints.clone()));
        // D24: names without a resource are sent separately, as unresolved aliases.
        let absent = if self.sends_unresolved() { &[] } else { update.absent.as_slice() };
        absent.iter().map(ResourceKey::of_name).chain(unmatched).chain(removed)
    }

    /// D24: whether a name without a resource is sent as an alias without a resource.
    pub(super) fn sends_unresolved(self) -> bool {
        !self.terms.known.heartbeats && self.keyed_by == KeyedBy::Name
    }
}

/// What a `Resource` wrapper contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResourceContent {
    Payload,
    /// No resource, only the TTL that is left now (D26).
    Heartbeat(Duration),
}

/// Entries of `DiscoveryResponse.resources`, of variants in order of their names.
pub(super) fn sotw<'a>(encoding: Encoding<'_>, variants: impl Iterator<Item = &'a Arc<Variant>>) -> Body {
    let mut body = BodyWriter::default();
    // S30: wrapped only if necessary, as not all clients unwrap. X14: the name of a redirect is only
    // in its wrapper, as its payload does not have it.
    let is_wrapped = |variant: &Variant| {
        let needs_wrapper = (encoding.terms.ttl && variant.ttl().is_some()) || variant.is_redirect();
        encoding.keyed_by(variant) == KeyedBy::Locator || needs_wrapper
    };
    let len = |variant: &Variant| match is_wrapped(variant) {
        true => field_len(wrapper_len(resource_len(encoding, variant, ResourceContent::Payload))),
        false => field_len(any_len(&encoding.terms.type_url, variant)),
    };
    let variants: Vec<_> = variants.map(|variant| (len(variant), variant)).collect();
    body.reserve(variants.iter().map(|(len, _)| *len));
    for of_name in variants.chunk_by(|(_, one), (_, other)| one.name() == other.name()) {
        body.part(of_name.iter().map(|(len, _)| len).sum());
        for (_, variant) in of_name {
            if is_wrapped(variant) {
                put_wrapped_resource(&mut body, encoding, variant);
            } else {
                put_any(&mut body, &encoding.terms.type_url, variant);
            }
            body.end_resource();
            body.end_name(variant.name());
        }
    }
    body.finish()
}

/// Entries of `DeltaDiscoveryResponse.resources`, `removed_resources` and `removed_resource_names`;
/// removals must be sorted. T31: removals of a name are beside its resources.
pub(super) fn delta<'a>(
    encoding: Encoding<'_>,
    variants: impl Iterator<Item = &'a Arc<Variant>>,
    removed: impl Iterator<Item = &'a ResourceKey>,
) -> Body {
    let mut body = BodyWriter::default();
    let len = |variant: &Variant| resource_len(encoding, variant, ResourceContent::Payload);
    let mut variants: Vec<_> = variants.map(|variant| (len(variant), variant)).collect();
    if !variants.is_sorted_by_key(|(_, variant)| variant.name()) {
        variants.sort_by(|(_, one), (_, other)| one.name().cmp(other.name()));
    }
    body.reserve(variants.iter().map(|(len, _)| field_len(*len)));
    let mut removed = removed.peekable();
    for of_name in variants.chunk_by(|(_, one), (_, other)| one.name() == other.name()) {
        let name = of_name[0].1.name();
        while removed.peek().is_some_and(|key| key.name < *name) {
            put_removals(&mut body, encoding, &mut removed);
        }
        let mut of_removed = Vec::new();
        while let Some(key) = removed.next_if(|key| key.name == *name) {
            of_removed.push(key);
        }
        let resources = of_name.iter().map(|(len, _)| field_len(*len));
        let removals = of_removed.iter().map(|key| removal_len(encoding, key));
        body.part(resources.chain(removals).sum());
        for (len, variant) in of_name {
            body.length(RESOURCES, *len);
            put_resource(&mut body, encoding, variant, ResourceContent::Payload);
            body.end_resource();
        }
        body.end_name(name);
        of_removed.into_iter().for_each(|key| put_removal(&mut body, encoding, key));
    }
    while removed.peek().is_some() {
        put_removals(&mut body, encoding, &mut removed);
    }
    body.finish()
}

/// D26: resources without content in a delta response, which extend the TTL of the client's
/// resources.
pub(super) fn heartbeats<'a>(
    encoding: Encoding<'_>,
    now: Duration,
    variants: impl Iterator<Item = &'a Arc<Variant>>,
) -> Body {
    let mut body = BodyWriter::default();
    for variant in variants {
        body.length(RESOURCES, resource_len(encoding, variant, ResourceContent::Heartbeat(now)));
        put_resource(&mut body, encoding, variant, ResourceContent::Heartbeat(now));
        body.end_resource();
    }
    body.finish()
}

/// D24: names without a resource, in a delta response: the name is its own alias, and there is no
/// resource.
pub(super) fn unresolved<'a>(encoding: Encoding<'_>, names: impl Iterator<Item = &'a ResourceName>) -> Body {
    let mut body = BodyWriter::default();
    for name in names.map(|name| encoding.spell(name).as_str()) {
        body.length(RESOURCES, field_len(VERSION_TEXT_LEN) + 2 * field_len(name.len()));
        body.field(RESOURCE_VERSION, &Version(0).digits());
        body.text(RESOURCE_NAME, name);
        body.text(RESOURCE_ALIASES, name);
        body.end_resource();
    }
    body.finish()
}

/// Entries of `resource_errors`.
pub(super) fn errors<'a>(encoding: Encoding<'_>, failures: impl Iterator<Item = &'a Failure>) -> Body {
    let field = match encoding.terms.protocol {
        Protocol::Sotw => SOTW_ERRORS,
        Protocol::Delta => DELTA_ERRORS,
    };
    let mut body = BodyWriter::default();
    for Failure { name, constraints, code, message } in failures {
        let name = encoding.spell(name);
        let name_len = resource_name_len(name, constraints);
        let status_len = STATUS_CODE_LEN + field_len(message.len());
        body.length(field, field_len(name_len) + field_len(status_len));
        put_resource_name(&mut body, ERROR_RESOURCE_NAME, name, constraints);
        body.length(ERROR_DETAIL, status_len);
        body.encoded(&[STATUS_CODE << 3, code.byte()]);
        body.text(STATUS_MESSAGE, message);
    }
    body.finish()
}

/// An `Any` of the type of the response (S29) or a redirect (X14), in the field that carries it:
/// `resources` of a response, and `resource` of a `Resource`, are both 2.
fn put_any(body: &mut BodyWriter, type_url: &TypeUrl, variant: &Variant) {
    body.length(RESOURCES, any_len(type_url, variant));
    body.text(ANY_TYPE_URL, variant.payload_type(type_url));
    body.length(ANY_VALUE, variant.payload().len());
    body.payload(variant.payload());
}

/// T27: in SotW the wrapper is itself an `Any`.
fn put_wrapped_resource(body: &mut BodyWriter, encoding: Encoding<'_>, variant: &Variant) {
    let len = resource_len(encoding, variant, ResourceContent::Payload);
    body.length(RESOURCES, wrapper_len(len));
    body.text(ANY_TYPE_URL, xds_proto::type_url::RESOURCE);
    body.length(ANY_VALUE, len);
    put_resource(body, encoding, variant, ResourceContent::Payload);
}

/// The fields of a `Resource`. T24, T25: a client that knows locators gets the name in
/// `resource_name`, other clients in `name`; nobody gets both. T26: the constraints are sent with
/// it.
fn put_resource(body: &mut BodyWriter, encoding: Encoding<'_>, variant: &Variant, content: ResourceContent) {
    body.field(RESOURCE_VERSION, &variant.version_for(encoding.keyed_by(variant)).digits());
    for fields in variant.extra_fields(encoding.sent_ttl(content), encoding.terms.scope.as_ref()) {
        body.encoded(&fields);
    }
    match encoding.keyed_by(variant) {
        KeyedBy::Name => body.text(RESOURCE_NAME, encoding.spell(variant.name()).as_str()),
        KeyedBy::Locator => {
            let name = encoding.spell(variant.name());
            put_resource_name(body, RESOURCE_RESOURCE_NAME, name, variant.constraints());
        }
    }
    // Last, so that no small field follows a slice of a large payload and needs a frame and a
    // packet of its own.
    if content == ResourceContent::Payload {
        put_any(body, &encoding.terms.type_url, variant);
    }
}

/// A `ResourceName`. T23: the constraints are sent as they were received.
fn put_resource_name(body: &mut BodyWriter, field: u32, name: &ResourceName, constraints: &Constraints) {
    body.length(field, resource_name_len(name, constraints));
    body.text(NAME_NAME, name.as_str());
    if !constraints.wire().is_empty() {
        body.length(NAME_CONSTRAINTS, constraints.wire().len());
        body.encoded(constraints.wire());
    }
}

/// The removals of the next name.
fn put_removals<'a>(
    body: &mut BodyWriter,
    encoding: Encoding<'_>,
    removed: &mut std::iter::Peekable<impl Iterator<Item = &'a ResourceKey>>,
) {
    let Some(first) = removed.next() else { return };
    let mut of_name = vec![first];
    while let Some(key) = removed.next_if(|key| key.name == first.name) {
        of_name.push(key);
    }
    body.part(of_name.iter().map(|key| removal_len(encoding, key)).sum());
    of_name.into_iter().for_each(|key| put_removal(body, encoding, key));
}

fn put_removal(body: &mut BodyWriter, encoding: Encoding<'_>, key: &ResourceKey) {
    let ResourceKey { name, constraints } = key;
    match constraints {
        None => body.text(DELTA_REMOVED_RESOURCES, encoding.spell(name).as_str()),
        Some(constraints) => {
            put_resource_name(body, DELTA_REMOVED_RESOURCE_NAMES, encoding.spell(name), constraints);
        }
    }
    body.end_name(name);
}

/// The length of an `Any` with a `Resource` of this length.
fn wrapper_len(resource_len: usize) -> usize {
    field_len(xds_proto::type_url::RESOURCE.len()) + field_len(resource_len)
}

fn any_len(type_url: &TypeUrl, variant: &Variant) -> usize {
    field_len(variant.payload_type(type_url).len()) + field_len(variant.payload().len())
}

fn resource_len(encoding: Encoding<'_>, variant: &Variant, content: ResourceContent) -> usize {
    let any = match content {
        ResourceContent::Payload => field_len(any_len(&encoding.terms.type_url, variant)),
        ResourceContent::Heartbeat(_) => 0,
    };
    let extras: usize = variant
        .extra_fields(encoding.sent_ttl(content), encoding.terms.scope.as_ref())
        .map(|fields| fields.len())
        .sum();
    let name = match encoding.keyed_by(variant) {
        KeyedBy::Name => encoding.spell(variant.name()).as_str().len(),
        KeyedBy::Locator => resource_name_len(encoding.spell(variant.name()), variant.constraints()),
    };
    field_len(VERSION_TEXT_LEN) + any + extras + field_len(name)
}

fn removal_len(encoding: Encoding<'_>, ResourceKey { name, constraints }: &ResourceKey) -> usize {
    let name = encoding.spell(name);
    let constraints = constraints.as_ref().unwrap_or(&Constraints::NONE);
    field_len(resource_name_len(name, constraints))
}

fn resource_name_len(name: &ResourceName, constraints: &Constraints) -> usize {
    let constraints = constraints.wire().len();
    field_len(name.as_str().len()) + if constraints == 0 { 0 } else { field_len(constraints) }
}

/// Length of a printed [`Version`](crate::Version).
const VERSION_TEXT_LEN: usize = 32;

const RESOURCES: u32 = 2;
const DELTA_REMOVED_RESOURCES: u32 = 6;
const DELTA_REMOVED_RESOURCE_NAMES: u32 = 8;
const RESOURCE_VERSION: u32 = 1;
const RESOURCE_NAME: u32 = 3;
const RESOURCE_ALIASES: u32 = 4;
const RESOURCE_RESOURCE_NAME: u32 = 8;
const NAME_NAME: u32 = 1;
const NAME_CONSTRAINTS: u32 = 2;
const ANY_TYPE_URL: u32 = 1;
const ANY_VALUE: u32 = 2;
/// `resource_errors` of a SotW response.
const SOTW_ERRORS: u32 = 7;
/// `resource_errors` of a delta response.
const DELTA_ERRORS: u32 = 9;
const ERROR_RESOURCE_NAME: u32 = 1;
const ERROR_DETAIL: u32 = 2;
const STATUS_MESSAGE: u32 = 2;
const STATUS_CODE: u8 = 1;
/// All codes are below 128.
const STATUS_CODE_LEN: usize = 2;
