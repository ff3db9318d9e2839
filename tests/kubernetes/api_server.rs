//! A real kube-apiserver, and what its tests do with the etcd that it keeps its objects in.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::etcd::Etcd;
use crate::folder::Folder;
use crate::peers;
use crate::port::free_port;
use crate::wait::until;

impl Etcd {
    /// Drops the whole history but the newest revision.
    pub(crate) async fn compact(&self) {
        let status = self.post("/v3/maintenance/status", &json!({})).await;
        let revision = status["header"]["revision"].as_str().unwrap().to_owned();
        let compacted =
            self.post("/v3/kv/compaction", &json!({"revision": revision, "physical": true})).await;
        assert!(compacted["header"].is_object(), "{compacted}");
    }

    /// etcd's API over HTTP/1.
    async fn post(&self, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.unwrap();
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        serde_json::from_str(body).unwrap()
    }
}

/// A running API server; it is killed when dropped.
pub(crate) struct ApiServer {
    program: PathBuf,
    port: u16,
    child: Child,
    files: Folder,
}

impl ApiServer {
    /// `None` if it is not installed.
    pub(crate) async fn start(etcd: &Etcd) -> Option<Self> {
        let program = peers::find(KUBE_API_SERVER)?;
        let (files, port) = (Folder::new(), free_port());
        let tls = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = (tls.cert.pem(), tls.signing_key.serialize_pem());
        for (file, text) in [
            ("tls.crt", &*certificate),
            ("tls.key", &*key),
            ("tokens.csv", "for-admin,admin,admin,system:masters\nfor-xds,xds,xds\n"),
            ("admin.json", &kubeconfig(port, &files.path().join("tls.crt"), "for-admin")),
            ("xds.json", &kubeconfig(port, &files.path().join("tls.crt"), "for-xds")),
        ] {
            fs::write(files.path().join(file), text).unwrap();
        }
        // What signs the tokens of service accounts, of which these tests have none.
        let make_key = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"];
        let made =
            Command::new("openssl").args(make_key).arg(files.path().join("sa.key")).output().await.unwrap();
        assert!(made.status.success(), "{made:?}");
        let child = launch(&program, &files, port, etcd);
        let server = Self { program, port, child, files };
        server.until_ready().await;
        Some(server)
    }

    /// The file with the address and the rights of `admin` or of `xds`.
    pub(crate) fn kubeconfig(&self, who: &str) -> PathBuf {
        self.files.path().join(format!("{who}.json"))
    }

    /// Kills it without warning.
    pub(crate) async fn stop(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn end(mut self) {
        self.stop().await;
    }

    /// Starts it again on the same port.
    pub(crate) async fn restart(&mut self, etcd: &Etcd) {
        self.child = launch(&self.program, &self.files, self.port, etcd);
        self.until_ready().await;
    }

    async fn until_ready(&self) {
        let config = self.kubeconfig("admin");
        let is_ready = async || {
            let client = client(&config).await;
            let request = ::http::Request::get("/readyz").body(Vec::new()).unwrap();
            client.request_text(request).await.ok().map(drop)
        };
        let log = self.files.path().join("log");
        let ready = until("the API server is ready", START, is_ready);
        if tokio::time::timeout(START, ready).await.is_err() {
            panic!("{}", fs::read_to_string(log).unwrap_or_default());
        }
    }
}

/// A client with the rights in this file.
pub(crate) async fn client(config: &Path) -> kube::Client {
    let config = kube::config::Kubeconfig::read_from(config).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

fn launch(program: &Path, files: &Folder, port: u16, etcd: &Etcd) -> Child {
    let path = |file: &str| files.path().join(file).to_str().unwrap().to_owned();
    let log = fs::File::create(path("log")).unwrap();
    Command::new(program)
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", etcd.port))
        .arg(format!("--service-account-key-file={}", path("sa.key")))
        .arg(format!("--service-account-signing-key-file={}", path("sa.key")))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--token-auth-file={}", path("tokens.csv")))
        .arg(format!("--tls-cert-file={}", path("tls.crt")))
        .arg(format!("--tls-private-key-file={}", path("tls.key")))
        .arg(format!("--cert-dir={}", path("certs")))
        .args([
            "--authorization-mode=RBAC",
            "--bind-address=127.0.0.1",
            "--service-cluster-ip-range=10.96.0.0/16",
        ])
        .args(["--disable-admission-plugins=ServiceAccount", &format!("--secure-port={port}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn kubeconfig(port: u16, authority: &Path, token: &str) -> String {
    let cluster = json!({"server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    config.to_string()
}

const KUBE_API_SERVER: &str = "bin/kube-apiserver";

/// How long it may take to start.
const START: Duration = Duration::from_secs(90);
