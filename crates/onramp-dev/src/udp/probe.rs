//! Finds out how many datagrams the kernel cuts from one message.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::OnceLock;

use crate::sys;

/// Most datagrams in one segmented message that every kernel with UDP segmentation accepts
/// (`UDP_MAX_SEGMENTS` from Linux 4.18 on).
const SEGMENTS: u16 = 64;
/// Most datagrams in one segmented message that newer kernels accept.
const SEGMENTS_MORE: u16 = 128;

/// Returns the largest number of datagrams in a message on `socket`; 1 if the socket cannot
/// segment.
pub(super) fn segments_max(socket: &UdpSocket) -> u16 {
    // If the kernel has the option `UDP_SEGMENT`, it accepts the value 0. This is the default
    // value, with which a message is one datagram.
    if sys::set_udp_segment(socket, 0).is_err() {
        return 1;
    }
    static MOST: OnceLock<u16> = OnceLock::new();
    // Only a test message shows whether the kernel accepts 128 datagrams in one segmented message,
    // or only 64. If the test message cannot be sent (no loopback interface), assume 64.
    *MOST.get_or_init(|| most(SEGMENTS_MORE))
}

/// Returns `more` if the kernel takes `more` datagrams per message, otherwise [`SEGMENTS`].
fn most(more: u16) -> u16 {
    if takes(more).is_ok() { more } else { SEGMENTS }
}

/// Sends one message of `segments` datagrams from a temporary socket on this machine's loopback to
/// itself.
fn takes(segments: u16) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(socket.local_addr()?)?;
    sys::set_udp_segment(&socket, 1)?;
    socket.send(&vec![0; segments.into()]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries messages of 1, 64 and 1,000 datagrams. Every kernel with segmentation accepts 64, and
    /// none accepts 1,000, so `most(1_000)` returns 64.
    #[test]
    fn what_a_kernel_takes_is_found_by_trying() {
        assert_eq!((most(1), most(SEGMENTS), most(1_000)), (1, 64, 64));
        assert!(takes(64).is_ok());
        let error = takes(1_000).expect_err("too many");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
