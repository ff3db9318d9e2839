//! The calls of a connection: which connections are idle, and which are kept.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

/// The calls of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// How many calls have begun, and how many of them have not ended.
    calls: watch::Sender<(u64, usize)>,
    /// Calls of identified clients that have not ended.
    identified: AtomicUsize,
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct OpenCall(Arc<Activity>);

/// A call of an identified client.
#[derive(Debug)]
struct IdentifiedCall(Arc<Activity>);

/// The body of an answer, whose call ends with it.
#[derive(Debug)]
struct CallBody<C> {
    body: Body,
    _call: C,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { calls: watch::Sender::new((0, 0)), identified: AtomicUsize::new(0) })
    }

    /// Counts a call.
    pub(super) fn begin(self: &Arc<Self>) -> OpenCall {
        self.calls.send_modify(|(begun, open)| (*begun, *open) = (*begun + 1, *open + 1));
        OpenCall(Arc::clone(self))
    }

    /// Whether an identified client has a call on this connection.
    pub(super) fn is_kept(&self) -> bool {
        self.identified.load(Ordering::Relaxed) > 0
    }

    /// Waits until there was no call for some time: `first` at the beginning, `later` after a call.
    pub(super) async fn idle(&self, first: Duration, later: Duration) {
        let mut calls = self.calls.subscribe();
        if timeout(first, calls.wait_for(|(begun, _)| *begun > 0)).await.is_err() {
            return;
        }
        loop {
            // The sender is in `self`, so these do not fail.
            let begun = match calls.wait_for(|(_, open)| *open == 0).await {
                Ok(calls) => calls.0,
                Err(_) => return,
            };
            tokio::select! {
                () = sleep(later) => return,
                _ = calls.wait_for(|now| now.0 > begun) => {}
            }
        }
    }
}

impl OpenCall {
    /// The body with the call, which ends with it.
    pub(super) fn until_end_of(self, body: Body) -> Body {
        Body::new(CallBody { body, _call: self })
    }
}

/// Passes a gRPC request to the services. The connection is kept while a call of an identified client
/// is open. The services refuse other clients at once.
pub(super) async fn of_grpc(services: Router, request: Request) -> Response {
    let activity = request.extensions().get::<Arc<Activity>>().cloned();
    let call = activity.map(IdentifiedCall::begin);
    let response = match services.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let is_refused = response.headers().get("grpc-status").is_some_and(|code| code == UNAUTHENTICATED);
    match call.filter(|_| !is_refused) {
        Some(call) => response.map(|body| Body::new(CallBody { body, _call: call })),
        None => response,
    }
}

impl IdentifiedCall {
    fn begin(activity: Arc<Activity>) -> Self {
        activity.identified.fetch_add(1, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.calls.send_modify(|(_, open)| *open -= 1);
    }
}

impl Drop for IdentifiedCall {
    fn drop(&mut self) {
        self.0.identified.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C: Unpin> hyper::body::Body for CallBody<C> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The code of gRPC.
const UNAUTHENTICATED: &str = "16";
