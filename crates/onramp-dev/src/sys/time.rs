//! The kernel's monotonic clock.

/// Nanoseconds of `CLOCK_MONOTONIC`. No system call where the kernel's vDSO serves the clock.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer. The call cannot fail: every Linux has the
    // clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    #[expect(clippy::cast_sign_loss, reason = "the clock counts up from zero at boot")]
    let (seconds, nanoseconds) = (time.tv_sec as u64, time.tv_nsec as u64);
    seconds * 1_000_000_000 + nanoseconds
}

/// Asks the kernel to wake the calling thread as exactly as it can (timer slack of 1 ns), instead
/// of up to 50 µs late. Where it refuses, timers stay as they are.
pub fn exact_timers() {
    // SAFETY: it takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}
