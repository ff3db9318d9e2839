//! The resources of a response as bytes, made once and shared by every stream that sends the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::access::NamePatterns;
use crate::constraint::Constraints;
use crate::extras::Ttl;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::variants::{Form, Variant};
use crate::wire::Failure;
use crate::wire::Handle;
use crate::wire::fields::{field_len, put_field, put_length};

/// A run of encoded fields of a discovery response, in slices that share memory with the cache.
#[derive(Default)]
pub struct Body {
    chunks: Vec<Bytes>,
    len: usize,
    resources: usize,
    /// Where it can be parted, when it is too large for one message.
    cuts: Vec<Cut>,
}

/// The end of a part that one message can hold; a name is never parted (T39).
#[derive(Debug, Clone)]
struct Cut {
    chunks: usize,
    len: usize,
    resources: usize,
    /// The last name before it.
    until: ResourceName,
}

/// How resources are told on one stream and type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape<'a> {
    pub(super) type_url: &'a TypeUrl,
    pub(super) form: Form,
    /// S38: the client honours a TTL.
    pub(super) ttl: bool,
    /// The names that the client may read; `None` for all of them. One for all streams of a class.
    pub(super) scope: Option<&'a NamePatterns>,
    /// Names that the client spells otherwise (X5).
    pub(super) spelled: &'a BTreeMap<ResourceName, ResourceName>,
}

impl<'a> Shape<'a> {
    /// A name as the client wrote it.
    fn spell<'n>(&self, name: &'n ResourceName) -> &'n ResourceName
    where
        'a: 'n,
    {
        if self.spelled.is_empty() { name } else { self.spelled.get(name).unwrap_or(name) }
    }

    /// How a variant goes out: one that is for a locator alone as it came, by name (T43c).
    fn form_of(&self, variant: &Variant) -> Form {
        if variant.constraints().is_exact() { Form::Name } else { self.form }
    }

    fn told_ttl(&self, content: Content) -> Ttl {
        match content {
            _ if !self.ttl => Ttl::Untold,
            Content::Payload => Ttl::Whole,
            Content::Heartbeat(now) => Ttl::Left(now),
        }
    }

    /// Whether what is made of it is the same for all streams of a class.
    pub(super) fn is_shared(&self) -> bool {
        self.spelled.is_empty()
    }
}

/// Whether a wrapper has its resource in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Payload,
    /// Nothing but what is left of its TTL now (D26).
    Heartbeat(Duration),
}

impl Body {
    /// The slices in order.
    #[must_use]
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many resources it holds.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.resources
    }

    /// The same in parts that one message each can hold (G10, D32), and the last name of each but the last.
    pub(super) fn parts(self: &Arc<Self>) -> Vec<(Arc<Self>, Option<ResourceName>)> {
        if self.cuts.is_empty() {
            return vec![(Arc::clone(self), None)];
        }
        let (len, resources, chunks) = (self.len, self.resources, self.chunks.len());
        let ends = self.cuts.iter().map(|cut| (cut.chunks, cut.len, cut.resources, Some(cut.until.clone())));
        let mut from = (0, 0, 0);
        let part = |(to, len, resources, until): (usize, usize, usize, Option<ResourceName>)| {
            let chunks = self.chunks[from.0..to].to_vec();
            let part = Self { chunks, len: len - from.1, resources: resources - from.2, cuts: Vec::new() };
            from = (to, len, resources);
            (Arc::new(part), until)
        };
        ends.chain([(chunks, len, resources, None)]).map(part).collect()
    }

    /// Entries of `DiscoveryResponse.resources`, of variants in order of their names.
    pub(super) fn sotw<'a>(shape: Shape<'_>, variants: impl Iterator<Item = &'a Arc<Variant>>) -> Self {
        let mut body = Builder::default();
        let variants: Vec<_> = variants.collect();
        for of_name in variants.chunk_by(|one, other| one.name() == other.name()) {
            body.part(of_name.iter().map(|variant| resource_len(shape, variant, Content::Payload)).sum());
            for variant in of_name {
                // S30: wrapped only where needed, as not all clients unwrap. X14: a locator does not tell whose place it takes.
                let needs_wrapper = (shape.ttl && variant.ttl().is_some()) || variant.is_redirect();
                if shape.form_of(variant) == Form::Located || needs_wrapper {
                    body.wrapped_resource(shape, variant);
                } else {
                    body.any(shape.type_url, variant);
                }
                body.body.resources += 1;
                body.last_name = Some(variant.name().clone());
            }
        }
        body.finish()
    }

    /// Entries of `DeltaDiscoveryResponse.resources`, `removed_resources` and `removed_resource_names`; removals in order.
    /// T31: those of a name stand beside its resources.
    pub(super) fn delta<'a>(
        shape: Shape<'_>,
        variants: impl Iterator<Item = &'a Arc<Variant>>,
        removed: impl Iterator<Item = &'a Handle>,
    ) -> Self {
        let mut body = Builder::default();
        let mut variants: Vec<_> = variants.collect();
        if !variants.is_sorted_by_key(|variant| variant.name()) {
            variants.sort_by(|one, other| one.name().cmp(other.name()));
        }
        let mut removed = removed.peekable();
        for of_name in variants.chunk_by(|one, other| one.name() == other.name()) {
            let name = of_name[0].name();
            while removed.peek().is_some_and(|handle| handle.name < *name) {
                body.removals(shape, &mut removed);
            }
            let mut of_removed = Vec::new();
            while let Some(handle) = removed.next_if(|handle| handle.name == *name) {
                of_removed.push(handle);
            }
            let resources = of_name.iter().map(|variant| resource_len(shape, variant, Content::Payload));
            let removals = of_removed.iter().map(|handle| removal_len(shape, handle));
            body.part(resources.chain(removals).sum());
            for variant in of_name {
                body.length(RESOURCES, resource_len(shape, variant, Content::Payload));
                body.resource(shape, variant, Content::Payload);
                body.body.resources += 1;
            }
            body.last_name = Some(name.clone());
            of_removed.into_iter().for_each(|handle| body.removal(shape, handle));
        }
        while removed.peek().is_some() {
            body.removals(shape, &mut removed);
        }
        body.finish()
    }

    /// D26: resources without content in a delta response, which extend the TTL of what the client has.
    pub(super) fn heartbeats<'a>(
        shape: Shape<'_>,
        now: Duration,
        variants: impl Iterator<Item = &'a Arc<Variant>>,
    ) -> Self {
        let mut body = Builder::default();
        for variant in variants {
            body.length(RESOURCES, resource_len(shape, variant, Content::Heartbeat(now)));
            body.resource(shape, variant, Content::Heartbeat(now));
            body.body.resources += 1;
        }
        body.finish()
    }

    /// D24: names that stand for nothing, in a delta response: the name is its own alias, and there is no resource.
    pub(super) fn unresolved<'a>(shape: Shape<'_>, names: impl Iterator<Item = &'a ResourceName>) -> Self {
        let mut body = Builder::default();
        for name in names.map(|name| shape.spell(name).as_str()) {
            body.length(RESOURCES, field_len(VERSION_TEXT_LEN) + 2 * field_len(name.len()));
            put_field(&mut body.buffer, RESOURCE_VERSION, &Version(0).digits());
            body.text(RESOURCE_NAME, name);
            body.text(RESOURCE_ALIASES, name);
            body.body.resources += 1;
        }
        body.finish()
    }

    /// Entries of `resource_errors`, which is this field of a response.
    pub(super) fn errors<'a>(
        field: u32,
        shape: Shape<'_>,
        failures: impl Iterator<Item = &'a Failure>,
    ) -> Self {
        let mut body = Builder::default();
        for Failure { name, constraints, code, message } in failures {
            let name = shape.spell(name);
            let name_len = resource_name_len(name, constraints);
            let status_len = STATUS_CODE_LEN + field_len(message.len());
            body.length(field, field_len(name_len) + field_len(status_len));
            body.resource_name(ERROR_RESOURCE_NAME, name, constraints);
            body.length(ERROR_DETAIL, status_len);
            body.buffer.put_slice(&[STATUS_CODE << 3, code.byte()]);
            body.text(STATUS_MESSAGE, message);
        }
        body.finish()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("resources", &self.resources)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Writes small things into one buffer and large payloads as slices of their own.
#[derive(Debug, Default)]
struct Builder {
    buffer: BytesMut,
    body: Body,
    /// The name that was written last, in bodies that can be parted.
    last_name: Option<ResourceName>,
}

impl Builder {
    /// An `Any` of the type of the response (S29) or a redirect (X14), in the field that carries it: `resources` of a response, and `resource` of a `Resource`, are both 2.
    fn any(&mut self, type_url: &TypeUrl, variant: &Variant) {
        self.length(RESOURCES, any_len(type_url, variant));
        self.text(ANY_TYPE_URL, variant.payload_type(type_url));
        self.length(ANY_VALUE, variant.payload().len());
        self.payload(variant.payload());
    }

    /// T27: in SotW the wrapper is itself an `Any`.
    fn wrapped_resource(&mut self, shape: Shape<'_>, variant: &Variant) {
        let len = resource_len(shape, variant, Content::Payload);
        self.length(RESOURCES, field_len(xds_proto::type_url::RESOURCE.len()) + field_len(len));
        self.text(ANY_TYPE_URL, xds_proto::type_url::RESOURCE);
        self.length(ANY_VALUE, len);
        self.resource(shape, variant, Content::Payload);
    }

    /// The fields of a `Resource`. T24, T25: one that knows locators is told the name there, and nobody gets it twice. T26: the
    /// constraints go with it.
    fn resource(&mut self, shape: Shape<'_>, variant: &Variant, content: Content) {
        put_field(&mut self.buffer, RESOURCE_VERSION, &variant.version_in(shape.form_of(variant)).digits());
        for fields in variant.extra_fields(shape.told_ttl(content), shape.scope) {
            self.buffer.put_slice(&fields);
        }
        match shape.form_of(variant) {
            Form::Name => self.text(RESOURCE_NAME, shape.spell(variant.name()).as_str()),
            Form::Located => {
                let name = shape.spell(variant.name());
                self.resource_name(RESOURCE_RESOURCE_NAME, name, variant.constraints());
            }
        }
        // Last, as nothing that is small then follows a slice of a large payload, in a frame and a packet of its own.
        if content == Content::Payload {
            self.any(shape.type_url, variant);
        }
    }

    /// A `ResourceName`. T23: the constraints go out as they were received.
    fn resource_name(&mut self, field: u32, name: &ResourceName, constraints: &Constraints) {
        self.length(field, resource_name_len(name, constraints));
        self.text(NAME_NAME, name.as_str());
        if !constraints.wire().is_empty() {
            self.length(NAME_CONSTRAINTS, constraints.wire().len());
            self.buffer.put_slice(constraints.wire());
        }
    }

    /// Those of the next name.
    fn removals<'a>(
        &mut self,
        shape: Shape<'_>,
        removed: &mut std::iter::Peekable<impl Iterator<Item = &'a Handle>>,
    ) {
        let Some(first) = removed.next() else { return };
        let mut of_name = vec![first];
        while let Some(handle) = removed.next_if(|handle| handle.name == first.name) {
            of_name.push(handle);
        }
        self.part(of_name.iter().map(|handle| removal_len(shape, handle)).sum());
        of_name.into_iter().for_each(|handle| self.removal(shape, handle));
    }

    fn removal(&mut self, shape: Shape<'_>, handle: &Handle) {
        let Handle { name, constraints } = handle;
        match constraints {
            None => self.text(DELTA_REMOVED_RESOURCES, shape.spell(name).as_str()),
            Some(constraints) => {
                self.resource_name(DELTA_REMOVED_RESOURCE_NAMES, shape.spell(name), constraints);
            }
        }
        self.last_name = Some(name.clone());
    }

    /// Before another name, of about this many bytes: a new part, if it does not fit into this one.
    fn part(&mut self, next_len: usize) {
        let written = self.body.len + self.buffer.len();
        let from = self.body.cuts.last().map_or(0, |cut| cut.len);
        if let Some(until) = self.last_name.clone()
            && written - from + next_len > PART_LIMIT_BYTES
        {
            self.flush();
            let Body { chunks, len, resources, .. } = &self.body;
            let cut = Cut { chunks: chunks.len(), len: *len, resources: *resources, until };
            self.body.cuts.push(cut);
        }
    }

    fn payload(&mut self, payload: &Bytes) {
        if payload.len() < SHARED_FROM_BYTES {
            self.buffer.put_slice(payload);
        } else {
            self.flush();
            self.body.len += payload.len();
            self.body.chunks.push(payload.clone());
        }
    }

    fn text(&mut self, field: u32, text: &str) {
        put_field(&mut self.buffer, field, text.as_bytes());
    }

    fn length(&mut self, field: u32, len: usize) {
        put_length(&mut self.buffer, field, len);
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.body.len += self.buffer.len();
            self.body.chunks.push(self.buffer.split().freeze());
        }
    }

    fn finish(mut self) -> Body {
        self.flush();
        self.body
    }
}

fn any_len(type_url: &TypeUrl, variant: &Variant) -> usize {
    field_len(variant.payload_type(type_url).len()) + field_len(variant.payload().len())
}

fn resource_len(shape: Shape<'_>, variant: &Variant, content: Content) -> usize {
    let any = match content {
        Content::Payload => field_len(any_len(shape.type_url, variant)),
        Content::Heartbeat(_) => 0,
    };
    let extras: usize =
        variant.extra_fields(shape.told_ttl(content), shape.scope).map(|fields| fields.len()).sum();
    let name = match shape.form_of(variant) {
        Form::Name => shape.spell(variant.name()).as_str().len(),
        Form::Located => resource_name_len(shape.spell(variant.name()), variant.constraints()),
    };
    field_len(VERSION_TEXT_LEN) + any + extras + field_len(name)
}

fn removal_len(shape: Shape<'_>, Handle { name, constraints }: &Handle) -> usize {
    let name = shape.spell(name);
    let constraints = constraints.as_ref().unwrap_or(&Constraints::NONE);
    field_len(resource_name_len(name, constraints))
}

fn resource_name_len(name: &ResourceName, constraints: &Constraints) -> usize {
    let constraints = constraints.wire().len();
    field_len(name.as_str().len()) + if constraints == 0 { 0 } else { field_len(constraints) }
}

/// Payloads from this size on are slices of their own. Below it a slice costs the transport more (a frame each) than
/// the one copy that all streams of a class share.
const SHARED_FROM_BYTES: usize = 4096;

/// What a part has at most, unless a single name has more (G10): the 4 MiB that peers commonly accept, less what stands
/// around the resources.
const PART_LIMIT_BYTES: usize = (4 << 20) - (32 << 10);

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
pub(super) const SOTW_ERRORS: u32 = 7;
/// `resource_errors` of a delta response.
pub(super) const DELTA_ERRORS: u32 = 9;
const ERROR_RESOURCE_NAME: u32 = 1;
const ERROR_DETAIL: u32 = 2;
const STATUS_MESSAGE: u32 = 2;
const STATUS_CODE: u8 = 1;
/// All codes are below 128.
const STATUS_CODE_LEN: usize = 2;
