//! ConfigMaps as resources, and Secrets as SDS secrets.
//!
//! The keys of a ConfigMap are files of a folder. A Secret `tls` of type kubernetes.io/tls in the
//! namespace `shop` becomes the SDS secret `shop/tls`, with the certificate and its key, and
//! `shop/tls/ca`, with the certificate authorities of `ca.crt`, if it has any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::DataSource;
use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::secret::Type;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret as SdsSecret, TlsCertificate,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use xds_core::{PAYLOAD_LIMIT_BYTES, Resource, ResourceName};

use super::object::Problem;
use crate::folder::{Contents, Descriptors};

/// The rules for what objects may bring.
#[derive(Debug)]
pub(super) struct Rules {
    /// The namespaces that may bring any name.
    pub(super) trusted: BTreeSet<Box<str>>,
    pub(super) descriptors: Arc<Descriptors>,
}

impl Rules {
    /// The resources of a ConfigMap, or all errors in it.
    pub(super) fn config_map(&self, namespace: &str, map: ConfigMap) -> Result<Vec<Resource>, Vec<Problem>> {
        let texts = map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
        let binaries = map.binary_data.into_iter().flatten().map(|(key, ByteString(bytes))| (key, bytes));
        let files: BTreeMap<Box<str>, _> =
            texts.chain(binaries).map(|(key, content)| (key.into(), content)).collect();
        let files: BTreeMap<_, _> = files.into_iter().filter(|(key, _)| is_file(key)).collect();
        if files.is_empty() {
            return Err(vec![Problem::NoFile]);
        }
        let contents = Contents::of_files(files, Arc::clone(&self.descriptors), PAYLOAD_LIMIT_BYTES);
        if let Some(errors) = contents.errors() {
            return Err(errors.iter().cloned().map(Box::new).map(Problem::File).collect());
        }
        let variants = contents.types().flat_map(|type_url| contents.names(type_url.as_str()));
        let resources: Vec<_> = variants
            .flat_map(|(_, variants)| variants.iter().map(|(_, located)| located.resource.clone()))
            .collect();
        let out_of_bounds = resources.iter().filter_map(|resource| self.out_of_bounds(namespace, resource));
        let problems: Vec<_> = out_of_bounds.collect();
        if problems.is_empty() { Ok(resources) } else { Err(problems) }
    }

    /// A name of a resource that the namespace may not bring.
    fn out_of_bounds(&self, namespace: &str, resource: &Resource) -> Option<Problem> {
        if self.trusted.contains(namespace) {
            return None;
        }
        let is_within = |name: &ResourceName| {
            name.as_str().strip_prefix(namespace).is_some_and(|rest| rest.starts_with('/'))
        };
        let mut names = [resource.name()].into_iter().chain(resource.aliases());
        let name = names.find(|name| !is_within(name))?.clone();
        let (type_url, namespace) = (resource.type_url().clone(), namespace.into());
        Some(Problem::OutOfBounds { type_url, name, namespace })
    }
}

fn is_file(key: &str) -> bool {
    key.rsplit_once('.').is_some_and(|(_, ending)| matches!(ending, "yaml" | "yml" | "json" | "pb"))
}

/// The SDS secrets of a Secret. They have the name of the Secret, so they are always in bounds.
pub(super) fn sds_secrets(
    namespace: &str,
    name: &str,
    secret: Secret,
) -> Result<Vec<Resource>, Vec<Problem>> {
    let secret_type = secret.type_.unwrap_or_default();
    if secret_type != TLS_TYPE {
        return Err(vec![Problem::SecretType { secret_type: secret_type.into() }]);
    }
    let mut data = secret.data.unwrap_or_default();
    let mut take = |key| data.remove(key).map(|ByteString(bytes)| bytes).filter(|bytes| !bytes.is_empty());
    let name = format!("{namespace}/{name}");
    let certificate = tls_certificate(take(CERTIFICATE), take(PRIVATE_KEY));
    let authorities = take(AUTHORITIES).map(|authorities| match has_certificate(&authorities) {
        true => Ok(authorities),
        false => Err(Problem::NotPem { key: AUTHORITIES, expected: "certificate" }),
    });
    match (certificate, authorities.transpose()) {
        (Ok(certificate), Ok(authorities)) => {
            let certificate = [(name.clone(), Type::TlsCertificate(certificate))].into_iter();
            let authorities = authorities.map(|authorities| {
                let trusted_ca = Some(inline(authorities));
                let context =
                    CertificateValidationContext { trusted_ca, ..CertificateValidationContext::default() };
                (format!("{name}/ca"), Type::ValidationContext(context))
            });
            let secrets = certificate.chain(authorities);
            let resource = |(name, kind)| Resource::of(&SdsSecret { name, r#type: Some(kind) });
            secrets
                .map(resource)
                .collect::<Result<_, _>>()
                .map_err(|error| vec![Problem::Resource(Box::new(error))])
        }
        (certificate, authorities) => {
            let problems = certificate.err().into_iter().flatten();
            Err(problems.chain(authorities.err()).collect())
        }
    }
}

fn tls_certificate(chain: Option<Vec<u8>>, key: Option<Vec<u8>>) -> Result<TlsCertificate, Vec<Problem>> {
    let mut problems = Vec::new();
    match &chain {
        None => problems.push(Problem::NoKey { key: CERTIFICATE }),
        Some(chain) if !has_certificate(chain) => {
            problems.push(Problem::NotPem { key: CERTIFICATE, expected: "certificate" });
        }
        Some(_) => {}
    }
    match &key {
        None => problems.push(Problem::NoKey { key: PRIVATE_KEY }),
        Some(key) if PrivateKeyDer::from_pem_slice(key).is_err() => {
            problems.push(Problem::NotPem { key: PRIVATE_KEY, expected: "private key" });
        }
        Some(_) => {}
    }
    match (chain, key) {
        (Some(chain), Some(key)) if problems.is_empty() => Ok(TlsCertificate {
            certificate_chain: Some(inline(chain)),
            private_key: Some(inline(key)),
            ..TlsCertificate::default()
        }),
        _ => Err(problems),
    }
}

/// Whether there is a certificate, and nothing that is none.
fn has_certificate(pem: &[u8]) -> bool {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.is_ok_and(|all| !all.is_empty())
}

fn inline(bytes: Vec<u8>) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(bytes)), ..DataSource::default() }
}

const TLS_TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";
const AUTHORITIES: &str = "ca.crt";

#[cfg(test)]
pub(super) mod tests;
