//! Servers that refuse a type, as servers do that do not know it (G4, G4b).

use std::collections::BTreeMap;
use std::fmt;

use xds_core::Code;
use xds_core::client::health::Status;
use xds_core::server::{Serving, StreamConfig, TypeConfig};

use crate::content::Kind;

/// How a server refuses a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It ends streams that subscribe to the type and to another one.
    AmongOthers(Code),
    /// It ends streams that subscribe to the type.
    Always(Code),
    /// It sends errors.
    ByErrors,
}

/// The types that a server refuses.
pub(crate) type Refusals = BTreeMap<Kind, Refusal>;

impl Refusal {
    /// The status with which the server ends a stream that subscribes to the type, and perhaps to others.
    pub(crate) fn status(self, has_others: bool) -> Option<Status> {
        let code = match self {
            Self::Always(code) => code,
            Self::AmongOthers(code) if has_others => code,
            Self::AmongOthers(_) | Self::ByErrors => return None,
        };
        Some(Status { code, message: "no such type".into() })
    }
}

/// The configuration of a stream of a server that sends errors for some types.
pub(crate) fn stream_config(refusals: &Refusals) -> StreamConfig {
    let by_errors = refusals.iter().filter(|(_, refusal)| **refusal == Refusal::ByErrors);
    let types = by_errors.map(|(kind, _)| {
        let config = TypeConfig { serving: Serving::NotServed, ..TypeConfig::of(kind.url()) };
        (kind.url().into(), config)
    });
    StreamConfig { types: types.collect(), ..StreamConfig::default() }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AmongOthers(code) => write!(f, "beside others by {code:?}"),
            Self::Always(code) => write!(f, "by {code:?}"),
            Self::ByErrors => f.write_str("by errors"),
        }
    }
}
