//! Short runs of the experiment, which measures calls of `try_send` that a full link refuses, and
//! runs that must fail because the link is not full, accepts a call, or holds a wrong number of
//! packets.

use super::*;

const WINDOW: Duration = Duration::from_millis(20);

/// The experiment runs with 1 and with 16 ports. It repeats in turn: a call of `try_send` that the
/// full link refuses, a fixed computation that is measured for comparison, and an empty pair of
/// clock readings. It must measure all three equally often, and by both clocks (elapsed time and
/// CPU time).
#[test]
fn refused_calls_are_measured_beside_a_computation() {
    let plan = Plan { ports: vec![1, 16], window: WINDOW, rounds: 2 };
    let (cells, told) = Steps::whole(|steps| run(&plan, steps));
    let found: Vec<_> = cells.iter().map(|cell| (cell.ports, cell.design)).collect();
    let want = [1, 16].map(|ports| Design::ALL.map(|design| (ports, design)));
    assert_eq!((found, told), (want.concat(), 4));
    for cell in &cells {
        let samples = cell.calls.took.samples();
        assert!(samples >= 4, "two turns in each of two rounds: {samples}");
        assert_eq!(cell.calls.cpu.samples(), samples);
        assert_eq!((cell.empty.took.samples(), cell.empty.cpu.samples()), (samples, samples));
        let calls = cell.design == Design::TrySend;
        assert_eq!(cell.rounds.len(), 2);
        assert_eq!(cell.refused, calls.then_some(samples), "each call is counted as refused");
        assert!(cell.rounds.iter().all(|round| round.ports_per_call.is_some() == calls));
    }
    for pair in cells.chunks(2) {
        let [calls, busy] = [&pair[0], &pair[1]].map(|cell| cell.calls.took.samples());
        assert_eq!(calls, busy, "in turn");
    }
}

#[test]
fn own_work_is_stated_without_the_readings() {
    let mut outcome = Outcome::default();
    for ns in [40, 40, 90] {
        outcome.empty.cpu.record(ns);
        outcome.calls[0].record_cpu(ns + 60);
        outcome.calls[0].took.record(ns);
        outcome.calls[1].cpu.record(30);
    }
    (outcome.helped, outcome.refused) = (6, 3);
    let cell = |design| {
        let (calls, empty) = (Timed::default(), Timed::default());
        let mut cell =
            Measurement { design, ports: 2, rounds: Vec::new(), calls, refused: None, empty };
        cell.add(&outcome);
        cell
    };
    let calls = cell(Design::TrySend);
    let own = calls.own().expect("three calls");
    assert_eq!((calls.readings_cpu_ns(), own.p50, own.max, own.samples), (40, 60, 110, 3));
    assert_eq!(calls.rounds[0].ports_per_call, Some(2.0));
    assert_eq!(calls.rounds[0].own_max_ns.to_bits(), 110_f64.to_bits());
    let own = cell(Design::Busy).own().expect("three computations");
    assert_eq!((own.p50, own.max), (0, 0), "less than the readings is nothing");
}

#[test]
fn long_calls_are_counted_for_each_second_of_all() {
    let mut outcome = Outcome::default();
    for ns in [1_000, LONG_NS, LONG_NS + 1, 58_999] {
        outcome.calls[0].record_cpu(ns);
    }
    let (calls, empty) = (Timed::default(), Timed::default());
    let design = Design::TrySend;
    let mut cell =
        Measurement { design, ports: 2, rounds: Vec::new(), calls, refused: None, empty };
    cell.add(&outcome);
    // Two of the recorded calls took more than `LONG_NS` (20 µs). All calls together took 100 µs of
    // CPU time, so there were 20,000 long calls per second of CPU time.
    assert_eq!(cell.rounds[0].long_per_cpu_second.to_bits(), 20_000_f64.to_bits());
}

/// Returns the error of a run in which the packets of the other senders may leave after the time
/// `others_in`, and those of the measured sender after the time `own_in`.
fn failure(others_in: Duration, own_in: Duration) -> Error {
    let full = Full::new(2, others_in, own_in);
    full.and_then(|mut full| full.measure(WINDOW).map(|_| ())).expect_err("it is not full")
}

#[test]
fn a_link_that_is_not_full_is_an_error() {
    let early = failure(Duration::ZERO, AHEAD).to_string();
    assert!(early.contains("packets left") && early.contains("was not full"), "{early}");
    let own = failure(AHEAD, Duration::ZERO);
    assert!(matches!(own, Error::NotFull(_)), "{own}");
    let beyond = failure(AHEAD + AHEAD, AHEAD).to_string();
    assert!(beyond.contains("0 packets left and") && beyond.contains("dropped"), "{beyond}");
}

#[test]
fn a_call_that_is_not_refused_is_an_error() {
    let mut full = Full::new(1, AHEAD, AHEAD).expect("a full link");
    full.sender = full.link.sender();
    let why = full.measure(WINDOW).expect_err("the new sender has credits");
    assert!(why.to_string().contains("a call to send was accepted"), "{why}");
    let mut full = Full::new(1, AHEAD, AHEAD).expect("a full link");
    full.link.close(Duration::ZERO);
    let why = full.measure(WINDOW).expect_err("it says something else");
    assert!(why.to_string().contains("the link is closed"), "{why}");
}

#[test]
fn books_that_do_not_balance_are_an_error() {
    let mut full = Full::new(3, AHEAD, AHEAD).expect("a full link");
    let (stats, given) = (full.link.stats(), full.given());
    assert!(balance(&stats, given, 0).is_ok() && in_every_port(&stats).is_ok());
    for (given, dropped) in [(given + 1, 0), (given - 1, 0), (given, 1)] {
        let why = balance(&stats, given, dropped).expect_err("one packet too many or too few");
        assert!(matches!(why, Error::Conservation(_)), "{why}");
    }
    // Put four more packets into the last port, from a sender that the experiment does not know.
    // The check of how many packets each port holds must report them.
    let mut sender = full.link.sender();
    let flow = sender.flow_with(None, Mapping::Port(2));
    spend(&full.link, &mut sender, &flow, AHEAD).expect("it has credits");
    let uneven = in_every_port(&full.link.stats()).expect_err("the last port has more");
    assert!(uneven.to_string().contains("port 2 holds 8 packets, not 4"), "{uneven}");
    full.others.pop();
    assert!(matches!(full.end(), Err(Error::Conservation(_))));
}
