//! Tests of `onramp lab`.

use serde_json::{Value, json};

use super::{
    assert_documented_keys, assert_fails, read_json, root, run, skip, skip_kernel, stderr,
};

/// Runs `line` with `--json` and returns the JSON object and the printed text. The run must
/// succeed, which it does only if no packet is unaccounted for in any of its measurements.
fn results(line: &str) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.json");
    let output = run(&format!("{line} --json {}", file.display()));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
    assert!(stderr(&output).is_empty(), "{line}: {}", stderr(&output));
    (read_json(&file), String::from_utf8(output.stdout).expect("tables are UTF-8"))
}

#[test]
fn every_design_is_measured_and_documented() {
    let line = "lab contention --designs all --threads 1,3 --seconds 0.03 --rounds 2";
    let (results, table) = results(&format!("{line} --qdisc pfifo --histograms"));
    assert_eq!(results["schema"], "onramp.lab.contention");
    assert_eq!(results["version"], 1);
    let designs: Vec<&str> = [
        "spinlock",
        "ticket",
        "busylock",
        "handicap",
        "adaptive",
        "mutex",
        "percpu-queue",
        "llist",
        "onramp",
        "onramp-inline",
        "onramp-dedicated",
    ]
    .into();
    let rows = results["rows"].as_array().expect("rows");
    let cells: Vec<_> =
        rows.iter().map(|row| json!([row["threads"], row["manners"], row["design"]])).collect();
    let manners = [1, 3].into_iter().flat_map(|n| [(n, "linux"), (n, "equal")]);
    let want = manners.flat_map(|(n, m)| designs.iter().map(move |design| json!([n, m, design])));
    assert_eq!(cells, want.collect::<Vec<_>>());
    for base in ["busylock", "onramp"] {
        let ratios = results[format!("ratios_to_{base}")].as_array().expect("ratios");
        assert_eq!(ratios.len(), 4 * (designs.len() - 1));
        assert!(ratios.iter().all(|ratio| ratio["design"] != base));
        assert!(ratios[0]["accept_p999_ns"].is_number(), "{}", ratios[0]);
    }
    let ratios = results["ratios_to_onramp"].as_array().expect("ratios");

    // With a single thread, nobody else ever holds the lock that the thread takes.
    let alone = rows.iter().find(|row| row["design"] == "busylock").expect("the first");
    let root = &alone["locks"][0];
    assert_eq!((&root["name"], &root["contended"]), (&"root".into(), &0.into()));
    let (tables, row) = ("onramp.lab.contention", alone);
    let mut checked =
        assert_documented_keys(&format!("### `parameters` of `{tables}`"), &results["parameters"]);
    checked += assert_documented_keys(&format!("## `{tables}`, version 1"), &results);
    checked += assert_documented_keys("### Each of `rows`", row);
    checked += assert_documented_keys("### Each of `locks`", root);
    checked += assert_documented_keys(
        "### Each of `ratios_to_busylock` and `ratios_to_onramp`",
        &ratios[0],
    );
    let memory = &row["packet_memory"];
    checked += assert_documented_keys("### `packet_memory` of each row", memory);
    assert!(memory["taken"].as_u64() > Some(0), "{memory}");
    assert_eq!((&row["memory"], &memory["freed_by_others"]), (&"pool".into(), &0.into()));
    assert!(checked > 50, "{checked} keys were found in the tables");
    for keys in ["/send_ns/p50", "/send_ns/p999", "/delay_ns/max", "/batch/device_histogram/0/from"]
    {
        assert!(alone.pointer(keys).is_some_and(Value::is_number), "{keys}: {alone}");
    }
    for words in [
        "3 thread(s), each design as it originally was",
        "3 thread(s), all designs with the manners of Onramp",
        "contended   total wait",
        "UTIL",
        "NOWAIT",
        "packets/batch",
        "@send_ns[llist, 1 thr",
    ] {
        assert!(table.contains(words), "{words:?} is missing: {table}");
    }
}

#[test]
fn queues_alone_are_measured_beside_the_intake() {
    let line = "lab contention --designs peers --threads 2 --seconds 0.03 --rounds 1";
    let (results, _) = results(line);
    let rows = results["rows"].as_array().expect("rows");
    let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str().expect("a name")).collect();
    let want = "floor array-queue thingbuf rtrb parking-lot std-mpsc onramp-intake";
    assert_eq!(designs.join(" "), format!("{want} {want}"));
    let ratios = results["ratios_to_onramp"].as_array().expect("to the intake");
    assert_eq!(ratios.len(), 2 * (want.split(' ').count() - 1));
    assert!(results["ratios_to_busylock"].as_array().is_some_and(Vec::is_empty));
    assert!(rows.iter().all(|row| row["delay_ns"].is_null()), "there is no device");
    assert!(rows.iter().all(|row| row["qdisc"].is_null()), "there is no qdisc");
    for key in ["queues", "qdisc", "device", "device_ns"] {
        assert!(results["parameters"][key].is_null(), "{key}: {}", results["parameters"]);
    }
}

#[test]
fn what_the_intake_might_have_been_with_other_credits_and_memory() {
    let line =
        "lab contention --designs intakes --manners equal --threads 3 --seconds 0.02 --rounds 1";
    let twice = "--credits 4,64,4 --memory pool,malloc,pool";
    let (results, table) = results(&format!("{line} {twice}"));
    let rows = results["rows"].as_array().expect("rows");
    let cells: Vec<_> = rows.iter().take(4).map(|row| (&row["credits"], &row["memory"])).collect();
    let cell = |credits: u32, memory: &str| (Value::from(credits), Value::from(memory));
    let want = [cell(4, "pool"), cell(4, "malloc"), cell(64, "pool"), cell(64, "malloc")];
    assert!(cells.iter().copied().eq(want.iter().map(|cell| (&cell.0, &cell.1))), "{cells:?}");
    let from_heap = &rows[1]["packet_memory"];
    assert_eq!(from_heap["taken"], from_heap["allocated"]);
    assert!(from_heap["contended"].is_null());
    let designs: Vec<_> = rows.iter().step_by(4).map(|row| row["design"].as_str()).collect();
    assert_eq!(designs.len(), 7);
    assert_eq!(designs[..3], ["onramp-intake", "intake-pointer", "intake-index"].map(Some));
    assert!(table.contains("intake-shards, 64 credits, malloc"), "{table}");
}

#[test]
fn a_transmit_path_does_not_take_packets_from_the_heap() {
    let output = run("lab contention --designs peers,onramp --memory malloc");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--memory malloc: onramp needs pools"), "{}", stderr(&output));
}

/// What no measurement would use or hold is refused before anything is measured.
#[test]
fn what_would_be_ignored_is_refused() {
    let wrong: &[(&str, &[&str])] = &[
        ("contention --designs peers --qdisc pfifo", &["--qdisc: ", "bare queues", "llist"]),
        ("contention --designs intakes,peers --device-ns 9", &["--device-ns: ", "leave"]),
        ("contention --designs floor --device null", &["--device: ", "onramp-inline"]),
        ("contention --designs floor --queues 2", &["--queues: ", "bare queues"]),
        ("qdisc --kinds pfifo,red --backlog 100,1500000", &["--backlog 1500000: red ", "689160"]),
        ("qdisc --kinds bfifo --flows 3000000", &["--flows 3000000: bfifo ", "2863311"]),
        (
            "qdisc --kinds choke --flows 1,9 --backlog 300000,64,1000000",
            &["--flows 1,9 --backlog 300000,1000000: choke ", "131069"],
        ),
        ("qdisc --kinds sfq --flows 1,1000", &["--flows 1: sfq ", "127"]),
        ("kernel --cpus 1 --qdiscs none", &["--qdiscs none: neither"]),
    ];
    for (line, words) in wrong {
        assert_fails(&run(&format!("lab {line}")), 2, words);
    }
}

#[test]
fn a_qdisc_beside_bare_queues_is_for_the_other_designs() {
    let line = "lab contention --designs floor,llist --qdisc pfifo --threads 1 --seconds 0.02";
    let (results, table) = results(&format!("{line} --rounds 1 --manners equal"));
    assert_eq!(results["parameters"]["qdisc"], "pfifo");
    let qdiscs: Vec<_> = (0..2).map(|row| &results["rows"][row]["qdisc"]).collect();
    assert_eq!(qdiscs, [&Value::Null, &"pfifo".into()]);
    let mut lines = table.lines().skip_while(|line| !line.contains(", qdisc pfifo, 1 queue(s), "));
    let noted = lines.nth(1);
    assert_eq!(noted, Some("bare queues, without qdisc and device: floor"), "{table}");
}

#[test]
fn a_burst_load_on_two_queues_adds_up() {
    let line =
        "lab contention --threads 3 --seconds 0.03 --rounds 1 --queues 2 --load rr --burst 8";
    let (results, _) = results(&format!("{line} --device-ns 100 --pin"));
    assert_eq!(results["parameters"]["burst"], 8);
    assert_eq!(results["parameters"]["designs"].as_array().map(Vec::len), Some(3));
}

/// Each combination is measured, its packets add up (else the run would fail), and the rows have
/// the documented keys. The figures depend on the machine, so the test compares none of them.
#[test]
fn pacing_is_measured_and_documented() {
    let line = "lab pacing --kinds tbf,htb,cake,fq,tbf --rates 1k,100mbit --slack 0,2ms --spin 0";
    let line = format!("{line} --without-kernel");
    let (results, table) = results(&format!("{line} --seconds 0.05 --rounds 2"));
    let heading = "onramp.lab.pacing";
    assert_eq!((&results["schema"], &results["version"]), (&heading.into(), &1.into()));
    let parameters = &results["parameters"];
    assert_eq!(parameters["kinds"], json!(["tbf", "htb", "cake", "fq"]));
    assert_eq!(parameters["slack_ns"], json!([0, 2_000_000]));
    let rows = results["rows"].as_array().expect("rows");
    let (busy, links): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["path"] == "busy");
    let cells: Vec<_> =
        links.iter().map(|row| json!([row["kind"], row["rate"], row["slack_ns"]])).collect();
    assert!(links.iter().all(|row| row["path"] == "onramp"), "{rows:?}");
    let beside: Vec<_> = busy.iter().map(|row| json!([row["kind"], row["rate"]])).collect();
    let kinds = ["tbf", "htb", "cake", "fq"];
    let want = kinds.iter().flat_map(|kind| [1_000, 12_500].map(|rate| json!([kind, rate])));
    assert_eq!(beside, want.collect::<Vec<_>>());
    assert!(results["why_no_kernel"].is_null() && results["lacking"] == json!([]));
    let want = kinds.into_iter().flat_map(|kind| {
        let rates = [1_000, 12_500].into_iter();
        rates.flat_map(move |rate| [0, 2_000_000].map(|slack| json!([kind, rate, slack])))
    });
    assert_eq!(cells, want.collect::<Vec<_>>());
    for row in rows {
        assert_eq!(assert_documented_keys(&format!("### Each row of `{heading}`"), row), 33);
        assert!(row["packets"].as_u64() > Some(0), "{row}");
        assert!(row["error_ns"]["samples"].as_u64() <= row["packets"].as_u64(), "{row}");
    }
    for words in ["kind", "slack", "error p99", "wakeups", "cake"] {
        assert!(table.contains(words), "{words:?} is missing: {table}");
    }
}

/// The kernel's shapers are measured beside links over sockets, or the run says why not, and
/// measures the rest. All datagrams arrive or are counted, else the run would fail.
#[test]
fn pacing_is_measured_beside_the_kernel() {
    let line = "lab pacing --kinds tbf,htb --rates 1k,100mbit --slack 0,2ms --spin 0,20us";
    let (results, table) = results(&format!("{line} --seconds 0.1 --rounds 1"));
    let heading = "onramp.lab.pacing";
    let rows = results["rows"].as_array().expect("rows");
    let of = |path: &str| rows.iter().filter(|row| row["path"] == path).collect::<Vec<_>>();
    assert_eq!((of("onramp").len(), of("busy").len()), (2 * 2 * 2 * 2, 2 * 2));
    if let Some(why) = results["why_no_kernel"].as_str() {
        assert!(table.contains(&format!("the kernel's side is missing: {why}")), "{table}");
        assert_eq!(rows.len(), 16 + of("busy").len());
        assert!(std::env::var_os("CI").is_none() || !why.contains("apt-get"), "{why}");
        return skip_kernel(&format!("pacing beside the kernel: {why}"));
    }
    let lacking = results["lacking"].as_array().expect("a list");
    for one in lacking {
        let kind = one["kind"].as_str().expect("a name");
        assert!(table.contains(&format!("this kernel lacks {kind}: ")), "{table}");
    }
    assert_eq!((of("onramp-udp").len(), of("kernel").len()), (2 * 2 * 2, 2 * (2 - lacking.len())));
    for row in of("kernel").into_iter().chain(of("onramp-udp")) {
        assert_eq!(assert_documented_keys(&format!("### Each row of `{heading}`"), row), 33);
        assert!(row["packets"].as_u64() > Some(0), "{row}");
        assert_eq!(row["slack_ns"].is_null(), row["path"] == "kernel", "{row}");
    }
    // Only where packets lead through the kernel, interrupts work for them.
    for key in ["interrupt_ns_per_packet", "idle_interrupt_ns_per_packet", "total_ns_per_packet"] {
        assert!(of("onramp").iter().all(|row| row[key].is_null()), "{key}: {rows:?}");
    }
    assert!(of("onramp").iter().all(|row| row["overflowed"] == 0), "{rows:?}");
}

#[test]
fn pacing_says_which_values_it_takes() {
    let cases: [(&str, &[&str]); 6] = [
        ("--kinds pfifo", &["--kinds", "pfifo", "tbf, htb, cake, fq"]),
        ("--rates 9", &["--rates", "10 to 1000000 packets per second"]),
        ("--rates 1kbit", &["--rates", "multiple of 8000 bit"]),
        ("--slack 2s", &["--slack", "0 to 1s"]),
        ("--spin 0,2ms", &["--spin", "0 to 1ms"]),
        ("--rounds 0", &["--rounds"]),
    ];
    for (options, words) in cases {
        assert_fails(&run(&format!("lab pacing {options}")), 2, words);
    }
}

/// Each path is measured with what it has, or the kernel lacks it and the run says so.
#[test]
fn bridges_are_compared_and_documented() {
    if !root() {
        return skip("only root may attach the programs of AF_XDP, one of the paths of `lab wire`");
    }
    let line = "lab wire --traffic 1500,tcp --shapers none,tbf --seconds 0.3 --rounds 1";
    let output = run(&format!("{line} --json -"));
    if stderr(&output).contains("cannot make a network namespace") {
        return skip_kernel(&stderr(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let heading = "onramp.lab.wire";
    assert_eq!((&results["schema"], &results["version"]), (&heading.into(), &1.into()));
    let lacking = results["lacking"].as_array().expect("a list");
    let rows = results["rows"].as_array().expect("rows");
    let of = |path: &str| rows.iter().filter(|row| row["path"] == path).collect::<Vec<_>>();
    let counts = ["direct", "onramp", "onramp-xdp"].map(|path| of(path).len());
    assert_eq!(counts, [2, 4, 4]);
    assert!(of("bridge").len() == 4 || !lacking.is_empty(), "{rows:?}");
    for row in rows {
        assert_eq!(assert_documented_keys(&format!("### Each row of `{heading}`"), row), 31);
        let (is_tcp, is_shaped) = (row["traffic"] == "tcp", row["shaper"] == "tbf");
        assert_eq!((row["lost_share"].is_null(), row["idle_ns"].is_null()), (is_tcp, is_tcp));
        let equal = row["equal_load_cpu_ns_per_packet"].is_null();
        assert_eq!(equal, is_tcp || is_shaped, "{row}");
        let has_base = row["path"] != "bridge" && lacking.is_empty();
        assert_eq!(row["rate_to_bridge"].is_number(), has_base, "{row}");
        if is_tcp {
            continue;
        }
        // The shaper bounds what passes; on a crowded machine, less does.
        let goodput = row["goodput_bits_per_second"].as_f64().expect("a number");
        let range = if is_shaped { 1.0..1.5e8 } else { 1.0..f64::INFINITY };
        assert!(range.contains(&goodput), "{row}");
        assert!(row["idle_ns"]["samples"].as_u64().is_some_and(|n| n > 0), "{row}");
    }
}
