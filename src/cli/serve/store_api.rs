//! The API of the store on the admin port: its tokens, and its rights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use clap::Args;
use tracing::{error, info, warn};
use xds::{Peer, Reloads};
use xds_store_server::{
    AccessControl, ApiConfig, ClientCertificate, StoreApi, StoreAuthorizer, StoreHandle, TokenFileError,
    Tokens,
};

use super::count;
use crate::cli::policy::{PolicyError, PolicyFile};

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct ApiOptions {
    /// Tokens of clients of the store's API: lines `NAME TOKEN`; the file must be closed to other users
    /// than its owner and group
    ///
    /// A client presents its token as `authorization: Bearer TOKEN`. What it may do is in the
    /// --api-policy or --policy, under `client: token:NAME`; without a policy a token may do everything. The
    /// file is read again when it changes: to revoke a token, remove its line. If the file is missing or has an
    /// error, the last good tokens stay in use.
    #[arg(long, value_name = "FILE", requires = "store")]
    token_file: Option<PathBuf>,
    /// Which clients of the store's API may do what (YAML, as for --policy), instead of the --policy
    ///
    /// It needs no client certificates: its rules may all be for tokens, and the clients of --listen read as
    /// without it. With --listen-cert, it also lets other machines use the --admin port. It is read again
    /// when it changes.
    #[arg(long, value_name = "FILE", requires = "store")]
    api_policy: Option<PathBuf>,
    /// How many watches of the store may be open; more are refused with RESOURCE_EXHAUSTED. One client
    /// may have a quarter of them
    #[arg(long, value_name = "WATCHES", default_value = "1000", value_parser = count)]
    watch_limit: usize,
}

/// Why the token file cannot be used. The last good tokens stay in use.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum TokenError {
    #[error("cannot read the tokens in {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("other users have permissions for the tokens in {}: remove them (chmod o-rwx)", path.display())]
    Open { path: PathBuf },
    #[error("{}: {error}", path.display())]
    Invalid { path: PathBuf, error: TokenFileError },
}

/// Who may use the API, with the token file, which is read again when it changes.
#[derive(Debug)]
pub(super) struct ApiAccess {
    path: Option<PathBuf>,
    access: Arc<AccessControl>,
    reloads: Arc<Reloads>,
    watch_limit: usize,
}

impl ApiOptions {
    /// The policy for the API alone; `None` without one.
    pub(super) fn policy(&self) -> Result<Option<Arc<PolicyFile>>, PolicyError> {
        self.api_policy.as_deref().map(PolicyFile::open).transpose()
    }

    /// # Errors
    /// See [`TokenError`].
    pub(super) fn open(
        &self,
        access: AccessControl,
        authorizer: Option<Arc<dyn StoreAuthorizer>>,
    ) -> Result<ApiAccess, TokenError> {
        let access = match authorizer {
            Some(authorizer) => access.with_authorizer(authorizer),
            None => access,
        };
        let reloads = Arc::new(Reloads::default());
        if let Some(path) = &self.token_file {
            access.set_tokens(read(path, &reloads)?);
            reloads.on_new();
        }
        let path = self.token_file.clone();
        Ok(ApiAccess { path, access: Arc::new(access), reloads, watch_limit: self.watch_limit })
    }
}

impl ApiAccess {
    /// The state of the token file; `None` without one.
    pub(super) fn reloads(&self) -> Option<Arc<Reloads>> {
        self.path.as_ref().map(|_| Arc::clone(&self.reloads))
    }

    /// The services of a store.
    pub(super) fn routes(
        &self,
        store: StoreHandle,
        engine: &str,
        change: impl FnOnce(&mut ApiConfig),
    ) -> Router {
        let mut config = ApiConfig::default();
        config.watches_limit = self.watch_limit;
        change(&mut config);
        engine.clone_into(&mut config.engine);
        env!("CARGO_PKG_VERSION").clone_into(&mut config.build);
        // Outside of the check of identities, which needs the certificate.
        StoreApi::new(store, Arc::clone(&self.access), config).routes().layer(from_fn(with_certificate))
    }

    /// Reads the token file again, until the future is dropped. If the file has an error, the last
    /// good tokens stay in use.
    pub(super) async fn follow(self: Arc<Self>, every: Duration) {
        let Some(path) = self.path.clone() else { return };
        loop {
            self.reloads.due(every).await;
            let (from, reloads) = (path.clone(), Arc::clone(&self.reloads));
            let read = self.reloads.blocking("tokens", move || read_again(&from, &reloads)).await;
            match read {
                Err(_) => return,
                Ok(Ok(tokens)) if self.access.has_tokens(&tokens) => self.reloads.on_same(),
                Ok(Ok(tokens)) => {
                    if tokens.is_empty() {
                        warn!(tokens = %path.display(), "the file has no token any more: all of them are refused");
                    } else {
                        info!(tokens = %path.display(), "loaded new tokens");
                    }
                    self.access.set_tokens(tokens);
                    self.reloads.on_new();
                }
                Ok(Err(error)) => {
                    if self.reloads.on_refused(error.to_string()) {
                        error!("{error}");
                        warn!(
                            "the last good tokens stay in use: to revoke a token, remove its line and keep the file"
                        );
                    }
                }
            }
        }
    }
}

impl TokenError {
    /// See [`Failure::exit_code`](crate::cli::Failure::exit_code).
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self {
            Self::Unreadable { .. } => 1,
            Self::Open { .. } | Self::Invalid { .. } => 2,
        }
    }
}

/// Adds the certificate of the connection to a request, as the API takes it.
async fn with_certificate(mut request: Request, next: Next) -> axum::response::Response {
    let identity = Peer::of(request.extensions()).identity;
    if let Some(identity) = identity {
        let certificate = ClientCertificate { names: identity.names().to_vec(), expires: identity.expires() };
        request.extensions_mut().insert(certificate);
    }
    next.run(request).await
}

/// What is in use after the file was read again. A file without tokens revokes all of them. One that cannot be read
/// does not say what is revoked.
fn read_again(path: &Path, reloads: &Reloads) -> Result<Tokens, TokenError> {
    match read(path, reloads) {
        Err(TokenError::Invalid { error: TokenFileError::Empty, .. }) => Ok(Tokens::default()),
        read => read,
    }
}

fn read(path: &Path, reloads: &Reloads) -> Result<Tokens, TokenError> {
    let _reading = reloads.reading(&path.display().to_string());
    let unreadable = |error| TokenError::Unreadable { path: path.to_owned(), error };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;

        let mode = std::fs::metadata(path).map_err(unreadable)?.permissions().mode();
        if mode & OTHERS != 0 {
            return Err(TokenError::Open { path: path.to_owned() });
        }
    }
    let text = xds_file::read_to_string(path, FILE_LIMIT_BYTES).map_err(unreadable)?;
    Tokens::parse(&text).map_err(|error| TokenError::Invalid { path: path.to_owned(), error })
}

/// The permissions of other users: they do not own the file and are not in its group.
#[cfg(unix)]
const OTHERS: u32 = 0o007;
const FILE_LIMIT_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn st51_a_token_file_without_tokens_revokes_all_and_a_missing_one_none() {
        let folder = std::env::temp_dir().join(format!("xds-tokens-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, reloads) = (folder.join("tokens"), Reloads::default());
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            #[cfg(unix)]
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        };
        write("ci 0123456789abcdef\n");
        assert!(!read_again(&path, &reloads).unwrap().is_empty());
        for text in ["", "# nobody\n"] {
            write(text);
            assert!(read_again(&path, &reloads).unwrap().is_empty(), "{text:?}");
            // A start without a token is probably a mistake.
            assert!(matches!(read(&path, &reloads), Err(TokenError::Invalid { .. })), "{text:?}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(read_again(&path, &reloads), Err(TokenError::Unreadable { .. })));
        fs::remove_dir_all(&folder).unwrap();
    }
}
