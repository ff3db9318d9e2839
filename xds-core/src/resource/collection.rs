//! List collections (X11), whose payload has several entries: checks the names of the entries.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;

use super::ResourceError;
use crate::name::{ResourceName, TypeUrl};
use crate::xdstp;

/// Checks the names of the inline entries, if the type is a list collection. Call it for new-style
/// names only: other resources are no collections, although their type may end in `Collection`.
pub(super) fn check(type_url: &TypeUrl, name: &ResourceName, payload: &Bytes) -> Result<(), ResourceError> {
    if !type_url.message_name().ends_with(SUFFIX) {
        return Ok(());
    }
    let (type_url, name) = (type_url.clone(), name.clone());
    let Ok(collection) = Collection::decode(payload.clone()) else {
        return Err(ResourceError::Malformed { type_url, name });
    };
    let mut seen = BTreeSet::new();
    let inline = collection.entries.into_iter().filter_map(|entry| entry.inline);
    // X11: an entry without a name is anonymous.
    for entry in inline.map(|inline| inline.name).filter(|entry| !entry.is_empty()) {
        if !xdstp::is_entry(&entry) {
            return Err(ResourceError::BadEntry { type_url, name, entry });
        }
        // X11: `#entry=` has to select a single entry.
        if let Some(entry) = seen.replace(entry) {
            return Err(ResourceError::RepeatedEntry { type_url, name, entry });
        }
    }
    Ok(())
}

/// The field that all `<T>Collection` messages have in common.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Collection {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<CollectionEntry>,
}

/// The field of `xds.core.v3.CollectionEntry` that contains a resource; its other field says where
/// the resource is.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CollectionEntry {
    #[prost(message, optional, tag = "2")]
    pub(super) inline: Option<InlineEntry>,
}

/// The field of `xds.core.v3.CollectionEntry.InlineEntry` by which `#entry=` finds it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InlineEntry {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

const SUFFIX: &str = "Collection";
