//! A descriptor that becomes readable when a sender has room again, for the caller's event loop.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// The descriptor, and the waker that makes it readable.
#[derive(Debug)]
pub(crate) struct Bell {
    ringer: Arc<Ringer>,
    /// How often the process had forked: a child has a copy of the descriptor, and the ring of its
    /// parent is not its to take.
    forks: u32,
    pub(crate) waker: Waker,
}

#[derive(Debug)]
struct Ringer(OwnedFd);

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        // It can only fail if the counter of the eventfd is full, and then it is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ringer = Arc::new(Ringer(fd));
        let waker = Waker::from(Arc::clone(&ringer));
        Ok(Self { ringer, forks: onramp::dev::forks(), waker })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.ringer.0.as_raw_fd()
    }

    /// Makes the descriptor unreadable until the waker is woken again. Does nothing in a child of
    /// the process that has made the bell.
    pub(crate) fn reset(&self) {
        if onramp::dev::forks() != self.forks {
            return;
        }
        // It fails if nobody has woken the waker since the last reset: then there is nothing to do.
        let _ = rustix::io::read(&self.ringer.0, &mut [0; 8]);
    }
}
