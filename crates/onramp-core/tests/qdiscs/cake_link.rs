//! `cake`: options that describe the link (its framing and overhead) stay in force when the qdisc
//! is changed, until another option replaces them.

use onramp_core::Setup;
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};

/// Returns those listed options that come after the round-trip time.
fn listed(setup: &Setup) -> String {
    let mut out = Out::new(Style::default());
    Listed::new(None, setup, 1514, &[]).qdiscs(Query::default(), &mut out);
    let text = out.finish();
    let (_, rest) = text.split_once(" rtt ").expect("a round trip");
    rest.split_once(' ').expect("more words").1.trim().to_owned()
}

/// `raw` stays in force until a change gives an overhead without `raw` (`net/sched/sch_cake.c`,
/// `cake_change`).
#[test]
fn raw_outlives_changes_that_say_nothing_of_the_overhead() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev e root handle 1: cake").expect("a line");
    for (options, shown) in [
        ("bandwidth 1mbit raw", "raw overhead 0"),
        ("atm", "raw atm overhead 0"),
        ("bandwidth 2mbit", "raw atm overhead 0"),
        ("overhead 8", "atm overhead 8"),
        ("raw", "raw overhead 0"),
        ("rtt 50ms", "raw overhead 0"),
        ("ethernet", "noatm overhead 38 mpu 84"),
        ("rtt 60ms", "noatm overhead 38 mpu 84"),
    ] {
        let line = format!("qdisc change dev e root handle 1: cake {options}");
        setup.apply(&line).expect(&line);
        assert_eq!(listed(&setup), shown, "{options}");
    }
}
