//! What a program that is started needs to know before it begins.

use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Makes the program that `command` starts end together with this one, and lets signals reach it.
///
/// The kernel kills the program as soon as the thread that has started it ends, also if a `kill -9`
/// ended this program. And no signal is blocked in the program: otherwise, it would inherit which
/// signals are blocked in the thread that starts it, and Ctrl-C would not end it.
pub fn tie_child(command: &mut Command) {
    // SAFETY: the call has no arguments.
    let parent = unsafe { libc::getpid() };
    let set_up = move || {
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
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        // A parent that ended before sends no signal. 0: it is in another PID namespace.
        // SAFETY: the call has no arguments.
        let now = unsafe { libc::getppid() };
        if now != parent && now != 0 {
            // SAFETY: the call ends the process, and nobody is left whom an error would reach.
            unsafe { libc::_exit(127) };
        }
        Ok(())
    };
    // SAFETY: between `fork` and `exec`, the closure only makes system calls that may be made
    // there (signal-safety(7)): it takes no lock and allocates nothing.
    unsafe { command.pre_exec(set_up) };
}

/// Makes the program that `command` starts begin in a user namespace of its own, in which it is
/// root and may make network namespaces; outside of it, it is still the user that it was.
///
/// A program that the kernel refuses this does not start: `spawn` then returns the kernel's error.
pub fn enter_child(command: &mut Command) {
    // SAFETY: the call has no arguments.
    let user = unsafe { libc::geteuid() };
    // SAFETY: the call has no arguments.
    let group = unsafe { libc::getegid() };
    let files = [
        (c"/proc/self/setgroups", "deny".to_owned()),
        (c"/proc/self/uid_map", format!("0 {user} 1")),
        (c"/proc/self/gid_map", format!("0 {group} 1")),
    ];
    let enter = move || {
        // SAFETY: the call takes a number.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return Err(io::Error::last_os_error());
        }
        files.iter().try_for_each(|(path, text)| write(path, text.as_bytes()))
    };
    // SAFETY: between `fork` and `exec`, the closure only makes system calls that may be made
    // there (signal-safety(7)): it takes no lock and allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// Writes a whole file of the kernel. Only makes system calls.
fn write(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the path is a string that ends with zero.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel reads the bytes of the slice.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    let result = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: the descriptor was opened above, and nobody else has it.
    unsafe { libc::close(fd) };
    result
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::*;
    use crate::sys::run_in_child;

    /// A program whose parent is killed before the program is tied to it does not start.
    #[test]
    fn a_program_does_not_outlive_its_parent() {
        let (mut reader, writer) = io::pipe().expect("descriptors");
        let middle = run_in_child(move || {
            let mut program = Command::new("sleep");
            program.arg("3600").stdout(writer);
            let pause = || {
                // SAFETY: the call takes a number.
                unsafe { libc::usleep(500_000) };
                Ok(())
            };
            // SAFETY: the closure only makes a call that may be made between `fork` and `exec`.
            unsafe { program.pre_exec(pause) };
            tie_child(&mut program);
            // The result comes when the program has started, so this process waits here.
            drop(program.spawn());
            0
        });
        let middle = middle.expect("a child");
        std::thread::sleep(Duration::from_millis(150));
        // SAFETY: the call takes numbers; the process is a child that was not waited for.
        unsafe { libc::kill(middle, libc::SIGKILL) };
        // SAFETY: as above; nothing is written.
        unsafe { libc::waitpid(middle, std::ptr::null_mut(), 0) };
        // The pipe ends when nobody has its other end any more.
        assert_eq!(reader.read(&mut [0]).expect("it ends"), 0);
    }
}
