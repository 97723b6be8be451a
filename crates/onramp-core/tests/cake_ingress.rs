//! `cake`: how long packets may wait before the law looks at them.
//!
//! Source: Høiland-Jørgensen, Täht, Morton, "Piece of CAKE", 2018; Linux' `cobalt_should_drop`: the
//! wait is too long beyond the target, four largest packets at the tin's rate, and, with `ingress`,
//! two of them for each bulk flow.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const MS: u64 = 1_000_000;
const START_NS: u64 = 20_000 * MS;

/// Ten flows have a packet of 1,000 bytes each every ten milliseconds, which fill 8 Mbit/s; so many
/// more came in the beginning, so that all wait as many milliseconds. Says how many are marked in
/// two seconds.
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
        // The link is asked again when it says; a few nanoseconds add up.
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

/// Four largest packets take 6.1 ms, which is more than the target of 5 ms.
#[test]
fn four_largest_packets_may_wait() {
    assert_eq!(marks("flowblind", 6), 0);
    assert!(marks("flowblind", 7) > 5);
}

/// Two largest packets for each of ten flows take 30 ms.
#[test]
fn behind_the_bottleneck_each_flow_may_have_two_packets() {
    assert!(marks("flows", 20) > 5);
    assert_eq!(marks("flows ingress", 20), 0);
    assert!(marks("flows ingress", 50) > 5);
}
