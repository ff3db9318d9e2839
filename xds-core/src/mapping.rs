//! Derives parameters from the node, for clients that send none (T46).

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::parameters::Parameters;

/// Which parts of a node become parameters.
///
/// The default is every top-level string of the node's metadata, and every bool as `true` or
/// `false`. Numbers, lists, structs and nulls are skipped. A parameter that no constraint names has
/// no effect and no cost. T47: `dynamic_parameters` of the node have another purpose in TP1, and
/// never become parameters here.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ParameterMapping {
    metadata: MetadataKeys,
    named: Vec<NamedPath>,
}

/// Which top-level metadata become parameters with the same key.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum MetadataKeys {
    /// All keys.
    #[default]
    All,
    /// Only these keys. An empty set turns the derivation from metadata off.
    Only(BTreeSet<String>),
}

/// A parameter from one place of the node; written `NAME=PATH`.
///
/// A path is `node.id`, `node.cluster`, `node.locality.region`, `.zone` or `.sub_zone`, or
/// `node.metadata.KEY.KEY..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPath {
    name: Arc<str>,
    path: NodePath,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NodePath {
    Id,
    Cluster,
    Region,
    Zone,
    SubZone,
    Metadata(Vec<String>),
}

/// Why a text is not a [`NamedPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamedPathError {
    /// The text does not have the form `NAME=PATH`.
    #[error("{text:?} is not NAME=PATH, such as zone=node.locality.zone")]
    NoName {
        /// The text.
        text: String,
    },
    /// A node has no such path.
    #[error(
        "{path:?} is not a path of a node; the paths are node.id, node.cluster, \
         node.locality.{{region,zone,sub_zone}}, node.metadata.KEY"
    )]
    UnknownPath {
        /// The path.
        path: String,
    },
}

impl ParameterMapping {
    /// Restricts the metadata keys.
    #[must_use]
    pub fn with_metadata(mut self, keys: MetadataKeys) -> Self {
        self.metadata = keys;
        self
    }

    /// Adds a parameter from one place of the node. It overrides metadata with the same key.
    #[must_use]
    pub fn with_path(mut self, named: NamedPath) -> Self {
        self.named.push(named);
        self
    }

    /// Writes parameters into a node, so that [`derive`](Self::derive) finds them again: at the
    /// path of their name if there is one, else as metadata. A client does this for servers that
    /// derive parameters from the node only.
    pub fn write(&self, parameters: &Parameters, node: &mut xds_proto::envoy::config::core::v3::Node) {
        for (key, value) in parameters.iter() {
            let named = self.named.iter().rev().find(|named| named.name == *key);
            match named.map(|named| &named.path) {
                None => write_metadata(node, &[key.as_ref()], value),
                Some(NodePath::Metadata(keys)) => {
                    write_metadata(node, &keys.iter().map(String::as_str).collect::<Vec<_>>(), value);
                }
                Some(NodePath::Id) => value.as_ref().clone_into(&mut node.id),
                Some(NodePath::Cluster) => value.as_ref().clone_into(&mut node.cluster),
                Some(path @ (NodePath::Region | NodePath::Zone | NodePath::SubZone)) => {
                    let locality = node.locality.get_or_insert_default();
                    let field = match path {
                        NodePath::Region => &mut locality.region,
                        NodePath::Zone => &mut locality.zone,
                        _ => &mut locality.sub_zone,
                    };
                    value.as_ref().clone_into(field);
                }
            }
        }
    }

    /// The parameters of an encoded `envoy.config.core.v3.Node`.
    ///
    /// # Errors
    /// When the bytes are not an encoded node.
    pub fn derive(&self, node: &[u8]) -> Result<Parameters, prost::DecodeError> {
        let node = Node::decode(node)?;
        let metadata = node.metadata.iter().flat_map(|metadata| &metadata.fields);
        let is_kept = |key: &str| match &self.metadata {
            MetadataKeys::All => true,
            MetadataKeys::Only(keys) => keys.contains(key),
        };
        let metadata = metadata.filter(|(key, _)| is_kept(key));
        let derived = metadata.filter_map(|(key, value)| Some((Arc::from(key.as_str()), text(value)?)));
        let named =
            self.named.iter().filter_map(|named| Some((Arc::clone(&named.name), node.at(&named.path)?)));
        Ok(derived.chain(named).collect())
    }
}

impl FromStr for NamedPath {
    type Err = NamedPathError;

    fn from_str(text: &str) -> Result<Self, NamedPathError> {
        let Some((name, path)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(NamedPathError::NoName { text: text.to_owned() });
        };
        let words: Vec<_> = path.split('.').collect();
        let path = match words.as_slice() {
            ["node", "id"] => NodePath::Id,
            ["node", "cluster"] => NodePath::Cluster,
            ["node", "locality", "region"] => NodePath::Region,
            ["node", "locality", "zone"] => NodePath::Zone,
            ["node", "locality", "sub_zone"] => NodePath::SubZone,
            ["node", "metadata", keys @ ..] if !keys.is_empty() => {
                NodePath::Metadata(keys.iter().map(|key| (*key).to_owned()).collect())
            }
            _ => return Err(NamedPathError::UnknownPath { path: path.to_owned() }),
        };
        Ok(Self { name: name.into(), path })
    }
}

/// The fields of `envoy.config.core.v3.Node` that can become parameters. The others, such as some
/// 500 extensions, are skipped.
#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    cluster: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<Struct>,
    #[prost(message, optional, tag = "4")]
    locality: Option<Locality>,
}

#[derive(Clone, PartialEq, Message)]
struct Locality {
    #[prost(string, tag = "1")]
    region: String,
    #[prost(string, tag = "2")]
    zone: String,
    #[prost(string, tag = "3")]
    sub_zone: String,
}

impl Node {
    /// The text at a path; `None` if there is none. An empty plain field counts as none.
    fn at(&self, path: &NodePath) -> Option<Arc<str>> {
        let text = match path {
            NodePath::Id => &self.id,
            NodePath::Cluster => &self.cluster,
            NodePath::Region => &self.locality.as_ref()?.region,
            NodePath::Zone => &self.locality.as_ref()?.zone,
            NodePath::SubZone => &self.locality.as_ref()?.sub_zone,
            NodePath::Metadata(keys) => return self.metadata_at(keys),
        };
        Some(text.as_str().into()).filter(|text: &Arc<str>| !text.is_empty())
    }

    fn metadata_at(&self, keys: &[String]) -> Option<Arc<str>> {
        let (last, parents) = keys.split_last()?;
        let mut fields = &self.metadata.as_ref()?.fields;
        for key in parents {
            fields = match fields.get(key)?.kind.as_ref()? {
                Kind::StructValue(inner) => &inner.fields,
                _ => return None,
            };
        }
        text(fields.get(last)?)
    }
}

fn write_metadata(node: &mut xds_proto::envoy::config::core::v3::Node, keys: &[&str], value: &str) {
    let Some((last, parents)) = keys.split_last() else { return };
    let mut fields = &mut node.metadata.get_or_insert_default().fields;
    for key in parents {
        let inner = fields.entry((*key).to_owned()).or_default();
        if !matches!(inner.kind, Some(Kind::StructValue(_))) {
            inner.kind = Some(Kind::StructValue(Struct::default()));
        }
        let Some(Kind::StructValue(inner)) = &mut inner.kind else { return };
        fields = &mut inner.fields;
    }
    fields.insert((*last).to_owned(), Value { kind: Some(Kind::StringValue(value.to_owned())) });
}

fn text(value: &Value) -> Option<Arc<str>> {
    match value.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.as_str().into()),
        Kind::BoolValue(true) => Some("true".into()),
        Kind::BoolValue(false) => Some("false".into()),
        Kind::NullValue(_) | Kind::NumberValue(_) | Kind::StructValue(_) | Kind::ListValue(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn node() -> Vec<u8> {
        let fields = |pairs: Vec<(&str, Kind)>| Struct {
            fields: pairs.into_iter().map(|(key, kind)| (key.to_owned(), value(kind))).collect(),
        };
        let team = fields(vec![("name", Kind::StringValue("search".into()))]);
        Node {
            id: "envoy-1".into(),
            cluster: String::new(),
            metadata: Some(fields(vec![
                ("env", Kind::StringValue("prod".into())),
                ("beta", Kind::BoolValue(true)),
                ("empty", Kind::StringValue(String::new())),
                ("weight", Kind::NumberValue(3.0)),
                ("team", Kind::StructValue(team)),
            ])),
            locality: Some(Locality { zone: "z1".into(), ..Locality::default() }),
        }
        .encode_to_vec()
    }

    fn derived(mapping: &ParameterMapping) -> String {
        mapping.derive(&node()).unwrap().to_string()
    }

    fn path(text: &str) -> NamedPath {
        text.parse().unwrap()
    }

    #[test]
    fn t47_the_dynamic_parameters_of_the_node_are_not_those_of_tp2() {
        // Field 12: a map from a type URL to `ContextParams { params: { "env": "prod" } }`.
        let params = [10, 11, 10, 3, b'e', b'n', b'v', 18, 4, b'p', b'r', b'o', b'd'];
        let entry = [&[10, 1, b't', 18, 13][..], &params].concat();
        let node = [&[12 << 3 | 2, 18][..], &entry].concat();
        assert_eq!(ParameterMapping::default().derive(&node), Ok(Parameters::new()));
    }

    #[test]
    fn t46_strings_and_bools_of_the_metadata_become_parameters() {
        assert_eq!(derived(&ParameterMapping::default()), r#"beta="true", empty="", env="prod""#);
    }

    #[test]
    fn t46_an_allow_list_narrows_and_an_empty_one_turns_off() {
        let only = |keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            derived(&ParameterMapping::default().with_metadata(MetadataKeys::Only(keys)))
        };
        assert_eq!(only(&["env", "absent"]), r#"env="prod""#);
        assert_eq!(only(&[]), "{}");
    }

    #[test]
    fn a_path_names_a_parameter_and_one_that_leads_nowhere_gives_none() {
        let mapping = ParameterMapping::default()
            .with_metadata(MetadataKeys::Only(BTreeSet::new()))
            .with_path(path("zone=node.locality.zone"))
            .with_path(path("who=node.id"))
            .with_path(path("team=node.metadata.team.name"))
            .with_path(path("cluster=node.cluster"))
            .with_path(path("deep=node.metadata.env.deeper"));
        assert_eq!(derived(&mapping), r#"team="search", who="envoy-1", zone="z1""#);
    }

    #[test]
    fn a_text_that_is_no_path_says_what_one_is() {
        let error = |text: &str| text.parse::<NamedPath>().unwrap_err().to_string();
        assert_eq!(error("zone"), r#""zone" is not NAME=PATH, such as zone=node.locality.zone"#);
        assert!(
            error("zone=locality.zone")
                .starts_with(r#""locality.zone" is not a path of a node; the paths are node.id"#)
        );
        assert!(error("zone=node.metadata").contains("not a path"));
    }

    #[test]
    fn bytes_that_are_no_node_are_an_error() {
        assert!(ParameterMapping::default().derive(&[0x0a, 0x7f]).is_err());
    }
}
