//! Why a commit is refused, and changes nothing.

use xds_proto::xds::store::v1 as proto;

use crate::checked::Damaged;
use crate::engine::EngineError;
use crate::stored::ReadError;

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
    /// The client lacks a right.
    PermissionDenied,
    /// It exists already.
    AlreadyExists,
    /// It does not exist.
    NotFound,
    /// It was changed meanwhile: read again and retry.
    Aborted,
    /// The state has to change first.
    FailedPrecondition,
    /// This server does not know the major schema version that is stored; another one may.
    Unimplemented,
    /// A limit, or a full disk.
    ResourceExhausted,
    /// The store accepts no commits at present.
    Unavailable,
    /// It is not known whether the commit was applied.
    Unknown,
    /// A stored value is damaged.
    DataLoss,
}

impl From<ReadError> for Refused {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Engine(error) => error.into(),
            ReadError::Damaged(damaged) => damaged.into(),
            removed @ ReadError::Removed => Self::read_only(&removed.to_string()),
        }
    }
}

/// The violations that one stage found.
#[derive(Debug, Default)]
pub(super) struct Violations {
    code: Option<RefusalCode>,
    violations: Vec<proto::Violation>,
}

impl Violations {
    /// Adds the violation of a change. The first one gives the code (ST8).
    pub(super) fn add(
        &mut self,
        code: RefusalCode,
        (change, key): (usize, Option<proto::Key>),
        message: String,
        why: proto::violation::Why,
    ) {
        self.code.get_or_insert(code);
        let change = u32::try_from(change).unwrap_or(u32::MAX);
        self.violations.push(proto::Violation { change, key, message, why: Some(why) });
    }

    /// SG37: the authority of a name does not import that of a resource that its record names.
    pub(super) fn add_not_imported(
        &mut self,
        at: (usize, Option<proto::Key>),
        (target, field): (proto::Key, String),
        message: String,
    ) {
        let is_not_imported = true;
        let why = proto::MissingTarget { target: Some(target), field, is_not_imported, is_deleting: false };
        self.add(RefusalCode::FailedPrecondition, at, message, proto::violation::Why::MissingTarget(why));
    }

    pub(super) fn into_result(self) -> Result<(), Refused> {
        self.code.map_or(Ok(()), |code| {
            let message = self.violations.first().map_or_else(String::new, |first| first.message.clone());
            Err(Refused { code, violations: self.violations, message })
        })
    }
}

impl Refused {
    /// The store as a whole refuses.
    pub(crate) fn whole(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, violations: Vec::new(), message: message.into() }
    }

    /// ST21.
    pub(crate) fn read_only(reason: &str) -> Self {
        let message = format!("the store accepts no commits until its server restarts: {reason}");
        Self::whole(RefusalCode::Unavailable, message)
    }

    /// A limit (ST42).
    pub(crate) fn limit(limit: &Limit, found: usize) -> Self {
        let message = limit.message(found);
        let why = Some(limit.exceeded(found));
        let violation = proto::Violation { message: message.clone(), why, ..proto::Violation::default() };
        Self { code: RefusalCode::ResourceExhausted, violations: vec![violation], message }
    }

    pub(crate) fn of_engine(error: &EngineError) -> Self {
        let code = match error {
            EngineError::Conflict => RefusalCode::Aborted,
            EngineError::TooLarge { .. } | EngineError::Full => RefusalCode::ResourceExhausted,
            EngineError::Unknown(_) | EngineError::Broken(_) => RefusalCode::Unknown,
            EngineError::Corrupt { .. } | EngineError::Sealed(_) => RefusalCode::DataLoss,
            EngineError::Unavailable(_) | EngineError::Compacted => RefusalCode::Unavailable,
        };
        Self::whole(code, error.to_string())
    }
}

impl From<Damaged> for Refused {
    fn from(damaged: Damaged) -> Self {
        Self::whole(RefusalCode::DataLoss, damaged.to_string())
    }
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        Self::of_engine(&error)
    }
}

/// A limit of what a commit may hold (ST42).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// For people, with its unit.
    pub(crate) name: &'static str,
    /// The option that changes it; empty if none does.
    pub(crate) option: &'static str,
    pub(crate) value: usize,
}

impl Limit {
    pub(super) fn message(&self, found: usize) -> String {
        let Self { name, option, value } = self;
        let way_out = if option.is_empty() { String::new() } else { format!("; {option} changes it") };
        format!("{name}: {found} exceeds the limit of {value}{way_out}")
    }

    pub(super) fn exceeded(&self, found: usize) -> proto::violation::Why {
        proto::violation::Why::Limit(proto::LimitExceeded {
            limit: self.name.to_owned(),
            option: self.option.to_owned(),
            value: self.value as u64,
            found: found as u64,
        })
    }
}
