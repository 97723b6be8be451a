//! The tables of words from which manual pages and completion are made.

use onramp_host::reference::{IP, PROGRAMS, TC, Takes, Then, Word, device_types};

use super::*;

#[test]
fn words_are_written_with_what_follows_them() {
    for (takes, placeholder) in [
        (Takes::Nothing, ""),
        (Takes::Device, "DEVICE"),
        (Takes::Handle, "HANDLE"),
        (Takes::Class, "CLASS"),
        (Takes::OneOf(&["ip", "ipv6"]), "NAME"),
        (Takes::Value("PACKETS"), "PACKETS"),
        (Takes::Type, "TYPE"),
    ] {
        assert_eq!(takes.placeholder(), placeholder);
        let usage = Word { name: "word", takes, help: "" }.usage();
        assert_eq!(usage, format!("word {placeholder}").trim_end());
    }
}

/// The table of types lists the types that `ip link help` lists and that can be made.
#[test]
fn types_of_devices_are_those_of_ip() {
    let mut host = Host::new();
    let help = exec(&mut host, "ip link help").err;
    let types = device_types();
    let names: Vec<_> = types.iter().map(|kind| kind.name).collect();
    let expected = ["dummy", "loopback", "veth", "udp", "packet", "xdp", "tap", "detour", "pcap"];
    assert_eq!(names, expected);
    for kind in &types {
        assert!(help.contains(&format!("\n  {:12} {}\n", kind.name, kind.help)), "{help}");
        for option in &kind.options {
            assert!(help.contains(&format!(" {}\n", option.help)), "{help}");
        }
    }
    // Each entry holds the minimum, the default and the maximum of the largest packet's size; zero
    // means that there is no bound.
    let mtus: Vec<_> = types.iter().map(|kind| kind.mtu).collect();
    let ether = [68, 1_500, 65_535];
    assert_eq!(
        mtus,
        [[0, 1_500, 0], [0, 65_536, 0], ether, ether, ether, ether, ether, ether, ether]
    );
    let no_queue: Vec<_> = types.iter().map(|kind| kind.no_queue).collect();
    assert_eq!(no_queue, [true, true, true, false, false, false, false, false, false]);
    let options: Vec<_> = types
        .iter()
        .flat_map(|kind| kind.options.iter().map(|option| (kind.name, option)))
        .map(|(kind, option)| (kind, option.key, option.operand, option.needed))
        .collect();
    assert_eq!(
        options,
        [
            ("veth", "peer", "[name] NAME ..", false),
            ("udp", "local", "ADDRESS:PORT", true),
            ("udp", "remote", "ADDRESS:PORT", false),
            ("udp", "listen", "ADDRESS:PORT", false),
            ("udp", "clients", "COUNT", false),
            ("udp", "idle", "SECONDS", false),
            ("udp", "peer", "[name] NAME ..", false),
            ("packet", "interface", "INTERFACE", true),
            ("packet", "to", "INTERFACE", true),
            ("packet", "peer", "[name] NAME ..", false),
            ("xdp", "interface", "INTERFACE", true),
            ("xdp", "to", "INTERFACE", true),
            ("xdp", "peer", "[name] NAME ..", false),
            ("tap", "interface", "INTERFACE", true),
            ("tap", "to", "INTERFACE", true),
            ("tap", "peer", "[name] NAME ..", false),
            ("detour", "interface", "INTERFACE", true),
            ("detour", "peer", "[name] NAME ..", false),
            ("pcap", "file", "FILE", false),
            ("pcap", "replace", "FILE", false),
            ("pcap", "read", "FILE", false),
            ("pcap", "fast", "FILE", false),
        ]
    );
    // A device of each type can be made with the options that the type requires, and has the
    // default values that the table shows. (Those of the kernel's interfaces need such interfaces,
    // and those of files a folder.)
    let has = |operand: &str| ["INTERFACE", "FILE"].contains(&operand);
    for kind in types.iter().filter(|it| !it.options.iter().any(|it| has(it.operand))) {
        let needed: String = kind
            .options
            .iter()
            .filter(|it| it.needed)
            .map(|it| format!(" {} [::]", it.key))
            .collect();
        let needed = needed.replace("[::]", "127.0.0.1:0");
        let line = format!("ip link add {0}0 up type {0}{needed}", kind.name);
        assert_eq!(exec(&mut host, &line), Reply::default(), "{line}");
        let shown = out(&mut host, &format!("ip link show {}0", kind.name));
        assert!(shown.contains(&format!(" mtu {} ", kind.mtu[1])), "{shown}");
        assert_eq!(shown.contains(" qdisc noqueue "), kind.no_queue, "{shown}");
    }
}

#[test]
fn programs_have_their_objects_and_verbs() {
    assert_eq!(PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>(), ["tc", "ip"]);
    let verbs = |object: &onramp_host::reference::Object| {
        let verbs = object.verbs.iter().map(|verb| (verb.name, verb.then));
        (object.name, verbs.collect::<Vec<_>>())
    };
    let tc: Vec<_> = TC.objects.iter().map(verbs).collect();
    let changes = |last: Then| [("add", last), ("replace", last), ("change", last)];
    let mut qdisc = changes(Then::Qdisc).to_vec();
    qdisc.extend([("link", Then::Qdisc), ("delete", Then::Qdisc), ("show", Then::End)]);
    let rest = |last| [&changes(last)[..], &[("delete", last), ("show", Then::End)]].concat();
    assert_eq!(
        tc,
        [("qdisc", qdisc), ("class", rest(Then::Class)), ("filter", rest(Then::Filter))]
    );
    let ip: Vec<_> = IP.objects.iter().map(verbs).collect();
    let link =
        [("add", Then::Type), ("set", Then::End), ("delete", Then::End), ("show", Then::End)];
    assert_eq!(ip, [("link", link.to_vec())]);
}
