//! References of single records, as the API has them.

use std::collections::BTreeSet;

use xds_proto::xds::store::v1 as proto;

use super::{ReadError, Reads, RecordVersion};
use crate::key::RecordKey;
use crate::record::RecordState;
use crate::refs::{self, OnDelete};

/// The resources that a record names, each with the first field that does, in order; at most `limit`.
#[must_use]
pub fn targets(record: &RecordVersion, limit: usize) -> Vec<(RecordKey, proto::Reference)> {
    let named = refs::resources(&record.key, &record.state).flat_map(|resource| resource.named_resources());
    let named: BTreeSet<_> = named.collect();
    let keys = named.into_iter().filter_map(|(type_url, name)| {
        let key =
            proto::Key { type_url: type_url.to_owned(), name: name.as_str().to_owned(), when: String::new() };
        RecordKey::parse(&key).ok()
    });
    let keys = keys.take(limit).enumerate();
    let reference = |(number, target): (usize, RecordKey)| {
        let field = (number < FIELDS_READ).then(|| field(&record.key, &record.state, &target));
        let reference = reference(&record.key, &target, field.unwrap_or_default());
        (target, reference)
    };
    keys.map(reference).collect()
}

impl Reads<'_> {
    /// A reference of one record to a resource, with the first field that names it, as of the last
    /// revision.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn reference(&self, source: &RecordKey, target: &RecordKey) -> Result<proto::Reference, ReadError> {
        let version = self.last(source)?;
        let field = version.map(|version| field(source, &version.state, target));
        Ok(reference(source, target, field.unwrap_or_default()))
    }
}

/// A reference of one record to a resource.
#[must_use]
pub fn reference(source: &RecordKey, target: &RecordKey, field: String) -> proto::Reference {
    let on_delete = OnDelete::of(source.type_url().as_str(), target.type_url().as_str());
    proto::Reference {
        source: Some(source.to_proto()),
        field,
        target: Some(proto::Key { when: String::new(), ..target.to_proto() }),
        on_delete: on_delete.to_proto().into(),
        ..proto::Reference::default()
    }
}

fn field(source: &RecordKey, state: &RecordState, target: &RecordKey) -> String {
    let fields = refs::fields(source, state, target.type_url().as_str(), &target.name());
    fields.into_iter().next().unwrap_or_default()
}

/// The fields of one record that are read: each costs a pass over its payload.
const FIELDS_READ: usize = 100;
