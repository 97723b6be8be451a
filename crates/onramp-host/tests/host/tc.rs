//! Tests of the `tc` commands of a host.

use std::path::Path;
use std::sync::{Arc, Mutex};

use onramp_core::qdisc::KINDS;
use onramp_host::{Event, Host, What};

use crate::{all, out, refused};

/// Makes a host with two devices. The first has a `prio` qdisc with a `pfifo` in its first band;
/// the second has an `htb` with two classes.
fn host() -> Host {
    let mut host = Host::new();
    all(
        &mut host,
        &[
            "ip link add d0 type dummy",
            "ip link add d1 type dummy",
            "tc qdisc add dev d0 root handle 1: prio",
            "tc qdisc add dev d0 parent 1:1 handle 10: pfifo limit 7",
            "tc qdisc add dev d1 root handle 2: htb default 20",
            "tc class add dev d1 parent 2: classid 2:10 htb rate 1mbit",
            "tc class add dev d1 parent 2:10 classid 2:20 htb rate 500kbit",
        ],
    );
    host
}

#[test]
fn options_in_front_of_the_object() {
    let mut host = host();
    let version = format!("tc utility, onramp-{}\n", env!("CARGO_PKG_VERSION"));
    for line in ["tc -V", "tc -Version", "tc --Version", "tc -s -V qdisc"] {
        assert_eq!(out(&mut host, line), version, "{line}");
    }
    let wrong = [
        ("tc -x qdisc", "Option \"-x\" is unknown, try \"tc -help\".\n"),
        ("tc - qdisc", "Option \"-\" is unknown, try \"tc -help\".\n"),
        ("tc -batch", "Option \"-batch\" must come first, and needs the name of a file, or -.\n"),
        ("tc -netns a", "Option \"-netns\": Onramp's devices are not in network namespaces.\n"),
        ("tc frob", "Object \"frob\" is unknown, try \"tc help\".\n"),
        ("tc qdisc frob", "Command \"frob\" is unknown, try \"tc qdisc help\".\n"),
        // Objects of other kinds have these commands: `tc qdisc link` and `tc filter get` exist.
        ("tc class link", "Command \"link\" is unknown, try \"tc class help\".\n"),
        ("tc qdisc get", "Command \"get\" is unknown, try \"tc qdisc help\".\n"),
    ];
    for (line, text) in wrong {
        assert_eq!(refused(&mut host, line), (255, text.to_owned()), "{line}");
    }
}

#[test]
fn every_object_has_help_of_its_own_and_help_is_no_fault() {
    let mut host = Host::new();
    let mut texts = Vec::new();
    for line in ["tc help", "tc qdisc help", "tc class help", "tc filter help"] {
        let (code, text) = refused(&mut host, line);
        assert_eq!(code, 0, "{line}");
        assert!(text.starts_with("Usage:\ttc") || text.starts_with("Usage: tc"), "{line}: {text}");
        texts.push(text);
    }
    for (object, text) in ["qdisc", "class", "filter"].into_iter().zip(&texts[1..]) {
        assert!(text.starts_with(&format!("Usage: tc {object} ")), "{text}");
        let line = format!("tc {object} show help");
        if object != "filter" {
            assert_eq!(refused(&mut host, &line), (0, text.clone()), "{line}");
        }
        let line = format!("tc {object} add dev d0 help");
        assert_eq!(refused(&mut host, &line), (0, text.clone()), "{line}");
        // A kind that does not exist has no help. It is refused with those that exist, as with
        // any other word behind it.
        let help = format!("tc {object} add dev d0 frob help");
        let (code, why) = refused(&mut host, &help);
        let start = format!("{object}: unexpected \"frob\": ");
        let known = if object == "filter" { "u32" } else { "htb" };
        assert!(code == 1 && why.starts_with(&start) && why.contains(known), "{why}");
        let other = help.replace("help", "limit 5");
        assert_eq!(refused(&mut host, &other), (code, why), "{other}");
        let words: Vec<&str> = help.split(' ').collect();
        assert_eq!(
            onramp_host::without_devices(&words),
            None,
            "a host may have kinds of its own: {help}"
        );
    }
    for line in ["tc", "tc -help", "tc -h", "tc --help"] {
        assert_eq!(refused(&mut host, line), (0, texts[0].clone()), "{line}");
    }
}

#[test]
fn help_lists_the_kinds_that_an_object_has() {
    let mut host = Host::new();
    let kinds = |host: &mut Host, line: &str| -> Vec<String> {
        let (_, text) = refused(host, line);
        assert!(text.lines().all(|line| line.len() <= 100 && line.trim_end() == line), "{text}");
        let (_, list) = text.split_once(" :=\n").expect("a list of kinds");
        list.split('|').map(|kind| kind.trim().to_owned()).collect()
    };
    assert_eq!(kinds(&mut host, "tc qdisc help"), KINDS.iter().map(|k| k.id).collect::<Vec<_>>());
    let classes = kinds(&mut host, "tc class help");
    assert!(classes.iter().any(|kind| kind == "htb") && classes.iter().all(|kind| kind != "fq"));
    assert!(kinds(&mut host, "tc filter help").iter().any(|kind| kind == "u32"));
}

/// A client gives these replies without a host.
#[test]
fn what_needs_no_devices_is_answered_as_by_a_host() {
    let kinds = KINDS.iter().map(|kind| format!("tc qdisc add dev d0 root {} help", kind.id));
    let others = "tc|tc -V|tc --help|tc -s -j help|tc qdisc help|tc q h|tc class help|\
                  tc filter help|tc qdisc show help|tc filter show help|\
                  tc class add dev d0 htb help|tc filter add dev d0 u32 help|tc qdisc frob|\
                  tc frob|ip|ip -V|ip --help|ip help|ip link help|ip link add type veth help";
    let mut host = host();
    for line in kinds.chain(others.split('|').map(str::to_owned)) {
        let words: Vec<&str> = line.split(' ').collect();
        let reply = onramp_host::without_devices(&words);
        assert_eq!(reply, Some(host.exec(&words, "/".as_ref())), "{line}");
    }
    for line in [
        "tc qdisc",
        "tc qdisc show dev help",
        "tc qdisc add dev help root fq",
        "tc filter get dev help",
        "ip link",
        "ip link show d0",
        "ip link add d9 type dummy",
        "other help",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(onramp_host::without_devices(&words), None, "{line}");
    }
    assert_eq!(onramp_host::without_devices(&[]), None);
}

#[test]
fn every_kind_has_help() {
    let mut host = Host::new();
    let told = |host: &mut Host, line: &str, begin: &str| {
        let (code, text) = refused(host, line);
        assert_eq!(code, 1, "{line}");
        assert!(text.contains(begin), "{line}: {text}");
        text
    };
    let qdisc = told(&mut host, "tc qdisc add dev d0 root htb help", "default");
    let class = told(&mut host, "tc class add dev d0 parent 1: htb help", "ceil");
    assert_ne!(qdisc, class);
    told(&mut host, "tc filter add dev d0 parent 1: flower help", "dst_ip");
    told(&mut host, "tc filter add dev d0 parent 1: u32 help", "match");
}

#[test]
fn a_device_that_is_not_there_is_said_after_what_else_is_wrong() {
    let mut host = host();
    let none = "Cannot find device \"nope\"\n".to_owned();
    for line in [
        "tc qdisc add dev nope root fq",
        // The parent `5:1` is missing, too, but `tc` reports the missing device first.
        "tc qdisc add dev nope parent 5:1 fq",
        "tc qdisc show dev nope",
        "tc class show dev nope",
        "tc filter show dev nope parent 1:",
        "tc filter get dev nope parent 1: pref 1 handle 1 basic",
    ] {
        assert_eq!(refused(&mut host, line), (1, none.clone()), "{line}");
    }
    let which = "RTNETLINK answers: No such device\nthe device is missing: give dev NAME\n";
    assert_eq!(refused(&mut host, "tc qdisc add root fq"), (2, which.to_owned()));
    let (_, text) = refused(&mut host, "tc qdisc add dev nope root pfifo limit many");
    assert!(text.contains("limit") && !text.contains("Cannot find"), "{text}");
    let two = host.exec(&["tc", "qdisc", "add", "dev", "d 0", "root", "fq"], "/".as_ref());
    let text = "Error: argument \"d 0\" is wrong: it must be a single word\n";
    assert_eq!((two.code, &*two.err), (255, text));
}

/// Returns the first `words` words of each line of `text`.
fn heads(text: &str, words: usize) -> Vec<String> {
    let head = |line: &str| line.split(' ').take(words).collect::<Vec<_>>().join(" ");
    text.lines().map(head).collect()
}

#[test]
fn what_is_listed_can_be_chosen() {
    let mut host = host();
    let mut qdiscs = |words: &str| heads(&out(&mut host, &format!("tc qdisc show {words}")), 3);
    let (prio, fifo, htb) = ("qdisc prio 1:", "qdisc pfifo 10:", "qdisc htb 2:");
    assert_eq!(qdiscs(""), [prio, fifo, htb]);
    assert_eq!(qdiscs("dev d0"), [prio, fifo]);
    assert_eq!(qdiscs("root"), [prio, htb]);
    assert_eq!(qdiscs("dev d0 root"), [prio]);
    assert_eq!(qdiscs("dev d0 parent 1:1"), [fifo]);
    assert_eq!(qdiscs("dev d0 handle 10:"), [fifo]);
    assert_eq!(qdiscs("dev d0 handle 11:"), [""; 0]);
    assert_eq!(qdiscs("dev d0 ingress"), [""; 0]);
    all(&mut host, &["tc qdisc add dev d0 clsact"]);
    let clsact = heads(&out(&mut host, "tc qdisc show dev d0 ingress"), 3);
    assert_eq!(clsact, ["qdisc clsact ffff:"]);

    let mut classes = |words: &str| heads(&out(&mut host, &format!("tc class show {words}")), 3);
    let (upper, lower) = ("class htb 2:10", "class htb 2:20");
    assert_eq!(classes(""), [""; 0], "of no device");
    let both = classes("dev d1");
    assert_eq!(both.len(), 2);
    assert!(both.contains(&upper.to_owned()) && both.contains(&lower.to_owned()), "{both:?}");
    assert_eq!(classes("dev d1 classid 2:20"), [lower]);
    // `tc class show` takes the parent as the number of a qdisc, and like the kernel ignores the
    // minor number: `2:10` selects all classes of qdisc `2:`. `root` selects no class.
    assert_eq!(classes("dev d1 parent 2:10").len(), 2);
    assert_eq!(classes("dev d1 root"), [""; 0]);
    assert_eq!(classes("dev d1 qdisc 2:").len(), 2, "of the qdisc");
    assert_eq!(classes("dev d1 qdisc 3:"), [""; 0]);
    assert_eq!(classes("dev d0").len(), 3, "bands of prio");
}

#[test]
fn a_listing_that_asks_for_nonsense_is_refused() {
    let mut host = host();
    let wrong = |word: &str, why| format!("Error: argument \"{word}\" is wrong: {why}\n");
    let short = "Command line is not complete. Try option \"help\"\n".to_owned();
    let what = |word, object| format!("What is \"{word}\"? Try \"tc {object} help\".\n");
    let cases = [
        ("tc qdisc show dev", short.clone()),
        ("tc class show dev d0 classid", short),
        ("tc qdisc show parent x", wrong("x", "invalid parent ID")),
        ("tc qdisc show handle 1x", wrong("1x", "invalid handle ID")),
        ("tc class show qdisc 10000:", wrong("10000:", "invalid qdisc ID")),
        ("tc class show classid x", wrong("x", "invalid class ID")),
        ("tc qdisc show classid 1:1", what("classid", "qdisc")),
        ("tc class show handle 1:", what("handle", "class")),
        ("tc class show ingress", what("ingress", "class")),
    ];
    for (line, text) in cases {
        assert_eq!(refused(&mut host, line), (255, text), "{line}");
    }
}

#[test]
fn filters_are_listed_counted_and_got() {
    let mut host = host();
    let add = "tc filter add dev d0 parent 1: protocol ip pref 3 handle 5 basic match \
               'meta(priority eq 6)' classid 1:2";
    all(&mut host, &[&add.replace('\'', "")]);
    let listed = out(&mut host, "tc filter show dev d0 parent 1:");
    assert!(listed.contains("pref 3 basic") && listed.contains("1:2"), "{listed}");
    assert_eq!(out(&mut host, "tc filter show dev d0 parent 10:"), "");
    assert_eq!(out(&mut host, "tc filter show"), "", "of no device");
    let got = out(&mut host, "tc filter get dev d0 parent 1: protocol ip pref 3 handle 5 basic");
    assert!(got.contains("pref 3") && got.contains("handle 0x5"), "{got}");
    let (code, _) = refused(&mut host, "tc filter get dev d0 parent 1: pref 4 handle 5 basic");
    assert_eq!(code, 255, "its kind is missing");
    let (code, _) =
        refused(&mut host, "tc filter get dev d0 parent 1: protocol ip pref 4 handle 5 basic");
    assert_eq!(code, 2, "there is none");
    let counted = out(&mut host, "tc -s filter show dev d0 parent 1:");
    assert!(counted.starts_with(listed.lines().next().expect("a line")), "{counted}");
}

#[test]
fn changes_are_told_as_tc_monitor_does() {
    let mut host = host();
    let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
    let ours = heard.clone();
    host.listen(move |event| {
        ours.lock().expect("nobody panics").push(event.clone());
        event.line != "class htb 2:30 dev d1"
    });
    let mut told = |line: &str| -> Vec<(What, String, String)> {
        all(&mut host, &[line]);
        let events = std::mem::take(&mut *heard.lock().expect("nobody panics"));
        events.into_iter().map(|it| (it.what, it.device, it.line)).collect()
    };
    let one = |what, line: &str| vec![(what, "d1".to_owned(), line.to_owned())];
    let class = "class htb 2:30 dev d1 root prio 0 rate 1Mbit ceil 1Mbit burst 1600b cburst 1600b";
    let add = "tc class add dev d1 parent 2: classid 2:30 htb rate 1mbit";
    assert_eq!(told(add), one(What::Added, class));
    let changed = told("tc class change dev d1 parent 2: classid 2:30 htb rate 2mbit");
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].0, What::Changed);
    assert!(
        changed[0].2.starts_with("class htb 2:30 dev d1 root prio 0 rate 2Mbit"),
        "{changed:?}"
    );
    let fifo = told("tc qdisc add dev d1 parent 2:30 handle 30: pfifo limit 9");
    assert_eq!(fifo, one(What::Added, "qdisc pfifo 30: dev d1 parent 2:30 limit 9p"));
    let other = told("tc qdisc change dev d1 parent 2:30 handle 30: pfifo limit 8");
    assert_eq!(other, one(What::Changed, "qdisc pfifo 30: dev d1 parent 2:30 limit 8p"));
    let filter = "dev d1 parent 2: protocol ip pref 1 basic classid 2:30";
    let line = format!("filter {filter}");
    assert_eq!(told(&format!("tc filter add {filter}")), one(What::Added, &line));
    assert_eq!(told(&format!("tc filter replace {filter}")), one(What::Changed, &line));
    let short = "dev d1 parent 2: protocol ip pref 1";
    let gone = told(&format!("tc filter del {short}"));
    assert_eq!(gone, one(What::Deleted, &format!("filter {short}")));
    let gone = told("tc qdisc del dev d1 parent 2:30");
    assert_eq!(gone, one(What::Deleted, "qdisc pfifo 30: dev d1 parent 2:30"));
    let gone = told("tc class del dev d1 classid 2:30");
    assert_eq!(gone, one(What::Deleted, "class htb 2:30 dev d1"));
    assert_eq!(told(add), [], "it said that it wants to hear no more");
}

/// As in Linux, a filter can only name a device that exists. A device that is gone later hinders no
/// saved configuration.
#[test]
fn a_filter_names_a_device_that_exists() {
    let mut host = Host::new();
    all(
        &mut host,
        &[
            "ip link add indev type dummy",
            "ip link add d1 type dummy",
            "tc qdisc add dev indev root handle 1: prio",
            "tc filter add dev indev parent 1: protocol ip flower indev d1 classid 1:2",
            "tc filter add dev indev parent 1: protocol ip flower dst_ip 10.0.0.1 classid 1:1",
        ],
    );
    let said = "Error: Network device not found.\nWe have an error talking to the kernel\n\
                filter: \"indev d2\": there is no such device\n";
    for kind in ["handle 5 fw", "u32 match u32 0 0", "flower"] {
        let line = format!("tc filter add dev indev parent 1: protocol ip {kind} indev d2");
        assert_eq!(refused(&mut host, &format!("{line} classid 1:1")), (2, said.to_owned()));
        // Another error comes first.
        assert_eq!(refused(&mut host, &format!("{line} classid x")).0, 1, "{kind}");
    }
    all(&mut host, &["ip link del d1"]);
    for line in ["save", "save dev indev"] {
        let saved = out(&mut host, line);
        assert!(saved.contains("dst_ip") && !saved.contains("indev d1"), "{saved}");
        Host::new().configure(&saved, Path::new("/")).expect("it can be made again");
    }
}

/// The fifo below a `tbf` or `red` is listed with `invisible`, and the classes of one qdisc by
/// their minor numbers; `tc` 6.1 prints these lines on a Linux 7.2.
#[test]
fn fifos_that_are_hidden_and_classes_of_one_qdisc() {
    let mut host = Host::new();
    all(
        &mut host,
        &[
            "ip link add d0 up type dummy",
            "tc qdisc add dev d0 root handle 1: htb default 1",
            "tc class add dev d0 parent 1: classid 1:1 htb rate 1mbit",
            "tc class add dev d0 parent 1: classid 1:2 htb rate 1mbit",
            "tc class add dev d0 parent 1: classid 1:3 htb rate 1mbit",
            "tc class add dev d0 parent 1:3 classid 1:4 htb rate 1mbit",
            "tc qdisc add dev d0 parent 1:1 handle 10: tbf rate 1mbit burst 5000 limit 5000",
            "tc qdisc add dev d0 parent 1:2 handle 20: red limit 100000 avpkt 1000 bandwidth 1mbit",
        ],
    );
    let lines = |host: &mut Host| -> Vec<String> {
        let shown = out(host, "tc qdisc show dev d0 invisible");
        let fifos = shown.lines().filter(|line| line.contains("fifo "));
        fifos.map(|line| line.trim_end().to_owned()).collect()
    };
    let [red, tbf] =
        ["qdisc bfifo 0: parent 20:1 limit 100000b", "qdisc bfifo 0: parent 10:1 limit 5000b"];
    assert_eq!(lines(&mut host), [red, tbf, "qdisc pfifo 0: parent 1:4 limit 1000p"]);
    let shown = out(&mut host, "tc class show dev d0 qdisc 1:");
    let names = |shown: &str| -> Vec<String> {
        shown
            .lines()
            .map(|line| line.split(" rate").next().unwrap_or_default().to_owned())
            .collect()
    };
    let all_of_htb = [
        "class htb :1 root leaf 10: prio 0",
        "class htb :2 root leaf 20: prio 0",
        "class htb :3 root",
        "class htb :4 parent :3 prio 0",
    ];
    assert_eq!(names(&shown), all_of_htb);
    let shown = out(&mut host, "tc class show dev d0 qdisc 1: classid 1:4");
    assert_eq!(names(&shown), all_of_htb[3..]);
    assert_eq!(out(&mut host, "tc class show dev d0 qdisc 10:"), "class tbf :1 parent none \n");
    assert_eq!(out(&mut host, "tc class show dev d0 classid 10:1"), "class tbf 10:1 parent 10: \n");
    let shown = out(&mut host, "tc class show dev d0 parent 1:1");
    assert_eq!(names(&shown)[3], "class htb 1:4 parent 1:3 prio 0");
    assert_eq!(out(&mut host, "tc class show dev d0 root"), "");
    all(&mut host, &["tc qdisc change dev d0 parent 1:1 tbf rate 1mbit burst 5000 latency 20ms"]);
    assert_eq!(lines(&mut host)[1], "qdisc bfifo 0: parent 10:1 limit 7500b");
    all(&mut host, &["tc qdisc add dev d0 parent 10:1 handle 30: pfifo"]);
    assert_eq!(lines(&mut host)[1..].len(), 2, "the pfifo has a handle");
}
