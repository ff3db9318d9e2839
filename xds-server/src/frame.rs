//! Responses on their way to the transport: a small chunk of their own, then slices that all streams share.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tokio::sync::mpsc;
use tonic::Status;
use xds_core::server::{Body, Response};

/// What a driver hands to the transport.
#[derive(Debug)]
pub(crate) enum Outbound {
    Response(Response),
    /// The last word; the transport ends the stream with it.
    End(Status),
}

/// The body of a gRPC response. Tonic's own encoder would copy each message into a buffer of its stream.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    outbound: mpsc::Receiver<Outbound>,
    state: State,
}

#[derive(Debug)]
enum State {
    Idle,
    /// Bodies still to be written, and the next chunk of the first.
    Writing {
        bodies: std::vec::IntoIter<Arc<Body>>,
        body: Option<Arc<Body>>,
        chunk: usize,
    },
    Ended,
}

impl ResponseBody {
    pub(crate) fn new(outbound: mpsc::Receiver<Outbound>) -> Self {
        Self { outbound, state: State::Idle }
    }

    /// The next slice of the response that is being written.
    fn next_chunk(&mut self) -> Option<Bytes> {
        let State::Writing { bodies, body, chunk } = &mut self.state else { return None };
        loop {
            let current = match body {
                Some(body) => body,
                None => body.insert(bodies.next()?),
            };
            if let Some(bytes) = current.chunks().get(*chunk) {
                *chunk += 1;
                return Some(bytes.clone());
            }
            (*body, *chunk) = (None, 0);
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(chunk) = self.next_chunk() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if matches!(self.state, State::Ended) {
            return Poll::Ready(None);
        }
        self.state = State::Idle;
        let status = match ready!(self.outbound.poll_recv(cx)) {
            Some(Outbound::Response(response)) => {
                let head = message_head(&response);
                self.state = State::Writing { bodies: response.bodies.into_iter(), body: None, chunk: 0 };
                return Poll::Ready(Some(Ok(Frame::data(head))));
            }
            Some(Outbound::End(status)) => status,
            None => Status::unavailable("the stream ended"),
        };
        self.state = State::Ended;
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

/// The gRPC prefix (uncompressed, length) and the fields of this stream alone.
fn message_head(response: &Response) -> Bytes {
    let fields = response.head();
    let len = fields.len() + response.bodies.iter().map(|body| body.len()).sum::<usize>();
    let mut head = BytesMut::with_capacity(5 + fields.len());
    head.put_u8(0);
    head.put_u32(u32::try_from(len).expect("a response holds far less than 4 GiB"));
    head.put_slice(&fields);
    head.freeze()
}
