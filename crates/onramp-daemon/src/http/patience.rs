//! A stream that does not wait for ever for a reader.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail if the other end accepts nothing for the time `patience`.
#[derive(Debug)]
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Timer that runs while a write waits for the other end; `None` if no write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waiting: None }
    }

    /// Returns the result of a write, or a timeout error if the write has waited too long.
    fn or_late<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let sleep = self.waiting.get_or_insert_with(|| {
            let mut timer = Box::pin(sleep(patience));
            timer.as_mut().reset(Instant::now() + patience);
            timer
        });
        match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.or_late(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.or_late(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.or_late(cx, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.or_late(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_reads_is_waited_for_and_who_does_not_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = Patient::new(ours, Duration::from_secs(5));
        let writer = tokio::spawn(async move {
            let written = ours.write_all(&[1; 64]).await;
            (written.map_err(|error| error.kind()), ours.write_all(&[2; 64]).await)
        });
        // The reader is slow, but reads within the time limit, so no write fails.
        for _ in 0..4 {
            sleep(Duration::from_secs(4)).await;
            let mut some = [0; 16];
            theirs.read_exact(&mut some).await.expect("they are there");
        }
        let began = Instant::now();
        let (first, second) = writer.await.expect("it ends");
        assert_eq!(first, Ok(()));
        assert_eq!(second.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    }

    /// A stream that is never ready, and records which of its operations were called.
    #[derive(Default)]
    struct Stuck {
        vectored: bool,
        asked: Vec<&'static str>,
    }

    impl Stuck {
        fn asked<T>(&mut self, what: &'static str) -> Poll<T> {
            self.asked.push(what);
            Poll::Pending
        }
    }

    impl AsyncWrite for Stuck {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.asked("write")
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.asked("flush")
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.asked("shutdown")
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.asked("write_vectored")
        }

        fn is_write_vectored(&self) -> bool {
            self.vectored
        }
    }

    fn patient(vectored: bool) -> Patient<Stuck> {
        Patient::new(Stuck { vectored, ..Stuck::default() }, Duration::from_secs(5))
    }

    /// Each of the ways to write (plain, vectored, flush, shutdown) has the same time limit,
    /// counted from the start of the operation.
    #[tokio::test(start_paused = true)]
    async fn every_way_to_write_has_an_end() {
        use std::io::IoSlice;
        let late = Some(io::ErrorKind::TimedOut);
        for way in ["write", "flush", "shutdown", "write_vectored"] {
            let (mut stream, begin) = (patient(true), Instant::now());
            let ended = match way {
                "write" => stream.write(&[1]).await.map(drop),
                "flush" => stream.flush().await,
                "shutdown" => stream.shutdown().await,
                _ => stream.write_vectored(&[IoSlice::new(&[1])]).await.map(drop),
            };
            assert_eq!(ended.err().map(|error| error.kind()), late, "{way}");
            assert_eq!(begin.elapsed(), Duration::from_secs(5), "{way}");
            assert!(stream.stream.asked.iter().all(|asked| *asked == way), "{way}");
        }
        for vectored in [true, false] {
            assert_eq!(patient(vectored).is_write_vectored(), vectored);
        }
    }

    /// A write that succeeds ends the wait: the time limit of the next write is counted from the
    /// start of that write.
    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_what_is_written() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut ours = Patient::new(ours, Duration::from_secs(5));
        for _ in 0..3 {
            ours.write_all(&[1; 4]).await.expect("there is room");
            let read = async {
                sleep(Duration::from_secs(4)).await;
                theirs.read_exact(&mut [0; 4]).await
            };
            let (written, read) = tokio::join!(ours.write_all(&[2; 4]), read);
            assert!(written.is_ok() && read.is_ok());
            theirs.read_exact(&mut [0; 4]).await.expect("it was written");
        }
        // The time limit applies only to writes: a read may wait as long as it likes.
        theirs.write_all(b"x").await.expect("there is room");
        let mut some = [0; 1];
        assert_eq!(ours.read(&mut some).await.ok(), Some(1));
    }
}
