//! `choke`: which flows lose packets, and that the remaining packets leave in order of arrival.

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;
use proptest::prelude::*;

fn tree(line: &str) -> Tree {
    Tree::new(&line.parse::<Spec>().expect(line), 1514)
}

fn push(tree: &mut Tree, flow: u64, cookie: u64) -> Verdict {
    let mut pkt = Packet::new(1000);
    (pkt.flow, pkt.cookie, pkt.ecn) = (flow, cookie, 2);
    tree.enqueue(Instant(0), pkt)
}

/// One flow sends two thirds of all packets, and 50 other flows send the rest. Packets leave at
/// half the rate at which they arrive. The one flow must lose more than half of its packets, and
/// the other flows a much smaller part of theirs.
#[test]
fn a_flow_that_fills_the_queue_loses_most() {
    let mut tree = tree("choke limit 300 min 30 max 200 bandwidth 10mbit");
    let (mut sent, mut lost) = ([0_u32; 2], [0_u32; 2]);
    for number in 0..60_000_u64 {
        let flow = if number % 3 == 0 { 1 + number / 3 % 50 } else { 0 };
        sent[usize::from(flow > 0)] += 1;
        let _ = push(&mut tree, flow, number);
        if number % 2 == 0 {
            let _ = tree.dequeue(Instant(0));
        }
        tree.drops().for_each(|pkt| lost[usize::from(pkt.flow > 0)] += 1);
    }
    let share = |who: usize| f64::from(lost[who]) / f64::from(sent[who]);
    assert!(share(0) > 0.5 && share(1) < 0.4 * share(0), "{} {}", share(0), share(1));
    let mut matched = 0;
    tree.stats(&mut |name, value| matched += if name == "matched" { value } else { 0 });
    assert!(matched > 10_000, "{matched}");
}

#[test]
fn mistakes_are_told() {
    for (line, said) in [
        (
            "choke bandwidth 1mbit",
            "qdisc choke: \"limit\": is missing: expected packets, 1 to 131071",
        ),
        ("choke limit 100", "qdisc choke: \"bandwidth\": is missing: expected a rate"),
        (
            "choke limit 100 bandwidth 1mbit min 20 max 10",
            "qdisc choke: \"min\": 20 is not less than max, 10",
        ),
        (
            "choke limit 100 bandwidth 1mbit min 20 max 200",
            "qdisc choke: \"max\": 200 is more than the limit, 100",
        ),
    ] {
        assert_eq!(line.parse::<Spec>().expect_err(line).to_string(), said);
    }
}

proptest! {
    /// Packets leave in order of arrival, however many gaps there are in the queue from which
    /// `choke` has dropped packets (it drops a queued packet whose flow is that of an arriving
    /// packet).
    #[test]
    fn what_stays_leaves_in_order(
        limit in 8_u32..40,
        flows in 1_u64..20,
        steps in prop::collection::vec((0_u64..8, 0_u32..8), 1..400),
    ) {
        let options = "min 2 max 8 burst 3 bandwidth 10mbit ecn";
        let mut tree = tree(&format!("choke limit {limit} {options}"));
        let (mut number, mut last, mut sent) = (0, None, 0);
        for (pushes, pops) in steps {
            for _ in 0..pushes {
                let _ = push(&mut tree, number % flows, number);
                number += 1;
            }
            prop_assert!(tree.backlog().packets <= limit);
            for _ in 0..pops {
                if let Dequeue::Ready(pkt) = tree.dequeue(Instant(0)) {
                    prop_assert!(last < Some(pkt.cookie));
                    last = Some(pkt.cookie);
                    sent += 1;
                }
            }
            let held = u64::from(tree.backlog().packets);
            prop_assert_eq!(tree.totals().dropped_packets() + sent + held, number);
        }
    }

    #[test]
    fn a_short_queue_loses_nothing(steps in prop::collection::vec(0_u32..10, 1..300)) {
        let mut tree = tree("choke limit 100 min 10 max 30 bandwidth 10mbit");
        let mut number = 0;
        for pushes in steps {
            for _ in 0..pushes {
                prop_assert_eq!(push(&mut tree, 0, number), Verdict::Queued);
                number += 1;
            }
            while let Dequeue::Ready(_) = tree.dequeue(Instant(0)) {}
        }
    }
}
