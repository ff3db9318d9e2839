//! Requests on their way from the transport: cuts messages out of its chunks.
//!
//! The reader of tonic keeps a buffer per stream, as large as the largest request, which contains
//! all names of a subscription. Here, a message that arrives in one chunk is a slice of that chunk,
//! and nothing stays allocated after the message is handed over.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use tonic::Status;

/// The request messages of one stream.
#[derive(Debug)]
pub(crate) struct Requests<B> {
    body: B,
    limit_bytes: usize,
    /// Received bytes that are not processed yet.
    chunk: Bytes,
    /// The start of an incomplete message, with its prefix.
    partial: BytesMut,
}

/// Why no more requests can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// G9: detected from the length prefix, before the message is read.
    #[error("a request of {len} bytes exceeds the limit of {limit_bytes}")]
    TooLarge { len: usize, limit_bytes: usize },
    #[error("a request is compressed; the server supports no compression of requests")]
    Compressed,
    #[error("the stream ended inside a request")]
    Cut,
    #[error("{0}")]
    Transport(#[from] Status),
}

impl<B> Requests<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) fn new(body: B, limit_bytes: usize) -> Self {
        Self { body, limit_bytes, chunk: Bytes::new(), partial: BytesMut::new() }
    }

    /// The next message; `None` when the client has closed its side.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestError>>> {
        loop {
            match self.take_message() {
                Ok(None) => {}
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Trailers of a request have no meaning here.
                Some(Ok(frame)) => self.chunk = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(error.into()).into()))),
                None if self.partial.is_empty() => return Poll::Ready(None),
                None => {
                    self.partial.clear();
                    return Poll::Ready(Some(Err(RequestError::Cut)));
                }
            }
        }
    }

    /// A complete message; `None` if it is incomplete, and then the chunk is empty.
    fn take_message(&mut self) -> Result<Option<Bytes>, RequestError> {
        if self.partial.is_empty() {
            if let Some(len) = self.message_len(&self.chunk)?
                && self.chunk.len() >= PREFIX_BYTES + len
            {
                self.chunk.advance(PREFIX_BYTES);
                let message = self.chunk.split_to(len);
                if self.chunk.is_empty() {
                    // Releases the buffer of the transport.
                    self.chunk = Bytes::new();
                }
                return Ok(Some(message));
            }
            self.partial.extend_from_slice(&std::mem::take(&mut self.chunk));
            return Ok(None);
        }
        if self.partial.len() < PREFIX_BYTES {
            self.fill(PREFIX_BYTES);
        }
        let Some(len) = self.message_len(&self.partial)? else { return Ok(None) };
        self.fill(PREFIX_BYTES + len);
        if self.partial.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.partial).freeze();
        message.advance(PREFIX_BYTES);
        Ok(Some(message))
    }

    /// Moves bytes from the chunk until the partial message has this length.
    fn fill(&mut self, len: usize) {
        let missing = (len - self.partial.len()).min(self.chunk.len());
        self.partial.extend_from_slice(&self.chunk.split_to(missing));
        if self.chunk.is_empty() {
            self.chunk = Bytes::new();
        }
    }

    /// The length of the message that begins here; `None` if the prefix is incomplete.
    fn message_len(&self, bytes: &[u8]) -> Result<Option<usize>, RequestError> {
        let Some((flag, len)) = bytes.get(..PREFIX_BYTES).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        if *flag != 0 {
            return Err(RequestError::Compressed);
        }
        let len = u32::from_be_bytes(len.try_into().expect("four bytes are left of five")) as usize;
        let limit_bytes = self.limit_bytes;
        if len > limit_bytes { Err(RequestError::TooLarge { len, limit_bytes }) } else { Ok(Some(len)) }
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        let text = error.to_string();
        match error {
            RequestError::TooLarge { .. } => Self::resource_exhausted(text),
            RequestError::Compressed => Self::unimplemented(text),
            RequestError::Cut => Self::internal(text),
            RequestError::Transport(status) => status,
        }
    }
}

/// The prefix of a gRPC message: a byte for compression, and four bytes of length.
pub(crate) const PREFIX_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use http_body::Frame;
    use quickcheck::QuickCheck;

    use super::*;

    /// Chunks that are available at once.
    #[derive(Debug)]
    struct Chunks(VecDeque<Bytes>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0][..], &len, message].concat()
    }

    fn read(chunks: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Option<RequestError>) {
        let chunks = chunks.into_iter().map(Bytes::from).collect();
        let mut requests = Requests::new(Chunks(chunks), 100);
        let mut messages = Vec::new();
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        loop {
            match requests.poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => messages.push(message.to_vec()),
                Poll::Ready(Some(Err(error))) => return (messages, Some(error)),
                Poll::Ready(None) => return (messages, None),
                Poll::Pending => panic!("all chunks are there"),
            }
        }
    }

    #[test]
    fn messages_are_the_same_however_they_are_cut() {
        fn are_same(messages: Vec<Vec<u8>>, cuts: Vec<u8>) -> bool {
            let messages: Vec<_> =
                messages.into_iter().map(|message| message[..message.len().min(100)].to_vec()).collect();
            let mut rest = messages.iter().flat_map(|message| framed(message)).collect::<Vec<_>>();
            let mut chunks = Vec::new();
            for cut in cuts {
                let after = rest.split_off(usize::from(cut).min(rest.len()));
                chunks.push(std::mem::replace(&mut rest, after));
            }
            chunks.push(rest);
            let (read, error) = read(chunks);
            read == messages && error.is_none()
        }
        QuickCheck::new().tests(1000).quickcheck(are_same as fn(Vec<Vec<u8>>, Vec<u8>) -> bool);
    }

    #[test]
    fn g9_a_message_over_the_limit_is_refused_by_its_length_alone() {
        let whole = framed(&[7; 100]);
        let (messages, error) = read(vec![whole, framed(&[7; 101])[..5].to_vec()]);
        assert_eq!(messages, [vec![7; 100]]);
        assert!(matches!(error, Some(RequestError::TooLarge { len: 101, limit_bytes: 100 })), "{error:?}");
    }

    #[test]
    fn g1_what_is_no_message_is_an_error() {
        assert!(matches!(read(vec![vec![1, 0, 0, 0, 0]]), (_, Some(RequestError::Compressed))));
        assert!(matches!(read(vec![vec![0, 0]]), (_, Some(RequestError::Cut))));
        let cut = framed(b"message")[..8].to_vec();
        assert!(matches!(read(vec![cut]), (_, Some(RequestError::Cut))));
    }

    #[test]
    fn nothing_of_a_message_is_kept() {
        let chunks = [framed(&[1; 90]), framed(&[2; 90])].concat();
        let (first, second) = chunks.split_at(100);
        let mut requests = Requests::new(
            Chunks([first, second].into_iter().map(|chunk| chunk.to_vec().into()).collect()),
            100,
        );
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        for _ in 0..2 {
            assert!(matches!(requests.poll_next(cx), Poll::Ready(Some(Ok(_)))));
        }
        assert_eq!((requests.chunk.len(), requests.partial.capacity()), (0, 0));
    }
}
