//! Stage 5: the schema versions of contents (SV5), and the other form of each resource that is migrated.

use std::borrow::Cow;
use std::collections::BTreeMap;

use xds_proto::xds::store::v1 as proto;

use super::form::{Act, Draft, DraftChange, Put};
use super::forms::{Forms, Side};
use super::mirror::{Mirror, MirrorMode};
use super::refused::{RefusalCode, Refused, Violations};
use crate::content;
use crate::key::RecordKey;
use crate::phase::{ConvertError, Form, Phase};
use crate::schema::{
    MarkedVersion, SchemaRefusal, SchemaRule, SchemaVersion, StoredForms, WriteEffect, judge_write,
};

/// A commit that passed the stage.
pub(super) struct Checked<'d> {
    /// It changes leading forms only, with the versions under which their contents are stored.
    pub(super) draft: Cow<'d, Draft>,
    /// By the number of the change: what becomes of the other form.
    pub(super) mirrors: BTreeMap<usize, Mirror>,
}

impl Checked<'_> {
    /// The key that the request names in a change.
    pub(super) fn asked<'k>(&'k self, number: usize, change: &'k DraftChange) -> &'k RecordKey {
        let mirror = self.mirrors.get(&number).filter(|mirror| mirror.asked == mirror.form);
        mirror.map_or(&change.key, |mirror| &mirror.key)
    }
}

/// Why one change is refused.
enum Wrong {
    Version(SchemaRefusal),
    /// SV37: the new form does not exist yet.
    Hidden {
        plan: String,
        phase: u32,
    },
    Convert(ConvertError),
    /// SV25: in F5 the old form is not written any more. The key of the new one.
    Ended(Result<RecordKey, ConvertError>),
    /// ST7: another change has the other form of the resource.
    Twice(usize),
}

/// Judges the changes by table W. Conditions were judged before (store/W16).
///
/// # Errors
/// All changes that the table or a plan refuses.
pub(super) fn check<'d>(draft: &'d Draft, forms: Forms<'_>) -> Result<Checked<'d>, Refused> {
    let mut checked = Checked { draft: Cow::Borrowed(draft), mirrors: BTreeMap::new() };
    let mut violations = Violations::default();
    let mut leading: BTreeMap<RecordKey, usize> = BTreeMap::new();
    for (number, change) in draft.changes.iter().enumerate() {
        match judge(draft, change, forms) {
            Ok(Judged { version, replaced, mirror }) => {
                let key = replaced.as_ref().map_or(&change.key, |replaced| &replaced.key);
                if let Some(first) = mirror.as_ref().and_then(|_| leading.insert(key.clone(), number)) {
                    Wrong::Twice(first).add(number, &change.key, &mut violations);
                }
                // Contents of the first version are stored without a text, as they were parsed.
                if replaced.is_some() || version != SchemaVersion::FIRST {
                    let change = &mut checked.draft.to_mut().changes[number];
                    if let Some(replaced) = replaced {
                        *change = replaced;
                    }
                    // SV3: the version is a label, and the payload stays as it is.
                    if let Act::Put(put) = &mut change.act {
                        put.content.schema = version.to_stored();
                    }
                }
                mirror.into_iter().for_each(|mirror| _ = checked.mirrors.insert(number, mirror));
            }
            Err(wrong) => wrong.add(number, &change.key, &mut violations),
        }
    }
    violations.into_result()?;
    Ok(checked)
}

/// One change that the stage accepts.
struct Judged {
    /// Of the content that is put.
    version: SchemaVersion,
    /// The change of the leading form, if the request names the other one.
    replaced: Option<DraftChange>,
    mirror: Option<Mirror>,
}

fn judge(draft: &Draft, change: &DraftChange, forms: Forms<'_>) -> Result<Judged, Wrong> {
    let key = &change.key;
    let side = forms.side(key);
    let stored = forms.stored(key, side.as_ref());
    let accepted = |version| Judged { version, replaced: None, mirror: None };
    let (version, server) = match &change.act {
        Act::Put(put) => {
            let server = forms.schemas.server_version(key);
            hidden(side.as_ref())?;
            (judge_put(draft, key, put, stored, forms)?, server)
        }
        Act::Delete { .. } | Act::Touch | Act::Quarantine(_) => {
            hidden(side.as_ref())?;
            (SchemaVersion::FIRST, opaque(key, stored, forms)?)
        }
        Act::Check | Act::Phase(..) | Act::Ceiling(_) => return Ok(accepted(SchemaVersion::FIRST)),
    };
    let Some(side) = side else { return Ok(accepted(version)) };
    let leading = forms.leading(key, &side);
    let Side { plan, phase, form, other } = side;
    if phase == Phase::F0 {
        return Ok(accepted(version));
    }
    let is_below = server.major() < plan.new_version().major();
    if phase.ignores_old() {
        // SV19: a server below the new major version would write what nobody reads.
        if is_below {
            let written = None;
            return Err(Wrong::Version(SchemaRefusal { rule: SchemaRule::W14, stored, written, server }));
        }
        // SV25.
        if phase == Phase::F5 && form == Form::Old {
            return Err(Wrong::Ended(other));
        }
    }
    // SV19: a server below the new major version writes the old form only. It deletes both. In F4 and F5
    // only deletions change old records (SV18).
    let mode = if is_below || phase.ignores_old() { MirrorMode::Delete } else { MirrorMode::Write };
    let other_form = if form == Form::Old { Form::New } else { Form::Old };
    let version_of = |form| match form {
        Form::Old => forms.schemas.version(plan.type_url(Form::Old)),
        Form::New => server.min(plan.new_version()),
    };
    match (&change.act, form == leading) {
        (Act::Put(put), true) if mode == MirrorMode::Write => {
            let other = other.map_err(Wrong::Convert)?;
            let content = plan.convert(&put.content, (&other, other_form), version_of(other_form));
            let content = Some(content.map_err(Wrong::Convert)?);
            Ok(Judged {
                mirror: Some(Mirror { key: other, form: other_form, content, asked: form, mode }),
                ..accepted(version)
            })
        }
        (Act::Put(put), true) if phase == Phase::F4 => {
            // SV11, SV25: readers of the old form get it converted.
            let old = other.map_err(Wrong::Convert)?;
            let old_version = version_of(other_form);
            plan.convert(&put.content, (&old, other_form), old_version).map_err(Wrong::Convert)?;
            let mirror = Mirror { key: old, form: other_form, content: None, asked: form, mode };
            Ok(Judged { mirror: Some(mirror), ..accepted(version) })
        }
        (_, true) => {
            let mirror = |key| Mirror { key, form: other_form, content: None, asked: form, mode };
            Ok(Judged { mirror: other.ok().map(mirror), ..accepted(version) })
        }
        // SV39.
        (Act::Put(put), false) => {
            let leading = other.map_err(Wrong::Convert)?;
            let below = version_of(other_form);
            let converted =
                plan.convert(&put.content, (&leading, other_form), below).map_err(Wrong::Convert)?;
            let content = proto::Content { schema: version.to_stored(), ..put.content.clone() };
            let resource = content::resource(&leading.id(), &converted).map_err(|error| {
                Wrong::Convert(ConvertError::Payload { key: leading.clone(), reason: error.to_string() })
            })?;
            let put = Put { content: converted, resource, ..(**put).clone() };
            let replaced = DraftChange { key: leading, expected: None, act: Act::Put(Box::new(put)) };
            let mirror = Mirror { key: key.clone(), form, content: Some(content), asked: form, mode };
            Ok(Judged { version: below, replaced: Some(replaced), mirror: Some(mirror) })
        }
        (_, false) => {
            let leading = other.map_err(Wrong::Convert)?;
            let replaced = Some(DraftChange { key: leading, expected: None, act: change.act.clone() });
            let mirror = Mirror { key: key.clone(), form, content: None, asked: form, mode };
            Ok(Judged { replaced, mirror: Some(mirror), ..accepted(version) })
        }
    }
}

/// SV37: in F0 and F1 the new form is neither read nor written.
fn hidden(side: Option<&Side<'_>>) -> Result<(), Wrong> {
    match side {
        Some(Side { form: Form::New, plan, phase, .. }) if !phase.shows_new() => {
            Err(Wrong::Hidden { plan: plan.name().to_owned(), phase: phase.number() })
        }
        Some(_) | None => Ok(()),
    }
}

/// SV34: a record of a major version that the server does not know can only be replaced, deleted and
/// renewed by a server that knows it. Returns the server's version.
fn opaque(key: &RecordKey, stored: StoredForms, forms: Forms<'_>) -> Result<SchemaVersion, Wrong> {
    let server = forms.schemas.server_version(key);
    match stored {
        StoredForms::Alone(version) if version.major() > server.major() => {
            Err(Wrong::Version(SchemaRefusal { rule: SchemaRule::W14, stored, written: None, server }))
        }
        StoredForms::Absent | StoredForms::Alone(_) | StoredForms::Both { .. } => Ok(server),
    }
}

fn judge_put(
    draft: &Draft,
    key: &RecordKey,
    put: &Put,
    stored: StoredForms,
    forms: Forms<'_>,
) -> Result<SchemaVersion, Wrong> {
    let (server, form) = (forms.schemas.server_version(key), forms.schemas.form_version(key));
    // SV1, SV38: what counts is the version of the content; without one it has the highest that the
    // server knows of the form.
    let written = put.version.unwrap_or_else(|| MarkedVersion::plain(form));
    let version = match judge_write(stored, written, server, draft.force).map_err(Wrong::Version)? {
        WriteEffect::AllForms(version) | WriteEffect::OldAlone(version) => version,
    };
    // SV4.
    let is_other = match (stored, forms.schemas.form(key)) {
        (StoredForms::Alone(stored), None) => stored.major() != version.major(),
        (StoredForms::Absent | StoredForms::Both { .. }, None) | (_, Some(_)) => {
            version.major() != form.major()
        }
    };
    if is_other {
        let rule = SchemaRule::OtherMajor;
        return Err(Wrong::Version(SchemaRefusal { rule, stored, written: Some(written), server }));
    }
    Ok(version)
}

impl Wrong {
    fn add(self, number: usize, key: &RecordKey, violations: &mut Violations) {
        let no_row = || proto::violation::Why::Schema(proto::SchemaRefused::default());
        let (code, message, why) = match self {
            Self::Version(refused) => {
                let why = proto::violation::Why::Schema(refused.to_proto());
                let code = match refused.is_unknown_major() {
                    true => RefusalCode::Unimplemented,
                    false => RefusalCode::FailedPrecondition,
                };
                (code, format!("{key:?}: {refused}"), why)
            }
            Self::Hidden { plan, phase } => {
                let message = format!("{key:?} is a new form of the plan {plan}, which is in phase F{phase}");
                (RefusalCode::FailedPrecondition, message, no_row())
            }
            Self::Convert(error) => (RefusalCode::FailedPrecondition, format!("{key:?}: {error}"), no_row()),
            Self::Ended(new) => {
                let way_out = match new {
                    Ok(new) => format!("write {new:?}"),
                    Err(error) => error.to_string(),
                };
                let message = format!("{key:?} is an old form, whose plan is in phase F5: {way_out}");
                (RefusalCode::FailedPrecondition, message, no_row())
            }
            Self::Twice(first) => {
                let message = format!("{key:?} is another form of the resource of change {first}");
                let why = proto::violation::Why::Invalid(proto::Invalid { field: "key".to_owned() });
                (RefusalCode::InvalidArgument, message, why)
            }
        };
        violations.add(code, (number, Some(key.to_proto())), message, why);
    }
}
