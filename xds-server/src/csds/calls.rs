//! How many calls of CSDS go on at once. The answer of one is as large as 4 MiB, and stays in memory until its client
//! has read it: without a limit, clients that read nothing would fill the memory.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// A service with a permit for each call, until its answer was written to the connection.
#[derive(Debug, Clone)]
pub(crate) struct LimitedCalls<S> {
    inner: S,
    permits: Arc<Semaphore>,
}

impl<S> LimitedCalls<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, permits: Arc::new(Semaphore::new(CALLS_LIMIT)) }
    }
}

impl<S: NamedService> NamedService for LimitedCalls<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for LimitedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            let text = format!("{CALLS_LIMIT} calls of CSDS go on, which is the limit: try again later");
            return Box::pin(async move { Ok(Status::resource_exhausted(text).into_http()) });
        };
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Body::new(Answer { body, next: Bytes::new(), _permit: permit })))
        })
    }
}

/// The body of an answer in small parts: hyper takes a part when the client can read some of it, and what was not
/// taken keeps the permit.
struct Answer {
    body: Body,
    next: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        while !self.next.has_remaining() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.next = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let len = self.next.len().min(PART_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.next.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_empty() && self.body.is_end_stream()
    }
}

/// Operators look at few clients at a time.
const CALLS_LIMIT: usize = 16;

/// The size of an HTTP/2 frame.
const PART_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tonic::codegen::Body as _;

    use super::*;

    #[tokio::test]
    async fn what_was_not_taken_keeps_the_permit() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let message = Bytes::from(vec![7; PART_BYTES + 5]);
        let body = Body::new(http_body_util::Full::new(message.clone()));
        let mut answer = Answer { body, next: Bytes::new(), _permit: permit };
        let mut taken = Vec::new();
        while !answer.is_end_stream() {
            assert_eq!(permits.available_permits(), 0);
            let part = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(part.len() <= PART_BYTES);
            taken.extend_from_slice(&part);
        }
        assert_eq!(taken, message);
        drop(answer);
        assert_eq!(permits.available_permits(), 1);
    }
}
