//! The stable state and what is refused, as they are in their files: a digest, then messages with their lengths.

use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use xds_core::{
    Constraints, RefusedChange, Resource, ResourceName, Snapshot, Transaction, VariantId, Version,
};

/// One variant of the stable state.
#[derive(Clone, PartialEq, Message)]
struct StoredVariant {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    /// Encoded `DynamicParameterConstraints`.
    #[prost(bytes = "bytes", tag = "3")]
    constraints: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    payload: Bytes,
    #[prost(uint64, optional, tag = "5")]
    ttl_ns: Option<u64>,
    #[prost(string, repeated, tag = "6")]
    aliases: Vec<String>,
    #[prost(bool, tag = "7")]
    do_not_cache: bool,
    /// An encoded `envoy.config.core.v3.Metadata`.
    #[prost(bytes = "bytes", tag = "8")]
    metadata: Bytes,
    #[prost(bool, tag = "9")]
    is_redirect: bool,
}

/// A [`RefusedChange`].
#[derive(Clone, PartialEq, Message)]
struct StoredRefusal {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(uint64, tag = "2")]
    ms_since_1970: u64,
    #[prost(message, repeated, tag = "3")]
    variants: Vec<StoredRefusedVariant>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredRefusedVariant {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    /// Encoded `DynamicParameterConstraints`.
    #[prost(bytes = "bytes", tag = "3")]
    constraints: Bytes,
    /// None if the variant was to be removed.
    #[prost(string, optional, tag = "4")]
    version: Option<String>,
}

/// A digest of the rest, then each variant with its length before it.
pub(super) fn stable_bytes(stable: &Snapshot) -> Vec<u8> {
    let mut bytes = vec![0; blake3::OUT_LEN];
    for (type_url, _) in stable.counts() {
        let names = stable.of_type(type_url).into_iter().flat_map(|resources| resources.iter());
        let mut variants: Vec<_> = names.flat_map(|(_, variants)| variants.iter()).collect();
        variants.sort_by_key(|variant| (variant.name(), variant.constraints()));
        for variant in variants {
            let resource = variant.resource(type_url);
            let stored = StoredVariant {
                type_url: type_url.as_str().to_owned(),
                name: resource.name().as_str().to_owned(),
                constraints: resource.id().constraints.wire().clone(),
                payload: resource.payload().clone(),
                ttl_ns: resource.ttl().map(|ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)),
                aliases: resource.aliases().iter().map(|alias| alias.as_str().to_owned()).collect(),
                do_not_cache: variant.do_not_cache(),
                metadata: resource.metadata(),
                is_redirect: resource.is_redirect(),
            };
            stored.encode_length_delimited(&mut bytes).expect("a vector has room");
        }
    }
    seal(bytes)
}

/// Sets the digest, for which the first bytes have room.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let digest = blake3::hash(&bytes[blake3::OUT_LEN..]);
    bytes[..blake3::OUT_LEN].copy_from_slice(digest.as_bytes());
    bytes
}

/// What follows the digest.
fn sealed(mut bytes: Bytes) -> Result<Bytes, &'static str> {
    if bytes.len() < blake3::OUT_LEN {
        return Err("it is too short");
    }
    let digest = bytes.split_to(blake3::OUT_LEN);
    if blake3::hash(&bytes) != *<&[u8; 32]>::try_from(&*digest).map_err(|_| "it is too short")? {
        return Err("its digest differs");
    }
    Ok(bytes)
}

/// A digest of the rest, then each change with its length before it.
pub(super) fn refused_bytes(refused: &[RefusedChange]) -> Vec<u8> {
    let mut bytes = vec![0; blake3::OUT_LEN];
    for refused in refused {
        stored_refusal(refused).encode_length_delimited(&mut bytes).expect("a vector has room");
    }
    seal(bytes)
}

fn stored_refusal(refused: &RefusedChange) -> StoredRefusal {
    let variants = refused.contents().map(|(id, version)| StoredRefusedVariant {
        type_url: id.type_url.as_str().to_owned(),
        name: id.name.as_str().to_owned(),
        constraints: id.constraints.wire().clone(),
        version: version.map(|version| version.to_string()),
    });
    StoredRefusal {
        reason: refused.reason.to_string(),
        ms_since_1970: u64::try_from(refused.at.as_millis()).unwrap_or(u64::MAX),
        variants: variants.collect(),
    }
}

pub(super) fn read_refused(bytes: Bytes) -> Result<Vec<RefusedChange>, &'static str> {
    let (mut bytes, mut refused) = (sealed(bytes)?, Vec::new());
    while !bytes.is_empty() {
        let stored =
            StoredRefusal::decode_length_delimited(&mut bytes).map_err(|_| "a change is unreadable")?;
        refused.push(refused_change(stored)?);
    }
    Ok(refused)
}

fn refused_change(stored: StoredRefusal) -> Result<RefusedChange, &'static str> {
    let variant = |stored: &StoredRefusedVariant| {
        let constraints = Constraints::from_wire(&stored.constraints).ok()?;
        let version = match &stored.version {
            Some(version) => Some(Version::parse(version)?),
            None => None,
        };
        let (type_url, name) = (stored.type_url.as_str().into(), stored.name.as_str().into());
        Some((VariantId { type_url, name, constraints }, version))
    };
    let variants: Option<Vec<_>> = stored.variants.iter().map(variant).collect();
    let variants = variants.ok_or("a variant is invalid")?;
    Ok(RefusedChange::new(variants, stored.reason.into(), Duration::from_millis(stored.ms_since_1970)))
}

pub(super) fn read_stable(bytes: Bytes) -> Result<Transaction, &'static str> {
    let mut bytes = sealed(bytes)?;
    let mut transaction = Transaction::new();
    transaction.origin().source = "rollout-state".into();
    while !bytes.is_empty() {
        let stored =
            StoredVariant::decode_length_delimited(&mut bytes).map_err(|_| "a variant is unreadable")?;
        transaction.put(resource(stored).ok_or("a variant is invalid")?);
    }
    Ok(transaction)
}

fn resource(stored: StoredVariant) -> Option<Resource> {
    let (type_url, name) = (stored.type_url.as_str().into(), ResourceName::from(stored.name.as_str()));
    let resource = match stored.is_redirect {
        true => Resource::redirect(type_url, name, stored.payload),
        false => Resource::new_within(usize::MAX, type_url, name, stored.payload),
    };
    let mut resource = resource.ok()?.with_constraints(Constraints::from_wire(&stored.constraints).ok()?);
    if let Some(ttl) = stored.ttl_ns {
        resource = resource.with_ttl(Duration::from_nanos(ttl));
    }
    if !stored.aliases.is_empty() {
        resource = resource.with_aliases(stored.aliases.iter().map(|alias| alias.as_str().into()));
    }
    if stored.do_not_cache {
        resource = resource.with_do_not_cache();
    }
    if !stored.metadata.is_empty() {
        resource = resource.with_metadata(stored.metadata);
    }
    Some(resource)
}
