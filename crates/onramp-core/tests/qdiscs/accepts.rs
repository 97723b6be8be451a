//! Tests the method `accepts` of qdiscs: if it says that the qdisc accepts a packet, enqueueing the
//! packet drops nothing. If it says that the qdisc does not accept the packet, enqueueing drops
//! that packet or another one.

use onramp_core::qdisc::Verdict;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

fn tree(line: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: {line}")).expect(line);
    Tree::of(&setup, 1_514, 7).expect("a root")
}

fn packet(len: u32, flow: u64) -> Packet {
    let mut pkt = Packet::new(len);
    (pkt.flow, pkt.enqueued_ns, pkt.priority) = (flow, NOW.0, 1);
    pkt
}

/// Enqueues 100 packets, and returns how many of them the qdisc takes without dropping anything.
/// Before each packet, calls `accepts` and checks that its answer agrees with what then happens.
fn taken(line: &str, len: u32, flows: u64) -> u64 {
    let mut tree = tree(line);
    let mut count = 0;
    for n in 0..100 {
        let pkt = packet(len, n % flows);
        let says = tree.root().accepts(&pkt);
        let does = tree.enqueue(NOW, pkt) == Verdict::Queued && tree.drops().is_empty();
        assert_eq!(says, does, "{line}: packet {n}");
        count += u64::from(does);
    }
    count
}

#[test]
fn up_to_its_limit() {
    for (line, len, flows, count) in [
        ("pfifo limit 10", 100, 1, 10),
        ("pfifo_head_drop limit 10", 100, 1, 10),
        ("bfifo limit 1000", 100, 1, 10),
        ("bfifo limit 1000", 300, 1, 3),
        ("pfifo_fast txqueuelen 10", 100, 1, 10),
        // `fq` does not count a packet towards its limits if the packet arrives while `fq` holds
        // fewer than eight packets. So `fq` takes eight more packets than its limit.
        ("fq limit 10", 100, 100, 8 + 10),
        ("fq limit 90 flow_limit 3", 100, 5, 8 + 15),
        ("codel limit 10", 100, 1, 10),
        ("fq_codel limit 10", 100, 100, 10),
        ("pie limit 10", 100, 1, 10),
        ("fq_pie limit 10", 100, 100, 10),
        ("sfq limit 10", 100, 100, 10),
        ("skbprio limit 10", 100, 1, 10),
        ("netem limit 10", 100, 1, 10),
        ("dualpi2 limit 10", 100, 1, 10),
        ("red limit 1000 min 5000 max 9000 avpkt 100 burst 60 bandwidth 10mbit", 100, 1, 10),
        ("choke limit 10 min 8 max 9 burst 9 bandwidth 10mbit", 100, 100, 10),
        ("tbf rate 8mbit burst 2kb limit 1000", 100, 1, 10),
        ("tbf rate 8mbit burst 2kb limit 100kb", 2_048, 1, 50),
        ("tbf rate 8mbit burst 2kb limit 100kb", 2_049, 1, 0),
        ("plug limit 1000", 100, 1, 10),
    ] {
        assert_eq!(taken(line, len, flows), count, "{line}");
    }
}

/// `sfq` with `depth 7` accepts only 7 packets of one flow, and `fq` and `skbprio` also respect
/// their limits on one flow.
#[test]
fn up_to_the_limit_of_a_flow() {
    assert_eq!(taken("sfq limit 50 depth 7", 100, 1), 7);
    assert_eq!(taken("fq limit 50 flow_limit 7", 100, 1), 8 + 7);
    assert_eq!(taken("skbprio limit 7", 100, 9), 7);
}

/// A memory limit counts the memory that a packet takes, which is more than its length. So fewer
/// than 20 packets of 1,000 bytes fit a limit of 20 kB.
#[test]
fn up_to_the_limit_of_memory() {
    for line in [
        "cake besteffort flows memlimit 20kb",
        "fq_codel memory_limit 20kb",
        "fq_pie memory_limit 20kb",
        "dualpi2 memlimit 20000",
    ] {
        let count = taken(line, 1_000, 100);
        assert!((6..20).contains(&count), "{line}: {count}");
    }
}
