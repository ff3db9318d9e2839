//! The extras of a wrapper: `ttl`, `aliases`, `cache_control` and `metadata`.

use std::time::Duration;

use prost_reflect::prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use xds_core::{Resource, ResourceName, XdstpName};

use super::encode;
use super::error::{Position, Problem};
use super::tree::{Entry, Node, Tree};

/// The fields of an `envoy.service.discovery.v3.Resource` that clients get with the resource.
#[derive(Debug, Default)]
pub(super) struct WrapperExtras {
    ttl: Option<Duration>,
    aliases: Vec<ResourceName>,
    do_not_cache: bool,
    /// An encoded `envoy.config.core.v3.Metadata`.
    metadata: Bytes,
}

/// An error in one of the fields.
#[derive(Debug)]
pub(super) struct Flaw {
    field: &'static str,
    /// The index of the item, if the field is a list.
    item: Option<usize>,
    found: String,
    reason: String,
}

impl WrapperExtras {
    /// Whether a field of a wrapper is one of the extras.
    pub(super) fn has(field: &str) -> bool {
        [TTL, ALIASES, CACHE_CONTROL, METADATA].contains(&field)
    }

    /// Reads the extras of a wrapper.
    ///
    /// # Errors
    /// All values that clients could not use.
    pub(super) fn of(wrapper: &DynamicMessage) -> Result<Self, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let ttl = given(wrapper, TTL).and_then(|ttl| {
            let (seconds, nanos) = (number(&ttl, "seconds"), number(&ttl, "nanos"));
            // S38: clients keep the resource for this time, so it must be positive.
            let positive = duration(seconds, nanos).filter(|ttl| !ttl.is_zero());
            if positive.is_none() {
                let found = format!("{seconds} s and {nanos} ns");
                let reason = "a ttl must be positive and at most 10,000 years".into();
                flaws.push(Flaw { field: TTL, item: None, found, reason });
            }
            positive
        });
        let mut aliases = Vec::new();
        let listed = wrapper.get_field_by_name(ALIASES);
        let listed = listed.as_deref().and_then(Value::as_list).unwrap_or_default();
        for (item, alias) in listed.iter().filter_map(Value::as_str).enumerate() {
            match alias_of(alias) {
                Ok(name) => aliases.push(name),
                Err(reason) => {
                    let found = format!("the string {alias:?}");
                    flaws.push(Flaw { field: ALIASES, item: Some(item), found, reason });
                }
            }
        }
        let do_not_cache = given(wrapper, CACHE_CONTROL)
            .and_then(|control| control.get_field_by_name("do_not_cache")?.as_bool())
            .unwrap_or_default();
        let metadata = given(wrapper, METADATA);
        let metadata = metadata.map(|metadata| encode::to_vec(&metadata)).unwrap_or_default().into();
        if flaws.is_empty() { Ok(Self { ttl, aliases, do_not_cache, metadata }) } else { Err(flaws) }
    }

    /// Adds the extras to the resource.
    pub(super) fn with(self, mut resource: Resource) -> Resource {
        if let Some(ttl) = self.ttl {
            resource = resource.with_ttl(ttl);
        }
        if !self.aliases.is_empty() {
            resource = resource.with_aliases(self.aliases);
        }
        if self.do_not_cache {
            resource = resource.with_do_not_cache();
        }
        if self.metadata.is_empty() { resource } else { resource.with_metadata(self.metadata) }
    }
}

impl Flaw {
    /// The position of the error in a wrapper with these fields.
    pub(super) fn at(&self, fields: &[Entry]) -> Option<Position> {
        let value = &fields.iter().find(|entry| entry.key == self.field)?.value;
        let item = match (&value.tree, self.item) {
            (Tree::List(items), Some(item)) => items.get(item),
            _ => None,
        };
        Some(item.map_or(value.at, |Node { at, .. }| *at))
    }

    /// The path of the field, and the error.
    pub(super) fn into_problem(self) -> (String, Problem) {
        let field = match self.item {
            Some(item) => format!("{}[{item}]", self.field),
            None => self.field.into(),
        };
        (field, Problem::InvalidValue { found: self.found, reason: self.reason })
    }
}

/// D24: clients subscribe by aliases as they do by names, so the rules for names are also rules for
/// aliases.
fn alias_of(text: &str) -> Result<ResourceName, String> {
    if text.is_empty() {
        return Err("an alias must not be empty".into());
    }
    if text.contains(|c: char| c.is_ascii_control()) {
        return Err("an alias must not have control characters".into());
    }
    match XdstpName::of(text) {
        // X4: clients may use any spelling.
        Ok(Some(new_style)) => Ok(new_style.canonical()),
        Ok(None) => Ok(text.into()),
        Err(error) => Err(error.to_string()),
    }
}

/// The message in a field, if the field is given.
fn given(message: &DynamicMessage, field: &str) -> Option<DynamicMessage> {
    let field = message.descriptor().get_field_by_name(field).filter(|field| message.has_field(field))?;
    message.get_field(&field).as_message().cloned()
}

fn number(message: &DynamicMessage, field: &str) -> i64 {
    let value = message.get_field_by_name(field);
    let value = value.as_deref();
    value.and_then(|value| value.as_i64().or_else(|| value.as_i32().map(i64::from))).unwrap_or_default()
}

/// A `google.protobuf.Duration`; `None` if it is negative or out of range.
fn duration(seconds: i64, nanos: i64) -> Option<Duration> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds <= SECONDS_LIMIT)?;
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

const TTL: &str = "ttl";
const ALIASES: &str = "aliases";
const CACHE_CONTROL: &str = "cache_control";
const METADATA: &str = "metadata";

/// The limit of `google.protobuf.Duration`.
const SECONDS_LIMIT: u64 = 315_576_000_000;
