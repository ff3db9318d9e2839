//! Real clients with a certificate. They get the resources that the policy allows for their
//! identity.

use std::fs;

use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use serde_json::{Value, json};

use crate::calls::Calls;
use crate::envoy::{Envoy, bootstrap};
use crate::folder::Folder;
use crate::grpc_peer::{GrpcPeer, Implementation};
use crate::http;
use crate::mode::Mode;
use crate::peers;
use crate::resources::{api_listener, cluster, endpoints, listener, routes, when};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};
use crate::world::every_turn;

/// A certificate authority, its certificates as files, and a server that trusts it.
pub(crate) struct Secured {
    ca: CertifiedIssuer<'static, KeyPair>,
    files: Folder,
}

impl Secured {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate with the name of its authority would count as self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let secured = Self { ca, files: Folder::new() };
        secured.write("ca.pem", &secured.ca.pem());
        secured.write("policy.yaml", POLICY);
        secured.sign("server", SanType::DnsName("localhost".try_into().expect("a name")));
        secured
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.files.path().join(file), text).expect("the temporary directory is writable");
    }

    pub(crate) fn path(&self, file: &str) -> String {
        self.files.path().join(file).to_str().expect("a text").to_owned()
    }

    fn sign(&self, file: &str, name: SanType) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.ca).expect("signed");
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    fn client(&self, identity: &str) {
        self.sign("client", SanType::URI(Ia5String::try_from(identity).expect("ASCII")));
    }

    async fn serve(&self, folder: &Folder) -> Server {
        let [cert, key, ca, policy] =
            ["server.pem", "server.key", "ca.pem", "policy.yaml"].map(|file| self.path(file));
        let options =
            ["--listen-cert", &cert, "--listen-key", &key, "--listen-client-ca", &ca, "--policy", &policy];
        Server::start_with(folder.path(), &options).await
    }

    /// Envoy's transport socket with the certificate of the client.
    fn transport_socket(&self) -> Value {
        let file = |file: &str| json!({"filename": self.path(file)});
        let context = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "localhost",
            "common_tls_context": {
                "tls_certificates": [{"certificate_chain": file("client.pem"), "private_key": file("client.key")}],
                "validation_context": {"trusted_ca": file("ca.pem")},
                "alpn_protocols": ["h2"],
            },
        });
        json!({"name": "tls", "typed_config": context})
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_with_a_certificate_is_who_that_says_and_a_new_one_of_the_server_ends_no_stream() {
    if peers::find(peers::ENVOY).is_none() {
        return;
    }
    let _turns = every_turn().await;
    for mode in Mode::ADS {
        let secured = Secured::new();
        secured.client("spiffe://example.org/env/prod/sa/edge");
        let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
        let (folder, scratch) = (Folder::new(), Folder::new());
        folder.write("listener.json", &[listener(mode, "web", "routes")]);
        folder.write(
            "routes.json",
            &[
                when("env=prod", routes("routes", &[("/", "one")])),
                when("env=test", routes("routes", &[("/", "two")])),
            ],
        );
        folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "hidden")]);
        folder.write("endpoints.json", &[endpoints("one", red.port), endpoints("hidden", red.port)]);
        let server = secured.serve(&folder).await;
        // Its metadata claims another environment.
        let mut config = bootstrap(mode, server.port, &json!({"env": "test"}));
        config["static_resources"]["clusters"][0]["transport_socket"] = secured.transport_socket();
        let envoy = Envoy::start_with(scratch.path(), &config.to_string(), "bootstrap.json").await;
        let envoy = envoy.expect("found before");
        let port = envoy.port("web").await;
        let until_answer = async |upstream: &str| {
            let answers =
                async || http::get(port, "/").await.is_ok_and(|answer| answer.body == upstream).then_some(());
            until(&format!("{mode}: {upstream} answers"), SOON, answers).await;
        };
        until_answer("red").await;
        assert!(envoy.clusters().await.into_keys().eq(["one"]), "{mode}: of all clusters what it may read");
        let connections = envoy.stats().await.get("cluster.xds.upstream_cx_total");

        secured.sign("server", SanType::DnsName("localhost".try_into().expect("a name")));
        until("the server has the new certificate", SOON, async || {
            (!server.lines_with("loaded new certificates").is_empty()).then_some(())
        })
        .await;
        folder.write("endpoints.json", &[endpoints("one", blue.port)]);
        until_answer("blue").await;
        let now = envoy.stats().await.get("cluster.xds.upstream_cx_total");
        assert_eq!(now, connections, "{mode}: the stream went on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_with_a_certificate_is_who_that_says() {
    let Some((_red, red)) = GrpcPeer::server("red").await else { return };
    let secured = Secured::new();
    secured.client("spiffe://example.org/env/prod/sa/python");
    let folder = Folder::new();
    let sotw = Mode::ADS[0];
    folder.write("listener.json", &[api_listener(sotw, "svc", "routes")]);
    folder.write(
        "routes.json",
        &[
            when("env=prod", routes("routes", &[("", "one")])),
            when("env=test", routes("routes", &[("", "none")])),
        ],
    );
    folder.write("clusters.json", &[cluster(sotw, "one")]);
    folder.write("endpoints.json", &[endpoints("one", red)]);
    let server = secured.serve(&folder).await;
    let files = json!({
        "ca_certificate_file": secured.path("ca.pem"),
        "certificate_file": secured.path("client.pem"),
        "private_key_file": secured.path("client.key"),
    });
    let credentials = json!({"type": "tls", "config": files});
    let uri = format!("localhost:{}", server.port);
    let metadata = json!({"env": "test"});
    let client = GrpcPeer::client_with(Implementation::Core, "xds:///svc", &uri, &credentials, &metadata);
    let mut calls = Calls::start(Implementation::Core, client.expect("found before"));
    calls.until_answer("red").await;
    calls.finish_without_loss().await;
}

const POLICY: &str = "rules:
- client: spiffe://example.org/env/{env}/sa/*
  parameters: { env: '{env}' }
  read:
  - types: [CDS, EDS]
    names: [one]
  - types: [LDS, RDS]
";
