//! Stage 1: what can never be right, whatever the store holds (ST7, ST42, ST66).

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use prost::Message;
use xds_core::matching::SetError;
use xds_core::{Constraints, Resource, ResourceError, VariantSet};
use xds_proto::xds::store::v1 as proto;

use super::refused::{Limit, RefusalCode, Refused, Violations};
use super::rights::WriteAccess;
use super::{authority, forget, region};
use crate::authority::AUTHORITY_TYPE;
use crate::content::{self, ContentError};
use crate::forgotten::FORGOTTEN_TYPE;
use crate::key::{KeyError, RecordKey, parse_id};
use crate::phase::{Ceiling, PhaseStep, StepTime};
use crate::read::is_configuration;
use crate::record::{PROBE_TYPE, Uid};
use crate::region::POLICY_TYPE;
use crate::rollout;
use crate::rules::RULE_TYPE;
use crate::schema::{Force, MarkedVersion, VersionError};
use crate::time;

/// A commit of the right form.
#[derive(Debug, Clone)]
pub struct Draft {
    pub(crate) changes: Vec<DraftChange>,
    pub(crate) identity: String,
    /// The named owner that it acts as; empty: none.
    pub(crate) owner: String,
    pub(crate) prune: bool,
    pub(crate) take_over: bool,
    pub(crate) force: Force,
    pub(crate) message: String,
    pub(crate) dry_run: bool,
    /// SG3: new references that lead nowhere are warnings.
    pub(crate) allow_missing: bool,
    /// The owner changes records that it shares with others, too.
    pub(super) is_sharing: bool,
    /// The changes copy another store, so owners and references are not judged.
    pub(crate) is_copy: bool,
    pub(crate) rollout: Option<proto::Rollout>,
    /// What its client may write; `None`: everything.
    pub(super) access: Option<WriteAccess>,
    bytes: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct DraftChange {
    pub(crate) key: RecordKey,
    pub(crate) expected: Option<Expected>,
    pub(crate) act: Act,
}

/// What must hold for a record before the commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    Absent,
    Exists,
    Revision(String),
    Uid(String),
}

#[derive(Debug, Clone)]
pub(crate) enum Act {
    Put(Box<Put>),
    /// With `drain` it waits until nothing blocks it.
    Delete {
        drain: bool,
    },
    Touch,
    Quarantine(proto::Quarantine),
    Check,
    Phase(PhaseStep, StepTime),
    Ceiling(Ceiling),
}

#[derive(Debug, Clone)]
pub(crate) struct Put {
    pub(crate) content: proto::Content,
    /// The version that the writer gave; the content has that of stage 5.
    pub(crate) version: Option<MarkedVersion>,
    /// What clients get.
    pub(crate) resource: Resource,
    pub(crate) expires_at: Option<i64>,
    /// In nanoseconds.
    pub(crate) lease: Option<i64>,
    /// The resource owners from now on.
    pub(crate) owners: Vec<proto::ResourceOwner>,
}

/// The limits of one commit that an operator can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitLimits {
    /// Changes, with those that the store adds.
    pub changes: usize,
    /// Bytes of the request.
    pub bytes: usize,
}

impl Default for CommitLimits {
    fn default() -> Self {
        Self { changes: 10_000, bytes: 64 << 20 }
    }
}

impl CommitLimits {
    pub(super) fn changes(self) -> Limit {
        Limit { name: "changes of a commit", option: "--commit-changes-limit", value: self.changes }
    }
}

impl Draft {
    /// Takes a request of this identity, with the default limits.
    ///
    /// # Errors
    /// See [`parse_within`](Self::parse_within).
    pub fn parse(request: proto::CommitRequest, identity: String) -> Result<Self, Refused> {
        Self::parse_within(request, identity, CommitLimits::default())
    }

    /// Takes a request of this identity.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with all that can never be right; `RESOURCE_EXHAUSTED` with limits.
    pub fn parse_within(
        request: proto::CommitRequest,
        identity: String,
        limits: CommitLimits,
    ) -> Result<Self, Refused> {
        // ST66: limits of the whole commit come before those of its changes.
        let bytes = request.encoded_len();
        let of_bytes =
            Limit { name: "bytes of a commit", option: "--commit-bytes-limit", value: limits.bytes };
        for (limit, found) in [(limits.changes(), request.changes.len()), (of_bytes, bytes)] {
            if found > limit.value {
                return Err(Refused::limit(&limit, found));
            }
        }
        let mut violations = Violations::default();
        check_request(&request, &mut violations);
        let mut seen = BTreeMap::new();
        let mut changes = Vec::with_capacity(request.changes.len());
        for (number, change) in request.changes.into_iter().enumerate() {
            let wire_key = change.key.clone().unwrap_or_default();
            match parse_change(change) {
                Ok(change) => {
                    // ST7: a key appears at most once.
                    if let Some(first) = seen.insert(change.key.clone(), number) {
                        let twice = Wrong::new("key", format!("change {first} has the same key"));
                        twice.add(number, wire_key, &mut violations);
                    // An owner could release it.
                    } else if change.key.has_type(FORGOTTEN_TYPE) && !request.owner.is_empty() {
                        let owned = Wrong::new("owner", "a forgotten node has no owner");
                        owned.add(number, wire_key, &mut violations);
                    } else {
                        changes.push(change);
                    }
                }
                Err(wrong) => wrong.add(number, wire_key, &mut violations),
            }
        }
        violations.into_result()?;
        let proto::CommitRequest { owner, prune, take_over, force_schema, message, dry_run, .. } = request;
        let proto::CommitRequest { allow_missing, is_copy, rollout, .. } = request;
        let force = if force_schema { Force::On } else { Force::Off };
        Ok(Self {
            changes,
            identity,
            owner,
            prune,
            take_over,
            force,
            message,
            dry_run,
            allow_missing,
            is_sharing: false,
            is_copy,
            rollout,
            access: None,
            bytes,
        })
    }

    /// A change that only the store itself makes.
    pub(super) fn of_store(change: DraftChange, identity: String, dry_run: bool) -> Self {
        Self {
            changes: vec![change],
            identity,
            owner: String::new(),
            prune: false,
            take_over: false,
            force: Force::Off,
            message: String::new(),
            dry_run,
            allow_missing: false,
            is_sharing: false,
            is_copy: false,
            rollout: None,
            access: None,
            bytes: 0,
        }
    }

    /// Lets the owner of the commit change the content of records that it shares with other owners
    /// (SG15): the caller has found out that this owner put the content last.
    #[must_use]
    pub fn as_one_of_the_owners(mut self) -> Self {
        self.is_sharing = true;
        self
    }

    /// About how many bytes it takes in memory.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }
}

/// What is wrong with one change.
pub(super) struct Wrong {
    field: &'static str,
    message: String,
    limit: Option<(Limit, usize)>,
}

impl Wrong {
    pub(super) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into(), limit: None }
    }

    fn limit(field: &'static str, name: &'static str, value: usize, found: usize) -> Self {
        let limit = Limit { name, option: "", value };
        Self { field, message: limit.message(found), limit: Some((limit, found)) }
    }

    fn add(self, number: usize, key: proto::Key, violations: &mut Violations) {
        let (code, why) = match self.limit {
            Some((limit, found)) => (RefusalCode::ResourceExhausted, limit.exceeded(found)),
            None => {
                let why = proto::violation::Why::Invalid(proto::Invalid { field: self.field.to_owned() });
                (RefusalCode::InvalidArgument, why)
            }
        };
        violations.add(code, (number, Some(key)), self.message, why);
    }
}

/// The fields of the request as a whole.
fn check_request(request: &proto::CommitRequest, violations: &mut Violations) {
    let mut invalid = |field: &str, message: String| {
        let why = proto::violation::Why::Invalid(proto::Invalid { field: field.to_owned() });
        violations.add(RefusalCode::InvalidArgument, (0, None), message, why);
    };
    let owner = &request.owner;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    if owner.len() > OWNER_LIMIT_BYTES || !owner.bytes().all(is_name) {
        let text = format!("an owner has at most {OWNER_LIMIT_BYTES} letters, digits, and . _ / -");
        invalid("owner", text);
    }
    if request.prune && owner.is_empty() {
        invalid("prune", "prune needs an owner".to_owned());
    }
    if request.ack_peers > 0 {
        invalid("ack_peers", "this store has no peers, so none can acknowledge a commit".to_owned());
    }
    if let Some(Err(error)) = request.rollout.as_ref().map(rollout::check) {
        invalid("rollout", error.to_string());
    }
    if request.message.len() > MESSAGE_LIMIT_BYTES {
        let limit = Limit { name: "bytes of the message", option: "", value: MESSAGE_LIMIT_BYTES };
        let (found, code) = (request.message.len(), RefusalCode::ResourceExhausted);
        violations.add(code, (0, None), limit.message(found), limit.exceeded(found));
    }
}

fn parse_change(change: proto::Change) -> Result<DraftChange, Wrong> {
    let wire_key = change.key.ok_or_else(|| Wrong::new("key", "the change has no key"))?;
    let id = parse_id(&wire_key).map_err(|error| match error {
        KeyError::TooLong { part, found, limit } => Wrong::limit("key", part, limit, found),
        error => Wrong::new("key", error.to_string()),
    })?;
    // ST55. They change how the store judges, so a version that does not read them refuses them.
    let is_known =
        [PROBE_TYPE, RULE_TYPE, POLICY_TYPE, AUTHORITY_TYPE, FORGOTTEN_TYPE].contains(&id.type_url.as_str());
    if is_configuration(id.type_url.as_str()) && !is_known {
        return Err(Wrong::new("key.type_url", "this version has no configuration records"));
    }
    let expected = match change.condition {
        None => None,
        Some(proto::Condition { is: Some(is) }) => Some(match is {
            proto::condition::Is::Absent(true) => Expected::Absent,
            proto::condition::Is::Exists(true) => Expected::Exists,
            proto::condition::Is::Revision(text) => Expected::Revision(text),
            proto::condition::Is::Uid(text) => Expected::Uid(text),
            proto::condition::Is::Absent(false) | proto::condition::Is::Exists(false) => {
                return Err(Wrong::new("condition", "absent and exists must be true"));
            }
        }),
        Some(proto::Condition { is: None }) => {
            return Err(Wrong::new("condition", "the condition is empty"));
        }
    };
    // ST8. What has another one from before can be deleted.
    let is_put = matches!(change.act, Some(proto::change::Act::Put(_)));
    let is_url = |text: &str| text.rsplit_once('/').is_some_and(|(_, name)| !name.is_empty());
    if is_put && !is_url(id.type_url.as_str()) {
        let message = format!(
            "{:?} is no type URL, such as type.googleapis.com/envoy.config.cluster.v3.Cluster",
            id.type_url.as_str()
        );
        return Err(Wrong::new("key.type_url", message));
    }
    let key = RecordKey::of(&id);
    if id.type_url.as_str() == RULE_TYPE {
        check_lasting("a reference rule", &id, change.act.as_ref())?;
    }
    if id.type_url.as_str() == POLICY_TYPE {
        region::check_form(&id, change.act.as_ref())?;
    }
    if id.type_url.as_str() == AUTHORITY_TYPE {
        authority::check_form(&id, change.act.as_ref())?;
    }
    if id.type_url.as_str() == FORGOTTEN_TYPE {
        forget::check_form(&id, change.act.as_ref())?;
    }
    let act = match change.act.ok_or_else(|| Wrong::new("act", "the change has no act"))? {
        proto::change::Act::Put(put) => Act::Put(Box::new(parse_put(&id, put)?)),
        proto::change::Act::Delete(delete) => Act::Delete { drain: delete.drain },
        proto::change::Act::Touch(_) => Act::Touch,
        proto::change::Act::Quarantine(quarantine) => {
            if quarantine.reason.len() > REASON_LIMIT_BYTES {
                let found = quarantine.reason.len();
                let field = "quarantine.reason";
                return Err(Wrong::limit(field, "bytes of the reason", REASON_LIMIT_BYTES, found));
            }
            Act::Quarantine(quarantine)
        }
        proto::change::Act::Check(_) => Act::Check,
    };
    Ok(DraftChange { key, expected, act })
}

/// What is configuration holds as long as it is there, for all clients and at all nodes (SG11, SG21, SG37).
pub(super) fn check_lasting(
    what: &str,
    id: &xds_core::VariantId,
    act: Option<&proto::change::Act>,
) -> Result<(), Wrong> {
    let wrong = |field, why: &str| Err(Wrong::new(field, format!("{what} {why}")));
    if !id.constraints.is_unconstrained() {
        return wrong("key.when", "has no constraints");
    }
    match act {
        Some(proto::change::Act::Quarantine(_)) => {
            wrong("quarantine", "cannot be quarantined: delete or replace it")
        }
        Some(proto::change::Act::Put(put)) if put.lease.is_some() => wrong("put.lease", "has no lease"),
        Some(proto::change::Act::Put(put)) if !put.owners.is_empty() => {
            wrong("put.owners", "is not owned by a record")
        }
        Some(proto::change::Act::Put(put)) if put.expires_at.is_some() => {
            wrong("put.expires_at", "does not expire")
        }
        _ => Ok(()),
    }
}

fn parse_put(id: &xds_core::VariantId, put: proto::Put) -> Result<Put, Wrong> {
    let mut content = put.content.ok_or_else(|| Wrong::new("put.content", "the put has no content"))?;
    let version =
        match &*mem::take(&mut content.schema) {
            "" => None,
            text => Some(text.parse().map_err(|error: VersionError| {
                Wrong::new("put.content.schema", format!("{text:?}: {error}"))
            })?),
        };
    check_owners(id, &put.owners)?;
    if content.labels.len() > LABELS_LIMIT {
        let found = content.labels.len();
        return Err(Wrong::limit("put.content.labels", "labels", LABELS_LIMIT, found));
    }
    let longest = content.labels.iter().flat_map(|(key, value)| [key.len(), value.len()]).max();
    if let Some(found) = longest.filter(|found| *found > LABEL_LIMIT_BYTES) {
        let name = "bytes of a label";
        return Err(Wrong::limit("put.content.labels", name, LABEL_LIMIT_BYTES, found));
    }
    let expires_at = put.expires_at.as_ref().map(time::from_proto);
    let lease = put.lease.as_ref().map(time::length_from_proto);
    if lease.is_some_and(|lease| lease < LEASE_MINIMUM) {
        return Err(Wrong::new("put.lease", "a lease is at least 5 s"));
    }
    if lease.is_some() && expires_at.is_some() {
        return Err(Wrong::new("put.expires_at", "a record has either expires_at or a lease"));
    }
    let resource = content::resource(id, &content).map_err(|error| match error {
        ContentError::Resource(ResourceError::TooLarge { size_bytes, limit_bytes, .. }) => {
            Wrong::limit(error.field(), "bytes of a payload", limit_bytes, size_bytes)
        }
        error => Wrong::new(error.field(), format!("{}: {error}", error.field())),
    })?;
    check_constraints(&id.constraints)?;
    let references = resource.named_resources().count();
    if references > REFERENCES.value {
        return Err(Wrong::limit("put.content.payload", REFERENCES.name, REFERENCES.value, references));
    }
    Ok(Put { content, version, resource, expires_at, lease, owners: put.owners })
}

/// SG17: whether the owners exist is not checked at the write.
fn check_owners(owned: &xds_core::VariantId, owners: &[proto::ResourceOwner]) -> Result<(), Wrong> {
    if owners.len() > OWNERS_LIMIT {
        return Err(Wrong::limit("put.owners", "owners", OWNERS_LIMIT, owners.len()));
    }
    let mut seen = BTreeSet::new();
    for owner in owners {
        let key = owner.key.as_ref().ok_or_else(|| Wrong::new("put.owners.key", "an owner has no key"))?;
        let key = RecordKey::parse(key).map_err(|error| Wrong::new("put.owners.key", error.to_string()))?;
        if Uid::parse(&owner.uid).is_none() {
            let text = format!("{:?} is not the uid of a record", owner.uid);
            return Err(Wrong::new("put.owners.uid", text));
        }
        if key == RecordKey::of(owned) {
            return Err(Wrong::new("put.owners.key", "a record does not own itself"));
        }
        if is_configuration(key.type_url().as_str()) {
            return Err(Wrong::new("put.owners.key", "a configuration record owns nothing"));
        }
        if !seen.insert((key.clone(), &owner.uid)) {
            return Err(Wrong::new("put.owners", format!("{key:?} is given twice")));
        }
    }
    Ok(())
}

/// ST66: a constraint that can never match.
fn check_constraints(constraints: &Constraints) -> Result<(), Wrong> {
    match VariantSet::of([(constraints, Arc::new(()))]) {
        Ok(_) => Ok(()),
        Err(SetError::Unsatisfiable { .. }) => {
            Err(Wrong::new("key.when", "no parameters can match these constraints"))
        }
        Err(error) => Err(Wrong::new("key.when", error.to_string())),
    }
}

const OWNER_LIMIT_BYTES: usize = 128;
const MESSAGE_LIMIT_BYTES: usize = 1 << 10;
const REASON_LIMIT_BYTES: usize = 4 << 10;
pub(super) const REFERENCES: Limit = Limit { name: "references of a record", option: "", value: 10_000 };
/// Of a record.
const OWNERS_LIMIT: usize = 32;
const LABELS_LIMIT: usize = 64;
const LABEL_LIMIT_BYTES: usize = 256;
const LEASE_MINIMUM: i64 = 5 * time::SECOND;
