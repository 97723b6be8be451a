//! `cake`: how long packets may wait before `cake` marks or drops them.
//!
//! Source: Høiland-Jørgensen, Täht, Morton, "Piece of CAKE", 2018; Linux' `cobalt_should_drop`: the
//! sojourn time of a packet is too long if it exceeds the target, and exceeds the time that four
//! packets of the largest size take at the tin's rate, and, with the option `ingress`, exceeds the
//! time that two such packets for each bulk flow take.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;

/// Runs ten flows that each send a packet of 1,000 bytes every ten milliseconds, which together
/// fill 8 Mbit/s. At the beginning, `standing` extra packets arrive, so that each packet waits for
/// that many milliseconds. Returns how many packets are marked in two seconds.
fn marks(options: &str, standing: u64) -> u64 {
    let mut setup = Setup::default();
    let line = format!("qdisc add dev e root cake bandwidth 8mbit besteffort {options}");
    setup.apply(&line).expect("a correct line");
    let mut tree = Tree::of(&setup, 1514, 1).expect("there is a root");
    let push = |tree: &mut Tree, ms: u64, flow: u64| {
        let mut pkt = Packet::new(1000);
        (pkt.flow, pkt.ecn, pkt.enqueued_ns) = (flow, 1, START_NS + ms * MS);
        let _ = tree.enqueue(Instant(START_NS + ms * MS), pkt);
    };
    (0..standing).for_each(|n| push(&mut tree, 0, n % 10));
    let mut marks = 0;
    for ms in 0..2_000 {
        push(&mut tree, ms, ms % 10);
        // At its rate, `cake` sends a packet some nanoseconds after the millisecond, so dequeue
        // again at the time that it announces.
        let mut answer = tree.dequeue(Instant(START_NS + ms * MS));
        if let Dequeue::NotBefore(then) = answer {
            assert!(then.0 < START_NS + (ms + 1) * MS);
            answer = tree.dequeue(then);
        }
        if let Dequeue::Ready(pkt) = answer {
            marks += u64::from(pkt.ecn == 3);
        }
    }
    assert_eq!(tree.drops().len(), 0);
    marks
}

/// At 8 Mbit/s, four packets of the largest size take 6.1 ms, which is more than the target of 5
/// ms. So packets that wait for 6 ms are not marked, but packets that wait for 7 ms are.
#[test]
fn four_largest_packets_may_wait() {
    assert_eq!(marks("flowblind", 6), 0);
    assert!(marks("flowblind", 7) > 5);
}

/// With `ingress`, packets may wait as long as two packets of the largest size for each of the ten
/// flows take: 30 ms at 8 Mbit/s. So packets that wait for 20 ms are not marked.
#[test]
fn behind_the_bottleneck_each_flow_may_have_two_packets() {
    assert!(marks("flows", 20) > 5);
    assert_eq!(marks("flows ingress", 20), 0);
    assert!(marks("flows ingress", 50) > 5);
}

/// Returns the rate of `cake`'s shaper and the estimated rate of arrivals, both in bytes per
/// second, as `tc` shows them.
fn rates(tree: &Tree) -> (Option<u64>, u64) {
    let (mut rate, mut estimate) = (None, 0);
    tree.stats(&mut |name, value| match name {
        "bandwidth" => rate = Some(value),
        "capacity_estimate" => estimate = value,
        _ => {}
    });
    (rate, estimate)
}

/// A change of options keeps the estimate of the arrival rate. If the change names a bandwidth, the
/// bandwidth takes effect at once, as in Linux. If a later change names `autorate-ingress`, `cake`
/// continues from the estimate.
#[test]
fn a_bandwidth_that_is_said_ends_the_estimate() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: cake bandwidth 80mbit autorate-ingress").unwrap();
    let mut tree = Tree::of(&setup, 1514, 0).expect("a root");
    let mut now = Instant(START_NS);
    let mut come = |tree: &mut Tree, packets: u64| {
        for number in 0..packets {
            // Each gap between two packets is 100 ms longer than the gap before it, and so longer
            // than the average gap. Such a gap ends a window in which `cake` measures the rate. The
            // rate of a window is at most 10 kB/s, because at most 1,000 bytes arrive per 100 ms.
            now = now.after((number + 1) * 100_000_000);
            let _ = tree.enqueue(now, Packet::new(1000));
        }
        now
    };
    let first = 10_000_000;
    let now = come(&mut tree, 9);
    let (rate, learned) = rates(&tree);
    assert!(learned < first && rate.is_some_and(|rate| rate <= learned), "{rate:?} {learned}");
    let change = |tree: &mut Tree, options: &str| {
        tree.apply(now, &format!("qdisc change dev e root handle 1: cake {options}")).unwrap();
        rates(tree)
    };
    assert_eq!(change(&mut tree, "rtt 50ms"), (rate, learned));
    assert_eq!(change(&mut tree, "bandwidth 40mbit"), (None, learned));
    let now = come(&mut tree, 9);
    assert_eq!(rates(&tree), (None, learned), "nobody learns");
    let line = "qdisc change dev e root handle 1: cake bandwidth 40mbit autorate-ingress";
    tree.apply(now, line).unwrap();
    assert_eq!(rates(&tree), (Some(5_000_000), learned));
    come(&mut tree, 9);
    assert!(rates(&tree).1 < learned);
}
