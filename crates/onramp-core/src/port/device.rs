//! What the scheduler asks of the world: a device.

use onramp_queue::PacketList;

use crate::base::Instant;

/// Fixed facts about a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Name for people, such as `udp 127.0.0.1:4433`.
    pub name: String,
    /// Largest packet, bytes, link header included (`psched_mtu`). Qdiscs derive their quantum
    /// from it.
    pub mtu: u32,
    /// [`Device::transmit`] may block for more than about 2 ms, although it should not. A link with
    /// several ports then starts a thread that replaces a runner which the device keeps.
    pub may_block: bool,
}

impl DeviceInfo {
    /// Names a device and its largest packet. It may block, for all that is known.
    #[must_use]
    pub const fn new(name: String, mtu: u32) -> Self {
        Self { name, mtu, may_block: true }
    }

    /// The same for a device whose calls are known to take less than about 2 ms: those of a
    /// non-blocking socket, or of memory. Saves the link a thread that watches. The wakers of
    /// receivers that such a device calls must not block either.
    #[must_use]
    pub const fn never_blocks(mut self) -> Self {
        self.may_block = false;
        self
    }
}

/// What a device did with a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Calls into the kernel, or kicks of a ring.
    pub calls: u32,
    /// Messages: a segmented packet of many datagrams counts once.
    pub messages: u32,
    /// Not all was taken: ask again then. `None`: the whole burst is done with.
    pub retry_at: Option<Instant>,
}

/// One transmit queue of a device. `&mut self` is the transmit lock.
pub trait Device: Send {
    /// Fixed facts.
    fn info(&self) -> &DeviceInfo;

    /// Sends from the front of `burst`, without blocking.
    ///
    /// Moves every packet it is done with to `done`, in order, with
    /// [`drop_reason`](onramp_queue::Meta::drop_reason) set on those that failed; the rest stays
    /// in `burst` when the device is full, is offered again, and nothing overtakes it.
    ///
    /// A packet that it hands to somebody else, who will drop it, is neither in `burst` nor in
    /// `done` afterwards, and counts as sent. Its drop reason has to be none: whatever it says when
    /// it comes home is what the sender is told.
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
