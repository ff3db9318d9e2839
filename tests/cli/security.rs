//! Certificates and a policy file decide which clients may connect and what they may read, with the
//! binary alone.

use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

/// A certificate authority that writes its certificates into a folder.
struct Ca<'a>(CertifiedIssuer<'static, KeyPair>, &'a Scratch);

impl<'a> Ca<'a> {
    fn new(scratch: &'a Scratch) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(), scratch);
        scratch.write("ca.pem", ca.0.pem());
        ca
    }

    /// Writes `NAME.pem` and `NAME.key`.
    fn sign(&self, file: &str, name: SanType) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        self.1.write(&format!("{file}.pem"), certificate.pem());
        self.1.write(&format!("{file}.key"), key.serialize_pem());
    }

    fn client(&self, file: &str, identity: &str) {
        self.sign(file, SanType::URI(Ia5String::try_from(identity).unwrap()));
    }
}

/// A folder of resources, and a folder of certificates beside it.
fn scratches(test: &str) -> (Scratch, Scratch) {
    let (folder, secrets) = (Scratch::new(test), Scratch::new(&format!("{test}-secrets")));
    let route = |env: &str| {
        format!(
            "\"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\nname: r\nwhen: env={env}\n\
             virtual_hosts: [{{name: for-{env}, domains: ['*']}}]\n"
        )
    };
    folder.write("clusters.yaml", format!("{}---\n{}", cluster("team-a/x"), cluster("team-b/x")));
    folder.write("routes.yaml", format!("{}---\n{}", route("prod"), route("test")));
    (folder, secrets)
}

impl Scratch {
    fn path(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().to_owned()
    }

    /// `xds serve` with TLS and the policy of these files.
    fn secured(&self, folder: &Self) -> Serving {
        let files = ["server.pem", "server.key", "ca.pem", "policy.yaml"].map(|file| self.path(file));
        let [cert, key, ca, policy] = &files;
        let arguments =
            ["--listen-cert", cert, "--listen-key", key, "--listen-client-ca", ca, "--policy", policy];
        folder.serve(&arguments)
    }

    /// The output of `xds get` with this client certificate.
    fn get(&self, port: u16, client: &str, what: &[&str]) -> Output {
        let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
        xds.args(["get", "--timeout", "5", "--server", &format!("https://localhost:{port}")]);
        xds.args(["--ca", &self.path("ca.pem"), "--cert", &self.path(&format!("{client}.pem"))]);
        xds.args(["--key", &self.path(&format!("{client}.key"))]).args(what);
        xds.env_remove("RUST_LOG").output().unwrap()
    }
}

impl Scratch {
    /// The answer of HTTPS to a client with this certificate.
    fn fetch(&self, port: u16, client: &str, path: &str) -> io::Result<String> {
        let mut stream = self.connect(port, client)?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
    }

    /// A connection with this client certificate.
    fn connect(&self, port: u16, client: &str) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let pem = |file: &str| fs::read(self.0.join(file)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem("ca.pem")).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(&pem(&format!("{client}.pem"))).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&pem(&format!("{client}.key"))).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Ok(StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port))?))
    }
}

const POLICY: &str = "rules:
- client: spiffe://example.org/env/{env}
  parameters: { env: '{env}' }
  read:
  - types: [CDS]
    names: [team-a/*]
  - types: [RDS]
";

#[test]
fn a_policy_says_who_reads_what_and_as_whom() {
    let (folder, secrets) = scratches("policy");
    let ca = Ca::new(&secrets);
    ca.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
    ca.client("prod", "spiffe://example.org/env/prod");
    ca.client("stranger", "spiffe://elsewhere/env/prod");
    secrets.write("policy.yaml", POLICY);
    let mut serving = secrets.secured(&folder);
    let port = serving.address().port();
    let got = secrets.get(port, "prod", &["CDS", "*"]);
    let text = String::from_utf8_lossy(&got.stdout).into_owned();
    assert!(text.contains("team-a/x") && !text.contains("team-b"), "{got:?}");
    // The client claims another environment in its metadata.
    let claims = ["RDS", "r", "--metadata", "env=test"];
    let got = secrets.get(port, "prod", &claims);
    let text = String::from_utf8_lossy(&got.stdout).into_owned();
    assert!(text.contains("for-prod") && !text.contains("for-test"), "{got:?}");
    let got = secrets.get(port, "prod", &["CDS", "team-b/x"]);
    let error = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(error.contains("may not read") && !got.status.success(), "{got:?}");
    let lines = serving.until("a client subscribes to resources that it may not read");
    let line = lines.last().unwrap();
    let identity = "identity=\"spiffe://example.org/env/prod\"";
    assert!(line.contains(identity) && line.contains("team-b/x"), "{line}");
    let got = secrets.get(port, "stranger", &["CDS", "*"]);
    let error = String::from_utf8_lossy(&got.stderr).into_owned();
    assert!(error.contains("no rule of the policy matches spiffe://elsewhere/env/prod"), "{got:?}");
    // An error in a new policy is logged, and the last good one stays in use.
    secrets.write("policy.yaml", "rules: [{client: x, read: [{types: [NONE]}]}]");
    serving.until("the new policy is invalid; the last good one stays in use");
    secrets.write("policy.yaml", "rules: [{client: 'spiffe://elsewhere/*', read: [{}]}]");
    serving.until("loaded a new policy");
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));
}

#[test]
fn a_hangup_has_everything_read_again_and_ends_nothing() {
    let (folder, secrets) = scratches("hangup");
    let ca = Ca::new(&secrets);
    ca.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
    secrets.write("policy.yaml", POLICY);
    let mut serving = secrets.secured(&folder);
    serving.until("listening on ");
    ca.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
    secrets.write("policy.yaml", format!("{POLICY}- client: anonymous\n"));
    serving.signal("-HUP");
    // The three lines come in any order.
    let (mut lines, mut missing) =
        (Vec::new(), vec!["SIGHUP", "loaded new certificates", "loaded a new policy"]);
    while !missing.is_empty() {
        lines.push(
            serving.lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("no {missing:?} in {lines:#?}")),
        );
        missing.retain(|text| !lines.last().unwrap().contains(text));
    }
    assert!(lines.iter().any(|line| line.contains("folder certificates policy")), "{lines:#?}");
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));

    let mut proxy = Command::new(env!("CARGO_BIN_EXE_xds"));
    proxy.args(["proxy", "--upstream", "127.0.0.1:1", "--listen", "127.0.0.1:0"]).env_remove("RUST_LOG");
    let mut proxy = Serving::start(&mut proxy);
    proxy.until("listening on ");
    proxy.signal("-HUP");
    proxy.until("SIGHUP");
    proxy.signal("-TERM");
    assert_eq!(proxy.exit_code(), Some(0));
}

#[test]
fn other_machines_see_the_admin_page_only_with_a_certificate_that_may_inspect() {
    let (folder, secrets) = scratches("inspect");
    let ca = Ca::new(&secrets);
    ca.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
    ca.client("ops", "spiffe://example.org/ops/me");
    ca.client("prod", "spiffe://example.org/env/prod");
    secrets.write("policy.yaml", format!("{POLICY}- client: spiffe://example.org/ops/*\n  inspect: true\n"));
    let files = ["server.pem", "server.key", "ca.pem", "policy.yaml"].map(|file| secrets.path(file));
    let [cert, key, ca, policy] = &files;
    let mut open = vec!["--admin", "0.0.0.0:0", "--listen-cert", cert, "--listen-key", key];
    let (_, text) = refused(&folder.xds("serve").args(&open).output().unwrap());
    assert!(text.contains("a --policy with rules for inspect"), "{text}");
    open.extend(["--listen-client-ca", ca, "--policy", policy]);
    let serving = folder.serve(&open);
    let lines = serving.until("admin page on https://0.0.0.0:");
    let port = lines.last().unwrap().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let fetch = |client: &str| secrets.fetch(port, client, "/readyz");
    assert!(fetch("ops").unwrap().ends_with("ready\n"));
    assert!(fetch("prod").is_err(), "it reads its configuration, and not that of others");
    // The right to inspect is revoked while a connection is open.
    let mut lasting = secrets.connect(port, "ops").unwrap();
    let mut ask = || -> io::Result<String> {
        write!(lasting, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let mut answer = vec![0; 4096];
        let len = lasting.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
    };
    assert!(ask().unwrap().starts_with("HTTP/1.1 200"));
    secrets.write("policy.yaml", POLICY);
    serving.until("loaded a new policy");
    assert!(ask().unwrap().starts_with("HTTP/1.1 403"));
}

#[test]
fn nobody_serves_other_machines_in_plain_text_by_accident() {
    let scratch = Scratch::with_cluster("plain");
    let serve = |arguments: &[&str]| refused(&scratch.xds("serve").args(arguments).output().unwrap());
    let (code, text) = serve(&["--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("plain text") && text.contains("--listen-cert") && text.contains("--insecure"),
        "{text}"
    );
    let mut open = scratch.xds("serve");
    open.args(["--listen", "0.0.0.0:0", "--insecure", "--admin", "none"]);
    Serving::start(&mut open).until("listening on 0.0.0.0:");
    for (arguments, expected) in [
        (&["--listen-cert", "c.pem"][..], "--listen-key"),
        (&["--policy", "p.yaml"], "--listen-client-ca"),
        (&["--listen-cert", "none.pem", "--listen-key", "none.key"], "cannot read none.pem"),
    ] {
        let (_, text) = serve(arguments);
        assert!(text.contains(expected), "{text}");
    }
}
