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
        // States: gap (1), burst with loss (3), burst (2), loss in the gap (4). Options: p13 p31
        // p32 p23 p14.
        ("loss state 0%", "."),
        ("loss state 100% 100%", "x."),
        ("loss state 100% 0% 0%", "x"),
        ("loss state 100% 0% 100% 100%", "x."),
        ("loss state 0% 0% 0% 0% 100%", "x."),
        // States: good and bad. Options: p r 1-h 1-k. A packet sees the state before the state
        // changes.
        ("loss gemodel 0% 0%", "."),
        ("loss gemodel 0% 0% 100% 100%", "x"),
        ("loss gemodel 100% 100%", ".x"),
        ("loss gemodel 100% 100% 0%", "."),
        ("loss gemodel 100% 100% 0% 100%", "x."),
    ] {
        let whole: String = rounds.chars().cycle().take(200).collect();
        assert_eq!(lost(options), whole, "{options}");
    }
    // Once the state is bad, it stays bad.
    assert_eq!(lost("loss gemodel 100% 0%"), format!(".{}", "x".repeat(199)));
}

/// As in Linux, 80 % and 60 % add up and wrap around to 40 %, so the chain never returns from a
/// burst to the gap. Three of five transitions stay in the burst and lose the next packet, so five
/// of eight packets are lost.
#[test]
fn sums_above_certainty_wrap_around() {
    let marks = lost("loss state 100% 80% 60%");
    let count = marks.matches('x').count();
    // Without the wrap-around, 40 % of the losses would be followed by the gap.
    assert!((95..=155).contains(&count), "{count}");
    assert!(!marks.contains(".."), "a burst loses at least every other packet: {marks}");
}

/// The tolerance is five standard deviations for 200 packets.
#[test]
fn a_quarter_is_lost() {
    for options in ["loss 25%", "loss random 25%", "loss gemodel 100% 100% 50% 0%"] {
        let count = lost(options).matches('x').count();
        assert!((20..=80).contains(&count), "{options}: {count}");
    }
}
