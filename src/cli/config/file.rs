//! Reads the file: keys with their values and places.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::super::yaml::{self, FilePosition, YamlError};
use super::ConfigError;

/// The content of the file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    pub(super) entries: Vec<ConfigEntry>,
}

/// One key with its value.
#[derive(Debug, PartialEq)]
pub(super) struct ConfigEntry {
    pub(super) at: Location,
    pub(super) key: String,
    pub(super) value: Value,
}

/// The value of a key.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Switch(bool),
    /// A string, or a number as it is written in the file.
    Text(String),
    List(Vec<String>),
    Nothing,
    /// A map, or a list in a list: no option has such a value.
    Nested,
}

impl Value {
    /// The kind of the value, for error messages.
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Switch(_) => "true or false",
            Self::Text(_) => "a value",
            Self::List(items) if items.is_empty() => "an empty list",
            Self::List(_) => "a list",
            Self::Nothing => "nothing",
            Self::Nested => "a map or a list in a list",
        }
    }
}

impl File {
    /// # Errors
    /// The file cannot be read, is not a YAML map, or has a key twice.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |error| ConfigError::Unreadable { file: path.into(), error };
        Self::parse(path, &xds_file::read_once_to_string(path, FILE_LIMIT_BYTES).map_err(unreadable)?)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let map: Option<Map> = yaml::parse(text).map_err(|error| {
            let YamlError { line, column, message, duplicate } = error;
            let place = FilePosition { file: path.into(), line, column };
            match duplicate {
                Some(key) => ConfigError::Twice { place, key },
                None => ConfigError::Syntax { place, message },
            }
        })?;
        let entries = map.unwrap_or_default().0.into_iter();
        let entries = entries.map(|(key, value)| ConfigEntry {
            at: key.referenced,
            key: key.value,
            value: value.read(text),
        });
        Ok(Self { path: path.into(), entries: entries.collect() })
    }

    pub(super) fn place(&self, at: Location) -> FilePosition {
        FilePosition::new(&self.path, at)
    }
}

/// The largest file, in bytes.
const FILE_LIMIT_BYTES: usize = 16 << 20;

/// All keys, in the order of the file. The parser refuses duplicate keys.
#[derive(Debug, Default)]
struct Map(Vec<(Spanned<String>, ConfigNode)>);

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Map;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of options, such as `listen: 127.0.0.1:18000`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Map(entries))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// A YAML value and its place.
#[derive(Debug)]
struct ConfigNode {
    at: Location,
    tree: ConfigTree,
}

#[derive(Debug)]
enum ConfigTree {
    Switch(bool),
    Text(String),
    Number,
    List(Vec<ConfigNode>),
    Nothing,
    Map,
}

impl ConfigNode {
    fn read(self, text: &str) -> Value {
        match self.tree {
            ConfigTree::Switch(switch) => Value::Switch(switch),
            ConfigTree::Text(text) => Value::Text(text),
            ConfigTree::Number => Value::Text(written(self.at, text)),
            ConfigTree::List(items) => {
                let items = items.into_iter().map(|item| match item.read(text) {
                    Value::Text(text) => Some(text),
                    Value::Switch(switch) => Some(switch.to_string()),
                    Value::List(_) | Value::Nothing | Value::Nested => None,
                });
                items.collect::<Option<_>>().map_or(Value::Nested, Value::List)
            }
            ConfigTree::Nothing => Value::Nothing,
            ConfigTree::Map => Value::Nested,
        }
    }
}

/// The text of a number in the file: 1.10 and 1.1 are different values of a parameter.
fn written(at: Location, text: &str) -> String {
    let range = || {
        let from = usize::try_from(at.span().byte_offset()?).ok()?;
        let length = usize::try_from(at.span().byte_len()?).ok()?;
        text.get(from..from + length)
    };
    range().unwrap_or_default().trim().to_owned()
}

impl<'de> Deserialize<'de> for ConfigNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<ConfigTree>::deserialize(deserializer)?;
        Ok(Self { at: spanned.referenced, tree: spanned.value })
    }
}

impl<'de> Deserialize<'de> for ConfigTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConfigTreeVisitor)
    }
}

struct ConfigTreeVisitor;

impl<'de> Visitor<'de> for ConfigTreeVisitor {
    type Value = ConfigTree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<ConfigTree, E> {
        Ok(ConfigTree::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<ConfigTree, E> {
        Ok(ConfigTree::Switch(value))
    }

    fn visit_i64<E>(self, _: i64) -> Result<ConfigTree, E> {
        Ok(ConfigTree::Number)
    }

    fn visit_u64<E>(self, _: u64) -> Result<ConfigTree, E> {
        Ok(ConfigTree::Number)
    }

    fn visit_f64<E>(self, _: f64) -> Result<ConfigTree, E> {
        Ok(ConfigTree::Number)
    }

    fn visit_str<E>(self, value: &str) -> Result<ConfigTree, E> {
        Ok(ConfigTree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ConfigTree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(ConfigTree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigTree, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(ConfigTree::Map)
    }
}
