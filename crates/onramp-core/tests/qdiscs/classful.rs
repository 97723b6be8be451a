//! Tests the properties that the qdiscs with classes, and a few without, promise in the header
//! comments of their source files.

use std::collections::{BTreeMap, VecDeque};

use onramp_core::Spec;
use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const MTU: u32 = 1514;
const NOW: Instant = Instant(1_000_000_000);

fn tree(lines: &str) -> Tree {
    let mut setup = Setup::default();
    for line in lines.lines().map(str::trim) {
        setup.apply(line).unwrap_or_else(|error| panic!("`{line}`: {error}"));
    }
    Tree::of(&setup, MTU, 1).expect("there is a root")
}

fn packet(cookie: u64, len: u32, priority: u32) -> Packet {
    let mut pkt = Packet::new(len);
    (pkt.cookie, pkt.priority) = (cookie, priority);
    pkt
}

/// Returns the handle of class `1:MINOR` as a packet's priority, which selects that class.
fn class(minor: usize) -> u32 {
    0x1_0000 + u32::try_from(minor).expect("small")
}

/// Returns the cookie of the next packet, or `None` if no packet may leave now.
fn next(tree: &mut Tree) -> Option<u64> {
    match tree.dequeue(NOW) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        Dequeue::NotBefore(_) | Dequeue::Empty => None,
    }
}

/// Returns the cookies and drop reasons of the dropped packets.
fn dead(tree: &mut Tree) -> Vec<(u64, DropReason)> {
    tree.drops().map(|pkt| (pkt.cookie, pkt.drop_reason.expect("there is one"))).collect()
}

fn lens() -> impl Strategy<Value = u32> {
    prop_oneof![60_u32..1515, Just(60), Just(1514)]
}

/// Keeps `classes` classes supplied with packets until `rounds` packets have left. After each
/// packet, calls `check` with the class that has sent, and with the bytes that each class has sent
/// so far.
fn keep_busy(
    tree: &mut Tree,
    classes: usize,
    lens: &[u32],
    rounds: usize,
    mut check: impl FnMut(usize, &[u64]) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut lens = lens.iter().copied().cycle();
    let mut give = |tree: &mut Tree, n: usize| {
        let pkt = packet(n as u64, lens.next().expect("endless"), class(n + 1));
        assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
    };
    (0..classes).for_each(|n| (0..3).for_each(|_| give(tree, n)));
    let mut sent = vec![0; classes];
    for _ in 0..rounds {
        let Dequeue::Ready(pkt) = tree.dequeue(NOW) else {
            return Err(TestCaseError::fail("there are packets, and none left"));
        };
        let n = usize::try_from(pkt.cookie).expect("small");
        sent[n] += u64::from(pkt.len);
        check(n, &sent)?;
        give(tree, n);
    }
    Ok(())
}

/// Checks that the classes share the rate fairly. Divides the bytes that each class has sent by its
/// share (weight). For any two classes, these quotients may differ by at most `bound` of the one
/// class plus `bound` of the other class.
fn fair(sent: &[u64], share: &[u64], bound: impl Fn(usize) -> u64) -> Result<(), TestCaseError> {
    // The bytes that class `n` has sent divided by its share, in thousandths.
    let by_share = |n: usize| sent[n] * 1_000 / share[n];
    for a in 0..sent.len() {
        for b in 0..a {
            let (off, most) = (by_share(a).abs_diff(by_share(b)), bound(a) + bound(b));
            prop_assert!(off <= most, "{a} and {b} of {sent:?}: {off}, at most {most}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Shreedhar and Varghese, lemma 2: after any number of rounds, a class of `drr` has sent the
    /// quanta of all rounds, less at most one packet, and no class is more than a round ahead.
    #[test]
    fn drr_sends_quanta(
        quanta in prop::collection::vec(256_u64..5000, 1..8),
        lens in prop::collection::vec(lens(), 1..50),
    ) {
        let mut lines = "tc qdisc add dev e root handle 1: drr".to_owned();
        for (n, quantum) in quanta.iter().enumerate() {
            lines += &format!(
                "\ntc class add dev e parent 1: classid 1:{:x} drr quantum {quantum}", n + 1
            );
        }
        let bound = |n: usize| 1_000 + 1_514_000 / quanta[n];
        keep_busy(&mut tree(&lines), quanta.len(), &lens, 500, |_, sent| {
            fair(sent, &quanta, bound)
        })?;
    }

    /// `ets` serves the strict bands first, in order, and the other bands by their quanta.
    #[test]
    fn ets_is_strict_then_fair(
        strict in 0_usize..3,
        quanta in prop::collection::vec(256_u64..5000, 1..5),
        lens in prop::collection::vec(lens(), 1..50),
        arrivals in prop::collection::vec((0_usize..3, any::<bool>()), 0..300),
    ) {
        let mut line = "tc qdisc add dev e root handle 1: ets".to_owned();
        if strict > 0 {
            line += &format!(" strict {strict}");
        }
        line += " quanta";
        quanta.iter().for_each(|quantum| line += &format!(" {quantum}"));
        let mut tree = tree(&line);
        let (mut sent, mut urgent) = (vec![0; quanta.len()], vec![0; strict]);
        let mut lens = lens.iter().copied().cycle();
        let mut give = |tree: &mut Tree, band: usize| {
            let pkt = packet(band as u64, lens.next().expect("endless"), class(band + 1));
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        };
        (strict..strict + quanta.len()).for_each(|n| (0..3).for_each(|_| give(&mut tree, n)));
        for (band, comes) in arrivals {
            if comes && band < strict {
                give(&mut tree, band);
                urgent[band] += 1;
            }
            let Dequeue::Ready(pkt) = tree.dequeue(NOW) else { panic!("there are packets") };
            let band = usize::try_from(pkt.cookie).expect("small");
            prop_assert!(urgent.iter().take(band).all(|count| *count == 0), "{urgent:?}, {band}");
            if band < strict {
                urgent[band] -= 1;
            } else {
                sent[band - strict] += u64::from(pkt.len);
                give(&mut tree, band);
            }
            fair(&sent, &quanta, |n| 1_000 + 1_514_000 / quanta[n])?;
        }
    }

    /// Checconi, Rizzo and Valente 2013: in `qfq`, the service of a class is behind what its weight
    /// promises by at most three slots of its group and two of its largest packets, where a slot is
    /// less than two packets. Valente 2014: with aggregates (classes that are served together), the
    /// class may be behind by one more packet for each class of its aggregate.
    #[test]
    fn qfq_shares_by_weight(
        weights in prop::collection::vec(prop_oneof![1_u64..5, 1_u64..1025], 1..20),
        lens in prop::collection::vec(lens(), 1..50),
    ) {
        let mut lines = "tc qdisc add dev e root handle 1: qfq".to_owned();
        for (n, weight) in weights.iter().enumerate() {
            lines += &format!(
                "\ntc class add dev e parent 1: classid 1:{:x} qfq weight {weight}", n + 1
            );
        }
        let alike = |n: usize| weights.iter().filter(|weight| **weight == weights[n]).count();
        let bound = |n: usize| (8 + alike(n).min(8) as u64) * 1_514_000 / weights[n];
        keep_busy(&mut tree(&lines), weights.len(), &lens, 500, |_, sent| {
            fair(sent, &weights, bound)
        })?;
    }

    /// `multiq`: between two packets of a band that always has packets, each of the other bands
    /// sends at most one packet.
    #[test]
    fn multiq_takes_turns(bands in 1_usize..6, lens in prop::collection::vec(lens(), 1..9)) {
        let mut lines = format!("tc qdisc add dev e root handle 1: multiq bands {bands}");
        for n in 1..=bands {
            lines += &format!("\ntc filter add dev e parent 1: handle {n} fw classid 1:{n:x}");
        }
        let mut tree = tree(&lines);
        let mut lens = lens.iter().copied().cycle();
        for mark in (1..).take(bands).cycle().take(20 * bands) {
            let mut pkt = packet(u64::from(mark), lens.next().expect("endless"), 0);
            pkt.mark = mark;
            prop_assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        }
        let sent: Vec<_> = std::iter::from_fn(|| next(&mut tree)).collect();
        prop_assert_eq!(sent.len(), 20 * bands);
        for turn in sent.chunks(bands) {
            prop_assert_eq!(turn, &sent[..bands]);
        }
    }

    /// `skbprio` sends and drops the same packets as a list sorted by priority.
    #[test]
    fn skbprio_serves_and_drops_by_priority(
        limit in 0_usize..9,
        steps in prop::collection::vec(prop::option::weighted(0.6, 0_u32..80), 0..100),
    ) {
        let mut tree = tree(&format!("tc qdisc add dev e root skbprio limit {limit}"));
        let mut model: BTreeMap<u32, VecDeque<u64>> = BTreeMap::new();
        for (cookie, step) in (0..).zip(steps) {
            model.retain(|_, queue| !queue.is_empty());
            let Some(priority) = step else {
                let expected = model.last_entry().and_then(|mut top| top.get_mut().pop_front());
                prop_assert_eq!(next(&mut tree), expected);
                continue;
            };
            let verdict = tree.enqueue(NOW, packet(cookie, 100, priority));
            let (priority, held) = (priority.min(63), model.values().map(VecDeque::len).sum());
            let lowest = model.keys().next().copied().unwrap_or(63);
            let (expected, victim) = if limit > held {
                (Verdict::Queued, None)
            } else if priority <= lowest {
                (Verdict::Dropped, Some(cookie))
            } else {
                (Verdict::Congested, model.get_mut(&lowest).and_then(VecDeque::pop_back))
            };
            if expected != Verdict::Dropped {
                model.entry(priority).or_default().push_back(cookie);
            }
            prop_assert_eq!(verdict, expected);
            let died: Vec<_> = dead(&mut tree).into_iter().map(|(cookie, _)| cookie).collect();
            prop_assert_eq!(died, victim.into_iter().collect::<Vec<_>>());
        }
    }

    /// When it is full, `pfifo_head_drop` drops the oldest packet and keeps the newest ones.
    #[test]
    fn head_drop_keeps_the_newest(
        limit in 1_usize..9,
        steps in prop::collection::vec(prop::bool::weighted(0.6), 0..100),
    ) {
        let mut tree = tree(&format!("tc qdisc add dev e root pfifo_head_drop limit {limit}"));
        let mut model = VecDeque::new();
        for (cookie, comes) in (0..).zip(steps) {
            if !comes {
                prop_assert_eq!(next(&mut tree), model.pop_front());
                continue;
            }
            let verdict = tree.enqueue(NOW, packet(cookie, 100, 0));
            model.push_back(cookie);
            let full = model.len() > limit;
            let oldest = if full { model.pop_front() } else { None };
            prop_assert_eq!(verdict == Verdict::Congested, full);
            let died: Vec<_> = dead(&mut tree).into_iter().map(|(cookie, _)| cookie).collect();
            prop_assert_eq!(died, oldest.into_iter().collect::<Vec<_>>());
        }
    }
}

/// Changes the options of the root qdisc.
fn change(tree: &mut Tree, line: &str) {
    tree.apply(NOW, &format!("tc qdisc change dev e root {line}")).expect(line);
}

#[test]
fn a_plug_lets_go_of_whole_buffers() {
    let mut tree = tree("tc qdisc add dev e root plug limit 1000");
    let come = |tree: &mut Tree, cookies: std::ops::Range<u64>| {
        cookies.for_each(|cookie| {
            assert_eq!(tree.enqueue(NOW, packet(cookie, 100, 0)), Verdict::Queued)
        });
    };
    come(&mut tree, 0..2);
    assert!(matches!(tree.dequeue(NOW), Dequeue::NotBefore(Instant(u64::MAX))));
    // A `plug` releases whole buffers. A buffer is complete after the command `block`. There was no
    // `block` yet, so `release` releases nothing.
    change(&mut tree, "plug release");
    assert_eq!(next(&mut tree), None);
    change(&mut tree, "plug block");
    come(&mut tree, 2..5);
    change(&mut tree, "plug release");
    come(&mut tree, 5..6);
    assert_eq!([(); 3].map(|()| next(&mut tree)), [Some(0), Some(1), None]);
    // Complete one more buffer with `block`. The first `release` releases this buffer, the second
    // finds no complete buffer to release.
    change(&mut tree, "plug block");
    change(&mut tree, "plug release");
    change(&mut tree, "plug release");
    assert_eq!([(); 5].map(|()| next(&mut tree)), [Some(2), Some(3), Some(4), Some(5), None]);
    come(&mut tree, 6..16);
    assert_eq!(tree.enqueue(NOW, packet(16, 100, 0)), Verdict::Dropped);
    assert_eq!(dead(&mut tree), [(16, DropReason::Overlimit)]);
    change(&mut tree, "plug limit 1100 release_indefinite");
    assert_eq!(tree.enqueue(NOW, packet(17, 100, 0)), Verdict::Queued);
    assert_eq!(std::iter::from_fn(|| next(&mut tree)).count(), 11);
    come(&mut tree, 18..20);
    assert_eq!(next(&mut tree), Some(18));
    change(&mut tree, "plug block");
    assert_eq!(next(&mut tree), None);
}

#[test]
fn what_no_class_takes_is_dropped() {
    for kind in ["drr", "qfq"] {
        let mut tree = tree(&format!(
            "tc qdisc add dev e root handle 1: {kind}
             tc class add dev e parent 1: classid 1:2 {kind}
             tc filter add dev e parent 1: handle 7 fw classid 1:2
             tc filter add dev e parent 1: handle 8 fw classid 1:3
             tc filter add dev e parent 1: handle 9 fw classid 2:2"
        ));
        for (cookie, (priority, mark, taken)) in (0..).zip([
            (class(2), 0, true),
            (class(1), 0, false),
            (2, 0, false),
            (0x2_0002, 0, false),
            (class(1), 7, true),
            (0, 8, false),
            (0, 9, false),
            (class(2), 8, true),
        ]) {
            let mut pkt = packet(cookie, 100, priority);
            pkt.mark = mark;
            assert_eq!(tree.enqueue(NOW, pkt) == Verdict::Queued, taken, "{kind} {cookie}");
        }
        assert!(dead(&mut tree).iter().all(|(_, reason)| *reason == DropReason::Unclassified));
        let sent: Vec<_> = std::iter::from_fn(|| next(&mut tree)).collect();
        assert_eq!(sent, [0, 4, 7], "{kind}");
    }
}

/// In Linux, the quantum of a `drr` class is at least 256 bytes, even if a smaller one is given.
#[test]
fn quanta_are_bounded() {
    let mut tree = tree(
        "tc qdisc add dev e root handle 1: drr
         tc class add dev e parent 1: classid 1:1 drr quantum 1
         tc class add dev e parent 1: classid 1:2 drr quantum 1024",
    );
    for _ in 0..8 {
        let _ = tree.enqueue(NOW, packet(1, 256, class(1)));
        let _ = tree.enqueue(NOW, packet(2, 256, class(2)));
    }
    let sent: Vec<_> = std::iter::from_fn(|| next(&mut tree)).collect();
    assert_eq!(sent, [1, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
}

/// A class that gets packets again after it was empty starts with a whole quantum, whatever was
/// left of its last quantum.
#[test]
fn a_class_begins_with_its_quantum() {
    for lines in [
        "tc qdisc add dev e root handle 1: ets quanta 300 300",
        "tc qdisc add dev e root handle 1: drr
         tc class add dev e parent 1: classid 1:1 drr quantum 300
         tc class add dev e parent 1: classid 1:2 drr quantum 300",
    ] {
        let mut tree = tree(lines);
        let _ = tree.enqueue(NOW, packet(0, 200, class(1)));
        assert_eq!(next(&mut tree), Some(0));
        for cookie in [1, 1, 1, 1, 2] {
            let _ = tree.enqueue(NOW, packet(cookie, 100, class(usize::from(cookie == 2) + 1)));
        }
        let sent: Vec<_> = std::iter::from_fn(|| next(&mut tree)).collect();
        assert_eq!(sent, [1, 1, 1, 2, 1]);
    }
}

/// `qfq` has WF2Q's improvement on WFQ: a class with a large weight sends its share of a round
/// spread over the round, not all at once.
#[test]
fn qfq_lets_nobody_run_ahead() {
    let mut lines = "tc qdisc add dev e root handle 1: qfq
        tc class add dev e parent 1: classid 1:1 qfq weight 32"
        .to_owned();
    for minor in 2..34 {
        lines += &format!("\ntc class add dev e parent 1: classid 1:{minor:x} qfq weight 1");
    }
    let mut tree = tree(&lines);
    for _ in 0..30 {
        for minor in (1..34).chain([1; 31]) {
            let pkt = packet(minor, 1514, class(usize::try_from(minor).expect("small")));
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        }
    }
    let (mut large, mut worst) = (0_i64, 0);
    for n in 1..=900 {
        large += i64::from(next(&mut tree) == Some(1));
        worst = worst.max((2 * large - n).abs());
    }
    assert!(worst <= 16, "{worst} half packets from what is due");
}

/// A class of `qfq` saves no credit while it is idle.
#[test]
fn qfq_gives_no_credit_for_idle_times() {
    let mut tree = tree(
        "tc qdisc add dev e root handle 1: qfq
         tc class add dev e parent 1: classid 1:1 qfq weight 5
         tc class add dev e parent 1: classid 1:2 qfq weight 6",
    );
    let come = |tree: &mut Tree, class_of: usize, count: usize| {
        for _ in 0..count {
            let pkt = packet(class_of as u64, 1000, class(class_of));
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        }
    };
    // For a long time, the second class gets only a packet now and then.
    come(&mut tree, 1, 400);
    for _ in 0..30 {
        come(&mut tree, 2, 1);
        for _ in 0..11 {
            assert!(next(&mut tree).is_some());
        }
    }
    come(&mut tree, 1, 100);
    come(&mut tree, 2, 100);
    let seconds = (0..110).filter(|_| next(&mut tree) == Some(2)).count();
    assert!((56..=64).contains(&seconds), "{seconds} of 110, with 6 of 11 parts");
}

/// When `qfq` is dequeued while it is empty, it forgets which class it served last. So its parent
/// `prio` must still dequeue from a band that has become empty.
#[test]
fn prio_asks_a_band_that_has_become_empty() {
    let lines = "tc qdisc add dev e root handle 1: prio
         tc qdisc add dev e parent 1:1 handle 5: qfq
         tc class add dev e parent 5: classid 5:1 qfq weight 1
         tc class add dev e parent 5: classid 5:2 qfq weight 1000
         tc filter add dev e parent 1: handle 5 fw classid 1:1";
    let order = |asked: bool| {
        let mut tree = tree(lines);
        let come = |tree: &mut Tree, cookie, class: u32| {
            let mut pkt = packet(cookie, 1000, 0x5_0000 + class);
            pkt.mark = 5;
            assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
        };
        come(&mut tree, 0, 2);
        assert_eq!(next(&mut tree), Some(0));
        if asked {
            // Another band sends a packet. Before that, `prio` has dequeued from the first band,
            // which holds the `qfq`, and found it empty.
            let _ = tree.enqueue(NOW, packet(9, 1000, 1));
            assert_eq!(next(&mut tree), Some(9));
        }
        come(&mut tree, 1, 1);
        come(&mut tree, 2, 2);
        [next(&mut tree), next(&mut tree)]
    };
    assert_eq!(order(true), [Some(1), Some(2)]);
    assert_eq!(order(false), [Some(2), Some(1)]);
}

#[test]
fn ets_says_what_is_wrong() {
    for (line, why) in [
        (
            "ets",
            "qdisc ets: \"bands\": expected bands, strict or quanta, which set the number of bands",
        ),
        (
            "ets bands 3 strict 4",
            "qdisc ets: \"bands\": strict and quanta need 4 bands, of at most 16",
        ),
        ("ets bands 17", "qdisc ets: illegal \"bands\" \"17\": expected a whole number, 1 to 16"),
        (
            "ets strict 10 quanta 1 1 1 1 1 1 1",
            "qdisc ets: \"strict\": strict and quanta need 17 bands: expected at most 16",
        ),
        (
            "ets bands 4 priomap 0 1 2 3 4",
            "qdisc ets: \"priomap\": there is no band 4: the bands are 0 to 3",
        ),
    ] {
        assert_eq!(line.parse::<Spec>().expect_err(line).to_string(), why);
    }
}

#[test]
fn nothing_stays_in_a_black_hole() {
    for kind in ["blackhole", "noop"] {
        let mut tree = tree(&format!("tc qdisc add dev e root {kind}"));
        assert_eq!(tree.enqueue(NOW, packet(1, 100, 0)), Verdict::Dropped);
        assert_eq!(dead(&mut tree), [(1, DropReason::Blackhole)]);
        assert_eq!(next(&mut tree), None);
    }
    let mut tree = tree("tc qdisc add dev e root noqueue");
    assert!(tree.pass_or_enqueue(NOW, packet(0, 100, 0)).is_ok());
    assert_eq!(tree.enqueue(NOW, packet(1, 100, 0)), Verdict::Queued);
    assert_eq!(tree.enqueue(NOW, packet(2, 100, 0)), Verdict::Dropped);
    assert_eq!(next(&mut tree), Some(1));
}
