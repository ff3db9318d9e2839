//! Responses on their way to the transport: a small chunk per stream, then slices that all streams
//! share.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tonic::Status;
use xds_core::server::{Body, Response};

use crate::requests::PREFIX_BYTES;

/// Holds one response of a driver for the transport. It has room for one, so that nothing queues
/// up.
#[derive(Debug, Default)]
pub(crate) struct ResponseSlot(Mutex<SlotContent>);

#[derive(Debug, Default)]
struct SlotContent {
    response: Option<Response>,
    /// The status with which the transport ends the stream.
    end: Option<Status>,
    /// The transport has dropped the response body.
    is_closed: bool,
    /// The driver waits for room.
    wants_room: bool,
    driver: Option<Waker>,
    transport: Option<Waker>,
}

/// The state of the slot for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    /// The driver is woken when the slot is free.
    Taken,
    /// The transport has dropped the response body.
    Closed,
}

impl ResponseSlot {
    /// Whether there is room for a response. The driver is woken when the transport closes the
    /// slot. If it wants room, it is also woken when there is room.
    pub(crate) fn room(&self, wants_room: bool, cx: &Context<'_>) -> SlotState {
        let mut content = self.content();
        if content.is_closed {
            return SlotState::Closed;
        }
        if content.driver.as_ref().is_none_or(|driver| !driver.will_wake(cx.waker())) {
            content.driver = Some(cx.waker().clone());
        }
        content.wants_room = wants_room && content.response.is_some();
        if content.response.is_none() { SlotState::Free } else { SlotState::Taken }
    }

    /// Puts a response into a free slot.
    pub(crate) fn put(&self, response: Response) {
        let mut content = self.content();
        content.response = Some(response);
        wake(content.transport.take(), content);
    }

    /// Ends the stream after the response in the slot.
    pub(crate) fn end(&self, status: Status) {
        let mut content = self.content();
        content.end = Some(status);
        wake(content.transport.take(), content);
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn content(&self) -> MutexGuard<'_, SlotContent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases the lock, then wakes.
fn wake(waker: Option<Waker>, content: MutexGuard<'_, SlotContent>) {
    drop(content);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The body of a gRPC response. The encoder of tonic would copy each message into a buffer of its
/// stream.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    slot: Arc<ResponseSlot>,
    state: BodyState,
}

#[derive(Debug)]
enum BodyState {
    Idle,
    /// The bodies that are not written yet, the current body, and its next chunk.
    Writing {
        bodies: std::vec::IntoIter<Arc<Body>>,
        body: Option<Arc<Body>>,
        chunk: usize,
    },
    Ended,
}

impl ResponseBody {
    pub(crate) fn new(slot: Arc<ResponseSlot>) -> Self {
        Self { slot, state: BodyState::Idle }
    }

    /// The next slice of the current response.
    fn next_chunk(&mut self) -> Option<Bytes> {
        let BodyState::Writing { bodies, body, chunk } = &mut self.state else { return None };
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
        if matches!(self.state, BodyState::Ended) {
            return Poll::Ready(None);
        }
        self.state = BodyState::Idle;
        let slot = Arc::clone(&self.slot);
        let mut content = slot.content();
        if let Some(response) = content.response.take() {
            let driver = if content.wants_room { content.driver.take() } else { None };
            wake(driver, content);
            let (head, is_whole) = message_head(&response);
            if !is_whole {
                self.state = BodyState::Writing { bodies: response.bodies.into_iter(), body: None, chunk: 0 };
            }
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        let Some(status) = content.end.take() else {
            content.transport = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(content);
        self.state = BodyState::Ended;
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let mut content = self.slot.content();
        (content.is_closed, content.response) = (true, None);
        wake(content.driver.take(), content);
    }
}

/// The gRPC prefix (not compressed, length) and the fields that differ per stream. A small response
/// is included as a whole; then the second value is true.
fn message_head(response: &Response) -> (Bytes, bool) {
    let rest = response.bodies.iter().map(|body| body.len()).sum::<usize>();
    let is_whole = rest < COPIED_BELOW_BYTES;
    let mut head = BytesMut::with_capacity(PREFIX_BYTES + 128 + if is_whole { rest } else { 0 });
    head.put_bytes(0, PREFIX_BYTES);
    response.put_head(&mut head);
    let len = u32::try_from(head.len() - PREFIX_BYTES + rest).expect("a response holds far less than 4 GiB");
    head[1..PREFIX_BYTES].copy_from_slice(&len.to_be_bytes());
    if is_whole {
        let chunks = response.bodies.iter().flat_map(|body| body.chunks());
        chunks.for_each(|chunk| head.put_slice(chunk));
    }
    (head.freeze(), is_whole)
}

/// A smaller copy costs the transport less than another frame.
const COPIED_BELOW_BYTES: usize = 4096;
