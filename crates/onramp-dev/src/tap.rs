//! A TUN or TAP device of the kernel: packets that are sent to it come in to the kernel as if from
//! a network card, and packets that the kernel sends out through it are received.
//!
//! With [`offload`](TapOptions::offload), frames are super-frames of up to 64 KiB: one system call
//! carries dozens of segments, and checksums are left to the far side. Without it, the device sends
//! segments and completes checksums itself.
//!
//! | error from the kernel | reaction of the device |
//! |---|---|
//! | EAGAIN, EINTR, ENOBUFS, ENOMEM | keeps the packets; asks again after 50 µs, up to 1 ms |
//! | EIO (the interface is down) | drops the packet: `Unreachable` |
//! | EINVAL, EMSGSIZE (not a frame for this device) | drops the packet: `MessageSize` |
//! | any other error | drops the packet: `DeviceError` |
//!
//! If the kernel takes only some segments of a super-frame that the device cuts itself, the rest of
//! them is dropped for the error's reason, EAGAIN as `NoBuffers`.
//!
//! Source: Linux `Documentation/networking/tuntap.rst`; virtio 1.3, section 5.1.6.2.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use onramp_core::frame::{self, SuperFrame, VnetHeader};
use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Counter, DropReason, Layer, PAYLOAD_MAX, Packet, PacketList};

use crate::backoff::Backoff;
use crate::receive::Receive;
use crate::sys::{self, TunFlags};

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;
/// Error of a receiver whose interface was deleted.
const GONE: &str = "the interface was deleted";
/// Room for a VLAN tag or two, in bytes, in the buffer for a frame of the MTU.
const TAGS: usize = 8;

/// Options of a [`Tap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Whether frames begin with an Ethernet header ([`Layer::Ethernet`], a TAP) or with an IP
    /// header ([`Layer::Ip`], a TUN).
    pub layer: Layer,
    /// Whether the kernel may pass super-frames and frames without checksum to the device, and the
    /// device to the kernel.
    pub offload: bool,
    /// Whether the device may have several queues ([`Tap::another_queue`]).
    pub multi_queue: bool,
    /// Seed of the hash that tells flows apart, see [`frame::describe`]. By default 0: give a
    /// random number if strangers choose the addresses.
    pub seed: u64,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self { layer: Layer::Ethernet, offload: true, multi_queue: false, seed: 0 }
    }
}

/// A queue of a TUN or TAP device: a [`Device`] for the packets that go in to the kernel. Its
/// [receiver](Self::receiver) has the packets that come out.
///
/// The interface disappears with the last of its queues and receivers, unless it was made
/// persistent by other means.
#[derive(Debug)]
pub struct Tap {
    info: DeviceInfo,
    name: String,
    fd: Arc<OwnedFd>,
    options: TapOptions,
    backoff: Backoff,
    /// Buffer for a segment of a super-frame.
    segment: Vec<u8>,
    stats: Arc<TapStats>,
}

/// Counters of a queue of a [`Tap`] and its receiver.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct TapStats {
    /// Number of frames that the kernel took.
    pub frames: Counter,
    /// Bytes of the frames that the kernel took.
    pub bytes: Counter,
    /// Number of times that the kernel had no room for a frame.
    pub full: Counter,
    /// Number of super-frames that the device had to segment itself.
    pub segmented: Counter,
    /// Number of frames that were received.
    pub received: Counter,
    /// Bytes of the frames that were received.
    pub received_bytes: Counter,
    /// Number of received frames that were discarded because their virtio header contradicts them.
    pub malformed: Counter,
    /// Number of received super-frames that were discarded because there was no packet for them.
    pub no_room: Counter,
}

impl Tap {
    /// Opens the TUN or TAP device called `name`, and makes it if it does not exist; an empty name,
    /// or one with `%d`, lets the kernel choose. Needs `CAP_NET_ADMIN` in the network namespace:
    /// root has it, and so has an ordinary user in a namespace of its own (`unshare -Urn`).
    ///
    /// # Errors
    ///
    /// Fails if `/dev/net/tun` cannot be opened, or if the kernel refuses the name or the options:
    /// `ResourceBusy` if another program holds the device.
    ///
    /// # Panics
    ///
    /// Panics if the options name the layer `Datagram`, which no TUN has.
    pub fn open(name: &str, options: TapOptions) -> io::Result<Self> {
        assert_ne!(options.layer, Layer::Datagram, "a TUN carries packets, not datagrams");
        let flags = TunFlags {
            ethernet: options.layer == Layer::Ethernet,
            vnet_header: options.offload,
            multi_queue: options.multi_queue,
        };
        let (fd, name) = sys::open_tun(name, flags)?;
        sys::set_tun_offload(&fd, options.offload)?;
        let mtu = sys::interface_mtu(&name)?;
        let link = if flags.ethernet { ETHERNET } else { 0 };
        let kind = if flags.ethernet { "tap" } else { "tun" };
        let info = DeviceInfo::new(format!("{kind} {name}"), mtu.saturating_add(link));
        Ok(Self {
            info: info.never_blocks(),
            name,
            fd: Arc::new(fd),
            options,
            backoff: Backoff::new(),
            segment: Vec::new(),
            stats: Arc::default(),
        })
    }

    /// Opens another queue of the same device, which needs
    /// [`multi_queue`](TapOptions::multi_queue). The kernel spreads the packets over the queues by
    /// flow.
    ///
    /// # Errors
    ///
    /// Fails if the device has been opened for one queue, or has too many queues.
    pub fn another_queue(&self) -> io::Result<Self> {
        Self::open(&self.name, self.options)
    }

    /// Returns the name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the interface up.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses, for example because the interface is gone.
    pub fn set_up(&self) -> io::Result<()> {
        sys::set_interface_up(&self.name)
    }

    /// Sets the interface's MTU: the largest packet in bytes, Ethernet header not included.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses, because the MTU is too small or too large.
    pub fn with_mtu(mut self, mtu: u32) -> io::Result<Self> {
        sys::set_interface_mtu(&self.name, mtu)?;
        self.info.mtu = mtu + if self.options.layer == Layer::Ethernet { ETHERNET } else { 0 };
        Ok(self)
    }

    /// Gives the interface an address, and a route to the network of `prefix` bits. In IPv4, it
    /// replaces the address that the interface had.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses, for example because it has no IPv6.
    pub fn add_address(&self, address: IpAddr, prefix: u8) -> io::Result<()> {
        sys::add_interface_address(&self.name, address, prefix)
    }

    /// Returns a receiver of the packets that the kernel sends out through this queue. If there are
    /// several receivers of a queue, each packet comes to one of them.
    #[must_use]
    pub fn receiver(&self) -> TapReceiver {
        let mtu = self.info.mtu as usize + TAGS;
        TapReceiver {
            fd: Arc::clone(&self.fd),
            options: self.options,
            usual: mtu.min(PAYLOAD_MAX),
            rest: vec![0; PAYLOAD_MAX],
            stats: Arc::clone(&self.stats),
        }
    }

    /// Returns the counters of this queue, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<TapStats> {
        Arc::clone(&self.stats)
    }

    /// Writes a packet as one frame, or as its segments.
    fn write(&mut self, packet: &mut Packet, out: &mut Transmitted) -> io::Result<()> {
        if packet.ecn == 3 {
            frame::write_ce(packet);
        }
        if self.options.offload {
            let header = VnetHeader::of(packet).to_bytes();
            return self.write_frame(&header, packet.payload(), out);
        }
        let Some(whole) = SuperFrame::of(packet) else {
            frame::complete_checksum(packet);
            return self.write_frame(&[], packet.payload(), out);
        };
        self.stats.segmented.add(1);
        let mut bytes = std::mem::take(&mut self.segment);
        let mut result = Ok(());
        for index in 0..whole.count() {
            whole.write_segment(packet.payload(), index, &mut bytes);
            frame::write_checksum(whole.partial_checksum(), &mut bytes);
            result = self.write_frame(&[], &bytes, out);
            if result.is_err() {
                // The receiver of the stream notices that segments are missing, as after a loss.
                break;
            }
        }
        self.segment = bytes;
        result
    }

    fn write_frame(&self, header: &[u8], payload: &[u8], out: &mut Transmitted) -> io::Result<()> {
        out.calls += 1;
        sys::write_frame(&self.fd, header, payload)?;
        out.messages += 1;
        self.stats.frames.add(1);
        self.stats.bytes.add(payload.len() as u64);
        Ok(())
    }
}

impl Device for Tap {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut out = Transmitted::default();
        while let Some(mut packet) = burst.pop_front() {
            let before = out.messages;
            match self.write(&mut packet, &mut out) {
                Ok(()) => self.backoff.reset(),
                Err(error) if out.messages == before && is_full(&error) => {
                    self.stats.full.add(1);
                    burst.push_front(packet);
                    out.retry_at = Some(self.backoff.wait(now));
                    return out;
                }
                Err(error) => packet.drop_reason = Some(reason(&error)),
            }
            done.push_back(packet);
        }
        out
    }
}

/// Whether the kernel has no room for a frame at present.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM))
}

fn reason(error: &io::Error) -> DropReason {
    match error.raw_os_error() {
        Some(libc::EIO) => DropReason::Unreachable,
        Some(libc::EINVAL | libc::EMSGSIZE) => DropReason::MessageSize,
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => DropReason::NoBuffers,
        _ => DropReason::DeviceError,
    }
}

/// Receives the packets that the kernel sends out through a [`Tap`].
///
/// The descriptor ([`AsFd`]) is readable, for `poll` and its kin, while packets wait.
#[derive(Debug)]
pub struct TapReceiver {
    fd: Arc<OwnedFd>,
    options: TapOptions,
    /// Bytes of a frame that is not a super-frame.
    usual: usize,
    /// Buffer for the bytes of a frame that do not fit a usual packet: those of a super-frame, or
    /// of any large frame after the MTU has grown.
    rest: Vec<u8>,
    stats: Arc<TapStats>,
}

impl TapReceiver {
    /// Returns the counters of the receiver's queue, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<TapStats> {
        Arc::clone(&self.stats)
    }

    /// Reads a frame into `packet`, or into a larger one if the frame needs it. Returns `None` if
    /// the frame was discarded, and counts why.
    fn read(
        &mut self,
        mut packet: Packet,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
    ) -> io::Result<Option<Packet>> {
        let mut header = [0; VnetHeader::LEN];
        let front = if self.options.offload { &mut header[..] } else { &mut [] };
        let mut behind = 0;
        packet.fill(|buffer| {
            let (read, more) = sys::read_frame(&self.fd, front, buffer, &mut self.rest)?;
            behind = more;
            io::Result::Ok(read)
        })?;
        if behind > 0 {
            let whole = packet.payload().len() + behind;
            let larger = make(whole).filter(|larger| larger.capacity() >= whole);
            let Some(mut larger) = larger else {
                self.stats.no_room.add(1);
                return Ok(None);
            };
            larger.set_payload(packet.payload());
            larger.append_payload(&self.rest[..behind]);
            packet = larger;
        }
        packet.set_layer(self.options.layer);
        if self.options.offload && VnetHeader::from_bytes(header).apply(&mut packet).is_err() {
            self.stats.malformed.add(1);
            return Ok(None);
        }
        Ok(Some(packet))
    }
}

impl Receive for TapReceiver {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        let mut count = 0;
        // A frame that is discarded counts as well, so that the call ends.
        for _ in 0..most {
            let Some(packet) = make(self.usual) else { break };
            match self.read(packet, make) {
                Ok(Some(mut packet)) => {
                    frame::describe(&mut packet, self.options.seed);
                    self.stats.received.add(1);
                    self.stats.received_bytes.add(packet.payload().len() as u64);
                    into.push_back(packet);
                    count += 1;
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if count == 0 => {
                    // The kernel's words for a TUN without an interface are hard to understand.
                    let is_gone = error.raw_os_error() == Some(libc::EBADFD);
                    let gone = || io::Error::new(io::ErrorKind::NotFound, GONE);
                    return Err(if is_gone { gone() } else { error });
                }
                // The next call returns the error.
                Err(_) => break,
            }
        }
        Ok(count)
    }

    fn discarded(&self) -> u64 {
        self.stats.malformed.get() + self.stats.no_room.get()
    }
}

impl AsFd for TapReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
