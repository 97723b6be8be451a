//! TUN and TAP devices of the kernel.
//!
//! Source: Linux `Documentation/networking/tuntap.rst`, `include/uapi/linux/if_tun.h`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_short, c_uint, c_ulong, iovec};
use onramp_core::frame::VnetHeader;

use super::interface::{ioctl, name_of, request};

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
