//! How commands find the server of a store on the same machine.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

use super::*;

/// A store whose server has these addresses and options.
fn served_at(test: &str, options: &[&str]) -> Served {
    let stored = Stored::unserved(test);
    serve(stored, options)
}

fn serve(stored: Stored, options: &[&str]) -> Served {
    let data = stored.path("data");
    let addresses = ["serve", "--store", &data, "--listen", "127.0.0.1:0"];
    let server = Running::start_with(&[&addresses, options].concat());
    Served { stored, server }
}

#[test]
fn the_folder_of_a_store_is_enough_if_other_machines_reach_the_admin_port_too() {
    let stored = served_at("open-admin", &["--admin", "0.0.0.0:0", "--insecure"]);
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data");
    assert!(stored.ok("list --store data").starts_with("+ Cluster a  "));
    let local: Value = serde_json::from_slice(&fs::read(stored.path("data/server.json")).unwrap()).unwrap();
    let local = local["address"].as_str().unwrap();
    // The port for commands has the API alone, and needs an identity, too.
    let request = format!("GET /api/ HTTP/1.1\r\nhost: {local}\r\nconnection: close\r\n\r\n");
    assert!(http(local, &request).starts_with("HTTP/1.1 404 "));
    let (code, error) = stored.fails(&format!("list --server {local}"));
    assert_eq!((code, error.contains("UNAUTHENTICATED")), (1, true), "{error}");
}

/// A certificate authority that writes certificates into the folder of a store.
pub(super) struct Ca<'a>(CertifiedIssuer<'static, KeyPair>, &'a Stored);

impl<'a> Ca<'a> {
    pub(super) fn new(stored: &'a Stored) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap(), stored);
        stored.write("ca.pem", ca.0.pem());
        ca
    }

    /// Writes `FILE.pem` and `FILE.key`.
    pub(super) fn sign(&self, file: &str, name: SanType) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().unwrap();
        self.1.write(&format!("{file}.pem"), params.signed_by(&key, &self.0).unwrap().pem());
        self.1.write(&format!("{file}.key"), key.serialize_pem());
    }
}

/// A store whose admin port takes the certificates of `server` and of clients, with this policy.
fn served_with_tls(stored: Stored, policy: &str) -> Served {
    served_with_policy(stored, policy, &[])
}

/// The same with further options.
pub(super) fn served_with_policy(stored: Stored, policy: &str, options: &[&str]) -> Served {
    stored.write("policy.yaml", policy);
    let files = ["server.pem", "server.key", "ca.pem", "policy.yaml"].map(|file| stored.path(file));
    let [cert, key, ca, policy] = &files;
    let tls = ["--listen-cert", cert, "--listen-key", key, "--listen-client-ca", ca, "--policy", policy];
    serve(stored, &[&tls[..], &["--admin", "0.0.0.0:0"], options].concat())
}

#[test]
fn the_folder_of_a_store_is_enough_if_the_admin_port_has_tls() {
    let stored = Stored::unserved("tls-admin");
    Ca::new(&stored).sign("server", SanType::DnsName("xds.example".try_into().unwrap()));
    let stored = served_with_tls(stored, "rules:\n- client: spiffe://example.org/ops/*\n  inspect: true\n");
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data");
    assert!(stored.ok("list --store data").starts_with("+ Cluster a  "));
}

#[test]
fn st50_st56_the_api_at_an_admin_port_with_tls_judges_each_client_by_its_certificate() {
    let stored = Stored::unserved("mtls");
    let ca = Ca::new(&stored);
    ca.sign("server", SanType::DnsName("localhost".try_into().unwrap()));
    for client in ["shop", "desk"] {
        let uri = format!("spiffe://example.org/team/{client}");
        ca.sign(client, SanType::URI(uri.as_str().try_into().unwrap()));
    }
    let stored = served_with_tls(stored, SHOP_POLICY);
    let port = stored.server.admin.rsplit(':').next().unwrap();
    let of = |client: &str| {
        format!("--server https://localhost:{port} --ca ca.pem --cert {client}.pem --key {client}.key")
    };
    stored.write("a.yaml", cluster("a", 1));
    stored.ok(&format!("put a.yaml {}", of("shop")));
    let history = &stored.json(&format!("history CDS a {}", of("shop")))[0];
    assert_eq!(history["identity"], "spiffe://example.org/team/shop");
    // It has a certificate, and no rule.
    let (code, error) = stored.fails(&format!("put a.yaml {}", of("desk")));
    assert!(code == 1 && error.contains("it lacks the right `write`"), "{error}");
    // It has no certificate.
    let (code, error) =
        stored.fails(&format!("list --server https://localhost:{port} --ca ca.pem --timeout 5"));
    assert!(code == 1 && !error.contains("Cluster"), "{error}");

    let mut watch = xds();
    watch.current_dir(&stored.0.0).args(["list", "CDS", "--watch"]).args(of("shop").split(' '));
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains("Cluster a "));
    stored.write("b.yaml", cluster("b", 1));
    stored.ok(&format!("put b.yaml {}", of("shop")));
    assert!(lines.next().unwrap().unwrap().contains("Cluster b "));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

const SHOP_POLICY: &str = "rules:
- client: spiffe://example.org/team/shop
  read: [{ types: [CDS], names: ['*'] }]
  write: [{ types: [CDS], names: ['*'] }]
";

#[test]
fn st52_tokens_have_a_policy_of_their_own_while_nobody_has_a_client_certificate() {
    let stored = Stored::unserved("api-policy");
    Ca::new(&stored).sign("server", SanType::DnsName("localhost".try_into().unwrap()));
    stored.write("policy.yaml", TOKEN_POLICY);
    stored.write("tokens", "shop token-of-the-shop-1\ndesk token-of-the-desk-1\n");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(stored.path("tokens"), closed).unwrap();
    for client in ["shop", "desk"] {
        stored.write(client, format!("token-of-the-{client}-1\n"));
    }
    let files = ["server.pem", "server.key", "policy.yaml", "tokens"].map(|file| stored.path(file));
    let [cert, key, policy, tokens] = &files;
    let tls = ["--listen-cert", cert, "--listen-key", key, "--admin", "0.0.0.0:0"];
    let stored = serve(stored, &[&tls[..], &["--api-policy", policy, "--token-file", tokens]].concat());
    let port = stored.server.admin.rsplit(':').next().unwrap();
    let of = |client: &str| {
        format!("--server https://localhost:{port} --ca ca.pem --token-file {client} --timeout 10")
    };
    stored.write("a.yaml", cluster("a", 1));
    stored.ok(&format!("put a.yaml {}", of("shop")));
    let (code, error) = stored.fails(&format!("put a.yaml {}", of("desk")));
    assert!(code == 1 && error.contains("it lacks the right `write`"), "{error}");
    stored.ok(&format!("store status {}", of("desk")));
    let (code, error) = stored.fails(&format!("store status {}", of("shop")));
    assert!(code == 1 && error.contains("needs the right to inspect"), "{error}");
    // The policy is not for clients of xDS.
    let (_, xds) = stored.server.address.rsplit_once(':').unwrap();
    let mut watch = xds_watch(&stored, xds);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains("\"a\""));
    watch.kill().unwrap();
    watch.wait().unwrap();
    // It is read again when it changes.
    stored.write("policy.yaml", TOKEN_POLICY.replace("token:desk", "token:nobody"));
    let start = std::time::Instant::now();
    while stored.run(&format!("store status {}", of("desk"))).status.success() {
        assert!(start.elapsed() < SOON, "the old policy stays in use");
    }
}

/// A client of xDS without a certificate.
fn xds_watch(stored: &Stored, port: &str) -> std::process::Child {
    let server = format!("https://localhost:{port}");
    let mut watch = xds();
    watch.current_dir(&stored.0.0).args(["watch", "--server", &server, "--ca", "ca.pem"]);
    watch.args(["--format", "json", "CDS"]).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn st52_a_policy_for_the_api_that_cannot_be_used_ends_the_start_with_its_reason() {
    let stored = Stored::unserved("api-policy-wrong");
    stored.write("policy.yaml", "rules: []\n");
    let serve = |options: &str| stored.fails(&format!("serve --listen 127.0.0.1:0 {options}"));
    let (code, error) = serve("--store data --api-policy policy.yaml");
    assert!(code == 2 && error.contains("policy.yaml") && error.contains("has no rule"), "{error}");
    let (code, error) = serve("--store data --api-policy none.yaml");
    assert!(code == 1 && error.contains("cannot read the policy none.yaml"), "{error}");
    stored.write("config/a.yaml", cluster("a", 1));
    let (code, error) = serve("config --api-policy policy.yaml");
    assert!(code == 2 && error.contains("--store"), "{error}");
    // One for the clients of xDS still needs certificates: without any, it would refuse all of them.
    let (code, error) = serve("--store data --policy policy.yaml");
    assert!(code == 2 && error.contains("--listen-client-ca"), "{error}");
}

const TOKEN_POLICY: &str = "rules:
- client: token:shop
  read: [{ types: [CDS], names: ['*'] }]
  write: [{ types: [CDS], names: ['*'] }]
- client: token:desk
  inspect: true
";

#[test]
fn a_server_without_an_admin_port_has_no_api() {
    let stored = Stored::unserved("no-admin");
    let mut serve = xds();
    serve.args(["serve", "--store", &stored.path("data"), "--listen", "127.0.0.1:0", "--admin", "none"]);
    let mut serve = serve.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(serve.stdout.take().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().starts_with("listening on ")));
    let (code, error) = stored.fails("list --store data");
    assert_eq!((code, error.contains("with an admin port")), (1, true), "{error}");
    serve.kill().unwrap();
    serve.wait().unwrap();
}

#[test]
fn a_command_for_a_folder_says_what_to_do_with_a_store_in_etcd() {
    let stored = Stored::unserved("etcd-address");
    for command in ["store check", "store upgrade"] {
        let (code, text) = stored.fails(&format!("{command} etcd://127.0.0.1:1/x"));
        assert!(code == 2 && text.contains("etcd://127.0.0.1:1/x is not a folder"), "{code}: {text}");
    }
    let (code, text) = stored.fails("list --store etcds://127.0.0.1:1/x");
    assert!(code == 2 && text.contains("for a store in etcd give --server"), "{code}: {text}");
}

#[test]
fn only_options_of_etcd_are_under_the_heading_of_etcd_in_a_help() {
    let stored = Stored::unserved("headings");
    for command in ["serve", "store init", "store restore"] {
        let help = stored.ok(&format!("{command} --help"));
        let etcd = help.split_once("\nStore in etcd:\n").unwrap().1;
        // The next heading, which is not indented.
        let lines = etcd.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
        let options: Vec<_> = lines.filter(|line| line.trim_start().starts_with("--")).collect();
        assert_eq!(options.len(), 4, "{command}: {options:?}");
    }
}
