//! The kernel's monotonic clock, timer slack, processor affinity and thread priority.

use std::fmt;

/// Returns the time of `CLOCK_MONOTONIC`, nanoseconds. Makes no system call if the kernel's vDSO
/// serves the clock.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the processor time that the calling thread has used, nanoseconds. Takes a system call.
/// `None` on the simulated machine, whose threads share one thread of the system.
#[must_use]
pub fn thread_cpu_ns() -> Option<u64> {
    if cfg!(sim) { None } else { Some(read(libc::CLOCK_THREAD_CPUTIME_ID)) }
}

/// Returns the time of one of the clocks that count up from zero and that every Linux has.
#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid memory for the answer. The call cannot fail, because every Linux has
    // the clock.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    #[expect(clippy::cast_sign_loss, reason = "the clock counts up from zero")]
    let (seconds, nanoseconds) = (time.tv_sec as u64, time.tv_nsec as u64);
    seconds * 1_000_000_000 + nanoseconds
}

/// Asks the kernel to wake the calling thread as exactly as it can (timer slack of 1 ns) instead of
/// up to 50 µs late. If the kernel refuses, timers stay as they are.
pub fn exact_timers() {
    // SAFETY: the call takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Returns the processor that the calling thread runs on; `None` if the kernel does not tell it.
/// The result is only a hint, because the thread may have moved by the time the caller uses it.
#[must_use]
pub fn current_cpu() -> Option<usize> {
    #[cfg(sim)]
    if let Some(processor) = onramp_machine::hook::processor() {
        return Some(processor.into());
    }
    // SAFETY: the call takes no argument and touches no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).ok()
}

/// Pins the calling thread to the processor `cpu`.
///
/// # Errors
///
/// Fails with the kernel's error if there is no such processor or the thread may not use it.
pub fn pin_thread(cpu: usize) -> std::io::Result<()> {
    const BITS: usize = libc::CPU_SETSIZE as usize;
    #[cfg(sim)]
    if onramp_machine::thread::pin(cpu) {
        return Ok(());
    }
    if cpu >= BITS {
        return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: all zeros is a valid processor set: the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is less than the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid for its size; 0 means the calling thread.
    let failed =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// How the kernel ranks a thread among the threads that compete for the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The ordinary policy with this niceness, -20 (favoured) to 19. A number below 0 needs
    /// `CAP_SYS_NICE` or a limit (`RLIMIT_NICE`) that allows it.
    Nice(i8),
    /// The real-time policy `SCHED_FIFO` with this priority, 1 to 99: the thread runs before all
    /// ordinary threads, as long as it wants. Needs `CAP_SYS_NICE` or a limit (`RLIMIT_RTPRIO`)
    /// that allows it.
    Fifo(u8),
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nice(nice) => write!(f, "nice {nice}"),
            Self::Fifo(priority) => write!(f, "SCHED_FIFO {priority}"),
        }
    }
}

/// Gives the calling thread a priority.
///
/// # Errors
///
/// Fails with the kernel's error if the process may not do so, or if the number is out of range.
pub fn set_thread_priority(priority: Priority) -> std::io::Result<()> {
    let failed = match priority {
        // The kernel would silently use the nearest number of the range.
        Priority::Nice(nice) if !(-20..=19).contains(&nice) => {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the call takes numbers and touches no memory. 0 means the calling thread: Linux
        // has a niceness for each thread.
        Priority::Nice(nice) => unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice.into()) },
        Priority::Fifo(priority) => {
            let param = libc::sched_param { sched_priority: priority.into() };
            // SAFETY: `param` is valid memory for the call; 0 means the calling thread.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) }
        }
    };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the same clock as [`monotonic_ns`], but by a system call that bypasses the C library
    /// and its vDSO.
    fn from_the_kernel() -> i128 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid memory for the answer.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    }

    #[test]
    fn the_clock_is_the_kernels_to_the_nanosecond() {
        for _ in 0..1_000 {
            let (before, ours, after) =
                (from_the_kernel(), i128::from(monotonic_ns()), from_the_kernel());
            assert!(before <= ours && ours <= after, "{before} {ours} {after}");
        }
    }

    /// The clock of a thread counts the time in which the thread computes, not that in which it
    /// sleeps, and not that of other threads.
    #[test]
    fn a_thread_has_its_own_processor_time() {
        let used = || thread_cpu_ns().expect("this machine is real");
        let computes = |until: &dyn Fn() -> bool| while !until() {};
        let before = used();
        std::thread::scope(|scope| {
            scope.spawn(|| computes(&|| used() >= 20_000_000));
        });
        assert!(used() - before < 20_000_000, "another thread computed");
        computes(&|| used() - before >= 20_000_000);
    }

    /// Returns the calling thread's timer slack, nanoseconds.
    fn slack() -> libc::c_int {
        // SAFETY: the call takes no further argument and touches no memory.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
    }

    #[test]
    fn a_thread_that_asks_has_exact_timers() {
        std::thread::scope(|scope| {
            // The test runs in a new thread, because timer slack is a property of a thread, and the
            // thread that runs the tests must keep its own.
            scope.spawn(|| {
                exact_timers();
                assert_eq!(slack(), 1);
            });
        });
    }

    /// Returns the processors that the calling thread may use.
    fn allowed() -> Vec<usize> {
        // SAFETY: all zeros is a valid processor set: the empty one.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid for its size; 0 is the calling thread.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        let cpus = 0..libc::CPU_SETSIZE as usize;
        // SAFETY: each `cpu` is less than the size of the set.
        cpus.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
    }

    #[test]
    fn a_pinned_thread_stays_where_it_is() {
        for cpu in allowed() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    pin_thread(cpu).expect("it may be there");
                    assert_eq!((allowed(), current_cpu()), (vec![cpu], Some(cpu)));
                });
            });
        }
    }

    #[test]
    fn there_is_no_such_processor() {
        let before = allowed();
        // The C library's processor set holds processors up to 1,023, so the other numbers are
        // beyond the set.
        for cpu in [1_023, 1_024, 1_025, usize::MAX] {
            if !before.contains(&cpu) {
                let error = pin_thread(cpu).expect_err("no machine of ours has it");
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{cpu}");
            }
        }
        assert_eq!(allowed(), before, "it may be where it could be");
    }

    /// Returns the niceness and the scheduling policy of the calling thread, as the kernel tells
    /// them (`proc(5)`, fields 19 and 41 of `stat`).
    fn ranked() -> (i64, i64) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("/proc is mounted");
        let rest = stat.rsplit_once(')').expect("a name").1;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields[number - 3].parse().expect("a number");
        (field(19), field(41))
    }

    #[test]
    fn a_thread_gets_its_priority_and_others_keep_theirs() {
        let before = ranked();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                set_thread_priority(Priority::Nice(19)).expect("anyone may be nice");
                assert_eq!(ranked(), (19, 0));
                for wrong in [Priority::Nice(20), Priority::Nice(-21), Priority::Fifo(0)] {
                    let error = set_thread_priority(wrong).expect_err("out of range");
                    assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{wrong}");
                }
                match set_thread_priority(Priority::Fifo(1)) {
                    Ok(()) => assert_eq!(ranked().1, i64::from(libc::SCHED_FIFO)),
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
                }
            });
        });
        assert_eq!(ranked(), before);
    }
}
