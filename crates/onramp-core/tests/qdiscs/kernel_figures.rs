//! Compares our qdiscs with numbers that Linux 7.2 gave for the same generated workloads.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
/// The time at which the workloads begin: 20 s after the machine started.
const START: Instant = Instant(20_000 * MS);
const LEN: u32 = 1_000;

fn tree(line: &str, seed: u64) -> Tree {
    let spec: Spec = line.parse().expect(line);
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev x root handle 1: {spec}")).expect(line);
    Tree::of(&setup, 1514, seed).expect("a root")
}

fn stat(tree: &Tree, name: &str) -> u64 {
    let mut found = 0;
    tree.stats(&mut |key, value| found = if key == name { value } else { found });
    found
}

/// A link that takes `takes_ns` nanoseconds for each packet.
struct Wire {
    takes_ns: u64,
    free_at: Instant,
    /// The time at which the qdisc wants the next dequeue.
    timer: Option<Instant>,
}

impl Wire {
    fn new(takes_ns: u64) -> Self {
        Self { takes_ns, free_at: START, timer: None }
    }

    /// Dequeues and sends packets for as long as the link is free.
    fn ask(&mut self, tree: &mut Tree, now: Instant) {
        self.timer = None;
        while self.free_at <= now {
            match tree.dequeue(now) {
                Dequeue::Ready(_) => self.free_at = now.after(self.takes_ns),
                Dequeue::NotBefore(then) => return self.timer = Some(then),
                Dequeue::Empty => return,
            }
        }
    }

    fn run(&mut self, tree: &mut Tree, until: Instant) {
        while tree.backlog().packets > 0 {
            let next = self.timer.unwrap_or(self.free_at);
            if next > until {
                break;
            }
            self.ask(tree, next);
        }
    }
}

/// Enqueues `count` packets, one every `gap_ns` nanoseconds, and dequeues whenever the link is
/// free. Returns how many packets were dropped by the time the qdisc was empty.
fn offer(tree: &mut Tree, wire_ns: u64, count: u64, gap_ns: u64, priority: u32) -> usize {
    let mut wire = Wire::new(wire_ns);
    for number in 0..count {
        let now = START.after(number * gap_ns);
        wire.run(tree, now);
        let mut pkt = Packet::new(LEN);
        (pkt.enqueued_ns, pkt.priority) = (now.0, priority);
        let _ = tree.enqueue(now, pkt);
        wire.ask(tree, now);
    }
    wire.run(tree, Instant::MAX);
    tree.drops().count()
}

/// A flow of 10 Mbit/s is sent through `fq_pie` over a link of 8 Mbit/s. `drops` is how many of
/// 6,000 packets Linux dropped, on average over six runs. In each tick of its timer (10 ms), Linux
/// updates the drop probabilities of a group of 2,048 flows. 65,536 flows are 32 groups, and Linux
/// pauses for two ticks after the last group, so each flow is updated every 340 ms. When a flow is
/// updated depends on its group.
#[test]
fn many_flows_of_fq_pie_are_updated_in_parts() {
    for (flows, bucket, drops) in
        [(2048, 1, 1196), (65_536, 1, 737), (65_536, 30_000, 809), (8192, 8000, 1196)]
    {
        let line = format!("fq_pie flows {flows}");
        let total: usize = (1..=8)
            .map(|seed| offer(&mut tree(&line, seed), MS, 6_000, 800_000, 0x1_0000 + bucket))
            .sum();
        let mean = total / 8;
        let off = drops * 4 / 100;
        assert!(mean.abs_diff(drops) <= off, "{flows}, {bucket}: {mean}, not {drops}");
    }
}

/// With a memory limit of less than one packet, Linux's `fq_codel` dropped none of 100 packets that
/// came from sockets. Of packets without a socket, it dropped all.
#[test]
fn fq_codel_does_not_count_what_is_charged_to_senders() {
    let line = "fq_codel memory_limit 2000 target 4s interval 4s noecn drop_batch 1";
    let mut theirs = tree(line, 1).charged_to_senders();
    let mut nobodys = tree(line, 1);
    for number in 0..100 {
        for tree in [&mut theirs, &mut nobodys] {
            let mut pkt = Packet::new(1514);
            pkt.enqueued_ns = START.0;
            let _ = tree.enqueue(START.after(number), pkt);
        }
    }
    assert_eq!((theirs.drops().count(), stat(&theirs, "memory_used")), (0, 0));
    assert_eq!((nobodys.drops().count(), stat(&nobodys, "drop_overmemory")), (100, 100));
    assert_eq!(theirs.backlog().packets, 100);
}

/// 3,000 packets arrive, one every 1.2 ms, which is 6.7 Mbit/s. Linux's `cake` sent 2,498 and
/// dropped 502. At the end, it had estimated 4,980 kbit/s as the rate of arrivals, and sent at
/// 4,669 kbit/s.
#[test]
fn cake_follows_the_rate_that_comes() {
    let line = "cake bandwidth 5mbit besteffort flows autorate-ingress";
    let mut tree = tree(line, 1);
    assert_eq!(offer(&mut tree, 0, 3_000, 1_200_000, 0), 502);
    assert_eq!(tree.totals().sent_packets, 2_498);
    let (capacity, bandwidth) = (stat(&tree, "capacity_estimate"), stat(&tree, "bandwidth"));
    assert_eq!((capacity * 8 / 1_000, bandwidth * 8 / 1_000), (4_980, 4_669));
}

/// A change of options that names a bandwidth sets `cake`'s rate to it. A change that names none
/// keeps the rate that `cake` has estimated.
#[test]
fn cake_keeps_what_it_has_learned() {
    let mut tree = tree("cake bandwidth 5mbit besteffort flows autorate-ingress", 1);
    offer(&mut tree, 0, 3_000, 1_200_000, 0);
    let learned = stat(&tree, "bandwidth");
    let now = START.after(10_000 * MS);
    tree.apply(now, "qdisc change dev x root cake rtt 50ms").expect("a line");
    assert_eq!(stat(&tree, "bandwidth"), learned);
    assert_ne!(learned, 625_000);
    // A command that names the rate, also the same one, sets it.
    let line = "qdisc change dev x root cake bandwidth 5mbit autorate-ingress";
    tree.apply(now, line).expect("a line");
    assert_eq!(stat(&tree, "bandwidth"), 625_000);
    let line = "qdisc change dev x root cake bandwidth 3mbit autorate-ingress";
    tree.apply(now, line).expect("a line");
    assert_eq!(stat(&tree, "bandwidth"), 375_000);
}

/// The memory limit that follows from the rate wraps around at 32 bits. The figures are those of
/// Linux 7.2.
#[test]
fn the_memory_limit_of_cake_follows_from_the_rate() {
    for (options, limit) in [
        ("bandwidth 5mbit", 4 << 20),
        ("bandwidth 1gbit rtt 1s", 15_503_360),
        ("bandwidth 86gbit", 5_032_704),
        ("bandwidth 100gbit", 15_503_360),
        ("bandwidth 8589936bit interplanetary", 4 << 20),
    ] {
        let mut tree = tree(&format!("cake {options}"), 1);
        let view = &tree.views()[0];
        assert_eq!(view.extra.get("memory_limit"), limit, "{options}");
    }
}

/// When `pie` updates its drop probability depends on the clock, not on the arrival of the first
/// packet.
#[test]
fn pie_is_updated_by_the_clock() {
    let jumps = |first: Instant| {
        let mut tree = tree("pie limit 5000 target 1ms", 1);
        let mut known = 0;
        let steps = first.0 / MS..START.0 / MS + 1_000;
        let mut jumps = Vec::new();
        for ms in steps {
            let mut pkt = Packet::new(LEN);
            pkt.enqueued_ns = ms * MS;
            let _ = tree.enqueue(Instant(ms * MS), pkt);
            if ms % 2 == 0 {
                let _ = tree.dequeue(Instant(ms * MS));
            }
            let probability = stat(&tree, "prob");
            if probability != known {
                jumps.push(ms - START.0 / MS);
            }
            known = probability;
        }
        jumps
    };
    for late_ms in [0, 7, 13, 29] {
        let jumps = jumps(START.after(late_ms * MS));
        assert!(jumps.len() > 20, "{late_ms}: {jumps:?}");
        // Onramp updates the drop probability at multiples of 30 ms, such as 20.01 s. Linux makes
        // the first update half a second after the qdisc was created, and then one every 30 ms.
        assert!(jumps.iter().all(|ms| ms % 30 == 10), "{late_ms}: {jumps:?}");
    }
}
