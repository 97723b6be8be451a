//! `tc` on a host: what it prints, what it refuses, and in which words. Unless a comment says
//! otherwise, `tc` of iproute2 6.1 prints the same words.

use super::*;

/// A host with three devices: `d0` with a small tree of qdiscs, `d1` with one qdisc, and `d2`
/// without any.
const TREE: &[&str] = &[
    "ip link add d0 type dummy",
    "ip link add d1 type dummy",
    "ip link add d2 type dummy",
    "tc qdisc add dev d0 root handle 1: htb default 1",
    "tc class add dev d0 parent 1: classid 1:1 htb rate 1048576bit",
    "tc class add dev d0 parent 1:1 classid 1:2 htb rate 1048576bit",
    "tc qdisc add dev d0 parent 1:2 handle 20: prio",
    "tc qdisc add dev d1 root handle 7: pfifo limit 5",
    "tc qdisc add dev d1 ingress",
];

const INCOMPLETE: &str = "Command line is not complete. Try option \"help\"\n";

/// Commands that fail, the exit status of each, and its whole error text.
const WRONG: &[(&str, u8, &str)] = &[
    ("tc foo", 255, "Object \"foo\" is unknown, try \"tc help\".\n"),
    ("tc -foo qdisc", 255, "Option \"-foo\" is unknown, try \"tc -help\".\n"),
    // Unlike in iproute2, a single dash is an unknown option, and options may begin with two dashes
    // instead of one.
    ("tc - qdisc", 255, "Option \"-\" is unknown, try \"tc -help\".\n"),
    ("tc -- qdisc", 255, "Option \"-\" is unknown, try \"tc -help\".\n"),
    ("tc --foo qdisc", 255, "Option \"-foo\" is unknown, try \"tc -help\".\n"),
    (
        "tc -s -b file",
        255,
        "Option \"-batch\" must come first, and needs the name of a file, or -.\n",
    ),
    (
        "tc -n space qdisc",
        255,
        "Option \"-netns\": Onramp's devices are not in network namespaces.\n",
    ),
    ("tc qdisc foo", 255, "Command \"foo\" is unknown, try \"tc qdisc help\".\n"),
    ("tc qdisc get dev d0", 255, "Command \"get\" is unknown, try \"tc qdisc help\".\n"),
    ("tc class get dev d0", 255, "Command \"get\" is unknown, try \"tc class help\".\n"),
    ("tc class link dev d0", 255, "Command \"link\" is unknown, try \"tc class help\".\n"),
    ("tc filter link dev d0", 255, "Command \"link\" is unknown, try \"tc filter help\".\n"),
    ("tc qdisc show dev", 255, INCOMPLETE),
    ("tc qdisc show parent", 255, INCOMPLETE),
    ("tc qdisc show handle", 255, INCOMPLETE),
    ("tc class show dev", 255, INCOMPLETE),
    ("tc class show parent", 255, INCOMPLETE),
    ("tc class show qdisc", 255, INCOMPLETE),
    ("tc class show classid", 255, INCOMPLETE),
    ("tc qdisc show dev d0 parent zz", 255, "Error: argument \"zz\" is wrong: invalid parent ID\n"),
    ("tc qdisc show dev d0 handle zz", 255, "Error: argument \"zz\" is wrong: invalid handle ID\n"),
    ("tc class show dev d0 parent zz", 255, "Error: argument \"zz\" is wrong: invalid parent ID\n"),
    ("tc class show dev d0 qdisc zz", 255, "Error: argument \"zz\" is wrong: invalid qdisc ID\n"),
    ("tc class show dev d0 classid zz", 255, "Error: argument \"zz\" is wrong: invalid class ID\n"),
    ("tc qdisc show foo", 255, "What is \"foo\"? Try \"tc qdisc help\".\n"),
    ("tc qdisc show classid 1:1", 255, "What is \"classid\"? Try \"tc qdisc help\".\n"),
    ("tc qdisc show qdisc 1:", 255, "What is \"qdisc\"? Try \"tc qdisc help\".\n"),
    ("tc class show foo", 255, "What is \"foo\"? Try \"tc class help\".\n"),
    ("tc class show handle 1:", 255, "What is \"handle\"? Try \"tc class help\".\n"),
    ("tc class show invisible", 255, "What is \"invisible\"? Try \"tc class help\".\n"),
    ("tc class show ingress", 255, "What is \"ingress\"? Try \"tc class help\".\n"),
    ("tc qdisc show dev nope", 1, "Cannot find device \"nope\"\n"),
    ("tc class show dev nope", 1, "Cannot find device \"nope\"\n"),
    ("tc filter show dev nope", 1, "Cannot find device \"nope\"\n"),
    ("tc filter show parent 1: dev nope", 1, "Cannot find device \"nope\"\n"),
    (
        "tc filter get dev nope parent 1: protocol ip pref 1 handle 1 fw",
        1,
        "Cannot find device \"nope\"\n",
    ),
    ("tc qdisc add dev nope root fq", 1, "Cannot find device \"nope\"\n"),
    // As with `tc`, the kind of the qdisc is checked only after the device was found.
    ("tc qdisc add dev nope root nonsense", 1, "Cannot find device \"nope\"\n"),
    ("tc qdisc del dev nope root", 1, "Cannot find device \"nope\"\n"),
    // The second line of this error text is Onramp's; iproute2 does not print it.
    (
        "tc qdisc add root fq",
        2,
        "RTNETLINK answers: No such device\nthe device is missing: give dev NAME\n",
    ),
];

#[test]
fn what_is_wrong_is_said_as_tc_says_it() {
    let mut host = host(TREE);
    let before = out(&mut host, "tc qdisc show");
    for (line, code, err) in WRONG {
        let want = Reply { code: *code, out: String::new(), err: (*err).to_owned() };
        assert_eq!(exec(&mut host, line), want, "{line}");
    }
    assert_eq!(out(&mut host, "tc qdisc show"), before, "what failed changed nothing");
}

/// If the words of a line are wrong and its device does not exist, the error about the words is
/// reported.
#[test]
fn a_line_is_read_before_its_device_is_looked_for() {
    let mut host = host(TREE);
    let reply = exec(&mut host, "tc qdisc add dev nope root pfifo limit many");
    assert_ne!(reply.code, 0);
    assert!(!reply.err.contains("nope") && reply.err.contains("limit"), "{reply:?}");
    let without = exec(&mut host, "tc qdisc add dev d2 root pfifo limit many");
    assert_eq!(reply, without, "as on a device that is there");
}

/// If a change is refused, the error text begins with the kernel's words, followed by Onramp's
/// explanation.
#[test]
fn what_the_kernel_refuses_is_said_in_its_words() {
    let mut host = host(TREE);
    for (line, begins, ends) in [
        (
            "tc qdisc add dev d1 root pfifo",
            "Error: Exclusivity flag on, cannot modify.\n",
            "is there already; use replace\n",
        ),
        ("tc qdisc add dev d2 root nonsense", "Error: Specified qdisc kind is unknown.\n", "\n"),
        (
            "tc filter add dev d2 parent 5: protocol ip matchall",
            "Error: Parent Qdisc doesn't exists.\nWe have an error talking to the kernel\nfilter",
            "\n",
        ),
    ] {
        let Reply { code, out, err } = exec(&mut host, line);
        assert_eq!((code, out.as_str()), (2, ""), "{line}: {err}");
        assert!(err.starts_with(begins) && err.ends_with(ends), "{line}: {err:?}");
        assert!(err.lines().count() >= 2, "{line}: {err:?}");
        let talks = err.contains("talking to the kernel");
        assert_eq!(talks, line.contains("filter"), "{err:?}");
    }
}

/// Each argument has to be a single word, because a space inside an argument would change the
/// meaning of the line.
#[test]
fn an_argument_with_a_space_is_refused() {
    let mut host = host(TREE);
    for word in ["fq limit 5", "", "fq\tlimit"] {
        let words = ["tc", "qdisc", "add", "dev", "d2", "root", word];
        let err = format!("Error: argument {word:?} is wrong: it must be a single word\n");
        let want = Reply { code: 255, out: String::new(), err };
        assert_eq!(host.exec(&words, Path::new("/")), want);
    }
    assert_eq!(out(&mut host, "tc qdisc show dev d2"), "");
    let reply = host.exec(&["gzip", "d0"], Path::new("/"));
    let err = "unknown program \"gzip\"; expected tc, ip or save\n".to_owned();
    assert_eq!(reply, Reply { code: 255, out: String::new(), err });
    let err = "unknown program \"\"; expected tc, ip or save\n".to_owned();
    assert_eq!(host.exec(&[], Path::new("/")), Reply { code: 255, out: String::new(), err });
}

/// Help goes to standard error. The exit status is 0, except for the help of a kind of qdisc, as
/// with `tc`.
#[test]
fn help_is_that_of_what_it_is_asked_of() {
    let mut host = host(TREE);
    let mut said = |line: &str, code: u8| {
        let reply = exec(&mut host, line);
        assert_eq!((reply.code, reply.out.as_str()), (code, ""), "{line}: {reply:?}");
        reply.err
    };
    let tc = said("tc help", 0);
    assert!(tc.starts_with("Usage:\ttc [ OPTIONS ] OBJECT { COMMAND | help }\n"), "{tc}");
    for line in ["tc", "tc -help", "tc -s h", "tc -h qdisc"] {
        assert_eq!(said(line, 0), tc, "{line}");
    }
    for (object, first, second) in [
        ("qdisc", "Usage: tc qdisc { add | del | replace | change | link | show } dev", "tc qdisc"),
        ("class", "Usage: tc class { add | del | change | replace } dev STRING", "tc class show"),
        ("filter", "Usage: tc filter { add | del | change | replace } dev STRING", "tc filter"),
    ] {
        let help = said(&format!("tc {object} help"), 0);
        assert!(help.starts_with(first) && help.contains(second), "{help}");
        for line in ["h", "add dev d0 help", "add help", "show help"] {
            assert_eq!(said(&format!("tc {object} {line}"), 0), help, "tc {object} {line}");
        }
    }
    let kind = |id: &str| {
        let mut kinds = onramp_core::qdisc::KINDS.iter();
        kinds.find(|kind| kind.id == id).expect("there is such a kind")
    };
    let helps = ["fq", "htb"].map(|id| kind(id).help());
    assert_ne!(helps[0], helps[1]);
    assert_eq!(said("tc qdisc add dev d0 root fq help", 1), helps[0]);
    assert_eq!(said("tc qdisc add dev d0 root htb help", 1), helps[1]);
    // The device in this line is called `htb`, like a kind of qdisc. The last kind in the line,
    // `fq`, selects the help.
    assert_eq!(said("tc qdisc add dev htb root fq help", 1), helps[0]);
    let class = kind("htb").class_help();
    assert_ne!(class, helps[1]);
    assert_eq!(said("tc class add dev d0 parent 1: htb help", 1), class);
    let filters = onramp_core::filter::reference::FILTERS;
    for id in ["fw", "u32", "matchall"] {
        let filter = filters.iter().find(|filter| filter.id == id).expect("there is such a kind");
        assert_eq!(said(&format!("tc filter add dev d0 {id} help"), 1), filter.help());
    }
}

#[test]
fn the_version_is_printed() {
    let want = format!("tc utility, onramp-{}\n", env!("CARGO_PKG_VERSION"));
    let mut host = Host::new();
    for line in ["tc -V", "tc -Version qdisc", "tc -s --Ver"] {
        assert_eq!(out(&mut host, line), want, "{line}");
    }
}

/// Each option of `tc` that Onramp supports has its effect on the output. The options that Onramp
/// accepts without effect, such as `-r`, leave the output unchanged.
#[test]
fn options_shape_what_is_printed() {
    let mut host = host(TREE);
    let plain = out(&mut host, "tc class show dev d0");
    assert!(plain.contains(" rate 1048Kbit ") && !plain.contains("Sent"), "{plain}");
    for word in ["-r", "-raw", "-g", "-graph", "-N", "-t", "-ts", "-o", "-oneline", "-force", "-f"]
    {
        assert_eq!(out(&mut host, &format!("tc {word} class show dev d0")), plain, "{word}");
    }
    for word in ["-i", "-iec", "--iec"] {
        let iec = out(&mut host, &format!("tc {word} class show dev d0"));
        assert!(iec.contains(" rate 1Mibit "), "{iec}");
    }
    for word in ["-s", "-stats", "-statistics", "--statistics"] {
        let counted = out(&mut host, &format!("tc {word} class show dev d0"));
        assert!(counted.contains("\n Sent 0 bytes 0 pkt "), "{counted}");
    }
    for word in ["-d", "-details"] {
        let details = out(&mut host, &format!("tc {word} class show dev d0"));
        assert!(details.contains(" linklayer ethernet "), "{details}");
    }
    assert!(!plain.contains("linklayer"));
    let json = out(&mut host, "tc -j qdisc show dev d1 root");
    assert!(json.starts_with("[{\"kind\":\"pfifo\",\"handle\":\"7:\",\"root\":true,"), "{json}");
    assert_eq!(json.lines().count(), 1);
    let pretty = out(&mut host, "tc -j -p qdisc show dev d1 root");
    assert!(pretty.lines().count() > 5, "{pretty}");
    let squeezed: String = pretty.split_whitespace().collect();
    assert_eq!(squeezed, json.split_whitespace().collect::<String>(), "it only has more breaks");
    assert_eq!(out(&mut host, "tc -json -pretty qdisc show dev d1 root"), pretty);
}

/// Returns the beginning of each listed line, up to and including the place of the qdisc or class.
fn heads(text: &str) -> Vec<String> {
    let head = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let dev = if words.get(3) == Some(&"dev") { 2 } else { 0 };
        let place = if words.get(3 + dev) == Some(&"root") { 4 } else { 5 };
        words[1..place + dev].join(" ")
    };
    text.lines().filter(|line| !line.starts_with(' ')).map(head).collect()
}

#[test]
fn what_is_listed_is_what_is_asked_for() {
    let mut host = host(TREE);
    let mut listed = |line: &str, want: &[&str]| {
        let text = out(&mut host, line);
        assert_eq!(heads(&text), want, "{line}: {text}");
    };
    let (htb, prio) = ("htb 1: dev d0 root", "prio 20: dev d0 parent 1:2");
    let (pfifo, ingress) = ("pfifo 7: dev d1 root", "ingress ffff: dev d1 parent ffff:fff1");
    // If no device is named, the qdiscs of all devices are listed, with the names of the devices.
    for verb in ["", " show", " list", " lst", " ls", " sh"] {
        listed(&format!("tc qdisc{verb}"), &[htb, prio, pfifo, ingress]);
    }
    listed("tc qdisc show root", &[htb, pfifo]);
    listed("tc qdisc show parent 1:2", &[prio]);
    listed("tc qdisc show parent 1:1", &[]);
    listed("tc qdisc show handle 7:", &[pfifo]);
    listed("tc qdisc show handle 20:", &[prio]);
    listed("tc qdisc show ingress", &[ingress]);
    listed("tc qdisc show clsact", &[ingress]);
    // If a device is named, the listing does not repeat its name.
    listed("tc qdisc show dev d0", &["htb 1: root", "prio 20: parent 1:2"]);
    listed("tc qdisc show dev d0 handle 20:", &["prio 20: parent 1:2"]);
    listed("tc qdisc show handle 20: dev d1", &[]);
    listed("tc qdisc show dev d1 root", &["pfifo 7: root"]);
    // Classes are listed for one device only.
    listed("tc class show", &[]);
    let classes =
        ["htb 1:1 root", "htb 1:2 parent 1:1", "prio 20:1 parent 20:", "prio 20:2 parent 20:"];
    let last = "prio 20:3 parent 20:";
    listed("tc class show dev d0", &[&classes[..], &[last]].concat());
    listed("tc class ls dev d0", &[&classes[..], &[last]].concat());
    listed("tc class show dev d0 classid 1:2", &classes[1..2]);
    listed("tc class show dev d0 classid 20:1", &classes[2..3]);
    listed("tc class show dev d0 classid 1:3", &[]);
    // The classes of one qdisc are listed by their minor numbers.
    listed("tc class show dev d0 qdisc 1:", &["htb :1 root", "htb :2 parent :1"]);
    let prios = ["prio :1 parent none", "prio :2 parent none", "prio :3 parent none"];
    listed("tc class show dev d0 qdisc 20:", &prios);
    listed("tc class show dev d0 qdisc 21:", &[]);
    listed("tc class show dev d0 parent 20:", &[classes[2], classes[3], last]);
    listed("tc class show dev d1", &[]);
}

/// Default qdiscs are listed only with `invisible`.
#[test]
fn what_is_there_by_default_is_invisible() {
    let mut host = host(TREE);
    let plain = out(&mut host, "tc qdisc show dev d0");
    let all = out(&mut host, "tc qdisc show dev d0 invisible");
    assert_eq!((heads(&plain).len(), plain.contains("20:1")), (2, false), "{plain}");
    for class in ["20:1", "20:2", "20:3"] {
        assert!(heads(&all).contains(&format!("pfifo 0: parent {class}")), "{all}");
    }
}

/// Filters are listed for one place (a parent) of one device.
#[test]
fn filters_are_listed_and_got_one_by_one() {
    let mut host = host(TREE);
    assert_eq!(out(&mut host, "tc filter show"), "", "of which device?");
    let add = "tc filter add dev d0 parent 1: pref 5 protocol ip handle 7 fw classid 1:2";
    assert_eq!(exec(&mut host, add), Reply::default());
    let one = "filter parent 1: protocol ip pref 5 fw chain 0 handle 0x7 classid 1:2 \n";
    assert!(out(&mut host, "tc filter show dev d0").ends_with(&one[17..]));
    assert_eq!(out(&mut host, "tc filter show dev d0 parent 20:"), "");
    assert_eq!(out(&mut host, "tc filter show dev d1"), "");
    let get = "tc filter get dev d0 parent 1: protocol ip pref 5 handle 7 fw";
    assert_eq!(out(&mut host, get), one);
    assert_eq!(
        out(&mut host, "tc filter get parent 1: protocol ip pref 5 handle 7 dev d0 fw"),
        one
    );
    let none = exec(&mut host, "tc filter get dev d0 parent 1: protocol ip pref 5 handle 8 fw");
    assert!(none.code == 2 && none.out.is_empty(), "{none:?}");
}

/// With `-iec`, all rates are shown in powers of 1,024, as iproute2 6.1 does.
#[test]
fn rates_are_shown_in_units_of_1024_if_asked_for() {
    let rate = "1048576bit";
    let mut lines = vec![
        "ip link add d0 type dummy".to_owned(),
        "tc qdisc add dev d0 root handle 1: hfsc default 1".to_owned(),
        format!(
            "tc class add dev d0 parent 1: classid 1:1 hfsc \
             ls m2 {rate} rt m1 {rate} d 1s m2 {rate}"
        ),
        format!(
            "tc filter add dev d0 parent 1: protocol ip matchall \
             action police rate {rate} burst 10k peakrate {rate} mtu 2000"
        ),
    ];
    for (number, qdisc) in [
        format!("tbf rate {rate} burst 3kb limit 9kb peakrate 2097152bit mtu 2000"),
        format!("netem rate {rate}"),
        format!("cake bandwidth {rate}"),
        format!("fq maxrate {rate} low_rate_threshold {rate}"),
    ]
    .iter()
    .enumerate()
    {
        lines.push(format!("ip link add e{number} type dummy"));
        lines.push(format!("tc qdisc add dev e{number} root handle 1: {qdisc}"));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut host = host(&lines);
    for (listing, rates) in [
        ("class show dev d0", 3),
        ("filter show dev d0", 2),
        ("qdisc show dev e0", 1),
        ("qdisc show dev e1", 1),
        ("qdisc show dev e2", 1),
        ("qdisc show dev e3", 2),
    ] {
        let plain = out(&mut host, &format!("tc {listing}"));
        let iec = out(&mut host, &format!("tc -iec {listing}"));
        assert_eq!(plain.matches("1048Kbit").count(), rates, "{plain}");
        assert_eq!(iec, plain.replace("1048Kbit", "1Mibit").replace("2097Kbit", "2Mibit"));
        let json = |word: &str| format!("tc {word} -j {listing}").replace("  ", " ");
        assert_eq!(out(&mut host, &json("-iec")), out(&mut host, &json("")), "JSON has numbers");
    }
}
