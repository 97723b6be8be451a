//! A port for tests, with its device, its runner and its clock, all controlled by the test.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use onramp_core::Spec;
use onramp_core::qdisc::Qdisc;
use onramp_core::stats::{BUCKETS, PortSnapshot};
use onramp_core::{
    Device, DeviceInfo, DeviceWaker, Instant, Job, Mode, Port, PortOptions, PortWaker, Ran, Share,
    Transmitted,
};
use onramp_queue::{DropReason, Packet, PacketList};

pub(crate) const MTU: u32 = 1_000;
/// The time at which the tests begin. It is not zero, because some fields use zero for "never".
pub(crate) const START: Instant = Instant(1_000_000_000);

/// What the scripted device has done, and what it will do.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Cookies of the packets that the device took and did not drop, with the times.
    pub(crate) sent: Vec<(u64, Instant)>,
    /// Number of packets in each burst that the device was offered.
    pub(crate) offered: Vec<u32>,
    /// The expected histograms of the port: the sizes of the bursts, and for each call in which the
    /// device took packets, the age of the oldest packet.
    offered_by_size: Buckets,
    ages: Buckets,
    /// Number of packets that the device takes before it is full. `None` means any number.
    pub(crate) room: Option<u32>,
    /// Nanoseconds from a call of the device until the retry time that the device gives.
    pub(crate) retry_ns: u64,
    /// Number of system calls that the device reports for a burst.
    pub(crate) calls: u32,
    /// Whether the device gives no retry time when it is full.
    pub(crate) sulks: bool,
    /// Whether the device gives a retry time although it has taken all packets.
    pub(crate) rests: bool,
    /// If set, the device drops each packet whose cookie is a multiple of three, for this reason.
    pub(crate) fails: Option<DropReason>,
    /// Packets that another thread pushes during the next call of the device.
    pub(crate) comes: Option<PacketList>,
    /// Number of the packets pushed during calls of the device that the port refused because it was
    /// full.
    pub(crate) refused: u64,
    /// If set, another thread tries to close the port during each call of the device, and stores
    /// here whether the port could be closed.
    pub(crate) closes: Option<bool>,
    /// Jobs that another thread submits during the next call of the device, and the number of jobs
    /// that the port refused.
    pub(crate) jobs: Jobs,
    pub(crate) crowded: u32,
    /// Whether the device hands the packets that it takes to another device (`elsewhere`) instead
    /// of finishing them.
    pub(crate) hands_on: bool,
    /// The packets that the device has handed to another device.
    pub(crate) elsewhere: PacketList,
    /// Whether the device sends packets whose payload lies elsewhere, and the payloads that it has
    /// sent.
    pub(crate) lends: bool,
    pub(crate) lent: Vec<Vec<u8>>,
    /// Whether the device panics when it is called.
    pub(crate) panics: bool,
    /// The device's handle, and whether the device uses it while it refuses packets.
    pub(crate) waker: Option<DeviceWaker>,
    pub(crate) wakes: bool,
}

impl Wire {
    /// Says that the device has room again.
    pub(crate) fn wake(&self) {
        self.waker.as_ref().expect("the port has attached it").wake();
    }
}

/// A list of jobs that can be printed: only their number is shown.
#[derive(Default)]
pub(crate) struct Jobs(Vec<Job>);

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.0.len())
    }
}

impl FromIterator<Job> for Jobs {
    fn from_iter<T: IntoIterator<Item = Job>>(jobs: T) -> Self {
        Self(jobs.into_iter().collect())
    }
}

/// A histogram that the test counts itself, to compare it with the port's histogram.
#[derive(Debug)]
pub(crate) struct Buckets(pub(crate) [u64; BUCKETS]);

impl Default for Buckets {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Buckets {
    pub(crate) fn of(values: &[u64]) -> Self {
        let mut buckets = Self::default();
        values.iter().for_each(|&value| buckets.count(value));
        buckets
    }

    fn count(&mut self, value: u64) {
        let bucket = (0..BUCKETS - 1).find(|&bucket| value < 1 << bucket);
        self.0[bucket.unwrap_or(BUCKETS - 1)] += 1;
    }
}

pub(crate) struct Script {
    info: DeviceInfo,
    wire: Arc<Mutex<Wire>>,
    port: Arc<OnceLock<Weak<Port<Self>>>>,
}

/// A substitute for the runner. Records the earliest visit that was requested, the time that
/// `elapsed` returns, when it was last asked to check for an overdue visit, and how long the port
/// may leave it alone.
#[derive(Debug, Default)]
pub(crate) struct Notes(Cell<Option<Instant>>, Cell<u64>, Cell<Option<Instant>>, Cell<u64>);

pub(crate) struct World {
    pub(crate) port: Arc<Port<Script>>,
    pub(crate) waker: Notes,
    pub(crate) now: Instant,
    pub(crate) pushed: u64,
    pub(crate) mode: Mode,
    wire: Arc<Mutex<Wire>>,
}

impl PortWaker for Notes {
    fn visit_by(&self, at: Instant) {
        self.0.set(Some(self.0.get().map_or(at, |due| due.min(at))));
    }

    fn check_overdue(&self, now: Instant) {
        self.2.set(Some(now));
    }

    /// Returns the time that the test has set with [`Notes::takes`], whatever the clock shows.
    fn elapsed(&self, _: Instant) -> u64 {
        self.1.get()
    }

    fn rest_ns(&self) -> u64 {
        self.3.get()
    }
}

impl Notes {
    /// From now on, the port may leave the runner alone for up to `ns` nanoseconds.
    pub(crate) fn rests(&self, ns: u64) {
        self.3.set(ns);
    }

    /// From now on, `elapsed` says that the owner has worked for `ns` nanoseconds.
    pub(crate) fn takes(&self, ns: u64) {
        self.1.set(ns);
    }

    /// Forgets which visits were requested.
    pub(crate) fn forget(&self) {
        self.0.set(None);
    }

    /// Returns when the runner was last asked to check for an overdue visit, and forgets that time.
    pub(crate) fn checked(&self) -> Option<Instant> {
        self.2.take()
    }

    /// Returns the earliest requested visit that was not yet made.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.get()
    }
}

impl Device for Script {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, waker: DeviceWaker) {
        self.wire.lock().unwrap().waker = Some(waker);
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut wire = self.wire.lock().unwrap();
        if wire.panics {
            drop(wire);
            panic!("as the script says");
        }
        wire.offered.push(burst.len());
        wire.offered_by_size.count(burst.len().into());
        let age = burst.front().map_or(0, |oldest| now.since(Instant(oldest.enqueued_ns)));
        let before = done.len();
        let port = self.port.get().and_then(Weak::upgrade).expect("the world is alive");
        if let Some(list) = wire.comes.take() {
            // This thread owns the port. To the port, the push looks like one of another thread.
            match port.xmit(list, now, &Notes::default()) {
                Ok(ran) => assert_eq!(ran, None, "it has an owner"),
                Err(full) => wire.refused += u64::from(full.0.len()),
            }
        }
        for job in std::mem::take(&mut wire.jobs).0 {
            match port.with(job, now, &Notes::default()) {
                Ok(done) => assert!(!done, "it has an owner"),
                Err(_) => wire.crowded += 1,
            }
        }
        if wire.closes.is_some() {
            wire.closes = Some(port.close(now, &Notes::default()).is_some());
        }
        while wire.room != Some(0) {
            let Some(mut pkt) = burst.pop_front() else { break };
            wire.room = wire.room.map(|room| room - 1);
            if wire.fails.is_some() && pkt.cookie % 3 == 0 {
                pkt.drop_reason = wire.fails;
            } else {
                wire.sent.push((pkt.cookie, now));
            }
            if wire.hands_on && pkt.drop_reason != wire.fails {
                pkt.mark_sent(now.0);
                wire.elsewhere.push_back(pkt);
            } else {
                done.push_back(pkt);
            }
        }
        if done.len() > before {
            wire.ages.count(age);
        }
        if std::mem::take(&mut wire.wakes) {
            wire.wake();
        }
        let full = wire.rests || !burst.is_empty() && !wire.sulks;
        let retry_at = full.then(|| now.after(wire.retry_ns));
        Transmitted { calls: wire.calls, messages: 1, retry_at }
    }

    fn transmit_lent(&mut self, packet: &Packet, payload: &[u8], now: Instant) -> bool {
        let mut wire = self.wire.lock().unwrap();
        assert!(packet.payload().is_empty(), "the payload lies elsewhere");
        if wire.panics {
            drop(wire);
            panic!("as the script says");
        }
        if !wire.lends || wire.room == Some(0) || wire.fails.is_some() {
            return false;
        }
        wire.room = wire.room.map(|room| room - 1);
        wire.offered.push(1);
        wire.offered_by_size.count(1);
        wire.ages.count(now.since(Instant(packet.enqueued_ns)));
        wire.sent.push((packet.cookie, now));
        wire.lent.push(payload.to_vec());
        if let Some(list) = wire.comes.take() {
            let port = self.port.get().and_then(Weak::upgrade).expect("the world is alive");
            let ran = port.xmit(list, now, &Notes::default()).expect("there is room");
            assert_eq!(ran, None, "it has an owner");
        }
        if wire.closes.is_some() {
            let port = self.port.get().and_then(Weak::upgrade).expect("the world is alive");
            wire.closes = Some(port.close(now, &Notes::default()).is_some());
        }
        true
    }
}

impl World {
    pub(crate) fn new(qdisc: &str, cap: u16) -> Self {
        Self::with(qdisc, cap, Mode::Hybrid, None)
    }

    pub(crate) fn with(qdisc: &str, cap: u16, mode: Mode, share: Option<Share>) -> Self {
        Self::with_options(qdisc, cap, PortOptions { mode, share, ..PortOptions::default() })
    }

    pub(crate) fn with_options(qdisc: &str, cap: u16, options: PortOptions) -> Self {
        let spec: Spec = qdisc.parse().expect("a qdisc");
        Self::over(spec.build(MTU), cap, options)
    }

    pub(crate) fn over(qdisc: Box<dyn Qdisc>, cap: u16, options: PortOptions) -> Self {
        let mode = options.mode;
        let wire = Arc::new(Mutex::new(Wire { retry_ns: 50_000, calls: 1, ..Wire::default() }));
        let port = Arc::new(OnceLock::new());
        let info = DeviceInfo::new("script".to_owned(), MTU);
        let device = Script { info, wire: wire.clone(), port: port.clone() };
        let world = Arc::new(Port::with_options(qdisc, device, cap, options));
        port.set(Arc::downgrade(&world)).expect("the first");
        let waker = Notes::default();
        Self { port: world, waker, now: START, pushed: 0, mode, wire }
    }

    pub(crate) fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap()
    }

    /// Makes the next `count` packets, all of one flow. Their cookies count all packets of the
    /// test.
    pub(crate) fn packets(&mut self, count: u64) -> PacketList {
        let first = self.pushed;
        self.pushed += count;
        (first..self.pushed).map(|cookie| packet(cookie, 7, self.now)).collect()
    }

    /// Pushes `count` packets as one list.
    pub(crate) fn push(&mut self, count: u64) -> Option<Ran> {
        let list = self.packets(count);
        self.port.xmit(list, self.now, &self.waker).expect("there is room")
    }

    /// Offers a packet of 100 bytes whose payload is `payload`. Returns the packet if the port has
    /// not sent it; the caller then has to push it.
    pub(crate) fn lend(&mut self, payload: &[u8]) -> Result<Ran, (Packet, Option<Ran>)> {
        let pkt = packet(self.pushed, 7, self.now);
        let ran = self.port.xmit_lent(pkt, payload, self.now, &self.waker);
        self.pushed += u64::from(ran.is_ok());
        ran
    }

    /// Makes the device take nothing, and makes the port busy. Returns the number of packets that
    /// the port then holds.
    pub(crate) fn make_stuck(&mut self) -> u64 {
        self.wire().room = Some(0);
        let _ = self.push(1);
        let _ = self.push(30);
        assert!(self.port.is_busy(), "so many at one time make it busy");
        self.check();
        31
    }

    /// Pushes `count` packets, and visits until all of them are in the qdisc, at the current time.
    pub(crate) fn enqueue(&mut self, count: u64) {
        let _ = self.push(count);
        while self.stats().enqueued < self.pushed || self.waker.due() == Some(self.now) {
            let _ = self.visit();
        }
    }

    pub(crate) fn help(&self) -> Option<Ran> {
        self.port.help(self.now, &self.waker)
    }

    /// Visits the port as the runner does: forgets the requested visits, then visits.
    pub(crate) fn visit(&self) -> Ran {
        self.waker.forget();
        let ran = self.port.visit(self.now, &self.waker).expect("nobody is inside");
        if ran.again {
            self.waker.visit_by(self.now);
        }
        ran
    }

    /// Advances the time to the requested visit, and visits.
    pub(crate) fn next_visit(&mut self) -> Ran {
        self.now = self.now.max(self.waker.due().expect("the runner was asked"));
        self.visit()
    }

    /// Visits whenever a visit is due, until none is requested. Returns the number of visits.
    pub(crate) fn settle(&mut self) -> u32 {
        let mut visits = 0;
        while self.waker.due().is_some() {
            let _ = self.next_visit();
            visits += 1;
            assert!(visits < 100_000, "the runner is kept busy for ever: {:?}", self.port);
        }
        visits
    }

    pub(crate) fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
    }

    /// Returns the cookies of the packets that the device took.
    pub(crate) fn sent(&self) -> Vec<u64> {
        self.wire().sent.iter().map(|(cookie, _)| *cookie).collect()
    }

    pub(crate) fn stats(&self) -> PortSnapshot {
        self.port.snapshot()
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.port.stats().dropped.get(reason)
    }

    /// Checks what must hold whenever the port has no owner.
    #[track_caller]
    pub(crate) fn check(&self) {
        let stats = self.stats();
        let dropped: u64 = stats.dropped.iter().map(|(_, n)| n).sum();
        assert_eq!(self.pushed, stats.sent + dropped + stats.held, "conservation");
        assert_eq!(stats.sent, self.wire().sent.len() as u64, "what the device took");
        assert_eq!(self.port.is_quiet(), stats.held == 0, "quiet is nothing held");
        assert!(stats.held == 0 || self.waker.due().is_some(), "held, and nobody knows");
        let busy = self.port.is_busy() && self.mode != Mode::Dedicated;
        assert!(!busy || self.waker.due().is_some(), "busy, and nobody knows");
        assert_eq!(stats.bursts, self.wire().offered.len() as u64);
        assert_eq!(stats.burst_packets, self.wire().offered_by_size.0, "one entry a call");
        assert_eq!(stats.sojourn_ns, self.wire().ages.0, "one entry a call that took any");
    }
}

/// Makes a packet of 100 bytes.
pub(crate) fn packet(cookie: u64, flow: u64, now: Instant) -> Packet {
    let mut pkt = Packet::new(100);
    (pkt.cookie, pkt.flow, pkt.enqueued_ns) = (cookie, flow, now.0);
    pkt
}
