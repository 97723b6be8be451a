//! A timer whose descriptor a thread can wait for.
//!
//! Source: `timerfd_create(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// A timer of the clock `CLOCK_MONOTONIC`, that of [`MonotonicClock`](crate::MonotonicClock). Its
/// descriptor is readable from the time for which the timer is set until the timer is set again.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Makes a timer that is not set.
    ///
    /// # Errors
    ///
    /// Fails if the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sets the timer for this time, in nanoseconds; the past means now. `None` stops it.
    ///
    /// # Errors
    ///
    /// The kernel has no reason to refuse the call: an error is a fault of this process, such as a
    /// descriptor that other code has closed.
    pub fn set(&self, at: Option<u64>) -> io::Result<()> {
        // Zero would stop the timer.
        let ns = at.map_or(0, |at| at.max(1));
        let value = libc::timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let times = libc::itimerspec { it_interval: interval, it_value: value };
        // SAFETY: the kernel reads a live `itimerspec`, and is not asked for the old one.
        let failed = unsafe {
            libc::timerfd_settime(
                self.0.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const times,
                std::ptr::null_mut(),
            )
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
