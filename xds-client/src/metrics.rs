//! What a client counts, after gRFC A78.

/// Takes what a client counts. Each method has a default that does nothing.
///
/// The gauge of resources by state is not told: it is read by [`Client::report`](crate::Client::report) when somebody asks.
pub trait Recorder: Send + Sync {
    /// `grpc.xds_client.connected`: whether the server answers. Told again though it did not change.
    fn connected(&self, server: &str, is_connected: bool) {
        _ = (server, is_connected);
    }

    /// `grpc.xds_client.server_failure`: a server that answered cannot be reached any more.
    fn server_failure(&self, server: &str) {
        _ = server;
    }

    /// `grpc.xds_client.resource_updates_valid` and `_invalid`: how many resources of a response were valid, unchanged ones
    /// too, and how many were not.
    fn updates(&self, server: &str, type_url: &str, valid: usize, invalid: usize) {
        _ = (server, type_url, valid, invalid);
    }
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NoRecorder;

impl Recorder for NoRecorder {}
