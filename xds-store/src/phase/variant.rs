//! The forms of a plan that changes neither type nor name: two variants of each old one (SV31).

use xds_core::{Constraints, Formula, VariantId};

use crate::key::RecordKey;
use crate::schema::SchemaVersion;

/// Which clients get a form, by the parameter `xds.schema`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaVariant {
    /// `xds.schema=2`, or its negation.
    condition: Formula,
}

impl SchemaVariant {
    /// Clients that choose the new form.
    pub(super) fn new_form(version: SchemaVersion) -> Self {
        let condition = Formula::Equals { key: PARAMETER.into(), value: version.major().to_string().into() };
        Self { condition }
    }

    /// All others.
    pub(super) fn old_form(version: SchemaVersion) -> Self {
        Self { condition: Formula::Not(Box::new(Self::new_form(version).condition)) }
    }

    /// The key with this condition added; `None` if its constraints name the parameter already, or become
    /// too large.
    pub(super) fn add(&self, key: &RecordKey) -> Option<RecordKey> {
        let id = key.id();
        if names_parameter(&id.constraints) {
            return None;
        }
        let mut parts = match id.constraints.formula() {
            Formula::All(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        parts.push(self.condition.clone());
        let added = RecordKey::of(&VariantId {
            constraints: Constraints::from_formula(Formula::All(parts)).ok()?,
            ..id
        });
        (self.remove(&added).as_ref() == Some(key)).then_some(added)
    }

    /// The key without this condition; `None` if it does not have it.
    pub(super) fn remove(&self, key: &RecordKey) -> Option<RecordKey> {
        if !may_name_parameter(key) {
            return None;
        }
        let id = key.id();
        let mut parts = match id.constraints.formula() {
            Formula::All(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        let at = parts.iter().position(|part| *part == self.condition)?;
        parts.remove(at);
        let constraints = match (parts.pop(), &*parts) {
            (None, _) => Constraints::NONE,
            (Some(only), []) => Constraints::from_formula(only).ok()?,
            (Some(last), _) => {
                parts.push(last);
                Constraints::from_formula(Formula::All(parts)).ok()?
            }
        };
        let removed = (!names_parameter(&constraints)).then_some(VariantId { constraints, ..id })?;
        Some(RecordKey::of(&removed))
    }
}

/// Whether the constraints of a key name the parameter. It may say so although they do not.
pub(super) fn may_name_parameter(key: &RecordKey) -> bool {
    key.when().contains(PARAMETER)
}

fn names_parameter(constraints: &Constraints) -> bool {
    constraints.keys().iter().any(|key| **key == *PARAMETER)
}

const PARAMETER: &str = "xds.schema";

#[cfg(test)]
mod tests {
    use xds_proto::xds::store::v1 as proto;

    use super::*;

    fn key(when: &str) -> RecordKey {
        let key = proto::Key { type_url: "t/T".into(), name: "a".into(), when: when.into() };
        RecordKey::parse(&key).unwrap()
    }

    #[test]
    fn sv31_the_condition_is_added_to_any_constraints_and_removed_again() {
        let version = "2.1".parse().unwrap();
        let (new, old) = (SchemaVariant::new_form(version), SchemaVariant::old_form(version));
        for when in
            ["", "env=prod", "env=prod,zone=a", "env=prod || zone=a", "!env", "(a=b || c=d),e", "z,a,m"]
        {
            let key = key(when);
            for variant in [&new, &old] {
                let added = variant.add(&key).unwrap();
                assert_eq!(variant.remove(&added).as_ref(), Some(&key), "{added:?}");
                // It is read back from its text.
                assert_eq!(RecordKey::parse(&added.to_proto()).as_ref(), Ok(&added));
            }
            assert_eq!((new.remove(&key), old.remove(&new.add(&key).unwrap())), (None, None));
        }
        assert_eq!(new.add(&key("")), Some(key("xds.schema=2")));
        assert_eq!(old.add(&key("env=prod")), Some(key("env=prod,xds.schema!=2")));
        for when in ["xds.schema=3", "xds.schema=2,xds.schema=3", "xds.schema=2 || env=prod"] {
            assert_eq!((new.add(&key(when)), new.remove(&key(when))), (None, None), "{when}");
        }
    }
}
