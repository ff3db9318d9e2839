//! Reads names from payloads of types that the built-in tables do not know.

use std::str;

use crate::name::ResourceName;
use crate::wire::fields::{Edit, edited, fields};
use crate::xdstp;

/// The way to a text field of a payload: the numbers of the fields from the top. It covers all items of
/// lists; in a map, the entry has the number 1 for the key and 2 for the value.
///
/// ```
/// use xds_core::FieldPath;
///
/// // Field 3 of the message in field 1.
/// let path = FieldPath::new([1, 3]);
/// let payload = b"\x0a\x03\x1a\x01a\x0a\x03\x1a\x01b";
/// assert_eq!(path.names(payload), ["a".into(), "b".into()]);
/// assert_eq!(path.without(payload, &"a".into()).as_deref(), Some(&b"\x0a\x00\x0a\x03\x1a\x01b"[..]));
/// let renamed = path.renamed(payload, &"a".into(), &"new".into());
/// assert_eq!(renamed.as_deref(), Some(&b"\x0a\x05\x1a\x03new\x0a\x03\x1a\x01b"[..]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldPath(Box<[u32]>);

impl FieldPath {
    /// A path of these numbers. One without numbers leads nowhere.
    #[must_use]
    pub fn new(numbers: impl Into<Box<[u32]>>) -> Self {
        Self(numbers.into())
    }

    /// The names in the field, in the order of the payload. What cannot be read is left out.
    #[must_use]
    pub fn names(&self, payload: &[u8]) -> Vec<ResourceName> {
        let mut values = if self.0.is_empty() { Vec::new() } else { vec![payload] };
        for number in &self.0 {
            let items = values.into_iter().flat_map(|message| fields(message).map_while(|field| field));
            values = items.filter(|(found, _)| found == number).map(|(_, value)| value).collect();
        }
        let texts = values.into_iter().filter_map(|value| str::from_utf8(value).ok());
        texts.filter(|text| !text.is_empty()).map(xdstp::canonical).collect()
    }

    /// A copy of the payload whose field does not have this name; `None` if it does not have it
    /// already.
    #[must_use]
    pub fn without(&self, payload: &[u8], name: &ResourceName) -> Option<Vec<u8>> {
        edit(&self.0, payload, name, &|| Edit::Drop)
    }

    /// A copy of the payload whose field has the name `to` in place of `from`; `None` if it does not have
    /// `from`. Everything else stays byte for byte.
    #[must_use]
    pub fn renamed(&self, payload: &[u8], from: &ResourceName, to: &ResourceName) -> Option<Vec<u8>> {
        edit(&self.0, payload, from, &|| Edit::Replace(to.as_str().into()))
    }
}

/// Edits the values that are this name.
fn edit(path: &[u32], message: &[u8], name: &ResourceName, how: &dyn Fn() -> Edit) -> Option<Vec<u8>> {
    let (first, rest) = path.split_first()?;
    edited(message, |number, value| {
        if number != *first {
            Edit::Keep
        } else if rest.is_empty() {
            let is_it = str::from_utf8(value).is_ok_and(|text| xdstp::canonical(text) == *name);
            if is_it { how() } else { Edit::Keep }
        } else {
            edit(rest, value, name, how).map_or(Edit::Keep, Edit::Replace)
        }
    })
}
