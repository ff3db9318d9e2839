//! What a writer sets, as a resource of the cache: one conversion for the check of a commit and for
//! the source of the cache, so the cache accepts what the store accepts (ST18).

use prost::Message;
use xds_core::{Resource, ResourceError, ResourceName, VariantId};
use xds_proto::envoy::config::core::v3::Metadata;
use xds_proto::xds::core::v3::ResourceLocator;
use xds_proto::xds::store::v1 as proto;

use crate::key::POLICY_TYPE;
use crate::time::length_of;

/// Why a content is no resource.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// The cache refuses the resource.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The TTL is not a positive duration.
    #[error("the TTL is not a positive duration")]
    Ttl,
    /// An alias is empty or has control characters.
    #[error("an alias is empty or has control characters")]
    Alias,
    /// The field is not an encoded message of its type.
    #[error("{0}")]
    NotEncoded(&'static str),
}

impl ContentError {
    /// The field that is wrong, of a change.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Resource(_) => "put.content.payload",
            Self::Ttl => "put.content.ttl",
            Self::Alias => "put.content.aliases",
            Self::NotEncoded(NO_LOCATOR) => "put.content.payload",
            Self::NotEncoded(_) => "put.content.metadata",
        }
    }
}

/// The resource that clients get for a content. It shares the payload.
///
/// # Errors
/// See [`ContentError`].
pub fn resource(id: &VariantId, content: &proto::Content) -> Result<Resource, ContentError> {
    let (type_url, payload) = (id.type_url.clone(), content.payload.clone());
    let name = match type_url.as_str() {
        // SG24: it is the beginning of names, and need be none itself. Clients never get it.
        POLICY_TYPE => ResourceName::new(format!("names with {}", id.name)),
        _ => id.name.clone(),
    };
    let mut resource = if content.redirect {
        ResourceLocator::decode(&*payload).map_err(|_| ContentError::NotEncoded(NO_LOCATOR))?;
        Resource::redirect(type_url, name, payload)?
    } else {
        Resource::new(type_url, name, payload)?
    };
    if let Some(ttl) = &content.ttl {
        let ttl = length_of(*ttl).filter(|ttl| !ttl.is_zero());
        resource = resource.with_ttl(ttl.ok_or(ContentError::Ttl)?);
    }
    if !content.aliases.is_empty() {
        if content.aliases.iter().any(|alias| alias.is_empty() || alias.contains(char::is_control)) {
            return Err(ContentError::Alias);
        }
        let of_payload = resource.aliases().to_vec();
        let aliases = content.aliases.iter().map(|alias| ResourceName::from(&**alias));
        resource = resource.with_aliases(of_payload.into_iter().chain(aliases));
    }
    if content.do_not_cache {
        resource = resource.with_do_not_cache();
    }
    if !content.metadata.is_empty() {
        Metadata::decode(&*content.metadata).map_err(|_| ContentError::NotEncoded(NO_METADATA))?;
        resource = resource.with_metadata(content.metadata.clone());
    }
    Ok(resource.with_constraints(id.constraints.clone()))
}

const NO_LOCATOR: &str = "the payload of a redirect is not an encoded xds.core.v3.ResourceLocator";
const NO_METADATA: &str = "the metadata is not an encoded envoy.config.core.v3.Metadata";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st18_what_the_cache_would_refuse_is_no_resource() {
        let id = VariantId::unconstrained("t/acme.Thing", "a");
        let field = |content: proto::Content| resource(&id, &content).map_err(|error| error.field());
        let good = proto::Content { payload: "x".into(), aliases: vec!["b".into()], ..Default::default() };
        assert_eq!(resource(&id, &good).map(|resource| resource.aliases().len()), Ok(1));
        let ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        assert_eq!(field(proto::Content { ttl, ..good.clone() }).unwrap_err(), "put.content.ttl");
        assert_eq!(
            field(proto::Content { aliases: vec![String::new()], ..good.clone() }).unwrap_err(),
            "put.content.aliases"
        );
        let metadata = "\u{fffd}".into();
        assert_eq!(field(proto::Content { metadata, ..good.clone() }).unwrap_err(), "put.content.metadata");
        // Only new-style names can be redirects (X14).
        assert_eq!(
            field(proto::Content { redirect: true, payload: "".into(), ..good }).unwrap_err(),
            "put.content.payload"
        );
        let listener = VariantId::unconstrained(xds_proto::type_url::LISTENER, "a");
        let other = proto::Content { payload: b"\x0a\x01b"[..].into(), ..Default::default() };
        assert!(matches!(
            resource(&listener, &other),
            Err(ContentError::Resource(ResourceError::NameMismatch { .. }))
        ));
    }
}
