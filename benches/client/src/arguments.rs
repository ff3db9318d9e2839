//! `--name value` pairs, after an optional role.

use std::collections::BTreeMap;

use crate::Error;

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    role: String,
    values: BTreeMap<String, String>,
}

impl Arguments {
    pub(crate) fn read(words: impl Iterator<Item = String>) -> Result<Self, Error> {
        let mut arguments = Self::default();
        let mut words = words.peekable();
        if let Some(role) = words.next_if(|word| !word.starts_with("--")) {
            arguments.role = role;
        }
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("{word} is not a --name"))?;
            let value = words.next().ok_or_else(|| format!("--{name} has no value"))?;
            arguments.values.insert(name.to_owned(), value);
        }
        Ok(arguments)
    }

    /// The role of this process; empty for the process that a person starts.
    pub(crate) fn role(&self) -> &str {
        &self.role
    }

    pub(crate) fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.values.get(name).map_or(default, String::as_str)
    }

    pub(crate) fn number(&self, name: &str, default: usize) -> Result<usize, Error> {
        Ok(self.values.get(name).map_or(Ok(default), |value| value.parse())?)
    }
}
