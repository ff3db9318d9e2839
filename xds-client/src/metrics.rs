//! What a client counts, after gRFC A78, and what happens to its connections.

use xds_core::client::Code;

/// Takes what a client counts. Each method has a default that does nothing. Called on the task of a
/// connection: it must not wait.
///
/// | event | told |
/// | --- | --- |
/// | a stream opens, and the server did not fail before | `connected` with true |
/// | no connection, or a stream that ends without a response (A57) | `connected` with false; `server_failure` if it is the first since the server worked, or since the start |
/// | a stream that was answered ends | nothing: what counts is whether the next one can be opened |
/// | a response | `connected` with true |
/// | nothing is said on a stream after a failure until watchers hear that all is well (D21) | `connected` with true |
/// | a response of a watched type | `updates`: resources nobody watches count nowhere, errors and removals neither |
/// | a response that cannot be read, or of a type that was not asked for | no `updates` |
/// | nobody needs the server any more, or the client ended | `left` |
///
/// The gauge of resources by state is not told: it is read by
/// [`Client::report`](crate::Client::report) when somebody asks.
pub trait Recorder: Send + Sync {
    /// `grpc.xds_client.connected`: whether the server works, as far as is known. Told again though
    /// it did not change.
    fn connected(&self, server: &str, is_connected: bool) {
        _ = (server, is_connected);
    }

    /// The server is not used any more, or not yet: `grpc.xds_client.connected` has no value for it
    /// until it is told.
    fn left(&self, server: &str) {
        _ = server;
    }

    /// `grpc.xds_client.server_failure`: a server that worked, or was not tried yet, cannot be
    /// reached.
    fn server_failure(&self, server: &str) {
        _ = server;
    }

    /// A stream was opened, and the server is asked. It did not answer yet.
    fn opened(&self, server: &str) {
        _ = server;
    }

    /// A server cannot be reached, or ended a stream before it answered. It will be tried again,
    /// whatever the code is: that of the stream (0 where the server ended it without an error), or
    /// `None` when there was none. The reason is for people.
    fn failed(&self, server: &str, code: Option<Code>, reason: &str) {
        _ = (server, code, reason);
    }

    /// `grpc.xds_client.resource_updates_valid` and `_invalid`: how many resources of a response
    /// were valid, unchanged ones too, and how many were not.
    fn updates(&self, server: &str, type_url: &str, valid: usize, invalid: usize) {
        _ = (server, type_url, valid, invalid);
    }
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NoRecorder;

impl Recorder for NoRecorder {}
