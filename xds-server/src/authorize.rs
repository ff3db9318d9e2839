//! Who may read what.

use std::fmt::Debug;
use std::sync::Arc;

use xds_core::Access;

use crate::peer::Peer;
use crate::skim::Client;

/// Says what clients may read: the hook of programs, and of policy files.
///
/// Asked on the task of a stream, so it must be quick and must not block: what takes time is found
/// out before, and kept.
pub trait Authorizer: Debug + Send + Sync {
    /// What this client may read, which then holds for each resource of its stream. Asked when the
    /// first request of a stream came, and again [from time to
    /// time](crate::ServerConfig::authorize_every): when the answer is another then, the stream
    /// ends, and the client comes back to what it may read now.
    ///
    /// The `peer` is what the connection shows, the `client` what it says of itself, which anybody
    /// can say.
    ///
    /// # Errors
    /// The stream is not served: it ends with `PERMISSION_DENIED`.
    fn authorize(&self, peer: &Peer, client: &Client) -> Result<Arc<Access>, Denied>;

    /// Whether this peer may look at what all clients have (CSDS, the admin page). Default: nobody
    /// may.
    fn may_inspect(&self, peer: &Peer) -> bool {
        _ = peer;
        false
    }
}

/// Why a stream is not served. The text goes to the client, so it says what to do and nothing of
/// others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);
