//! A commit that changes a reference rule reads the references of the rule's type again.

use std::ops::ControlFlow;

use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::Judging;
use super::form::{Act, Draft, REFERENCES};
use super::refused::{RefusalCode, Refused, Violations};
use crate::checked;
use crate::index::Index;
use crate::key::{RecordKey, stored};
use crate::record::{Present, RecordState, resource_of};
use crate::refs::{self, Reference};
use crate::rules::{BadRule, Rules};
use crate::stored::{ReadError, Stored};

impl Judging<'_> {
    /// The part of stage 1 that needs rules: the references that they add (ST42), and whether new ones can
    /// be used (SG11).
    pub(super) fn check_rules(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        for (number, change) in draft.changes.iter().enumerate() {
            let Act::Put(put) = &change.act else { continue };
            let found =
                if self.rules.reads_paths(&put.resource) { self.rules.named(&put.resource).len() } else { 0 };
            if found > REFERENCES.value {
                let at = (number, Some(change.key.to_proto()));
                let message = REFERENCES.message(found);
                violations.add(RefusalCode::ResourceExhausted, at, message, REFERENCES.exceeded(found));
            }
        }
        let rules = draft.changes.iter().enumerate().filter(|(_, change)| Rules::is_rule(&change.key));
        for (number, change) in rules {
            let Act::Put(put) = &change.act else { continue };
            let Err(BadRule { field, message }) = self.rules.check(&put.content.payload) else { continue };
            let at = (number, Some(change.key.to_proto()));
            let dot = if field.is_empty() { "" } else { "." };
            let field = format!("put.content.payload{dot}{field}");
            let why = proto::violation::Why::Invalid(proto::Invalid { field });
            violations.add(RefusalCode::InvalidArgument, at, message, why);
        }
        violations.into_result()
    }

    /// The rules after the changes; `None` if they are the same.
    pub(super) fn rules_after(&self, changed: &Changed) -> Option<Rules> {
        let mut rules = None;
        for (key, (state, _)) in changed.states.iter().filter(|(key, _)| Rules::is_rule(key)) {
            rules.get_or_insert_with(|| self.rules.clone()).note(key, state);
        }
        rules
    }

    /// A field has one rule at most. The rules of this judging are those after the changes.
    pub(super) fn check_twins(&self, draft: &Draft) -> Result<(), Refused> {
        let mut violations = Violations::default();
        for (number, change) in draft.changes.iter().enumerate() {
            let Some(twin) = self.rules.twin(&change.key) else { continue };
            let twin = twin.name();
            let message = format!("the rule {twin} is about the same field: change that, or delete it");
            let why = proto::Invalid { field: "put.content.payload.field".to_owned() };
            let at = (number, Some(change.key.to_proto()));
            let why = proto::violation::Why::Invalid(why);
            violations.add(RefusalCode::FailedPrecondition, at, message, why);
        }
        violations.into_result()
    }

    /// Takes what the rules of this judging, which are those after the changes, make of the references.
    pub(super) fn reread(&self, before: &Rules, changed: &mut Changed) -> Result<(), ReadError> {
        let types = before.changed_types(self.rules);
        reread(self.stored, self.records.index, (before, self.rules), |key, record, references| {
            if !changed.after.contains_key(&key) {
                changed.referrers.replace(&key, &record.references, &references);
            }
            changed.reread.insert(key, references);
        })?;
        let of_types = changed.states.iter().filter(|(key, _)| types.contains(key.type_url().as_str()));
        let of_types: Vec<_> = of_types.map(|(key, change)| (key.clone(), change.clone())).collect();
        // SR43: of an entry, other nodes have these states as they are.
        for (key, (state, outcome)) in of_types {
            changed.decided(self, &key, state, outcome);
        }
        Ok(())
    }
}

/// Calls `each` with the records whose references differ by changed rules, as the index has the records.
pub(crate) fn reread(
    stored: &Stored<'_>,
    index: &Index,
    (before, after): (&Rules, &Rules),
    mut each: impl FnMut(RecordKey, &Present, Box<[Reference]>),
) -> Result<(), ReadError> {
    for type_url in before.changed_types(after) {
        let ((from, to), mut damaged) = (stored::of_type(&type_url), None);
        stored.view()?.range(&from, &to, &mut |stored_key, value| {
            let Some((key, at)) = stored::parse_record(stored_key) else { return ControlFlow::Continue(()) };
            // Older versions, and newer ones of other servers.
            let present = index.get(&key).filter(|record| record.changed_at == at && !record.is_deleted());
            let Some(present) = present else { return ControlFlow::Continue(()) };
            let state: RecordState = match checked::decode(stored_key, value.bytes) {
                Ok(state) => state,
                Err(error) => {
                    damaged = Some(error);
                    return ControlFlow::Break(());
                }
            };
            let resource = resource_of(&key, &state);
            let references = refs::named_by(&key, &state, resource.as_ref(), after);
            if references != present.references {
                each(key, present, references);
            }
            ControlFlow::Continue(())
        })?;
        damaged.map_or(Ok(()), Err)?;
    }
    Ok(())
}
