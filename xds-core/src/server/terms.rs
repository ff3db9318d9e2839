//! How a type is served to a client.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::response::{Continuation, Response, StreamError};
use crate::access::{Access, NamePatterns};
use crate::code::Code;
use crate::known_type::KnownType;
use crate::name::{Nonce, ResourceName, TypeUrl, Version};
use crate::protocol::Protocol;
use crate::subscription::{NameSet, Requested, is_set};
use crate::wire::{Body, Failure};
use crate::xdstp::{XdstpError, XdstpName};

/// How a type is served to a client. This does not change during a stream.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) protocol: Protocol,
    pub(super) type_url: TypeUrl,
    pub(super) known: KnownType,
    /// Whether the type is served here at all (G4).
    pub(super) is_served: bool,
    /// The names that the client may read; `None` means all.
    pub(super) scope: Option<NamePatterns>,
    /// Whether resources are sent with their TTL (S38).
    pub(super) ttl: bool,
    /// Whether refreshes follow the TTL that is left, because the source of an on-demand cache
    /// extends it (S40).
    pub(super) sends_ttl_left: bool,
    /// Whether the cache is filled on demand. If so, each removal is withheld until the source has
    /// answered that the resource does not exist.
    pub(super) is_on_demand: bool,
}

impl Terms {
    /// Whether the client may read a resource.
    pub(super) fn allows(&self, name: &ResourceName) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.matches(name))
    }

    /// Whether each response has all resources, so that a resource that is not in it does not exist
    /// (S25).
    pub(super) fn sends_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.known.full_state
    }

    /// A response, of which other parts may follow. In SotW these are not announced: clients send the
    /// version back, and each part counts as a whole response about the names in it.
    pub(super) fn response(
        &self,
        nonce: Nonce,
        version: Version,
        bodies: Vec<Arc<Body>>,
        has_parts: bool,
    ) -> Response {
        let is_announced = has_parts && self.protocol == Protocol::Delta;
        let continuation = if is_announced { Continuation::Part } else { Continuation::None };
        Response { type_url: self.type_url.clone(), nonce, version, bodies, continuation }
    }

    /// S33: removals of a type that other types refer to wait. In an on-demand cache a removal waits
    /// until the source has answered that the resource does not exist.
    pub(super) fn withholds_removals(&self) -> bool {
        self.is_on_demand || !self.known.referrers.is_empty()
    }

    /// The canonical text of a new-style name of this type; `None` for an old-style one (X1, X2).
    pub(super) fn canonical(&self, name: &ResourceName) -> Result<Option<ResourceName>, XdstpError> {
        let Some(parsed) = XdstpName::of(name.as_str())? else { return Ok(None) };
        parsed.check_type(&self.type_url)?;
        Ok(Some(parsed.canonical()))
    }

    /// Refuses a subscription to too many names (G9).
    pub(super) fn check_limit(&self, found: usize, limit: usize) -> Result<(), StreamError> {
        if found <= limit {
            return Ok(());
        }
        Err(StreamError::TooManyNames { type_url: self.type_url.clone(), found, limit })
    }

    /// G4: the errors for requested names when the type is not served, or not to this client.
    pub(super) fn unserved<'n>(&self, names: impl Iterator<Item = &'n ResourceName>) -> Vec<Failure> {
        let r#type = self.type_url.message_name();
        let (code, message) = match self.scope.as_ref().is_some_and(NamePatterns::is_empty) {
            true => (Code::PERMISSION_DENIED, format!("this client may not read any {}", r#type)),
            false => (Code::UNIMPLEMENTED, format!("{} is not served here", r#type)),
        };
        let names: BTreeSet<_> = names.collect();
        names.into_iter().map(|name| Failure::new(name.clone(), code, message.clone())).collect()
    }

    /// Removes names that the client may not read, and locators with parameters that the client may
    /// not claim. Returns an error for each.
    pub(super) fn take_denied(&self, access: &Access, requested: &mut Requested) -> Vec<Failure> {
        let mut failures = Vec::new();
        let mut deny = |name: &ResourceName, message: String| {
            failures.push(Failure::new(name.clone(), Code::PERMISSION_DENIED, message));
        };
        let r#type = self.type_url.message_name();
        if self.scope.is_some() && self.is_served {
            // The members of a set are checked one by one.
            let is_allowed = |name: &ResourceName| is_set(name.as_str()) || self.allows(name);
            let mut allowed = |names: &NameSet| {
                let denied = names.iter().filter(|name| !is_allowed(name));
                denied.for_each(|name| deny(name, format!("this client may not read {} {name:?}", r#type)));
                names.filter(is_allowed)
            };
            requested.names = allowed(&requested.names);
            requested.locators.retain(|_, names| allowed(names));
        }
        requested.locators.retain(|parameters, names| {
            let Some((key, value)) = access.missing(parameters) else { return names.clone() };
            let text = format!("this client must subscribe to {} with the parameter {key}={value}", r#type);
            names.iter().for_each(|name| deny(name, text.clone()));
            NameSet::default()
        });
        failures
    }
}
