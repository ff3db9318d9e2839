//! References of single records, as the API has them.

use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use super::{ReadError, Reads, RecordVersion};
use crate::key::RecordKey;
use crate::refs;
use crate::rules::{Acts, FieldSource, Rules};
use crate::stored;

impl Reads<'_> {
    /// The resources that a record names, by the present rules, each with the first field that does, in
    /// order; at most `limit`.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn targets(
        &self,
        record: &RecordVersion,
        limit: usize,
    ) -> Result<Vec<(RecordKey, proto::Reference)>, ReadError> {
        let (rules, source) = (self.rules()?, &record.key);
        let mut named: BTreeMap<RecordKey, Acts> = BTreeMap::new();
        for resource in refs::resources(source, &record.state) {
            for one in rules.named(&resource) {
                let (type_url, name) = (one.type_url.to_owned(), one.name.as_str().to_owned());
                let key = RecordKey::parse(&proto::Key { type_url, name, when: String::new() });
                // A field may have what is no name.
                let Ok(key) = key else { continue };
                let acts = named.entry(key).or_default();
                *acts = acts.and(one.acts);
            }
        }
        let named = named.into_iter().take(limit).enumerate();
        let reference = |(number, (target, acts)): (usize, (RecordKey, Acts))| {
            let mut field = (String::new(), acts);
            if number < FIELDS_READ {
                let (of_type, name) = (target.type_url(), target.name());
                let fields = refs::fields(source, &record.state, (of_type.as_str(), &name), &rules);
                field = fields.into_iter().next().unwrap_or(field);
            }
            let reference = reference(source, &target, field);
            (target, reference)
        };
        Ok(named.map(reference).collect())
    }

    /// References of records, each to a resource, with the field that does the most when the resource is
    /// deleted, as of the last revision. The fields of the first `fields_limit` are read.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn references<'k>(
        &self,
        pairs: impl IntoIterator<Item = (&'k RecordKey, &'k RecordKey)>,
        fields_limit: usize,
    ) -> Result<Vec<proto::Reference>, ReadError> {
        let rules = self.rules()?;
        let mut references = Vec::new();
        for (number, (source, target)) in pairs.into_iter().enumerate() {
            let version = if number < fields_limit { self.last(source)? } else { None };
            let (of_type, name) = (target.type_url(), target.name());
            let fields = version
                .map(|version| refs::fields(source, &version.state, (of_type.as_str(), &name), &rules));
            let unread = (String::new(), rules.between(source.type_url().as_str(), of_type.as_str()));
            let field = fields.and_then(|fields| fields.into_iter().next()).unwrap_or(unread);
            references.push(reference(source, target, field));
        }
        Ok(references)
    }

    fn rules(&self) -> Result<Rules, ReadError> {
        Ok(stored::rules(self.view, self.fields.clone())?)
    }

    /// The same, with descriptors for the rules of references.
    #[must_use]
    pub fn with_fields(self, fields: FieldSource) -> Self {
        Self { fields, ..self }
    }
}

/// A reference of one record to a resource.
pub(crate) fn reference(
    source: &RecordKey,
    target: &RecordKey,
    (field, acts): (String, Acts),
) -> proto::Reference {
    proto::Reference {
        source: Some(source.to_proto()),
        field,
        target: Some(proto::Key { when: String::new(), ..target.to_proto() }),
        on_delete: acts.to_proto().into(),
        ..proto::Reference::default()
    }
}

/// The fields of one record that are read: each costs a pass over its payload.
const FIELDS_READ: usize = 100;
