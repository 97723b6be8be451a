//! Error messages of devices that cannot be set up.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use onramp_dev::{DeviceError, Udp, UdpOptions, socket_memory};

fn text(addr: Option<&str>, source: impl Into<io::Error>) -> String {
    let addr = addr.map(|addr| addr.parse().expect("an address"));
    DeviceError { operation: "bind a UDP socket to", addr, source: source.into() }.to_string()
}

#[test]
fn an_error_says_what_where_and_what_to_do() {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, NotFound, PermissionDenied};
    let said = |kind| text(Some("192.0.2.1:53"), io::Error::new(kind, "as the system says"));
    let start = "cannot bind a UDP socket to 192.0.2.1:53: as the system says";
    assert_eq!(said(NotFound), start, "no advice is better than a wrong one");
    assert_eq!(
        said(AddrInUse),
        format!("{start}; choose another port, or port 0 for any free one")
    );
    assert_eq!(said(AddrNotAvailable), format!("{start}; choose an address of this machine"));
    let permission = "ports below 1024 need CAP_NET_BIND_SERVICE; broadcast needs SO_BROADCAST";
    assert_eq!(said(PermissionDenied), format!("{start}; {permission}"));
    let nowhere = text(None, io::Error::new(NotFound, "as the system says"));
    assert_eq!(nowhere, "cannot bind a UDP socket to: as the system says");
}

/// A file descriptor that is not a socket has no address, so no device can be made of it.
#[test]
fn a_file_is_no_socket() {
    let file = || File::open("/dev/null").expect("Linux has it");
    let socket: UdpSocket = OwnedFd::from(file()).into();
    let error = Udp::new(socket, UdpOptions::default()).expect_err("it has no address");
    assert_eq!((error.operation, error.addr), ("read the address of a UDP socket", None));
    let socket = socket_memory(file().as_fd()).expect_err("it has no memory of a socket");
    assert_eq!(error.source.raw_os_error(), socket.raw_os_error(), "ENOTSOCK");
}

/// A socket of another protocol than UDP cannot segment, so the device sends one datagram per
/// message.
#[test]
fn a_socket_without_segmentation_has_one_datagram_a_message() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr: SocketAddr = tcp.local_addr().expect("it is bound");
    let udp = Udp::new(OwnedFd::from(tcp).into(), UdpOptions::default());
    let udp = udp.expect("it has an address");
    assert_eq!((udp.segments_max(), udp.stats().gso_off.get()), (1, 1));
    assert_eq!(udp.socket().local_addr().expect("it is bound"), addr);
}
