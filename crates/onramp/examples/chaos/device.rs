//! Devices that fill up, respond slowly, block and die, and the receivers behind some of them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::{Loopback, Network};
use onramp::{
    Device, DeviceInfo, DeviceWaker, DropReason, Instant, Packet, PacketList, Transmitted,
};

use crate::counts::Met;
use crate::plan::{Fault, Plan};
use crate::watch::{Doing, Slot, Watch, lock, nanos, note_moved, now};

/// The message of a panic that a device causes on purpose.
pub(crate) const DEAD: &str = "planned: a device dies";
/// Greatest number of devices that block at the same time.
const BLOCKED_MAX: u32 = 2;
/// Number of flows in a world whose packets devices check for their order.
const FLOWS: usize = 1 << 18;
/// The number that stands for every flow whose packets may arrive in any order.
pub(crate) const UNORDERED: u64 = 0;
/// Number of senders in a world for which devices check that no packet leaves after a flush has
/// reported it as gone.
const LIVES: usize = 1 << 16;

/// State that all devices and receivers of a world (the test run of one link) share.
pub(crate) struct Weather {
    pub(crate) watch: Arc<Watch>,
    /// For each sender, the number of its last packet that a flush reported as gone (sent or
    /// dropped).
    pub(crate) flushed: Box<[AtomicU64]>,
    /// For each flow, the number of the last packet that came to a device. The index is the flow's
    /// number from [`new_order`](Self::new_order).
    came: Box<[AtomicU64]>,
    orders: AtomicU64,
    /// Whether a qdisc makes copies of packets. A copy has the same stamp as the original, so
    /// devices then check neither the order of packets nor what a flush has reported.
    pub(crate) copies: bool,
    /// Whether devices report a wrong order of packets on purpose, to test that such a fault is
    /// found.
    overtakes: bool,
    /// Whether every device dies (panics) at its next burst.
    pub(crate) doom: AtomicBool,
    /// Whether receivers read all packets that arrive, without pauses, so that the world comes to
    /// its end.
    pub(crate) revive: AtomicBool,
    /// Whether receivers have to end.
    pub(crate) over: AtomicBool,
    /// Set when the link is about to be closed: each device then blocks once more, at its next
    /// call.
    pub(crate) storm: AtomicBool,
    /// Whether devices block for seconds, and any number of them at the same time; otherwise, they
    /// block for less than half a second, and few of them at the same time.
    hard: bool,
    blocked: AtomicU32,
    /// The handles of all devices by which they tell their ports that they have room. Handles of
    /// removed and of dead ports stay.
    wakers: Mutex<Vec<DeviceWaker>>,
}

impl Weather {
    pub(crate) fn new(watch: &Arc<Watch>, plan: &Plan) -> Arc<Self> {
        Arc::new(Self {
            watch: watch.clone(),
            flushed: (0..LIVES).map(|_| AtomicU64::new(0)).collect(),
            came: (0..FLOWS).map(|_| AtomicU64::new(0)).collect(),
            orders: AtomicU64::new(UNORDERED + 1),
            copies: plan.copies,
            overtakes: plan.fault == Some(Fault::Overtakes),
            doom: AtomicBool::new(false),
            revive: AtomicBool::new(false),
            over: AtomicBool::new(false),
            storm: AtomicBool::new(false),
            hard: plan.hard,
            blocked: AtomicU32::new(0),
            wakers: Mutex::default(),
        })
    }

    /// Whether any device blocks its caller at present.
    pub(crate) fn blocks(&self) -> bool {
        self.blocked.load(SeqCst) > 0
    }

    /// Returns the handle of a random device, by which it tells its port that it has room.
    pub(crate) fn waker(&self, rng: &mut Rng) -> Option<DeviceWaker> {
        let wakers = lock(&self.wakers);
        (!wakers.is_empty()).then(|| wakers[rng.usize(0..wakers.len())].clone())
    }

    /// Records that a flush of sender `id` has reported all of its packets up to `number` as gone.
    pub(crate) fn flushed(&self, id: u64, number: u64) {
        if let Some(last) = usize::try_from(id).ok().and_then(|id| self.flushed.get(id)) {
            last.store(number, SeqCst);
        }
    }

    /// Returns a number for a flow whose packets have to keep their order, so that devices can
    /// check it.
    pub(crate) fn new_order(&self) -> u64 {
        // In worlds whose devices block for seconds, packets of a flow may overtake each other: the
        // flows of a removed port wait for a packet that is still in the port, but only for about a
        // second.
        if self.hard { UNORDERED } else { self.orders.fetch_add(1, SeqCst) }
    }

    /// Checks the order when a packet comes to a device: no later packet of its flow may have come
    /// before it.
    fn comes(&self, packet: &Packet) {
        let Some(Stamp { id, number, order }) = unstamp(packet.payload()) else { return };
        let last = usize::try_from(order).ok().and_then(|order| self.came.get(order));
        let Some(last) = last.filter(|_| order != UNORDERED && !self.copies) else { return };
        let before = last.swap(number, SeqCst);
        let number = if self.overtakes { number.min(before) } else { number };
        if before >= number {
            self.watch.failed(&format!(
                "packet {number} of sender {id} was OVERTAKEN by its {before} in the same flow"
            ));
        }
    }

    /// Checks that a packet that is only now leaving the link was not reported as gone by a flush.
    fn check(&self, packet: &Packet) {
        let Some(Stamp { id, number, .. }) = unstamp(packet.payload()) else { return };
        let last = usize::try_from(id).ok().and_then(|id| self.flushed.get(id));
        let last = last.map_or(0, |last| last.load(SeqCst));
        if number <= last && !self.copies {
            self.watch.failed(&format!(
                "a flush of sender {id} covered its packets up to {last}, but packet {number} \
                 leaves now"
            ));
        }
    }
}

/// The stamp that a payload begins with, which says where the packet comes from.
#[derive(Clone, Copy)]
struct Stamp {
    /// Number of the sender that submits the packet.
    id: u64,
    /// Number of the packet among the packets of that sender, counted from 1.
    number: u64,
    /// Number of the flow, for checks of the order.
    order: u64,
}

/// Returns the stamp of a packet that may overtake others.
pub(crate) fn stamp(id: u64, number: u64) -> [u8; 24] {
    ordered(id, number, UNORDERED)
}

/// Returns the stamp of a packet that must not overtake others of its flow.
pub(crate) fn ordered(id: u64, number: u64, order: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&id.to_ne_bytes());
    bytes[8..16].copy_from_slice(&number.to_ne_bytes());
    bytes[16..].copy_from_slice(&order.to_ne_bytes());
    bytes
}

fn unstamp(payload: &[u8]) -> Option<Stamp> {
    let (words, _) = payload.as_chunks();
    let [id, number, order] = words.first_chunk()?.map(u64::from_ne_bytes);
    Some(Stamp { id, number, order })
}

/// A device that behaves randomly: it may be full, slow, block or die.
pub(crate) struct Moody {
    info: DeviceInfo,
    rng: Rng,
    weather: Arc<Weather>,
    /// The queue to the receivers, to which this device gives its packets. `None`: the device
    /// discards its packets.
    to: Option<Loopback>,
    full_until: Instant,
    /// The device does not block its caller before this time.
    calm_until: Instant,
    mortal: bool,
    stormed: bool,
    /// Number of packets of the last burst that the device did not take.
    left: u32,
}

impl Moody {
    pub(crate) fn boxed(
        rng: &mut Rng,
        weather: &Arc<Weather>,
        network: Option<&Network>,
        mortal: bool,
    ) -> Box<Self> {
        Box::new(Self {
            info: DeviceInfo::new("moody".to_owned(), 1_514),
            rng: rng.fork(),
            weather: weather.clone(),
            to: network.map(Network::queue),
            full_until: Instant(0),
            calm_until: Instant(0),
            mortal,
            stormed: false,
            left: 0,
        })
    }

    /// Blocks the calling thread for a while, unless too many devices block already.
    fn block(&mut self, now: Instant) {
        let blocked = &self.weather.blocked;
        let (max, range) =
            if self.weather.hard { (u32::MAX, 2_000..4_000) } else { (BLOCKED_MAX, 50..400) };
        let enter = |count: u32| (count < max).then_some(count + 1);
        if now > self.calm_until && blocked.fetch_update(SeqCst, SeqCst, enter).is_ok() {
            Met::Blocks.note();
            thread::sleep(Duration::from_millis(self.rng.u64(range)));
            blocked.fetch_sub(1, SeqCst);
            // `now` is the time at which the call began, before the device blocked.
            self.calm_until = now + Duration::from_secs(if self.weather.hard { 8 } else { 1 });
        }
    }
}

impl Device for Moody {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, waker: DeviceWaker) {
        lock(&self.weather.wakers).push(waker);
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        assert!(!self.weather.doom.load(SeqCst), "{DEAD}");
        if !self.stormed && self.weather.storm.load(SeqCst) {
            self.stormed = true;
            self.calm_until = Instant(0);
            self.block(now);
        }
        if now < self.full_until {
            return Transmitted { calls: 0, messages: 0, retry_at: Some(self.full_until) };
        }
        // The burst begins with the packets that the device did not take last time. Their order was
        // checked then.
        let mut seen = std::mem::replace(&mut self.left, burst.len());
        let look = |packet: &Packet| {
            self.weather.check(packet);
            match seen.checked_sub(1) {
                Some(left) => seen = left,
                None => self.weather.comes(packet),
            }
        };
        *burst = burst.by_ref().inspect(look).collect();
        let before = burst.len();
        let mut out = Transmitted::default();
        match self.rng.u32(0..4_000) {
            0 if self.mortal && self.rng.u32(0..3) == 0 => panic!("{DEAD}"),
            1..=19 => {
                self.full_until = now.after(self.rng.u64(0..5_000_000));
                // If the device does not say when it will have room again, the port asks again
                // after one tick. A device may also name a later time, and then tell its port that
                // it has room, or not.
                let late = now.after(self.rng.u64(5_000_000..100_000_000));
                let retry_at = [None, Some(self.full_until), Some(late)][self.rng.usize(0..3)];
                return Transmitted { calls: 1, messages: 0, retry_at };
            }
            20..=29 => thread::sleep(Duration::from_millis(self.rng.u64(1..=3))),
            30..=31 => self.block(now),
            32..=60 => {
                let few = self.rng.usize(0..=burst.len() as usize);
                done.extend(burst.by_ref().take(few));
                out = Transmitted { calls: 1, messages: 1, retry_at: Some(now.after(20_000)) };
            }
            61..=100 => {
                for mut packet in burst.by_ref() {
                    if self.rng.bool() {
                        packet.drop_reason = Some(DropReason::Unreachable);
                    }
                    done.push_back(packet);
                }
            }
            _ => match &mut self.to {
                Some(to) => out = to.transmit(burst, done, now),
                None => done.append(burst),
            },
        }
        self.left = burst.len();
        note_moved((before - burst.len()).into());
        out
    }

    fn transmit_lent(&mut self, packet: &Packet, payload: &[u8], now: Instant) -> bool {
        assert!(!self.weather.doom.load(SeqCst), "{DEAD}");
        if self.to.is_some() || now < self.full_until {
            return false;
        }
        match self.rng.u32(0..400) {
            0 if self.mortal && self.rng.u32(0..3) == 0 => panic!("{DEAD}"),
            1 => self.block(now),
            2..=40 => return false,
            _ => {}
        }
        assert_eq!(self.left, 0, "a packet is lent only to a port that holds none");
        Met::Lent.note();
        let whole = packet.duplicate_with(payload);
        self.weather.check(&whole);
        self.weather.comes(&whole);
        note_moved(1);
        true
    }
}

/// Receives packets as receiver `index` in random ways: reads all packets, reads a few, reads none
/// for a long time, or drops the receiver and makes a new one. From the time `mute` on, reads
/// nothing until the world is over.
pub(crate) fn receive(
    slot: &Slot,
    weather: &Weather,
    network: &Network,
    index: usize,
    mute: Option<u64>,
    rng: &mut Rng,
) {
    let short = Duration::from_secs(5);
    let over = || weather.over.load(SeqCst);
    let mut receiver = network.receiver(index);
    while !over() {
        if let Some(waker) = weather.waker(rng).filter(|_| rng.u32(0..10) == 0) {
            slot.call(Doing::WakePort, short, 1, || waker.wake());
        }
        if mute.is_some_and(|mute| now() > mute) {
            while_not(over, Duration::from_secs(3_600));
            break;
        }
        let Some(here) = &mut receiver else {
            thread::sleep(Duration::from_millis(rng.u64(1..20)));
            receiver = network.receiver(index);
            continue;
        };
        if weather.revive.load(SeqCst) {
            slot.call(Doing::Receive, short, 0, || drop(here.recv_all()));
            thread::sleep(Duration::from_micros(300));
            continue;
        }
        match rng.u32(0..100) {
            0 => slot.call(Doing::DropReceiver, short, 0, || drop(receiver.take())),
            1..=2 => {
                let long = Duration::from_millis(rng.u64(50..900));
                while_not(|| over() || weather.revive.load(SeqCst), long);
            }
            3..=30 => {
                for _ in 0..rng.u32(0..60) {
                    let packet = slot.call(Doing::Receive, short, 0, || here.try_recv());
                    slot.call(Doing::DropPacket, short, 0, || drop(packet));
                    thread::sleep(Duration::from_micros(rng.u64(0..1_000)));
                    if over() || weather.revive.load(SeqCst) {
                        break;
                    }
                }
            }
            31..=45 => {
                let time = Duration::from_millis(rng.u64(0..20));
                drop(slot.wait(Doing::Receive, time, 1, || here.recv_timeout(time)));
            }
            _ => {
                slot.call(Doing::Receive, short, 2, || drop(here.recv_all()));
                thread::sleep(Duration::from_micros(rng.u64(0..500)));
            }
        }
    }
    slot.call(Doing::DropReceiver, short, 1, || drop(receiver));
}

/// Sleeps until `is` returns true, for at most `time`.
pub(crate) fn while_not(is: impl Fn() -> bool, time: Duration) {
    let end = now() + nanos(time);
    while !is() && now() < end {
        thread::sleep(Duration::from_millis(2));
    }
}
