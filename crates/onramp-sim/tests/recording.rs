//! How recordings are read and compared, on some that are made up.

use std::fs;

use onramp_sim::recording::{Case, Comparison};

const COLUMNS: &str = "time_ns,flow_id,size_bytes,priority,ecn\n";
const EVENTS: &str = "event,time_ns,idx,flow_id,seq,size,ecn,reason\n";

/// The verdict on a case on an infinitely fast wire.
fn verdict(tc: &str, workload: &str, kernel: &str) -> Comparison {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: String| fs::write(folder.path().join(name), text).expect("a file");
    put("tc.txt", tc.to_owned());
    put("opts", "LINK=0\nNOBYPASS=1\n".to_owned());
    put("workload.csv", format!("{COLUMNS}{workload}"));
    put("kernel.csv", format!("{EVENTS}{kernel}"));
    Case::read(folder.path()).expect("a case").replay()
}

/// The recorder sets the whole type of service, and reads two bits of it.
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
