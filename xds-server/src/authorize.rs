//! Who may read what.

use std::fmt::Debug;
use std::sync::Arc;

use tonic::Status;
use xds_core::Access;

use crate::peer::Peer;
use crate::service::ServerConfig;
use crate::skim::Client;

/// Says what clients may read: the hook of programs, and of policy files.
///
/// Asked on the task of a stream, so it must be quick and must not block: what takes time is found out before, and kept.
pub trait Authorizer: Debug + Send + Sync {
    /// What this client may read, which then holds for each resource of its stream. Asked when the first request of a stream came,
    /// and again [from time to time](ServerConfig::authorize_every): when the answer is another then, the stream ends,
    /// and the client comes back to what it may read now.
    ///
    /// The `peer` is what the connection shows, the `client` what it says of itself, which anybody can say.
    ///
    /// # Errors
    /// The stream is not served: it ends with `PERMISSION_DENIED`.
    fn authorize(&self, peer: &Peer, client: &Client) -> Result<Arc<Access>, Denied>;

    /// Whether this peer may look at what all clients have (CSDS, the admin page). Default: nobody may.
    fn may_inspect(&self, peer: &Peer) -> bool {
        _ = peer;
        false
    }
}

/// Why a stream is not served. The text goes to the client, so it says what to do and nothing of others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

impl ServerConfig {
    /// What a client may read; `None` is everything, as nobody was asked.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` with the words of the [`Authorizer`], `UNAUTHENTICATED` when the certificate of the peer has expired
    /// since it was shown.
    pub fn access(&self, peer: &Peer, client: &Client) -> Result<Option<Arc<Access>>, Status> {
        let Some(authorizer) = &self.authorizer else { return Ok(None) };
        if has_expired(peer) {
            return Err(Status::unauthenticated(
                "the certificate of this client has expired: connect with a newer one",
            ));
        }
        let access = authorizer.authorize(peer, client);
        access.map(Some).map_err(|Denied(text)| Status::permission_denied(text))
    }

    /// Whether a peer may look at what all clients have; not with a certificate that has expired since it was shown. To be
    /// asked with each request, as streams and connections last.
    #[must_use]
    pub fn may_inspect(&self, peer: &Peer) -> bool {
        let may = |authorizer: &Arc<dyn Authorizer>| !has_expired(peer) && authorizer.may_inspect(peer);
        self.authorizer.as_ref().is_none_or(may)
    }
}

fn has_expired(peer: &Peer) -> bool {
    peer.identity.as_ref().is_some_and(|identity| identity.has_expired())
}
