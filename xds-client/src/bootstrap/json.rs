//! JSON values with their paths, so that each error can name the path.

use serde_json::{Map, Value};

use super::{BootstrapError, JsonType};

/// A value with its path.
pub(super) struct JsonValue<'a> {
    pub(super) value: &'a Value,
    /// Empty for the document itself.
    path: String,
}

/// An object with its path.
pub(super) struct Object<'a> {
    pub(super) fields: &'a Map<String, Value>,
    path: String,
}

impl<'a> JsonValue<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    pub(super) fn object(self) -> Result<Object<'a>, BootstrapError> {
        match self.value {
            Value::Object(fields) => Ok(Object { fields, path: self.path }),
            _ => Err(self.wrong(JsonType::Object)),
        }
    }

    pub(super) fn elements(self) -> Result<impl Iterator<Item = Self>, BootstrapError> {
        let Value::Array(elements) = self.value else { return Err(self.wrong(JsonType::Array)) };
        let Self { path, .. } = self;
        Ok(elements.iter().enumerate().map(move |(at, value)| Self { value, path: format!("{path}[{at}]") }))
    }

    pub(super) fn string(self) -> Result<&'a str, BootstrapError> {
        self.value.as_str().ok_or_else(|| self.wrong(JsonType::String))
    }

    pub(super) fn bool(self) -> Result<bool, BootstrapError> {
        self.value.as_bool().ok_or_else(|| self.wrong(JsonType::Bool))
    }

    /// The path, for errors.
    pub(super) fn path(&self) -> String {
        if self.path.is_empty() { "the document".to_owned() } else { self.path.clone() }
    }

    fn wrong(&self, expected: JsonType) -> BootstrapError {
        BootstrapError::WrongType { path: self.path(), expected, found: JsonType::of(self.value) }
    }
}

impl<'a> Object<'a> {
    /// The value of a key; null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<JsonValue<'a>> {
        let value = self.fields.get(key).filter(|value| !value.is_null())?;
        Some(JsonValue { value, path: self.path_of(key) })
    }

    /// The string of a key; an empty one counts as absent.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, BootstrapError> {
        let text = self.get(key).map(JsonValue::string).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    pub(super) fn required_text(&self, key: &str) -> Result<&'a str, BootstrapError> {
        self.text(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn required(&self, key: &str) -> Result<JsonValue<'a>, BootstrapError> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// All entries of an object that is a map.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, JsonValue<'a>)> {
        let entry =
            |(key, value): (&'a String, _)| (key.as_str(), JsonValue { value, path: self.path_of(key) });
        self.fields.iter().map(entry)
    }

    pub(super) fn missing(&self, key: &str) -> BootstrapError {
        BootstrapError::Missing { path: self.path_of(key) }
    }

    /// The path of a key: `a.b`, or `a["b c"]` if the key is not a plain word.
    pub(super) fn path_of(&self, key: &str) -> String {
        let is_word = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let path = &self.path;
        if !is_word || key.is_empty() {
            format!("{path}[{key:?}]")
        } else if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    }
}
