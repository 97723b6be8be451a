//! Tests of the arithmetic, which need no privileges, and short runs in a network namespace, which
//! are skipped where the process may not make one.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::*;
use crate::measure::Usage;

/// Makes the measurement of a side with one qdisc and one number of processors, without any
/// results.
fn cell(side: Side, qdisc: &str, cpus: usize) -> Measurement {
    Measurement { side, qdisc: qdisc.to_owned(), cpus, rounds: Vec::new() }
}

/// Returns a trial in which `packets` packets left in one second and each took `cpu_ns`
/// nanoseconds.
fn trial_of(packets: u64, cpu_ns: u64) -> Trial {
    let usage = Usage { process_ns: packets * cpu_ns, ..Usage::default() };
    let window = Window { ns: 1_000_000_000, usage };
    Trial { window, counted: packets, taken: packets + 7, dropped: 3 }
}

#[test]
fn a_window_counts_what_came_in_it() {
    let window = Window { ns: 5, usage: Usage::default() };
    let trial = Trial::of(window, (40, 100), 130, 7);
    assert_eq!((trial.counted, trial.taken, trial.dropped, trial.window.ns), (60, 130, 7, 5));
}

/// Returns the results of one round. Each side (the kernel and Onramp) has four measurements: the
/// floor (without a qdisc) and `htb`, each with one and with two processors. For each measurement,
/// the argument of its side has the number of packets and the CPU time per packet in nanoseconds.
fn found(kernel: [(u64, u64); 4], onramp: [(u64, u64); 4]) -> Found {
    let mut cells = Vec::new();
    for side in Side::ALL {
        for qdisc in [side.floor(), "htb"] {
            cells.extend([1, 2].map(|cpus| cell(side, qdisc, cpus)));
        }
    }
    let trials: Vec<_> =
        kernel.iter().chain(&onramp).map(|&(packets, ns)| Some(trial_of(packets, ns))).collect();
    add_round(&mut cells, &trials, 1);
    Found { device: Ok("dummy"), lacking: Vec::new(), cells }
}

/// Asserts that two figures are equal, except for rounding errors.
fn assert_near(found: Option<f64>, want: f64) {
    assert!(found.is_some_and(|found| (found - want).abs() < 1e-9), "{found:?} is not {want}");
}

#[test]
fn costs_are_above_the_floor_of_the_side_with_as_many_processors() {
    let kernel = [(4_000, 250), (7_500, 268), (2_400, 450), (960, 2_068)];
    let onramp = [(20_000, 50), (40_000, 52), (12_500, 80), (15_000, 130)];
    let found = found(kernel, onramp);
    let round = |at: usize| found.cells[at].rounds[0];
    let above = [2, 3, 6, 7].map(|at| round(at).above_floor_ns);
    for (found, want) in above.into_iter().zip([200.0, 1_800.0, 30.0, 78.0]) {
        assert_near(found, want);
    }
    assert!([0, 1, 4, 5].iter().all(|&at| round(at).above_floor_ns.is_none()), "floors");
    assert_near(round(3).scaling, 0.4);
    assert_near(round(7).scaling, 1.2);
    assert_eq!((round(7).packets, round(7).dropped), (15_007, 3));
    // 15,000 packets took 130 ns each, in all 0.00195 s. In the window of one second, the two
    // processors had two seconds, so the share is half of 0.00195.
    assert_near(Some(round(7).cpu_share), 0.000_975);

    let ratios = found.ratios();
    assert_eq!(ratios.len(), 2, "floors are not compared: {ratios:?}");
    assert_eq!((ratios[0].qdisc.as_str(), ratios[0].cpus, ratios[1].cpus), ("htb", 1, 2));
    assert_near(ratios[0].above_floor, 0.15);
    assert_near(ratios[0].packets_per_second.map(|rate| rate.median), 12_500.0 / 2_400.0);
}

#[test]
fn what_cannot_be_divided_is_not() {
    // With one processor, the kernel's `htb` takes as long per packet as the kernel's floor. With
    // two processors, no packet leaves the kernel's `htb`. So Onramp's cost cannot be divided by
    // the kernel's, and the ratios must be `None`.
    let kernel = [(4_000, 250), (7_500, 268), (4_000, 250), (0, 0)];
    let found = found(kernel, [(20_000, 50); 4]);
    let nothing = found.cells[3].rounds[0];
    assert_eq!((nothing.cpu_ns_per_packet, nothing.above_floor_ns), (None, None));
    let ratios = found.ratios();
    assert!(ratios.iter().all(|ratio| ratio.above_floor.is_none()), "{ratios:?}");
    assert!(ratios[1].packets_per_second.is_none(), "{ratios:?}");
}

#[test]
fn all_that_onramp_has_is_asked_for_once() {
    let qdiscs = qdiscs();
    let ids: BTreeSet<&str> = qdiscs.iter().map(String::as_str).collect();
    assert_eq!(ids.len(), qdiscs.len(), "{qdiscs:?}");
    let mut kinds = KINDS.iter().filter(|kind| sends(kind.id));
    assert!(kinds.all(|kind| ids.contains(kind.id)), "{qdiscs:?}");
    assert!(bed::lines("htb")[1].starts_with("class add "), "the kernel's has a class, and ours");
}

/// The kernel's floor is the qdisc `noqueue`, so the kernel's side measures it once. In Onramp,
/// `noqueue` is a qdisc beside the floor.
#[test]
fn a_floor_is_measured_once() {
    let window = Duration::from_millis(1);
    let plan = Plan { qdiscs: qdiscs(), cpus: vec![1], window, rounds: 1 };
    assert!(plan.qdiscs.iter().any(|qdisc| qdisc == "noqueue"));
    let count = |side: Side| side.qdiscs(&plan).filter(|qdisc| *qdisc == "noqueue").count();
    assert_eq!(Side::ALL.map(count), [0, 1]);
}

/// Returns the names of the devices in this thread's namespace, and the network namespaces of all
/// threads of this process.
fn surroundings() -> (String, BTreeSet<PathBuf>) {
    let devices = fs::read_to_string("/proc/self/net/dev").expect("Linux tells");
    let names: Vec<_> = devices.lines().filter_map(|line| line.split_once(':')).collect();
    let names = names.iter().map(|(name, _)| name.trim()).collect::<Vec<_>>().join(" ");
    let tasks = fs::read_dir("/proc/self/task").expect("Linux tells").flatten();
    // A thread may end while this loop runs; its namespace is then left out.
    let namespaces = tasks.filter_map(|task| fs::read_link(task.path().join("ns/net")).ok());
    (names, namespaces.collect())
}

/// Reports a skipped test directly on standard error, because the test harness hides what passing
/// tests print.
fn skip(name: &str, why: &str) {
    writeln!(std::io::stderr(), "SKIP: kernel: {name}: {why}").expect("standard error is open");
}

/// Runs `measure` in a new thread, because `measure` moves its thread into another namespace.
fn in_namespace(plan: &Plan, devices: &'static [bed::Kind]) -> Result<Found, Error> {
    thread::scope(|scope| {
        let lab = scope.spawn(|| Steps::whole(|steps| measure(plan, devices, steps)).0);
        lab.join().expect("no panic")
    })
}

/// How often a run is repeated whose threads got no processor during the measured time.
const TRIES: u32 = 100;

/// Runs [`in_namespace`] until the kernel's `pfifo` has sent packets in every round, or no device
/// was found.
fn with_packets(plan: &Plan, devices: &'static [bed::Kind]) -> Found {
    let sent = |found: &Found| {
        let pfifo = found.cells.iter().find(|cell| cell.is(Side::Kernel, "pfifo", 1));
        pfifo.expect("every kernel has pfifo").rounds.iter().all(|round| round.packets > 0)
    };
    (0..TRIES)
        .map(|_| in_namespace(plan, devices).expect("packets add up"))
        .find(|found| found.device.is_err() || sent(found))
        .expect("the threads get a processor")
}

/// Lets the test bed install an `htb` with a class and read the root qdisc back: asked for `htb`,
/// it must succeed; asked for `pfifo`, it must fail. An `htb` without its class must fail, too.
fn assert_read_back() {
    let look = || -> Result<[Result<(), String>; 3], String> {
        let bed = Bed::lay(&DEVICES)?;
        for qdisc in ["pfifo limit 9", "noqueue", "htb"] {
            bed.set(qdisc)?;
        }
        Ok([bed.laid("htb").map(drop), bed.laid("pfifo").map(drop), bed.without_class()])
    };
    let found = thread::scope(|scope| scope.spawn(look).join().expect("no panic"));
    let [same, other, bare] = found.expect("there is a device");
    assert_eq!(same, Ok(()));
    let told = other.expect_err("the root is htb");
    assert!(told.contains("should be pfifo"), "{told}");
    let told = bare.expect_err("its class is gone");
    assert!(told.contains("htb has no class 1:1"), "{told}");
}

/// A qdisc line that the kernel's `tc` accepts and Onramp does not.
const TWICE: &str = "pfifo limit 0x1p3";

/// One test covers all devices, because the test looks at the namespaces of all threads and would
/// see those of another test.
#[test]
fn every_device_swallows_all_and_leaves_nothing_behind() {
    let name = "every_device_swallows_all_and_leaves_nothing_behind";
    let before = surroundings();
    let cpus = if pin::allowed().expect("Linux tells").len() > 1 { vec![1, 2] } else { vec![1] };
    let qdiscs = ["pfifo", "pfifo limit 1", "htb", TWICE].map(str::to_owned).to_vec();
    let plan = Plan { qdiscs, cpus, window: Duration::from_millis(40), rounds: 2 };
    let mut worked = Vec::new();
    let mut lacking = Vec::new();
    for kinds in [&DEVICES[..1], &DEVICES[1..2], &DEVICES[2..]] {
        let found = with_packets(&plan, kinds);
        let lacks = |side, qdisc: &str| {
            found.lacking.iter().any(|lacking| (lacking.side, &*lacking.qdisc) == (side, qdisc))
        };
        assert!(lacks(Side::Onramp, TWICE), "{:?}", found.lacking);
        assert!(found.cells.iter().any(|cell| cell.is(Side::Onramp, "pfifo", 1)));
        match &found.device {
            Err(why) => lacking.push(why.clone()),
            Ok(device) => {
                worked.push(*device);
                assert!(!lacks(Side::Kernel, TWICE), "{:?}", found.lacking);
                let unknown = Plan { qdiscs: vec!["no-such-qdisc".to_owned()], ..plan.clone() };
                let error = in_namespace(&unknown, kinds).expect_err("no side has it");
                assert!(matches!(&error, Error::Qdisc(id, _) if id == "no-such-qdisc"), "{error}");
            }
        }
        assert_eq!(surroundings().0, before.0, "no device is left in this namespace");
    }
    // A kernel need not have all three kinds of devices. If the process could not even make a
    // namespace, the run tried no device.
    if worked.is_empty() {
        assert!(!lacking.iter().any(|why| why.starts_with("no device")), "{lacking:?}");
        let lacks_program = lacking.iter().any(|why| why.contains("apt-get"));
        assert!(!lacks_program || std::env::var_os("CI").is_none(), "{lacking:?}");
        skip(&format!("the kernel's side of {name}"), &lacking.join("; "));
    } else {
        assert_read_back();
    }
    // A run that fails leaves no thread in another namespace either.
    let greedy = Plan { cpus: vec![1_000_000], ..plan.clone() };
    let error = run(&greedy, &mut Steps::new(|_| {})).expect_err("no machine has so many");
    assert!(error.to_string().contains("but 1000000 were requested"), "{error}");
    assert!(surroundings().1.is_subset(&before.1), "no thread is in another namespace");
}
