//! The interface between the scheduler and the outside world: a device that transmits packets.

use onramp_queue::PacketList;

use crate::base::Instant;

/// Fixed facts about a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name shown to users, such as `udp 127.0.0.1:4433`.
    pub name: String,
    /// Size of the largest packet in bytes, including the link header (`psched_mtu`). Qdiscs derive
    /// their default quantum from this size.
    pub mtu: u32,
    /// Whether [`Device::transmit`] may block for more than about 2 ms, although it should not. A
    /// link with several ports then starts an extra thread that replaces a runner blocked inside
    /// the device.
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
    /// or memory. The link then needs no extra thread that watches for blocked runners. Wakers of
    /// receivers that such a device calls must not block either.
    #[must_use]
    pub const fn never_blocks(mut self) -> Self {
        self.may_block = false;
        self
    }
}

/// The result of giving a burst to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Number of calls into the kernel, or of notifications of a ring.
    pub calls: u32,
    /// Number of messages. A segmented packet of many datagrams counts as one message.
    pub messages: u32,
    /// Time at which to offer the rest of the burst again. `None` if the device took the whole
    /// burst.
    pub retry_at: Option<Instant>,
}

/// One transmit queue of a device. `&mut self` takes the place of Linux's transmit lock.
pub trait Device: Send {
    /// Returns the fixed facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// Sends packets from the front of `burst`, without blocking.
    ///
    /// Moves every packet that is finished to `done`, in order, with
    /// [`drop_reason`](onramp_queue::Meta::drop_reason) set on packets that failed. If the device
    /// is full, the rest stays in `burst`; the port offers the rest again, and no packet overtakes
    /// it.
    ///
    /// A packet that the device hands over to another party, which will drop the packet later, is
    /// in neither `burst` nor `done` afterwards and counts as sent. Clear the packet's drop reason
    /// before handing it over: the sender is told the reason that the packet carries when it goes
    /// home.
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
