//! TUN and TAP devices of the kernel, and the settings of a network interface.
//!
//! Source: Linux `Documentation/networking/tuntap.rst`, `include/uapi/linux/if_tun.h`;
//! `netdevice(7)`.

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libc::{c_char, c_int, c_short, c_uint, c_ulong, c_void, ifreq, iovec};
use onramp_core::frame::VnetHeader;

/// How to open a TUN or TAP device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunFlags {
    /// Whether frames begin with an Ethernet header (TAP), or with an IP header (TUN).
    pub(crate) ethernet: bool,
    /// Whether a `virtio_net_hdr` stands in front of each frame, with numbers in little-endian
    /// order, so that frames may be super-frames and lack their checksum.
    pub(crate) vnet_header: bool,
    /// Whether the device may have several queues, each with a descriptor of its own.
    pub(crate) multi_queue: bool,
}

/// Opens a queue of the TUN or TAP device called `name`, which is made if it does not exist. If the
/// name is empty or contains `%d`, the kernel chooses a name. Returns the descriptor, which does
/// not block, and the name.
pub(crate) fn open_tun(name: &str, flags: TunFlags) -> io::Result<(OwnedFd, String)> {
    let path = c"/dev/net/tun";
    // SAFETY: the path is a string that ends with zero.
    let fd =
        unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut wanted = libc::IFF_NO_PI | if flags.ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
    if flags.vnet_header {
        wanted |= libc::IFF_VNET_HDR;
    }
    if flags.multi_queue {
        wanted |= libc::IFF_MULTI_QUEUE;
    }
    let mut request = request(name)?;
    #[expect(clippy::cast_possible_truncation, reason = "the flags have 16 bits")]
    let wanted = wanted as c_short;
    request.ifr_ifru.ifru_flags = wanted;
    ioctl(&fd, libc::TUNSETIFF, (&raw mut request).cast())?;
    if flags.vnet_header {
        let mut little_endian: c_int = 1;
        ioctl(&fd, libc::TUNSETVNETLE, (&raw mut little_endian).cast())?;
        // A device that exists already may have another length.
        let mut length = VNET_HEADER;
        ioctl(&fd, libc::TUNSETVNETHDRSZ, (&raw mut length).cast())?;
    }
    Ok((fd, name_of(&request)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "ten")]
const VNET_HEADER: c_int = VnetHeader::LEN as c_int;

/// Tells the kernel whether frames that it passes to the device may lack their checksum and may be
/// super-frames: of TCP, and of UDP if the kernel can (Linux 6.2).
pub(crate) fn set_tun_offload(fd: &OwnedFd, offload: bool) -> io::Result<()> {
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let set = |flags: c_uint| {
        // SAFETY: this request takes a number, and the descriptor is open.
        let result =
            unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(flags)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    if !offload {
        return set(0);
    }
    set(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).or_else(|_| set(tcp))
}

/// Reads a frame: its first bytes into `header`, the next into `buffer`, and what does not fit
/// there into `rest`. Returns the number of bytes in `buffer` and in `rest`.
pub(crate) fn read_frame<'b>(
    fd: &OwnedFd,
    header: &mut [u8],
    buffer: &'b mut [MaybeUninit<u8>],
    rest: &mut [u8],
) -> io::Result<(&'b mut [u8], usize)> {
    let parts = [
        iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
        iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
        iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    // SAFETY: the kernel writes into the three slices, which are borrowed exclusively, and no
    // further than their lengths.
    let read = unsafe { libc::readv(fd.as_raw_fd(), parts.as_ptr(), 3) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    let Some(read) = read.checked_sub(header.len()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame shorter than its header"));
    };
    let (front, _) = buffer.split_at_mut(read.min(buffer.len()));
    let behind = read - front.len();
    // SAFETY: `readv` fills the parts in order, so it has written this many bytes of `buffer`.
    Ok((unsafe { front.assume_init_mut() }, behind))
}

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

/// Returns the MTU of the interface `name` in bytes, link header not included.
pub(crate) fn interface_mtu(name: &str) -> io::Result<u32> {
    let mut request = request(name)?;
    ioctl(&any_socket(libc::AF_INET)?, libc::SIOCGIFMTU, (&raw mut request).cast())?;
    // SAFETY: the kernel has filled this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Sets the MTU of the interface `name`, in bytes, link header not included.
pub(crate) fn set_interface_mtu(name: &str, mtu: u32) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = c_int::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
    ioctl(&any_socket(libc::AF_INET)?, libc::SIOCSIFMTU, (&raw mut request).cast())
}

/// Gives the interface `name` an address, and a route to the network of `prefix` bits.
pub(crate) fn add_interface_address(name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
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
            let mut index = request(name)?;
            ioctl(&any_socket(libc::AF_INET)?, libc::SIOCGIFINDEX, (&raw mut index).cast())?;
            let mut request = libc::in6_ifreq {
                ifr6_addr: libc::in6_addr { s6_addr: v6.octets() },
                ifr6_prefixlen: prefix.into(),
                // SAFETY: the kernel has filled this field.
                ifr6_ifindex: unsafe { index.ifr_ifru.ifru_ifindex },
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
fn request(name: &str) -> io::Result<ifreq> {
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

fn name_of(request: &ifreq) -> String {
    let name = request.ifr_name.iter().map(|byte| byte.to_ne_bytes()[0]);
    String::from_utf8_lossy(&name.take_while(|byte| *byte != 0).collect::<Vec<_>>()).into_owned()
}

fn ioctl(fd: &impl AsFd, number: libc::Ioctl, argument: *mut c_void) -> io::Result<()> {
    // SAFETY: each caller passes a pointer to a live value of the type that its request takes.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
