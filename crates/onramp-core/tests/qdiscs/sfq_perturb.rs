//! `sfq`: every `perturb` seconds, flows move to other buckets and keep their packets.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

/// The timer of `perturb` fires when the clock reaches a multiple of the period. `START` is such a
/// time.
const START: Instant = Instant(21_000_000_000);
const SEC: u64 = 1_000_000_000;

/// Enqueues one packet of each of eight flows, waits for `seconds` seconds, and returns the buckets
/// of the flows.
fn places(perturb: u64, seconds: u64) -> Vec<u16> {
    let mut setup = Setup::default();
    let line = format!("qdisc add dev e root handle 1: sfq perturb {perturb}");
    setup.apply(&line).expect(&line);
    let mut tree = Tree::of(&setup, 1_514, 7).expect("a root");
    for flow in 0..8 {
        let mut pkt = Packet::new(100);
        pkt.flow = flow;
        let _ = tree.enqueue(START, pkt);
    }
    // `sfq` checks its timer only when it is called, so enqueue one more packet.
    let now = START.after(seconds * SEC);
    let mut pkt = Packet::new(100);
    pkt.flow = 0;
    let _ = tree.enqueue(now, pkt);
    let places = tree.views()[0].classes.iter().map(|class| class.handle.minor).collect();
    let mut sent = 0;
    while let Dequeue::Ready(_) = tree.dequeue(now) {
        sent += 1;
    }
    assert_eq!((sent, tree.drops().len()), (9, 0));
    places
}

#[test]
fn they_move_when_it_is_time() {
    let first = places(10, 0);
    assert!(first.len() >= 7, "two of eight may meet in a thousand places: {first:?}");
    assert_eq!(places(10, 8), first);
    assert_ne!(places(10, 11), first);
    assert_eq!(places(60, 38), first);
    assert_ne!(places(60, 45), first);
    assert_eq!(places(0, 1_000), first, "never");
}
