//! What makes a client reject a response (C4).

use std::fmt;
use std::sync::Arc;

use crate::constraint::{ConstraintError, Constraints};
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::xdstp::XdstpError;

/// One thing that is wrong with a response. What else is in the response is used (C2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The resource that is not used; `None` where it cannot be told.
    pub name: Option<ResourceName>,
    /// Which variant of it.
    pub constraints: Constraints,
    /// What is wrong.
    pub reason: Reason,
}

/// Why a resource, a removal or an error of a response is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// S29: the resource is of another type than the response.
    #[error("it is a {found:?}")]
    WrongType {
        /// The type URL.
        found: String,
    },
    /// The wrapper is not a message.
    #[error("its wrapper is not protobuf")]
    Malformed,
    /// Neither the wrapper nor the payload has a name.
    #[error("it has no name")]
    NoName,
    /// T25: two names that differ.
    #[error("its wrapper also names it {other:?}")]
    TwoNames {
        /// The plain name.
        other: String,
    },
    /// D23: the payload has another name for itself, by which clients of a proxy would take it.
    #[error("its payload names itself {other:?}")]
    NamedOtherwise {
        /// The name in the payload; empty where it has none.
        other: String,
    },
    /// W2: a draft-encoded message shows itself so.
    #[error("its name has a control character")]
    ControlCharacter,
    /// X6: the new-style name cannot be read, or is one of another type.
    #[error("{0}")]
    Name(#[from] XdstpError),
    /// X12: it is named like the wildcard or a glob, which stand for others.
    #[error("its name is one for many resources")]
    NameOfSet,
    /// C4: there is no payload, and neither a TTL to extend nor an alias to answer.
    #[error("it has no payload")]
    NoPayload,
    /// S28, D13: the same variant is there twice.
    #[error("it is there twice")]
    Duplicate,
    /// D13, T30b: a resource is also removed.
    #[error("it is also removed")]
    AlsoRemoved,
    /// C4: an error without a name, or with the code OK.
    #[error("its error says nothing")]
    EmptyError,
    /// T8, T9, T11
    #[error("{0}")]
    Constraints(#[from] ConstraintError),
    /// C4b: both of two variants of the response match the witness.
    #[error("it overlaps [{other}]: both match {witness}")]
    Overlap {
        /// The other variant.
        other: Constraints,
        /// Parameters that both match.
        witness: Parameters,
    },
    /// Whether it overlaps others is too complex to be judged.
    #[error("its constraints are too complex to be judged")]
    TooComplex,
    /// D24: another resource of the response goes by the same name.
    #[error("its alias {alias:?} is taken by {other:?}")]
    AliasTaken {
        /// The alias.
        alias: ResourceName,
        /// The other resource.
        other: ResourceName,
    },
    /// X14: the resource stands elsewhere, and redirects are not followed.
    #[error("it is a redirect, which is not followed")]
    Redirect,
    /// Clients of a proxy were sent it first, and one of them rejected it.
    #[error("{0}")]
    Refused(Arc<str>),
    /// The program cannot use the payload.
    #[error("{0}")]
    Payload(String),
}

impl Rejection {
    pub(super) fn new(name: impl Into<Option<ResourceName>>, reason: impl Into<Reason>) -> Self {
        Self { name: name.into(), constraints: Constraints::NONE, reason: reason.into() }
    }

    pub(super) fn of(name: ResourceName, constraints: Constraints, reason: impl Into<Reason>) -> Self {
        Self { name: Some(name), constraints, reason: reason.into() }
    }

    /// What goes back to the server: every resource by name, up to a limit.
    pub(super) fn detail(rejections: &[Self]) -> String {
        let mut detail = String::new();
        for (at, rejection) in rejections.iter().take(REPORTED_LIMIT).enumerate() {
            detail.push_str(if at == 0 { "" } else { "; " });
            detail.push_str(&rejection.to_string());
        }
        if rejections.len() > REPORTED_LIMIT {
            detail.push_str(&format!("; and {} more", rejections.len() - REPORTED_LIMIT));
        }
        detail
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{:?}", name.as_str())?,
            None => f.write_str("a resource")?,
        }
        if !self.constraints.is_unconstrained() {
            write!(f, " [{}]", self.constraints)?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// As many rejected resources are named to the server: the text is for people, and servers cut it
/// (G15).
const REPORTED_LIMIT: usize = 10;
