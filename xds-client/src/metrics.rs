//! The metrics of a client, after gRFC A78, and the events of its connections.

use xds_core::client::Code;

/// Receives the metrics of a client. Each method has a default that does nothing. They are called
/// on the task of a connection and must not block.
///
/// | event | calls |
/// | --- | --- |
/// | a stream opens, and the server has not failed before | `connected` with true |
/// | no connection, or a stream that ends without a response (A57) | `connected` with false; `server_failure` if it is the first failure since the server worked, or since the start |
/// | a stream ends after a response | nothing: it depends on the next stream |
/// | a response | `connected` with true |
/// | after a failure, a new stream is silent until watchers are notified that the error is over (D21) | `connected` with true |
/// | a response of a watched type | `updates`; it does not count unwatched resources, errors and removals |
/// | an unreadable response, or a response of a type without a subscription | no `updates` |
/// | the server is no longer needed, or the client ended | `left` |
///
/// The gauge of resources by state is not pushed: call [`Client::report`](crate::Client::report)
/// when it is read.
pub trait Recorder: Send + Sync {
    /// `grpc.xds_client.connected`: whether the server works, as far as is known. It may be called
    /// again with the same value.
    fn connected(&self, server: &str, is_connected: bool) {
        _ = (server, is_connected);
    }

    /// The server is not in use: `grpc.xds_client.connected` has no value for it until the next
    /// call of `connected`.
    fn left(&self, server: &str) {
        _ = server;
    }

    /// `grpc.xds_client.server_failure`: a server that worked, or was not tried before, is not
    /// reachable.
    fn server_failure(&self, server: &str) {
        _ = server;
    }

    /// A stream was opened and requests are sent. The server has not answered yet.
    fn opened(&self, server: &str) {
        _ = server;
    }

    /// A server is not reachable, or ended a stream before it answered. The client tries again,
    /// whatever the code is. The code is that of the stream, 0 if the server ended it without an
    /// error, or `None` if no stream was opened. The reason is for people.
    fn failed(&self, server: &str, code: Option<Code>, reason: &str) {
        _ = (server, code, reason);
    }

    /// `grpc.xds_client.resource_updates_valid` and `_invalid`: the numbers of valid resources
    /// (unchanged ones too) and invalid resources of a response.
    fn updates(&self, server: &str, type_url: &str, valid: usize, invalid: usize) {
        _ = (server, type_url, valid, invalid);
    }
}

/// A recorder that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NoRecorder;

impl Recorder for NoRecorder {}
