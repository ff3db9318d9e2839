//! A resource as a source commits it: checked, digested, and never encoded again.

use std::time::Duration;

use bytes::Bytes;
use xds_proto::type_url::VIRTUAL_HOST;

use crate::constraint::Constraints;
use crate::extras::Extras;
use crate::known_type::KnownType;
use crate::name::{ResourceName, TypeUrl, Version};
use crate::references::rename::Rename;
use crate::references::{self, References, Target};
use crate::wire::fields::text;
use crate::xdstp::{XdstpError, XdstpName};

mod collection;
mod message;
#[cfg(test)]
mod new_style_tests;

/// The identity of a variant: type, name and constraints (T1).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VariantId {
    /// The type of the resource.
    pub type_url: TypeUrl,
    /// Its name, shared by all variants.
    pub name: ResourceName,
    /// The constraints that the parameters of a client have to match.
    pub constraints: Constraints,
}

impl VariantId {
    /// The variant without constraints, which matches all parameters.
    #[must_use]
    pub fn unconstrained(type_url: impl Into<TypeUrl>, name: impl Into<ResourceName>) -> Self {
        Self { type_url: type_url.into(), name: name.into(), constraints: Constraints::NONE }
    }
}

/// One variant of a resource with its payload.
///
/// The payload is the value of a `google.protobuf.Any`: these bytes are what every client receives.
#[derive(Debug, Clone)]
pub struct Resource {
    pub(crate) id: VariantId,
    pub(crate) payload: Bytes,
    pub(crate) version: Version,
    pub(crate) references: References,
    /// The fields of the wrapper besides name, version and payload; `None` without any.
    pub(crate) extras: Option<Box<Extras>>,
}

impl Resource {
    /// An unconstrained resource with this name. A new-style name is replaced by its canonical text
    /// (X4).
    ///
    /// Costs one digest of the payload, and one pass over it to find the resources that it names.
    ///
    /// The payload is not compared with the type, which takes the descriptor of the type: use
    /// [`of`](Self::of) for messages that know theirs.
    ///
    /// # Errors
    /// See [`ResourceError`].
    pub fn new(
        type_url: impl Into<TypeUrl>,
        name: impl Into<ResourceName>,
        payload: impl Into<Bytes>,
    ) -> Result<Self, ResourceError> {
        Self::new_within(PAYLOAD_LIMIT_BYTES, type_url.into(), name.into(), payload.into())
    }

    /// As [`new`](Self::new), with another limit of the payload than [`PAYLOAD_LIMIT_BYTES`], in
    /// bytes (G10).
    ///
    /// Clients of gRPC refuse a message of more than 4 MiB unless they are configured otherwise,
    /// and a resource is never split over messages. Envoy has no such limit. The client of this
    /// project has none below 1 GiB.
    ///
    /// # Errors
    /// See [`ResourceError`].
    pub fn new_within(
        limit_bytes: usize,
        type_url: TypeUrl,
        name: ResourceName,
        payload: Bytes,
    ) -> Result<Self, ResourceError> {
        let (name, new_style) = checked_name(&type_url, name, &payload, limit_bytes)?;
        if KnownType::of(type_url.as_str()).payload_is_named {
            let inner = references::payload_name(&payload)
                .map_err(|()| ResourceError::Malformed { type_url: type_url.clone(), name: name.clone() })?;
            // D23: Envoy uses the name in the payload, so a different name would create another
            // resource.
            if !names_payload(&type_url, &name, new_style.as_ref(), &inner) {
                let payload_name = ResourceName::new(inner);
                return Err(ResourceError::NameMismatch { type_url, name, payload_name });
            }
        }
        if new_style.is_some() {
            collection::check(&type_url, &name, &payload)?;
        }
        let references = References::read(&type_url, &name, &payload);
        // X16: a new-style name contains its type (X2), so a cluster and its endpoints cannot have
        // the same name.
        if new_style.is_some() && references.endpoints(&name) == Some(&name) {
            return Err(ResourceError::MissingServiceName { name });
        }
        let version = Version::of_payload(&payload);
        let hosts = references::hosts_of(&type_url, &name, &payload);
        let id = VariantId::unconstrained(type_url, name);
        let resource = Self { id, payload, version, references, extras: None };
        // D25: a client subscribes to the host of a request, so the domains are aliases.
        Ok(if hosts.is_empty() { resource } else { resource.with_aliases(hosts) })
    }

    /// A redirect: the payload is an encoded `xds.core.v3.ResourceLocator` that says where the
    /// resource is (X14). Clients receive the locator and follow it. Only list collections and
    /// members of globs can be redirects, so the name must be a new-style one.
    ///
    /// # Errors
    /// See [`ResourceError`].
    pub fn redirect(type_url: TypeUrl, name: ResourceName, locator: Bytes) -> Result<Self, ResourceError> {
        let (name, new_style) = checked_name(&type_url, name, &locator, PAYLOAD_LIMIT_BYTES)?;
        if new_style.is_none() {
            return Err(ResourceError::OldStyleRedirect { type_url, name });
        }
        let version = Version::of_payload(&locator);
        let id = VariantId::unconstrained(type_url, name);
        let resource = Self { id, payload: locator, version, references: References::None, extras: None };
        Ok(resource.with_extras(|extras| extras.is_redirect = true))
    }

    /// An unconstrained resource that a server sent. Only its wrapper was read; the payload is
    /// opaque (T45).
    pub(crate) fn received(
        type_url: TypeUrl,
        name: ResourceName,
        payload: Bytes,
        extras: Option<Box<Extras>>,
    ) -> Self {
        let references = match &extras {
            Some(extras) if extras.is_redirect => References::None,
            _ => References::read(&type_url, &name, &payload),
        };
        let of_payload = Version::of_payload(&payload);
        let version = extras.as_ref().map_or(of_payload, |extras| extras.version(of_payload));
        Self { id: VariantId::unconstrained(type_url, name), payload, version, references, extras }
    }

    /// An unconstrained resource whose name is read from its payload, for types whose payload has
    /// the name.
    ///
    /// # Errors
    /// See [`ResourceError`]. [`ResourceError::MissingName`] also if the type is not known to have
    /// its name in the payload.
    pub fn from_payload(
        type_url: impl Into<TypeUrl>,
        payload: impl Into<Bytes>,
    ) -> Result<Self, ResourceError> {
        Self::from_payload_within(PAYLOAD_LIMIT_BYTES, type_url.into(), payload.into())
    }

    /// As [`from_payload`](Self::from_payload), with another limit of the payload, as in
    /// [`new_within`](Self::new_within).
    ///
    /// # Errors
    /// As [`from_payload`](Self::from_payload).
    pub fn from_payload_within(
        limit_bytes: usize,
        type_url: TypeUrl,
        payload: Bytes,
    ) -> Result<Self, ResourceError> {
        let name = if KnownType::of(type_url.as_str()).payload_is_named {
            references::payload_name(&payload).map(ResourceName::new).map_err(|()| {
                ResourceError::Malformed { type_url: type_url.clone(), name: ResourceName::new("") }
            })?
        } else {
            ResourceName::new("")
        };
        Self::new_within(limit_bytes, type_url, name, payload)
    }

    /// Sets constraints, which makes this one of several variants of its name: clients get it if
    /// their parameters match.
    #[must_use]
    pub fn with_constraints(mut self, constraints: Constraints) -> Self {
        self.id.constraints = constraints;
        self
    }

    /// Sets a TTL: clients remove the resource this long after they received it or a heartbeat last
    /// (S38). The server refreshes it in time, by heartbeats or by sending it again (S39, S40), so
    /// clients lose it only when they lose the server. Only sent to clients that are known to
    /// honour it.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.with_extras(|extras| extras.ttl = Some(ttl))
    }

    /// Sets other names that delta clients can subscribe to (D24). A virtual host
    /// `<route configuration>/<host>` has the aliases `<route configuration>/<domain>` already, one
    /// for each of its domains.
    #[must_use]
    pub fn with_aliases(self, aliases: impl IntoIterator<Item = ResourceName>) -> Self {
        self.with_extras(|extras| {
            extras.aliases = aliases.into_iter().collect();
            extras.aliases.sort_unstable();
            extras.aliases.dedup();
        })
    }

    /// Tells proxies not to keep the resource (`cache_control`).
    #[must_use]
    pub fn with_do_not_cache(self) -> Self {
        self.with_extras(|extras| extras.do_not_cache = true)
    }

    /// Sets an encoded `core.v3.Metadata`, which is sent in the wrapper unchanged.
    #[must_use]
    pub fn with_metadata(self, metadata: Bytes) -> Self {
        self.with_extras(|extras| extras.metadata = metadata)
    }

    fn with_extras(mut self, change: impl FnOnce(&mut Extras)) -> Self {
        let mut extras = self.extras.take().unwrap_or_default();
        change(&mut extras);
        extras.encode();
        let of_payload = Version::of_payload(&self.payload);
        if extras.is_empty() {
            return Self { version: of_payload, ..self };
        }
        Self { version: extras.version(of_payload), extras: Some(extras), ..self }
    }

    /// The type, name and constraints.
    #[must_use]
    pub fn id(&self) -> &VariantId {
        &self.id
    }

    /// The type that clients subscribe to.
    #[must_use]
    pub fn type_url(&self) -> &TypeUrl {
        &self.id.type_url
    }

    /// The type of the payload, which is the same unless the resource is a
    /// [redirect](Self::redirect).
    #[must_use]
    pub fn payload_type(&self) -> &str {
        Extras::payload_type(self.extras.as_deref(), &self.id.type_url)
    }

    /// The name that clients subscribe to.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        &self.id.name
    }

    /// The encoded message.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The resources that the payload names, each once, by type URL and name.
    ///
    /// Only fields that the built-in table knows are read, also those in the extensions of Envoy that it
    /// knows. The payload of a [redirect](Self::redirect) names nothing. Costs a pass over the payload if
    /// it has an unknown extension; otherwise the names were read when the resource was made.
    pub fn named_resources(&self) -> impl Iterator<Item = (&'static str, ResourceName)> + use<> {
        let named = if self.is_redirect() {
            Vec::new()
        } else {
            self.references.names(&self.id.name, &self.id.type_url, &self.payload)
        };
        named.into_iter().map(|(target, name)| (target.type_url(), name))
    }

    /// The fields of the payload that name this resource, in order, for people: names of fields joined
    /// by dots, such as `virtual_hosts.routes.route.cluster`. Costs a pass over the payload.
    #[must_use]
    pub fn fields_that_name(&self, type_url: &str, name: &ResourceName) -> Vec<String> {
        let target = Target::of(type_url).filter(|_| !self.is_redirect());
        let Some(target) = target else { return Vec::new() };
        let VariantId { type_url, name: own, .. } = &self.id;
        let fields = references::fields_that_name(type_url, own, &self.payload, Some((target, name)));
        fields.into_iter().map(|(field, ..)| field).collect()
    }

    /// The resources that the payload names, by field: the field as in
    /// [`fields_that_name`](Self::fields_that_name), the type and the name, in order. Costs a pass over
    /// the payload.
    #[must_use]
    pub fn names_by_field(&self) -> Vec<(String, &'static str, ResourceName)> {
        if self.is_redirect() {
            return Vec::new();
        }
        let VariantId { type_url, name: own, .. } = &self.id;
        let fields = references::fields_that_name(type_url, own, &self.payload, None);
        fields.into_iter().map(|(field, target, name)| (field, target.type_url(), name)).collect()
    }

    /// The payload without this name in a field; `None` if the field does not have it, or cannot be
    /// cleared: a cluster without the name of its endpoints has endpoints of its own name.
    #[must_use]
    pub fn payload_without(&self, field: &str, type_url: &str, name: &ResourceName) -> Option<Bytes> {
        let target = Target::of(type_url).filter(|_| !self.is_redirect())?;
        references::without_name(&self.id.type_url, &self.payload, field, (target, name)).map(Bytes::from)
    }

    /// The payload with another name in the [fields that name](Self::fields_that_name) this resource; `None`
    /// if there is none. Everything else stays byte for byte.
    #[must_use]
    pub fn renamed_payload(&self, type_url: &str, from: &ResourceName, to: &ResourceName) -> Option<Bytes> {
        let target = Target::of(type_url).filter(|_| !self.is_redirect())?;
        let VariantId { type_url, name: own, .. } = &self.id;
        Rename { target, from, to }.payload(type_url, own, &self.payload).map(Bytes::from)
    }

    /// The digest of the payload and the other fields of the wrapper.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// See [`with_ttl`](Self::with_ttl).
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.extras.as_ref()?.ttl
    }

    /// See [`with_aliases`](Self::with_aliases); sorted.
    #[must_use]
    pub fn aliases(&self) -> &[ResourceName] {
        self.extras.as_ref().map_or(&[], |extras| &extras.aliases)
    }

    /// See [`with_do_not_cache`](Self::with_do_not_cache).
    #[must_use]
    pub fn is_do_not_cache(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.do_not_cache)
    }

    /// See [`with_metadata`](Self::with_metadata).
    #[must_use]
    pub fn metadata(&self) -> Bytes {
        self.extras.as_ref().map_or_else(Bytes::new, |extras| extras.metadata.clone())
    }

    /// See [`redirect`](Self::redirect).
    #[must_use]
    pub fn is_redirect(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.is_redirect)
    }

    /// The type URLs and names of the resources that it references, as far as make before break
    /// knows them (S33); each once.
    pub fn references(&self) -> impl Iterator<Item = (&'static str, &ResourceName)> {
        self.references.iter(&self.id.name).map(|(target, name)| (target.type_url(), name))
    }
}

/// Checks that hold for every resource. Returns its name, and a new-style name also parsed and in
/// its canonical text.
fn checked_name(
    type_url: &TypeUrl,
    name: ResourceName,
    payload: &Bytes,
    limit_bytes: usize,
) -> Result<(ResourceName, Option<XdstpName>), ResourceError> {
    if type_url.message_name().is_empty() {
        return Err(ResourceError::EmptyType { name });
    }
    if name.as_str().is_empty() {
        return Err(ResourceError::MissingName { type_url: type_url.clone() });
    }
    // W2: control characters in a name are the sign of a draft-encoded message.
    if let Some(at) = name.as_str().find(|c: char| c.is_ascii_control()) {
        return Err(ResourceError::ControlCharacter { type_url: type_url.clone(), name, at });
    }
    // G10: peers commonly refuse larger messages, and one resource cannot be split.
    if payload.len() > limit_bytes {
        let (type_url, size_bytes) = (type_url.clone(), payload.len());
        return Err(ResourceError::TooLarge { type_url, name, size_bytes, limit_bytes });
    }
    // X2, X6: no client could subscribe to a name that cannot be parsed or that has another type.
    let new_style = XdstpName::of(name.as_str())
        .and_then(|found| found.map(|found| found.check_type(type_url).map(|()| found)).transpose());
    match new_style {
        Err(error) => Err(ResourceError::InvalidName { type_url: type_url.clone(), name, error }),
        // X12: a subscription to a glob selects other resources.
        Ok(Some(glob)) if glob.is_glob() => Err(ResourceError::Glob { type_url: type_url.clone(), name }),
        Ok(Some(new_style)) => Ok((new_style.canonical(), Some(new_style))),
        Ok(None) => Ok((name, None)),
    }
}

/// The name in a payload, if it is not the name of its resource (D23).
pub(crate) fn other_name(type_url: &TypeUrl, name: &ResourceName, payload: &[u8]) -> Option<String> {
    if !KnownType::of(type_url.as_str()).payload_is_named {
        return None;
    }
    let inner = text(payload, 1).unwrap_or_default();
    let inner = String::from_utf8_lossy(inner);
    let new_style = XdstpName::of(name.as_str()).ok().flatten();
    (!names_payload(type_url, name, new_style.as_ref(), &inner)).then(|| inner.into_owned())
}

/// Whether a payload with this name in it may be sent under the name of its resource (D23).
fn names_payload(
    type_url: &TypeUrl,
    name: &ResourceName,
    new_style: Option<&XdstpName>,
    payload_name: &str,
) -> bool {
    if payload_name == name.as_str() {
        return true;
    }
    if let Some(new_style) = new_style {
        // X4: equal new-style names may be spelled differently.
        return XdstpName::of(payload_name).is_ok_and(|found| found.as_ref() == Some(new_style));
    }
    // D25: the resource of a virtual host is named `<route configuration>/<host>`, its payload only
    // `<host>`.
    type_url.as_str() == VIRTUAL_HOST
        && name.as_str().rsplit_once('/').is_some_and(|(_, host)| host == payload_name)
}

/// Why a resource cannot be served. The source has to change the resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The type URL names no message.
    #[error("resource {:?} has a type URL without a message name", name.as_str())]
    EmptyType {
        /// The resource that has it.
        name: ResourceName,
    },
    /// The resource has no name, and neither has its payload.
    #[error("{} without a name", type_url.message_name())]
    MissingName {
        /// The type of the nameless resource.
        type_url: TypeUrl,
    },
    /// W2: the name has a control character.
    #[error("{} {name:?} has a control character at byte {at} of its name", type_url.message_name())]
    ControlCharacter {
        /// The type of the resource.
        type_url: TypeUrl,
        /// The refused name.
        name: ResourceName,
        /// The position in the name, in bytes.
        at: usize,
    },
    /// D23: the name in the payload is not the name of the resource.
    #[error("{} {name:?} has a payload named {payload_name:?}", type_url.message_name())]
    NameMismatch {
        /// The type of the resource.
        type_url: TypeUrl,
        /// The name of the resource.
        name: ResourceName,
        /// The name in its payload.
        payload_name: ResourceName,
    },
    /// The payload is not a protobuf message.
    #[error("{} {name:?} has a payload that is not protobuf", type_url.message_name())]
    Malformed {
        /// The type of the resource.
        type_url: TypeUrl,
        /// Its name; empty if it had to be read from the payload.
        name: ResourceName,
    },
    /// X2, X6: the new-style name cannot be parsed, or has another type.
    #[error("{} {name:?}: {error}", type_url.message_name())]
    InvalidName {
        /// The type of the resource.
        type_url: TypeUrl,
        /// The refused name.
        name: ResourceName,
        /// What is wrong with it.
        error: XdstpError,
    },
    /// X12: the name is a glob, which selects other resources.
    #[error("{} {name:?} is a glob, which no resource can be named", type_url.message_name())]
    Glob {
        /// The type of the resource.
        type_url: TypeUrl,
        /// The refused name.
        name: ResourceName,
    },
    /// X14: only list collections and members of globs can be redirects, and these have new-style
    /// names.
    #[error("{} {name:?} is a redirect, whose name has to start with `xdstp:`", type_url.message_name())]
    OldStyleRedirect {
        /// The type of the resource.
        type_url: TypeUrl,
        /// Its name.
        name: ResourceName,
    },
    /// X16: a cluster with a new-style name does not say which endpoints belong to it.
    #[error(
        "cluster {name:?} gets endpoints by EDS, so with such a name it needs eds_cluster_config.service_name"
    )]
    MissingServiceName {
        /// The name of the cluster.
        name: ResourceName,
    },
    /// X11: two inline entries of a list collection have the same name.
    #[error("{} {name:?} has two entries named {entry:?}", type_url.message_name())]
    RepeatedEntry {
        /// The type of the collection.
        type_url: TypeUrl,
        /// Its name.
        name: ResourceName,
        /// The name of the entries.
        entry: String,
    },
    /// X11: the name of an inline entry of a list collection has other characters than letters,
    /// digits and `_-./~:`.
    #[error("{} {name:?} has the entry {entry:?}, which is not a valid name of an entry", type_url.message_name())]
    BadEntry {
        /// The type of the collection.
        type_url: TypeUrl,
        /// Its name.
        name: ResourceName,
        /// The refused name.
        entry: String,
    },
    /// G10: the payload is larger than peers accept.
    #[error("{} {name:?} has {size_bytes} bytes, more than the limit of {limit_bytes}", type_url.message_name())]
    TooLarge {
        /// The type of the resource.
        type_url: TypeUrl,
        /// Its name.
        name: ResourceName,
        /// The size of the payload.
        size_bytes: usize,
        /// The largest size that is allowed.
        limit_bytes: usize,
    },
}

/// The default limit of a payload; [`Resource::new_within`] takes another one. It is the receive
/// limit of 4 MiB that is common in gRPC, minus 64 KiB for the wrappers (G10).
pub const PAYLOAD_LIMIT_BYTES: usize = (4 << 20) - (64 << 10);

#[cfg(test)]
mod tests {
    use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};

    use super::*;

    /// A message whose field 1 is the name.
    fn named(name: &str) -> Bytes {
        let mut payload = vec![0x0a, u8::try_from(name.len()).unwrap()];
        payload.extend_from_slice(name.as_bytes());
        payload.into()
    }

    fn new(type_url: &str, name: &str, payload: Bytes) -> Result<Resource, ResourceError> {
        Resource::new(type_url, name, payload)
    }

    #[test]
    fn d23_a_payload_with_another_name_is_refused() {
        let error = new(CLUSTER, "a", named("b")).unwrap_err();
        assert_eq!(error.to_string(), r#"envoy.config.cluster.v3.Cluster "a" has a payload named "b""#);
    }

    #[test]
    fn a_name_is_read_from_the_payload_of_a_known_type_only() {
        let known = Resource::from_payload(CLUSTER_LOAD_ASSIGNMENT, named("c")).unwrap();
        let opaque = Resource::from_payload("example.com/acme.Thing", named("c")).unwrap_err();
        assert_eq!(known.name().as_str(), "c");
        assert_eq!(opaque, ResourceError::MissingName { type_url: "example.com/acme.Thing".into() });
    }

    #[test]
    fn w2_control_characters_in_a_name_are_refused() {
        let error = new("example.com/acme.Thing", "\u{a}\u{4}", Bytes::new()).unwrap_err();
        assert!(matches!(error, ResourceError::ControlCharacter { at: 0, .. }), "{error}");
    }

    #[test]
    fn g10_a_payload_over_the_limit_is_refused_and_one_at_it_is_not() {
        let thing = "example.com/acme.Thing";
        let error = new(thing, "a", vec![0; PAYLOAD_LIMIT_BYTES + 1].into()).unwrap_err();
        assert!(matches!(error, ResourceError::TooLarge { .. }), "{error}");
        assert!(new(thing, "a", vec![0; PAYLOAD_LIMIT_BYTES].into()).is_ok());
    }

    #[test]
    fn g10_the_limit_of_a_payload_can_be_raised_and_lowered() {
        let within = |limit, len| {
            Resource::new_within(limit, "acme.com/a.Thing".into(), "a".into(), vec![0; len].into())
        };
        assert!(within(PAYLOAD_LIMIT_BYTES + 1, PAYLOAD_LIMIT_BYTES + 1).is_ok());
        let error = within(10, 11).unwrap_err();
        assert_eq!(error.to_string(), r#"a.Thing "a" has 11 bytes, more than the limit of 10"#);
    }

    #[test]
    fn a_payload_that_is_no_message_is_refused_with_its_name() {
        let error = new(CLUSTER, "a", Bytes::from_static(&[0x0a, 0x7f])).unwrap_err();
        assert_eq!(error, ResourceError::Malformed { type_url: CLUSTER.into(), name: "a".into() });
    }
}
