//! Demands that change each second, in virtual time: what classes count, what hosts claim for it,
//! and what the classes send.

use std::ops::Range;
use std::time::Duration;

use onramp_core::view::Counted;
use onramp_fleet::world::World;
use onramp_fleet::{Claim, Definition, Meter, divide};

const MBIT: u64 = 125_000;
const RATE: u64 = 200 * MBIT;
const FLOOR: u64 = MBIT / 10;
const HOSTS: u32 = 50;
const BURST: u64 = 8_000;
/// Traffic passes in steps of this length.
const STEP: Duration = Duration::from_millis(1);
/// In a tick.
const TICK_STEPS: u64 = 100;
/// A step is the 1,000th part of a second, so bytes per second are 1,000ths of bytes in a step.
const STEPS: u64 = 1_000;

/// A host's class: a bucket, a queue of ten packets, and a sender that sends at its own rate
/// whatever becomes of it, or one that has a window of packets, which come home at once.
struct Class {
    weight: u32,
    want: u64,
    window: Option<u64>,
    size: u64,
    /// What is to come, and what may leave, in thousandths of bytes.
    due: u64,
    tokens: u64,
    counted: Counted,
    meter: Meter,
    /// The step of each tick in which the meter reads.
    phase: u64,
}

impl Class {
    fn step(&mut self, rate: u64) {
        let packet = self.size * STEPS;
        if let Some(window) = self.window {
            self.counted.backlog_bytes = window * self.size;
        } else {
            self.due += self.want;
        }
        while self.due >= packet {
            self.due -= packet;
            if self.counted.backlog_bytes < 10 * self.size {
                self.counted.backlog_bytes += self.size;
            } else {
                self.counted.dropped_packets += 1;
            }
        }
        self.tokens += rate;
        while self.counted.backlog_bytes > 0 && self.tokens >= packet {
            self.tokens -= packet;
            self.counted.backlog_bytes -= self.size;
            self.counted.sent_bytes += self.size;
            self.counted.sent_packets += 1;
        }
        self.tokens = self.tokens.min(BURST.max(self.size) * STEPS);
    }
}

/// Source: SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

struct Fleet {
    world: World,
    classes: Vec<Class>,
    step: u64,
    random: Random,
}

/// What the hosts may send 0.5 s after a change, and what they sent from then to 1 s after it, as
/// parts.
struct Seen {
    /// The sum of what all hosts sent, of what they could send: one for each second.
    sums: Vec<f64>,
    /// How far all hosts together have come on the ways from their shares before the change to
    /// those after it, 0.5 s after it, by what they may send: one for each second.
    moves: Vec<f64>,
    /// How far each host is on its way by what it sent, for shares that changed by more than a
    /// quarter.
    ways: Vec<f64>,
}

impl Fleet {
    fn new(hosts: u32, size: u64, latency: Range<Duration>) -> Self {
        let mut random = Random(1);
        let mut world = World::new(7, latency);
        let limit = Definition {
            rate: RATE,
            weight: 1,
            guaranteed: 0,
            hosts,
            floor: FLOOR,
            burst: None,
            parent: None,
        };
        world.set("tenant", limit).expect("a sound limit");
        let mut class = |weight| {
            world.join("tenant", weight);
            let (want, window, due, tokens, counted, meter) = Default::default();
            let phase = random.below(TICK_STEPS);
            Class { weight, want, window, size, due, tokens, counted, meter, phase }
        };
        let classes = (0..hosts).map(|host| class(1 + host % 4)).collect();
        Self { world, classes, step: 0, random }
    }

    fn pass(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step += 1;
            let now = self.world.now() + STEP;
            self.world.run(now, |_| {});
            for (host, class) in self.classes.iter_mut().enumerate() {
                let rate = self.world.rate(host);
                class.step(rate);
                if self.step % TICK_STEPS == class.phase {
                    let traffic = class.meter.read(now, class.counted, rate);
                    self.world.set_demand(host, traffic.demand);
                }
            }
        }
    }

    /// Returns what each host can send, by the arithmetic, in bytes per second.
    fn shares(&self) -> Vec<u64> {
        let claim = |class: &Class| Claim::new(class.weight, FLOOR, class.want);
        let claims: Vec<_> = self.classes.iter().map(claim).collect();
        let fair = divide(RATE, &claims).into_iter();
        fair.zip(&self.classes).map(|(share, class)| share.min(class.want)).collect()
    }

    /// Returns what each host may send, as far as it wants to.
    fn held(&self) -> Vec<u64> {
        (0..)
            .zip(&self.classes)
            .map(|(host, class)| self.world.rate(host).min(class.want))
            .collect()
    }

    fn sent(&self) -> Vec<u64> {
        self.classes.iter().map(|class| class.counted.sent_bytes).collect()
    }

    fn change_demands(&mut self, seconds: usize) -> Seen {
        let (mut sums, mut moves, mut ways) = (Vec::new(), Vec::new(), Vec::new());
        self.pass(1_000);
        for _ in 0..seconds {
            let before = self.shares();
            for class in &mut self.classes {
                let at = usize::try_from(self.random.below(5)).expect("it is small");
                class.want = [1, 2, 4, 8, 12][at] * MBIT;
            }
            let after = self.shares();
            self.pass(500);
            let (sent, held) = (self.sent(), self.held());
            self.pass(500);
            let rates: Vec<_> =
                sent.iter().zip(self.sent()).map(|(was, is)| 2 * (is - was)).collect();
            sums.push(part(rates.iter().sum(), after.iter().sum()));
            let far = |from: &[u64]| from.iter().zip(&after).map(|(a, b)| a.abs_diff(*b)).sum();
            moves.push(1.0 - part(far(&held), far(&before)));
            for ((old, new), rate) in before.iter().zip(after).zip(rates) {
                if new.abs_diff(*old) > new / 4 {
                    let (old, new, rate) = (*old as f64, new as f64, rate as f64);
                    ways.push((rate - old) / (new - old));
                }
            }
            // The next change comes in another step of the hosts' ticks.
            let rest = self.random.below(TICK_STEPS);
            self.pass(rest);
        }
        Seen { sums, moves, ways }
    }
}

fn part(of: u64, all: u64) -> f64 {
    of as f64 / all as f64
}

fn percentile(mut parts: Vec<f64>, percent: usize) -> f64 {
    parts.sort_by(f64::total_cmp);
    parts[parts.len() * percent / 100]
}

fn ms(range: Range<u64>) -> Range<Duration> {
    Duration::from_millis(range.start)..Duration::from_millis(range.end)
}

#[test]
fn classes_follow_demands_within_half_a_second() {
    let seen = Fleet::new(HOSTS, 1_500, ms(1..4)).change_demands(40);
    assert!(seen.sums.iter().all(|sum| (0.98..1.02).contains(sum)), "{:?}", seen.sums);
    assert!(seen.moves.iter().all(|way| *way >= 0.95), "{:?}", seen.moves);
    let way = percentile(seen.ways, 5);
    assert!(way >= 0.95, "{way}");
}

/// A packet of 4,000 bytes is a third of what the smallest demands send in a tick, and ten of them
/// are a queue that these demands need a third of a second for.
#[test]
fn large_packets_leave_little_of_the_limit_unused() {
    let seen = Fleet::new(HOSTS, 4_000, ms(1..4)).change_demands(40);
    assert!(seen.sums.iter().all(|sum| (0.98..1.02).contains(sum)), "{:?}", seen.sums);
    let (few, half) = (percentile(seen.ways.clone(), 5), percentile(seen.ways, 50));
    assert!(few >= 0.85 && half >= 0.98, "{few} {half}");
}

/// A sender with a window, as TCP has one, never shows that it wants more than it gets. Beside
/// three that want everything it has its share, or what its window can do, within ten seconds.
#[test]
fn a_sender_with_a_window_gets_its_share() {
    for (packets, size) in [(1, 1_500), (2, 1_500), (10, 1_500), (80, 1_500), (1, 64_000)] {
        let mut fleet = Fleet::new(4, size, ms(1..4));
        for class in &mut fleet.classes {
            class.want = RATE;
        }
        fleet.classes[0].want = 0;
        fleet.pass(3_000);
        fleet.classes[0].window = Some(packets);
        fleet.pass(10_000);
        let before = fleet.sent()[0];
        fleet.pass(3_000);
        let rate = (fleet.sent()[0] - before) / 3;
        let could = (RATE / 10).min(packets * size * STEPS);
        assert!(rate >= could * 8 / 10, "{packets} packets of {size} bytes: {rate} of {could}");
    }
}

/// The tests of fifty hosts can fail: they do if the engine is far away.
#[test]
fn a_slow_exchange_is_seen() {
    let seen = Fleet::new(HOSTS, 1_500, ms(100..150)).change_demands(10);
    let (sum, way) = (percentile(seen.sums, 5), percentile(seen.ways, 5));
    assert!(sum < 0.98 && way < 0.85, "{sum} {way}");
}
