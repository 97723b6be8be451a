//! Numbers in a file that two processes see.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// Makes room for `count` numbers in an empty file, and maps them into memory, until the process
/// ends. Another process that reads the file finds what was written, also if this process was
/// killed.
///
/// The room is real, because a write into the memory of a file that has none ends the process
/// (SIGBUS); and the limit on the size of files is asked for first, because the kernel sends a
/// signal (SIGXFSZ) to a process that goes beyond it.
///
/// # Errors
///
/// The error of the kernel, such as `ENOSPC`; `FileTooLarge` if the limit is smaller.
pub(crate) fn shared_words(file: &File, count: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = count * size_of::<AtomicU64>();
    let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to a live `rlimit`.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if asked == 0 && limit.rlim_cur < bytes as u64 {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let len = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: the call takes numbers.
    match unsafe { libc::posix_fallocate(fd, 0, len) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    // SAFETY: the kernel chooses a place where nothing is mapped.
    let place = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping begins at a page, has `bytes` bytes, of which each pattern is a number,
    // and is never removed. All its users are atomic.
    Ok(unsafe { std::slice::from_raw_parts(place.cast(), count) })
}
