//! List collections (X11), whose payload is no single resource: what their entries may be called.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;

use super::ResourceError;
use crate::name::{ResourceName, TypeUrl};
use crate::xdstp;

/// Checks the names of the inline entries, where the type is one of list collections. To be asked
/// of new-style names only: no others name collections, and what ends alike in other types means
/// something else.
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
    // X11: one without a name is anonymous.
    for entry in inline.map(|inline| inline.name).filter(|entry| !entry.is_empty()) {
        if !xdstp::is_entry(&entry) {
            return Err(ResourceError::BadEntry { type_url, name, entry });
        }
        // X11: `#entry=` has to mean one of them.
        if let Some(entry) = seen.replace(entry) {
            return Err(ResourceError::RepeatedEntry { type_url, name, entry });
        }
    }
    Ok(())
}

/// What all `<T>Collection` have in common.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Collection {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
}

/// The field of `xds.core.v3.CollectionEntry` that holds a resource; the other one says where it
/// is.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(message, optional, tag = "2")]
    pub(super) inline: Option<Inline>,
}

/// The field of `xds.core.v3.CollectionEntry.InlineEntry` by which `#entry=` finds it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Inline {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

const SUFFIX: &str = "Collection";
