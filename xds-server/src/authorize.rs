//! Decides what each client may read.

use std::fmt::Debug;
use std::sync::Arc;

use xds_core::Access;

use crate::peer::Peer;
use crate::skim::Client;

/// Decides what each client may read: a hook for programs and for policy files.
///
/// It is called on the task of a stream, so it must return quickly and must not block. Prepare slow
/// decisions in advance.
pub trait Authorizer: Debug + Send + Sync {
    /// What this client may read. It applies to all resources of the stream. The server calls it
    /// with the first request of a stream and again [from time to
    /// time](crate::ServerConfig::authorize_every). If the result differs then, the server closes
    /// the stream, and the client reconnects with its new access.
    ///
    /// The `peer` comes from the connection. The `client` is what the client declares about itself,
    /// which is not verified.
    ///
    /// # Errors
    /// The server closes the stream with `PERMISSION_DENIED`.
    fn authorize(&self, peer: &Peer, client: &Client) -> Result<Arc<Access>, Denied>;

    /// Whether this peer may inspect the state of all clients (CSDS, the admin page). Default: no.
    fn may_inspect(&self, peer: &Peer) -> bool {
        _ = peer;
        false
    }
}

/// Why the server refuses a stream. The client receives the text, so it should say what the client
/// can do, and nothing about other clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);
