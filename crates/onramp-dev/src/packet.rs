//! A packet socket (`AF_PACKET`) on a network interface of the kernel: frames that are sent leave
//! through the interface, and frames that come in through it are received.
//!
//! With [`offload`](PacketOptions::offload), frames are super-frames of up to 64 KiB: one message
//! carries dozens of segments, and checksums are left to the interface and the far side. Without
//! it, the device cuts super-frames and completes checksums in both directions.
//!
//! | error from the kernel | reaction of the device |
//! |---|---|
//! | EAGAIN, EINTR | keeps the packets; asks again after 50 µs, up to 1 ms |
//! | ENOBUFS, ENOMEM, while the kernel holds frames of this socket | as for EAGAIN |
//! | ENOBUFS, ENOMEM otherwise | as for EAGAIN, up to 100 times; drops it then: `NoBuffers` |
//! | ENOBUFS with `bypass` and without carrier | drops the packet: `Unreachable` |
//! | ENETDOWN, ENXIO, ENODEV (the interface is down or gone) | drops the packet: `Unreachable` |
//! | EMSGSIZE, EINVAL (not a frame for this interface) | drops the packet: `MessageSize` |
//! | EINVAL for a super-frame; ENOBUFS for one with `bypass` | cuts the super-frame itself |
//! | any other error | drops the packet: `DeviceError` |
//!
//! ENOBUFS says that the kernel has dropped the frame. It may take the same frame later, for
//! example when frames of other programs have left a full qdisc; or it drops the frame each time,
//! because a filter of `tc` or `nft` says so, or because the frame is larger than the burst of a
//! `tbf` or than the MTU of the far end of a veth pair. So that such a frame does not stop the
//! others, the device offers it again for about 100 ms, and half as long each time that this was in
//! vain, but once at least. Packets of the same burst that the kernel refuses in the call in which
//! the device drops the first are dropped with it. When the kernel takes a frame that has waited,
//! the next one may wait for 100 ms again.
//!
//! The tag of an 802.1Q VLAN may come on top of the MTU, but the tag of an 802.1ad VLAN counts as
//! part of the packet. An interface that cannot segment, and a kernel that does not know this kind
//! of segmentation, refuse a super-frame with the errors of the seventh line. If the kernel takes
//! only some segments of a super-frame that the device cuts itself, the others wait, or are dropped
//! with the packet, as the table says. If the packet is cancelled in between, the segments that
//! have left are not called back.
//!
//! While the interface has no carrier, for example because the far end of a veth pair is down, the
//! kernel drops the frames in front of the interface without an error, unless `bypass` is set; the
//! interface counts them.
//!
//! Source: `packet(7)`; virtio 1.3, section 5.1.6.2; behaviour of Linux 6.18
//! `net/packet/af_packet.c`.

mod patience;
mod receiver;
mod send;

use std::io;
use std::sync::Arc;

use onramp_core::DeviceInfo;
#[cfg(doc)]
use onramp_core::{Device, frame};
use onramp_queue::Counter;

use self::patience::Patience;
pub use self::receiver::PacketReceiver;
use crate::backoff::Backoff;
use crate::claim::{Claim, Use};
use crate::kept::Kept;
use crate::sys::{self, Outbox, PacketFd, Setting};

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;

/// Options of a [`PacketSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketOptions {
    /// Whether super-frames and frames without checksum pass in both directions, as the kernel
    /// passes them (`PACKET_VNET_HDR`).
    pub offload: bool,
    /// Whether frames pass by the interface's own qdisc (`PACKET_QDISC_BYPASS`).
    ///
    /// By default they do not: a network card that has its queue full then keeps frames in its
    /// qdisc, and the kernel cuts super-frames for a card that cannot. With `bypass`, the device
    /// learns of a full queue at once, so the packets wait in Onramp's qdisc and not in the
    /// kernel's; and it cuts super-frames itself that the interface refuses.
    pub bypass: bool,
    /// Whether frames to all addresses are received, and not only those to the interface's own
    /// address and to groups (`PACKET_MR_PROMISC`). A bridge needs this on a network card; a veth
    /// passes on all frames in any case. The kernel undoes it when the receiver is dropped.
    pub promiscuous: bool,
    /// Number of the group of sockets among which the kernel spreads the interface's frames by flow
    /// (`PACKET_FANOUT`), unique in the network namespace; `None` for a single socket that gets all
    /// frames. See [`PacketSocket::another_queue`].
    pub fanout: Option<u16>,
    /// How many bytes of frames the kernel keeps that wait to be received, its own bookkeeping
    /// included. It drops further frames ([`Receive::missed`](crate::Receive::missed)). By default
    /// 8 MiB: 100 super-frames. Without `CAP_NET_ADMIN`, the kernel keeps at most twice
    /// `net.core.rmem_max`.
    pub buffer: u32,
    /// Seed of the hash that tells flows apart, see [`frame::describe`]. By default 0: give a
    /// random number if strangers choose the addresses.
    pub seed: u64,
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self {
            offload: true,
            bypass: false,
            promiscuous: false,
            fanout: None,
            buffer: 8 << 20,
            seed: 0,
        }
    }
}

/// A packet socket on an Ethernet interface: a [`Device`] for the frames that leave through it. Its
/// [receiver](Self::receiver) has the frames that come in.
///
/// The interface's own traffic goes on beside it: the kernel also gets every frame that is
/// received, and sends frames of its own. To take an interface over as one side of a bridge, give
/// it no addresses.
///
/// Use it for interfaces that exist already, such as network cards and veth pairs, or where
/// `/dev/net/tun` is closed; a [`Tap`](crate::Tap) makes an interface of its own, and is faster.
#[derive(Debug)]
pub struct PacketSocket {
    info: DeviceInfo,
    name: String,
    index: i32,
    options: PacketOptions,
    fd: PacketFd,
    /// The socket for the receiver, until it is asked for. The kernel reports errors of the
    /// interface once for each socket; with one for both directions, the sender could take an error
    /// that the receiver needs.
    other: Option<PacketFd>,
    outbox: Outbox,
    backoff: Backoff,
    patience: Patience,
    /// Buffer for a segment of a super-frame.
    segment: Vec<u8>,
    /// The super-frame in the burst of which some segments have left, and their number.
    begun: Kept,
    left: usize,
    stats: Arc<PacketStats>,
}

/// Counters of a [`PacketSocket`] and its receiver.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PacketStats {
    /// Number of frames that the kernel took.
    pub frames: Counter,
    /// Bytes of the frames that the kernel took.
    pub bytes: Counter,
    /// Number of times that the kernel had no room for a frame.
    pub full: Counter,
    /// Number of super-frames that the device had to segment before it sent them.
    pub segmented: Counter,
    /// Number of packets that were received: frames, or segments of a super-frame that the receiver
    /// has cut.
    pub received: Counter,
    /// Bytes of the packets that were received.
    pub received_bytes: Counter,
    /// Number of super-frames that the receiver has cut, because `offload` is not set.
    pub cut: Counter,
    /// Number of received frames that were discarded because their virtio header contradicts them,
    /// or because the kernel cannot describe them with one.
    pub malformed: Counter,
    /// Number of received frames, and of segments of received super-frames, that were discarded
    /// because there was no packet for them, or because they are longer than a packet can be.
    pub no_room: Counter,
    /// Number of frames that the kernel dropped because they were not received in time, as of the
    /// last call of [`Receive::missed`](crate::Receive::missed).
    pub missed: Counter,
}

impl PacketSocket {
    /// Opens a packet socket on the Ethernet interface `name` of the calling thread's network
    /// namespace, for frames to send. The interface may be down. Nothing is received before
    /// [`receiver`](Self::receiver) is called.
    ///
    /// # Errors
    ///
    /// The text of the error says what is wrong: there is no such interface (`NotFound`), it is not
    /// an Ethernet (`InvalidInput`), or the program may not open packet sockets
    /// (`PermissionDenied`): that needs `CAP_NET_RAW` in the network namespace. Root has it, and so
    /// has an ordinary user in a namespace of its own (`unshare -Urn`).
    pub fn open(name: &str, options: PacketOptions) -> io::Result<Self> {
        let failed = |error: &io::Error, what: &str| {
            let why = format!("packet socket on {name}: {what}");
            io::Error::new(error.kind(), why)
        };
        let open = || {
            PacketFd::open().map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => failed(
                    &error,
                    "needs CAP_NET_RAW: run as root, or give the program the right with \
                         `setcap cap_net_raw+ep`",
                ),
                _ => failed(&error, &format!("the kernel refuses: {error}")),
            })
        };
        let (fd, other) = (open()?, open()?);
        let index = sys::interface_index(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => {
                let why = "there is no such interface in this network namespace; `ip link` lists \
                           all";
                failed(&io::ErrorKind::NotFound.into(), why)
            }
            _ => failed(&error, &error.to_string()),
        })?;
        let told = |error: io::Error| failed(&error, &error.to_string());
        if !fd.is_ethernet(name).map_err(told)? {
            let why = "the interface is not an Ethernet, and its frames have other headers";
            return Err(failed(&io::ErrorKind::InvalidInput.into(), why));
        }
        if options.offload {
            fd.set(Setting::VnetHeader).map_err(told)?;
        }
        if options.bypass {
            fd.set(Setting::Bypass).map_err(told)?;
        }
        fd.bind(index, false).map_err(told)?;
        let mtu = sys::interface_mtu(name).map_err(told)?;
        let info = DeviceInfo::new(format!("packet {name}"), mtu.saturating_add(ETHERNET));
        Ok(Self {
            info: info.never_blocks(),
            name: name.to_owned(),
            index,
            options,
            fd,
            other: Some(other),
            outbox: Outbox::new(),
            backoff: Backoff::new(),
            patience: Patience::new(),
            segment: Vec::new(),
            begun: Kept::default(),
            left: 0,
            stats: Arc::default(),
        })
    }

    /// Opens an interface as one side of a bridge, with the usual options: promiscuous, with
    /// offload. Returns the receiver, and the device. `seed` is that of the hash that tells flows
    /// apart. While the receiver exists, no other bridge of Onramp gets the interface, because each
    /// would carry all frames.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open) and [`receiver`](Self::receiver), and `ResourceBusy` if the
    /// interface is a side of a bridge already, or has a [`Detour`](crate::Detour) of what comes
    /// in.
    pub fn open_side(name: &str, seed: u64) -> io::Result<(PacketReceiver, Self)> {
        let options = PacketOptions { promiscuous: true, seed, ..PacketOptions::default() };
        let mut socket = Self::open(name, options)?;
        let claim = Claim::take(name, socket.index.cast_unsigned(), Use::Bridge)?;
        Ok((socket.receiver()?.holding(claim), socket))
    }

    /// Opens another socket on the same interface with the same options, which need a
    /// [`fanout`](PacketOptions::fanout) group: its receiver gets a part of the flows. Call this on
    /// a thread in the network namespace of the interface. While the receiver joins the
    /// group, which takes some milliseconds, frames of its flows are lost, and are not counted.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and `InvalidInput` if there is no `fanout` group.
    pub fn another_queue(&self) -> io::Result<Self> {
        if self.options.fanout.is_none() {
            let name = &self.name;
            let why = format!("packet socket on {name}: several queues need the option `fanout`");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Self::open(&self.name, self.options)
    }

    /// Returns the number by which programs in the kernel know the frames that this socket sends.
    #[cfg(feature = "detour")]
    pub(crate) fn cookie(&self) -> io::Result<u64> {
        self.fd.cookie()
    }

    /// Returns the name that the interface had when the socket was opened.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the receiver of the frames that come in through the interface from now on. Frames
    /// that this host sends through it are left out, so that a bridge does not carry its own frames
    /// round and round. If the options have a `fanout` group, the receiver joins it.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the receiver has been asked for before. Otherwise the error of the
    /// kernel: if the interface is gone; if there is a `fanout` group that another program uses for
    /// another kind of sockets, or for which the program has no `CAP_NET_RAW` any more; in Linux
    /// before 6.15, also if there is a group and the interface is down.
    pub fn receiver(&mut self) -> io::Result<PacketReceiver> {
        let Some(fd) = self.other.take() else {
            let name = &self.name;
            let why = format!("packet socket on {name}: its receiver has been taken before");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        };
        if let Err(error) = self.begin(&fd) {
            // The interface is to be as it was. An error would mean that nothing had been set. (A
            // socket that could not join its group stays deaf: the kernel does not take it from
            // the interface before it is closed.)
            if self.options.promiscuous {
                let _ = fd.unset_promiscuous(self.index);
            }
            self.other = Some(fd);
            return Err(error);
        }
        let stats = Arc::clone(&self.stats);
        Ok(PacketReceiver::new(fd, self.name.clone(), self.options, self.info.mtu, stats))
    }

    /// Lets a socket receive. Everything is set before the socket is bound: so no frame comes from
    /// another interface, none of this host, and none without its header.
    fn begin(&self, fd: &PacketFd) -> io::Result<()> {
        fd.set(Setting::VnetHeader)?;
        fd.set(Setting::Auxiliary)?;
        fd.set(Setting::IgnoreOutgoing)?;
        fd.set_buffer(self.options.buffer)?;
        if self.options.promiscuous {
            fd.set_promiscuous(self.index)?;
        }
        let Some(group) = self.options.fanout else { return fd.bind(self.index, true) };
        // Opened first: if that fails, no deaf socket is left in the group.
        let closes = PacketFd::open()?;
        // A socket joins when it is bound already. Until then it would get all frames, of which the
        // other sockets of the group get the same.
        fd.set_deaf(true)?;
        fd.bind(self.index, true)?;
        fd.join(group)?;
        // A frame that another CPU had begun to deliver before the socket joined may still be on
        // its way to this socket alone. The kernel waits for all such deliveries when it closes a
        // packet socket (`packet_release` in Linux).
        drop(closes);
        fd.set_deaf(false)
    }

    /// Returns the counters of this socket, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<PacketStats> {
        Arc::clone(&self.stats)
    }
}
