//! What a program that is started needs to know before it begins.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the program that `command` starts end together with this one, and lets signals reach it.
///
/// The kernel kills the program as soon as the thread that has started it ends, also if a `kill -9`
/// ended this program. And no signal is blocked in the program: otherwise, it would inherit which
/// signals are blocked in the thread that starts it, and Ctrl-C would not end it.
pub fn tie_child(command: &mut Command) {
    let set_up = || {
        // SAFETY: a `sigset_t` consists of numbers, for which zero is a value.
        let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes into a live `sigset_t`.
        unsafe { libc::sigemptyset(&raw mut none) };
        // SAFETY: the call reads a live `sigset_t`, and writes nothing.
        let failed =
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call takes numbers only.
        let failed = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between `fork` and `exec`, the closure only makes system calls that may be made
    // there (signal-safety(7)): it takes no lock and allocates nothing.
    unsafe { command.pre_exec(set_up) };
}
