//! Tests of the parameters with which qdiscs are compared, and of which times are measured.

use onramp_core::Rate;
use onramp_sim::aqm::{self, Plan, Role, Scenario, Subject};

use super::MS;

#[test]
fn lines_scale_with_the_rate() {
    let line = |name: &str, marks, rate| {
        Subject::new(name).expect(name).line(marks, Rate::bytes_per_second(rate))
    };
    // The parameters of `red` in tc-red(8) are for 10 Mbit/s. At 1 Gbit/s they are a hundred times
    // as large, and `red` averages over packets of 32,000 bytes. At low rates they do not fall
    // below a minimum.
    for (rate, numbers) in [
        (
            1_250_000,
            "limit 400000 min 30000 max 90000 avpkt 1000 burst 55 adaptive bandwidth 10Mbit",
        ),
        (
            125_000_000,
            "limit 40000000 min 3000000 max 9000000 avpkt 32000 burst 171 adaptive bandwidth 1Gbit",
        ),
        (1_250, "limit 40000 min 3000 max 9000 avpkt 1000 burst 6 adaptive bandwidth 10Kbit"),
    ] {
        assert_eq!(line("red", false, rate), format!("red {numbers}"));
        assert_eq!(line("red", true, rate), format!("red {numbers} ecn"));
    }
    for (name, plain, marking) in [
        ("pfifo", "pfifo limit 1000", "pfifo limit 1000"),
        ("codel", "codel", "codel ecn"),
        ("pie", "pie", "pie ecn"),
        ("fq_codel", "fq_codel noecn", "fq_codel"),
        ("cake", "cake", "cake"),
    ] {
        assert_eq!((line(name, false, 9), line(name, true, 9)), (plain.into(), marking.into()));
        assert_eq!(Subject::new(name).expect(name).name(), name);
    }
    assert_eq!(Subject::KINDS, ["pfifo", "red", "codel", "fq_codel", "pie", "cake"]);
}

/// The warm-up is half of the measured time, rounded up to whole seconds.
#[test]
fn the_first_third_does_not_count() {
    let plan = |seconds: u64| Plan {
        rate: Rate::bytes_per_second(10_000_000),
        seconds: seconds.try_into().expect("not zero"),
        seed: 1,
    };
    assert_eq!([1, 2, 3, 10].map(|seconds| plan(seconds).warm_up_seconds()), [1, 1, 2, 5]);
    let subject = Subject::new("pfifo").expect("a kind");
    let run = |scenario| aqm::run(&plan(2), scenario, &subject).expect("it fits");
    let cell = run(Scenario::Mild);
    // The whole time of a run, warm-up included, is three seconds, and is divided into 120 parts.
    assert_eq!(cell.part_seconds(), 0.025);
    // The queue is full with a thousand packets of 1,514 bytes, which take 151.4 ms to send. A
    // packet may also have to wait for the packet on the wire.
    let most = cell.delays().most().expect("some passed");
    assert!((151 * MS..152 * MS).contains(&most), "{most}");
    // All flows together send what the link can carry in the measured two seconds, which is
    // 20,000,000 bytes, give or take a packet.
    let cell = run(Scenario::Unresponsive);
    let sent: u64 = cell.flows().iter().map(|flow| flow.sent_bytes).sum();
    assert!(sent.abs_diff(20_000_000) <= 1514, "{sent}");
    // The packets that the unresponsive flow sends in the measured two seconds are counted, except
    // those that are still in the queue at the end.
    let flood = cell.flows().last().expect("there is one");
    assert_eq!(flood.role, Role::Flood);
    assert!(flood.packets.abs_diff(2 * 15_000_000 / 1514) < 1_100, "{}", flood.packets);
}
