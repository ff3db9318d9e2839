//! Derives parameters from the node, for clients that send none (T46).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::parameters::Parameters;
use crate::shortened::shortened;

/// Which parts of a node become parameters.
///
/// The default is every top-level string of the node's metadata, and every bool as `true` or
/// `false`. Numbers, lists, structs and nulls are skipped. A [`NamedPath`] takes whole numbers, too.
/// A parameter that no constraint names has no effect and no cost. T47: `dynamic_parameters` of the
/// node have another purpose in TP1, and never become parameters here.
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
/// `node.metadata.KEY.KEY..`. In metadata it takes a string, a bool as `true` or `false`, and a
/// whole number from -(2^53 - 1) to 2^53 - 1 as decimal text: beyond these limits, and for
/// fractions, the text of the client is not the only one with this value.
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

/// What the metadata of a node gives.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Derived {
    /// The parameters.
    pub parameters: Parameters,
    /// The metadata that would give a parameter if it were a string, in the order of the
    /// parameters; the first 32 of it.
    pub skipped: Vec<SkippedMetadata>,
}

/// Metadata of a node that is no string and so gives no parameter (T46). Each text of the node is
/// shortened to 256 bytes, see [`shortened`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedMetadata {
    /// The parameter that the client has not got.
    pub parameter: Arc<str>,
    /// The place in the node, such as `node.metadata.bucket`.
    pub path: String,
    /// What is there.
    pub found: SkippedValue,
}

/// A value that gives no parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkippedValue {
    /// A number that a [`NamedPath`] would take, as that text.
    WholeNumber(String),
    /// Any other number.
    OtherNumber(String),
    /// An object with fields.
    Struct,
    /// A list.
    List,
    /// Null.
    Null,
}

/// How many skipped values of a node are reported.
const SKIPPED_LIMIT: usize = 32;

/// The longest text of a skipped value.
const SKIPPED_TEXT_BYTES: usize = 256;

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

    /// The parameters of an encoded `envoy.config.core.v3.Node`, and the metadata that gives none.
    ///
    /// # Errors
    /// When the bytes are not an encoded node.
    pub fn derive(&self, node: &[u8]) -> Result<Derived, prost::DecodeError> {
        let node = Node::decode(node)?;
        let mut derived = BTreeMap::<Arc<str>, Taken>::new();
        let is_kept = |key: &str| match &self.metadata {
            MetadataKeys::All => true,
            MetadataKeys::Only(keys) => keys.contains(key),
        };
        for (key, value) in node.metadata.iter().flat_map(|metadata| &metadata.fields) {
            if is_kept(key) {
                derived.insert(key.as_str().into(), taken(value, &[key], TakesNumbers::No));
            }
        }
        for named in &self.named {
            let Some(taken) = node.at(&named.path) else { continue };
            // Metadata with the same key keeps its text if the path has none.
            if matches!(taken, Taken::Text(_)) || !derived.contains_key(&named.name) {
                derived.insert(Arc::clone(&named.name), taken);
            }
        }
        let mut all = Derived::default();
        let mut parameters = Vec::new();
        for (parameter, taken) in derived {
            match taken {
                Taken::Text(text) => parameters.push((parameter, text)),
                Taken::Skipped { path, found } if all.skipped.len() < SKIPPED_LIMIT => {
                    let parameter = shortened(&parameter, SKIPPED_TEXT_BYTES).into();
                    all.skipped.push(SkippedMetadata { parameter, path, found });
                }
                Taken::Skipped { .. } => {}
            }
        }
        all.parameters = parameters.into_iter().collect();
        Ok(all)
    }
}

impl SkippedMetadata {
    /// What the operator can do to give the client its parameter.
    #[must_use]
    pub fn cure(&self) -> String {
        let Self { parameter, path, found } = self;
        // `NAME=PATH` cannot express all names, and a shell must not run one that a client chose.
        let is_plain = (1..200).contains(&parameter.len())
            && parameter.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        match found {
            SkippedValue::WholeNumber(text) if is_plain => format!(
                "write it as the string \"{text}\" in the node of the client, or start the server with \
                 --param {parameter}={path}"
            ),
            SkippedValue::Struct if is_plain => {
                format!("start the server with --param {parameter}={path}.KEY, where KEY has a string")
            }
            _ => "write it as a string in the node of the client".to_owned(),
        }
    }
}

impl fmt::Display for SkippedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WholeNumber(text) | Self::OtherNumber(text) => write!(f, "the number {text}"),
            Self::Struct => f.write_str("a struct"),
            Self::List => f.write_str("a list"),
            Self::Null => f.write_str("null"),
        }
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
    /// What is at a path; `None` if the path leads nowhere. An empty plain field counts as none.
    fn at(&self, path: &NodePath) -> Option<Taken> {
        let text = match path {
            NodePath::Id => &self.id,
            NodePath::Cluster => &self.cluster,
            NodePath::Region => &self.locality.as_ref()?.region,
            NodePath::Zone => &self.locality.as_ref()?.zone,
            NodePath::SubZone => &self.locality.as_ref()?.sub_zone,
            NodePath::Metadata(keys) => return self.metadata_at(keys),
        };
        (!text.is_empty()).then(|| Taken::Text(text.as_str().into()))
    }

    fn metadata_at(&self, keys: &[String]) -> Option<Taken> {
        let (last, parents) = keys.split_last()?;
        let mut fields = &self.metadata.as_ref()?.fields;
        for key in parents {
            fields = match fields.get(key)?.kind.as_ref()? {
                Kind::StructValue(inner) => &inner.fields,
                _ => return None,
            };
        }
        Some(taken(fields.get(last)?, keys, TakesNumbers::WholeOnes))
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

/// What a mapping takes from one value.
enum Taken {
    Text(Arc<str>),
    Skipped { path: String, found: SkippedValue },
}

enum TakesNumbers {
    No,
    WholeOnes,
}

/// T46: strings and bools are taken everywhere. Numbers are taken only where a path names them: the
/// author of the path then says that the text of the number is meant.
fn taken<T: AsRef<str>>(value: &Value, keys: &[T], takes_numbers: TakesNumbers) -> Taken {
    let found = match &value.kind {
        Some(Kind::StringValue(text)) => return Taken::Text(text.as_str().into()),
        Some(Kind::BoolValue(true)) => return Taken::Text("true".into()),
        Some(Kind::BoolValue(false)) => return Taken::Text("false".into()),
        Some(Kind::NumberValue(number)) => match (whole(*number), takes_numbers) {
            (Some(text), TakesNumbers::WholeOnes) => return Taken::Text(text.into()),
            (Some(text), TakesNumbers::No) => SkippedValue::WholeNumber(text),
            (None, _) => SkippedValue::OtherNumber(shortened(&number.to_string(), 32).into_owned()),
        },
        Some(Kind::StructValue(_)) => SkippedValue::Struct,
        Some(Kind::ListValue(_)) => SkippedValue::List,
        Some(Kind::NullValue(_)) | None => SkippedValue::Null,
    };
    let keys: Vec<_> = keys.iter().map(AsRef::as_ref).collect();
    let path = format!("node.metadata.{}", keys.join("."));
    Taken::Skipped { path: shortened(&path, SKIPPED_TEXT_BYTES).into_owned(), found }
}

/// The decimal text of a whole number, if no other whole number has the same double.
fn whole(number: f64) -> Option<String> {
    const LARGEST: f64 = 9_007_199_254_740_991.0; // 2^53 - 1
    (number.fract() == 0.0 && number.abs() <= LARGEST).then(|| (number as i64).to_string())
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
        mapping.derive(&node()).unwrap().parameters.to_string()
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
        assert_eq!(ParameterMapping::default().derive(&node), Ok(Derived::default()));
    }

    #[test]
    fn t46_strings_and_bools_of_the_metadata_become_parameters() {
        assert_eq!(derived(&ParameterMapping::default()), r#"beta="true", empty="", env="prod""#);
    }

    /// What is skipped of a node with this metadata, each as `PARAMETER: FOUND at PATH`.
    fn skipped(mapping: &ParameterMapping, metadata: Vec<(&str, Kind)>) -> (String, Vec<SkippedMetadata>) {
        let fields = metadata.into_iter().map(|(key, kind)| (key.to_owned(), value(kind))).collect();
        let node = Node { metadata: Some(Struct { fields }), ..Node::default() }.encode_to_vec();
        let Derived { parameters, skipped } = mapping.derive(&node).unwrap();
        (parameters.to_string(), skipped)
    }

    #[test]
    fn t46_what_is_no_string_and_no_bool_is_skipped_and_reported() {
        let texts = |mapping: &ParameterMapping| -> Vec<String> {
            let skipped = mapping.derive(&node()).unwrap().skipped;
            skipped.iter().map(|it| format!("{}: {} at {}", it.parameter, it.found, it.path)).collect()
        };
        let default = ParameterMapping::default();
        assert_eq!(
            texts(&default),
            ["team: a struct at node.metadata.team", "weight: the number 3 at node.metadata.weight"]
        );
        let only = MetadataKeys::Only(BTreeSet::from(["env".to_owned()]));
        assert_eq!(texts(&default.clone().with_metadata(only)), [""; 0]);
        let mapping = default.with_path(path("team=node.metadata.team.name"));
        assert_eq!(texts(&mapping), ["weight: the number 3 at node.metadata.weight"]);
        let mapping = mapping.with_path(path("weight=node.metadata.weight"));
        assert_eq!(texts(&mapping), [""; 0]);
        assert_eq!(derived(&mapping), r#"beta="true", empty="", env="prod", team="search", weight="3""#);
    }

    #[test]
    fn t46_a_path_takes_whole_numbers_that_a_double_tells_apart() {
        let mapping = ParameterMapping::default().with_path(path("bucket=node.metadata.bucket"));
        let bucket = |number| {
            let (parameters, skipped) = skipped(&mapping, vec![("bucket", Kind::NumberValue(number))]);
            assert_eq!(parameters == "{}", skipped.len() == 1, "{number}");
            parameters
        };
        let largest = 9_007_199_254_740_991.0;
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (7.0, "7"),
            (-12.0, "-12"),
            (largest, "9007199254740991"),
            (-largest, "-9007199254740991"),
        ] {
            assert_eq!(bucket(number), format!("bucket={text:?}"));
        }
        for number in [0.5, 9_007_199_254_740_992.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(bucket(number), "{}");
        }
    }

    #[test]
    fn t46_the_cure_is_one_that_the_mapping_accepts() {
        let metadata = vec![
            ("$(reboot)", Kind::NumberValue(1.0)),
            ("a.b", Kind::NumberValue(1.0)),
            ("bucket", Kind::NumberValue(0.0)),
            ("half", Kind::NumberValue(0.5)),
            ("null", Kind::NullValue(0)),
            ("team", Kind::StructValue(Struct::default())),
        ];
        let (_, found) = skipped(&ParameterMapping::default(), metadata);
        let string = "write it as a string in the node of the client";
        assert_eq!(
            found.iter().map(SkippedMetadata::cure).collect::<Vec<_>>(),
            [
                string,
                string,
                "write it as the string \"0\" in the node of the client, or start the server with \
                 --param bucket=node.metadata.bucket",
                string,
                string,
                "start the server with --param team=node.metadata.team.KEY, where KEY has a string",
            ]
        );
    }

    #[test]
    fn g15_the_report_of_skipped_metadata_is_bounded() {
        let keys: Vec<_> = (0..100).map(|number| format!("{number:03}{}", "x".repeat(1000))).collect();
        let metadata = keys.iter().map(|key| (key.as_str(), Kind::NumberValue(1.0))).collect();
        let (_, found) = skipped(&ParameterMapping::default(), metadata);
        assert_eq!(found.len(), SKIPPED_LIMIT);
        assert!(found.iter().all(|it| it.parameter.len() <= 256 && it.path.len() <= 256));
        assert!(found[0].parameter.starts_with("000x"));
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
