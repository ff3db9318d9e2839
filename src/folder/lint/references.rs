//! The resources that a payload refers to, found with the table.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use xds_core::{Resource, TypeUrl, Version, XdstpUrl};

use super::super::descriptors::Descriptors;
use super::table::{CLOSED, NAMING_NOTHING, NAMINGS, Naming};

/// A reference of one resource to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The type URL of the other resource.
    pub type_url: &'static str,
    /// The name of the other resource.
    pub name: String,
}

/// The references of resources, so that a second check decodes only what changed. About 150 bytes
/// for each resource of a type that names others.
#[derive(Debug, Default)]
pub(in crate::folder) struct KnownReferences {
    /// By the type and the digest of the content.
    current: HashMap<(TypeUrl, Version), Arc<[Reference]>>,
    /// Those of the check before this one. What this check does not use is dropped at its end.
    before: HashMap<(TypeUrl, Version), Arc<[Reference]>>,
}

impl KnownReferences {
    /// Begins the next check.
    pub(super) fn next(&mut self) -> Self {
        Self { current: HashMap::new(), before: std::mem::take(&mut self.current) }
    }

    /// Ends the check.
    pub(super) fn end(self) -> Self {
        Self { current: self.current, before: HashMap::new() }
    }

    pub(super) fn of(&mut self, resource: &Resource, descriptors: &Descriptors) -> Arc<[Reference]> {
        if NAMING_NOTHING.contains(&resource.payload_type()) {
            return Arc::default();
        }
        let key = (resource.type_url().clone(), resource.version());
        if let Some(known) = self.current.get(&key) {
            return Arc::clone(known);
        }
        let references =
            self.before.remove(&key).unwrap_or_else(|| of(resource, descriptors).into_iter().collect());
        self.current.insert(key, Arc::clone(&references));
        references
    }
}

/// The references of a resource, each once. Only references that its clients resolve at the same
/// server: by `ads` or `self`, or to a cluster.
pub(super) fn of(resource: &Resource, descriptors: &Descriptors) -> BTreeSet<Reference> {
    let mut walk = Walk { descriptors, found: BTreeSet::new() };
    if let Some(descriptor) = descriptors.message(resource.payload_type())
        && let Ok(message) = DynamicMessage::decode(descriptor, resource.payload().clone())
    {
        walk.message(&message, 0);
    }
    walk.found
}

struct Walk<'a> {
    descriptors: &'a Descriptors,
    found: BTreeSet<Reference>,
}

impl Walk<'_> {
    /// Searches a message. `depth` is the number of `Any` messages around it.
    fn message(&mut self, message: &DynamicMessage, depth: usize) {
        let descriptor = message.descriptor();
        let full_name = descriptor.full_name();
        if CLOSED.contains(&full_name) {
            return;
        }
        if full_name == "google.protobuf.Any" {
            return self.any(message, depth);
        }
        for naming in BY_MESSAGE.get(full_name).into_iter().flatten() {
            self.naming(naming, message);
        }
        for (_, value) in message.fields() {
            self.value(value, depth);
        }
    }

    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Message(inner) => self.message(inner, depth),
            Value::List(items) => items.iter().for_each(|item| self.value(item, depth)),
            Value::Map(entries) => entries.values().for_each(|entry| self.value(entry, depth)),
            _ => {}
        }
    }

    fn any(&mut self, any: &DynamicMessage, depth: usize) {
        let (url, bytes) = (any.get_field_by_number(1), any.get_field_by_number(2));
        if depth < ANY_DEPTH_LIMIT
            && let Some(descriptor) =
                url.as_deref().and_then(Value::as_str).and_then(|url| self.descriptors.message(url))
            && let Some(bytes) = bytes.as_deref().and_then(Value::as_bytes)
            && let Ok(message) = DynamicMessage::decode(descriptor, bytes.clone())
        {
            self.message(&message, depth + 1);
        }
    }

    fn naming(&mut self, naming: &Naming, message: &DynamicMessage) {
        if let Some((field, number)) = naming.only_if
            && !at(message, field).iter().any(|value| value.as_enum_number() == Some(number))
        {
            return;
        }
        if let Some(source) = naming.source {
            let sources = at(message, source);
            let is_ours = |value: &Value| {
                value
                    .as_message()
                    .is_some_and(|source| source.has_field_by_name("ads") || source.has_field_by_name("self"))
            };
            if !sources.iter().any(is_ours) {
                return;
            }
        }
        let texts = |path: &&str| {
            let texts = at(message, path).into_iter().filter_map(|value| value.as_str().map(String::from));
            Some(texts.filter(|text| !text.is_empty()).collect::<Vec<_>>()).filter(|texts| !texts.is_empty())
        };
        let names = naming.names.iter().find_map(texts).unwrap_or_default();
        let names = names.into_iter().map(canonical);
        self.found.extend(names.map(|name| Reference { type_url: naming.target, name }));
    }
}

/// The canonical form of a name. X4: all spellings are equal. X3: directives are not part of the
/// name.
fn canonical(name: String) -> String {
    // An old-style name stays as it is. So does an invalid xdstp name: no resource has it, and the
    // warning shows it as written.
    name.parse::<XdstpUrl>().map_or(name, |url| url.name.to_string())
}

/// The values at a path; for a list all its items.
fn at(message: &DynamicMessage, path: &str) -> Vec<Value> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    if !message.has_field_by_name(first) {
        return Vec::new();
    }
    let Some(value) = message.get_field_by_name(first) else { return Vec::new() };
    match (value.as_ref(), rest) {
        (Value::Message(inner), Some(rest)) => at(inner, rest),
        (Value::List(items), None) => items.clone(),
        (value, None) => vec![value.clone()],
        (_, Some(_)) => Vec::new(),
    }
}

static BY_MESSAGE: LazyLock<HashMap<&str, Vec<&Naming>>> = LazyLock::new(|| {
    let mut by_message = HashMap::<&str, Vec<&Naming>>::new();
    for naming in NAMINGS {
        by_message.entry(naming.message).or_default().push(naming);
    }
    by_message
});

/// How many `Any` levels are searched. Each may use as much stack as its decoder allows.
const ANY_DEPTH_LIMIT: usize = 16;
