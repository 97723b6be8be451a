//! Tests `ets` when its bands change while they hold packets.
//!
//! Source: `tc-ets(8)`: the first `strict` bands are served in strict order, the others by deficit
//! round robin (Shreedhar and Varghese, 1995) with their quanta. Packets of bands that a change
//! removes are dropped (`net/sched/sch_ets.c`, `ets_qdisc_change`).

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(20_000_000_000);

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: ets {options}")).expect(options);
    Tree::of(&setup, 1514, 0).expect("a root")
}

fn apply(tree: &mut Tree, line: &str) {
    tree.apply(NOW, line).unwrap_or_else(|why| panic!("{line}: {why}"));
}

fn change(tree: &mut Tree, options: &str) {
    apply(tree, &format!("qdisc change dev e root handle 1: ets {options}"));
}

/// Enqueues `packets` packets of 1,000 bytes for each of these bands, which are counted from 1.
fn fill(tree: &mut Tree, bands: &[u32], packets: u32) {
    for _ in 0..packets {
        for band in bands {
            let mut pkt = Packet::new(1000);
            (pkt.priority, pkt.cookie) = (0x1_0000 + band, u64::from(*band));
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        }
    }
}

/// Dequeues up to `packets` packets. Returns their bands in order of departure.
fn next(tree: &mut Tree, packets: usize) -> Vec<u64> {
    let pop = || match tree.dequeue(NOW) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        _ => None,
    };
    std::iter::from_fn(pop).take(packets).collect()
}

/// Dequeues `packets` packets. Returns how many of them belong to bands 1, 2 and 3.
fn parts(tree: &mut Tree, packets: usize) -> [usize; 3] {
    let out = next(tree, packets);
    [1, 2, 3].map(|band| out.iter().filter(|other| **other == band).count())
}

fn near(found: [usize; 3], expected: [usize; 3]) {
    let off = found.iter().zip(expected).map(|(a, b)| a.abs_diff(b)).max();
    assert!(off <= Some(4), "{found:?}, expected {expected:?}");
}

#[test]
fn other_quanta_are_other_parts() {
    let mut tree = tree("quanta 1000 1000 1000");
    fill(&mut tree, &[1, 2, 3], 300);
    near(parts(&mut tree, 60), [20, 20, 20]);
    change(&mut tree, "quanta 1000 2000 3000");
    near(parts(&mut tree, 120), [20, 40, 60]);
    change(&mut tree, "quanta 6000 3000 1000");
    near(parts(&mut tree, 200), [120, 60, 20]);
    // A quantum below 256 bytes counts as 256 bytes.
    change(&mut tree, "quanta 1 256 512");
    near(parts(&mut tree, 120), [30, 30, 60]);
}

/// A band that becomes strict is served first. A band that is no longer strict gets its share.
#[test]
fn strict_bands_come_and_go() {
    let mut tree = tree("bands 3 quanta 1000 1000 1000");
    fill(&mut tree, &[1, 2, 3], 100);
    near(parts(&mut tree, 30), [10, 10, 10]);
    change(&mut tree, "bands 3 strict 1 quanta 1000 1000");
    near(parts(&mut tree, 50), [50, 0, 0]);
    change(&mut tree, "bands 3 strict 2 quanta 1000");
    let held = parts(&mut tree, 80);
    near(held, [40, 40, 0]);
    change(&mut tree, "bands 3 quanta 2000 1000 1000");
    fill(&mut tree, &[1], 100);
    near(parts(&mut tree, 80), [40, 20, 20]);
    // A band that was strict for a while has only one place in the round robin, and no packet is
    // lost.
    change(&mut tree, "bands 3 strict 3");
    fill(&mut tree, &[3, 2, 1], 1);
    let rest = next(&mut tree, usize::MAX);
    assert!(rest.is_sorted(), "in strict order");
    assert_eq!((rest.len(), tree.backlog().packets), (403 - 240, 0));
}

/// The test starts with strict bands that hold packets. A change makes all bands share by quanta,
/// and then they are served in turn.
#[test]
fn bands_that_hold_packets_take_part_in_rounds() {
    let mut tree = tree("bands 3 strict 3");
    fill(&mut tree, &[1, 2, 3], 50);
    change(&mut tree, "bands 3 quanta 1000 1000 1000");
    near(parts(&mut tree, 90), [30, 30, 30]);
    assert_eq!(next(&mut tree, usize::MAX).len(), 60);
    fill(&mut tree, &[2], 5);
    assert_eq!(next(&mut tree, usize::MAX), [2; 5]);
}

#[test]
fn packets_of_bands_that_go_are_gone() {
    let mut tree = tree("bands 4 strict 1 quanta 1000 1000 1000");
    fill(&mut tree, &[1, 2, 3, 4], 10);
    assert_eq!(next(&mut tree, 12).len(), 12);
    // Before the change, each band had 10 packets. Band 1 has sent all of them, and bands 2 and 3
    // have sent one each.
    change(&mut tree, "bands 2 strict 1 quanta 1000");
    let dropped: Vec<_> = tree.drops().map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    assert!(dropped.iter().all(|(band, _)| [3, 4].contains(band)), "{dropped:?}");
    assert!(dropped.iter().all(|(_, reason)| *reason == Some(DropReason::Purged)));
    assert_eq!((dropped.len(), tree.backlog().packets, tree.backlog().bytes), (19, 9, 9_000));
    assert_eq!(tree.views()[0].classes.len(), 2);
    assert_eq!(next(&mut tree, usize::MAX), [2; 9]);
    // Bands that a change removed are empty when a later change adds them again.
    change(&mut tree, "bands 4 strict 1 quanta 1000 1000 1000");
    assert_eq!(tree.backlog().packets, 0);
    fill(&mut tree, &[4, 3], 2);
    assert_eq!(next(&mut tree, usize::MAX), [4, 3, 4, 3]);
}

/// A change replaces the priority map, but keeps the filters.
#[test]
fn priorities_are_new_and_filters_stay() {
    let mut tree = tree("bands 3 strict 3 priomap 0 1 2");
    let filter = "filter add dev e parent 1: prio 1 handle 7 fw classid 1:3";
    apply(&mut tree, filter);
    let bands = |tree: &mut Tree| {
        let mut band_of = |priority, mark| {
            let mut pkt = Packet::new(100);
            (pkt.priority, pkt.mark) = (priority, mark);
            let _ = tree.enqueue(NOW, pkt);
            let held = |class: &onramp_core::view::ClassView| class.backlog.packets > 0;
            let band = tree.views()[0].classes.iter().position(held);
            assert_eq!(next(tree, 9).len(), 1);
            band.expect("it is held")
        };
        [band_of(0, 0), band_of(1, 0), band_of(2, 0), band_of(9, 0), band_of(0, 7)]
    };
    assert_eq!(bands(&mut tree), [0, 1, 2, 2, 2]);
    change(&mut tree, "bands 3 strict 3 priomap 1 1 0");
    assert_eq!(bands(&mut tree), [1, 1, 0, 2, 2]);
}
