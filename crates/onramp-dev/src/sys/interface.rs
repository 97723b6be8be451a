//! The settings of a network interface.
//!
//! Source: `netdevice(7)`.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::{c_char, c_int, c_short, c_void, ifreq};

/// Returns the number of the interface `name` in the calling thread's network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<c_int> {
    let mut request = request(name)?;
    ioctl(&any_socket(libc::AF_INET)?, libc::SIOCGIFINDEX, (&raw mut request).cast())?;
    // SAFETY: the kernel has filled this field.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// Returns the MTU of the interface `name` of the calling thread's network namespace: the largest
/// packet in bytes, link header not included.
///
/// # Errors
///
/// Fails if there is no such interface.
pub fn interface_mtu(name: &str) -> io::Result<u32> {
    let mut request = request(name)?;
    ioctl(&any_socket(libc::AF_INET)?, libc::SIOCGIFMTU, (&raw mut request).cast())?;
    // SAFETY: the kernel has filled this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns the number of queues from which the interface `name` receives; 1 if its driver does not
/// tell.
#[cfg(feature = "xdp")]
pub(crate) fn receive_queues(name: &str) -> io::Result<u32> {
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    match ioctl(&any_socket(libc::AF_INET)?, libc::SIOCETHTOOL, (&raw mut request).cast()) {
        Ok(()) => Ok(channels.receive_queues()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        Err(error) => Err(error),
    }
}

/// Command of `SIOCETHTOOL`, and its argument (`struct ethtool_channels` of
/// `include/uapi/linux/ethtool.h`; not in the crate `libc`).
#[cfg(feature = "xdp")]
const GET_CHANNELS: u32 = 0x3c;

#[cfg(feature = "xdp")]
impl Channels {
    /// A queue that both receives and sends counts as combined, as most network cards have them.
    fn receive_queues(&self) -> u32 {
        self.receiving.saturating_add(self.combined).max(1)
    }
}

#[cfg(feature = "xdp")]
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    /// Largest numbers of queues: receiving, sending, other, combined.
    _most: [u32; 4],
    receiving: u32,
    _sending: u32,
    _other: u32,
    combined: u32,
}

/// Sets the MTU of the interface `name` of the calling thread's network namespace: the largest
/// packet in bytes, link header not included.
///
/// # Errors
///
/// Fails if there is no such interface, if the MTU is too small or too large for it, and without
/// `CAP_NET_ADMIN`.
pub fn set_interface_mtu(name: &str, mtu: u32) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = c_int::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
    ioctl(&any_socket(libc::AF_INET)?, libc::SIOCSIFMTU, (&raw mut request).cast())
}

/// Sets how many packets may wait for the interface `name` of the calling thread's network
/// namespace: those that a TAP holds until they are read.
#[cfg(feature = "detour")]
pub(crate) fn set_queue_length(name: &str, packets: u16) -> io::Result<()> {
    let mut request = request(name)?;
    // The field of the union that is a number; `libc` has no name for the length.
    request.ifr_ifru.ifru_metric = packets.into();
    ioctl(&any_socket(libc::AF_INET)?, libc::SIOCSIFTXQLEN, (&raw mut request).cast())
}

/// Gives the interface `name` of the calling thread's network namespace an address, and a route to
/// the network of `prefix` bits. In IPv4, it replaces the address that the interface had.
///
/// # Errors
///
/// Fails if there is no such interface, without `CAP_NET_ADMIN`, and for an IPv6 address if the
/// kernel has no IPv6.
pub fn add_interface_address(name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
    match address {
        IpAddr::V4(v4) => {
            let socket = any_socket(libc::AF_INET)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            for (number, bits) in [(libc::SIOCSIFADDR, v4.to_bits()), (libc::SIOCSIFNETMASK, mask)]
            {
                let mut request = request(name)?;
                // SAFETY: a `sockaddr_in` consists of numbers, for which zero is a value.
                let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                address.sin_family = FAMILY_V4;
                address.sin_addr.s_addr = bits.to_be();
                // SAFETY: both types have 16 bytes, and any bytes are a `sockaddr`.
                request.ifr_ifru.ifru_addr =
                    unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
                ioctl(&socket, number, (&raw mut request).cast())?;
            }
            Ok(())
        }
        IpAddr::V6(v6) => {
            let mut request = libc::in6_ifreq {
                ifr6_addr: libc::in6_addr { s6_addr: v6.octets() },
                ifr6_prefixlen: prefix.into(),
                ifr6_ifindex: interface_index(name)?,
            };
            ioctl(&any_socket(libc::AF_INET6)?, libc::SIOCSIFADDR, (&raw mut request).cast())
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the number is 2")]
const FAMILY_V4: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;

/// Sets the interface `name` of the calling thread's network namespace up, such as `lo`.
///
/// # Errors
///
/// Fails if there is no such interface, and without `CAP_NET_ADMIN`.
pub fn set_interface_up(name: &str) -> io::Result<()> {
    let (mut request, socket) = (request(name)?, any_socket(libc::AF_INET)?);
    ioctl(&socket, libc::SIOCGIFFLAGS, (&raw mut request).cast())?;
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bit")]
    let up = libc::IFF_UP as c_short;
    // SAFETY: the kernel has filled this field.
    request.ifr_ifru.ifru_flags = unsafe { request.ifr_ifru.ifru_flags } | up;
    ioctl(&socket, libc::SIOCSIFFLAGS, (&raw mut request).cast())
}

/// Opens a socket of an address family, to which requests about interfaces go.
fn any_socket(family: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a request about the interface `name`.
pub(super) fn request(name: &str) -> io::Result<ifreq> {
    // SAFETY: an `ifreq` consists of numbers and pointers, for which zero is a value.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        let most = request.ifr_name.len() - 1;
        let why = format!("the name of an interface has at most {most} bytes, and no zero");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    Ok(request)
}

#[cfg(feature = "tap")]
pub(super) fn name_of(request: &ifreq) -> String {
    let name = request.ifr_name.iter().map(|byte| byte.to_ne_bytes()[0]);
    String::from_utf8_lossy(&name.take_while(|byte| *byte != 0).collect::<Vec<_>>()).into_owned()
}

pub(super) fn ioctl(fd: &impl AsFd, number: libc::Ioctl, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: each caller passes a pointer to a live value of the type that its request takes.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(all(test, feature = "xdp"))]
mod tests {
    use super::*;

    #[test]
    fn queues_that_receive_are_counted() {
        let queues = |receiving, combined| {
            Channels { receiving, combined, ..Channels::default() }.receive_queues()
        };
        assert_eq!((queues(0, 8), queues(3, 0), queues(1, 4), queues(0, 0)), (8, 3, 5, 1));
    }
}
