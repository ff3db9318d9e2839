//! The gRPC services of a store, behind the check of identities.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::service::Routes;
use xds_proto::xds::store::v1::maintenance_server::MaintenanceServer;
use xds_proto::xds::store::v1::migration_server::MigrationServer;
use xds_proto::xds::store::v1::peer_server::PeerServer;
use xds_proto::xds::store::v1::store_server::StoreServer;

use crate::access::AccessControl;
use crate::config::ApiConfig;
use crate::handle::StoreHandle;
use crate::maintenance::MaintenanceService;
use crate::migration::MigrationService;
use crate::peer_service::PeerService;
use crate::reading::Reading;
use crate::service::StoreService;
use crate::status::exceeds;

/// The API of a store: the gRPC services Store, Maintenance, Migration and Peer, with reflection.
#[derive(Debug, Clone)]
pub struct StoreApi {
    store: StoreHandle,
    access: Arc<AccessControl>,
    config: ApiConfig,
}

impl StoreApi {
    /// The API of a running store.
    #[must_use]
    pub fn new(store: StoreHandle, access: Arc<AccessControl>, config: ApiConfig) -> Self {
        Self { store, access, config }
    }

    /// The paths of the services. Every request needs an identity, also one for an unknown path.
    ///
    /// # Panics
    /// Never: the descriptors for reflection are compiled in.
    pub fn routes(&self) -> Router {
        let reading = Reading::new(self.store.clone());
        let store = StoreService::new(reading.clone(), self.config.clone());
        let migration = MigrationService::new(reading.clone(), self.config.streams.clone());
        let maintenance = MaintenanceService::new(reading, self.config.clone());
        let limit = self.config.request_bytes_limit;
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(xds_proto::STORE_FILE_DESCRIPTOR_SET)
        };
        let invariant = "the descriptors are compiled in";
        let routes = Routes::new(StoreServer::new(store).max_decoding_message_size(limit))
            .add_service(MaintenanceServer::new(maintenance))
            .add_service(MigrationServer::new(migration))
            .add_service(PeerServer::new(PeerService::new(self.store.clone())))
            .add_service(reflection().build_v1().expect(invariant))
            .add_service(reflection().build_v1alpha().expect(invariant));
        let state = Gate {
            access: Arc::clone(&self.access),
            received: Arc::new(Received {
                bytes: AtomicUsize::new(0),
                limit: self.config.received_bytes_limit,
            }),
            request_bytes_limit: limit,
            timeout: self.config.request_timeout,
        };
        routes.into_axum_router().layer(from_fn_with_state(state, admit))
    }
}

/// What stands before the services.
#[derive(Debug, Clone)]
struct Gate {
    access: Arc<AccessControl>,
    received: Arc<Received>,
    request_bytes_limit: usize,
    timeout: Duration,
}

/// The bytes of requests that are being received.
#[derive(Debug)]
struct Received {
    bytes: AtomicUsize,
    limit: usize,
}

/// Refuses requests without an identity before anything of them is read (ST51).
async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let caller = match gate.access.caller(request.headers(), request.extensions()) {
        Ok(caller) => caller,
        Err(status) => return status.into_http(),
    };
    request.extensions_mut().insert(caller);
    let (head, body) = request.into_parts();
    let body = LimitedBody {
        body,
        received: gate.received,
        prefix: Vec::new(),
        limit: gate.request_bytes_limit,
        taken: 0,
        deadline: Box::pin(sleep(gate.timeout)),
    };
    next.run(Request::from_parts(head, Body::new(body))).await
}

/// The body of a request, which has to arrive in time, and which counts while it is received.
#[derive(Debug)]
struct LimitedBody {
    body: Body,
    received: Arc<Received>,
    /// The beginning of the message, which has its length.
    prefix: Vec<u8>,
    /// The largest message.
    limit: usize,
    taken: usize,
    deadline: Pin<Box<Sleep>>,
}

impl LimitedBody {
    /// Counts bytes that were received.
    fn on_data(&mut self, data: &[u8]) -> Result<(), Status> {
        let missing = PREFIX_BYTES - self.prefix.len();
        if missing > 0 {
            self.prefix.extend_from_slice(&data[..missing.min(data.len())]);
            // ST42: before memory is reserved for a message of this length.
            if let [_, length @ ..] = &self.prefix[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
                && let Ok(length) = usize::try_from(u32::from_be_bytes(length))
                && length > self.limit
            {
                return Err(exceeds("bytes of a request", "", self.limit, length));
            }
        }
        self.taken += data.len();
        let sum = self.received.bytes.fetch_add(data.len(), Ordering::Relaxed) + data.len();
        if sum > self.received.limit {
            return Err(exceeds("bytes of all requests that arrive", "", self.received.limit, sum));
        }
        Ok(())
    }
}

/// The prefix of a message of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

impl http_body::Body for LimitedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(self.deadline.as_mut().poll(cx));
                let status = Status::deadline_exceeded("the request did not arrive in time");
                return Poll::Ready(Some(Err(status.into())));
            }
        };
        let Some(frame) = frame.transpose()? else { return Poll::Ready(None) };
        if let Some(data) = frame.data_ref()
            && let Err(status) = self.on_data(data)
        {
            return Poll::Ready(Some(Err(status.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LimitedBody {
    fn drop(&mut self) {
        self.received.bytes.fetch_sub(self.taken, Ordering::Relaxed);
    }
}
