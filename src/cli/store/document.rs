//! Records as documents of a folder.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use serde_json::{Map, Value, json};
use xds::Constraints;
use xds::folder::Descriptors;
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3 as discovery;
use xds_proto::xds::store::v1 as proto;

use crate::cli::shown::{WRAPPER, YamlDocument, yaml};

/// Writes contents as JSON and YAML, and remembers which fields it has warned about.
#[derive(Debug)]
pub(super) struct Documents {
    descriptors: Descriptors,
    left_out: BTreeSet<String>,
}

impl Documents {
    pub(super) fn new(descriptors: Descriptors) -> Self {
        Self { descriptors, left_out: BTreeSet::new() }
    }

    /// Whether a document of the type can be read back.
    pub(super) fn knows(&self, type_url: &str) -> bool {
        self.descriptors.knows(type_url)
    }

    /// The payload as fields with `@type`.
    pub(super) fn payload(&mut self, key: &proto::Key, content: &proto::Content) -> Map<String, Value> {
        let type_url = if content.redirect { LOCATOR } else { &key.type_url };
        self.fields(type_url, &content.payload)
    }

    fn fields(&mut self, type_url: &str, encoded: &Bytes) -> Map<String, Value> {
        let readable = self.descriptors.readable(type_url, encoded);
        for field in readable.left_out {
            if !self.left_out.contains(&field) {
                eprintln!("warning: field left out because no descriptor has it: {field}");
                self.left_out.insert(field);
            }
        }
        match readable.json {
            Value::Object(fields) => fields,
            other => Map::from_iter([("value".to_owned(), other)]),
        }
    }

    /// The document that a folder reads as this content: the payload, or a wrapper with it.
    pub(super) fn yaml(&mut self, key: &proto::Key, content: &proto::Content) -> String {
        let payload = self.payload(key, content);
        let when = Some(&*key.when).filter(|when| !when.is_empty());
        let own = ["name", "cluster_name"].into_iter().find_map(|field| payload.get(field)?.as_str());
        let extras = self.extras(content);
        if own == Some(&*key.name) && extras.is_empty() && !content.redirect {
            return yaml(&YamlDocument { when, fields: &payload });
        }
        let mut wrapper = extras;
        wrapper.insert("@type".into(), WRAPPER.into());
        wrapper.insert("name".into(), (&*key.name).into());
        wrapper.insert("resource".into(), payload.into());
        yaml(&YamlDocument { when, fields: &wrapper })
    }

    /// The fields of a wrapper that clients get with the resource.
    pub(super) fn extras(&mut self, content: &proto::Content) -> Map<String, Value> {
        let mut extras = Map::new();
        if let Some(ttl) = content.ttl {
            extras.insert("ttl".into(), duration(ttl).into());
        }
        if !content.aliases.is_empty() {
            extras.insert("aliases".into(), content.aliases.clone().into());
        }
        if content.do_not_cache {
            extras.insert("cache_control".into(), json!({ "do_not_cache": true }));
        }
        if !content.metadata.is_empty() {
            let mut metadata = self.fields(METADATA, &content.metadata);
            metadata.remove("@type");
            extras.insert("metadata".into(), metadata.into());
        }
        extras
    }
}

/// The records as one binary `DiscoveryResponse`, which a folder reads from a .pb file, also where no
/// descriptor has their types.
pub(super) fn protobuf<'a>(
    records: impl IntoIterator<Item = (&'a proto::Key, &'a proto::Content)>,
) -> Vec<u8> {
    let resources = records.into_iter().map(|(key, content)| {
        let wrapper = wrapper(key, content);
        Any { type_url: WRAPPER.into(), value: wrapper.encode_to_vec().into() }
    });
    let response = discovery::DiscoveryResponse { resources: resources.collect(), ..Default::default() };
    response.encode_to_vec()
}

fn wrapper(key: &proto::Key, content: &proto::Content) -> discovery::Resource {
    let constraints = key.when.parse().unwrap_or(Constraints::NONE);
    let payload_type = if content.redirect { LOCATOR } else { &key.type_url };
    let (name, resource_name) = if constraints.is_unconstrained() {
        (key.name.clone(), None)
    } else {
        let constraints = discovery::DynamicParameterConstraints::decode(constraints.wire().clone()).ok();
        let name = key.name.clone();
        let resource_name = discovery::ResourceName { name, dynamic_parameter_constraints: constraints };
        (String::new(), Some(resource_name))
    };
    discovery::Resource {
        name,
        resource_name,
        resource: Some(Any { type_url: payload_type.to_owned(), value: content.payload.clone() }),
        ttl: content.ttl,
        aliases: content.aliases.clone(),
        cache_control: content
            .do_not_cache
            .then_some(discovery::resource::CacheControl { do_not_cache: true }),
        metadata: Some(content.metadata.clone())
            .filter(|metadata| !metadata.is_empty())
            .and_then(|metadata| Message::decode(metadata).ok()),
        ..discovery::Resource::default()
    }
}

/// As in the JSON of a `Duration`.
pub(super) fn duration(duration: prost_types::Duration) -> String {
    match Duration::try_from(duration) {
        Ok(duration) if duration.subsec_nanos() == 0 => format!("{}s", duration.as_secs()),
        Ok(duration) => {
            let text = format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos());
            format!("{}s", text.trim_end_matches('0'))
        }
        Err(_) => duration.to_string(),
    }
}

const LOCATOR: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";
const METADATA: &str = "type.googleapis.com/envoy.config.core.v3.Metadata";

#[cfg(test)]
mod tests {
    use super::*;

    fn key(when: &str) -> proto::Key {
        let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".into();
        proto::Key { type_url, name: "a".into(), when: when.into() }
    }

    #[test]
    fn content_with_its_own_name_is_the_payload_and_other_content_a_wrapper() {
        let mut documents = Documents::new(Descriptors::envoy());
        let content = proto::Content { payload: "\x0a\x01a".into(), ..Default::default() };
        assert_eq!(
            documents.yaml(&key("env=prod"), &content),
            "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nwhen: env=prod\nname: a\n"
        );
        let ttl = Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 });
        let content = proto::Content { ttl, aliases: vec!["b".into()], ..content };
        assert_eq!(
            documents.yaml(&key(""), &content),
            "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: a\naliases:\n- b\nresource:\n  \
             \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: a\nttl: 1.5s\n"
        );
    }
}
