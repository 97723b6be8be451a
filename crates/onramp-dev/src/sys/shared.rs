//! Numbers in a file that two processes see.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// Maps the first `count` numbers of a file into memory, until the process ends. Another process
/// that reads the file finds what was written, also if this process was killed.
///
/// # Errors
///
/// The error of the kernel, or `InvalidInput` if the file is shorter.
pub(crate) fn shared_words(file: &File, count: usize) -> io::Result<&'static [AtomicU64]> {
    let bytes = count * size_of::<AtomicU64>();
    if file.metadata()?.len() < bytes as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: the kernel chooses a place where nothing is mapped.
    let place = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping begins at a page, has `bytes` bytes, of which each pattern is a number,
    // and is never removed. All its users are atomic.
    Ok(unsafe { std::slice::from_raw_parts(place.cast(), count) })
}
