//! `netem loss`: the loss models with probabilities that leave nothing to chance.
//!
//! Source: Salsano et al., "Definition of a general and intuitive loss model", 2012; `tc-netem(8)`.

use onramp_core::qdisc::Verdict;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);

/// Returns which of 200 packets are lost: an `x` for a lost packet, a dot for each other packet.
fn lost(options: &str) -> String {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root netem {options}")).expect(options);
    let mut tree = Tree::of(&setup, 1_514, 7).expect("a root");
    let mut all = String::new();
    for _ in 0..200 {
        let verdict = tree.enqueue(NOW, Packet::new(100));
        all.push(if verdict == Verdict::Queued { '.' } else { 'x' });
    }
    all
}

#[test]
fn chains_that_leave_nothing_to_chance() {
    for (options, rounds) in [
        ("loss 0%", "."),
        ("loss 100%", "x"),
        // The states of this loss model are gap (1, packets arrive), burst with loss (3), burst
        // without loss (2), and a single loss in the gap (4). The options are the probabilities p13
        // p31 p32 p23 p14 of moving from one state to another.
        ("loss state 0%", "."),
        ("loss state 100% 100%", "x."),
        ("loss state 100% 0% 0%", "x"),
        ("loss state 100% 0% 100% 100%", "x."),
        ("loss state 0% 0% 0% 0% 100%", "x."),
        // The states of this loss model are good and bad. The options are p (good to bad), r (bad
        // to good), 1-h (loss in the bad state) and 1-k (loss in the good state). A packet is
        // judged by the state before the state changes.
        ("loss gemodel 0% 0%", "."),
        ("loss gemodel 0% 0% 100% 100%", "x"),
        ("loss gemodel 100% 100%", ".x"),
        ("loss gemodel 100% 100% 0%", "."),
        ("loss gemodel 100% 100% 0% 100%", "x."),
    ] {
        let whole: String = rounds.chars().cycle().take(200).collect();
        assert_eq!(lost(options), whole, "{options}");
    }
    // With p = 100 % and r = 0 %, the state becomes bad and stays bad.
    assert_eq!(lost("loss gemodel 100% 0%"), format!(".{}", "x".repeat(199)));
}

/// The chain leaves the state "burst with loss" for the gap with p31 (80 %), and for the state
/// "burst without loss" with p32 (60 %). As in Linux, the sum of both wraps around to 40 %, so the
/// chain never returns to the gap. Three of five losses lead to the state without loss, which
/// delivers one packet and then returns. After the other two of five, the next packet is lost, too.
/// So five of eight packets are lost.
#[test]
fn sums_above_certainty_wrap_around() {
    let marks = lost("loss state 100% 80% 60%");
    let count = marks.matches('x').count();
    // Without the wrap-around, 40 % of the losses would be followed by a return to the gap.
    assert!((95..=155).contains(&count), "{count}");
    assert!(!marks.contains(".."), "a burst loses at least every other packet: {marks}");
}

/// A quarter of 200 packets is lost. The tolerance is five standard deviations.
#[test]
fn a_quarter_is_lost() {
    for options in ["loss 25%", "loss random 25%", "loss gemodel 100% 100% 50% 0%"] {
        let count = lost(options).matches('x').count();
        assert!((20..=80).contains(&count), "{options}: {count}");
    }
}
