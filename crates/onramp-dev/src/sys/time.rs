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

/// The processor that the calling thread is on; `None`: the kernel does not say. A hint: the
/// thread may be elsewhere by the time it looks.
#[must_use]
pub fn current_cpu() -> Option<usize> {
    // SAFETY: it takes nothing and touches no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).ok()
}

/// Keeps the calling thread on the processor `cpu`.
///
/// # Errors
///
/// What the kernel said: there is no such processor, or the thread may not use it.
pub fn pin_thread(cpu: usize) -> std::io::Result<()> {
    const BITS: usize = libc::CPU_SETSIZE as usize;
    if cpu >= BITS {
        return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is less than the set's size.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid for its size; 0 is the calling thread.
    let failed =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
