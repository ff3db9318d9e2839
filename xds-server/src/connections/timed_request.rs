//! Requests must arrive completely within a time, and all incomplete requests together have a
//! memory limit.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::connections::connection_log::ConnectionLog;
use crate::peer::Peer;
use crate::requests::PREFIX_BYTES;

/// The body of a request. Each message in it must be complete within a time: the first from the
/// start of the stream on, later ones from their first byte on. Between messages there is no limit.
///
/// A body that is not gRPC counts as one message.
#[derive(Debug)]
pub(crate) struct TimedRequest<B> {
    body: B,
    framing: Framing,
    time: Duration,
    /// The timer; it runs while a message is expected.
    due: Option<Pin<Box<Sleep>>>,
    log: Arc<ConnectionLog>,
    peer: Arc<Peer>,
    share: PartialShare,
}

/// The bytes of incomplete requests of all clients of a server.
#[derive(Debug)]
pub(crate) struct PartialBytes {
    bytes: AtomicUsize,
    limit: usize,
}

/// The share of one request in these bytes.
#[derive(Debug)]
struct PartialShare {
    all: Arc<PartialBytes>,
    bytes: usize,
}

/// How a body is divided into messages.
#[derive(Debug)]
enum Framing {
    /// One message, to the end of the body.
    Whole,
    Grpc(Message),
}

/// An incomplete gRPC message: the bytes of its prefix so far, and how many more follow.
#[derive(Debug, Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    missing: usize,
}

impl<B: Body> TimedRequest<B> {
    pub(crate) fn new(
        body: B,
        headers: &HeaderMap,
        time: Duration,
        partial: &Arc<PartialBytes>,
        log: Arc<ConnectionLog>,
        peer: Arc<Peer>,
    ) -> Self {
        let is_grpc = headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"));
        let framing = if is_grpc { Framing::Grpc(Message::default()) } else { Framing::Whole };
        let due = (!body.is_end_stream()).then(|| Box::pin(sleep(time)));
        let share = PartialShare { all: Arc::clone(partial), bytes: 0 };
        Self { body, framing, time, due, log, peer, share }
    }

    /// Processes received bytes: a part of a message, or its end and perhaps the start of another
    /// one.
    ///
    /// # Errors
    /// The incomplete requests exceed the limit.
    fn on_data(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let (is_complete, has_begun) = match &mut self.framing {
            Framing::Whole => (false, true),
            Framing::Grpc(message) => message.take(bytes),
        };
        if is_complete {
            self.due = None;
            self.share.release();
        }
        if !has_begun {
            return Ok(());
        }
        let time = self.time;
        self.due.get_or_insert_with(|| Box::pin(sleep(time)));
        // Bytes of an earlier message in this chunk are counted too; that is less than a chunk.
        if self.share.add(bytes.len()) {
            return Ok(());
        }
        self.log.on_too_much_partial(&self.peer);
        let limit = self.share.all.limit;
        let text = format!("incomplete requests of all clients exceed the limit of {limit} bytes");
        Err(Status::resource_exhausted(text))
    }
}

impl PartialBytes {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), limit })
    }
}

impl PartialShare {
    /// Adds bytes; returns whether the sum is within the limit.
    fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.all.limit
    }

    fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes > 0 {
            self.all.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for PartialShare {
    fn drop(&mut self) {
        self.release();
    }
}

impl Message {
    /// Processes received bytes. Returns whether they completed a message, and whether another one
    /// has begun.
    fn take(&mut self, mut bytes: &[u8]) -> (bool, bool) {
        let mut is_complete = false;
        while !bytes.is_empty() {
            if self.prefix_len < PREFIX_BYTES {
                let (taken, rest) = bytes.split_at(bytes.len().min(PREFIX_BYTES - self.prefix_len));
                self.prefix[self.prefix_len..][..taken.len()].copy_from_slice(taken);
                self.prefix_len += taken.len();
                bytes = rest;
                if self.prefix_len == PREFIX_BYTES {
                    let [_, len @ ..] = self.prefix;
                    self.missing = u32::from_be_bytes(len) as usize;
                }
            }
            if self.prefix_len == PREFIX_BYTES {
                let taken = bytes.len().min(self.missing);
                (bytes, self.missing) = (&bytes[taken..], self.missing - taken);
                if self.missing == 0 {
                    (is_complete, self.prefix_len) = (true, 0);
                }
            }
        }
        (is_complete, self.prefix_len > 0)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TimedRequest<B>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref()
                    && let Err(status) = this.on_data(bytes)
                {
                    return Poll::Ready(Some(Err(status.into())));
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                this.due = None;
                return Poll::Ready(None);
            }
            Poll::Pending => {}
        }
        let is_over = this.due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready());
        if !is_over {
            return Poll::Pending;
        }
        this.due = None;
        this.log.on_request_timeout(&this.peer);
        let text = format!("no complete request arrived within {:?}", this.time);
        Poll::Ready(Some(Err(Status::deadline_exceeded(text).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_seen_however_they_are_cut() {
        let message = [0, 0, 0, 0, 3, b'a', b'b', b'c'];
        let empty = [0, 0, 0, 0, 0];
        let take = |chunks: &[&[u8]]| {
            let mut state = Message::default();
            chunks.iter().map(|chunk| state.take(chunk)).collect::<Vec<_>>()
        };
        assert_eq!(take(&[&message, &empty]), [(true, false), (true, false)]);
        assert_eq!(
            take(&[&message[..2], &message[2..7], &message[7..]]),
            [(false, true), (false, true), (true, false)]
        );
        assert_eq!(
            take(&[&[&message[..], &message[..6]].concat(), &message[6..]]),
            [(true, true), (true, false)]
        );
    }
}
