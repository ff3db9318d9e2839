//! What authorities may refer to, as commits are judged on it (SG37).

use std::collections::BTreeSet;

use xds_core::VariantId;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::Judging;
use super::form::{Act, Draft, Wrong, check_lasting};
use super::reference::{Referring, target_key};
use super::refused::{RefusalCode, Refused, Violations};
use crate::authority::Authorities;
use crate::key::NameDigest;
use crate::refs;
use crate::rules::{Acts, Named};

/// SG37: what an authority can be. It holds as long as it is there, at all nodes.
pub(super) fn check_form(id: &VariantId, act: Option<&proto::change::Act>) -> Result<(), Wrong> {
    check_lasting("an authority", id, act)?;
    let Some(proto::change::Act::Put(proto::Put { content: Some(content), .. })) = act else { return Ok(()) };
    let checked = Authorities::check(id.name.as_str(), &content.payload);
    checked.map_err(|bad| Wrong::new(bad.field, bad.message))
}

impl Judging<'_> {
    /// The authorities after the changes; `None` if they are the same.
    pub(super) fn authorities_after(&self, changed: &Changed) -> Option<Authorities> {
        let mut authorities = None;
        for (key, (state, _)) in changed.states.iter().filter(|(key, _)| Authorities::is_authority(key)) {
            authorities.get_or_insert_with(|| self.authorities.clone()).note(key, state);
        }
        authorities
    }

    /// Whether the authorities that a commit writes can be kept. Those of this judging are those after the
    /// changes. Warnings for people: what changed policies do to other authorities.
    ///
    /// # Errors
    /// Imports form a circle, or a region that has names of an authority has none of one that it imports.
    pub(super) fn check_authorities(&self, draft: &Draft, changed: &Changed) -> Result<Vec<String>, Refused> {
        let mut policies = self.policies.clone();
        changed.states.iter().for_each(|(key, (state, _))| policies.note(key, state));
        let written: BTreeSet<_> =
            changed.states.keys().filter(|key| Authorities::is_authority(key)).collect();
        if written.is_empty() && policies == *self.policies {
            return Ok(Vec::new());
        }
        let (before, after) =
            (self.authorities.misplaced(self.policies), self.authorities.misplaced(&policies));
        let (mut violations, mut warnings) = (Violations::default(), Vec::new());
        for (authority, import) in self.authorities.imports() {
            let number = draft.changes.iter().position(|change| {
                written.contains(&change.key) && change.key.type_and_name().1 == authority
            });
            let mut refuse = |number: usize, message: String| {
                let why = proto::Invalid { field: "put.content.payload.imports".to_owned() };
                let at = (number, draft.changes.get(number).map(|change| change.key.to_proto()));
                let why = proto::violation::Why::Invalid(why);
                violations.add(RefusalCode::FailedPrecondition, at, message, why);
            };
            let circle = number.and_then(|_| self.authorities.circle(authority, import));
            if let (Some(number), Some(circle)) = (number, circle) {
                refuse(number, format!("imports cannot be a circle: {}", circle.join(" > ")));
            }
            let Some(regions) = after.get(&(authority, import)) else { continue };
            let message = format!(
                "{authority} imports {import}, and names of {authority} are in regions that have none of {import}: \
                 {regions}"
            );
            match number {
                Some(number) => refuse(number, message),
                None if !before.contains_key(&(authority, import)) => warnings.push(message),
                None => {}
            }
        }
        violations.into_result()?;
        Ok(warnings)
    }
}

impl Referring<'_> {
    /// What a put adds leads to no authority that that of its name does not import. References that the record had
    /// before are not judged again (SG12), and fields that allow everything are not judged.
    pub(super) fn check_imports(&self, violations: &mut Violations, fields_left: &mut usize) {
        let Self { judging, draft, states, .. } = self;
        if judging.authorities.is_empty() {
            return;
        }
        for (number, change) in draft.changes.iter().enumerate() {
            let key = &change.key;
            let Act::Put(put) = &change.act else { continue };
            if !states.contains_key(key) {
                continue;
            }
            let before = self.before(key);
            for Named { type_url: of_type, name, acts } in judging.rules.named(&put.resource) {
                let had = refs::find(before, NameDigest::of(of_type, name.as_str()));
                if acts == Acts::ALLOW || had.is_some_and(|had| had != Acts::ALLOW) {
                    continue;
                }
                let Some(reason) = judging.authorities.refuses(key.type_and_name().1, name.as_str()) else {
                    continue;
                };
                let field = self.field(put, (of_type, &name), fields_left, |acts| acts != Acts::ALLOW);
                let at = if field.is_empty() { String::new() } else { format!(" ({field})") };
                let message = format!("{key:?} names {of_type} {name}{at}: {reason}");
                let target = target_key(of_type, &name);
                violations.add_not_imported((number, Some(key.to_proto())), (target, field), message);
            }
        }
    }
}
