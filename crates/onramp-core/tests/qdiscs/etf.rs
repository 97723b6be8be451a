//! `etf`: which packets are late and dropped. The other packets must leave in the order of a list
//! that is sorted by departure time.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const START_NS: u64 = 20_000_000_000;

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup
        .apply(&format!("qdisc add dev eth0 root etf clockid TAI {options}"))
        .expect("a correct line");
    Tree::of(&setup, 1514, 1).expect("there is a root")
}

fn packet(cookie: u64, txtime_ns: u64) -> Packet {
    let mut pkt = Packet::new(100);
    (pkt.cookie, pkt.txtime_ns) = (cookie, txtime_ns);
    pkt
}

/// Dequeues at `now_ns` until no packet leaves. Returns the cookies of the packets that left, and
/// the time at which to dequeue again, if any.
fn ask(tree: &mut Tree, now_ns: u64) -> (Vec<u64>, Option<u64>) {
    let mut out = Vec::new();
    loop {
        match tree.dequeue(Instant(now_ns)) {
            Dequeue::Ready(pkt) => out.push(pkt.cookie),
            Dequeue::NotBefore(then) => return (out, Some(then.0)),
            Dequeue::Empty => return (out, None),
        }
    }
}

#[test]
fn a_packet_leaves_a_nanosecond_after_its_window_opens() {
    let mut tree = tree("delta 1000");
    let _ = tree.enqueue(Instant(START_NS), packet(1, START_NS + 5_000));
    assert_eq!(ask(&mut tree, START_NS), (vec![], Some(START_NS + 4_001)));
    assert_eq!(ask(&mut tree, START_NS + 4_000), (vec![], Some(START_NS + 4_001)));
    assert_eq!(ask(&mut tree, START_NS + 4_001), (vec![1], None));
    // A packet is late if its departure time is before that of the packet that left last, even
    // though its own time has not come yet.
    let late = tree.enqueue(Instant(START_NS + 4_002), packet(2, START_NS + 4_999));
    assert_eq!((late, tree.totals().dropped(DropReason::Late)), (Verdict::Dropped, 1));
    assert_eq!(tree.enqueue(Instant(START_NS), packet(3, 0)), Verdict::Dropped);
}

/// A packet may still leave at exactly its departure time. But a dequeue that finds a late packet
/// drops, together with the late packet, each packet whose departure time is that of the dequeue.
#[test]
fn what_is_late_takes_those_on_time_along() {
    for (second, left) in [(2_000, vec![]), (2_001, vec![2])] {
        let mut tree = tree("delta 1000");
        let _ = tree.enqueue(Instant(START_NS), packet(1, START_NS + 1_500));
        let _ = tree.enqueue(Instant(START_NS), packet(2, START_NS + second));
        let (out, again) = ask(&mut tree, START_NS + 2_000);
        // A dequeue that drops late packets sends no packet.
        assert_eq!((out, again), (vec![], left.first().map(|_| START_NS + 2_001)));
        assert_eq!(ask(&mut tree, START_NS + 2_001).0, left);
    }
    let mut tree = tree("delta 1000");
    let _ = tree.enqueue(Instant(START_NS), packet(1, START_NS + 1_500));
    assert_eq!(ask(&mut tree, START_NS + 1_500).0, [1]);
}

#[test]
fn a_deadline_is_replaced_by_the_time_of_departure() {
    let mut tree = tree("delta 1000 deadline_mode");
    let _ = tree.enqueue(Instant(START_NS), packet(1, START_NS + 9_000));
    let _ = tree.enqueue(Instant(START_NS), packet(2, START_NS + 8_000));
    for cookie in [2, 1] {
        let Dequeue::Ready(pkt) = tree.dequeue(Instant(START_NS + 7)) else { panic!("it may go") };
        assert_eq!((pkt.cookie, pkt.txtime_ns), (cookie, START_NS + 7));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// If dequeued at the times that it announces, `etf` loses no packet. Packets leave in the
    /// order of their departure times, and packets with the same time in the order of arrival.
    #[test]
    fn departures_are_the_sorted_times(
        times in prop::collection::vec(0_u64..50, 1..100),
        delta in 1_u64..5_000,
    ) {
        let mut tree = tree(&format!("delta {delta}"));
        let at = |time: u64| START_NS + 10_000 + time * 100;
        for (cookie, time) in (0_u64..).zip(&times) {
            let verdict = tree.enqueue(Instant(START_NS), packet(cookie, at(*time)));
            prop_assert_eq!(verdict, Verdict::Queued);
        }
        let mut expected: Vec<(u64, u64)> = (0..).zip(&times)
            .map(|(cookie, time)| (at(*time) - delta + 1, cookie)).collect();
        expected.sort_unstable();
        let (mut now_ns, mut left) = (START_NS, Vec::new());
        loop {
            let (out, again) = ask(&mut tree, now_ns);
            left.extend(out.into_iter().map(|cookie| (now_ns, cookie)));
            let Some(then) = again else { break };
            now_ns = then;
        }
        prop_assert_eq!(left, expected);
    }
}
