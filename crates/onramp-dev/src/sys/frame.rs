//! Writes a frame to a descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{c_void, iovec};

/// Writes a frame whose bytes are those of `header` and then those of `payload`.
pub(crate) fn write_frame(fd: &OwnedFd, header: &[u8], payload: &[u8]) -> io::Result<()> {
    let part = |bytes: &[u8]| iovec {
        iov_base: bytes.as_ptr().cast::<c_void>().cast_mut(),
        iov_len: bytes.len(),
    };
    let parts = [part(header), part(payload)];
    // SAFETY: the kernel only reads the two slices, no further than their lengths.
    let written = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), 2) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
