//! The designs of the laboratory on a small simulated machine.

use onramp_lab_simulated::contention::simulated::{Cell, Outcome, run};
use onramp_lab_simulated::contention::{Design, Load, Manners};
use onramp_lab_simulated::{Error, lockstat};
use onramp_machine::{Caches, Costs, Machine, Setup, Topology, hook, simulate, thread};

/// Two sockets of two clusters of four cores, with about the costs of a current server.
const MACHINE: Machine = Machine {
    topology: Topology { sockets: 2, clusters: 2, cores: 4, threads: 1 },
    caches: Caches { line_bytes: 64, l1_lines: 768, l2_lines: 32_768 },
    costs: Costs {
        l1: 1_300,
        l2: 4_000,
        llc: 25_000,
        near: 60_000,
        far: 80_000,
        remote: 140_000,
        remote_clean: 120_000,
        memory: 100_000,
        memory_remote: 150_000,
        atomic: 5_000,
        fence: 8_000,
        pause: 40_000,
        clock: 12_000,
        context_switch: 1_000_000,
        wake: 3_000_000,
        wake_call: 700_000,
        slice: 3_000_000_000,
        smt: 1_500,
        smt_spin: 1_100,
    },
};

/// Simulates `main`, and returns its result.
fn simulated<R: 'static>(main: impl FnOnce() -> R + 'static) -> R {
    let setup = Setup { machine: MACHINE, limit_ns: 1_000_000_000, measure_ns: 0..0 };
    simulate(&setup, main).expect("it ends").0
}

/// 16 senders, each on its own processor, send 120 bytes through one queue for 200 µs.
fn cell(design: Design, manners: Manners) -> Cell {
    Cell {
        design,
        manners,
        senders: (0..16).map(Some).collect(),
        load: Load::Stream,
        queues: 1,
        qdisc: "pfifo limit 10000".parse().expect("a qdisc"),
        credits: None,
        payload: 120,
        local_ns: 400,
        packet_ns: 60,
        burst_ns: 150,
        warm_up_ns: 50_000,
        window_ns: 200_000,
        seed: 1,
    }
}

fn outcome(cell: Cell) -> Outcome {
    let name = cell.design.name();
    simulated(move || run(&cell)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Everything that a run tells, as text.
fn figures(outcome: &Outcome) -> String {
    let Outcome { sent, submitted, dropped, waits, send, locks, report, .. } = outcome;
    let sites: Vec<_> =
        report.sites.iter().map(|site| (site.location.to_string(), site.transfers)).collect();
    format!(
        "{sent} {submitted:?} {dropped:?} {waits} {:?}\n{}{:?} {sites:?}",
        send.octaves().buckets().collect::<Vec<_>>(),
        lockstat::perf_table(locks),
        report.times
    )
}

/// Whether the design has a queue of another crate.
fn is_foreign(design: Design) -> bool {
    use Design::{ArrayQueue, Floor, Rtrb, StdMpsc, Thingbuf};
    matches!(design, Floor | ArrayQueue | Thingbuf | Rtrb | StdMpsc)
}

/// `run` itself fails if a packet is lost or counted twice. In 200 µs a packet need not leave: an
/// owner may first take all packets that 16 senders have in flight.
#[test]
fn every_design_loses_no_packet_and_repeats_itself() {
    for design in Design::every().filter(|design| !is_foreign(*design)) {
        for manners in Manners::ALL {
            let run = || outcome(cell(design, *manners));
            let (first, second) = (run(), run());
            let submitted: u64 = first.submitted.iter().sum();
            assert!(submitted > 20, "{}: {submitted}", design.name());
            assert!(first.send.samples() > 20, "{}: {:?}", design.name(), first.send);
            assert_eq!(figures(&first), figures(&second), "{}", design.name());
        }
    }
}

#[test]
fn another_seed_gives_another_run() {
    let with = |seed| {
        let cell = Cell { seed, ..cell(Design::LlistQueued, Manners::Linux) };
        figures(&outcome(cell))
    };
    assert_ne!(with(1), with(2));
}

/// With 16 senders the list in front of the lock sends more than a lock alone, as it did when Linux
/// got it. The locks of Linux are queued.
#[test]
fn the_list_comes_before_the_locks() {
    let rate = |design| outcome(cell(design, Manners::Linux)).packets_per_second();
    let (lock, busylock, list) =
        (rate(Design::Queued), rate(Design::BusylockQueued), rate(Design::LlistQueued));
    assert!(list > lock && list > busylock, "{list} {busylock} {lock}");
}

/// The scheduler places senders that are not pinned, and more senders than processors share them.
/// Each queue of the device has its own qdisc.
#[test]
fn senders_need_no_processor_of_their_own() {
    for design in [Design::BusylockQueued, Design::LlistQueued, Design::Onramp] {
        let base = cell(design, Manners::Linux);
        let qdisc = "fq".parse().expect("a qdisc");
        let outcome = outcome(Cell { senders: vec![None; 24], queues: 4, qdisc, ..base });
        assert_eq!(outcome.submitted.len(), 24);
        assert!(outcome.sent > 0, "{}", design.name());
    }
}

/// The code of the device, to find where it reads payloads.
const CODE: &str = include_str!("../../../crates/onramp-lab/src/contention/simulated.rs");

/// The device of every design reads the headers of its packets, as a driver does: a design whose
/// owner has to fetch them from another processor waits for them.
#[test]
fn the_device_reads_its_packets() {
    let is_read = |line: u32| {
        let text = CODE.lines().nth(line as usize - 1);
        text.is_some_and(|text| text.contains(".payload()"))
    };
    for design in [Design::BusylockQueued, Design::LlistQueued, Design::RingPerSender] {
        let outcome = outcome(cell(design, Manners::Linux));
        let sites = outcome.report.sites.iter();
        let sites = sites.filter(|site| site.location.file().ends_with("contention/simulated.rs"));
        let reads = sites.filter(|site| is_read(site.location.line()));
        let reads: u64 = reads.map(|site| site.accesses).sum();
        assert!(reads >= outcome.sent / 2, "{}: {reads} of {}", design.name(), outcome.sent);
    }
}

/// A lock tells how long threads waited for it: with 16 senders, most of them.
#[test]
fn locks_tell_their_waits() {
    let outcome = outcome(cell(Design::Queued, Manners::Linux));
    let root = outcome.locks.iter().find(|lock| lock.name == "root").expect("the root lock");
    assert!(root.counts.contended > root.counts.acquired / 2, "{root:?}");
    assert!(root.counts.wait_max_ns as f64 >= root.wait_avg_ns(), "{root:?}");
    assert!(root.wait_avg_ns() > 100.0, "{root:?}");
}

#[test]
fn what_cannot_run_is_told() {
    let absent = simulated(|| run(&cell(Design::Rtrb, Manners::Linux)).map(drop));
    let text = absent.expect_err("another crate's queue").to_string();
    assert!(text.starts_with("rtrb: the queue of another crate"), "{text}");
    let outside = run(&cell(Design::Llist, Manners::Linux)).map(drop);
    assert!(matches!(outside, Err(Error::Thread(..))), "{outside:?}");
}

/// A ring holds 256 packets. If the device is slow and senders may have more in flight, rings
/// become full, and each packet that finds its ring full is counted.
#[test]
fn a_full_ring_drops_what_comes() {
    let slow = |credits| Cell {
        credits: Some(credits),
        packet_ns: 20_000,
        window_ns: 2_000_000,
        ..cell(Design::RingPerSender, Manners::Linux)
    };
    let full = outcome(slow(2_000));
    assert!(full.dropped.get("ring_full") > Some(&100), "{:?}", full.dropped);
    let few = outcome(slow(200));
    assert!(few.dropped.is_empty(), "a sender's packets fit its ring: {:?}", few.dropped);
    assert!(few.waits > 0, "they wait for credit");
}

/// Senders write only lines of their own: with 16 senders, a ring for each has fewer contended
/// transfers than the list that all share.
#[test]
fn rings_are_not_contended() {
    let contended = |design, file: &str| {
        let outcome = outcome(cell(design, Manners::Linux));
        let sites = outcome.report.sites.iter();
        let here = sites.filter(|site| site.location.file().ends_with(file));
        let contended: u64 = here.map(|site| site.contended).sum();
        contended as f64 / outcome.submitted.iter().sum::<u64>() as f64
    };
    let rings = contended(Design::RingPerSender, "path/rings.rs");
    let list = contended(Design::Llist, "src/cell.rs");
    assert!(rings < list / 2.0, "{rings} {list}");
}

/// Senders that spin for a lock with 16 processors leave none idle, and still the run ends in time.
#[test]
fn a_run_takes_the_time_that_it_was_given() {
    let took = simulated(|| {
        let from = hook::time_ps().expect("inside");
        let outcome = run(&cell(Design::Queued, Manners::Linux)).expect("it runs");
        thread::yield_now();
        (hook::time_ps().expect("inside") - from, outcome.report.duration)
    });
    // The senders finish what they have begun.
    assert!((250_000_000..400_000_000).contains(&took.0), "{took:?}");
    assert!((195_000_000..215_000_000).contains(&took.1), "{took:?}");
}
