//! Packet sockets: frames of a network interface.
//!
//! Source: `packet(7)`; Linux `include/uapi/linux/if_packet.h`, behaviour of
//! `net/packet/af_packet.c`.

mod boxes;

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_short, c_uint, c_void, socklen_t};

use super::interface::{ioctl, request};

pub(crate) use self::boxes::{Inbox, MESSAGES_MAX, Outbox, Received};

/// All protocols, in the order of bytes of the network.
#[expect(clippy::cast_possible_truncation, reason = "the number is 3")]
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

/// A packet socket, which does not block.
#[derive(Debug)]
pub(crate) struct PacketFd(OwnedFd);

/// A setting of a packet socket that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// A virtio header stands in front of each frame, in both directions.
    VnetHeader,
    /// A received frame comes with the VLAN tag that the kernel has taken out of it.
    Auxiliary,
    /// Frames that this host sends are not received.
    IgnoreOutgoing,
    /// Frames pass by the interface's own qdisc.
    Bypass,
}

impl Setting {
    const fn number(self) -> c_int {
        match self {
            Self::VnetHeader => libc::PACKET_VNET_HDR,
            Self::Auxiliary => libc::PACKET_AUXDATA,
            Self::IgnoreOutgoing => libc::PACKET_IGNORE_OUTGOING,
            Self::Bypass => libc::PACKET_QDISC_BYPASS,
        }
    }

    /// Returns the name of the setting, and the first version of Linux that has it.
    const fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::VnetHeader => ("PACKET_VNET_HDR", "2.6.27"),
            Self::Auxiliary => ("PACKET_AUXDATA", "2.6.21"),
            Self::IgnoreOutgoing => ("PACKET_IGNORE_OUTGOING", "4.20"),
            Self::Bypass => ("PACKET_QDISC_BYPASS", "3.14"),
        }
    }
}

impl PacketFd {
    /// Opens a packet socket in the calling thread's network namespace. It belongs to no interface,
    /// and receives nothing.
    pub(crate) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the descriptor.
    pub(crate) const fn owned(&self) -> &OwnedFd {
        &self.0
    }

    /// Whether frames of the interface `name` have an Ethernet header, and the host at its other
    /// end is not this host itself, as on the loopback.
    pub(crate) fn is_ethernet(&self, name: &str) -> io::Result<bool> {
        let mut request = request(name)?;
        ioctl(&self.0, libc::SIOCGIFHWADDR, (&raw mut request).cast())?;
        // SAFETY: the kernel has filled this field.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok(address.sa_family == libc::ARPHRD_ETHER)
    }

    /// Whether the interface with this number has a carrier. An interface that is gone has none.
    pub(crate) fn has_carrier(&self, index: c_int) -> bool {
        let ask = || {
            let mut request = request("")?;
            request.ifr_ifru.ifru_ifindex = index;
            ioctl(&self.0, libc::SIOCGIFNAME, (&raw mut request).cast())?;
            ioctl(&self.0, libc::SIOCGIFFLAGS, (&raw mut request).cast())?;
            // SAFETY: the kernel has filled this field.
            io::Result::Ok(unsafe { request.ifr_ifru.ifru_flags })
        };
        #[expect(clippy::cast_possible_truncation, reason = "the number is 64")]
        let running = libc::IFF_RUNNING as c_short;
        ask().is_ok_and(|flags| flags & running != 0)
    }

    /// Whether the kernel holds frames that this socket has sent, in the qdisc of the interface or
    /// in its driver. Frames that a `netem` holds, or that have crossed to another interface of
    /// this host, do not count.
    pub(crate) fn has_unsent(&self) -> bool {
        let mut bytes: c_int = 0;
        // `SIOCOUTQ`, which has the number of `TIOCOUTQ`.
        ioctl(&self.0, libc::TIOCOUTQ, (&raw mut bytes).cast()).is_ok() && bytes > 0
    }

    /// Sets a setting on.
    pub(crate) fn set(&self, setting: Setting) -> io::Result<()> {
        let (name, since) = setting.name();
        let on: c_int = 1;
        self.set_option(libc::SOL_PACKET, setting.number(), &on)
            .map_err(|error| told(&error, &format!("cannot set {name} (Linux {since} has it)")))
    }

    /// Returns the number that this socket alone has, as long as the machine runs.
    #[cfg(feature = "detour")]
    pub(crate) fn cookie(&self) -> io::Result<u64> {
        let mut cookie = 0_u64;
        let mut len = socklen_of(&cookie);
        // SAFETY: the kernel writes into a live number, and no more than this length.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut len,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
    }

    /// Lets the kernel keep so many bytes of frames that wait to be received, its own bookkeeping
    /// included. Without `CAP_NET_ADMIN`, the system's limit holds.
    pub(crate) fn set_buffer(&self, bytes: u32) -> io::Result<()> {
        // The kernel doubles the number that it is given.
        super::set_receive_buffer(&self.0, bytes as usize / 2)
    }

    /// Binds the socket to the interface with this number. From then on it receives the frames of
    /// all protocols if `receives` is set, and otherwise none.
    pub(crate) fn bind(&self, index: c_int, receives: bool) -> io::Result<()> {
        let mut address = no_address();
        address.sll_family = FAMILY;
        address.sll_protocol = if receives { ALL } else { 0 };
        address.sll_ifindex = index;
        // SAFETY: the kernel reads a live `sockaddr_ll` of this length.
        let result = unsafe {
            libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), socklen_of(&address))
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Lets the socket receive nothing, or everything again.
    pub(crate) fn set_deaf(&self, deaf: bool) -> io::Result<()> {
        if !deaf {
            let none: c_int = 0;
            return self.set_option(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &none);
        }
        // One instruction: take zero bytes of each frame, which is none.
        #[expect(clippy::cast_possible_truncation, reason = "the number is 6")]
        let code = (libc::BPF_RET | libc::BPF_K) as u16;
        let mut none = libc::sock_filter { code, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut none };
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Returns an error if the interface that the socket is bound to, called `name`, has been
    /// removed, or moved to another network namespace. Unlike a question about the interface's name
    /// or number, the answer cannot concern another interface that has got them since.
    pub(crate) fn check(&self, name: &str) -> io::Result<()> {
        let mut address = no_address();
        let mut len = socklen_of(&address);
        // SAFETY: the kernel writes into a live `sockaddr_ll`, and no more than this length.
        let result = unsafe {
            libc::getsockname(self.0.as_raw_fd(), (&raw mut address).cast(), &raw mut len)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        if address.sll_ifindex >= 0 {
            return Ok(());
        }
        let why =
            format!("the interface {name} was removed, or moved to another network namespace");
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }

    /// Lets the interface pass on frames to all addresses, until the socket is closed.
    pub(crate) fn set_promiscuous(&self, index: c_int) -> io::Result<()> {
        self.set_option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous(index))
            .map_err(|error| told(&error, "cannot set the interface promiscuous"))
    }

    /// Takes back what [`set_promiscuous`](Self::set_promiscuous) did.
    pub(crate) fn unset_promiscuous(&self, index: c_int) -> io::Result<()> {
        self.set_option(libc::SOL_PACKET, libc::PACKET_DROP_MEMBERSHIP, &promiscuous(index))
    }

    /// Joins a group of sockets, among which the kernel spreads the frames by flow. The group's
    /// first socket decides for all that frames of this host are not received.
    pub(crate) fn join(&self, group: u16) -> io::Result<()> {
        let kind = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let value: c_uint = u32::from(group) | kind << 16;
        self.set_option(libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
            .map_err(|error| told(&error, &format!("cannot join the fanout group {group}")))
    }

    /// Returns how many frames the kernel has dropped since the last call, because the socket's
    /// buffer was full.
    pub(crate) fn drops(&self) -> io::Result<u32> {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = socklen_of(&stats);
        // SAFETY: the kernel writes into a live value, and no more than this length.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(stats.tp_drops) }
    }

    fn set_option<T: Copy>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let place: *const c_void = (&raw const *value).cast();
        // SAFETY: the kernel reads a live `T` of this length.
        let result = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), level, option, place, socklen_of(value))
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for PacketFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the number is 17")]
const FAMILY: u16 = libc::AF_PACKET as u16;

const fn no_address() -> libc::sockaddr_ll {
    // SAFETY: a `sockaddr_ll` consists of numbers, for which zero is a value.
    unsafe { mem::zeroed() }
}

const fn socklen_of<T>(_: &T) -> socklen_t {
    #[expect(clippy::cast_possible_truncation, reason = "such values are a few bytes")]
    let len = size_of::<T>() as socklen_t;
    len
}

/// The membership of a socket that lets an interface pass on frames to all addresses.
fn promiscuous(index: c_int) -> libc::packet_mreq {
    #[expect(clippy::cast_possible_truncation, reason = "one")]
    let mr_type = libc::PACKET_MR_PROMISC as u16;
    libc::packet_mreq { mr_ifindex: index, mr_type, mr_alen: 0, mr_address: [0; 8] }
}

fn told(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
