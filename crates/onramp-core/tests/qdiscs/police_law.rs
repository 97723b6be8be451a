//! The action `police`: which packets conform (are within the rate), by the arithmetic of two token
//! buckets.
//!
//! Source: RFC 2697 (a bucket of tokens, without colours); `tc-police(8)`: `peakrate` needs `mtu`,
//! which is the depth of its bucket, and packets larger than `mtu` exceed. Without `mtu`, `tc`
//! takes 2,047 bytes for its table of the rate, which has 256 cells of eight bytes, the last of
//! which begins at 2,040 (`tc/tc_core.c`, `net/sched/act_police.c`).

use onramp_core::qdisc::Verdict;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const START_NS: u64 = 20_000_000_000;

/// Makes a `prio` with a policer in front of it. Only packets that conform reach the `prio`.
fn policed(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: prio").expect("a correct line");
    let filter = "filter add dev e parent 1: prio 1 matchall classid 1:1 action police";
    setup.apply(&format!("{filter} {options}")).expect(options);
    Tree::of(&setup, 1514, 0).expect("a root")
}

/// Returns whether a packet that arrives `ns` nanoseconds after the start conforms.
fn conforms(tree: &mut Tree, ns: u64, len: u32) -> bool {
    tree.enqueue(Instant(START_NS + ns), Packet::new(len)) == Verdict::Queued
}

/// Returns how many of a hundred packets that arrive at once conform.
fn at_once(tree: &mut Tree, ns: u64, len: u32) -> usize {
    (0..100).filter(|_| conforms(tree, ns, len)).count()
}

/// After any pause, the peak rate lets only `mtu` bytes pass at once. Then 1,000 bytes take half a
/// millisecond.
#[test]
fn the_peak_holds_one_mtu() {
    let mut tree = policed("rate 8mbit burst 20000 peakrate 16mbit mtu 1000 drop");
    assert_eq!(at_once(&mut tree, 0, 1000), 1);
    assert_eq!(at_once(&mut tree, 499_999, 1000), 0);
    assert_eq!(at_once(&mut tree, 500_000, 1000), 1);
    assert_eq!(at_once(&mut tree, 5_000_000_000, 1000), 1);
    assert_eq!(at_once(&mut tree, 5_000_499_999, 1000), 0);
    // A packet of half the size needs half the time.
    assert_eq!(at_once(&mut tree, 5_000_500_000, 500), 2);
    let mut tree = policed("rate 8mbit burst 20000 peakrate 16mbit mtu 3500 drop");
    assert_eq!(at_once(&mut tree, 0, 1000), 3, "3,500 bytes hold three of 1,000");
}

/// At the peak rate, the burst lasts longer than 20 packets: the bucket holds tokens for 20
/// packets, each packet takes the tokens of one, and the tokens of half a packet are added between
/// two packets.
#[test]
fn the_burst_lasts_at_the_peak() {
    let mut tree = policed("rate 8mbit burst 20000 peakrate 16mbit mtu 1000 drop");
    let sent = (0..200).filter(|n| conforms(&mut tree, n * 500_000, 1000)).count();
    // Within 100 ms, the rate allows 100 packets and the burst 20 more. The bucket is empty after
    // the first 40 packets. From then on, every second packet conforms.
    assert!((119..=120).contains(&sent), "{sent}");
}

/// After a pause of any length, the bucket holds one burst. A packet that exceeds the rate takes no
/// tokens.
#[test]
fn the_rate_holds_its_burst() {
    let mut tree = policed("rate 8mbit burst 5000 drop");
    for pause in 0..3 {
        assert_eq!(at_once(&mut tree, pause * 1_000_000_000, 1000), 5);
    }
    assert!(!conforms(&mut tree, 2_000_999_999, 1000));
    assert!(conforms(&mut tree, 2_001_000_000, 1000));
    assert!(!conforms(&mut tree, 2_001_499_999, 500));
    assert!(conforms(&mut tree, 2_001_500_000, 500));
}

#[test]
fn what_is_longer_than_the_mtu_exceeds() {
    for (options, mtu) in [
        ("rate 80mbit burst 90000 drop", 2040),
        ("rate 80mbit burst 90000 mtu 0 drop", 2040),
        ("rate 80mbit burst 90000 mtu 1000 drop", 1000),
        ("rate 80mbit burst 90000 peakrate 800mbit mtu 3000 drop", 3000),
        ("mtu 700 drop", 700),
    ] {
        let mut tree = policed(options);
        assert!(!conforms(&mut tree, 0, mtu + 1), "{options}");
        assert!(conforms(&mut tree, 0, mtu), "{options}");
    }
    let mut tree = policed("pkts_rate 1000 pkts_burst 10 drop");
    assert!(conforms(&mut tree, 0, 60_000), "a rate of packets has no table");
}
