//! Tests of the model of the recording machine: of its wire, of its timers, and of changes that
//! `tc` makes while packets come.

use onramp_sim::recording::Case;

/// Returns a case with these parts. The kernel sent and dropped no packets in it, unless `more`
/// contains a part `kernel.csv`.
fn case(opts: &str, tc: &str, packets: &str, more: &str) -> Case {
    let text = format!(
        "== opts\n{opts}\n== tc.txt\n{tc}\n== workload.csv\n\
         time_ns,flow_id,size_bytes,priority,ecn,txtime_ns\n{packets}{more}"
    );
    let text = match more.contains("kernel.csv") {
        true => text,
        false => format!("{text}== kernel.csv\nevent,time_ns,idx,ecn,reason\n"),
    };
    Case::parse("case", &text).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the packets that Onramp sent and dropped in a run, as rows of comma-separated values
/// without the header.
fn rows(case: &Case) -> Vec<String> {
    case.play(1).csv().lines().skip(1).map(str::to_owned).collect()
}

/// Options for a wire on which sending a byte takes a microsecond. No packet may bypass the qdisc.
const SLOW: &str = "LINK=8000000\nNOBYPASS=1";
/// Options for an infinitely fast wire. No packet may bypass the qdisc.
const FAST: &str = "LINK=0\nNOBYPASS=1";

#[test]
fn packets_leave_one_after_the_other() {
    let packets = "5,0,1000,0,0,-1\n6,0,500,0,0,-1\n7,0,60,0,0,-1\n1500005,0,60,0,0,-1\n";
    let told = rows(&case(SLOW, "tc qdisc add dev d root pfifo limit 1", packets, ""));
    // The third packet finds the queue full and is dropped. The fourth packet comes at the instant
    // at which the wire becomes free, and leaves at once.
    let expected = ["deq,5,0,0,", "deq,1000005,1,0,", "deq,1500005,3,0,", "drop,7,2,0,GENERIC"];
    assert_eq!(told, expected);
    // If a packet comes at the instant at which the wire becomes free, the packet that waits in the
    // queue leaves first.
    let packets_then = "0,0,1000,0,0,-1\n10,0,1000,0,0,-1\n1000000,0,60,0,0,-1\n";
    let told = rows(&case(SLOW, "tc qdisc add dev d root pfifo limit 1", packets_then, ""));
    assert_eq!(told, ["deq,0,0,0,", "deq,1000000,1,0,", "deq,2000000,2,0,"]);
    let told = rows(&case("LINK=7000000", "tc qdisc add dev d root pfifo", packets, ""));
    // At 7 Mbit/s, 8,000 bits take 1,142,857.1 ns, 4,000 bits take 571,428.6 ns, and 480 bits take
    // 68,571.4 ns.
    let times: Vec<_> = told.iter().filter_map(|row| row.split(',').nth(1)).collect();
    assert_eq!(times, ["5", "1142863", "1714292", "1782864"]);
}

/// If the options allow it, a packet that comes to an empty qdisc bypasses it even while the wire
/// is busy, and waits between the qdisc and the wire. `tc` counts that as a requeue.
#[test]
fn an_empty_qdisc_is_passed_by_where_it_may_be() {
    let packets = "0,0,1000,0,0,-1\n10,0,1000,0,0,-1\n20,0,1000,0,0,-1\n3000000,0,9,0,0,-1\n";
    let tc = "tc qdisc add dev d root handle 1: pfifo limit 9";
    for (opts, requeues) in [(SLOW, 0), ("LINK=8000000", 1)] {
        let case = case(opts, tc, packets, "");
        let times: Vec<u64> = case.play(1).departures().collect();
        assert_eq!(times, [0, 1_000_000, 2_000_000, 3_000_000]);
        let view = &case.views(1)[0];
        let counted = (view.counters.packets, view.counters.bytes, view.counters.requeues);
        assert_eq!(counted, (4, 3_009, requeues), "{opts}");
        let listing = format!(
            "qdisc pfifo 1: root refcnt 2 limit 9p\n \
             Sent 3009 bytes 4 pkt (dropped 0, overlimits 0 requeues {requeues}) \n \
             backlog 0b 0p requeues {requeues}\n"
        );
        assert_eq!(case.listing(1), listing);
    }
    // With these options packets may not bypass the qdisc, so the second packet waits in the queue.
    // The third packet finds the queue full, and the qdisc drops the second, which is at the head,
    // to make room.
    let tc = "tc qdisc add dev d root handle 1: pfifo_head_drop limit 1";
    let told = rows(&case(SLOW, tc, packets, ""));
    let expected = ["deq,0,0,0,", "deq,1000000,2,0,", "deq,3000000,3,0,", "drop,20,1,0,GENERIC"];
    assert_eq!(told, expected);
}

/// Packets get the priorities, ECN code points, flows and departure times that the workload says.
#[test]
fn packets_have_what_the_workload_says() {
    let packets = "0,0,1000,0,0,-1\n1,0,1000,2,186,-1\n2,0,1000,6,185,-1\n";
    let told = rows(&case(SLOW, "tc qdisc add dev d root prio", packets, ""));
    // In `prio`, priority 6 maps to the first band, 0 to the second, 2 to the third.
    assert_eq!(told, ["deq,0,0,0,", "deq,1000000,2,1,", "deq,2000000,1,2,"]);
    // The first filter puts packets with the type of service 0xb8 into class 1:1, whatever their
    // ECN bits are. The second puts packets with the source port of flow 7 into class 1:3.
    let tc = "tc qdisc add dev d root handle 1: prio
tc filter add dev d parent 1: prio 1 u32 match ip tos 0xb8 0xfc classid 1:1
tc filter add dev d parent 1: prio 2 u32 match ip sport 10007 0xffff classid 1:3";
    let packets = "0,0,1000,0,0,-1\n1,7,1000,0,0,-1\n2,8,1000,0,0,-1\n3,7,1000,0,187,-1\n";
    let left: Vec<String> = rows(&case(SLOW, tc, packets, ""));
    let order: Vec<_> = left.iter().filter_map(|row| row.split(',').nth(2)).collect();
    assert_eq!(order, ["0", "3", "2", "1"]);
    // Flow 4 has a pacing rate of 1,000 bytes per second, so it pauses for a second after its first
    // packet, which has 1,000 bytes. Flow 5 has no pacing rate.
    let flows = "== flows.csv\n4,1000\n";
    let packets = "0,4,1000,0,0,-1\n1,4,1000,0,0,-1\n2,5,1000,0,0,-1\n3,5,1000,0,0,-1\n";
    let tc = "tc qdisc add dev d root fq quantum 1000 initial_quantum 1000 timer_slack 0";
    let times: Vec<u64> = case(FAST, tc, packets, flows).play(1).departures().collect();
    assert_eq!(times, [0, 2, 3, 1_000_000_000]);
}

/// Returns the time at which a packet leaves `fq`. The packet comes at 0 and has the departure time
/// `txtime`. `slack` is the option of `fq` that lets a packet leave up to that much later. If
/// `other` is a time, another packet comes then. All times are in nanoseconds.
fn leaves(slack: &str, txtime: u64, other: Option<u64>) -> u64 {
    let other = other.map_or_else(String::new, |at| format!("{at},2,60,0,0,-1\n"));
    let packets = format!("0,1,60,0,0,{txtime}\n{other}");
    let tc = format!("tc qdisc add dev d root fq horizon 4294s {slack}");
    let told = rows(&case(FAST, &tc, &packets, ""));
    let first = told.iter().find_map(|row| {
        let words: Vec<&str> = row.split(',').collect();
        (words[0] == "deq" && words[2] == "0").then(|| words[1].parse().expect("a time"))
    });
    first.unwrap_or(u64::MAX)
}

const MS: u64 = 1_000_000;

/// The timer of `fq` with 10 µs of slack runs when its slack ends, or earlier within the slack at
/// an interrupt: when the recorder (the program that sends the packets) wakes up, or when the clock
/// ticks. The clock ticks 10 ms after a packet came, and then at the second and third of every
/// eleven ticks. The recorder wakes up every 100 ms to check whether all packets have left.
#[test]
fn timers_run_along_with_interrupts() {
    for (txtime, other, left) in [
        (50_000, None, 60_000),
        (50_000, Some(49_999), 60_000),
        (50_000, Some(50_000), 50_000),
        (50_000, Some(55_000), 55_000),
        (50_000, Some(60_000), 60_000),
        (50_000, Some(70_000), 60_000),
        // In the cases below, the slack ends before, contains, or begins after the clock tick at 10
        // ms.
        (9_989_999, None, 9_999_999),
        (9_990_000, None, 10 * MS),
        (9_999_000, None, 10 * MS),
        (10 * MS, None, 10 * MS),
        (10 * MS + 1, None, 10 * MS + 10_001),
        // If the recorder (the program that sends the packets) will wake up before the slack ends,
        // the clock tick does not run the timer; the timer runs when the recorder wakes up.
        (9_999_000, Some(10_005_000), 10_005_000),
        (9_999_000, Some(10_009_000), 10 * MS),
        (9_999_000, Some(10_009_001), 10 * MS),
        // On an idle machine the clock ticks at 20 ms and at 30 ms, but not at 40 ms or at 50 ms,
        // so in the last two cases below the timer runs when its slack ends.
        (19_995_000, None, 20 * MS),
        (29_995_000, None, 30 * MS),
        (39_995_000, None, 40_005_000),
        (49_995_000, None, 50_005_000),
        // In the cases below, the recorder (the program that sends the packets) wakes up at 100 ms
        // and at 200 ms to check whether all packets have left. The clock ticks at 110 ms, because
        // the recorder was awake, and at 130, 140 and 240 ms, as on an idle machine.
        (99_995_000, None, 100 * MS),
        (109_995_000, None, 110 * MS),
        (119_995_000, None, 120_005_000),
        (129_995_000, None, 130 * MS),
        (139_995_000, None, 140 * MS),
        (149_995_000, None, 150_005_000),
        (199_995_000, None, 200 * MS),
        (239_995_000, None, 240 * MS),
    ] {
        assert_eq!(leaves("", txtime, other), left, "{txtime} {other:?}");
    }
}

/// The recorder (the program that sends the packets) waits ten minutes after it has sent its last
/// packet; a packet that would leave the qdisc at the end of that time or later is not in the
/// outcome.
#[test]
fn ten_minutes_are_enough() {
    assert_eq!(leaves("timer_slack 0", 600_000 * MS - 1, None), 600_000 * MS - 1);
    assert_eq!(leaves("timer_slack 0", 600_000 * MS, None), u64::MAX);
}

/// A packet waits for the timer of `fq`. The recorder (the program that sends the packets) wakes up
/// within the timer's slack and sends another packet. If the clock will tick before the slack ends,
/// the wake-up does not run the timer. So the new packet leaves first, and then the same call of
/// the qdisc sends the packet that waited.
#[test]
fn a_tick_keeps_a_timer_back() {
    let order = |txtime: u64, other: u64| {
        let packets = format!("0,1,60,0,0,{txtime}\n{other},2,60,0,0,-1\n");
        rows(&case(FAST, "tc qdisc add dev d root fq", &packets, ""))
    };
    assert_eq!(order(9_985_000, 9_986_000), ["deq,9986000,0,0,", "deq,9986000,1,0,"]);
    assert_eq!(order(9_995_000, 9_996_000), ["deq,9996000,1,0,", "deq,9996000,0,0,"]);
    // If the clock ticks just when the slack ends, the wake-up does run the timer, so the packet
    // that waited leaves first.
    assert_eq!(order(9_990_000, 9_996_000), ["deq,9996000,0,0,", "deq,9996000,1,0,"]);
}

/// After its last packet, the recorder (the program that sends the packets) checks from time to
/// time whether all packets have left, and sleeps after each check. The machine's clock cannot
/// interrupt this sleep in its first microsecond. So an event (a timer that runs, or a wire that
/// becomes free) that is due less than 1 µs after the check happens 1 µs after it. An event that is
/// due between 1 µs and 2 µs after the check happens 2 µs after it.
#[test]
fn the_clock_is_late_after_a_look() {
    for looked in [0, 100 * MS, 300 * MS] {
        for (after, late) in [
            (1, 1_000),
            (999, 1_000),
            (1_000, 1_000),
            (1_001, 2_000),
            (1_999, 2_000),
            (2_000, 2_000),
            (2_001, 2_001),
            (5_500, 5_500),
        ] {
            let left = leaves("timer_slack 0", looked + after, None);
            assert_eq!(left, looked + late, "{after} after {looked}");
        }
    }
    assert_eq!(leaves("timer_slack 0", 100 * MS, None), 100 * MS);
    // The first packet may leave at 1,500 ns, and the recorder still has a packet to send, at 3,000
    // ns. So the timer of `fq` runs at 1,500 ns, not late at 2,000 ns.
    assert_eq!(leaves("timer_slack 0", 1_500, Some(3_000)), 1_500);
    // Sending the first packet of 100 bytes takes 800 ns, and then the second may leave. This event
    // is late, too, at 1,000 ns, unless the recorder still has a packet to send, at 2,000 ns.
    let wire = |more: &str| {
        let packets = format!("0,0,100,0,0,-1\n0,0,100,0,0,-1\n{more}");
        let case =
            case("LINK=1000000000\nNOBYPASS=1", "tc qdisc add dev d root pfifo", &packets, "");
        case.play(1).departures().nth(1)
    };
    assert_eq!((wire(""), wire("2000,0,60,0,0,-1\n")), (Some(1_000), Some(800)));
}

/// Returns the part `changes.csv` of a case. For each line of `tc`, `lines` has the two times, in
/// nanoseconds, between which the change was made.
fn changes(lines: &[(u64, u64, &str)]) -> String {
    let rows: String =
        lines.iter().map(|(from, to, line)| format!("{from},{to},{line}\n")).collect();
    format!("== changes.csv\nfrom_ns,to_ns,line\n{rows}")
}

/// If a change releases a `plug`, its packets leave at once. After a change of `tbf` to a higher
/// rate, the qdisc is called only at the time that it had asked for before, although packets could
/// leave sooner.
#[test]
fn after_a_change_only_a_plug_is_asked() {
    let plug = "tc qdisc add dev d root handle 1: plug limit 9000";
    let release = "tc qdisc change dev d root handle 1: plug release_indefinite";
    let packets = "5,0,60,0,0,-1\n6,0,60,0,0,-1\n90,0,60,0,0,-1\n";
    let told = rows(&case(FAST, plug, packets, &changes(&[(70, 80, release)])));
    assert_eq!(told, ["deq,70,0,0,", "deq,70,1,0,", "deq,90,2,0,"]);
    // The `plug` is released after the last packet has come.
    let told = rows(&case(FAST, plug, packets, &changes(&[(900, 901, release)])));
    assert_eq!(told, ["deq,900,0,0,", "deq,900,1,0,", "deq,900,2,0,"]);
    // At a thousand bytes per second, the second packet must wait for 400 bytes of tokens, which
    // takes 0.4 s.
    let tbf =
        |rate| format!("tc qdisc add dev d root handle 1: tbf rate {rate} burst 1600 limit 9999");
    let change = tbf("8mbit").replace("add", "change");
    let packets = "0,0,1000,0,0,-1\n0,0,1000,0,0,-1\n";
    let change = changes(&[(100 * MS, 100 * MS, &change)]);
    let times: Vec<u64> =
        case(FAST, &tbf("8kbit"), packets, &change).play(1).departures().collect();
    assert_eq!((times.len(), times[0], times[1] / (4 * MS)), (2, 0, 100), "{times:?}");
}

/// Packets that a change of a qdisc drops are reported at the time of the change. If a packet comes
/// at the time of the change, it comes before the change.
#[test]
fn what_a_change_drops_is_told_at_once() {
    let tc = "tc qdisc add dev d root handle 1: codel limit 9";
    let packets = "0,0,1000,0,0,-1\n1,0,1000,0,0,-1\n2,0,1000,0,0,-1\n20,0,1000,0,0,-1\n\
                   21,0,1000,0,0,-1\n";
    let change = "tc qdisc change dev d root handle 1: codel limit 1";
    let told = rows(&case(SLOW, tc, packets, &changes(&[(20, 30, change)])));
    // Three packets wait in the queue when the change lowers the limit to one. Two of them are
    // dropped, and the third fills the queue.
    let expected = [
        "deq,0,0,0,",
        "deq,1000000,3,0,",
        "drop,20,1,0,GENERIC",
        "drop,20,2,0,GENERIC",
        "drop,21,4,0,GENERIC",
    ];
    assert_eq!(told, expected);
}

/// Drops that happen at the same time are sorted by packet number, not in the order in which the
/// qdisc drops: `fq_codel` drops both packets of the first flow before that of the second flow,
/// whose number lies between theirs.
#[test]
fn drops_of_one_time_are_in_order() {
    let tc = "tc qdisc add dev d root handle 1: fq_codel limit 9";
    let packets = "0,0,1000,0,0,-1\n1,1,1000,0,0,-1\n2,2,1000,0,0,-1\n3,1,1000,0,0,-1\n\
                   4,3,1000,0,0,-1\n";
    let change = "tc qdisc change dev d root handle 1: fq_codel limit 1";
    let told = rows(&case(SLOW, tc, packets, &changes(&[(20, 20, change)])));
    let expected = [
        "deq,0,0,0,",
        "deq,1000000,4,0,",
        "drop,20,1,0,GENERIC",
        "drop,20,2,0,GENERIC",
        "drop,20,3,0,GENERIC",
    ];
    assert_eq!(told, expected);
}

/// The recording says only between which two times a change was made. The replay tries each instant
/// at which it may have been made: the times of events that the kernel recorded between the two
/// times, and the two times.
#[test]
fn a_change_is_made_when_something_shows() {
    let tc = "tc qdisc add dev d root handle 1: plug limit 9000";
    let release = "tc qdisc change dev d root handle 1: plug release_indefinite";
    let packets = "5,0,60,0,0,-1\n";
    let told = |kernel: &str| {
        let more = changes(&[(10, 90, release)])
            + &format!("== kernel.csv\nevent,time_ns,idx,ecn,reason\n{kernel}");
        let case = case(FAST, tc, packets, &more);
        (rows(&case), case.exact(1))
    };
    let (ours, differences) = told("deq,44,0,0,\n");
    assert_eq!((ours, differences.len()), (vec!["deq,44,0,0,".to_owned()], 0));
    // The times at which the change began and ended are tried, too.
    assert!(told("deq,90,0,0,\n").1.is_empty());
    assert!(told("deq,10,0,0,\n").1.is_empty());
    // Instants outside the change are not tried. If no instant gives the kernel's outcome, the
    // difference for the first guess is reported.
    let (ours, differences) = told("deq,91,0,0,\n");
    assert_eq!(ours, ["deq,10,0,0,"]);
    let expected =
        "dequeue 0 of 1 and 1: ours packet 0 at 10 ns, ecn 0, Linux packet 0 at 91 ns, ecn 0";
    assert_eq!(differences, [expected]);
}
