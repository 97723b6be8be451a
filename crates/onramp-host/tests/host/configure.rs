//! Configuring a host from a text.

use std::path::Path;

use onramp_host::Host;

use crate::{all, out};

fn configure(host: &mut Host, text: &str) -> Vec<String> {
    host.configure(text, Path::new("/")).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn the_commands_that_it_took_are_told() {
    let mut host = Host::new();
    let text = "ip link add d0 type dummy\nip link set d0 up\n\
                tc qdisc add dev d0 root handle 1: pfifo limit 7\n";
    let made = configure(&mut host, text);
    assert!(made[0].starts_with("ip link add dev d0 "), "{made:?}");
    assert_eq!(configure(&mut host, text), [""; 0], "nothing is left to do");

    let queue = text.replace("d0 up", "d0 up txqueuelen 50 mtu 9000");
    let set = "ip link set dev d0 mtu 9000 txqueuelen 50";
    assert_eq!(configure(&mut host, &queue), [set]);
    let device = &host.devices()[0];
    assert_eq!((device.txqueuelen, device.mtu, device.up), (50, 9_000, true));
    assert_eq!(configure(&mut host, &queue.replace("d0 up", "d0")), ["ip link set dev d0 down"]);

    // The kind of one qdisc differs between the old and the new tree, so the whole tree is
    // replaced.
    let other = queue.replace("d0 up", "d0").replace("pfifo limit 7", "bfifo limit 3000");
    let changed = configure(&mut host, &other);
    let gone = "- tc qdisc add dev d0 root handle 1: pfifo limit 7";
    let come = "+ tc qdisc add dev d0 root handle 1: bfifo limit 3000b";
    assert_eq!(changed, [gone, come]);
    assert_eq!(host.devices()[0].qdiscs[0].1.kind.id, "bfifo");
}

#[test]
fn devices_of_others_are_left_alone() {
    let mut host = Host::new();
    all(&mut host, &["ip link add mine type dummy"]);
    configure(&mut host, "ip link add d0 type dummy\nip link add v0 type veth peer name v1\n");
    let names = |host: &Host| host.devices().into_iter().map(|it| it.name).collect::<Vec<_>>();
    assert_eq!(names(&host).len(), 4);
    configure(&mut host, "");
    assert_eq!(names(&host), ["mine"]);
}

#[test]
fn a_line_that_cannot_be_done_leaves_all_as_it_was() {
    let mut host = Host::new();
    let text = "ip link add d0 type dummy\n";
    configure(&mut host, text);
    let wrong = "ip link add d0 type dummy\n\nip link add d1 type dummy\n\
                 tc qdisc add dev d1 root frob\n";
    let failed = host.configure(wrong, Path::new("/")).expect_err("no such kind");
    assert_eq!((failed.line, failed.lost.len()), (4, 0));
    assert!(failed.reply.code != 0 && failed.reply.err.contains("frob"), "{failed}");
    assert!(failed.to_string().starts_with("line 4: "), "{failed}");
    assert_eq!(host.devices().len(), 1);
    for (end, line) in [("'", 2), ("ip link del d0 \\\n", 2), ("\nip link del \"d0\n", 3)] {
        let failed = host.configure(&format!("{text}{end}"), Path::new("/")).expect_err(end);
        assert_eq!((failed.line, failed.reply.code), (line, 1), "{failed}");
        assert_eq!(host.devices().len(), 1);
    }
}

/// A device has the hardware address that the text gives it. One that the text gives none keeps
/// the address that it has.
#[test]
fn addresses_are_those_of_the_text() {
    let mut host = Host::new();
    let address = |host: &mut Host| {
        let shown = out(host, "ip link show d0");
        let (_, behind) = shown.split_once("link/ether ").expect("an address");
        behind[..17].to_owned()
    };
    configure(&mut host, "ip link add d0 type dummy\n");
    let text = "ip link add d0 address 02:00:00:00:00:0a type dummy\n";
    assert_eq!(configure(&mut host, text), ["ip link set dev d0 address 02:00:00:00:00:0a"]);
    assert_eq!(address(&mut host), "02:00:00:00:00:0a");
    assert_eq!(configure(&mut host, text), [""; 0]);
    let other = format!("{text}ip link set dev d0 address 02:00:00:00:00:0b up\n");
    assert_eq!(configure(&mut host, &other), ["ip link set dev d0 address 02:00:00:00:00:0b up"]);
    let none = "ip link add d0 up type dummy\n";
    assert_eq!(configure(&mut host, none), [""; 0]);
    assert_eq!(address(&mut host), "02:00:00:00:00:0b");
}

/// A number cannot be kept when a device is made again, so a text cannot choose it.
#[test]
fn a_text_cannot_choose_the_number_of_a_device() {
    for line in
        ["ip link add d0 index 7 type dummy", "ip link add v0 type veth peer name v1 index 8"]
    {
        let mut host = Host::new();
        let text = format!("\n{line}\n");
        let failed = host.configure(&text, Path::new("/")).expect_err("it has a number");
        assert!(format!("{failed:?}").contains("index"), "{failed:?}");
        assert_eq!(host.names().len(), 0);
        all(&mut host, &[line]);
    }
}
