//! Stage 2: what the client of a commit may write (ST8).

use xds_core::{Access, ResourceName, TypeUrl};
use xds_proto::xds::store::v1 as proto;

use super::effect::Effect;
use super::form::{Act, Draft};
use super::refused::{RefusalCode, Refused, Violations};
use crate::key::RecordKey;
use crate::read::is_configuration;

/// The records that a client may write, and those that it may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteAccess {
    /// Records of all types but those of configuration.
    pub records: Access,
    /// Whether it may write configuration records (ST55).
    pub configuration: bool,
    /// Records that it may read: a refusal names no others (ST54).
    pub read: Access,
}

impl WriteAccess {
    /// Whether the client may write a record of this type and name.
    #[must_use]
    pub fn allows(&self, type_url: &TypeUrl, name: &ResourceName) -> bool {
        if is_configuration(type_url.as_str()) {
            return self.configuration;
        }
        self.records.allows(type_url, name)
    }

    fn allows_key(&self, key: &RecordKey) -> bool {
        self.allows(&key.type_url(), &key.name())
    }
}

impl Draft {
    /// Whether the client may write a record.
    pub(super) fn may_write(&self, key: &RecordKey) -> bool {
        self.access.as_ref().is_none_or(|access| access.allows_key(key))
    }

    /// Whether the client may read a record.
    pub(super) fn may_read(&self, key: &RecordKey) -> bool {
        self.access.as_ref().is_none_or(|access| access.read.allows(&key.type_url(), &key.name()))
    }

    /// Limits the commit to what its client may write: the records that the request names, the
    /// aliases of their new contents, and the records that the store finds when it judges the
    /// commit (`prune`). Without this call a commit may write everything.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` with all records and aliases of the request that the client may not write.
    pub fn limited_to(mut self, access: WriteAccess) -> Result<Self, Refused> {
        let mut violations = Violations::default();
        for (number, change) in self.changes.iter().enumerate() {
            let key = &change.key;
            let type_url = key.type_url();
            let mut deny = |message: String| {
                let (right, why) = missing(&type_url);
                let message = format!("{message}: it lacks the right `{right}`");
                let at = (number, Some(key.to_proto()));
                violations.add(RefusalCode::PermissionDenied, at, message, why);
            };
            if !access.allows(&type_url, &key.name()) {
                deny(format!("this client may not write {key:?}"));
            }
            // Clients that request an alias get the content, too.
            let Act::Put(put) = &change.act else { continue };
            for alias in put.resource.aliases().iter().filter(|alias| !access.allows(&type_url, alias)) {
                deny(format!("this client may not write {alias}, which is an alias of {key:?}"));
            }
        }
        violations.into_result()?;
        self.access = Some(access);
        Ok(self)
    }
}

/// A prune changes records that the request does not name. The refusal only counts them, because
/// the client may not read all of them (ST54).
pub(super) fn check_pruned(draft: &Draft, pruned: &[RecordKey]) -> Result<(), Refused> {
    let Some(access) = &draft.access else { return Ok(()) };
    let mut denied = pruned.iter().filter(|key| !access.allows_key(key));
    let Some(first) = denied.next() else { return Ok(()) };
    let (right, why) = missing(&first.type_url());
    let records = counted(denied.count() + 1);
    let message = format!(
        "prune would end the ownership of {records} that this client may not write: it lacks the right `{right}`"
    );
    let mut violations = Violations::default();
    violations.add(RefusalCode::PermissionDenied, (0, None), message, why);
    violations.into_result()
}

/// Deletions change further records by the rules of the store. The refusal only counts them, because the
/// client may not read all of them (ST54).
pub(super) fn check_ended(draft: &Draft, ended: &[Effect]) -> Result<(), Refused> {
    let Some(access) = &draft.access else { return Ok(()) };
    let mut denied = ended.iter().filter(|effect| !access.allows_key(&effect.key));
    let Some(first) = denied.next() else { return Ok(()) };
    let (right, why) = missing(&first.key.type_url());
    let message = format!(
        "this would change or delete {} that this client may not write, because a rule deletes them or clears \
         their field: it lacks the right `{right}`",
        counted(denied.count() + 1)
    );
    let mut violations = Violations::default();
    violations.add(RefusalCode::PermissionDenied, (0, None), message, why);
    violations.into_result()
}

fn counted(records: usize) -> String {
    if records == 1 { "1 record".to_owned() } else { format!("{records} records") }
}

/// The right that a client needs to write records of a type.
fn missing(type_url: &TypeUrl) -> (&'static str, proto::violation::Why) {
    let right = if is_configuration(type_url.as_str()) { "operate" } else { "write" };
    (right, proto::violation::Why::Right(proto::RightMissing { right: right.to_owned() }))
}
