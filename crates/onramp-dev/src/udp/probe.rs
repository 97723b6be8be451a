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
    *MOST.get_or_init(|| if takes_more().is_ok() { SEGMENTS_MORE } else { SEGMENTS })
}

/// A socket of this machine's loopback sends to itself, and is closed.
fn takes_more() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(socket.local_addr()?)?;
    sys::set_udp_segment(&socket, 1)?;
    socket.send(&[0; SEGMENTS_MORE as usize]).map(drop)
}
