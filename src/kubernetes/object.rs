//! Objects of the API server by name, and what can be wrong with them.

use std::fmt;
use std::net::AddrParseError;

use xds_core::{CommitError, ResourceError, ResourceName, TypeUrl};

use crate::folder::FolderError;

/// A kind of object. In this order they get a name that several objects bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// A service, whose EndpointSlices are one content.
    Service,
    /// An EndpointSlice.
    EndpointSlice,
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name in the namespace.
    pub name: Box<str>,
}

impl ObjectName {
    pub(super) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// As `ConfigMap shop/routes`.
impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// What is wrong with an object. Its last good content stays in use, and other objects are not
/// affected. It never quotes the content of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A file in a ConfigMap has an error.
    #[error("{0}")]
    File(Box<FolderError>),
    /// A ConfigMap without a file that is read.
    #[error("no key ends in .yaml, .yml, .json or .pb")]
    NoFile,
    /// The namespace may not bring a resource of this name.
    #[error(
        "{} {name:?}: namespace {namespace} may bring only names that begin with {:?}, unless \
         --kubernetes-trusted-namespace lists it",
        type_url.message_name(), format!("{namespace}/")
    )]
    OutOfBounds {
        /// The type of the resource.
        type_url: TypeUrl,
        /// The name, or another name of it.
        name: ResourceName,
        /// The namespace of the object.
        namespace: Box<str>,
    },
    /// Another object has a resource of this name.
    #[error("{} {name:?} is already in {by}", type_url.message_name())]
    Taken {
        /// The type of the resource.
        type_url: TypeUrl,
        /// Its name.
        name: ResourceName,
        /// The object that has it.
        by: ObjectName,
    },
    /// Another source, such as the folder, has a resource of this name.
    #[error("{} {name:?} is already in another source", type_url.message_name())]
    TakenElsewhere {
        /// The type of the resource.
        type_url: TypeUrl,
        /// Its name.
        name: ResourceName,
    },
    /// An EndpointSlice whose addresses are not IP addresses.
    #[error("the addresses are of type {address_type}; Envoy and gRPC take IP addresses")]
    AddressType {
        /// As the slice says.
        address_type: Box<str>,
    },
    /// An endpoint has no address.
    #[error("an endpoint has no address")]
    NoAddress,
    /// The address of an endpoint is none.
    #[error("address {address:?}: {error}")]
    Address {
        /// As the slice says.
        address: Box<str>,
        /// What is wrong with it.
        error: AddrParseError,
    },
    /// A port that is not from 1 to 65535.
    #[error("port {name:?} has the number {number}; it must be from 1 to 65535")]
    Port {
        /// The name of the port.
        name: Box<str>,
        /// Its number.
        number: i32,
    },
    /// A Secret that is not of the type for TLS.
    #[error("the type is {secret_type:?}; only kubernetes.io/tls becomes SDS secrets")]
    SecretType {
        /// As the Secret says.
        secret_type: Box<str>,
    },
    /// A Secret without this key, or with an empty value.
    #[error("{key} is missing or empty")]
    NoKey {
        /// The key.
        key: &'static str,
    },
    /// The value of this key is not what it should be.
    #[error("{key} has no {expected} in PEM")]
    NotPem {
        /// The key.
        key: &'static str,
        /// What it should have.
        expected: &'static str,
    },
    /// A resource cannot be made, for example because it is too large.
    #[error("{0}")]
    Resource(Box<ResourceError>),
    /// The cache refuses the resources.
    #[error("{0}")]
    Commit(Box<CommitError>),
}
