//! The paths of certificate and key files. This module does not open them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::BootstrapError;
use super::json::{JsonValue, Object};

/// The files of a TLS connection (gRFC A65).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TlsFiles {
    /// The authorities for the certificate of the peer. Default: those of the system.
    pub ca_certificate_file: Option<PathBuf>,
    /// The certificate of this side. Default: none, so TLS is not mutual.
    pub identity: Option<IdentityFiles>,
    /// The interval at which the files are read again. Default 600 s; always above zero after it
    /// was read.
    pub refresh_interval: Duration,
}

/// A certificate with its private key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityFiles {
    /// The certificate, followed by the intermediate certificates.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub private_key_file: PathBuf,
}

/// A source of certificates that resources refer to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CertificateProvider {
    /// The plugin `file_watcher`: files, of which at least one is given.
    FileWatcher(TlsFiles),
}

impl TlsFiles {
    pub(super) fn read(files: &Object<'_>) -> Result<Self, BootstrapError> {
        let file = |key| Ok(files.text(key)?.map(PathBuf::from));
        let alone =
            |missing, partner| Err(BootstrapError::MissingPartner { path: files.path_of(missing), partner });
        let identity = match (file(CERTIFICATE)?, file(PRIVATE_KEY)?) {
            (Some(certificate_file), Some(private_key_file)) => {
                Some(IdentityFiles { certificate_file, private_key_file })
            }
            (None, None) => None,
            (Some(_), None) => return alone(PRIVATE_KEY, CERTIFICATE),
            (None, Some(_)) => return alone(CERTIFICATE, PRIVATE_KEY),
        };
        let refresh_interval = files.text("refresh_interval")?.map(|text| {
            parse_duration(text).ok_or_else(|| BootstrapError::BadDuration {
                path: files.path_of("refresh_interval"),
                found: text.to_owned(),
            })
        });
        Ok(Self {
            ca_certificate_file: file("ca_certificate_file")?,
            identity,
            refresh_interval: refresh_interval.transpose()?.unwrap_or(REFRESH_INTERVAL),
        })
    }
}

impl Default for TlsFiles {
    fn default() -> Self {
        Self { ca_certificate_file: None, identity: None, refresh_interval: REFRESH_INTERVAL }
    }
}

/// P7: providers of unknown plugins are skipped.
pub(super) fn read_providers(
    json: Option<JsonValue<'_>>,
) -> Result<BTreeMap<String, CertificateProvider>, BootstrapError> {
    let mut providers = BTreeMap::new();
    let Some(json) = json else { return Ok(providers) };
    for (name, json) in json.object()?.entries() {
        let provider = json.object()?;
        if provider.required_text("plugin_name")? == "file_watcher" {
            let config = provider.required("config")?;
            let path = config.path();
            let files = TlsFiles::read(&config.object()?)?;
            if files.ca_certificate_file.is_none() && files.identity.is_none() {
                return Err(BootstrapError::NoFiles { path });
            }
            providers.insert(name.to_owned(), CertificateProvider::FileWatcher(files));
        }
    }
    Ok(providers)
}

/// A duration above zero in the JSON format of protobuf: seconds with up to nine decimals, and an
/// `s`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (seconds, fraction) =
        text.strip_suffix('s').map(|text| text.split_once('.').unwrap_or((text, "0")))?;
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let seconds = seconds.parse().ok().filter(|seconds| *seconds <= LONGEST_SECONDS)?;
    let duration = Duration::new(seconds, format!("{fraction:0<9}").parse().ok()?);
    (!duration.is_zero()).then_some(duration)
}

/// gRFC A65
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// The maximum of `google.protobuf.Duration`, some 10,000 years.
const LONGEST_SECONDS: u64 = 315_576_000_000;

const CERTIFICATE: &str = "certificate_file";
const PRIVATE_KEY: &str = "private_key_file";
