//! The requests of both protocols.

use std::collections::BTreeMap;

use crate::name::{Nonce, ResourceName};
use crate::subscription::Requested;

/// A request of either protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// On a SotW stream.
    Sotw(SotwRequest),
    /// On a delta stream.
    Delta(DeltaRequest),
}

impl Request {
    /// The nonce of the response that it answers; `None` when the field is empty.
    #[must_use]
    pub fn response_nonce(&self) -> Option<Nonce> {
        match self {
            Self::Sotw(request) => request.response_nonce,
            Self::Delta(request) => request.response_nonce,
        }
    }

    /// Whether the client says that it has resources from another stream (D1, S32).
    #[must_use]
    pub fn brings_resources(&self) -> bool {
        match self {
            Self::Sotw(request) => request.response_nonce.is_none() && !request.version_info.is_empty(),
            Self::Delta(request) => !request.initial_resource_versions.is_empty(),
        }
    }
}

impl From<SotwRequest> for Request {
    fn from(request: SotwRequest) -> Self {
        Self::Sotw(request)
    }
}

impl From<DeltaRequest> for Request {
    fn from(request: DeltaRequest) -> Self {
        Self::Delta(request)
    }
}

/// A `DiscoveryRequest`, without the fields that only the transport needs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SotwRequest {
    /// Empty on the service of one type (S12).
    pub type_url: String,
    /// The version that the client uses.
    pub version_info: String,
    /// The nonce of the response that it answers; `None` when the field is empty.
    pub response_nonce: Option<Nonce>,
    /// Why the client rejected that response (S5).
    pub error_detail: Option<String>,
    /// The whole subscription; `None` when it is the same as in the previous request of the type.
    pub requested: Option<Requested>,
}

/// A `DeltaDiscoveryRequest`, without the fields that only the transport needs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DeltaRequest {
    /// Empty on the service of one type (S12).
    pub type_url: String,
    /// The names and locators to add (D2).
    pub subscribe: Requested,
    /// The names and locators to remove (D2).
    pub unsubscribe: Requested,
    /// The resources that the client has from another stream, with their versions (D1).
    pub initial_resource_versions: BTreeMap<ResourceName, String>,
    /// The nonce of the response that it answers; `None` when the field is empty.
    pub response_nonce: Option<Nonce>,
    /// Why the client rejected that response (D4).
    pub error_detail: Option<String>,
}
