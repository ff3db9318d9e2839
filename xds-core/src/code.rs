//! The status codes of gRPC, as resource errors have them.

use std::fmt;

/// A status code of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub i32);

impl Code {
    /// The resource was received and is not valid.
    pub const INVALID_ARGUMENT: Self = Self(3);
    /// There is no such resource.
    pub const NOT_FOUND: Self = Self(5);
    /// The client may not read the resource.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// A limit is reached.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// The server does not serve the type (G4).
    pub const UNIMPLEMENTED: Self = Self(12);
    /// The resource, or the server, is not available at the moment.
    pub const UNAVAILABLE: Self = Self(14);
    /// The server does not know who the client is.
    pub const UNAUTHENTICATED: Self = Self(16);

    /// Whether it is an error of the resource, and not only of the server (C9, C10).
    #[must_use]
    pub(crate) fn is_data_error(self) -> bool {
        self == Self::NOT_FOUND || self == Self::PERMISSION_DENIED
    }

    /// Whether a server says with it who may not have something.
    pub(crate) fn is_denial(self) -> bool {
        self == Self::PERMISSION_DENIED || self == Self::UNAUTHENTICATED
    }

    /// The code on the wire. A number that is not an error code becomes UNKNOWN.
    pub(crate) fn byte(self) -> u8 {
        u8::try_from(self.0).ok().filter(|code| (1..=16).contains(code)).unwrap_or(2)
    }

    /// Its name in gRPC.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::try_from(self.0).ok()?).copied()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

/// By number.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
