//! Tests of how the files of a recorded case are read, and of the errors that broken files cause.

use std::fs;

use onramp_sim::recording::{Case, CaseError, compact};

/// The parts of a case without packets, on an infinitely fast wire.
const PARTS: [(&str, &str); 4] = [
    ("opts", "LINK=0\nNOBYPASS=1\n"),
    ("tc.txt", "tc qdisc add dev d root pfifo\n"),
    ("workload.csv", "time_ns,flow_id,size_bytes,priority,ecn\n"),
    ("kernel.csv", "event,time_ns,idx,ecn,reason\n"),
];

/// Returns the text of a case made of [`PARTS`], some of which are replaced by the parts in
/// `other`. A part whose text is empty is left out.
fn text(other: &[(&str, &str)]) -> String {
    let mut parts = PARTS.to_vec();
    for (name, text) in other {
        parts.retain(|(known, _)| known != name);
        parts.extend((!text.is_empty()).then_some((*name, *text)));
    }
    parts.iter().map(|(name, text)| format!("== {name}\n{text}")).collect()
}

fn read(other: &[(&str, &str)]) -> Result<Case, CaseError> {
    Case::parse("case", &text(other))
}

/// Returns the error message for a broken case with these parts.
fn wrong(other: &[(&str, &str)]) -> String {
    read(other).expect_err("it is broken").to_string()
}

#[test]
fn files_that_are_missing_are_named() {
    for name in ["tc.txt", "workload.csv", "kernel.csv"] {
        let told = format!("case:{name}: there is no such file, or it cannot be read");
        assert_eq!(wrong(&[(name, "")]), told);
    }
    // If the case has no part `opts`, the wire is infinitely fast.
    let case = read(&[("opts", ""), ("workload.csv", WORKLOAD)]).expect("a case");
    assert_eq!(case.name, "case");
    assert_eq!(case.play(1).departures().collect::<Vec<_>>(), [5, 5]);
    assert_eq!(case.kinds().collect::<Vec<_>>(), ["pfifo"]);
}

/// A workload of two packets that come at the same time, 5 ns after the beginning.
const WORKLOAD: &str = "time_ns,flow_id,size_bytes,priority,ecn\n5,1,100,0,0\n5,2,50,0,0\n";

/// Returns the times at which the two packets of [`WORKLOAD`] leave if the part `opts` has this
/// text.
fn departures(opts: &str) -> Vec<u64> {
    let case = read(&[("opts", opts), ("workload.csv", WORKLOAD)]).expect("a case");
    case.play(1).departures().collect()
}

#[test]
fn the_wire_has_options() {
    // 800 bits take 100 µs at 8 Mbit/s.
    assert_eq!(departures("LINK=8000000\n"), [5, 100_005]);
    assert_eq!(departures("MAXWAIT=7\n  LINK=8000000 # slow\nXLINK=1\n"), [5, 100_005]);
    assert_eq!(departures("LINKS=5\n"), [5, 5]);
    // On a wire that sends one bit per second, the second packet would leave after 800 seconds. The
    // recorder gives up after ten minutes, or after `MAXWAIT` seconds.
    assert_eq!(departures("LINK=1\n"), [5]);
    assert_eq!(departures("LINK=1\nMAXWAIT=800\n"), [5]);
    assert_eq!(departures("LINK=1\nMAXWAIT=801\n"), [5, 800_000_000_005]);
    // 800 bits take 2,666.7 ns at 300 Mbit/s.
    assert_eq!(departures("LINK=300000000\n"), [5, 2_672]);
    let told = "case:opts: LINK=fast: expected bits per second";
    assert_eq!(wrong(&[("opts", "LINK=fast\n")]), told);
    let told = "case:opts: MAXWAIT=1h: expected seconds";
    assert_eq!(wrong(&[("opts", "MAXWAIT=1h\n")]), told);
}

#[test]
fn lines_of_tc_that_are_refused_are_quoted() {
    let told = wrong(&[("tc.txt", "tc qdisc add dev d root pfifo limit many\n")]);
    assert!(told.starts_with("`tc qdisc add dev d root pfifo limit many`: "), "{told}");
    assert!(told.contains("many"), "{told}");
}

#[test]
fn a_folder_is_read_as_a_text_is() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in PARTS {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let case = Case::read(folder.path()).expect("a case");
    assert_eq!(Some(case.name.as_ref()), folder.path().file_name().and_then(|it| it.to_str()));
    for (name, _) in &PARTS[1..] {
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).expect("it is there");
        fs::remove_file(&path).expect("it goes");
        let told = Case::read(folder.path()).expect_err(name).to_string();
        let why = "there is no such file, or it cannot be read";
        assert_eq!(told, format!("{}: {why}", path.display()));
        fs::write(&path, text).expect("it comes back");
    }
}

#[test]
fn rows_of_the_workload() {
    let head = "priority,ecn,size_bytes,flow_id,time_ns";
    let told = |row: &str| wrong(&[("workload.csv", &format!("{head}\n0,0,60,1,5\n{row}\n"))]);
    let number = |name: &str, word: &str| {
        format!("case:workload.csv:3: {name} is {word}: expected a whole number")
    };
    for (row, name, word) in [
        ("x,0,60,1,5", "priority", "x"),
        ("0,256,60,1,5", "ecn", "256"),
        ("0,0,-1,1,5", "size_bytes", "-1"),
        ("0,0,60,0xfg,5", "flow_id", "0xfg"),
        ("0,0,60,1,", "time_ns", ""),
        ("0x100000000,0,60,1,5", "priority", "0x100000000"),
    ] {
        assert_eq!(told(row), number(name, word));
    }
    assert_eq!(told("0,0,60,1"), "case:workload.csv:3: there is no time_ns");
    for name in ["priority", "ecn", "size_bytes", "flow_id", "time_ns"] {
        let others: Vec<&str> = head.split(',').filter(|it| *it != name).collect();
        let table = format!("{}\n1,2,3,4\n", others.join(","));
        let told = wrong(&[("workload.csv", &table)]);
        assert_eq!(told, format!("case:workload.csv:2: there is no {name}"));
    }
}

/// Every number of a workload is read into the right field: the compact form, which is written from
/// these fields, contains each number again.
#[test]
fn figures_of_the_workload() {
    let workload = "time_ns,flow_id,size_bytes,priority,ecn,txtime_ns\n\
                    5,1,60,0,0,-1\n15,0x10,1514,0x1f,186,215\n15,1,61,0,0,10\n";
    let flows = "16,77\n1, 88 \nx,5\n3\n2,y\n";
    let text = text(&[("workload.csv", workload), ("flows.csv", flows)]);
    let short = compact("case", &text).expect("a case");
    // The first packet comes after 5 ns, in flow 1, and has 60 bytes. The second comes 10 ns later,
    // in flow 16, with a priority in hexadecimal digits; its departure time is 200 ns after it
    // came. The third packet is in flow 1, is one byte longer than the first, and has a departure
    // time 5 ns before it came.
    let packets = "== packets\n5 1 60 0 0\n10 16 1514 1f 186 @200\n0 1 61 @-5\n== left\n";
    assert!(short.contains(packets), "{short}");
    assert!(short.contains(&format!("== flows.csv\n{flows}")), "{short}");
    assert!(short.starts_with("== opts\nLINK=0\nNOBYPASS=1\n== tc.txt\n"), "{short}");
    assert_eq!(compact("again", &short).expect("a case"), short);
}

#[test]
fn rows_of_what_left() {
    let workload = ("workload.csv", WORKLOAD);
    let kernel = |rows: &str| format!("event,time_ns,idx,ecn,reason\n{rows}");
    let told = |row: &str| wrong(&[workload, ("kernel.csv", &kernel(&format!("{row}\n")))]);
    assert_eq!(told("deq,5,0,0,TIRED"), "case:kernel.csv:2: TIRED: unknown drop reason");
    assert_eq!(told("left,5,0,0,"), "case:kernel.csv:2: left: expected deq or drop");
    assert_eq!(
        told("deq,soon,0,0,"),
        "case:kernel.csv:2: time_ns is soon: expected a whole number"
    );
    assert_eq!(told("deq,5,x,0,"), "case:kernel.csv:2: idx is x: expected a whole number");
    assert_eq!(told("deq,5,0,x,"), "case:kernel.csv:2: ecn is x: expected a whole number");
    assert_eq!(told("deq,5,0,0"), "case:kernel.csv:2: there is no reason");
    // The drops of an outcome are sorted by time, whatever their order in the file is.
    let rows = "drop,9,1,0,GENERIC\ndeq,5,0,0,\ndrop,7,2,3,GENERIC\ndrop,7,0,3,GENERIC\n";
    let case = read(&[workload, ("kernel.csv", &kernel(rows))]).expect("a case");
    let expected = "deq,5,0,0,\ndrop,7,0,3,GENERIC\ndrop,7,2,3,GENERIC\ndrop,9,1,0,GENERIC\n";
    assert_eq!(case.recorded().csv(), kernel(expected));
    assert_eq!(case.recorded().departures().collect::<Vec<_>>(), [5]);
}

/// Each word of the kernel for a drop reason maps to the expected reason.
#[test]
fn words_of_the_kernel() {
    for (word, ours) in [
        ("GENERIC", "Unsaid"),
        ("NOT_SPECIFIED", "Unsaid"),
        ("TC_RECLASSIFY_LOOP", "Unsaid"),
        ("QUEUE_PURGE", "Unsaid"),
        ("OVERLIMIT", "Overlimit"),
        ("MAXFLOWS", "Overlimit"),
        ("CONGESTED", "Congested"),
        ("L4S_STEP_NON_ECN", "StepNonEcn"),
        ("FLOOD_PROTECTION", "FloodProtection"),
        ("BAND_LIMIT", "BandLimit"),
        ("FLOW_LIMIT", "FlowLimit"),
        ("HORIZON_LIMIT", "HorizonLimit"),
    ] {
        let kernel = format!("event,time_ns,idx,ecn,reason\ndrop,7,3,1,{word}\n");
        let case = read(&[("kernel.csv", &kernel)]).expect("a case");
        let told = format!("drop 0 of 0 and 1: ours none, Linux packet 3 at 7 ns, ecn 1 {ours}");
        assert_eq!(case.exact(1), [told]);
        // The compact form may write another word of the kernel for the drop reason, but only a
        // word with the same meaning, so the comparison has the same result.
        let text = text(&[("kernel.csv", &kernel)]);
        let short = compact("case", &text).expect("a case");
        assert_eq!(Case::parse("short", &short).expect("a case").exact(1), case.exact(1));
        assert!(!short.contains("GENERIC"), "it need not be said");
    }
}

/// The compact form of events has steps of packet numbers, ECN bits only if they changed, and drop
/// reasons.
#[test]
fn events_in_short() {
    let workload =
        "time_ns,flow_id,size_bytes,priority,ecn\n".to_owned() + &"0,1,60,0,2\n".repeat(5);
    let kernel = "event,time_ns,idx,ecn,reason\ndeq,3,0,2,\ndeq,5,1,3,\ndeq,5,4,2,\n\
                  deq,9,2,0,\ndrop,4,3,2,CONGESTED\ndrop,7,9,1,GENERIC\n";
    let parts = [("workload.csv", workload.as_str()), ("kernel.csv", kernel)];
    let short = compact("case", &text(&parts)).expect("a case");
    let events = "== left\n3\n2 =3\n0 3\n4 -2 =0\n== died\n4 4 CONGESTED\n3 6 =1\n";
    assert!(short.ends_with(events), "{short}");
    let case = Case::parse("short", &short).expect("a case");
    assert_eq!(case.recorded(), read(&parts).expect("a case").recorded());
    // Drops at the same time are sorted by packet number.
    let turned = short.replace("4 4 CONGESTED\n3 6 =1\n", "4 5 CONGESTED\n0 -2 =1\n");
    let case = Case::parse("turned", &turned).expect("a case");
    assert!(case.recorded().csv().ends_with("drop,4,2,1,GENERIC\ndrop,4,4,2,GENERIC\n"));
}

/// A row of `changes.csv` has the two times `from_ns` and `to_ns`, and a line of `tc`, which may
/// contain commas. The line must be valid for the tree as it is at that time.
#[test]
fn rows_of_changes() {
    let changes = |rows: &str| format!("from_ns,to_ns,line\n{rows}\n");
    let told = |rows: &str| wrong(&[("changes.csv", &changes(rows))]);
    let place = "case:changes.csv:2:";
    assert_eq!(told("9,8,x"), format!("{place} from 9 to 8: it ends before it begins"));
    assert_eq!(told("x,8,x"), format!("{place} from_ns is x: expected a whole number"));
    assert_eq!(told("8,x,x"), format!("{place} to_ns is x: expected a whole number"));
    assert_eq!(told("8,9"), format!("{place} there is no line"));
    let refused = told("8,8,tc qdisc change dev d root pfifo limit 1,5");
    let quoted = "`tc qdisc change dev d root pfifo limit 1,5`: ";
    assert!(refused.starts_with(quoted), "{refused}");
    // Each line is applied to the tree that the lines before it have made.
    let add = "tc class add dev d parent 1: classid 1:1 htb rate 1mbit";
    let root = "tc qdisc add dev d root handle 1: htb";
    let tc = ("tc.txt", "tc qdisc add dev d root handle 7: pfifo\n");
    let replace = format!("1,1,{}\n2,2,{add}", root.replace("add", "replace"));
    assert!(read(&[tc, ("changes.csv", &changes(&replace))]).is_ok());
    let early = wrong(&[tc, ("changes.csv", &changes(&format!("2,2,{add}")))]);
    assert!(early.starts_with(&format!("`{add}`: ")), "{early}");
}
