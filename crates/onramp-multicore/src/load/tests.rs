//! Tests of loads.

use super::*;
use crate::{Description, Draw};

fn load() -> Load {
    Load {
        machine: Description::named("desktop-amd").unwrap().draw(&mut Draw::new(0)),
        software: Software {
            program_ps: 300_000,
            send_ps: 30_000,
            enqueue_ps: 20_000,
            dequeue_ps: 20_000,
            qdisc_lines: 2,
            flow_lines: 1,
            transmit_ps: 60_000,
            doorbell_ps: 100_000,
            run_ps: 10_000,
            command_ps: 2_000_000,
        },
        threads: 6,
        placement: Placement::Pinned,
        ports: 2,
        spread: Spread::Turn,
        qdisc: "fq".to_owned(),
        payload: 120,
        pacing: None,
        changes_per_second: None,
        warm_up_us: 100,
        measure_us: 400,
    }
}

#[test]
fn the_time_of_all_processors_is_accounted_for() {
    let Outcome { sent, report, sends, .. } = load().simulate().unwrap();
    assert!(sent > 100 && sends.len() > sent / 2, "{sent}");
    assert_eq!(report.duration, 400_000_000);
    // A processor may be a step ahead of the end or behind it.
    let all = 32 * report.duration;
    let part = report.times.all() as f64 / all as f64;
    assert!((0.99..1.01).contains(&part), "{part}: {:?}", report.times);
}

#[test]
fn slower_parts_make_a_slower_load() {
    let sent = |change: &dyn Fn(&mut Load)| {
        let mut load = load();
        change(&mut load);
        load.simulate().unwrap().sent
    };
    let base = sent(&|_| ());
    assert!(sent(&|load| load.software.transmit_ps *= 20) < base, "the driver");
    assert!(sent(&|load| load.software.dequeue_ps *= 50) < base, "the qdisc");
    assert!(sent(&|load| load.machine.costs.near *= 10) < base, "the memory");
    assert!(sent(&|load| load.software.program_ps *= 20) < base, "the program");
}

#[test]
fn a_free_placement_and_all_qdiscs_work() {
    for qdisc in crate::QDISCS {
        let (placement, qdisc) = (Placement::Free, (*qdisc).to_owned());
        for spread in [Spread::Turn, Spread::Cpu, Spread::Near] {
            let load = Load { placement, qdisc: qdisc.clone(), spread, ..load() };
            assert!(load.simulate().unwrap().sent > 100, "{qdisc} {spread:?}");
        }
    }
}

/// Senders that all begin at the same time fill the port within a millisecond. The thread that
/// owns the port then finds thousands of packets, and must not work on them for as long as they
/// take: no send lasts longer than an owner may work, and a burst.
#[test]
fn no_send_takes_much_longer_than_an_owner_may_work() {
    let machine = Description::named("xeon-6985p").unwrap().draw(&mut Draw::new(0));
    let load = Load { machine, threads: 240, ports: 1, warm_up_us: 0, ..load() };
    let outcome = Load { measure_us: 1_000, ..load }.simulate().unwrap();
    assert!(outcome.accepted() > 2 * outcome.sent, "the queues fill: {}", outcome.sent);
    let (work, longest) = (outcome.longest_work_ns, outcome.sends.max());
    assert!(longest < 150_000, "{longest} ns");
    assert!(work > 10_000 && work <= longest, "{work} of {longest} ns");
}

/// Six flows of which each may send a packet of 162 bytes in 129.6 us.
fn paced(bits_per_second: u64) -> Load {
    Load { pacing: Some(Pacing { bits_per_second }), warm_up_us: 500, measure_us: 4_000, ..load() }
}

#[test]
fn paced_flows_leave_at_their_rate() {
    let Outcome { sent, report, gaps, dropped, changes, .. } =
        paced(10_000_000).simulate().unwrap();
    let (gaps, want) = (gaps.unwrap(), 6.0 * 4_000.0 / 129.6);
    assert!((sent as f64 - want).abs() < 7.0, "{sent}, not {want}");
    assert!((gaps.mean() / 129_600.0 - 1.0).abs() < 0.01, "{gaps:?}");
    assert!(gaps.min() > 100_000, "no packet follows at once: {}", gaps.min());
    assert!((dropped, changes.is_none()) == (0, true), "{dropped}");
    // The ports sleep until packets are due, and the time wakes them: once in 129.6 us, because all
    // flows began at the same time.
    assert!((28..200).contains(&report.timers), "{} timers", report.timers);
    assert!(report.times.idle > report.times.all() / 10 * 9, "{:?}", report.times);
    let half = paced(5_000_000).simulate().unwrap();
    let part = half.sent as f64 / sent as f64;
    assert!((part - 0.5).abs() < 0.05, "{part}");
    assert!(load().simulate().unwrap().gaps.is_none());
}

#[test]
fn wrong_rates_are_refused() {
    let why = |load: Load| load.simulate().unwrap_err().to_string();
    for rate in [0, 7, 2_000_000_000_000] {
        assert!(why(paced(rate)).contains(&format!("{rate} is not between")), "{rate}");
    }
    let seldom = why(paced(100_000));
    assert!(seldom.contains("every 12960 us") && seldom.contains("= 4000"), "{seldom}");
    let pfifo = why(Load { qdisc: "pfifo".to_owned(), ..paced(10_000_000) });
    assert!(pfifo.contains("only the qdisc fq paces"), "{pfifo}");
    for changes in [0, 1_000_001] {
        let why = why(Load { changes_per_second: Some(changes), ..load() });
        assert!(why.contains(&format!("changes_per_second: {changes}")), "{why}");
    }
}

/// In 0.5 ms, 10,000 changes in a second are five, of which one comes before the measured time.
#[test]
fn qdiscs_are_changed_while_others_send() {
    for qdisc in crate::QDISCS {
        let load = Load { qdisc: (*qdisc).to_owned(), ..load() };
        let undisturbed = load.simulate().unwrap();
        let load = Load { changes_per_second: Some(10_000), ..load };
        let Outcome { sent, changes, .. } = load.simulate().unwrap();
        let changes = changes.unwrap();
        assert_eq!((changes.all, changes.times.len()), (5, 4), "{qdisc}");
        assert!(changes.times.min() >= 2_000, "the command's own work: {:?}", changes.times);
        assert!(changes.times.max() < 90_000, "before the next one: {:?}", changes.times);
        assert!(sent > undisturbed.sent / 2, "{qdisc}: {sent}");
    }
}

/// What a thread counted is compared with what each qdisc counted.
#[test]
fn a_change_that_did_not_happen_is_found() {
    let setup = Setup { machine: load().machine, limit_ns: 1_000_000_000, measure_ns: 0..0 };
    let (said, _) = simulate(&setup, || {
        let link = load().link(&Arc::new(Sent::new(0..1)));
        let changes = |all| Changes { all, times: Histogram::new(3).unwrap() };
        changes(0).check(&link).unwrap();
        let none = changes(1).check(&link).unwrap_err().to_string();
        link.change("qdisc change dev link root charged-fq limit 9000").unwrap();
        changes(1).check(&link).unwrap();
        let fewer = changes(2).check(&link).unwrap_err().to_string();
        link.change("qdisc change dev link root charged-fq limit 9000").unwrap();
        let other = changes(2).check(&link).unwrap_err().to_string();
        let _ = link.close(Duration::from_secs(1));
        [none, fewer, other]
    })
    .unwrap();
    for (said, words) in said.iter().zip(["made Some(0)", "made Some(1)", "limit Some(9000)"]) {
        assert!(said.contains("port 0") && said.contains(words), "{said}");
    }
}

#[test]
fn lost_packets_are_found() {
    conserved(5, 3, 2).unwrap();
    let lost = conserved(5, 3, 1).unwrap_err().to_string();
    assert_eq!(lost, "packets are not conserved: 5 accepted, 3 sent, 1 dropped");
    assert!(conserved(5, 6, 0).is_err());
}
