//! The task that does the work of the runner in a link without threads.

use std::io;
use std::os::fd::OwnedFd;

use onramp::Link;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

/// A task that runs a link without threads ([`LinkBuilder::manual`](onramp::LinkBuilder::manual)):
/// it calls [`Link::run`] whenever the link's descriptor is readable. It holds a handle of the
/// link, and ends when the driver is dropped.
///
/// A [`Socket`](crate::Socket) has one already. Use it for other users of such a link, for example
/// a socket of `onramp-quinn`. A task that blocks the runtime's thread delays the packets of the
/// link: a runner thread does not have that weakness.
#[derive(Debug)]
pub struct Driver(AbortHandle);

impl Driver {
    /// Starts the task in the present runtime.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the link has threads, and the error of `epoll` if it does not take the
    /// descriptor.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime of tokio with I/O enabled.
    pub fn spawn(link: &Link) -> io::Result<Self> {
        let descriptor = link.descriptor().ok_or_else(|| {
            let why = "the threads of this link do the work of its runner: build it with `manual`";
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let timer = readable(descriptor.try_clone_to_owned()?)?;
        let link = link.clone();
        let task = tokio::spawn(async move {
            // An error means that the runtime ends.
            while let Ok(mut ready) = timer.readable().await {
                // A ring that comes from here on makes the descriptor ready again.
                ready.clear_ready();
                link.run();
            }
        });
        Ok(Self(task.abort_handle()))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[allow(deprecated, reason = "its successor is unsafe, for types that lie about their descriptor")]
fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}
