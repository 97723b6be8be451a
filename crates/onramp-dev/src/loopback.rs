//! An in-memory network that connects any number of transmit queues to any number of receivers
//! without a lock.
//!
//! A transmit queue hands the packets themselves, not copies, to the receiver. It needs one push
//! (an atomic operation) for consecutive packets to the same receiver. The receiver takes all
//! waiting packets with one swap. When the receiver drops a packet, the packet's memory returns to
//! its sender. So a sender gets its credit back only after the packet was read.
//!
//! A queue whose receiver has no room is woken when the receiver takes packets. The queue first
//! puts its waker into the receiver's list, and then [wants room](Mailbox::want_room): either the
//! receiver learns of the wish with the packets that it takes next and wakes the whole list, or the
//! mailbox has room meanwhile and the queue offers its packets again at once. So no wake-up is
//! lost, and a receiver for which no queue waits does not touch the list.
//!
//! Source: Linux's `loopback_xmit` had a lock that only protected counters; since 2004 the counters
//! are per CPU (`drivers/net/loopback.c`). Here they are per queue and per receiver.

mod recv;

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use onramp_core::{Clock, Device, DeviceInfo, DeviceWaker, Instant, Transmitted};
use onramp_queue::{Armed, Counter, DropReason, Mailbox, Packet, PacketList, Reader, Undelivered};

use crate::backoff::Backoff;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, thread};
use crate::sys::Maker;
use crate::{MonotonicClock, ThreadWaker};

pub use self::recv::Recv;

/// The longest time that a receiver sleeps while another thread is removing the receiver's waker.
const BUSY_NAP: Duration = Duration::from_micros(50);
/// When a full queue that its receiver will wake asks to be called again all the same, in
/// nanoseconds: a safeguard.
const SAFEGUARD_NS: u64 = 100_000_000;

/// Makes a device and the receiver of the packets that it sends, with room for `capacity` packets
/// between them. This is the smallest [`Network`].
///
/// # Panics
///
/// Panics if `capacity` is zero, because no packet could ever be delivered.
///
/// # Examples
///
/// ```
/// use onramp_core::{Device, Instant};
/// use onramp_queue::{Packet, PacketList};
///
/// let (mut device, mut receiver) = onramp_dev::loopback(16);
/// let mut burst: PacketList = [Packet::with_payload(b"hello")].into_iter().collect();
/// device.transmit(&mut burst, &mut PacketList::new(), Instant(0));
/// assert_eq!(receiver.try_recv().unwrap().payload(), b"hello");
/// ```
#[must_use]
pub fn loopback(capacity: u16) -> (Loopback, Receiver) {
    let network = Network::new(1, capacity);
    let receiver = network.receiver(0).expect("nobody else has the network");
    (network.queue(), receiver)
}

/// A network of transmit queues and receivers. A packet with a destination address goes to the
/// receiver with the number `port % receivers`, any other packet to the one with the number `flow %
/// receivers`.
///
/// Receivers may come and go. A packet for a receiver that is absent is dropped with the reason
/// [`Refused`](DropReason::Refused). Receivers wait for more packets as long as any clone of the
/// `Network` or any of its queues exists, because packets can still be sent through these.
///
/// # Examples
///
/// ```
/// use onramp_core::{Device, Instant};
/// use onramp_queue::{Packet, PacketList};
///
/// let network = onramp_dev::Network::new(2, 16);
/// let (mut queue, mut second) = (network.queue(), network.receiver(1).unwrap());
/// let mut pkt = Packet::with_payload(b"to the second");
/// pkt.flow = 3;
/// let mut burst: PacketList = [pkt].into_iter().collect();
/// queue.transmit(&mut burst, &mut PacketList::new(), Instant(0));
/// assert_eq!(second.recv_all().len(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Network(Arc<Ends>);

#[derive(Debug)]
struct Ends(Box<[End]>);

/// The place in the network from which one receiver takes its packets.
#[derive(Debug)]
struct End {
    mailbox: Mailbox,
    stats: Arc<ReceiverStats>,
    waiting: Arc<Waiting>,
}

/// The wakers of the queues that wait until a receiver has room.
#[derive(Debug, Default)]
struct Waiting(Mutex<Vec<Weak<DeviceWaker>>>);

/// A transmit queue of a [`Network`]: a device.
///
/// When a receiver has no room for a packet, the whole queue is full: the packet and all packets
/// behind it stay in the burst. So a slow receiver loses no packet, but delays all traffic that
/// shares the queue. A queue to which a waker was [attached](Device::attach) that
/// [wakes](DeviceWaker::wakes) a thread, as a link does, is woken when that receiver takes packets
/// or is dropped. Otherwise, the queue asks its caller to offer the packets again after 50 µs, and
/// doubles that time with each attempt, up to 1 ms.
///
/// A packet that a receiver takes holds in [`txtime_ns`](onramp_queue::Meta::txtime_ns) the time at
/// which the queue sent it.
#[derive(Debug)]
pub struct Loopback {
    info: DeviceInfo,
    network: Network,
    backoff: Backoff,
    waker: Option<Arc<DeviceWaker>>,
    stats: Arc<LoopbackStats>,
}

/// Counters of what a [`Loopback`] sent. Only the thread that transmits writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopbackStats {
    /// Number of packets handed to a receiver.
    pub packets: Counter,
    /// Number of bytes of the packets handed to a receiver. The bytes of a packet are those that it
    /// takes on the wire.
    pub bytes: Counter,
    /// Number of pushes that handed packets over: one per run of packets with the same receiver.
    pub pushes: Counter,
    /// Number of packets dropped because their receiver was absent.
    pub refused: Counter,
    /// Number of bursts for which a receiver did not have enough room.
    pub full: Counter,
}

/// The receiving end of a network: takes the packets of one place.
///
/// A child of `fork` has a copy of the receiver, to which nobody sends: the copy receives nothing,
/// also none of the packets that waited when the process forked, and [has ended](Self::has_ended).
#[derive(Debug)]
pub struct Receiver {
    reader: Reader,
    /// Packets taken from the mailbox, but not yet returned to the caller.
    taken: PacketList,
    waker: ThreadWaker,
    stats: Arc<ReceiverStats>,
    /// The queues that wait for room at this place.
    waiting: Arc<Waiting>,
    maker: Maker,
}

/// Counters of all receivers that one place of the network has had, one after another.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReceiverStats {
    /// Number of packets taken out of the network.
    pub packets: Counter,
    /// Number of bytes of the packets taken out. The bytes of a packet are those that it takes on
    /// the wire.
    pub bytes: Counter,
    /// Number of atomic swaps by which receivers took packets from the mailbox.
    pub takes: Counter,
    /// Number of times that the receiver slept.
    pub sleeps: Counter,
    /// Number of packets that were sent to the place and still waited there when its receiver was
    /// dropped.
    abandoned: AtomicU64,
}

impl Network {
    /// Makes a network with places for `receivers` receivers, and room for `capacity` packets at
    /// each place.
    ///
    /// # Panics
    ///
    /// Panics if `receivers` or `capacity` is zero, because no packet could ever be delivered.
    #[must_use]
    pub fn new(receivers: usize, capacity: u16) -> Self {
        assert!(receivers > 0, "a network has at least one receiver");
        let end = |_| End {
            mailbox: Mailbox::new(capacity),
            stats: Arc::default(),
            waiting: Arc::default(),
        };
        Self(Arc::new(Ends((0..receivers).map(end).collect())))
    }

    /// Makes a transmit queue that reaches all receivers.
    #[must_use]
    pub fn queue(&self) -> Loopback {
        // Packets may be as large as on Linux's `lo`: 65,536 bytes and an Ethernet header.
        let info = DeviceInfo::new("loopback".to_owned(), 65_536 + 14).never_blocks();
        let network = self.clone();
        Loopback { info, network, backoff: Backoff::new(), waker: None, stats: Arc::default() }
    }

    /// Returns a receiver for place `index`, counted from 0. Returns `None` if another receiver
    /// holds the place, or if the network has no such place.
    #[must_use]
    pub fn receiver(&self, index: usize) -> Option<Receiver> {
        let end = self.0.0.get(index)?;
        let reader = end.mailbox.open()?;
        let (taken, waker) = (PacketList::new(), ThreadWaker::default());
        let (stats, waiting) = (Arc::clone(&end.stats), Arc::clone(&end.waiting));
        Some(Receiver { reader, taken, waker, stats, waiting, maker: Maker::this_process() })
    }

    /// Wakes all queues that wait until a receiver has room, for example because what is behind
    /// them will drop their packets.
    pub fn wake_queues(&self) {
        self.0.0.iter().for_each(|end| end.waiting.wake());
    }

    /// Returns the counters of place `index`; `None` if the network has no such place.
    #[must_use]
    pub fn receiver_stats(&self, index: usize) -> Option<Arc<ReceiverStats>> {
        Some(Arc::clone(&self.0.0.get(index)?.stats))
    }

    fn route(&self, pkt: &Packet) -> &End {
        let ends = &self.0.0;
        if let [only] = &**ends {
            return only;
        }
        let key = pkt.dest().map_or(pkt.flow, |dest| dest.port().into());
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of receivers")]
        let index = (key % ends.len() as u64) as usize;
        &ends[index]
    }
}

impl Waiting {
    /// Adds a queue, unless it is in the list already.
    fn add(&self, queue: &Arc<DeviceWaker>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other.strong_count() > 0);
        if !list.iter().any(|other| other.as_ptr() == Arc::as_ptr(queue)) {
            list.push(Arc::downgrade(queue));
        }
    }

    /// Wakes all queues, and removes them from the list.
    #[cold]
    fn wake(&self) {
        let list = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // The list is unlocked here: a queue may be called at once, and add itself again.
        list.iter().filter_map(Weak::upgrade).for_each(|queue| queue.wake());
    }
}

impl ReceiverStats {
    /// Returns the number of packets that were sent to the place and still waited there when its
    /// receiver was dropped.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.abandoned.load(Relaxed) // Relaxed: the counter is only reported; no thread acts on it.
    }
}

impl Loopback {
    /// Returns the queue's counters, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<LoopbackStats> {
        Arc::clone(&self.stats)
    }
}

impl Device for Loopback {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, waker: DeviceWaker) {
        self.waker = waker.wakes().then(|| Arc::new(waker));
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let Self { network, backoff, waker, stats, .. } = self;
        // Reports no system call, because the device makes none.
        let mut out = Transmitted::default();
        while let Some(first) = burst.front() {
            let (end, reason) = (network.route(first), first.drop_reason);
            let mut run = PacketList::new();
            // Post at least one packet, even if the mailbox seems to have no room. `post` reports
            // whether the mailbox is full, or whether the receiver is absent.
            while run.len() < u32::from(end.mailbox.room().max(1))
                && burst.front().is_some_and(|pkt| {
                    std::ptr::eq(network.route(pkt), end) && pkt.drop_reason == reason
                })
            {
                run.extend(burst.pop_front().map(|mut pkt| {
                    pkt.mark_sent(now.0);
                    pkt
                }));
            }
            let (packets, bytes) = (run.len(), run.bytes());
            match end.mailbox.post(run) {
                Ok(()) => {
                    stats.packets.add(packets.into());
                    stats.bytes.add(bytes);
                    stats.pushes.add(1);
                    out.messages += packets;
                    backoff.reset();
                }
                Err(Undelivered::Closed(mut run)) => {
                    stats.refused.add(packets.into());
                    run.metas_mut().for_each(|meta| meta.drop_reason = Some(DropReason::Refused));
                    done.append(&mut run);
                }
                Err(Undelivered::Full(mut run)) => {
                    run.metas_mut().for_each(|meta| meta.drop_reason = reason);
                    run.append(burst);
                    *burst = run;
                    let retry_at = if let Some(waker) = waker {
                        end.waiting.add(waker);
                        if !end.mailbox.want_room() {
                            continue;
                        }
                        now.after(SAFEGUARD_NS)
                    } else {
                        backoff.wait(now)
                    };
                    stats.full.add(1);
                    out.retry_at = Some(retry_at);
                    break;
                }
            }
        }
        out
    }
}

impl Receiver {
    /// Returns the next packet; `None` if no packet is waiting.
    #[inline]
    pub fn try_recv(&mut self) -> Option<Packet> {
        if self.is_copy() {
            return None;
        }
        if self.taken.is_empty() {
            self.take();
        }
        let pkt = self.taken.pop_front()?;
        self.stats.packets.add(1);
        self.stats.bytes.add(pkt.len.into());
        Some(pkt)
    }

    /// Returns all waiting packets. The packets of each flow are in order.
    #[inline]
    pub fn recv_all(&mut self) -> PacketList {
        if self.is_copy() {
            return PacketList::new();
        }
        if self.taken.is_empty() {
            self.take();
        }
        let all = std::mem::take(&mut self.taken);
        self.stats.packets.add(all.len().into());
        self.stats.bytes.add(all.bytes());
        all
    }

    /// Waits for the next packet. Returns `None` after `timeout`, or when no sender is left and all
    /// packets were received.
    #[must_use]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<Packet> {
        let _ = self.wait(timeout);
        self.try_recv()
    }

    /// Waits until a packet is there. Returns false if `timeout` passes without one, or if no
    /// sender is left and all packets were received.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        if self.is_copy() {
            return false;
        }
        let mut deadline = None;
        loop {
            if self.taken.is_empty() {
                self.take();
            }
            if !self.taken.is_empty() {
                return true;
            }
            if self.reader.has_ended() {
                return false;
            }
            let now = MonotonicClock.now();
            let left = deadline.get_or_insert(now + timeout).since(now);
            if left == 0 {
                return false;
            }
            match self.reader.arm(self.waker.get()) {
                Armed::Ready => {}
                // Another thread is removing the waker. A short sleep lets that thread finish,
                // whatever the priorities of the two threads are.
                Armed::Busy => thread::park_timeout(BUSY_NAP),
                Armed::Armed => {
                    self.stats.sleeps.add(1);
                    thread::park_timeout(Duration::from_nanos(left));
                }
            }
        }
    }

    /// Returns whether all packets were received and no clone of the [`Network`] and none of its
    /// queues is left that could send more. True in a child of `fork`.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_copy() || self.taken.is_empty() && self.reader.has_ended()
    }

    /// Returns the counters of the receiver's place in the network, which any thread may read at
    /// any time.
    #[must_use]
    pub fn stats(&self) -> Arc<ReceiverStats> {
        Arc::clone(&self.stats)
    }

    fn take(&mut self) {
        self.taken = self.reader.take();
        self.stats.takes.add(u64::from(!self.taken.is_empty()));
        if self.reader.is_wanted() {
            self.waiting.wake();
        }
    }

    /// Whether this is the copy of a receiver in a child of `fork`.
    fn is_copy(&self) -> bool {
        !self.maker.is_here()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let left = self.reader.close().len() + self.taken.len();
        // In a child of `fork`, another thread of the parent may have held the lock of the list.
        if self.reader.is_wanted() && !self.is_copy() {
            self.waiting.wake();
        }
        // Relaxed: the counter is only reported; no thread acts on it. `abandoned` is no `Counter`,
        // because a `Counter` may have only one writer, and the place's next receiver may already
        // exist.
        self.stats.abandoned.fetch_add(left.into(), Relaxed);
    }
}
