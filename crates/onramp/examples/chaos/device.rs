//! Devices that fill up, dawdle, block and die, and the receivers behind some of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::{Loopback, Network};
use onramp::{Device, DeviceInfo, DropReason, Instant, Packet, PacketList, Transmitted};

use crate::counts::Met;
use crate::plan::{Fault, Plan};
use crate::watch::{Doing, Slot, Watch, nanos, note_moved, now};

/// What a planned panic says first.
pub(crate) const DEAD: &str = "planned: a device dies";
/// Devices that block at the same time.
const BLOCKED_MAX: u32 = 2;
/// Flows in a world that are watched for packets which overtake others.
const FLOWS: usize = 1 << 18;
/// The number of a flow whose packets may come in any order.
pub(crate) const UNORDERED: u64 = 0;
/// Lives of senders in a world that are watched for packets that leave after a flush.
const LIVES: usize = 1 << 16;

/// What the devices and receivers of a world share.
pub(crate) struct Weather {
    pub(crate) watch: Arc<Watch>,
    /// The last packet of each sender that a flush said is gone.
    pub(crate) flushed: Box<[AtomicU64]>,
    /// The last packet of each flow that came to a device, by [`new_order`](Self::new_order).
    came: Box<[AtomicU64]>,
    orders: AtomicU64,
    /// Some packets are copies: their number says nothing.
    pub(crate) copies: bool,
    /// The packets of a flow seem to come in the wrong order.
    overtakes: bool,
    /// All devices die at the next burst.
    pub(crate) doom: AtomicBool,
    /// Receivers read at once all there is.
    pub(crate) revive: AtomicBool,
    /// Receivers go.
    pub(crate) over: AtomicBool,
    /// Each device blocks at its next call, once.
    pub(crate) storm: AtomicBool,
    /// They block for seconds, and there may be as many of them as there are.
    hard: bool,
    blocked: AtomicU32,
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
        })
    }

    /// Some device blocks just now.
    pub(crate) fn blocks(&self) -> bool {
        self.blocked.load(SeqCst) > 0
    }

    /// A flush of sender `id` said that its packets up to `number` are gone.
    pub(crate) fn flushed(&self, id: u64, number: u64) {
        if let Some(last) = usize::try_from(id).ok().and_then(|id| self.flushed.get(id)) {
            last.store(number, SeqCst);
        }
    }

    /// A number for a flow whose packets are to keep their order.
    pub(crate) fn new_order(&self) -> u64 {
        // Ports may come and go for longer than a late packet is waited for.
        if self.hard { UNORDERED } else { self.orders.fetch_add(1, SeqCst) }
    }

    /// A packet comes to a device: none of its flow may have overtaken it.
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

    /// A packet that is still below: no flush may have said that it is gone.
    fn check(&self, packet: &Packet) {
        let Some(Stamp { id, number, .. }) = unstamp(packet.payload()) else { return };
        let last = usize::try_from(id).ok().and_then(|id| self.flushed.get(id));
        let last = last.map_or(0, |last| last.load(SeqCst));
        if number <= last && !self.copies {
            self.watch.failed(&format!(
                "a flush of sender {id} said that its packets up to {last} are gone, and {number} \
                 leaves now"
            ));
        }
    }
}

/// What a payload says.
#[derive(Clone, Copy)]
struct Stamp {
    /// Who submits the packet.
    id: u64,
    /// How many that one submitted before.
    number: u64,
    /// Its flow.
    order: u64,
}

/// The payload of a packet that may overtake others.
pub(crate) fn stamp(id: u64, number: u64) -> [u8; 24] {
    ordered(id, number, UNORDERED)
}

/// The payload of a packet that may not overtake others of its flow.
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

/// A device with a will of its own.
pub(crate) struct Moody {
    info: DeviceInfo,
    rng: Rng,
    weather: Arc<Weather>,
    /// Where packets go; `None`: nowhere.
    to: Option<Loopback>,
    full_until: Instant,
    /// It does not block before.
    calm_until: Instant,
    mortal: bool,
    stormed: bool,
    /// Packets that it did not take last time.
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

    /// Keeps whoever sends for a while, if not too many are kept.
    fn block(&mut self, now: Instant) {
        let blocked = &self.weather.blocked;
        let (max, range) =
            if self.weather.hard { (u32::MAX, 2_000..4_000) } else { (BLOCKED_MAX, 50..400) };
        let enter = |count: u32| (count < max).then_some(count + 1);
        if now > self.calm_until && blocked.fetch_update(SeqCst, SeqCst, enter).is_ok() {
            Met::Blocks.note();
            thread::sleep(Duration::from_millis(self.rng.u64(range)));
            blocked.fetch_sub(1, SeqCst);
            // In `now` it was not blocked yet.
            self.calm_until = now + Duration::from_secs(if self.weather.hard { 8 } else { 1 });
        }
    }
}

impl Device for Moody {
    fn info(&self) -> &DeviceInfo {
        &self.info
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
        // It sees what it left once more, first.
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
                // One that does not say until when is asked after a tick.
                let retry_at = self.rng.bool().then_some(self.full_until);
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
}

/// Receives at place `index` by its mood: reads all, a little, nothing for a long time, or goes.
/// From the time `mute` on it reads nothing until the world is over.
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

/// Sleeps until `is`, for at most `time`.
pub(crate) fn while_not(is: impl Fn() -> bool, time: Duration) {
    let end = now() + nanos(time);
    while !is() && now() < end {
        thread::sleep(Duration::from_millis(2));
    }
}
