//! A link: a device with one or more ports, what all its senders share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use onramp_core::{Clock, Device, Instant};
use onramp_dev::{MonotonicClock, UdpStats};
use onramp_queue::Credits;

use crate::runner::{Gate, Keep, Runner, Serves, Slot};
use crate::stats::{LinkStats, SenderCounters, Totals};
use crate::{LinkBuilder, Sender, TrySendError};

/// The devices of a link may be of any kind.
pub(crate) type BoxDevice = Box<dyn Device>;

/// A device with one or more ports (transmit queues), each with a qdisc in front. Cheap to clone.
///
/// When the last handle and the last [`Sender`] are gone, the link closes at once: what is still
/// held is dropped. Call [`Link::close`] to give it time.
#[derive(Clone, Debug)]
pub struct Link {
    pub(crate) handle: Arc<Handle>,
}

/// Owned by links and senders, not by the runner: its drop ends the runner.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    runner: Mutex<Option<JoinHandle<()>>>,
}

/// What senders, handles and the runner share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Differs between the links of a process.
    pub(crate) id: u64,
    slots: Vec<Slot<BoxDevice>>,
    udp: Vec<Arc<UdpStats>>,
    runner: Runner,
    pub(crate) clock: MonotonicClock,
    pub(crate) credits: Credits,
    next_flow: AtomicU64,
    live: AtomicU32,
    fair: AtomicU32,
    processors: u32,
    senders: Mutex<Senders>,
}

/// Who counts what was submitted.
#[derive(Debug, Default)]
struct Senders {
    live: Vec<Arc<SenderCounters>>,
    gone: Totals,
}

/// What [`Link::close`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Everything was sent or dropped by the qdisc before the deadline.
    pub flushed: bool,
    /// Packets dropped by closing, counted as `purged`.
    pub purged: u64,
}

impl Serves<BoxDevice> for Arc<Shared> {
    fn runner(&self) -> &Runner {
        &self.runner
    }
    fn slots(&self) -> &[Slot<BoxDevice>] {
        &self.slots
    }
}

impl Link {
    /// A link over UDP sockets that it binds itself to `local`, one for each port.
    ///
    /// With more than one port, `local` must leave the port number open (`0.0.0.0:0`).
    pub fn udp(local: impl std::net::ToSocketAddrs) -> LinkBuilder {
        LinkBuilder::udp(local)
    }

    /// A link over UDP sockets of yours: each becomes a port.
    pub fn sockets(sockets: impl IntoIterator<Item = std::net::UdpSocket>) -> LinkBuilder {
        LinkBuilder::sockets(sockets)
    }

    /// A link over devices of any kind: each becomes a port.
    pub fn devices(devices: impl IntoIterator<Item = Box<dyn Device>>) -> LinkBuilder {
        LinkBuilder::devices(devices)
    }

    pub(crate) fn start(
        slots: Vec<Slot<BoxDevice>>,
        udp: Vec<Arc<UdpStats>>,
        credits: Credits,
    ) -> std::io::Result<Self> {
        static LINKS: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Shared {
            id: LINKS.fetch_add(1, Ordering::Relaxed), // Relaxed: it only has to differ.
            slots,
            udp,
            runner: Runner::new(),
            clock: MonotonicClock,
            credits,
            next_flow: AtomicU64::new(0),
            live: AtomicU32::new(0),
            fair: AtomicU32::new(u32::MAX),
            processors: thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            senders: Mutex::default(),
        });
        let runner = Runner::start(shared.clone(), MonotonicClock)?;
        Ok(Self { handle: Arc::new(Handle { shared, runner: Mutex::new(Some(runner)) }) })
    }

    /// Makes a sender, for one thread.
    #[must_use]
    pub fn sender(&self) -> Sender {
        Sender::new(self.handle.clone())
    }

    /// Ports (transmit queues).
    #[must_use]
    pub fn ports(&self) -> usize {
        self.shared().slots.len()
    }

    /// The present on the link's clock, on which `txtime` counts.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared().clock.now()
    }

    /// What happened so far. Cells are read one after another: exact when nobody sends.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        let shared = self.shared();
        // The sent side first, so that a packet in between counts as held, not as negative.
        let ports = shared.slots.iter().map(|slot| slot.port.snapshot()).collect();
        let senders = shared.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = senders.gone;
        for sender in &senders.live {
            totals.add(sender);
        }
        drop(senders);
        LinkStats::new(ports, totals, &shared.runner.stats)
    }

    /// What the UDP socket of each port counts; empty for a link over other devices.
    #[must_use]
    pub fn udp_stats(&self) -> &[Arc<UdpStats>] {
        &self.shared().udp
    }

    /// The ports that are dead, by their number, and what their qdisc or device said as it
    /// panicked. Other ports go on; a dead one drops what it held and whatever still comes, as
    /// [`port_dead`](onramp_queue::DropReason::PortDead).
    #[must_use]
    pub fn deaths(&self) -> Vec<(usize, String)> {
        let slots = self.shared().slots.iter().enumerate();
        slots.filter_map(|(port, slot)| Some((port, slot.port.death()?.to_owned()))).collect()
    }

    /// Waits until nothing is held, at most `timeout`. True if so.
    ///
    /// While others go on sending, that may never be.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.shared().flush(timeout)
    }

    /// Refuses new packets, waits until nothing is held or `timeout` has passed, drops the rest
    /// (counted as [`purged`](onramp_queue::DropReason::Purged)) and ends the runner.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        self.handle.close(timeout)
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

impl Handle {
    fn close(&self, timeout: Duration) -> CloseReport {
        let shared = &self.shared;
        shared.gate().close(); // Sends under way are caught below.
        let flushed = shared.flush(timeout);
        let before = shared.purged();
        for slot in &shared.slots {
            let keep = Keep { runner: &shared.runner, slot };
            let give_up = shared.clock.now() + OWNER_PATIENCE;
            while slot.port.close(shared.clock.now(), &keep).is_none() {
                // Its owner leaves after at most a quota, unless the device blocks: then the port
                // keeps what it holds.
                if shared.clock.now() > give_up {
                    break;
                }
                thread::yield_now();
            }
        }
        let runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runner) = runner {
            shared.runner.stop();
            // A waker may have dropped the last handle in the runner itself, which then ends by
            // itself. It has nothing to say: a panic was printed by the panic hook.
            if runner.thread().id() != thread::current().id() {
                let _ = runner.join();
            }
        }
        CloseReport { flushed, purged: shared.purged() - before }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Shared {
    pub(crate) fn slot(&self, port: usize) -> &Slot<BoxDevice> {
        &self.slots[port]
    }

    pub(crate) fn ports(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.runner.gate
    }

    /// Why packets for `port` are refused, if they are.
    #[inline]
    pub(crate) fn refusal(&self, port: usize) -> Option<TrySendError> {
        if self.gate().is_open() { None } else { self.reason(port) }
    }

    #[cold]
    fn reason(&self, port: usize) -> Option<TrySendError> {
        if self.gate().is_closed() {
            return Some(TrySendError::Closed);
        }
        self.slot(port).port.death().map(|_| TrySendError::PortDead)
    }

    pub(crate) fn keep<'a>(&'a self, slot: &'a Slot<BoxDevice>) -> Keep<'a, BoxDevice> {
        Keep { runner: &self.runner, slot }
    }

    /// Numbers a new flow. Its port follows from the number, so flows spread evenly.
    pub(crate) fn new_flow(&self) -> (u64, usize) {
        // Relaxed: a number that only has to differ.
        let key = self.next_flow.fetch_add(1, Ordering::Relaxed);
        let ports = self.slots.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of ports")]
        let port = (key % ports) as usize;
        (key, port)
    }

    /// Packets that each of the present senders may have below it.
    #[inline]
    pub(crate) fn fair_credits(&self) -> u32 {
        self.fair.load(Ordering::Relaxed) // Relaxed: any recent number will do.
    }

    /// Shares the credits of all ports out again, after `change` of the number of senders.
    fn share_out(&self, change: impl FnOnce() -> u32) {
        let ports = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let share = CREDITS_PER_PORT.saturating_mul(ports) / change().max(1);
        self.fair.store(share.max(CREDITS_MIN), Ordering::Relaxed); // Relaxed: as above.
    }

    /// Whether there are more senders than processors.
    pub(crate) fn crowded(&self) -> bool {
        self.live.load(Ordering::Relaxed) > self.processors // Relaxed: as in `fair_credits`.
    }

    pub(crate) fn add_sender(&self, counters: Arc<SenderCounters>) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.live.push(counters);
        // Relaxed: under the lock; see `fair_credits`.
        self.share_out(|| self.live.fetch_add(1, Ordering::Relaxed) + 1);
    }

    pub(crate) fn remove_sender(&self, counters: &Arc<SenderCounters>) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.gone.add(counters);
        senders.live.retain(|live| !Arc::ptr_eq(live, counters));
        // Relaxed: under the lock; see `fair_credits`.
        self.share_out(|| self.live.fetch_sub(1, Ordering::Relaxed) - 1);
    }

    fn purged(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| slot.port.stats().dropped.get(onramp_queue::DropReason::Purged))
            .sum()
    }

    fn flush(&self, timeout: Duration) -> bool {
        let deadline = self.clock.now() + timeout;
        loop {
            for slot in &self.slots {
                let _ = slot.port.help(self.clock.now(), &self.keep(slot));
            }
            if self.slots.iter().all(|slot| slot.port.is_quiet()) {
                return true;
            }
            let left = deadline.since(self.clock.now());
            if left == 0 {
                return false;
            }
            thread::sleep(Duration::from_nanos(left).min(FLUSH_POLL));
        }
    }
}

/// How often a flush looks.
const FLUSH_POLL: Duration = Duration::from_micros(200);

/// Packets that all senders together should have below them, for each port: what stays in the
/// processors' caches, and under fq's `limit` of 10,000.
const CREDITS_PER_PORT: u32 = 8_192;
/// Packets that any sender may have below it (if it was given so many).
const CREDITS_MIN: u32 = 4;
/// How long a close waits for the owner of a port.
const OWNER_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use onramp_dev::Null;

    use super::*;

    fn link(ports: usize) -> Link {
        let devices = (0..ports).map(|_| Box::new(Null::default()) as BoxDevice);
        Link::devices(devices).build().expect("a link")
    }

    #[test]
    fn credits_are_shared_out_to_the_packet() {
        for ports in [1_u32, 2, 3, 7] {
            let link = link(ports as usize);
            let share = |count: u32| (8_192 * ports / count.max(1)).max(4);
            let mut senders = Vec::new();
            let most = 2_100 * ports;
            for count in 1..=most {
                senders.push(link.sender());
                assert_eq!(link.shared().fair_credits(), share(count), "{count} senders");
            }
            assert_eq!(link.shared().fair_credits(), 4, "never less");
            for count in (0..most).rev() {
                senders.pop();
                assert_eq!(link.shared().fair_credits(), share(count), "{count} senders");
            }
        }
    }

    #[test]
    fn more_senders_than_processors_are_a_crowd() {
        let link = link(1);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut senders: Vec<_> = (0..processors).map(|_| link.sender()).collect();
        assert!(!link.shared().crowded());
        senders.push(link.sender());
        assert!(link.shared().crowded());
        senders.pop();
        assert!(!link.shared().crowded());
    }
}
