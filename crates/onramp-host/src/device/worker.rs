//! A thread of a device, which ends with the device.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

/// Makes a thread that sleeps look whether it is to end.
pub(super) type Wake = Arc<OwnedFd>;

/// Returns a descriptor that becomes readable when the thread is to end.
pub(super) fn wake() -> io::Result<Wake> {
    Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
}

/// A thread that works for a device. Dropping the value ends the thread.
#[derive(Debug)]
pub(super) struct Worker {
    end: Arc<AtomicBool>,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
    /// How often the process had forked when the thread began. If the process has forked since,
    /// this is a copy in a forked child, which has no thread.
    forks: u32,
}

impl Worker {
    /// Starts a thread that works until `work` returns. `work` looks at its argument whenever
    /// `wake` is readable, and returns if it is set.
    pub(super) fn start(
        name: &str,
        wake: Wake,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let (end, forks) = (Arc::<AtomicBool>::default(), onramp_dev::watch_forks());
        let ends = end.clone();
        let thread = Builder::new().name(name.to_owned()).spawn(move || work(&ends))?;
        Ok(Self { end, wake, thread: Some(thread), forks })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if onramp_dev::forks() != self.forks {
            // The parent has the thread, and shares `wake`. A copy must not wake the thread, and
            // cannot join it.
            std::mem::forget(self.thread.take());
            return;
        }
        self.end.store(true, Ordering::Relaxed); // Relaxed: the write to `wake` orders it.
        // The write can fail only if the thread is to wake already.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // An error of `join` means that the thread panicked; the panic hook has already printed
            // the panic.
            let _ = thread.join();
        }
    }
}
