//! A conversation that has to end by an instant.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use onramp_core::{Clock as _, Instant};
use onramp_dev::MonotonicClock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A stream on which all that is read and written must end by an instant, and which fails before if
/// the other end of `stop` is closed. The stream must not block.
pub(super) struct Talk<'s> {
    pub(super) stream: &'s UnixStream,
    pub(super) stop: &'s UnixStream,
    pub(super) end: Instant,
}

impl Talk<'_> {
    /// Does `act` when the stream is ready for it.
    fn when(
        &self,
        ready: PollFlags,
        mut act: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let left_ns = self.end.since(MonotonicClock.now());
            let left =
                Timespec::try_from(Duration::from_nanos(left_ns)).map_err(io::Error::other)?;
            let mut both = [PollFd::new(self.stream, ready), PollFd::new(self.stop, PollFlags::IN)];
            let polled = poll(&mut both, Some(&left));
            if !both[1].revents().is_empty() {
                return Err(io::Error::other("the wire has ended"));
            }
            if left_ns == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
            match polled.map_err(io::Error::from).and_then(|_| act()) {
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
                done => return done,
            }
        }
    }
}

impl io::Read for Talk<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        self.when(PollFlags::IN, || stream.read(buffer))
    }
}

impl io::Write for Talk<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stream = self.stream;
        self.when(PollFlags::OUT, || stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// One slow program does not keep the wire: neither when the time is over, nor at its end.
    #[test]
    fn a_request_ends_in_time_and_with_the_wire() {
        let (mut near, far) = UnixStream::pair().expect("a pair");
        far.set_nonblocking(true).expect("it is open");
        let (stop, stopped) = UnixStream::pair().expect("a pair");
        let (mut byte, far_away) = ([0], Instant(u64::MAX));
        near.write_all(b"xy").expect("there is room");
        let mut talk = Talk { stream: &far, stop: &stopped, end: far_away };
        assert_eq!(talk.read(&mut byte).expect("a byte is there"), 1);
        // The time is over, although more has come.
        talk.end = Instant(0);
        assert_eq!(talk.read(&mut byte).expect_err("too late").kind(), ErrorKind::TimedOut);
        // Nothing more comes, and the time is not over, but the wire has ended.
        (talk.end, byte) = (far_away, [0]);
        assert_eq!(talk.read(&mut byte).expect("a byte is there"), 1);
        drop(stop);
        assert!(talk.read(&mut byte).is_err_and(|error| error.to_string().contains("ended")));
        assert!(talk.write(b"x").is_err_and(|error| error.to_string().contains("ended")));
    }
}
