//! Tests of the result of comparing Onramp's run with the kernel's run, if the runs differ in a
//! single thing.

use onramp_sim::recording::{Case, Comparison, Mode, Totals};

fn case(tc: &str, workload: &str, kernel: &str) -> Case {
    let text = format!(
        "== opts\nNOBYPASS=1\n== tc.txt\n{tc}\n== workload.csv\n\
         time_ns,flow_id,size_bytes,priority,ecn\n{workload}\
         == kernel.csv\nevent,time_ns,idx,ecn,reason\n{kernel}"
    );
    Case::parse("case", &text).unwrap_or_else(|error| panic!("{error}"))
}

/// A case in which a qdisc draws random numbers is compared by distributions. All other cases are
/// compared exactly.
#[test]
fn what_is_random() {
    for (qdisc, mode) in [
        ("pie", Mode::Distribution),
        ("fq_pie", Mode::Distribution),
        ("red limit 60000 min 5000 max 15000 avpkt 1000 burst 10", Mode::Distribution),
        ("choke limit 100 min 10 max 30 bandwidth 1mbit avpkt 1000", Mode::Distribution),
        ("cake", Mode::Distribution),
        ("dualpi2", Mode::Distribution),
        ("sfq", Mode::Exact),
        ("sfq perturb 1", Mode::Distribution),
        ("sfq redflowlimit 60000 min 5000 max 15000", Mode::Distribution),
        ("netem delay 1ms", Mode::Exact),
        ("netem limit 7 rate 1mbit", Mode::Exact),
        ("netem delay 1ms 1us", Mode::Distribution),
        ("netem loss 1%", Mode::Distribution),
        ("netem duplicate 1%", Mode::Distribution),
        ("netem corrupt 1%", Mode::Distribution),
        ("netem delay 1ms reorder 1%", Mode::Distribution),
        ("netem slot 1ms 2ms", Mode::Distribution),
        ("netem loss 1% seed 5", Mode::Exact),
        ("netem delay 1ms 1us seed 5", Mode::Exact),
        ("pfifo", Mode::Exact),
        ("fq", Mode::Exact),
        ("fq_codel", Mode::Exact),
        ("codel", Mode::Exact),
    ] {
        let case = case(&format!("tc qdisc add dev d root {qdisc}"), "", "");
        assert_eq!(case.mode(), mode, "{qdisc}");
    }
    let below = case(
        "tc qdisc add dev d root handle 1: prio\ntc qdisc add dev d parent 1:2 handle 2: pie",
        "",
        "",
    );
    assert_eq!(below.mode(), Mode::Distribution, "one of many is enough");
    assert_eq!(below.kinds().collect::<Vec<_>>(), ["prio", "pie"]);
}

/// Three packets that come almost at the same time. The first leaves at once, the second waits
/// until the 60 bytes of the first have been sent, and the third finds the queue full and is
/// dropped.
const PACKETS: &str = "1,0,60,0,2\n2,0,60,0,2\n3,0,40,0,2\n";

fn verdict(drops: &str) -> Comparison {
    let text = format!(
        "== opts\nLINK=8000000\nNOBYPASS=1\n== tc.txt\n\
         tc qdisc add dev d root pfifo limit 1\n== workload.csv\n\
         time_ns,flow_id,size_bytes,priority,ecn\n{PACKETS}== kernel.csv\n\
         event,time_ns,idx,ecn,reason\ndeq,1,0,2,\ndeq,60001,1,2,\n{drops}"
    );
    Case::parse("case", &text).unwrap_or_else(|error| panic!("{error}")).replay()
}

#[test]
fn drops_are_compared_by_packet_time_and_reason() {
    let dropped = |row: &str| verdict(&format!("{row}\n"));
    let same = dropped("drop,3,2,2,OVERLIMIT");
    assert!(same.pass && same.drops && same.order && same.marks, "{same:?}");
    assert_eq!((same.packets, same.mode), (3, Mode::Exact));
    assert_eq!((same.ours, same.theirs), ((2, 1), (2, 1)));
    assert_eq!(same.worst_time_difference_ns, Some(0));
    assert_eq!(same.differences, [""; 0]);
    // The kernel has only one word for plain drops, so its `GENERIC` matches every drop reason of
    // Onramp.
    assert!(dropped("drop,3,2,2,GENERIC").pass);
    let ours = "drop 0 of 1 and 1: ours packet 2 at 3 ns, ecn 2 Overlimit, Linux";
    for (row, linux) in [
        ("drop,4,2,2,OVERLIMIT", "packet 2 at 4 ns, ecn 2 Overlimit"),
        ("drop,3,1,2,OVERLIMIT", "packet 1 at 3 ns, ecn 2 Overlimit"),
        ("drop,3,2,2,CONGESTED", "packet 2 at 3 ns, ecn 2 Congested"),
    ] {
        let other = dropped(row);
        assert!(!other.pass && !other.drops && other.order, "{row}");
        assert_eq!(other.differences, [format!("{ours} {linux}")], "{row}");
    }
    // If the reason is missing in the kernel's row of a drop, it does not match the reason in
    // Onramp's run.
    let other = dropped("drop,3,2,2,");
    assert!(!other.pass && !other.drops);
    assert_eq!(other.differences, [format!("{ours} packet 2 at 3 ns, ecn 2")]);
    let none = verdict("");
    assert!(!none.pass && !none.drops);
    let told = "drop 0 of 1 and 0: ours packet 2 at 3 ns, ecn 2 Overlimit, Linux none";
    assert_eq!(none.differences, [told]);
    let more = verdict("drop,3,2,2,OVERLIMIT\ndrop,9,2,2,OVERLIMIT\n");
    assert!(!more.pass && !more.drops);
    let told = "drop 1 of 1 and 2: ours none, Linux packet 2 at 9 ns, ecn 2 Overlimit";
    assert_eq!(more.differences, [told]);
}

/// Two packets that each leave at the instant at which they come.
const TWO: &str = "1,0,60,0,2\n7,0,60,0,2\n";

#[test]
fn departures_are_compared_by_packet_time_and_mark() {
    let verdict = |kernel: &str| case("tc qdisc add dev d root pfifo", TWO, kernel).replay();
    let same = verdict("deq,1,0,2,\ndeq,7,1,2,\n");
    assert!(same.pass && same.order && same.drops && same.marks);
    assert_eq!((same.ours, same.theirs), ((2, 0), (2, 0)));
    assert_eq!(same.worst_time_difference_ns, Some(0));
    let late = verdict("deq,2,0,2,\ndeq,10,1,2,\n");
    assert!(!late.pass && late.order && late.marks && late.drops);
    assert_eq!(late.worst_time_difference_ns, Some(3));
    let told = "dequeue 0 of 2 and 2: ours packet 0 at 1 ns, ecn 2, Linux packet 0 at 2 ns, ecn 2";
    assert_eq!(late.differences, [told]);
    let marked = verdict("deq,1,0,2,\ndeq,7,1,3,\n");
    assert!(!marked.pass && marked.order && !marked.marks);
    let turned = verdict("deq,7,1,2,\ndeq,1,0,2,\n");
    assert!(!turned.pass && !turned.order && turned.marks);
    assert_eq!(turned.worst_time_difference_ns, Some(0), "each packet beside itself");
    let fewer = verdict("deq,1,0,2,\n");
    assert!(!fewer.pass && !fewer.order && fewer.marks);
    assert_eq!(fewer.theirs, (1, 0));
    let told = "dequeue 1 of 2 and 1: ours packet 1 at 7 ns, ecn 2, Linux none";
    assert_eq!(fewer.differences, [told]);
    let none = verdict("");
    assert_eq!((none.worst_time_difference_ns, none.pass), (None, false));
}

/// A packet and its copy have the same number. Of the packets with this number, the first that
/// leaves in Onramp's run is compared with the first that leaves in the kernel's run, the second
/// with the second.
#[test]
fn copies_are_compared_with_copies() {
    let tc = "tc qdisc add dev d root netem duplicate 100% seed 1";
    let verdict = |kernel: &str| case(tc, "1,0,60,0,2\n", kernel).replay();
    let same = verdict("deq,1,0,2,\ndeq,1,0,2,\n");
    assert!(same.pass && same.ours == (2, 0), "{same:?}");
    let late = verdict("deq,1,0,2,\ndeq,6,0,3,\n");
    assert_eq!((late.worst_time_difference_ns, late.marks), (Some(5), false));
    let early = verdict("deq,6,0,3,\ndeq,1,0,2,\n");
    assert_eq!((early.worst_time_difference_ns, early.marks), (Some(5), false));
    // In the kernel's run a third copy leaves, for which there is no counterpart in Onramp's run.
    let third = verdict("deq,1,0,2,\ndeq,1,0,2,\ndeq,9,0,3,\n");
    assert_eq!((third.worst_time_difference_ns, third.marks, third.pass), (Some(0), true, false));
}

/// If a change by `tc` drops packets, the kernel frees each of them some time after the drop, and
/// the recording does not show why. So for drops during a change, neither the time nor the reason
/// is compared, only the packets.
#[test]
fn drops_of_a_change_have_no_time() {
    let change = "changes.csv\nfrom_ns,to_ns,line\n\
                  10,20,tc qdisc change dev d root handle 1: pfifo limit 1\n";
    let told = |rows: &str| {
        let text = format!(
            "== opts\nLINK=8000000\nNOBYPASS=1\n== tc.txt\n\
             tc qdisc add dev d root handle 1: pfifo limit 9\n== {change}== workload.csv\n\
             time_ns,flow_id,size_bytes,priority,ecn\n{}== kernel.csv\n\
             event,time_ns,idx,ecn,reason\ndeq,1,0,0,\ndeq,1000001,1,0,\n{rows}",
            "1,0,1000,0,0\n".repeat(2) + "15,0,1000,0,0\n"
        );
        Case::parse("case", &text).unwrap_or_else(|error| panic!("{error}")).exact(1)
    };
    // The change lowers the limit to one packet, and then the third packet comes, so Onramp drops
    // it. The kernel's drop of this packet matches if its time lies between the beginning (10 ns)
    // and the end (20 ns) of the change.
    for (at, same) in [(9, false), (10, true), (15, true), (20, true), (21, false)] {
        let rows = format!("drop,{at},2,0,CONGESTED\n");
        assert_eq!(told(&rows).is_empty(), same, "{at}: {:?}", told(&rows));
    }
}

/// Returns a case with a hundred packets of two flows. The function `kernel` returns the row that
/// says what the kernel did with a packet.
fn random(kernel: impl Fn(u64) -> String) -> Case {
    let packets: String = (0..100).map(|n| format!("{},{},1000,0,0\n", n * 1000, n % 2)).collect();
    let rows: String = (0..100).map(kernel).collect();
    case("tc qdisc add dev d root netem loss 20% delay 5us 2us", &packets, &rows)
}

/// If the kernel's run is the same to the nanosecond as Onramp's run with seed 1, the case passes,
/// whatever Onramp's runs with other seeds are like.
#[test]
fn the_first_seed_is_tried_alone() {
    let case = random(|_| String::new());
    let rows = case.play(1).csv();
    let rows = rows.split_once('\n').expect("a head").1;
    let same = random(|number| if number == 0 { rows.to_owned() } else { String::new() }).replay();
    assert!(same.pass && same.order && same.drops && same.marks, "{same:?}");
    assert_eq!((same.worst_time_difference_ns, same.mode), (Some(0), Mode::Distribution));
}

/// If the outcome is random, the kernel's totals are compared with the mean and the standard
/// deviation of Onramp's runs with the seeds 1 to 16.
#[test]
fn distributions_are_over_sixteen_seeds() {
    let case = random(|n| format!("drop,{},{n},0,GENERIC\n", n * 1000));
    let told = case.replay();
    assert!(!told.pass && told.mode == Mode::Distribution);
    let runs: Vec<Totals> = (1..=16).map(|seed| case.totals(&case.play(seed))).collect();
    let words = |what: &str, of: &dyn Fn(&Totals) -> f64, linux: f64| {
        let mean = runs.iter().map(of).sum::<f64>() / 16.0;
        let squares: f64 = runs.iter().map(|run| (of(run) - mean).powi(2)).sum();
        format!("{what}: ours {mean:.0} (+-{:.0}), Linux {linux:.0}", (squares / 15.0).sqrt())
    };
    let expected = [
        words("drops", &|run| run.drops, 100.0),
        words("median sojourn, ns", &|run| run.median_ns, 0.0),
        words("95th percentile of sojourn, ns", &|run| run.p95_ns, 0.0),
    ];
    assert_eq!(told.differences, expected);
}

/// The totals of a run are computed correctly. Its packets have the sojourn times 7, 1,007, 2,007
/// and so on up to 99,007 ns, in a mixed order.
#[test]
fn totals_of_a_run() {
    let sojourn = |n: u64| n * 37 % 100 * 1_000 + 7;
    let packets: String =
        (0..100).map(|n| format!("{},{},{},0,{}\n", n * 10, n % 3, 100 + n, 184 + n % 4)).collect();
    // Every tenth packet leaves with other ECN bits than it came with, so `marks` counts it.
    let bits = |n: u64| if n.is_multiple_of(10) { (n + 1) % 4 } else { n % 4 };
    let row = |n: u64| format!("deq,{},{n},{},\n", n * 10 + sojourn(n), bits(n));
    let mut rows: Vec<String> = (0..100).map(row).collect();
    // Two packets are overtaken by one other packet each. The row with packet number 200, which did
    // not come, is ignored.
    rows.swap(50, 51);
    rows.swap(90, 91);
    let rows = rows.concat() + "deq,5,200,3,\ndrop,5,100,0,GENERIC\ndrop,6,101,0,GENERIC\n";
    let case = case("tc qdisc add dev d root pfifo", &packets, &rows);
    let totals = case.totals(case.recorded());
    assert_eq!((totals.drops, totals.marks, totals.overtaken), (2.0, 10.0, 2.0));
    // Of a hundred sojourn times in ascending order, the median is number 51 and the 95th
    // percentile is number 96. The mean of the numbers 0 to 99 is 49.5.
    assert_eq!((totals.median_ns, totals.p95_ns, totals.mean_ns), (50_007.0, 95_007.0, 49_507.0));
    // The three flows have 34, 33 and 33 packets. The size of a packet is 100 bytes plus the
    // packet's number, and the numbers are 0, 3, ..., 99 in the first flow, 1, 4, ..., 97 in the
    // second, and so on.
    let sums = [3_400 + 3 * 561, 3_300 + 33 + 3 * 528, 3_300 + 66 + 3 * 528];
    for (flow, sum) in sums.into_iter().enumerate() {
        assert_eq!(totals.bytes(flow as u64), f64::from(sum), "{flow}");
    }
    assert_eq!(totals.bytes(3), 0.0);
    assert_eq!(totals.flow_bytes.len(), 3);
    assert_eq!(case.totals(&onramp_sim::recording::Outcome::default()), Totals::default());
}
