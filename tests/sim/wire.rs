//! Responses as a client reads them: decoded from their bytes, and checked against the rules for
//! responses.

use std::collections::BTreeSet;
use std::fmt;

use prost::Message;
use xds_core::Constraints;
use xds_core::server::{Protocol, Response};
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource, ResourceError, ResourceName,
};
use xds_proto::type_url::RESOURCE;

use crate::content::{Content, Kind};

/// A response of SotW or delta.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    pub(crate) nonce: String,
    pub(crate) resources: Vec<Item>,
    /// Removed names.
    pub(crate) removed: Vec<String>,
    pub(crate) removed_variants: Vec<(String, Constraints)>,
    pub(crate) errors: Vec<ReceivedError>,
}

/// An error of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceivedError {
    pub(crate) name: String,
    pub(crate) code: i32,
    message: String,
}

impl Received {
    /// Whether it has only errors for resources that are not known yet (G13): the answer is still
    /// to come.
    pub(crate) fn is_error_only(&self) -> bool {
        !self.errors.is_empty() && self.names().is_empty()
    }

    /// Whether a name has an error that is no absence (D28).
    pub(crate) fn has_error(&self, name: &str) -> bool {
        self.errors.iter().any(|error| error.name == name && error.code != NOT_FOUND)
    }

    /// All names in resources and removals.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let resources = self.resources.iter().map(|item| &item.name);
        let variants = self.removed_variants.iter().map(|(name, _)| name);
        resources.chain(&self.removed).chain(variants).cloned().collect()
    }

    /// The same with constraints, where the response has them.
    pub(crate) fn keys(&self) -> BTreeSet<ReceivedKey> {
        let resources = self.resources.iter().map(|item| (item.name.clone(), item.sent_with.clone()));
        let removed = self.removed.iter().map(|name| (name.clone(), None));
        let variants = self.removed_variants.iter().map(|(name, of)| (name.clone(), Some(of.clone())));
        resources.chain(removed).chain(variants).collect()
    }
}

/// The code of an error that reports an absence.
pub(crate) const NOT_FOUND: i32 = 5;

/// A name in a response, and the constraints that were sent with it.
pub(crate) type ReceivedKey = (String, Option<Constraints>);

/// A resource in a response.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// The constraints that were sent; `None` when it was sent under the plain name.
    pub(crate) sent_with: Option<Constraints>,
    pub(crate) version: String,
    pub(crate) content: Content,
}

impl Item {
    /// The constraints that were sent; none for the plain name.
    pub(crate) fn constraints(&self) -> Constraints {
        self.sent_with.clone().unwrap_or(Constraints::NONE)
    }
}

impl Received {
    /// Reads the bytes of the wire.
    pub(crate) fn of(response: &Response, protocol: Protocol) -> Result<Self, String> {
        Self::of_frame(&encoded(response), protocol)
    }

    pub(crate) fn of_frame(bytes: &[u8], protocol: Protocol) -> Result<Self, String> {
        let received = match protocol {
            Protocol::Sotw => Self::of_sotw(DiscoveryResponse::decode(bytes).map_err(text)?)?,
            Protocol::Delta => Self::of_delta(DeltaDiscoveryResponse::decode(bytes).map_err(text)?)?,
        };
        received.has_no_duplicates()?;
        Ok(received)
    }

    fn of_sotw(response: DiscoveryResponse) -> Result<Self, String> {
        let kind = kind_of(&response.type_url)?;
        let resources =
            response.resources.iter().map(|any| Item::of_any(kind, any)).collect::<Result<_, _>>()?;
        let DiscoveryResponse { version_info: version, nonce, resource_errors, .. } = response;
        let (removed, removed_variants) = (Vec::new(), Vec::new());
        let errors = resource_errors.into_iter().map(error_of).collect();
        Ok(Self { kind, version, nonce, resources, removed, removed_variants, errors })
    }

    fn of_delta(response: DeltaDiscoveryResponse) -> Result<Self, String> {
        let kind = kind_of(&response.type_url)?;
        let resources = response.resources.iter().map(|resource| Item::of_resource(kind, resource));
        let resources = resources.collect::<Result<_, _>>()?;
        let removed_variants = response.removed_resource_names.iter();
        let removed_variants =
            removed_variants.map(|name| Ok::<_, String>((name.name.clone(), constraints_of(name)?)));
        Ok(Self {
            kind,
            version: response.system_version_info,
            nonce: response.nonce,
            resources,
            removed: response.removed_resources,
            removed_variants: removed_variants.collect::<Result<_, _>>()?,
            errors: response.resource_errors.into_iter().map(error_of).collect(),
        })
    }

    /// S28, D13, T29, T30b: each key occurs once.
    fn has_no_duplicates(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let keys = self.resources.iter().map(|item| (&item.name, item.sent_with.clone()));
        let removed = self.removed_variants.iter().map(|(name, sent_with)| (name, Some(sent_with.clone())));
        for (name, sent_with) in keys.chain(removed) {
            if !seen.insert((name, sent_with.clone())) {
                return Err(format!("D13, S28, T30b: {name} {sent_with:?} occurs twice in {self}"));
            }
        }
        let names: BTreeSet<_> = self.removed.iter().collect();
        let is_both = self.resources.iter().any(|item| names.contains(&item.name));
        if is_both || names.len() < self.removed.len() {
            return Err(format!("D13, T30: a removed name occurs twice in {self}"));
        }
        Ok(())
    }
}

impl Item {
    fn of_any(kind: Kind, any: &Any) -> Result<Self, String> {
        if any.type_url == RESOURCE {
            return Self::of_resource(kind, &Resource::decode(any.value.clone()).map_err(text)?);
        }
        if any.type_url != kind.url() {
            return Err(format!("S29: a {} in a response of {kind}", any.type_url));
        }
        let content = Content::of(kind, &any.value)?;
        Ok(Self { name: content.name.clone(), sent_with: None, version: String::new(), content })
    }

    fn of_resource(kind: Kind, resource: &Resource) -> Result<Self, String> {
        let any = resource.resource.as_ref().ok_or("C4: a wrapper without a resource")?;
        if any.type_url != kind.url() {
            return Err(format!("S29: a {} in a response of {kind}", any.type_url));
        }
        let content = Content::of(kind, &any.value)?;
        let (name, sent_with) = match &resource.resource_name {
            None => (resource.name.clone(), None),
            Some(_) if !resource.name.is_empty() => return Err("T25: a name and a resource_name".into()),
            Some(name) => (name.name.clone(), Some(constraints_of(name)?)),
        };
        if name != content.name {
            return Err(format!("D23: {name} with the payload of {}", content.name));
        }
        Ok(Self { name, sent_with, version: resource.version.clone(), content })
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} n{} v{}", self.kind, self.nonce, self.version.get(..6).unwrap_or(&self.version))?;
        for item in &self.resources {
            match &item.sent_with {
                None => write!(f, " {}={}", item.name, item.content)?,
                Some(constraints) => write!(f, " {}[{constraints}]={}", item.name, item.content)?,
            }
        }
        self.removed.iter().try_for_each(|name| write!(f, " -{name}"))?;
        let removed = self.removed_variants.iter();
        removed.into_iter().try_for_each(|(name, constraints)| write!(f, " -{name}[{constraints}]"))?;
        self.errors.iter().try_for_each(|error| write!(f, " {}: error {}", error.name, error.code))
    }
}

fn kind_of(type_url: &str) -> Result<Kind, String> {
    Kind::of_url(type_url).ok_or_else(|| format!("a response of {type_url:?}, without a subscription"))
}

fn error_of(error: ResourceError) -> ReceivedError {
    let name = error.resource_name.map(|name| name.name).unwrap_or_default();
    let status = error.error_detail.unwrap_or_default();
    ReceivedError { name, code: status.code, message: status.message }
}

fn constraints_of(name: &ResourceName) -> Result<Constraints, String> {
    let message = name.dynamic_parameter_constraints.as_ref();
    message.map_or(Ok(Constraints::NONE), |message| Constraints::from_proto(message).map_err(text))
}

fn encoded(response: &Response) -> Vec<u8> {
    let mut bytes = response.head().to_vec();
    for chunk in response.bodies.iter().flat_map(|body| body.chunks()) {
        bytes.extend_from_slice(chunk);
    }
    bytes
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}
