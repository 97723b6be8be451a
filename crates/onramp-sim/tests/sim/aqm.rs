//! Tests of the benefits of active queue management. They run scenarios after RFC 7928 at 10 Mbit/s
//! and assert inequalities, such as a delay below a limit.
//!
//! The inequalities hold for other seeds, too. The figures that one seed gives are in
//! `docs/aqm/README.md`.

use onramp_core::Rate;
use onramp_sim::aqm::{self, Measurement, Plan, Role, Scenario, Subject};

const MS: u64 = 1_000_000;

fn plan(seed: u64) -> Plan {
    let rate: Rate = "10mbit".parse().expect("a rate");
    Plan { rate, seconds: 10.try_into().expect("not zero"), seed }
}

fn run(scenario: Scenario, kind: &str) -> Measurement {
    let subject = Subject::new(kind).expect("a kind");
    aqm::run(&plan(1), scenario, &subject).expect("it fits the link")
}

/// Returns the delay, in milliseconds, that `part` thousandths of the packets do not exceed.
fn delay(cell: &Measurement, part: u32) -> u64 {
    cell.delays().per_mille(part).expect("packets were sent").div_ceil(MS)
}

/// RFC 7928, 8.2: few flows. With tail drop, packets wait up to a second, however short the round
/// trip is. Qdiscs with a target delay of 5 ms or 15 ms keep the median delay below twice that
/// target, and the link stays busy.
#[test]
fn under_mild_load_delays_are_near_the_target_and_the_link_is_busy() {
    let deep = run(Scenario::Mild, "pfifo");
    assert!(delay(&deep, 500) > 400, "{}", delay(&deep, 500));
    for (kind, target) in [("codel", 5), ("fq_codel", 5), ("cake", 5), ("pie", 15)] {
        let cell = run(Scenario::Mild, kind);
        let (median, tail) = (delay(&cell, 500), delay(&cell, 990));
        assert!(median <= 2 * target && tail <= 8 * target, "{kind}: {median} and {tail} ms");
        // With active queue management the link is used less than with tail drop, because now and
        // then all flows halve their windows at the same time.
        assert!(cell.utilisation() > 0.85, "{kind}: {}", cell.utilisation());
        assert!(cell.jain() > Some(0.9), "{kind}: {:?}", cell.jain());
        // Each flow needs only one loss to halve its window, so few packets are dropped.
        assert!((0.001..0.015).contains(&cell.dropped_share()), "{kind}: {}", cell.dropped_share());
    }
    // RED keeps its average queue between `min` and `max`, which are 24 ms and 72 ms at this rate.
    let median = delay(&run(Scenario::Mild, "red"), 500);
    assert!((20..72).contains(&median), "{median}");
}

/// RFC 7928, 8.2: many flows, each of which has a window of less than two packets. No qdisc can
/// keep the delay at 5 ms here. The delays are tens of milliseconds, but still less than a tenth of
/// those with tail drop.
#[test]
fn under_heavy_load_delays_stay_bounded_and_flows_share() {
    let deep = run(Scenario::Heavy, "pfifo");
    for kind in ["red", "codel", "fq_codel", "cake", "pie"] {
        let cell = run(Scenario::Heavy, kind);
        let median = delay(&cell, 500);
        assert!(10 * median < delay(&deep, 500), "{kind}: {median} ms");
        assert!(cell.utilisation() > 0.95, "{kind}: {}", cell.utilisation());
        assert!(cell.jain() > Some(0.9), "{kind}: {:?}", cell.jain());
    }
    // If all flows share one queue, one flow may by chance run into one timeout after another, and
    // send much less than the others. A queue for each flow prevents this: each flow gets at least
    // half of its fair share.
    for kind in ["fq_codel", "cake"] {
        let cell = run(Scenario::Heavy, kind);
        let least = cell.flows().iter().map(|flow| cell.bits_per_second(flow)).reduce(f64::min);
        assert!(least > Some(0.5 * 1e7 / 50.0), "{kind}: {least:?}");
    }
    // PIE has one queue for all flows. Its control law holds the delay of this queue near 15 ms.
    // (RFC 8033, 4.2.)
    let median = delay(&run(Scenario::Heavy, "pie"), 500);
    assert!(median <= 25, "{median}");
}

/// RFC 7928, 5.3: one flow sends one and a half times the link's rate, whatever happens. A qdisc
/// with a queue for each flow leaves the other flows nearly their fair share (RFC 8290, 6:
/// isolation). A qdisc with one queue for all flows does not.
#[test]
fn beside_an_unresponsive_flow_only_queues_of_their_own_help() {
    for kind in ["fq_codel", "cake"] {
        let cell = run(Scenario::Unresponsive, kind);
        assert!(cell.share_of_fair() > Some(0.8), "{kind}: {:?}", cell.share_of_fair());
        assert!(delay(&cell, 950) < 40, "{kind}: {}", delay(&cell, 950));
        assert!(cell.jain() > Some(0.95), "{kind}: {:?}", cell.jain());
    }
    for kind in ["pfifo", "red", "codel", "pie"] {
        let cell = run(Scenario::Unresponsive, kind);
        assert!(cell.share_of_fair() < Some(0.2), "{kind}: {:?}", cell.share_of_fair());
        assert!(cell.utilisation() > 0.99, "{kind}: {}", cell.utilisation());
    }
    // PIE finds the drop probability that holds the delay near its target even here. CoDel raises
    // its drop rate only slowly, so its delay is too long for several seconds.
    let tail = |kind| delay(&run(Scenario::Unresponsive, kind), 950);
    assert!(tail("pie") < 80 && tail("codel") > 400, "{} {}", tail("pie"), tail("codel"));
}

/// RFC 7928, 7: a short flow begins with ten packets at once, and a video sends eight packets at
/// once. The qdiscs let such bursts pass, and the packets of a voice call do not wait behind those
/// of the bulk flow.
#[test]
fn bursts_pass_and_a_call_is_not_heard_to_wait() {
    let part = |all: Option<&onramp_sim::Histogram>, part| {
        all.and_then(|all| all.per_mille(part)).expect("there are some").div_ceil(MS)
    };
    let deep = run(Scenario::Bursts, "pfifo");
    let (short, call) = (part(deep.completions(), 500), part(deep.voice_delays(), 990));
    assert!(short > 1_000 && call > 500, "{short} and {call} ms");
    for kind in ["red", "codel", "fq_codel", "cake", "pie"] {
        let cell = run(Scenario::Bursts, kind);
        // A flow of 30 packets takes at least two round trips: 10 packets in the first, 20 in the
        // second.
        let median = part(cell.completions(), 500);
        assert!((100..400).contains(&median), "{kind}: {median} ms");
        assert!(cell.video_dropped_share() < Some(0.02), "{kind}");
        assert!(part(cell.voice_delays(), 990) < 120, "{kind}");
    }
    // A flow with few packets waits for at most one packet of each other flow (RFC 8290, 3 and
    // 4.2). The others are the bulk flow, the video and one or two short flows; sending one packet
    // takes 1.2 ms.
    for kind in ["fq_codel", "cake"] {
        let cell = run(Scenario::Bursts, kind);
        let call = part(cell.voice_delays(), 990);
        assert!(call <= 5, "{kind}: {call} ms");
        assert!(cell.video_dropped_share() < Some(0.005), "{kind}");
    }
}

/// RFC 7928, 6: if flows share a queue, and thus have the same losses, the rate of a Reno flow is
/// inversely proportional to its round trip. A queue for each flow gives all flows the same share,
/// but a flow with a long round trip does not use its whole share.
#[test]
fn flows_of_longer_trips_get_more_where_flows_have_queues() {
    let spread = |kind| {
        let cell = run(Scenario::RttMix, kind);
        let rates: Vec<f64> = cell.flows().iter().map(|flow| cell.bits_per_second(flow)).collect();
        assert!(cell.utilisation() > 0.9, "{kind}: {}", cell.utilisation());
        rates[0] / rates[3]
    };
    for kind in ["fq_codel", "cake"] {
        assert!((1.0..2.5).contains(&spread(kind)), "{kind}: {}", spread(kind));
    }
    for kind in ["codel", "pie", "red"] {
        assert!((2.5..12.0).contains(&spread(kind)), "{kind}: {}", spread(kind));
    }
}

/// RFC 7928, 4.5; RFC 3168: with ECN marks in place of drops, delays are about the same, and no
/// packet is lost.
#[test]
fn with_marks_nothing_is_dropped_and_delays_are_the_same() {
    for kind in ["red", "codel", "fq_codel", "cake", "pie"] {
        let (marks, drops) = (run(Scenario::Ecn, kind), run(Scenario::Mild, kind));
        // Drops in the warm-up, when the queue overflows for the first time, do not count. PIE
        // drops packets that it could mark while its drop probability is above 10 %, which may
        // happen for a moment (RFC 8033, 5.1).
        let most = if kind == "pie" { 0.001 } else { 0.0 };
        assert!(marks.dropped_share() <= most, "{kind}: {}", marks.dropped_share());
        assert!((0.001..0.02).contains(&marks.marked_share()), "{kind}: {}", marks.marked_share());
        assert!(drops.marked_share() == 0.0, "{kind}");
        let (marked, dropped) = (delay(&marks, 500), delay(&drops, 500));
        assert!(marked <= 2 * dropped + 2, "{kind}: {marked} and {dropped} ms");
        assert!(marks.utilisation() > 0.85, "{kind}");
    }
}

#[test]
fn the_same_seed_gives_the_same_and_another_another() {
    let cell = |seed| {
        let subject = Subject::new("pie").expect("a kind");
        let cell = aqm::run(&plan(seed), Scenario::Bursts, &subject).expect("it fits");
        format!("{cell:?}")
    };
    assert!(cell(1) == cell(1));
    assert!(cell(1) != cell(2));
}

/// On a link that is never full, the measurements have values that are known in advance.
#[test]
fn a_link_that_nobody_fills_has_no_queue() {
    let mut plan = plan(1);
    plan.rate = "10gbit".parse().expect("a rate");
    plan.seconds = 1.try_into().expect("not zero");
    let subject = Subject::new("fq_codel").expect("a kind");
    let cell = aqm::run(&plan, Scenario::Bursts, &subject).expect("it fits");
    // A short flow sends ten packets, hears after a round trip of 100 ms that they have arrived,
    // and sends twenty more, which take 10 ms to the receiver.
    let short = cell.completions().expect("some began").per_mille(500).expect("and ended");
    assert!((110 * MS..112 * MS).contains(&short), "{short}");
    // In the measured second, the video sends 25 times 8 packets, and the voice call sends 50
    // packets of 200 bytes.
    let sent = |role| {
        let flow = cell.flows().iter().find(|flow| flow.role == role).expect("there is one");
        (flow.packets, flow.dropped, flow.sent_bytes)
    };
    assert_eq!(sent(Role::Video), (200, 0, 200 * 1514));
    assert_eq!(sent(Role::Voice), (50, 0, 50 * 200));
    assert_eq!((cell.jain(), cell.share_of_fair()), (None, None));
}

#[test]
fn kinds_that_cannot_be_are_refused() {
    let error = Subject::new("htbx").expect_err("there is none").to_string();
    assert!(error.contains("htbx"), "{error}");
    assert!(Subject::new("tbf").is_err(), "it needs parameters");
    assert_eq!(Subject::new("sfq").expect("a kind").line(true, Rate::bytes_per_second(1)), "sfq");
}
