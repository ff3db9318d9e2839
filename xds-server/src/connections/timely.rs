//! Requests that have to come whole within a time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::connections::reports::Reports;
use crate::peer::Peer;

/// The body of a request, with a time in which the next message has to be complete: the first from the start of the stream
/// on, others once they have begun. Between messages it may last.
///
/// What is not gRPC is one message.
#[derive(Debug)]
pub(crate) struct Timely<B> {
    body: B,
    framing: Framing,
    time: Duration,
    /// Runs while a message has to come.
    due: Option<Pin<Box<Sleep>>>,
    reports: Arc<Reports>,
    peer: Peer,
}

/// Where in its messages a body is.
#[derive(Debug)]
enum Framing {
    /// One message, to the end of the body.
    Whole,
    Grpc(Message),
}

/// A message of gRPC that comes: its prefix has this many bytes so far, and so many follow.
#[derive(Debug, Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    missing: usize,
}

impl<B: Body> Timely<B> {
    pub(crate) fn new(
        body: B,
        headers: &HeaderMap,
        time: Duration,
        reports: Arc<Reports>,
        peer: Peer,
    ) -> Self {
        let is_grpc = headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"));
        let framing = if is_grpc { Framing::Grpc(Message::default()) } else { Framing::Whole };
        let due = (!body.is_end_stream()).then(|| Box::pin(sleep(time)));
        Self { body, framing, time, due, reports, peer }
    }
}

impl Message {
    /// Takes what came; whether a message was complete in it, and whether another one has begun.
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

impl<B: Body<Data = Bytes> + Unpin> Body for Timely<B>
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
                if let (Framing::Grpc(message), Some(bytes)) = (&mut this.framing, frame.data_ref()) {
                    let (is_complete, has_begun) = message.take(bytes);
                    if is_complete {
                        this.due = None;
                    }
                    if has_begun {
                        let time = this.time;
                        this.due.get_or_insert_with(|| Box::pin(sleep(time)));
                    }
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
        this.reports.on_request_timeout(&this.peer);
        let text = format!("no complete request came within {:?}", this.time);
        Poll::Ready(Some(Err(Status::deadline_exceeded(text).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Of a gRPC message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

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
