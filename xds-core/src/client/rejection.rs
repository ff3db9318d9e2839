//! The reasons to reject a response (C4).

use std::fmt;
use std::sync::Arc;

use crate::constraint::{ConstraintError, Constraints};
use crate::name::ResourceName;
use crate::parameters::Parameters;
use crate::xdstp::XdstpError;

/// One part of a response that the client rejects. The client uses the other parts (C2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The name of the resource; `None` if its name is not known.
    pub name: Option<ResourceName>,
    /// The constraints of the variant.
    pub constraints: Constraints,
    /// Why it is rejected.
    pub reason: Reason,
}

/// Why a resource, a removal or an error of a response is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// S29: the resource is of another type than the response.
    #[error("it has the type {found:?}, not that of the response")]
    WrongType {
        /// The type URL.
        found: String,
    },
    /// The wrapper is not a message.
    #[error("its wrapper is not valid protobuf")]
    Malformed,
    /// Neither the wrapper nor the payload has a name.
    #[error("it has no name")]
    NoName,
    /// T25: the wrapper has two different names.
    #[error("its wrapper also names it {other:?}")]
    TwoNames {
        /// The other one, in the field `name`.
        other: String,
    },
    /// D23: the name in the payload differs. Clients of a proxy may go by that name.
    #[error("its payload has the name {other:?}")]
    NamedOtherwise {
        /// The name in the payload; empty if there is none.
        other: String,
    },
    /// W2: the name has a control character. A message in the draft encoding decodes to such a
    /// name.
    #[error("its name has a control character")]
    ControlCharacter,
    /// X6: the new-style name is invalid, or of another type.
    #[error("{0}")]
    Name(#[from] XdstpError),
    /// X12: the name is the wildcard or a glob.
    #[error("a resource cannot have the name of a wildcard or glob")]
    NameOfSet,
    /// C4: there is no payload, and the resource is neither a heartbeat nor the answer to an alias.
    #[error("it has no payload")]
    NoPayload,
    /// S28, D13: the response contains the same variant twice.
    #[error("the response contains it twice")]
    Duplicate,
    /// D13, T30b: the response also removes the variant.
    #[error("the response also removes it")]
    AlsoRemoved,
    /// C4: an error of `resource_errors` has no name, or has the code OK.
    #[error("its error has no name or the code OK")]
    EmptyError,
    /// T8, T9, T11: the constraints are invalid.
    #[error("{0}")]
    Constraints(#[from] ConstraintError),
    /// C4b: the witness matches this variant and another one of the response.
    #[error("it overlaps [{other}]: both match {witness}")]
    Overlap {
        /// The other variant.
        other: Constraints,
        /// Parameters that both match.
        witness: Parameters,
    },
    /// The constraints are too complex to find out whether they overlap others.
    #[error("its constraints are too complex to check for overlaps")]
    TooComplex,
    /// D24: another resource of the response has the alias as its name or as an alias.
    #[error("its alias {alias:?} is taken by {other:?}")]
    AliasTaken {
        /// The alias.
        alias: ResourceName,
        /// The other resource.
        other: ResourceName,
    },
    /// X14: it is a redirect to another resource. Only a proxy takes redirects.
    #[error("it is a redirect, and this client does not follow redirects")]
    Redirect,
    /// Some clients of a proxy tried it, and one of them NACKed it.
    #[error("{0}")]
    Refused(Arc<str>),
    /// The program cannot decode the payload.
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

    /// The message of the NACK. It names the rejected resources, up to a limit.
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

/// How many rejections a NACK lists: people read the message, and servers shorten it (G15).
const REPORTED_LIMIT: usize = 10;
