//! `fq`: how late flows are woken, as `tc -s` shows it. The value is a moving average: each time
//! that a flow is woken late, the average moves by an eighth of its distance to the new value
//! (`tc-fq(8)`; `net/sched/sch_fq.c`, `unthrottle_latency_ns`).

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;

const START_NS: u64 = 20_000_000_000;

fn latency_ns(tree: &Tree) -> u64 {
    let mut found = None;
    tree.stats(&mut |key, value| {
        if key == "latency_ns" {
            found = Some(value);
        }
    });
    found.expect("it is a statistic")
}

#[test]
fn the_latency_is_an_average_with_a_weight_of_an_eighth() {
    let mut tree = Tree::new(&"fq timer_slack 0".parse::<Spec>().expect("a correct line"), 1514);
    let (mut now_ns, mut average) = (START_NS, 0_u64);
    // If a flow is woken exactly on time, the average does not change.
    for late_ns in [8_000, 80_000, 0, 800, 24, 0, 1_600_000, 16] {
        let mut pkt = Packet::new(1000);
        (pkt.flow, pkt.txtime_ns) = (1, now_ns + 1_000_000);
        let _ = tree.enqueue(Instant(now_ns), pkt);
        let due = Instant(now_ns + 1_000_000);
        assert!(matches!(tree.dequeue(Instant(now_ns)), Dequeue::NotBefore(then) if then == due));
        now_ns = due.0 + late_ns;
        assert!(matches!(tree.dequeue(Instant(now_ns)), Dequeue::Ready(_)));
        if late_ns > 0 {
            average = average - average / 8 + late_ns / 8;
        }
        assert_eq!(latency_ns(&tree), average, "{late_ns} ns late");
        now_ns += 5_000_000;
    }
}
