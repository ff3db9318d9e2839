//! A folder as changes of a store: one put for each of its resources, with its place.

use prost_types::Duration as ProtoDuration;
use xds_core::{Resource, Version};
use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;

use crate::folder::{Contents, Location};

/// A put of one resource of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct FolderChange {
    /// The put, without a condition. Its key is canonical, as answers of the store have it.
    pub change: proto::Change,
    /// The version of its content, as records have it.
    pub version: Version,
    /// The place of the resource in the folder.
    pub location: Location,
}

/// A put for each resource of a folder without errors, in the order of keys.
#[must_use]
pub fn changes(contents: &Contents) -> Vec<FolderChange> {
    let sets = contents.types().flat_map(|type_url| contents.names(type_url.as_str()));
    let variants = sets.flat_map(|(_, set)| set.iter().map(|(_, located)| located));
    let mut changes: Vec<_> = variants
        .map(|located| {
            let key = RecordKey::of(located.resource.id());
            let put = proto::Put { content: Some(content(&located.resource)), ..proto::Put::default() };
            let act = Some(proto::change::Act::Put(put));
            let change = proto::Change { key: Some(key.to_proto()), condition: None, act };
            let version = located.resource.version();
            (key, FolderChange { change, version, location: located.location.clone() })
        })
        .collect();
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    changes.into_iter().map(|(_, change)| change).collect()
}

/// The content of a resource, as a writer of the store sets it.
#[must_use]
pub fn content(resource: &Resource) -> proto::Content {
    proto::Content {
        payload: resource.payload().clone(),
        ttl: resource.ttl().and_then(|ttl| ProtoDuration::try_from(ttl).ok()),
        aliases: resource.aliases().iter().map(|alias| alias.as_str().to_owned()).collect(),
        do_not_cache: resource.is_do_not_cache(),
        metadata: resource.metadata(),
        redirect: resource.is_redirect(),
        ..proto::Content::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_resource_is_a_put_with_its_place_and_a_canonical_key() {
        let text = "\
\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource
name: b
ttl: 1.5s
aliases: [c, a]
cache_control: { do_not_cache: true }
resource:
  \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: b
---
\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: a
when: z=1, b=2
";
        let contents = Contents::of_texts(&[("x.yaml", text)]);
        let changes = changes(&contents);
        let shown = |FolderChange { change, location, .. }: &FolderChange| {
            let key = change.key.as_ref().unwrap();
            (key.name.clone(), key.when.clone(), location.to_string())
        };
        let expected = [("a", "b=2,z=1", "x.yaml:10"), ("b", "", "x.yaml:7")];
        let expected = expected.map(|(name, when, at)| (name.to_owned(), when.to_owned(), at.to_owned()));
        assert_eq!(changes.iter().map(shown).collect::<Vec<_>>(), expected);
        let Some(proto::change::Act::Put(put)) = &changes[1].change.act else { panic!("it is a put") };
        let content = put.content.as_ref().unwrap();
        assert_eq!(content.ttl, Some(Duration::from_millis(1500).try_into().unwrap()));
        assert_eq!((&*content.aliases, content.do_not_cache), (&["a".to_owned(), "c".to_owned()][..], true));
        assert_eq!(content.payload, "\x0a\x01b");
    }
}
