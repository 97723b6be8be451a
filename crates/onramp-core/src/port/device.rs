//! The interface between a port and the device that transmits the port's packets.

use std::sync::Arc;
use std::task::Waker;

use onramp_queue::{Packet, PacketList, Room};

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
    /// whole burst. The port offers them earlier if the device [says](DeviceWaker::wake) that it
    /// has room.
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

    /// Gives the device the handle by which it tells its port that it has room again. Called once,
    /// before the first [`transmit`](Self::transmit). By default, the device drops the handle; the
    /// port then offers the packets that the device did not take again at the time that the device
    /// names.
    fn attach(&mut self, waker: DeviceWaker) {
        drop(waker);
    }

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

    /// Sends a packet whose payload is `payload`, and not in the packet itself, in one message.
    /// Returns false if the device has not sent the packet: it cannot send such packets (as by
    /// default), or the kernel does not take the message now. The port then gets the packet with
    /// its payload and offers it to [`transmit`](Self::transmit), which also finds out what is
    /// wrong. Should not block, and must not keep `payload`.
    ///
    /// A device that copies payloads into memory of its own anyway, such as a socket, saves the
    /// copy from the sender's memory into the packet here.
    fn transmit_lent(&mut self, _packet: &Packet, _payload: &[u8], _now: Instant) -> bool {
        false
    }
}

/// The handle by which a device that was full tells its port that it has room again, so that the
/// port offers the device its packets at once, and not only at the time that the device named
/// ([`Transmitted::retry_at`]). The device gets the handle from [`Device::attach`].
///
/// A device whose packets another thread takes away: `transmit` puts them into a ring, and the
/// thread that empties the ring says so.
///
/// ```
/// use std::collections::VecDeque;
/// use std::sync::{Arc, Mutex};
///
/// use onramp_core::{Device, DeviceInfo, DeviceWaker, Instant, Transmitted};
/// use onramp_queue::{Packet, PacketList};
///
/// const ROOM: usize = 4;
///
/// #[derive(Default)]
/// struct Ring {
///     slots: Mutex<VecDeque<Vec<u8>>>,
/// }
///
/// struct ToRing {
///     info: DeviceInfo,
///     ring: Arc<Ring>,
///     waker: Arc<Mutex<Option<DeviceWaker>>>,
/// }
///
/// impl Device for ToRing {
///     fn info(&self) -> &DeviceInfo {
///         &self.info
///     }
///
///     fn attach(&mut self, waker: DeviceWaker) {
///         *self.waker.lock().unwrap() = Some(waker);
///     }
///
///     fn transmit(
///         &mut self,
///         burst: &mut PacketList,
///         done: &mut PacketList,
///         now: Instant,
///     ) -> Transmitted {
///         let mut slots = self.ring.slots.lock().unwrap();
///         while slots.len() < ROOM
///             && let Some(packet) = burst.pop_front()
///         {
///             slots.push_back(packet.payload().to_vec());
///             done.push_back(packet);
///         }
///         // The time is a safeguard: if the ring is full, its reader says when there is room.
///         let retry_at = (!burst.is_empty()).then(|| now.after(100_000_000));
///         Transmitted { retry_at, ..Transmitted::default() }
///     }
/// }
///
/// /// What the other thread does again and again: takes the packets out of the ring, and says so.
/// fn empty(ring: &Ring, waker: &Mutex<Option<DeviceWaker>>) -> usize {
///     let taken = std::mem::take(&mut *ring.slots.lock().unwrap());
///     // The ring is unlocked here: the woken thread may offer packets at once.
///     if let Some(waker) = &*waker.lock().unwrap() {
///         waker.wake();
///     }
///     taken.len()
/// }
///
/// let info = DeviceInfo::new("ring".to_owned(), 1_514).never_blocks();
/// let (ring, waker) = (Arc::<Ring>::default(), Arc::default());
/// let mut device = ToRing { info, ring: ring.clone(), waker: Arc::clone(&waker) };
/// device.attach(DeviceWaker::default()); // A link does this.
/// let mut burst: PacketList = (0..6).map(|_| Packet::with_payload(b"hello")).collect();
/// let mut done = PacketList::new();
/// assert!(device.transmit(&mut burst, &mut done, Instant(0)).retry_at.is_some());
/// assert_eq!((burst.len(), empty(&ring, &waker)), (2, 4));
/// assert_eq!(device.transmit(&mut burst, &mut done, Instant(0)).retry_at, None);
/// ```
#[derive(Clone, Debug)]
pub struct DeviceWaker(Arc<Connection>);

/// The connection between a device and its port.
#[derive(Debug)]
struct Connection {
    room: Room,
    /// Makes a thread visit the port; `None`: nobody does that.
    visit: Option<Waker>,
}

impl Default for DeviceWaker {
    /// Makes a handle that wakes no thread: the next owner of the port offers the device its
    /// packets.
    fn default() -> Self {
        Self(Arc::new(Connection { room: Room::default(), visit: None }))
    }
}

impl DeviceWaker {
    /// Makes a handle for the device of a port. The code that manages the port makes it,
    /// [attaches](Device::attach) a clone to the device, and gives it to the port
    /// ([`PortOptions::device_waker`](super::PortOptions::device_waker)). `visit` is woken when the
    /// device has room for which the port waits; it must make a thread
    /// [visit](super::Port::visit) the port soon.
    #[must_use]
    pub fn new(visit: Waker) -> Self {
        Self(Arc::new(Connection { room: Room::default(), visit: Some(visit) }))
    }

    /// Tells the port that the device has room again. If the port waits for that, it offers the
    /// device its packets at once. Otherwise the call costs one atomic exchange, and the port
    /// offers packets once more when the device is full the next time.
    ///
    /// Any thread may call this, at any time. Only [`Device::transmit`] should not call it while it
    /// refuses packets: the port would offer them again at once, and so on without end. Make the
    /// room first, then call this, and hold no lock that `transmit` takes. A call that comes while
    /// `transmit` is just refusing packets is not lost. When the port is closed or gone, the call
    /// does nothing.
    pub fn wake(&self) {
        if self.0.room.announce()
            && let Some(visit) = &self.0.visit
        {
            visit.wake_by_ref();
        }
    }

    /// Whether [`wake`](Self::wake) makes a thread visit the port: false for the default handle,
    /// with which a device has to ask for the time of the next call
    /// ([`Transmitted::retry_at`](super::Transmitted::retry_at)).
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.0.visit.is_some()
    }

    /// For the port's owner, whose packets the device did not take: see [`Room::want`].
    pub(super) fn want(&self) -> bool {
        self.0.room.want()
    }

    /// For the port's owner, before the device's time has come: see [`Room::take`].
    pub(super) fn take(&self) -> bool {
        self.0.room.take()
    }

    /// Whether the device has said that it has room: see [`Room::is_announced`].
    pub(super) fn is_announced(&self) -> bool {
        self.0.room.is_announced()
    }
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn info(&self) -> &DeviceInfo {
        (**self).info()
    }
    fn attach(&mut self, waker: DeviceWaker) {
        (**self).attach(waker);
    }
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        (**self).transmit(burst, done, now)
    }
    fn transmit_lent(&mut self, packet: &Packet, payload: &[u8], now: Instant) -> bool {
        (**self).transmit_lent(packet, payload, now)
    }
}
