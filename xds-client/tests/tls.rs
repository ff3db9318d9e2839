//! TLS, mTLS and call credentials, with certificates that the tests make.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use xds_client::bootstrap::{Bootstrap, CallCredentials, ChannelCredentials, IdentityFiles, TlsFiles};
use xds_client::{Client, Event, Watcher};
use xds_core::{Cache, Resource, Transaction};
use xds_server::Server;

#[derive(Clone, PartialEq, Message)]
struct Thing {
    #[prost(string, tag = "1")]
    name: String,
}

impl prost::Name for Thing {
    const NAME: &'static str = "Thing";
    const PACKAGE: &'static str = "acme";
}

/// A certificate authority, with its files in a temporary folder.
struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Ca {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("xds-client-tls-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Signs a certificate; returns the files of it and its key.
    fn sign(&self, name: &str) -> IdentityFiles {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (certificate_file, private_key_file) = (self.file(name, "crt"), self.file(name, "key"));
        std::fs::write(&certificate_file, certificate.pem()).unwrap();
        std::fs::write(&private_key_file, key.serialize_pem()).unwrap();
        IdentityFiles { certificate_file, private_key_file }
    }

    fn file(&self, name: &str, ending: &str) -> PathBuf {
        self.folder.join(format!("{name}.{ending}"))
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Serves one resource over TLS, and requires certificates of `clients` if set. Returns the port.
async fn serve(ca: &Ca, clients: Option<&Ca>) -> u16 {
    let files = ca.sign("localhost");
    let certificates = CertificateDer::pem_file_iter(&files.certificate_file).unwrap();
    let key = PrivateKeyDer::from_pem_file(&files.private_key_file).unwrap();
    let builder = ServerConfig::builder();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(clients.roots())).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certificates.map(Result::unwrap).collect(), key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, connections) = mpsc::channel(4);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    _ = sender.send(Ok(stream)).await;
                }
            });
        }
    });
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    let payload = Thing { name: "a".to_owned() }.encode_to_vec();
    transaction.put(Resource::new("type.googleapis.com/acme.Thing", "a", payload).unwrap());
    cache.commit(transaction).unwrap();
    let server = Server::new(cache);
    tokio::spawn(server.serve_with_incoming(ReceiverStream::new(connections), std::future::pending()));
    port
}

fn bootstrap(port: u16, ca: &Path, identity: Option<IdentityFiles>) -> Bootstrap {
    let mut bootstrap = Bootstrap::to_server(format!("localhost:{port}"));
    bootstrap.servers[0].credentials = ChannelCredentials::Tls(TlsFiles {
        ca_certificate_file: Some(ca.to_owned()),
        identity,
        ..TlsFiles::default()
    });
    bootstrap
}

async fn event(watcher: &mut Watcher<Thing>) -> Event<Thing> {
    let event = tokio::time::timeout(Duration::from_secs(20), watcher.next()).await;
    event.expect("in time").expect("the client lives")
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_no_other() {
    let (ca, other) = (Ca::new(), Ca::new());
    let port = serve(&ca, None).await;
    let client = Client::start(bootstrap(port, &ca.file("ca", "pem"), None)).unwrap();
    assert!(matches!(event(&mut client.watch("a").unwrap()).await, Event::Changed(_)));

    let client = Client::start(bootstrap(port, &other.file("ca", "pem"), None)).unwrap();
    let Event::Absent(error) = event(&mut client.watch("a").unwrap()).await else {
        panic!("it must not be trusted")
    };
    assert!(error.message.contains("certificate"), "{error}");

    let client = Client::start(bootstrap(port, &ca.file("none", "pem"), None)).unwrap();
    let Event::Absent(error) = event(&mut client.watch("a").unwrap()).await else {
        panic!("there is no such file")
    };
    assert!(error.message.contains("none.pem"), "{error}");
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_is_shown_one_also_one_that_came_later() {
    let (ca, clients) = (Ca::new(), Ca::new());
    let port = serve(&ca, Some(&clients)).await;
    let identity = IdentityFiles {
        certificate_file: clients.file("me", "crt"),
        private_key_file: clients.file("me", "key"),
    };
    let client = Client::start(bootstrap(port, &ca.file("ca", "pem"), Some(identity))).unwrap();
    let mut watcher = client.watch("a").unwrap();
    // There is no certificate yet, so the connection fails.
    assert!(matches!(event(&mut watcher).await, Event::Absent(_)));
    clients.sign("me");
    while !matches!(event(&mut watcher).await, Event::Changed(_)) {}

    let client = Client::start(bootstrap(port, &ca.file("ca", "pem"), None)).unwrap();
    assert!(matches!(event(&mut client.watch("a").unwrap()).await, Event::Absent(_)));
}

#[tokio::test]
async fn a97_a_token_goes_with_each_stream_and_never_in_plain() {
    let ca = Ca::new();
    let port = serve(&ca, None).await;
    let token = ca.file("token", "jwt");
    std::fs::write(&token, "abc\n").unwrap();
    let mut bootstrap = bootstrap(port, &ca.file("ca", "pem"), None);
    bootstrap.servers[0].call_credentials.push(CallCredentials::JwtTokenFile(token));
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let builder = Client::builder(bootstrap.clone()).call_credentials(Arc::new(move |_| {
        *count.lock().unwrap() += 1;
        Box::pin(async { Ok(MetadataMap::new()) })
    }));
    let client = builder.start().unwrap();
    assert!(matches!(event(&mut client.watch("a").unwrap()).await, Event::Changed(_)));
    assert_eq!(*asked.lock().unwrap(), 1);

    bootstrap.servers[0].credentials = ChannelCredentials::Insecure;
    bootstrap.servers[0].uri = format!("127.0.0.1:{}", serve_plain().await);
    let client = Client::start(bootstrap).unwrap();
    let Event::Absent(error) = event(&mut client.watch("a").unwrap()).await else {
        panic!("no token in plain")
    };
    assert!(error.message.contains("without TLS"), "{error}");
}

async fn serve_plain() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(Server::new(Cache::new()).serve(listener, std::future::pending()));
    port
}
