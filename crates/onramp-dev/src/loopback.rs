//! An in-memory network: any number of queues to any number of receivers, and no lock.
//!
//! A packet is handed to its receiver as it is, by one push for neighbours of the same receiver;
//! the receiver takes all that waits by one swap, and dropping a packet there brings it home to
//! its sender. So a sender has its credit back when the packet was read, and not before.
//!
//! Source: Linux's `loopback_xmit` had a lock that only protected counters; since 2004 the counters
//! are per CPU (`drivers/net/loopback.c`). Here they are per queue and per receiver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Armed, Counter, DropReason, Mailbox, Packet, PacketList, Reader, Undelivered};

use crate::backoff::Backoff;
use crate::{MonotonicClock, ThreadWaker};

/// How long a receiver sleeps at most while somebody is taking its waker out.
const BUSY_NAP: Duration = Duration::from_micros(50);

/// Makes a device and the receiver of what it sends, with room for `capacity` packets in between:
/// the smallest [`Network`].
///
/// # Panics
///
/// Panics when `capacity` is zero: nothing could ever be delivered.
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

/// Queues and receivers of one network. A packet goes to receiver `port % receivers` if it has a
/// destination, else to receiver `flow % receivers`.
///
/// Receivers may come and go. Packets for one that is not there are dropped as
/// [`Refused`](DropReason::Refused). Who has a `Network` may still send: as long as it, or one of
/// its queues, is there, receivers wait for more.
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

/// Where a receiver gets its packets from.
#[derive(Debug)]
struct End {
    mailbox: Mailbox,
    stats: Arc<ReceiverStats>,
}

/// A transmit queue: a device.
///
/// When a receiver has no place for a packet, the queue is full: it, and what is behind it in the
/// burst, stays there, and is to be offered again after 50 µs, and after twice as long each time,
/// up to 1 ms. So nothing is lost to a slow receiver, which holds up all that share a queue.
#[derive(Debug)]
pub struct Loopback {
    info: DeviceInfo,
    network: Network,
    backoff: Backoff,
    stats: Arc<LoopbackStats>,
}

/// What a [`Loopback`] sent. Written by the thread that transmits.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopbackStats {
    /// Packets handed to a receiver.
    pub packets: Counter,
    /// Their bytes on the wire.
    pub bytes: Counter,
    /// Pushes that handed over: as many runs of packets with the same receiver.
    pub pushes: Counter,
    /// Packets dropped because nobody received.
    pub refused: Counter,
    /// Bursts of which the receivers had no place for all.
    pub full: Counter,
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver {
    reader: Reader,
    /// Taken from the mailbox, not yet given out.
    taken: PacketList,
    waker: ThreadWaker,
    stats: Arc<ReceiverStats>,
}

/// What the receivers at one place received, one after another.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReceiverStats {
    /// Packets taken out of the network.
    pub packets: Counter,
    /// Their bytes on the wire.
    pub bytes: Counter,
    /// Swaps that took them.
    pub takes: Counter,
    /// Times that the receiver slept.
    pub sleeps: Counter,
    /// Packets that were sent and that no receiver took before it went.
    abandoned: AtomicU64,
}

impl Network {
    /// Makes a network of `receivers` places, with room for `capacity` packets at each.
    ///
    /// # Panics
    ///
    /// Panics when either is zero: nothing could ever be delivered.
    #[must_use]
    pub fn new(receivers: usize, capacity: u16) -> Self {
        assert!(receivers > 0, "a network has at least one receiver");
        let end = |_| End { mailbox: Mailbox::new(capacity), stats: Arc::default() };
        Self(Arc::new(Ends((0..receivers).map(end).collect())))
    }

    /// Makes a transmit queue that reaches all receivers.
    #[must_use]
    pub fn queue(&self) -> Loopback {
        // As Linux's `lo`: 65,536 bytes and an Ethernet header.
        let info = DeviceInfo::new("loopback".to_owned(), 65_536 + 14).never_blocks();
        let network = self.clone();
        Loopback { info, network, backoff: Backoff::new(), stats: Arc::default() }
    }

    /// Takes place `index`, from 0; `None`: somebody has it, or there is none.
    #[must_use]
    pub fn receiver(&self, index: usize) -> Option<Receiver> {
        let end = self.0.0.get(index)?;
        let reader = end.mailbox.open()?;
        let (taken, waker) = (PacketList::new(), ThreadWaker::default());
        Some(Receiver { reader, taken, waker, stats: Arc::clone(&end.stats) })
    }

    /// What place `index` received; `None`: there is none.
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

impl ReceiverStats {
    /// Packets that were sent and that no receiver took before it went.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.abandoned.load(Relaxed) // Relaxed: a number for people.
    }
}

impl Loopback {
    /// What it sent, to be read by anyone at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<LoopbackStats> {
        Arc::clone(&self.stats)
    }
}

impl Device for Loopback {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let Self { network, backoff, stats, .. } = self;
        let mut out = Transmitted::default(); // It calls nobody.
        while let Some(first) = burst.front() {
            let (end, reason) = (network.route(first), first.drop_reason);
            let mut run = PacketList::new();
            // One at least, to learn whether there is no place or no receiver.
            while run.len() < u32::from(end.mailbox.room().max(1))
                && burst.front().is_some_and(|pkt| {
                    std::ptr::eq(network.route(pkt), end) && pkt.drop_reason == reason
                })
            {
                run.extend(burst.pop_front().map(|mut pkt| {
                    pkt.drop_reason = None;
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
                    stats.full.add(1);
                    run.metas_mut().for_each(|meta| meta.drop_reason = reason);
                    run.append(burst);
                    *burst = run;
                    out.retry_at = Some(backoff.wait(now));
                    break;
                }
            }
        }
        out
    }
}

impl Receiver {
    /// The next packet, if one is there.
    #[inline]
    pub fn try_recv(&mut self) -> Option<Packet> {
        if self.taken.is_empty() {
            self.take();
        }
        let pkt = self.taken.pop_front()?;
        self.stats.packets.add(1);
        self.stats.bytes.add(pkt.len.into());
        Some(pkt)
    }

    /// All packets that are there, those of a flow in order.
    #[inline]
    pub fn recv_all(&mut self) -> PacketList {
        if self.taken.is_empty() {
            self.take();
        }
        let all = std::mem::take(&mut self.taken);
        self.stats.packets.add(all.len().into());
        self.stats.bytes.add(all.bytes());
        all
    }

    /// Waits for the next packet; `None` after `timeout`, or when nobody can send any more and
    /// everything was received.
    #[must_use]
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<Packet> {
        let _ = self.wait(timeout);
        self.try_recv()
    }

    /// Waits until a packet is there. False: not within `timeout`, or nobody can send any more and
    /// everything was received.
    pub fn wait(&mut self, timeout: Duration) -> bool {
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
                // Somebody takes the waker out; a nap lets it, whatever the priorities are.
                Armed::Busy => thread::park_timeout(BUSY_NAP),
                Armed::Armed => {
                    self.stats.sleeps.add(1);
                    thread::park_timeout(Duration::from_nanos(left));
                }
            }
        }
    }

    /// Whether nobody can send any more and everything was received.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.taken.is_empty() && self.reader.has_ended()
    }

    /// What this place received, to be read by anyone at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<ReceiverStats> {
        Arc::clone(&self.stats)
    }

    fn take(&mut self) {
        self.taken = self.reader.take();
        self.stats.takes.add(u64::from(!self.taken.is_empty()));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let left = self.reader.close().len() + self.taken.len();
        // Relaxed: a number for people. Not a `Counter`: the next receiver may already be here.
        self.stats.abandoned.fetch_add(left.into(), Relaxed);
    }
}
