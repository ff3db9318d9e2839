//! A store that several servers share in a real etcd, or of which each server has its own copy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tokio::process::Command;

use crate::etcd::Etcd;
use crate::folder::Folder;
use crate::server::Server;

/// A store, and the files of its users. Dropping this ends the etcd.
#[derive(Debug)]
pub(crate) struct SharedStore {
    folder: Folder,
    /// `None`: each server has a store of its own.
    etcd: Option<Etcd>,
}

impl SharedStore {
    /// An empty store.
    ///
    /// # Panics
    /// If etcd is not installed.
    pub(crate) async fn start() -> Self {
        let etcd = Etcd::start().await.expect("it was found before");
        succeeds(&run(&["store", "init", &etcd.store()]).await);
        Self { etcd: Some(etcd), ..Self::of_nodes() }
    }

    /// The files of the users of stores that [`Self::node`] serves.
    pub(crate) fn of_nodes() -> Self {
        let folder = Folder::new();
        let tokens = folder.path().join("tokens");
        fs::write(&tokens, format!("interop {TOKEN}\n")).expect("the temporary directory is writable");
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).expect("our own file");
        fs::write(folder.path().join("token"), format!("{TOKEN}\n")).expect("as above");
        Self { folder, etcd: None }
    }

    /// Makes a store for a node in a folder of this name: of the cluster of a node at a URL, or a first one.
    pub(crate) async fn init(&self, name: &str, join: Option<&str>) {
        self.init_with(name, join, &[]).await;
    }

    /// The same with further options.
    pub(crate) async fn init_with(&self, name: &str, join: Option<&str>, options: &[&str]) {
        let (store, token) = (self.path(name), self.path("token"));
        let join: &[&str] = match join {
            Some(url) => &["--join", url, "--peer-token-file", &token],
            None => &[],
        };
        succeeds(&run(&[&["store", "init", &*store], join, options].concat()).await);
    }

    /// A node with the store in a folder of this name, which replicates with these.
    pub(crate) async fn node(&self, name: &str, peers: &[String]) -> Server {
        let (store, tokens, token) = (self.path(name), self.path("tokens"), self.path("token"));
        let mut options = vec!["--store", &store, "--token-file", &tokens, "--peer-token-file", &token];
        options.extend(["--admin", "127.0.0.1:0", "--pull-interval", "1s"]);
        options.extend(peers.iter().flat_map(|peer| ["--peer", peer]));
        Server::of_store(&options).await
    }

    /// A server of it, with further options.
    pub(crate) async fn server(&self, options: &[&str]) -> Server {
        let etcd = self.etcd.as_ref().expect("it is in etcd");
        let (store, tokens) = (etcd.store(), self.path("tokens"));
        let own = ["--store", &store, "--token-file", &tokens, "--admin", "127.0.0.1:0"];
        Server::of_store(&[&own, options].concat()).await
    }

    /// Where the files of its users are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file of its users.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder().join(name).to_str().expect("a text").to_owned()
    }

    /// Commits resources through the API of a server.
    pub(crate) async fn commit(&self, server: &Server, resources: &[Value]) {
        succeeds(&self.put(server, resources, &[]).await);
    }

    /// `xds put` of resources through the API of a server, with further options.
    pub(crate) async fn put(&self, server: &Server, resources: &[Value], options: &[&str]) -> Output {
        self.folder.write("resources.json", resources);
        let file = self.path("resources.json");
        self.run(server, &[&["put", &*file], options].concat()).await
    }

    /// Runs a command through the API of a server.
    pub(crate) async fn run(&self, server: &Server, arguments: &[&str]) -> Output {
        let api = format!("127.0.0.1:{}", server.admin_port().await);
        let tokens = self.path("tokens");
        run(&[arguments, &["--server", &api, "--token-file", &tokens]].concat()).await
    }
}

/// The token of its users.
pub(crate) const TOKEN: &str = "a-secret-of-the-tests";

/// # Panics
/// If the command failed.
pub(crate) fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xds")).args(arguments).output().await.expect("cargo built the binary")
}
