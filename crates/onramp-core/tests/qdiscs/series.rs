//! `series`: stages one behind the other.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(20_000_000_000);
const MS: u64 = 1_000_000;

fn tree(stages: &[&str]) -> Tree {
    let mut setup = Setup::default();
    let root = format!("qdisc add dev e root handle 1: series stages {}", stages.len());
    setup.apply(&root).expect(&root);
    for (stage, qdisc) in stages.iter().enumerate() {
        let line = format!("qdisc add dev e parent 1:{} {qdisc}", stage + 1);
        setup.apply(&line).expect(&line);
    }
    Tree::of(&setup, 1_514, 7).expect("a root")
}

fn packet(cookie: u64) -> Packet {
    let mut pkt = Packet::new(1_000);
    (pkt.cookie, pkt.flow, pkt.enqueued_ns) = (cookie, 7, NOW.0);
    pkt
}

/// Asks the tree at every instant that it names, as a punctual port does. Returns the packets that
/// left, with the time since `NOW` in nanoseconds.
fn run(tree: &mut Tree, until: Instant) -> Vec<(u64, u64)> {
    let (mut now, mut left) = (NOW, Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => left.push((pkt.cookie, now.since(NOW))),
            Dequeue::NotBefore(at) if at <= until => {
                assert!(at > now, "the tree names a time to come");
                now = at;
            }
            _ => return left,
        }
    }
}

#[test]
fn a_rate_and_then_a_delay() {
    // 1,000 bytes take 1 ms at 8 Mbit/s, and the bucket holds one packet.
    let mut tree = tree(&["tbf rate 8mbit burst 1000 limit 100000", "netem delay 20ms"]);
    for cookie in 0..50 {
        let _ = tree.enqueue(NOW, packet(cookie));
    }
    let left = run(&mut tree, NOW.after(1_000 * MS));
    let expected: Vec<_> = (0..50).map(|cookie| (cookie, (20 + cookie) * MS)).collect();
    assert_eq!(left, expected);
    assert_eq!(tree.backlog().packets, 0);
}

/// The reason why this qdisc exists: inside `netem`, CoDel never sees the packets that wait for the
/// rate. In front of the delay, queue management keeps the queue short.
#[test]
fn queue_management_in_front_of_a_delay() {
    // One packet each millisecond, for ten seconds: 8 Mbit/s where 7 pass.
    let slowest = |tree: &mut Tree| {
        let (mut now, mut slowest) = (NOW, 0);
        for cookie in 0..10_000 {
            let mut pkt = packet(cookie);
            pkt.enqueued_ns = now.0;
            let _ = tree.enqueue(now, pkt);
            let next = now.after(MS);
            loop {
                match tree.dequeue(now) {
                    Dequeue::Ready(pkt) => {
                        let sent = NOW.after(pkt.cookie * MS);
                        slowest = slowest.max(now.since(sent));
                    }
                    Dequeue::NotBefore(at) if at < next => now = at,
                    _ => break,
                }
            }
            now = next;
        }
        slowest / MS
    };
    let series = slowest(&mut tree(&["cake bandwidth 7mbit raw", "netem delay 50ms"]));
    let mut inside = Setup::default();
    for line in ["root handle 1: netem delay 50ms rate 7mbit", "parent 1:1 codel"] {
        inside.apply(&format!("qdisc add dev e {line}")).expect(line);
    }
    let inside = slowest(&mut Tree::of(&inside, 1_514, 7).expect("a root"));
    // Without queue management, packets wait for more than a second, until netem's 1,000 are held.
    assert!((1_000..1_400).contains(&inside), "{inside} ms");
    assert!((50..500).contains(&series), "{series} ms");
}

#[test]
fn three_stages_and_their_drops() {
    let mut tree = tree(&["pfifo limit 10", "netem delay 5ms limit 4", "pfifo limit 2"]);
    for cookie in 0..12 {
        let _ = tree.enqueue(NOW, packet(cookie));
    }
    // Two do not fit the first stage. When the tree is asked, six more do not fit the second, and
    // when the delay is over, two do not fit the third.
    let left = run(&mut tree, NOW.after(1_000 * MS));
    assert_eq!(left, [(0, 5 * MS), (1, 5 * MS)]);
    let totals = tree.totals();
    assert_eq!(totals.dropped(DropReason::Overlimit), 10);
    assert_eq!((totals.enqueued_packets, totals.sent_packets), (12, 2));
    assert_eq!(tree.backlog().packets, 0);
}

#[test]
fn a_stage_that_is_taken_away_drops_its_packets() {
    let mut tree = tree(&["pfifo", "netem delay 50ms", "netem delay 50ms"]);
    for cookie in 0..3 {
        let _ = tree.enqueue(NOW, packet(cookie));
        assert!(matches!(tree.dequeue(NOW), Dequeue::NotBefore(_)));
    }
    // The packets wait in the second stage, which becomes the last.
    tree.apply(NOW, "qdisc change dev e root handle 1: series stages 2").expect("it changes");
    let left = run(&mut tree, NOW.after(1_000 * MS));
    assert_eq!(left, [(0, 50 * MS), (1, 50 * MS), (2, 50 * MS)]);
    let _ = tree.enqueue(NOW.after(1_000 * MS), packet(4));
    assert!(matches!(tree.dequeue(NOW.after(1_000 * MS)), Dequeue::NotBefore(_)));
    tree.apply(NOW.after(1_000 * MS), "qdisc change dev e root handle 1: series stages 1")
        .expect("it changes");
    assert_eq!((tree.backlog().packets, tree.totals().dropped_packets()), (0, 1));
}
