//! How many datagrams the kernel cuts a message into.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::OnceLock;

use crate::sys;

/// What every kernel with segmentation takes (`UDP_MAX_SEGMENTS` from Linux 4.18 on).
const SEGMENTS: u16 = 64;
/// What later kernels take.
const SEGMENTS_MORE: u16 = 128;

/// Most datagrams in a message on `socket`; 1 where it cannot segment.
pub(super) fn segments_max(socket: &UdpSocket) -> u16 {
    // Zero is the default: a message is one datagram unless it says otherwise.
    if sys::set_udp_segment(socket, 0).is_err() {
        return 1;
    }
    static MOST: OnceLock<u16> = OnceLock::new();
    // The kernel tells only by taking a message or refusing it. Where the probe cannot be sent
    // (no loopback), the smaller limit holds.
    *MOST.get_or_init(|| most(SEGMENTS_MORE))
}

/// So many, if the kernel takes them.
fn most(more: u16) -> u16 {
    if takes(more).is_ok() { more } else { SEGMENTS }
}

/// A socket of this machine's loopback sends so many datagrams to itself, and is closed.
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

    /// No kernel takes 1,000 datagrams in a message, and all with segmentation take 64.
    #[test]
    fn what_a_kernel_takes_is_found_by_trying() {
        assert_eq!((most(1), most(SEGMENTS), most(1_000)), (1, 64, 64));
        assert!(takes(64).is_ok());
        let error = takes(1_000).expect_err("too many");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
