//! Into how many datagrams the kernel cuts a message (`UDP_SEGMENT`).

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, socklen_t};
use rustix::io::Errno;

use super::socket::{last_error, send};

/// Most datagrams of a message that every kernel with `UDP_SEGMENT` accepts.
const ALWAYS: usize = 64;

/// Returns whether the kernel cuts a message into `count` datagrams: some kernels accept at most 64
/// and others 128, and no kernel says so before it sends the message. If this kernel cannot be
/// asked, returns `true`.
pub(crate) fn cuts(count: usize) -> bool {
    /// The greatest number that the kernel is known to accept, and the least that it refuses.
    static ACCEPTED: AtomicUsize = AtomicUsize::new(ALWAYS);
    static REFUSED: AtomicUsize = AtomicUsize::new(usize::MAX);
    // Relaxed: each number is right by itself.
    if count <= ACCEPTED.load(Relaxed) {
        return true;
    }
    if count >= REFUSED.load(Relaxed) {
        return false; // Relaxed: as above.
    }
    match offer(count) {
        Ok(()) => _ = ACCEPTED.fetch_max(count, Relaxed), // Relaxed: as above.
        Err(Errno::INVAL) => _ = REFUSED.fetch_min(count, Relaxed), // Relaxed: as above.
        // No descriptor is left, or there is no loopback interface.
        Err(_) => return true,
    }
    count < REFUSED.load(Relaxed) // Relaxed: as above.
}

/// Sends a message of `count` datagrams from a socket of the library's own to itself.
fn offer(count: usize) -> Result<(), Errno> {
    let failed = |error: std::io::Error| {
        Errno::from_raw_os_error(
            error.raw_os_error().filter(|code| *code != libc::EINVAL).unwrap_or(libc::EIO),
        )
    };
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    socket.connect(socket.local_addr().map_err(failed)?).map_err(failed)?;
    let size: c_int = 1;
    let (fd, len) = (socket.as_raw_fd(), socklen_t::try_from(size_of::<c_int>()).unwrap_or(0));
    // SAFETY: the kernel reads `len` bytes of a live `c_int`.
    let set = unsafe {
        libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const size).cast(), len)
    };
    if set != 0 {
        return Err(last_error());
    }
    send(fd, &[], &[], &vec![0; count], 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel accepts 64 datagrams, and none as many as a message has bytes.
    #[test]
    fn a_kernel_cuts_so_many_and_no_more() {
        for _ in 0..2 {
            assert!(cuts(1) && cuts(64) && !cuts(60_000) && cuts(64) && !cuts(65_000));
        }
        let most = (64..60_000).find(|count| !cuts(count + 1));
        assert!(most == Some(64) || most == Some(128), "{most:?}");
    }
}
