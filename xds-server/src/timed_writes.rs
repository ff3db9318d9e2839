//! Ends connections whose peers read nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection on which a write fails with [`io::ErrorKind::TimedOut`] if it makes no progress for
/// some time. Its peer reads nothing, and the bytes for it would stay in memory forever. A slow
/// peer is no problem.
#[derive(Debug)]
pub struct TimedWrites<IO> {
    io: IO,
    limit: Duration,
    /// Runs while a write waits for the peer.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<IO> TimedWrites<IO> {
    /// A connection whose writes must make progress within `limit`.
    pub fn new(io: IO, limit: Duration) -> Self {
        Self { io, limit, stalled: None }
    }
}

impl<IO: AsyncWrite + Unpin> TimedWrites<IO> {
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut IO>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.io), cx) {
            self.stalled = None;
            return Poll::Ready(written);
        }
        let limit = self.limit;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for TimedWrites<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().timed(cx, |io, cx| io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().timed(cx, |io, cx| io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().timed(cx, |io, cx| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().timed(cx, |io, cx| io.poll_shutdown(cx))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for TimedWrites<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_served_and_one_that_reads_nothing_is_not() {
        let (io, mut peer) = duplex(10);
        let mut io = TimedWrites::new(io, LIMIT);
        let read = tokio::spawn(async move {
            let mut bytes = [0; 10];
            for _ in 0..10 {
                sleep(LIMIT - Duration::from_secs(1)).await;
                peer.read_exact(&mut bytes).await.unwrap();
            }
            peer
        });
        io.write_all(&[0; 100]).await.unwrap();
        let _peer = read.await.unwrap();
        let error = io.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
