//! The commands of `ip link`.

use std::time::Duration;

use onramp_host::Host;
use onramp_host::reference::{self, Takes, Word};

use crate::{all, exec, out, refused};

fn host() -> Host {
    let mut host = Host::new();
    all(
        &mut host,
        &[
            "ip link add d0 address 02:00:00:00:00:0a type dummy",
            "ip link add v0 type veth peer name v1",
            "ip link set d0 up",
        ],
    );
    host
}

#[test]
fn what_is_shown_can_be_chosen() {
    let mut host = host();
    let mut names = |words: &str| -> Vec<String> {
        let text = out(&mut host, &format!("ip -br link show {words}"));
        text.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
    };
    assert_eq!(names(""), ["d0", "v1@v0", "v0@v1"]);
    assert_eq!(names("up"), ["d0"]);
    assert_eq!(names("type veth"), ["v1@v0", "v0@v1"]);
    assert_eq!(names("dev v1"), ["v1@v0"]);
    assert_eq!(names("v1"), ["v1@v0"]);
    for ours in ["group default", "group 0", "nomaster"] {
        assert_eq!(names(ours).len(), 3, "{ours}");
    }
    for strange in ["group 5", "master br0", "vrf red"] {
        assert_eq!(names(strange), [""; 0], "{strange}");
    }
}

#[test]
fn a_line_for_each_device_and_flags_in_json() {
    let mut host = host();
    let brief =
        "d0               UNKNOWN        02:00:00:00:00:0a <BROADCAST,NOARP,UP,LOWER_UP> \n";
    assert_eq!(out(&mut host, "ip -br link show d0"), brief);
    let json = out(&mut host, "ip -j link show d0");
    let flags = r#""flags":["BROADCAST","NOARP","UP","LOWER_UP"]"#;
    assert!(json.contains(flags) && json.contains(r#""ifname":"d0""#), "{json}");
    let json = out(&mut host, "ip -j -br link show v0");
    for part in [r#""ifname":"v0""#, r#""link":"v1""#, r#""operstate":"DOWN""#] {
        assert!(json.contains(part), "{part}: {json}");
    }
}

#[test]
fn help_versions_and_what_is_unknown() {
    let mut host = host();
    let version = format!("ip utility, onramp-{}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(out(&mut host, "ip -V"), version);
    for line in ["ip help", "ip link help", "ip link show help", "ip link add help"] {
        let (code, text) = refused(&mut host, line);
        assert_eq!(code, 255, "{line}");
        assert!(text.starts_with("Usage: ip"), "{line}: {text}");
    }
    let (code, text) = refused(&mut host, "ip link set d0 type dummy");
    assert_eq!(code, 1);
    assert!(text.contains("dummy"), "{text}");
    let (code, text) = refused(&mut host, "ip link show nope");
    assert_eq!((code, &*text), (1, "Device \"nope\" does not exist.\n"));
}

#[test]
fn names_that_no_device_may_have() {
    let mut host = Host::new();
    let mut add = |name: &str| {
        let reply = exec(&mut host, &format!("ip link add dev {name} type dummy"));
        (reply.code, reply.err)
    };
    for name in [".", "..", "a:b"] {
        let text =
            format!("RTNETLINK answers: Invalid argument\nno device may be called {name:?}\n");
        assert_eq!(add(name), (2, text));
    }
    assert_eq!(add("fifteen-letters").0, 0);
    let text = "Error: Attribute failed policy validation.\n\
                \"sixteen--letters\": a device's name has at most 15 bytes\n";
    assert_eq!(add("sixteen--letters"), (2, text.to_owned()));
    assert_ne!(add("a/b").0, 0);
    for name in ["...", "a.b"] {
        assert_eq!(add(name).0, 0, "{name}");
    }
}

#[test]
fn an_mtu_has_bounds() {
    let mut host = Host::new();
    let mut add = |mtu: &str| exec(&mut host, &format!("ip link add v{mtu} mtu {mtu} type veth"));
    // Linux's veth devices can have an mtu from 68 to 65,535 bytes.
    for good in ["68", "65535"] {
        let reply = add(good);
        assert_eq!((reply.code, &*reply.err), (0, ""), "{good}");
    }
    for bad in ["67", "65536", "-1"] {
        let reply = add(bad);
        assert_eq!(reply.code, 2, "{bad}: {}", reply.err);
        assert!(reply.err.contains(&format!("mtu {bad}: ")), "{}", reply.err);
    }
    // Linux's dummy devices have no upper bound of the mtu.
    assert_eq!(exec(&mut host, "ip link add d0 mtu 1000000 type dummy").code, 0);
    assert_eq!(host.devices().last().map(|device| device.mtu), Some(1_000_000));
}

#[test]
fn devices_have_numbers_and_types() {
    let host = host();
    let devices = host.devices();
    let plain: Vec<_> =
        devices.iter().map(|it| (&*it.name, it.index, it.kind, it.peer.as_deref())).collect();
    let first = devices[0].index;
    // Of a pair, the second end is made first, as in Linux.
    assert_eq!(plain[0], ("d0", first, "dummy", None));
    assert_eq!(plain.len(), 3);
    for (name, _, kind, peer) in &plain[1..] {
        assert_eq!((*kind, *peer), ("veth", Some(if *name == "v0" { "v1" } else { "v0" })));
    }
    let mut numbers: Vec<_> = plain.iter().map(|it| it.1).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "{numbers:?}");
}

#[test]
fn the_reference_says_how_words_are_used() {
    let usage = |takes| Word { name: "dev", takes, help: "" }.usage();
    let cases = [
        (Takes::Nothing, "dev"),
        (Takes::Device, "dev DEVICE"),
        (Takes::Handle, "dev HANDLE"),
        (Takes::Class, "dev CLASS"),
        (Takes::OneOf(&["a", "b"]), "dev NAME"),
        (Takes::Value("BYTES"), "dev BYTES"),
        (Takes::Type, "dev TYPE"),
    ];
    for (takes, text) in cases {
        assert_eq!(usage(takes), text);
    }
    let types = reference::device_types();
    let find = |name| types.iter().find(|it| it.name == name).expect("a type");
    let udp = find("udp");
    let options: Vec<_> = udp.options.iter().map(|it| (it.key, it.operand)).collect();
    assert!(options.contains(&("remote", "ADDRESS:PORT")), "{options:?}");
    let veth = find("veth");
    assert_eq!(veth.options[0].operand, "[name] NAME ..");
    assert_eq!(veth.mtu, [68, 1_500, 65_535]);
    assert!(veth.no_queue && !udp.no_queue);
}

/// Devices get the slack and the catch-up that the host was told: a value out of range makes every
/// new device fail, and says why.
#[test]
fn a_host_gives_its_slack_and_catch_up_to_new_devices() {
    let wrong = Duration::from_secs(2);
    for why in ["microseconds of slack is 2000000", "milliseconds to catch up on is 2000"] {
        let set = if why.contains("slack") { Host::set_slack } else { Host::set_catch_up };
        let mut host = Host::new();
        set(&mut host, wrong);
        let reply = exec(&mut host, "ip link add d0 type dummy");
        assert!(reply.code != 0 && reply.err.contains(why), "{}", reply.err);
        set(&mut host, Duration::from_millis(1));
        all(&mut host, &["ip link add d0 type dummy"]);
    }
}

/// As in Linux, no device can have a hardware address of a group, or one of zeros.
#[test]
fn addresses_that_no_device_can_have_are_refused() {
    let mut host = host();
    for address in ["01:00:00:00:00:01", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"] {
        for line in [
            format!("ip link set d0 address {address} down"),
            format!("ip link add d1 address {address} type dummy"),
            format!("ip link add w0 type veth peer name w1 address {address}"),
        ] {
            let (code, why) = refused(&mut host, &line);
            let said = format!(
                "RTNETLINK answers: Cannot assign requested address\naddress {address}: expected "
            );
            assert!(code == 2 && why.starts_with(&said), "{line}: {why}");
        }
    }
    assert_eq!(host.names(), ["d0", "v1", "v0"]);
    assert!(out(&mut host, "ip link show d0 up").contains("02:00:00:00:00:0a"));
}

/// As in Linux, `%d` in a new name stands for the lowest free number.
#[test]
fn a_new_name_may_leave_its_number_open() {
    let mut host = host();
    all(
        &mut host,
        &[
            "ip link add name foo%d type dummy",
            "ip link add foo%d type dummy",
            "ip link add name foo%dx type dummy",
            "ip link add v%d type veth peer name v%d",
            "ip link set foo0 name foo%d",
            "ip link set d0 name foo%d",
        ],
    );
    let names = ["foo0", "v1", "v0", "foo1", "foo0x", "v2", "v3", "foo2"];
    let mut sorted = host.names();
    sorted.sort_unstable();
    let mut wanted = names.to_vec();
    wanted.sort_unstable();
    assert_eq!(sorted, wanted);
    for (name, said) in [
        ("foo%x", "Invalid argument"),
        ("foo%", "Invalid argument"),
        ("foo%%", "Invalid argument"),
        ("foo%d%d", "Invalid argument"),
    ] {
        let add = format!("ip link add {name} type dummy");
        for line in [add, format!("ip link set v0 name {name}")] {
            let (code, why) = refused(&mut host, &line);
            let said = format!("RTNETLINK answers: {said}\n");
            assert!(code == 2 && why.starts_with(&said), "{line}: {why}");
        }
    }
}
