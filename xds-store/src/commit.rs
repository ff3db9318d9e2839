//! One commit: what was requested, and what becomes of it (ST8).

use std::collections::BTreeMap;

use prost::Message;
use xds_proto::xds::store::v1 as proto;

use crate::engine::EngineError;
use crate::key::RecordKey;
use crate::log::{Head, LogChange};
use crate::record::{Present, RecordRevision, RecordState, Uid, content_digest};

/// A commit of the right form: stage 1 of ST8.
#[derive(Debug, Clone)]
pub struct Draft {
    changes: Vec<(RecordKey, Option<Expected>, Act)>,
    size_bytes: usize,
    pub(crate) identity: String,
    pub(crate) owner: String,
    pub(crate) message: String,
}

/// What must hold for a record before the commit.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expected {
    Absent,
    Exists,
    Revision(String),
    Uid(String),
}

#[derive(Debug, Clone)]
enum Act {
    Put(proto::Content),
    Delete,
    Check,
}

/// Why a commit changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// The code of the first stage that refused (ST8).
    pub code: RefusalCode,
    /// All violations of that stage; empty if the store as a whole refuses.
    pub violations: Vec<proto::Violation>,
    /// For people.
    pub message: String,
}

/// The code of a refusal, with the meaning that gRPC gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCode {
    /// It can never be right.
    InvalidArgument,
    /// It exists already.
    AlreadyExists,
    /// It does not exist.
    NotFound,
    /// It was changed meanwhile: read again and retry.
    Aborted,
    /// A limit, or a full disk.
    ResourceExhausted,
    /// The store accepts no commits at present.
    Unavailable,
    /// It is not known whether the commit was applied.
    Unknown,
}

/// What happened to one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeResult {
    /// What happened.
    pub outcome: proto::Outcome,
    /// The revision and uid of the record after the commit; `None` if there is none.
    pub record: Option<(RecordRevision, Uid)>,
}

/// What a commit does.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) changed: BTreeMap<RecordKey, JudgedChange>,
    pub(crate) results: Vec<ChangeResult>,
}

/// What a commit makes of one record.
#[derive(Debug)]
pub(crate) struct JudgedChange {
    pub(crate) state: RecordState,
    outcome: proto::Outcome,
    /// The store revision of the state before; 0 if there was none.
    previous: u64,
}

impl Draft {
    /// Takes a request of this identity.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with all that can never be right.
    pub fn parse(request: proto::CommitRequest, identity: String) -> Result<Self, Refused> {
        let size_bytes = request.encoded_len();
        let mut changes = Vec::with_capacity(request.changes.len());
        let mut seen = BTreeMap::new();
        let mut violations = Vec::new();
        for (number, change) in request.changes.into_iter().enumerate() {
            let mut invalid = |key: Option<proto::Key>, field: &str, message: String| {
                let why = proto::violation::Why::Invalid(proto::Invalid { field: field.to_owned() });
                let change = u32::try_from(number).unwrap_or(u32::MAX);
                violations.push(proto::Violation { change, key, message, why: Some(why) });
            };
            let wire_key = change.key.unwrap_or_default();
            let key = match RecordKey::parse(&wire_key) {
                Ok(key) => key,
                Err(error) => {
                    invalid(Some(wire_key), "key", error.to_string());
                    continue;
                }
            };
            // ST7: a key appears at most once.
            if let Some(first) = seen.insert(key.clone(), number) {
                invalid(Some(wire_key), "key", format!("change {first} has the same key"));
                continue;
            }
            let expected = change.condition.and_then(|condition| condition.is).map(|is| match is {
                proto::condition::Is::Absent(_) => Expected::Absent,
                proto::condition::Is::Exists(_) => Expected::Exists,
                proto::condition::Is::Revision(text) => Expected::Revision(text),
                proto::condition::Is::Uid(text) => Expected::Uid(text),
            });
            let act = match change.act {
                Some(proto::change::Act::Put(put)) => Act::Put(put.content.unwrap_or_default()),
                Some(proto::change::Act::Delete(_)) => Act::Delete,
                Some(proto::change::Act::Check(_)) => Act::Check,
                Some(_) => {
                    invalid(Some(wire_key), "act", "this version does not know this change".to_owned());
                    continue;
                }
                None => {
                    invalid(Some(wire_key), "act", "the change has no act".to_owned());
                    continue;
                }
            };
            changes.push((key, expected, act));
        }
        if violations.is_empty() {
            Ok(Self { changes, size_bytes, identity, owner: request.owner, message: request.message })
        } else {
            Err(Refused::of(RefusalCode::InvalidArgument, violations))
        }
    }

    /// The size of the request.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// What the commit does to the records that `present` gives, deleted ones included.
    pub(crate) fn judge<'a>(
        &self,
        head: &Head,
        present: impl Fn(&RecordKey) -> Option<&'a Present>,
    ) -> Result<Judged, Refused> {
        self.check_conditions(&present)?;
        let mut judged = Judged { changed: BTreeMap::new(), results: Vec::with_capacity(self.changes.len()) };
        for (key, _, act) in &self.changes {
            let before = present(key);
            let live = before.filter(|record| !record.is_deleted);
            let unchanged = |outcome, record: Option<&Present>| ChangeResult {
                outcome,
                record: record.map(|record| (record.revision, record.uid)),
            };
            let result = match act {
                Act::Check => unchanged(proto::Outcome::Checked, live),
                Act::Put(content) => {
                    let (state, outcome) = put(key, content, before, head);
                    match live {
                        // ST12.
                        Some(record) if record.content == state.digest => {
                            unchanged(proto::Outcome::Unchanged, live)
                        }
                        _ => judged.change(key, state, outcome, before),
                    }
                }
                Act::Delete => match live {
                    // ST13.
                    None => unchanged(proto::Outcome::Absent, None),
                    Some(record) => {
                        let state = tombstone(key, record);
                        judged.change(key, state, proto::Outcome::Deleted, before)
                    }
                },
            };
            judged.results.push(result);
        }
        Ok(judged)
    }

    /// ST9, ST11: conditions are judged on the state before the commit, which predecessors in the same
    /// batch have changed already.
    fn check_conditions<'a>(
        &self,
        present: impl Fn(&RecordKey) -> Option<&'a Present>,
    ) -> Result<(), Refused> {
        let mut code = None;
        let mut violations = Vec::new();
        for (number, (key, expected, _)) in self.changes.iter().enumerate() {
            let record = present(key).filter(|record| !record.is_deleted);
            let failed = match (expected, record) {
                (None, _) | (Some(Expected::Absent), None) | (Some(Expected::Exists), Some(_)) => continue,
                (Some(Expected::Revision(text)), Some(record)) if record.revision.to_string() == *text => {
                    continue;
                }
                (Some(Expected::Uid(text)), Some(record)) if record.uid.to_string() == *text => continue,
                (Some(Expected::Absent), Some(_)) => RefusalCode::AlreadyExists,
                (Some(_), None) => RefusalCode::NotFound,
                (Some(_), Some(_)) => RefusalCode::Aborted,
            };
            // The code is that of the first change that the stage refuses.
            code.get_or_insert(failed);
            let (revision, uid) = record.map_or_else(Default::default, |record| {
                (record.revision.to_string(), record.uid.to_string())
            });
            let message = match record {
                None => format!("{key:?} does not exist"),
                Some(_) if failed == RefusalCode::AlreadyExists => format!("{key:?} exists"),
                Some(_) => format!("{key:?} was changed: read it again"),
            };
            violations.push(proto::Violation {
                change: u32::try_from(number).unwrap_or(u32::MAX),
                key: Some(key.to_proto()),
                message,
                why: Some(proto::violation::Why::Condition(proto::ConditionFailed { revision, uid })),
            });
        }
        code.map_or(Ok(()), |code| Err(Refused::of(code, violations)))
    }
}

/// The state after a put (ST14).
fn put(
    key: &RecordKey,
    content: &proto::Content,
    before: Option<&Present>,
    head: &Head,
) -> (RecordState, proto::Outcome) {
    let (incarnation, generation, outcome) = match before {
        Some(record) if !record.is_deleted => {
            (record.incarnation, record.generation + 1, proto::Outcome::Updated)
        }
        Some(record) => (record.incarnation + 1, 1, proto::Outcome::Created),
        None => (head.incarnation_floor + 1, 1, proto::Outcome::Created),
    };
    let mut state = RecordState {
        key: Some(key.to_proto()),
        incarnation,
        lifecycle: proto::State::Live.into(),
        generation,
        content: Some(content.clone()),
        origin: head.node.clone(),
        ..RecordState::default()
    };
    state.digest = content_digest(&state);
    (state, outcome)
}

fn tombstone(key: &RecordKey, record: &Present) -> RecordState {
    RecordState {
        key: Some(key.to_proto()),
        incarnation: record.incarnation,
        lifecycle: proto::State::Deleted.into(),
        generation: record.generation,
        digest: record.content.clone(),
        ..RecordState::default()
    }
}

impl Judged {
    fn change(
        &mut self,
        key: &RecordKey,
        state: RecordState,
        outcome: proto::Outcome,
        before: Option<&Present>,
    ) -> ChangeResult {
        let is_deleted = state.lifecycle() == proto::State::Deleted;
        let record = (RecordRevision::of(&state), Uid::of(key, state.incarnation));
        let previous = before.map_or(0, |record| record.changed_at);
        self.changed.insert(key.clone(), JudgedChange { state, outcome, previous });
        ChangeResult { outcome, record: (!is_deleted).then_some(record) }
    }
}

impl JudgedChange {
    pub(crate) fn logged(&self, key: &RecordKey) -> LogChange {
        LogChange { key: key.to_proto(), previous: self.previous, outcome: self.outcome.into() }
    }
}

impl Refused {
    fn of(code: RefusalCode, violations: Vec<proto::Violation>) -> Self {
        let message = violations.first().map_or_else(String::new, |violation| violation.message.clone());
        Self { code, violations, message }
    }

    /// ST21.
    pub(crate) fn read_only() -> Self {
        let message = "the store accepts no commits until its server restarts: a write failed".to_owned();
        Self { code: RefusalCode::Unavailable, violations: Vec::new(), message }
    }

    pub(crate) fn of_engine(error: &EngineError) -> Self {
        let code = match error {
            EngineError::Conflict => RefusalCode::Aborted,
            EngineError::TooLarge { .. } | EngineError::Full => RefusalCode::ResourceExhausted,
            EngineError::Unknown(_) => RefusalCode::Unknown,
            EngineError::Broken(_)
            | EngineError::Unavailable(_)
            | EngineError::Compacted
            | EngineError::Corrupt { .. } => RefusalCode::Unavailable,
        };
        Self { code, violations: Vec::new(), message: error.to_string() }
    }
}
