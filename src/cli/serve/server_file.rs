//! How commands on the same machine reach the server of a store: `server.json` in its folder.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{info, warn};
use xds::admin::{Trouble, Troubles};
use xds_store_server::AccessControl;

use crate::cli::Failure;
use crate::cli::store::init::random_hex;

/// The token that commands of the same user present. Whoever can read the folder of the store has
/// the store itself, so the token may do everything.
#[derive(Clone)]
pub(super) struct LocalToken(String);

/// The file, removed when this is dropped.
#[derive(Debug)]
struct ServerFile {
    path: PathBuf,
    token: LocalToken,
}

/// The file of a server that runs, which goes on without it: on a full disk, reads and streams are what counts.
#[derive(Debug)]
pub(super) struct KeptServerFile {
    retries: Option<JoinHandle<()>>,
    file: Shared,
}

/// The file, or why there is none yet.
type Shared = Arc<Mutex<Result<ServerFile, String>>>;

impl KeptServerFile {
    /// Writes the file. While that fails, it is a trouble, and is tried again.
    pub(super) fn write(
        folder: PathBuf,
        address: SocketAddr,
        token: LocalToken,
        troubles: &Troubles,
    ) -> Self {
        let write = move || {
            let written = ServerFile::write(&folder, address, &token);
            written.map_err(|error| format!("{}: {error}", folder.join(FILE).display()))
        };
        let written = write();
        let error = written.as_ref().err().cloned();
        let file = Shared::new(Mutex::new(written));
        let retries = error.map(|error| {
            warn!(error, "cannot write how commands on this machine reach the server; trying again");
            let shown = Arc::clone(&file);
            troubles.add(move || trouble(&shown));
            tokio::spawn(write_again(Arc::clone(&file), write))
        });
        Self { retries, file }
    }
}

impl Drop for KeptServerFile {
    fn drop(&mut self) {
        self.retries.iter().for_each(JoinHandle::abort);
        // The task may still be there.
        *lock(&self.file) = Err("the server ends".to_owned());
    }
}

async fn write_again(file: Shared, write: impl Fn() -> Result<ServerFile, String>) {
    loop {
        sleep(AGAIN).await;
        if let Ok(written) = write() {
            info!("commands on this machine reach the server now");
            *lock(&file) = Ok(written);
            return;
        }
    }
}

fn trouble(file: &Shared) -> Vec<Trouble> {
    let error = lock(file).as_ref().err().cloned();
    let trouble = |detail| Trouble {
        detail,
        cure: CURE.into(),
        ..Trouble::warning("server_file", "Commands on this machine do not find the server of the store")
    };
    error.map(trouble).into_iter().collect()
}

fn lock(file: &Shared) -> MutexGuard<'_, Result<ServerFile, String>> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

const CURE: &str = "Make room in the folder of the store, or correct its permissions; the file is written within 5 s \
                    then. Until then, give commands --server with the admin port, and --token-file.";
const AGAIN: Duration = Duration::from_secs(5);

impl LocalToken {
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Self(random_hex()? + &random_hex()?))
    }

    /// Lets clients with this token do everything.
    pub(super) fn access(&self) -> AccessControl {
        AccessControl::local(&self.0)
    }
}

impl std::fmt::Debug for LocalToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalToken")
    }
}

impl ServerFile {
    /// Writes the file for the server at this address. It replaces the file of a server that was
    /// killed.
    fn write(folder: &Path, address: SocketAddr, token: &LocalToken) -> io::Result<Self> {
        let path = folder.join(FILE);
        let unfinished = folder.join(UNFINISHED);
        let text = json!({ "address": address, "token": token.0, "pid": std::process::id() });
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // One that is left may have other permissions.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        options.open(&unfinished)?.write_all(text.to_string().as_bytes())?;
        fs::rename(&unfinished, &path)?;
        Ok(Self { path, token: token.clone() })
    }
}

impl Drop for ServerFile {
    fn drop(&mut self) {
        // While this server drains its streams, the next one may serve the store already: its file
        // stays. If the removal fails, commands find that the server does not answer.
        if fs::read_to_string(&self.path).is_ok_and(|text| text.contains(&self.token.0)) {
            _ = fs::remove_file(&self.path);
        }
    }
}

const FILE: &str = "server.json";
const UNFINISHED: &str = "server.json.new";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_leaves_the_file_of_the_next_one() {
        let folder = std::env::temp_dir().join(format!("xds-server-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |token: &str| {
            ServerFile::write(&folder, "127.0.0.1:1".parse().unwrap(), &LocalToken(token.into())).unwrap()
        };
        let (old, new) = (write("one"), write("two"));
        drop(old);
        assert!(folder.join(FILE).exists());
        drop(new);
        assert!(!folder.join(FILE).exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
