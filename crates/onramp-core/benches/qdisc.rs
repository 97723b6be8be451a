//! Nanoseconds per packet, enqueue and dequeue together, for every kind.
//!
//! A standing backlog of one packet for each flow (at least 256) is turned over in bursts of 32: 32
//! packets leave, and come back for flows in random order. So every packet finds caches as cold as
//! its backlog makes them, nothing is allocated, and nothing is dropped. `fq, paced` gives each
//! flow a rate such that one packet is due every 100 ns, and time goes on that fast; `binary heap`
//! is what one writes without a qdisc: next departure times in a `HashMap`, packets in a
//! `BinaryHeap` by departure time.
//!
//! Run: `cargo bench -p onramp-core`, or with `-- fq@1000` for one row. Each figure is
//! the best of 7 runs, median and worst behind it; the time is this thread's own on the CPU
//! where the system tells it (Linux): so others disturb less.

use std::collections::{BinaryHeap, HashMap};
use std::hint::black_box;
use std::sync::OnceLock;

use onramp_core::qdisc::{KINDS, Spec};
use onramp_core::{Instant, Tree};
use onramp_queue::{Packet, PacketList};

const BURST: u32 = 32;
const RUNS: usize = 7;
const PACKET_NS: u64 = 100;
/// Flows of the next packets, made up beforehand.
const KEYS: usize = 1 << 18;

/// What is measured.
trait Scheduler {
    fn put(&mut self, now: Instant, packets: PacketList);
    fn take(&mut self, now: Instant, out: &mut PacketList);
}

impl Scheduler for Tree {
    fn put(&mut self, now: Instant, packets: PacketList) {
        let dropped = self.enqueue_list(now, packets);
        assert_eq!(dropped, 0, "the limits leave room");
    }
    fn take(&mut self, now: Instant, out: &mut PacketList) {
        let _ = black_box(self.dequeue_list(now, BURST, out));
    }
}

/// Departure by departure time, first in first out within a flow.
#[derive(Default)]
struct Heap {
    departures: HashMap<u64, u64>,
    heap: BinaryHeap<Entry>,
    place: u64,
    gap_ns: u64,
}

struct Entry {
    key: (u64, u64),
    pkt: Packet,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.key.cmp(&self.key)
    }
}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}
impl Eq for Entry {}

impl Scheduler for Heap {
    fn put(&mut self, now: Instant, packets: PacketList) {
        for pkt in packets {
            let departure = self.departures.entry(pkt.flow).or_default();
            let at = (*departure).max(now.0);
            *departure = at + self.gap_ns;
            self.place += 1;
            self.heap.push(Entry { key: (at, self.place), pkt });
        }
    }
    fn take(&mut self, now: Instant, out: &mut PacketList) {
        for _ in 0..BURST {
            if self.heap.peek().is_none_or(|entry| entry.key.0 > now.0) {
                return;
            }
            out.extend(self.heap.pop().map(|entry| entry.pkt));
        }
    }
}

/// Numbers without order (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Nanoseconds per packet.
fn measure(scheduler: &mut dyn Scheduler, flows: u64) -> f64 {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let mut now = Instant(1_000_000_000);
    let backlog = flows.max(256);
    let key = |n: u64| (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let keys: Vec<u64> = (0..KEYS).map(|_| key(random.below(flows))).collect();
    let mut keys = keys.iter().cycle();
    for n in 0..backlog {
        let mut pkt = Packet::new(1500);
        pkt.flow = key(n % flows);
        scheduler.put(now, PacketList::from_iter([pkt]));
    }
    let rounds = (2_000_000 / u64::from(BURST)).max(4 * backlog / u64::from(BURST));
    let (mut passed, mut start) = (0, clock_ns());
    for round in 0..rounds + rounds / 4 {
        if round == rounds / 4 {
            (passed, start) = (0, clock_ns());
        }
        now = now.after(PACKET_NS * u64::from(BURST));
        let mut burst = PacketList::new();
        scheduler.take(now, &mut burst);
        passed += u64::from(burst.len());
        let renamed = burst.map(|mut pkt| {
            pkt.flow = *keys.next().expect("a cycle never ends");
            pkt.enqueued_ns = 0;
            pkt
        });
        let burst = renamed.collect();
        scheduler.put(now, burst);
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ns = (clock_ns() - start) as f64 / passed as f64;
    ns
}

/// Nanoseconds this thread has run, as far as the system tells: in steps of some milliseconds.
fn clock_ns() -> u128 {
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ran = ran.and_then(|text| text.split(' ').next()?.parse().ok());
    ran.unwrap_or_else(wall_ns)
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn wall_ns() -> u128 {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos()
}

fn report(name: &str, flows: u64, make: &dyn Fn() -> Box<dyn Scheduler>) {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if !wanted.is_empty() && !wanted.iter().any(|arg| *arg == format!("{name}@{flows}")) {
        return;
    }
    let mut figures: Vec<f64> = (0..RUNS).map(|_| measure(&mut *make(), flows)).collect();
    figures.sort_by(f64::total_cmp);
    let (min, median, max) = (figures[0], figures[RUNS / 2], figures[RUNS - 1]);
    println!(
        "{name:12} {flows:>7} flows {min:>7.1} ns/packet  (median {median:.1}, worst {max:.1})"
    );
}

fn main() {
    for flows in [1_u64, 1_000, 100_000] {
        let tree = |line: &str| -> Box<dyn Scheduler> {
            let spec: Spec = line.parse().expect("a correct line");
            Box::new(Tree::new(&spec, 1514))
        };
        for kind in KINDS {
            let line = match kind.id {
                "pfifo" => "pfifo limit 1000000",
                "bfifo" => "bfifo limit 2gb",
                "pfifo_fast" => "pfifo_fast txqueuelen 1000000",
                "fq" => "fq limit 1000000 flow_limit 1000000",
                "cake" => "cake memlimit 1gb",
                other => other,
            };
            report(kind.id, flows, &|| tree(line));
        }
        // One packet of 1500 bytes every 100 ns, shared among the flows.
        let rate = (1500 * 1_000_000_000 / PACKET_NS / flows).max(1);
        let paced = format!(
            "fq limit 1000000 flow_limit 1000000 quantum 1500 maxrate {rate}bps timer_slack 0"
        );
        report("fq, paced", flows, &|| tree(&paced));
        let gap_ns = PACKET_NS * flows;
        report("binary heap", flows, &|| Box::new(Heap { gap_ns, ..Heap::default() }));
    }
}
