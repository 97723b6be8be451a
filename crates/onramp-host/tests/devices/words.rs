//! The words of `ip link`: what they mean, which values they accept, and the whole error text for
//! wrong ones.

use super::*;

/// Carries out a command that must fail, and returns its whole error text.
fn refused(host: &mut Host, line: &str, code: u8) -> String {
    let reply = exec(host, line);
    assert_eq!((reply.code, reply.out.as_str()), (code, ""), "{line}: {reply:?}");
    reply.err
}

#[test]
fn names_are_those_that_linux_takes() {
    let mut host = host(&["ip link add v0 type veth peer name v1"]);
    for name in [".", "..", "a:b", ":"] {
        let want =
            format!("RTNETLINK answers: Invalid argument\nno device may be called {name:?}\n");
        assert_eq!(refused(&mut host, &format!("ip link add {name} type dummy"), 2), want);
        assert_eq!(refused(&mut host, &format!("ip link add name {name} type dummy"), 2), want);
        assert_eq!(refused(&mut host, &format!("ip link set v0 name {name}"), 2), want);
    }
    for name in ["a/b", "/"] {
        let said =
            |key| format!("Error: argument {name:?} is wrong: \"{key}\" not a valid ifname\n");
        assert_eq!(refused(&mut host, &format!("ip link add {name} type dummy"), 255), said("dev"));
        assert_eq!(refused(&mut host, &format!("ip link set v0 name {name}"), 255), said("name"));
    }
    // A name has at most 15 bytes.
    let (most, more) = ("abcdefghijklmno", "abcdefghijklmnop");
    assert_eq!(
        refused(&mut host, &format!("ip link add {more} type dummy"), 2),
        format!(
            "Error: Attribute failed policy validation.\n\
             {more:?}: a device's name has at most 15 bytes\n"
        )
    );
    assert_eq!(
        refused(&mut host, &format!("ip link add name {more} type dummy"), 255),
        format!("Error: argument {more:?} is wrong: \"name\" not a valid ifname\n")
    );
    for name in [most, "...", "a.b", "-", "ü", "0"] {
        assert_eq!(
            exec(&mut host, &format!("ip link add name {name} type dummy")).code,
            0,
            "{name}"
        );
        assert!(out(&mut host, &format!("ip link show {name}")).contains(&format!(": {name}: ")));
    }
}

#[test]
fn packets_are_as_large_as_their_type_lets_them() {
    let mut host = host(&[
        "ip link add v0 type veth peer name v1",
        "ip link add d0 type dummy",
        "ip link add l0 type loopback",
    ]);
    let lower = "Error: mtu less than device minimum.\n";
    let upper = "Error: mtu greater than device maximum.\n";
    let invalid = "RTNETLINK answers: Invalid argument\n";
    for (device, mtu, why) in [
        ("v0", "67", Some((lower, "veth allows 68 to 65535"))),
        ("v0", "68", None),
        ("v0", "65535", None),
        ("v0", "0x1000", None),
        ("v0", "65536", Some((upper, "veth allows 68 to 65535"))),
        ("v0", "-1", Some((lower, "veth allows 68 to 65535"))),
        ("d0", "-1", Some((lower, "dummy allows 0 or more"))),
        ("d0", "0", None),
        ("d0", "1", None),
        ("d0", "2147483647", None),
        ("l0", "0", None),
    ] {
        let set = format!("ip link set {device} mtu {mtu}");
        let kind = match device {
            "v0" => "veth",
            "d0" => "dummy",
            _ => "loopback",
        };
        let add = format!("ip link add new mtu {mtu} type {kind}");
        if let Some((said, range)) = why {
            assert_eq!(refused(&mut host, &set, 2), format!("{said}mtu {mtu}: {range}\n"));
            assert_eq!(refused(&mut host, &add, 2), format!("{invalid}mtu {mtu}: {range}\n"));
            continue;
        }
        assert_eq!(exec(&mut host, &set), Reply::default(), "{set}");
        assert_eq!(exec(&mut host, &add), Reply::default(), "{add}");
        let shown = if mtu == "0x1000" { "4096" } else { mtu };
        for name in [device, "new"] {
            let line = out(&mut host, &format!("ip link show {name}"));
            assert!(line.contains(&format!(" mtu {shown} ")), "{line}");
        }
        assert_eq!(exec(&mut host, "ip link del new"), Reply::default());
    }
}

#[test]
fn a_device_has_at_least_one_queue_and_at_most_as_many_as_mq_has_classes() {
    let mut host = Host::new();
    for queues in ["0", "-1", "65536", "2147483647"] {
        let line = format!("ip link add d0 numtxqueues {queues} type dummy");
        let want = format!(
            "Error: Invalid number of transmit queues.\nnumtxqueues {queues}: expected 1 to 65535\n"
        );
        assert_eq!(refused(&mut host, &line, 2), want);
    }
    for (queues, count) in [("1", 1), ("0x3", 3), ("70", 70)] {
        let line = format!("ip link add d{count} numtxqueues {queues} type dummy");
        assert_eq!(exec(&mut host, &line), Reply::default(), "{line}");
        assert_eq!(host.link(&format!("d{count}")).expect("it is there").ports(), count);
        let shown = out(&mut host, &format!("ip -d link show d{count}"));
        assert!(shown.contains(&format!(" numtxqueues {count} numrxqueues 1 ")), "{shown}");
    }
    let line = "ip link add d1000 numrxqueues 7 type dummy";
    assert_eq!(exec(&mut host, line), Reply::default());
    assert_eq!(host.link("d1000").expect("it is there").ports(), 1);
}

/// A generated address is locally administered: bit 1 of its first byte is set, and bit 0, which
/// marks group addresses, is not (IEEE 802).
#[test]
fn addresses_are_locally_administered() {
    let mut host = Host::new();
    let mut all = std::collections::BTreeSet::new();
    for number in 0..40 {
        assert_eq!(exec(&mut host, &format!("ip link add d{number} type dummy")).code, 0);
        let shown = out(&mut host, &format!("ip -br link show d{number}"));
        let address = shown.split_whitespace().nth(2).expect("an address").to_owned();
        let first = u8::from_str_radix(&address[..2], 16).expect("hexadecimal");
        assert_eq!(first & 3, 2, "{address}");
        assert_eq!(address.split(':').count(), 6);
        all.insert(address);
    }
    assert_eq!(all.len(), 40, "each has another one");
    exec(&mut host, "ip link add l0 type loopback");
    assert!(
        out(&mut host, "ip link show l0")
            .contains("    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00\n")
    );
    exec(&mut host, "ip link set d0 address 2:0:0:0:a:ff");
    assert!(out(&mut host, "ip link show d0").contains("link/ether 02:00:00:00:0a:ff brd "));
    for wrong in ["2:0:0:0:a", "2:0:0:0:a:1:2", "2:0:0:0:a:100", "2:0:0:0:a:g", "2:0:0:0:a:"] {
        let want = format!("\"{wrong}\" is invalid lladdr.\n");
        assert_eq!(refused(&mut host, &format!("ip link set d0 address {wrong}"), 1), want);
    }
}

#[test]
fn help_is_said_wherever_it_is_asked_for() {
    let mut host = host(&["ip link add d0 type dummy", "ip link add v0 type veth peer name v1"]);
    let ip = refused(&mut host, "ip help", 255);
    assert!(ip.starts_with("Usage: ip [ OPTIONS ] OBJECT { COMMAND | help }\n"), "{ip}");
    for line in ["ip", "ip -help", "ip -s -h", "ip h", "ip hel"] {
        assert_eq!(refused(&mut host, line, 255), ip, "{line}");
    }
    let link = refused(&mut host, "ip link help", 255);
    assert!(link.starts_with("Usage: ip link add [ name ] NAME\n"), "{link}");
    for kind in ["dummy", "loopback", "veth", "udp"] {
        assert!(link.contains(&format!("\n  {kind:12} ")), "{link}");
    }
    for line in ["add help", "set help", "set d0 help", "del help", "show help", "h"] {
        assert_eq!(refused(&mut host, &format!("ip link {line}"), 255), link, "{line}");
    }
    // After a type of device, `help` shows the help of that type.
    let dummy = "Usage: ip link <options> type dummy\nTo get <options> type 'ip link add help'\n";
    assert_eq!(refused(&mut host, "ip link add x type dummy help", 1), dummy);
    assert_eq!(refused(&mut host, "ip link set d0 type dummy", 1), dummy);
    let veth = "Usage: ip link <options> type veth [peer <options>]\n  [peer <options>]         ";
    let said = refused(&mut host, "ip link set v0 type veth", 1);
    assert!(said.starts_with(veth), "{said}");
    let udp = "Usage: ip link <options> type udp local ADDRESS:PORT [remote ADDRESS:PORT] \
               [listen ADDRESS:PORT] [clients COUNT] [idle SECONDS] [peer <options>]\n";
    let said = refused(&mut host, "ip link add x type udp help", 1);
    assert!(said.starts_with(udp), "{said}");
    assert_eq!(said.lines().count(), 1 + 6 + 1);
}

/// All devices are in group 0, `default`, and have no master.
#[test]
fn devices_are_shown_by_what_they_are() {
    let mut host = host(&[
        "ip link add d0 up type dummy",
        "ip link add d1 type dummy",
        "ip link add l0 type loopback",
    ]);
    let names = |text: &str| {
        let names = text.lines().filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    for (words, want) in [
        ("", &["d0", "d1", "l0"][..]),
        ("group default", &["d0", "d1", "l0"]),
        ("group 0", &["d0", "d1", "l0"]),
        ("group 5", &[]),
        ("master d0", &[]),
        ("vrf d0", &[]),
        ("nomaster", &["d0", "d1", "l0"]),
        ("up", &["d0"]),
        ("type dummy", &["d0", "d1"]),
        ("type loopback up", &[]),
        ("dev d1", &["d1"]),
        ("d1 up", &[]),
    ] {
        let shown = out(&mut host, &format!("ip -br link show {words}"));
        assert_eq!(names(&shown), want, "{words}");
    }
    for words in ["group", "master", "type", "dev"] {
        let want = "Command line is not complete. Try option \"help\"\n";
        assert_eq!(refused(&mut host, &format!("ip link show {words}"), 255), want);
    }
    // iproute2 writes an empty JSON object for each device that it does not show.
    assert_eq!(out(&mut host, "ip -j link show group 5"), "[{},{},{}]\n");
}

#[test]
fn json_is_that_of_iproute2() {
    let mut host = host(&["ip link add v0 address 2:0:0:0:0:1 type veth peer name v1"]);
    let flags = "\"flags\":[\"BROADCAST\",\"MULTICAST\",\"M-DOWN\"]";
    let whole = format!(
        "[{{\"ifindex\":2,\"link\":\"v1\",\"ifname\":\"v0\",{flags},\"mtu\":1500,\
         \"qdisc\":\"noop\",\"operstate\":\"DOWN\",\"linkmode\":\"DEFAULT\",\"group\":\"default\",\
         \"txqlen\":1000,\"link_type\":\"ether\",\"address\":\"02:00:00:00:00:01\",\
         \"broadcast\":\"ff:ff:ff:ff:ff:ff\"}}]\n"
    );
    assert_eq!(out(&mut host, "ip -j link show v0"), whole);
    let brief = format!(
        "[{{\"link\":\"v1\",\"ifname\":\"v0\",\"operstate\":\"DOWN\",\
         \"address\":\"02:00:00:00:00:01\",{flags}}}]\n"
    );
    assert_eq!(out(&mut host, "ip -br -j link show v0"), brief);
    let brief = "v0@v1            DOWN           02:00:00:00:00:01 <BROADCAST,MULTICAST,M-DOWN> \n";
    assert_eq!(out(&mut host, "ip -br link show v0"), brief);
}
