//! Stage 5: the schema versions of contents (SV5).

use std::borrow::Cow;

use xds_proto::xds::store::v1 as proto;

use super::form::{Act, Draft, Put};
use super::refused::{Refused, Violations};
use crate::index::Records;
use crate::key::RecordKey;
use crate::schema::{
    MarkedVersion, SchemaRefusal, SchemaRule, SchemaVersion, Schemas, StoredForms, WriteEffect, judge_write,
};

/// Judges the puts by table W. Conditions were judged before (store/W16). The result has the versions under
/// which the contents are stored.
///
/// # Errors
/// All puts that the table refuses.
pub(super) fn check<'d>(
    draft: &'d Draft,
    records: Records<'_>,
    schemas: &Schemas,
    now: i64,
) -> Result<Cow<'d, Draft>, Refused> {
    let mut checked = Cow::Borrowed(draft);
    let mut violations = Violations::default();
    for (number, change) in draft.changes.iter().enumerate() {
        let record = records.get(&change.key).filter(|record| record.exists(now));
        let stored = record.map_or(StoredForms::Absent, |record| StoredForms::Alone(record.schema));
        let judged = match &change.act {
            Act::Put(put) => judge(&change.key, put, stored, schemas, draft),
            Act::Delete | Act::Touch | Act::Quarantine(_) => opaque(&change.key, stored, schemas),
            Act::Check => continue,
        };
        match judged {
            // Contents of the first version are stored without a text, as they were parsed.
            Ok(SchemaVersion::FIRST) => {}
            Ok(version) => {
                // SV3: the version is a label, and the payload stays as it is.
                if let Act::Put(put) = &mut checked.to_mut().changes[number].act {
                    put.content.schema = version.to_stored();
                }
            }
            Err(refused) => {
                let key = change.key.to_proto();
                let message = format!("{:?}: {refused}", change.key);
                let why = proto::violation::Why::Schema(refused.to_proto());
                violations.add(refused.code(), (number, Some(key)), message, why);
            }
        }
    }
    violations.into_result()?;
    Ok(checked)
}

/// SV34: a record of a major version that the server does not know can only be replaced, deleted and
/// renewed by a server that knows it.
fn opaque(key: &RecordKey, stored: StoredForms, schemas: &Schemas) -> Result<SchemaVersion, SchemaRefusal> {
    let server = schemas.version(key.type_url().as_str());
    match stored {
        StoredForms::Alone(version) if version.major() > server.major() => {
            Err(SchemaRefusal { rule: SchemaRule::W14, stored, written: None, server })
        }
        StoredForms::Absent | StoredForms::Alone(_) | StoredForms::Both { .. } => Ok(SchemaVersion::FIRST),
    }
}

fn judge(
    key: &RecordKey,
    put: &Put,
    stored: StoredForms,
    schemas: &Schemas,
    draft: &Draft,
) -> Result<SchemaVersion, SchemaRefusal> {
    let server = schemas.version(key.type_url().as_str());
    // SV1, SV38: what counts is the version of the content; without one it has the highest that the
    // server knows.
    let written = put.version.unwrap_or_else(|| MarkedVersion::plain(server));
    let version = match judge_write(stored, written, server, draft.force)? {
        WriteEffect::AllForms(version) | WriteEffect::OldAlone(version) => version,
    };
    // SV4.
    let is_other = match stored {
        StoredForms::Alone(stored) => stored.major() != version.major(),
        StoredForms::Absent | StoredForms::Both { .. } => version.major() != server.major(),
    };
    if is_other {
        let rule = SchemaRule::OtherMajor;
        return Err(SchemaRefusal { rule, stored, written: Some(written), server });
    }
    Ok(version)
}
