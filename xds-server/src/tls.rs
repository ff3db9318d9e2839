//! TLS and mTLS from files that change: who renews certificates replaces files, and no stream ends
//! for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::{Acceptor, VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsAcceptor};
use tracing::{info, warn};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use xds_file::Reloads;

use crate::connections::Handshake;
use crate::peer::{Identity, Peer};

/// Where certificates are, all of them PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, and those between it and its authority, in this order.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of clients. Who has no certificate that one of them signed is refused;
    /// without such a file nobody is asked for a certificate, and nobody has an [`Identity`].
    pub client_authorities: Option<PathBuf>,
}

/// What connections are greeted with: the newest content of [`TlsFiles`] that could be used.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: ArcSwap<Loaded>,
    reloads: Reloads,
}

#[derive(Debug)]
struct Loaded {
    contents: FileContents,
    config: Arc<ServerConfig>,
    expires: SystemTime,
}

/// What was in the files.
#[derive(PartialEq, Eq)]
struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authorities: Option<Vec<u8>>,
}

/// A key must not come into a log.
impl std::fmt::Debug for FileContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileContents")
    }
}

/// Why files cannot be used. What was used before stays in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A file is not PEM of the kind that it should be.
    #[error("{} holds no {expected} in PEM", path.display())]
    Malformed {
        /// Which one.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What was wrong; `None` when there is nothing in it.
        #[source]
        error: Option<pem::Error>,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not known.
    #[error("the certificate in {} and the key in {} cannot be used", certificate.display(), key.display())]
    Unusable {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        #[source]
        error: rustls::Error,
    },
    /// The certificate is not valid any more: no client would take it.
    #[error("the certificate in {} has expired", path.display())]
    Expired {
        /// Its file.
        path: PathBuf,
    },
    /// The authorities of clients are none.
    #[error("the client authorities in {} cannot be used", path.display())]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// Why.
        #[source]
        error: VerifierBuilderError,
    },
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let reloads = Reloads::default();
        let loaded = Loaded::of(FileContents::read(&files, &reloads)?, &files)?;
        reloads.on_new();
        Ok(Arc::new(Self { files, current: ArcSwap::from_pointee(loaded), reloads }))
    }

    /// Until when the certificate in use is valid.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.current.load().expires
    }

    /// What came of reading the files.
    #[must_use]
    pub fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// Reads the files again, and whether they had changed. New connections are greeted with what
    /// is there now; those that are there go on.
    ///
    /// # Errors
    /// See [`TlsError`]; then what was there before stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let reloaded = self.read_again();
        match &reloaded {
            Ok(true) => self.reloads.on_new(),
            Ok(false) => self.reloads.on_same(),
            Err(error) => _ = self.reloads.on_refused(error.to_string()),
        }
        reloaded
    }

    fn read_again(&self) -> Result<bool, TlsError> {
        let contents = FileContents::read(&self.files, &self.reloads)?;
        if contents == self.current.load().contents {
            return Ok(false);
        }
        self.current.store(Arc::new(Loaded::of(contents, &self.files)?));
        Ok(true)
    }

    /// Reads the files again and again, for ever, and tells the log what came of it. By time and
    /// content, not by notice of the file system: the three files of a mounted secret change one
    /// after the other, or by a link above them.
    pub async fn follow(self: Arc<Self>, every: Duration) {
        loop {
            self.reloads.due(every).await;
            let (tls, refusals) = (Arc::clone(&self), self.reloads.refusals());
            // Files may be on a disk that is slow.
            let reloaded = self.reloads.blocking("certificates", move || tls.reload()).await;
            let Ok(reloaded) = reloaded else { return };
            match reloaded {
                Ok(true) => {
                    info!(certificate = %self.files.certificate.display(), "the certificates are new");
                }
                Err(error) if self.reloads.refusals() > refusals => {
                    let because = std::error::Error::source(&error).map(ToString::to_string);
                    warn!(%error, because, "the certificates cannot be used, the former stay in use");
                }
                Ok(false) | Err(_) => {}
            }
        }
    }
}

impl Loaded {
    fn of(contents: FileContents, files: &TlsFiles) -> Result<Self, TlsError> {
        let chain = certificates(&contents.certificate, &files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| TlsError::Malformed {
            path: files.key.clone(),
            expected: "private key",
            error: Some(error),
        })?;
        let expires = expires(&chain[0]);
        if expires.is_some_and(|expires| expires < SystemTime::now()) {
            return Err(TlsError::Expired { path: files.certificate.clone() });
        }
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has the suites of all default versions");
        let builder = match contents.client_authorities.as_deref().zip(files.client_authorities.as_deref()) {
            None => builder.with_no_client_auth(),
            Some((authorities, path)) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(certificates(authorities, path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let verifier =
                    verifier.map_err(|error| TlsError::Authorities { path: path.to_owned(), error })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (certificate, key_file) = (files.certificate.clone(), files.key.clone());
        let mut config = builder.with_single_cert(chain, key).map_err(|error| TlsError::Unusable {
            certificate,
            key: key_file,
            error,
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // What the TLS library takes can be read, too.
        Ok(Self { contents, config: Arc::new(config), expires: expires.unwrap_or(SystemTime::UNIX_EPOCH) })
    }
}

impl FileContents {
    fn read(files: &TlsFiles, reloads: &Reloads) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            let _reading = reloads.reading(&path.display().to_string());
            xds_file::read(path, FILE_LIMIT_BYTES)
                .map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })
        };
        let client_authorities = files.client_authorities.as_deref().map(read).transpose()?;
        Ok(Self { certificate: read(&files.certificate)?, key: read(&files.key)?, client_authorities })
    }
}

impl Handshake<TcpStream> for Arc<Tls> {
    type Hello = StartHandshake<TcpStream>;
    type Secured = TlsStream<TcpStream>;

    fn peer(&self, io: &TcpStream) -> Peer {
        Peer { address: io.peer_addr().ok(), ..Peer::default() }
    }

    async fn hello(&self, io: TcpStream) -> io::Result<Self::Hello> {
        LazyConfigAcceptor::new(Acceptor::default(), io).await
    }

    async fn complete(&self, hello: Self::Hello) -> io::Result<(Self::Secured, Option<Arc<Identity>>)> {
        let config = Arc::clone(&self.current.load().config);
        let io = hello.into_stream(config).await?;
        let identity = shown(&io);
        Ok((io, identity))
    }
}

impl Tls {
    /// Makes a connection of HTTP/1.1 of one that was accepted, and says who is there: for ports of
    /// one's own. Give it a time.
    ///
    /// # Errors
    /// The handshake failed.
    pub async fn accept_http1(&self, io: TcpStream) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let mut config = ServerConfig::clone(&self.current.load().config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let address = io.peer_addr().ok();
        let io = TlsAcceptor::from(Arc::new(config)).accept(io).await?;
        let identity = shown(&io);
        Ok((io, Peer { address, identity, ..Peer::default() }))
    }
}

/// What the certificate says that the peer showed, if it did.
fn shown(io: &TlsStream<TcpStream>) -> Option<Arc<Identity>> {
    let certificates = io.get_ref().1.peer_certificates();
    certificates.and_then(|chain| identity(chain.first()?)).map(Arc::new)
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let malformed = |error| TlsError::Malformed { path: path.to_owned(), expected: "certificate", error };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| malformed(Some(error)))?;
    if found.is_empty() { Err(malformed(None)) } else { Ok(found) }
}

/// The names in a certificate that was verified: its SPIFFE id alone if it has one, as that is then
/// who it is.
fn identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let expires = expires(certificate)?;
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with("spiffe://") => Some((*uri).to_owned()),
        _ => None,
    });
    let uris: Vec<_> = uris.collect();
    // SPIFFE: exactly one. Of several nobody can say which it is.
    let names = match uris.len() {
        0 => names.iter().filter_map(dns_name).collect(),
        1 => uris,
        _ => Vec::new(),
    };
    Some(Identity::new(names, expires))
}

fn dns_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    }
}

/// Until when it is valid.
fn expires(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = certificate.validity().not_after.timestamp().try_into().unwrap_or_default();
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// More than any certificate, key or bundle of authorities has.
const FILE_LIMIT_BYTES: usize = 16 << 20;
