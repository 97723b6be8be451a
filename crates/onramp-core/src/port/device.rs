//! The interface between a port and the device that transmits the port's packets.

use onramp_queue::PacketList;

use crate::base::Instant;

/// The properties of a device that a port and its qdiscs must know. They never change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name shown to users, such as `udp 127.0.0.1:4433`.
    pub name: String,
    /// Size of the largest packet in bytes, including the link header (`psched_mtu`). Qdiscs derive
    /// their default quantum from this size.
    pub mtu: u32,
    /// Whether [`Device::transmit`] may block for more than about 2 ms, although it should not. If
    /// so, a link with several ports starts an extra thread, which replaces a runner that is
    /// blocked inside the device.
    pub may_block: bool,
}

impl DeviceInfo {
    /// Describes a device by its name and the size of its largest packet in bytes. `may_block` is
    /// true, since nothing else is known.
    #[must_use]
    pub const fn new(name: String, mtu: u32) -> Self {
        Self { name, mtu, may_block: true }
    }

    /// Marks the device as one whose calls take less than about 2 ms, such as a non-blocking socket
    /// or memory. The link then needs no extra thread that watches for blocked runners. If such a
    /// device calls the wakers of tasks that receive packets, these wakers must not block either.
    #[must_use]
    pub const fn never_blocks(mut self) -> Self {
        self.may_block = false;
        self
    }
}

/// The result of offering a burst (packets handed over together) to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Number of calls into the kernel that the device made for the burst. A device that writes to
    /// a ring buffer counts its notifications of the reader instead.
    pub calls: u32,
    /// Number of messages that the device sent. A segmented packet of many datagrams counts as one
    /// message.
    pub messages: u32,
    /// Time at which to offer the packets left in the burst again, or `None` if the device took the
    /// whole burst.
    pub retry_at: Option<Instant>,
}

/// One transmit queue of a device. Because methods take `&mut self`, no transmit lock as in Linux
/// is needed.
///
/// A device that writes the payload of each packet to a file, one packet after another:
///
/// ```
/// use std::fs::File;
/// use std::io::Write;
///
/// use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
/// use onramp_queue::{DropReason, PacketList};
///
/// struct ToFile {
///     info: DeviceInfo,
///     file: File,
/// }
///
/// impl Device for ToFile {
///     fn info(&self) -> &DeviceInfo {
///         &self.info
///     }
///
///     fn transmit(
///         &mut self,
///         burst: &mut PacketList,
///         done: &mut PacketList,
///         _now: Instant,
///     ) -> Transmitted {
///         let mut sent = Transmitted::default();
///         while let Some(mut packet) = burst.pop_front() {
///             sent.calls += 1;
///             match self.file.write_all(packet.payload()) {
///                 Ok(()) => sent.messages += 1,
///                 Err(_) => packet.drop_reason = Some(DropReason::DeviceError),
///             }
///             done.push_back(packet);
///         }
///         sent // The device took the whole burst, so `retry_at` stays `None`.
///     }
/// }
///
/// let info = DeviceInfo::new("null".to_owned(), 1_514);
/// let mut device = ToFile { info, file: File::create("/dev/null")? };
/// let mut burst = PacketList::from_iter([onramp_queue::Packet::with_payload(b"hello")]);
/// let mut done = PacketList::new();
/// let sent = device.transmit(&mut burst, &mut done, Instant(0));
/// assert_eq!((sent.messages, burst.len(), done.len()), (1, 0, 1));
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Device: Send {
    /// Returns the properties of the device that never change.
    fn info(&self) -> &DeviceInfo;

    /// Sends packets from the front of `burst`. Should not block.
    ///
    /// Moves every packet that was sent or that failed to `done`, in order, with
    /// [`drop_reason`](onramp_queue::Meta::drop_reason) set on packets that failed. If the device
    /// is full, the rest stays in `burst`; the port offers the rest again, and no packet overtakes
    /// it.
    ///
    /// A device may also hand a packet over to other code, which will drop the packet's memory
    /// later. Afterwards, such a packet is in neither `burst` nor `done`, and counts as sent. Call
    /// [`mark_sent`](onramp_queue::Meta::mark_sent) for the packet before handing it over: when the
    /// packet goes home, the sender is told the drop reason and the time that the packet carries.
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted;
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn info(&self) -> &DeviceInfo {
        (**self).info()
    }
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        (**self).transmit(burst, done, now)
    }
}
