//! Tests of how recordings are read and compared. The recordings are written by hand.

use std::fs;

use onramp_sim::recording::{Case, Comparison, Mode};

const COLUMNS: &str = "time_ns,flow_id,size_bytes,priority,ecn\n";
const EVENTS: &str = "event,time_ns,idx,flow_id,seq,size,ecn,reason\n";

/// Returns the result of comparing Onramp's run with the kernel's run `kernel`, on an infinitely
/// fast wire.
fn verdict(tc: &str, workload: &str, kernel: &str) -> Comparison {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: String| fs::write(folder.path().join(name), text).expect("a file");
    put("tc.txt", tc.to_owned());
    put("opts", "LINK=0\nNOBYPASS=1\n".to_owned());
    put("workload.csv", format!("{COLUMNS}{workload}"));
    put("kernel.csv", format!("{EVENTS}{kernel}"));
    Case::read(folder.path()).expect("a case").replay()
}

/// The recorder sets the whole type-of-service byte of a packet but reads only its two ECN bits
/// afterwards. That the other bits are missing afterwards does not count as a mark.
#[test]
fn a_code_point_is_no_mark() {
    let filters = "tc qdisc add dev d root handle 1: prio
        tc filter add dev d parent 1: u32 match ip tos 0xb8 0xfc classid 1:1";
    for tc in [filters, "tc qdisc add dev d root cake"] {
        let told = verdict(
            tc,
            "0,0,100,0,186\n5,0,100,0,184\n",
            "deq,0,0,0,0,100,2,\ndeq,5,1,0,1,100,0,\n",
        );
        assert!(told.pass && told.marks, "{tc}: {:?}", told.differences);
    }
}

#[test]
fn what_differs_does_not_pass() {
    let (tc, two) = ("tc qdisc add dev d root pfifo", "0,0,100,0,2\n5,1,200,0,2\n");
    let same = "deq,0,0,0,0,100,2,\ndeq,5,1,1,0,200,2,\n";
    assert!(verdict(tc, two, same).pass);
    for other in [
        "deq,0,0,0,0,100,2,\ndeq,6,1,1,0,200,2,\n",
        "deq,0,0,0,0,100,3,\ndeq,5,1,1,0,200,2,\n",
        "deq,5,1,1,0,200,2,\ndeq,5,0,0,0,100,2,\n",
        "deq,0,0,0,0,100,2,\n",
        "deq,0,0,0,0,100,2,\ndrop,5,1,1,0,200,2,OVERLIMIT\n",
    ] {
        assert!(!verdict(tc, two, other).pass, "{other}");
    }
}

/// Returns the rows of a workload: a packet of 1,000 bytes every microsecond, of four flows in
/// turn.
fn steady(packets: u64) -> String {
    (0..packets).map(|n| format!("{},{},1000,0,0\n", n * 1000, n % 4)).collect()
}

/// Returns the kernel's rows for a `netem` that lost exactly those packets for which `lost` returns
/// true.
fn losing(packets: u64, lost: impl Fn(u64) -> bool) -> String {
    let row = |n| {
        let (event, reason) = if lost(n) { ("drop", "GENERIC") } else { ("deq", "") };
        format!("{event},{},{n},{},{},1000,0,{reason}\n", n * 1000, n % 4, n / 4)
    };
    (0..packets).map(row).collect()
}

/// `netem loss 25%`: a kernel's run in which the expected number of packets is lost passes,
/// whichever packets are lost. A run with an eighth more or fewer losses does not pass, nor does a
/// run in which one flow loses more than the others.
#[test]
fn distributions_that_differ_do_not_pass() {
    let (tc, packets) = ("tc qdisc add dev d root netem loss 25%", 8_000);
    let workload = steady(packets);
    // The kernel loses every fourth packet of each flow: 2,000 of 8,000 packets.
    let fair = verdict(tc, &workload, &losing(packets, |n| (n / 4) % 4 == 0));
    assert!(fair.pass && fair.mode == Mode::Distribution, "{:?}", fair.differences);
    assert!(!fair.order && !fair.drops);
    // The kernel loses 2,250 of the 8,000 packets.
    let more = verdict(tc, &workload, &losing(packets, |n| (n / 4) % 32 < 9));
    assert!(!more.pass);
    assert!(more.differences[0].starts_with("drops: ours "), "{:?}", more.differences);
    let fewer = verdict(tc, &workload, &losing(packets, |n| (n / 4) % 32 < 7));
    assert!(!fewer.pass);
    // The kernel loses about the expected number of packets in total, but flow 0 loses more than
    // the other flows.
    let unfair = |n: u64| (n / 4) % 100 < if n.is_multiple_of(4) { 34 } else { 22 };
    let unfair = verdict(tc, &workload, &losing(packets, unfair));
    assert!(!unfair.pass);
    assert!(unfair.differences.iter().all(|told| told.starts_with("bytes of flow")));
}

const CASE: &str = "\
a remark
== opts
LINK=8000000
NOBYPASS=1
== tc.txt
tc qdisc add dev d root handle 1: pfifo limit 4
== changes.csv
from_ns,to_ns,line
1500,31500,tc qdisc change dev d root handle 1: pfifo limit 1
== workload.csv
time_ns,flow_id,size_bytes,priority,ecn
0,0,1000,0,0
100,0,1000,0,0
";

/// Returns the differences between Onramp's run and a kernel's run with these rows, for a case in
/// which a change lowers the limit to one packet. When the third packet comes, at 40,000 ns, one
/// packet is on the wire and one is in the queue.
fn changed(rows: &str) -> Vec<String> {
    let late = "40000,0,1000,0,0\n== kernel.csv\nevent,time_ns,idx,flow_id,seq,size,ecn,reason\n";
    Case::parse("made-up", &format!("{CASE}{late}{rows}")).expect("a case").exact(1)
}

/// A change that `tc` makes while packets come takes effect at its own time: a later packet finds
/// the queue full.
#[test]
fn changes_are_made_under_way() {
    let sent = "deq,0,0,0,0,1000,0,\ndeq,1000000,1,0,1,1000,0,\n";
    let full = "drop,40000,2,0,2,1000,0,OVERLIMIT\n";
    let told = changed(&format!("{full}{sent}"));
    assert!(told.is_empty(), "{told:?}");
    let told = changed(&format!("{sent}deq,2000000,2,0,2,1000,0,\n"));
    assert_eq!(told.len(), 2, "without the change, the third packet is kept: {told:?}");
}

/// Reading a case fails if the tree does not accept a change, and if a file is missing.
#[test]
fn a_case_has_to_be_whole() {
    let refused = CASE.replace("limit 1\n", "limit one\n");
    let error = Case::parse("made-up", &refused).expect_err("no number");
    assert!(error.to_string().contains("one"), "{error}");
    let error = Case::parse("made-up", CASE).expect_err("there is no kernel.csv");
    assert_eq!(
        error.to_string(),
        "made-up:kernel.csv: there is no such file, or it cannot be read"
    );
}

/// `until` keeps the events of an outcome up to and including the given time.
#[test]
fn an_outcome_ends_where_it_is_cut() {
    let rows = "0,0,1000,0,0\n".repeat(10);
    let text = format!(
        "== opts\nLINK=80000\nNOBYPASS=1\n== tc.txt\ntc qdisc add dev d root pfifo limit 8\n\
         == workload.csv\n{COLUMNS}{rows}== kernel.csv\n{EVENTS}"
    );
    let played = Case::parse("cut", &text).expect("a case").play(1);
    // Sending a packet takes 100 ms. Of the ten packets, one is on the wire, eight are in the
    // queue, and one is dropped.
    assert_eq!((played.gone(), played.end()), (10, Some(800_000_000)));
    let cut = played.until(200_000_000);
    assert_eq!((cut.gone(), cut.end()), (4, Some(200_000_000)));
    assert_eq!(cut.departures().collect::<Vec<_>>(), [0, 100_000_000, 200_000_000]);
    assert_eq!(played.until(0).gone(), 2);
}
