//! TLS and mTLS from files that may change: to renew a certificate, replace its files. Open streams
//! continue.

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
use crate::handshake_log::HandshakeLog;
use crate::observe::HandshakeFailure;
use crate::peer::{Identity, Peer};

/// The paths of the TLS files, all in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// The private key of the server certificate.
    pub key: PathBuf,
    /// The authorities of client certificates. With this file, a client without a certificate from
    /// one of them is refused. Without it, the server requests no certificates, and no client has
    /// an [`Identity`].
    pub client_authorities: Option<PathBuf>,
}

/// The TLS configuration for new connections: the newest usable content of the [`TlsFiles`].
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: ArcSwap<Loaded>,
    reloads: Arc<Reloads>,
    /// For ports that a program serves itself.
    handshake_log: Arc<HandshakeLog>,
}

#[derive(Debug)]
struct Loaded {
    contents: FileContents,
    config: Arc<ServerConfig>,
    expires: SystemTime,
}

/// The content of the files.
#[derive(PartialEq, Eq)]
struct FileContents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authorities: Option<Vec<u8>>,
}

/// Debug output must not contain the key.
impl std::fmt::Debug for FileContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileContents")
    }
}

/// Why the TLS files are not usable. The former content stays in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file is not readable.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A file does not contain PEM of the expected kind.
    #[error("{} holds no {expected} in PEM", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The expected kind.
        expected: &'static str,
        /// The error; `None` if the file contains no PEM of this kind.
        #[source]
        error: Option<pem::Error>,
    },
    /// The certificate and the key do not match, or have an unsupported type.
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
    /// The certificate has expired, so clients would refuse it.
    #[error("the certificate in {} has expired", path.display())]
    Expired {
        /// Its file.
        path: PathBuf,
    },
    /// The file of client authorities has no usable certificate.
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
    /// Reads the files and checks them.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let reloads = Arc::new(Reloads::default());
        let loaded = Loaded::of(FileContents::read(&files, &reloads)?, &files)?;
        reloads.on_new();
        Ok(Arc::new(Self {
            files,
            current: ArcSwap::from_pointee(loaded),
            reloads,
            handshake_log: Arc::default(),
        }))
    }

    /// When the certificate in use expires.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.current.load().expires
    }

    /// The results of reading the files.
    #[must_use]
    pub fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// Reads the files again. Returns whether they have changed. New connections use the new
    /// content; open ones continue.
    ///
    /// # Errors
    /// See [`TlsError`]. The former content stays in use then.
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

    /// Reads the files again at this interval, forever, and logs changes and errors. It compares
    /// contents instead of using file system events: the three files of a mounted secret change one
    /// after the other, or by a link in a parent directory.
    pub async fn follow(self: Arc<Self>, every: Duration) {
        loop {
            self.reloads.due(every).await;
            let (tls, refusals) = (Arc::clone(&self), self.reloads.refusals());
            // The files may be on a slow disk.
            let reloaded = self.reloads.blocking("certificates", move || tls.reload()).await;
            let Ok(reloaded) = reloaded else { return };
            match reloaded {
                Ok(true) => {
                    info!(certificate = %self.files.certificate.display(), "loaded new certificates");
                }
                Err(error) if self.reloads.refusals() > refusals => {
                    let because = std::error::Error::source(&error).map(ToString::to_string);
                    warn!(%error, because, "the new certificates are invalid; the last good ones stay in use");
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
        // A certificate that the TLS library accepts is readable here too.
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
        let identity = identity_of(&io);
        Ok((io, identity))
    }

    fn failure(error: &io::Error) -> HandshakeFailure {
        failure(error)
    }
}

impl Tls {
    /// Performs the TLS handshake of an accepted connection for HTTP/1.1, and returns its peer: for
    /// ports that a program serves itself. Use it with a timeout. It logs a failed handshake.
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn accept_http1(&self, io: TcpStream) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let mut config = ServerConfig::clone(&self.current.load().config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.accept_with(config.into(), io).await
    }

    /// The same for HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// When the handshake fails.
    pub async fn accept_http(&self, io: TcpStream) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let config = Arc::clone(&self.current.load().config);
        self.accept_with(config, io).await
    }

    async fn accept_with(
        &self,
        config: Arc<ServerConfig>,
        io: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let address = io.peer_addr().ok();
        let accepted = TlsAcceptor::from(config).accept(io).await;
        let io = accepted.inspect_err(|error| self.handshake_log.on(failure(error), error, address))?;
        let identity = identity_of(&io);
        Ok((io, Peer { address, identity, ..Peer::default() }))
    }
}

/// Why a handshake failed.
fn failure(error: &io::Error) -> HandshakeFailure {
    use rustls::{CertificateError as Invalid, Error};

    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(Error::NoCertificatesPresented) => HandshakeFailure::NoClientCertificate,
        Some(Error::InvalidCertificate(error)) => match error {
            // A bad signature: the authority has the name of a trusted one, and another key.
            Invalid::UnknownIssuer | Invalid::BadSignature => HandshakeFailure::UnknownAuthority,
            Invalid::Expired
            | Invalid::ExpiredContext { .. }
            | Invalid::NotValidYet
            | Invalid::NotValidYetContext { .. } => HandshakeFailure::CertificateExpired,
            _ => HandshakeFailure::InvalidCertificate,
        },
        Some(Error::InvalidMessage(_)) => HandshakeFailure::NotTls,
        Some(Error::PeerIncompatible(_)) => HandshakeFailure::Incompatible,
        Some(Error::AlertReceived(_)) => HandshakeFailure::RefusedByPeer,
        Some(_) => HandshakeFailure::Other,
        // The connection itself failed.
        None => HandshakeFailure::Closed,
    }
}

/// The identity in the certificate of the peer, if it has one.
fn identity_of(io: &TlsStream<TcpStream>) -> Option<Arc<Identity>> {
    let certificates = io.get_ref().1.peer_certificates();
    certificates.and_then(|chain| identity(chain.first()?)).map(Arc::new)
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let malformed = |error| TlsError::Malformed { path: path.to_owned(), expected: "certificate", error };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| malformed(Some(error)))?;
    if found.is_empty() { Err(malformed(None)) } else { Ok(found) }
}

/// The names in a verified certificate. If it has a SPIFFE id, only that id, because it identifies
/// the client.
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
    // SPIFFE requires exactly one id. With several, the certificate identifies nobody.
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

/// When the certificate expires.
fn expires(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = certificate.validity().not_after.timestamp().try_into().unwrap_or_default();
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Larger than any certificate, key or bundle of authorities.
const FILE_LIMIT_BYTES: usize = 16 << 20;
