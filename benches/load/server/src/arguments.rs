//! The arguments that the bench appends: `-name value` pairs with one dash.

use std::collections::BTreeMap;

use crate::resources::Error;

#[derive(Debug)]
pub(crate) struct Arguments(BTreeMap<String, String>);

impl Arguments {
    pub(crate) fn read(arguments: impl Iterator<Item = String>) -> Result<Self, Error> {
        let (mut values, mut arguments) = (BTreeMap::new(), arguments);
        while let Some(argument) = arguments.next() {
            let name = argument.strip_prefix('-').ok_or_else(|| format!("{argument:?} is no argument"))?;
            let value = arguments.next().ok_or_else(|| format!("-{name} has no value"))?;
            values.insert(name.to_owned(), value);
        }
        Ok(Self(values))
    }

    pub(crate) fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).map_or(default, String::as_str)
    }

    pub(crate) fn number(&self, name: &str, default: usize) -> Result<usize, Error> {
        let Some(value) = self.0.get(name) else { return Ok(default) };
        Ok(value.parse().map_err(|error| format!("-{name} {value}: {error}"))?)
    }
}
