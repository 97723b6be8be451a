//! The UDP sockets of `udp` devices.

use std::net::{SocketAddr, UdpSocket};

use onramp_dev::{Udp, UdpOptions, set_receive_buffer};

use super::{Refusal, invalid, refusal};

/// Size of the Ethernet header, bytes.
pub(super) const ETHERNET: u32 = 14;

/// Opens a socket at `local`, connects it to `remote` if there is one, and makes a transmit queue
/// of it. `mtu` is the size of the largest packet without its link header, bytes.
pub(super) fn udp_socket(
    local: SocketAddr,
    remote: Option<SocketAddr>,
    mtu: u32,
) -> Result<Udp, Refusal> {
    let refused = |error: std::io::Error| refusal("bind a UDP socket to", local, &error);
    let socket = UdpSocket::bind(local).map_err(refused)?;
    if let Some(remote) = remote {
        let refused = |error| refusal("connect a UDP socket to", remote, &error);
        socket.connect(remote).map_err(refused)?;
    }
    udp_device(socket, mtu)
}

/// Asks for room for `bytes` bytes of datagrams that come while a relay does something else.
pub(super) fn enlarge(socket: &UdpSocket, bytes: usize) {
    // The socket works with less, and what it has no room for is counted.
    let _ = set_receive_buffer(socket, bytes);
}

/// Makes a transmit queue of a socket.
pub(super) fn udp_device(socket: UdpSocket, mtu: u32) -> Result<Udp, Refusal> {
    let options = UdpOptions { mtu: mtu.saturating_add(ETHERNET), ..UdpOptions::default() };
    Udp::new(socket, options).map_err(|error| invalid(&error.to_string()))
}

/// What the sockets have in common through which a relay exchanges datagrams with its server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upstream {
    /// The address of each socket. If its port is zero, each socket has a port of its own.
    pub(super) local: SocketAddr,
    /// The server.
    pub(super) remote: SocketAddr,
    /// Size of the largest packet without its link header, bytes.
    pub(super) mtu: u32,
}

impl Upstream {
    /// Whether all sockets would have the same port, so that there can be only one.
    pub(super) const fn is_shared(&self) -> bool {
        self.local.port() != 0
    }

    /// Opens one more socket to the server.
    pub(super) fn open(&self) -> Result<Udp, Refusal> {
        udp_socket(self.local, Some(self.remote), self.mtu)
    }
}
