//! What configuring a host from a text makes, and what it leaves unchanged.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::carry::{self, listens_at};
use super::pcap::{self, Folder};
use super::*;

fn follow(host: &mut Host, text: &str) -> Result<Vec<String>, (usize, Reply)> {
    host.configure(text, Path::new("/")).map_err(|failed| {
        assert_eq!(failed.lost, [], "{failed}");
        (failed.line, failed.reply)
    })
}

fn names(host: &Host) -> Vec<String> {
    host.devices().into_iter().map(|device| device.name).collect()
}

#[test]
fn what_fails_names_its_line_and_leaves_all_as_it_was() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    let mut host = host(&["ip link add mine type dummy"]);
    let first = "ip link add d0 type dummy\nip link add d1 type dummy\n";
    follow(&mut host, first).expect("it can be done");
    let before = host.devices().into_iter().map(|device| (device.name, device.index));
    let before: Vec<_> = before.collect();
    // The text leaves out d1, gives d0 two queues and adds devices. The line for u0 fails, because
    // its address is taken, so all devices must stay as before.
    let text = format!(
        "# devices\nip link add d0 numtxqueues 2 type dummy\n\
         ip link add v0 type veth peer name v1\n\
         ip link add d2 type dummy\n\nip link add u0 type udp local {taken}\nip link set u0 up\n"
    );
    let (line, reply) = follow(&mut host, &text).expect_err("the address is taken");
    assert_eq!((line, reply.code), (6, 2), "{reply:?}");
    assert!(reply.err.contains(&taken.to_string()), "{reply:?}");
    let after = host.devices().into_iter().map(|device| (device.name, device.index));
    assert_eq!(after.collect::<Vec<_>>(), before, "not even for a moment");
    follow(&mut host, "ip link add d0 type dummy\n").expect("it can be done");
    assert_eq!(names(&host), ["mine", "d0"]);
}

/// A device of the text stays one under another name, and a device that a command makes under its
/// old name is none.
#[test]
fn a_renamed_device_is_still_one_of_the_text() {
    let mut host = Host::new();
    follow(&mut host, "ip link add d0 type dummy\n").expect("it can be done");
    for line in ["ip link set d0 name wan", "ip link add d0 type dummy"] {
        assert_eq!(exec(&mut host, line), Reply::default(), "{line}");
    }
    follow(&mut host, "").expect("it can be done");
    assert_eq!(names(&host), ["d0"]);
}

/// A device that can be made only when an earlier device of its name has gone may fail then. This
/// costs no other device: a capture goes on in its file, and all have the numbers that they had.
#[test]
fn a_device_that_fails_late_costs_no_other() {
    let folder = Folder::new("late");
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    let fails = format!("ip link add d0 type udp local {taken}\n");
    for key in ["file", "replace"] {
        let capture = folder.file(&format!("{key}.pcapng"));
        let mut host = Host::new();
        let first = format!(
            "ip link add p0 up type pcap {key} {capture}\nip link add d0 type dummy\n\
             ip link add v0 mtu 1400 type veth peer name v1\n\
             tc qdisc add dev d0 root handle 1: pfifo limit 7\n"
        );
        follow(&mut host, &first).expect("it can be done");
        carry::send(&host, "p0", 3);
        let shown = |host: &mut Host| {
            ["ip -d -s link show", "tc -s qdisc show"].map(|line| out(host, line))
        };
        let before = shown(&mut host);
        let wrong = format!("ip link add v1 mtu 1300 type dummy\n{fails}");
        assert_eq!(follow(&mut host, &wrong).expect_err("the address is taken").0, 2);
        assert_eq!(shown(&mut host), before, "{key}");
        carry::send(&host, "p0", 2);
        assert_eq!(follow(&mut host, &first), Ok(Vec::new()), "nothing is left to do");
        drop(host);
        assert_eq!(pcap::packets(&capture).len(), 5, "{key}");
    }
}

/// A device of which a new one needs the file has to be closed first. If it cannot be made again,
/// it is lost; the error says so, and all others stay.
#[test]
fn what_cannot_be_restored_is_told() {
    let folder = Folder::new("lost");
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    for (key, why) in [("file", "File exists"), ("replace", "would lose its contents")] {
        let capture = folder.file(&format!("{key}.pcapng"));
        let mut host = Host::new();
        let pair = "ip link add v0 type veth peer name v1\n";
        let first = format!(
            "ip link add c0 up type pcap {key} {capture}\n{pair}ip link add d0 type dummy\n"
        );
        follow(&mut host, &first).expect("it can be done");
        let index = |host: &Host, name| host.device(name).map(|device| device.index);
        let before = ["d0", "v0", "v1"].map(|name| index(&host, name));
        let next = format!(
            "ip link add v1 type dummy\nip link add c0 type pcap replace {capture} read {capture}\n\
             ip link add d0 type udp local {taken}\n"
        );
        let failed = host.configure(&next, Path::new("/")).expect_err("it cannot be done");
        assert_eq!(failed.line, 2, "{failed}");
        let lost: Vec<&str> = failed.lost.iter().map(|(name, _)| &**name).collect();
        assert_eq!(lost, ["c0"], "{failed}");
        assert!(failed.to_string().contains("c0 could not be restored: "), "{failed}");
        assert!(failed.to_string().contains(why), "{failed}");
        assert_eq!(index(&host, "c0"), None);
        assert_eq!(["d0", "v0", "v1"].map(|name| index(&host, name)), before);
        assert!(pcap::packets(&capture).is_empty(), "a whole capture is there");
    }
}

/// A device that was closed, because a new one needed its address, is made again with its tree and
/// its properties if the text fails.
#[test]
fn what_was_closed_is_made_again() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    // As in `names_and_addresses_pass_from_one_device_to_another`.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let port = SocketAddr::from((Ipv4Addr::new(127, high, low, 1), 20_001));
    let first = format!(
        "ip link add u0 up mtu 1400 address 02:00:00:00:00:0a type udp local {port}\n\
         tc qdisc add dev u0 root handle 1: pfifo limit 7\nip link add d0 type dummy\n"
    );
    let wrong = format!(
        "ip link add u0 type udp local {port} remote 127.0.0.1:9\n\
         ip link add d0 type udp local {taken}\n"
    );
    for _ in 0..24_000 {
        let mut host = Host::new();
        let done = host.configure(&first, Path::new("/"));
        let before = (host.save(None), host.device("d0").map(|it| it.index));
        let failed = host.configure(&wrong, Path::new("/")).expect_err("the address is taken");
        let is_ours = done.is_ok() && failed.line == 2 && failed.lost.is_empty();
        if !is_ours && format!("{done:?}{failed}").contains(&format!("{port}")) {
            // A child process that another test begins still has a copy of the socket.
            std::thread::sleep(std::time::Duration::from_millis(5));
            continue;
        }
        assert!(is_ours, "{done:?} {failed}");
        let mut lines = host.save(None).expect("it can be saved");
        let mut saved = before.0.expect("it can be saved");
        lines.sort();
        saved.sort();
        assert_eq!(lines, saved);
        assert_eq!(host.device("d0").map(|it| it.index), before.1);
        return;
    }
    panic!("{port} is never free");
}

/// A device that shares with another only what both can have (an address to send to, a file to
/// read, a port that the kernel chooses) does not wait until the other is closed, so a text that
/// fails leaves the other as it was.
#[test]
fn what_two_devices_can_share_closes_neither() {
    let folder = Folder::new("shared");
    let (one, two) = (folder.file("one.pcapng"), folder.file("none/two.pcapng"));
    let input = folder.file("in.pcapng");
    pcap::write_capture(&input, 3);
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    let udp = |local: &str| format!("ip link add u0 type udp local {local} remote 127.0.0.1:9\n");
    let play = |file: &str| format!("ip link add c0 type pcap file {file} read {input}\n");
    let mut host = Host::new();
    let first = udp("127.0.0.1:0") + &play(&one);
    follow(&mut host, &first).expect("it can be done");
    let before = host.devices().into_iter().map(|it| (it.name, it.index)).collect::<Vec<_>>();
    let queues = udp("127.0.0.1:0").replace("type", "numtxqueues 2 type");
    for wrong in [
        udp(&taken.to_string()) + &play(&one),
        udp("127.0.0.1:0") + &play(&two),
        // A `file` that exists is refused, whether a device uses it or not.
        udp("127.0.0.1:0") + &play(&one).replace("read", "fast"),
        queues + &play(&two),
    ] {
        follow(&mut host, &wrong).expect_err("it cannot be done");
        let after = host.devices().into_iter().map(|it| (it.name, it.index));
        assert_eq!(after.collect::<Vec<_>>(), before, "{wrong}");
    }
    assert_eq!(follow(&mut host, &first), Ok(Vec::new()));
}

#[test]
fn lines_are_those_of_a_batch() {
    let mut host = Host::new();
    let text = "ip link add 'd0' \\\n  type dummy # one\nip link set \"d0\" \\\n up\n";
    follow(&mut host, text).expect("it can be done");
    assert!(host.devices()[0].up);
    let wrong = format!("{text}\ntc qdisc add dev d0 \\\n root \\\n nonsense\n");
    let (line, reply) = follow(&mut host, &wrong).expect_err("there is no such qdisc");
    assert_eq!((line, reply.code), (8, 2), "the last line of the command: {reply:?}");
}

#[test]
fn names_and_addresses_pass_from_one_device_to_another() {
    // The port must stay free between the moment when `u0` gives it up and the moment when `u1`
    // takes it. Other tests cannot take it, because the kernel gives out ports only from 32,768 on.
    // The address contains the process number, so that two runs of this test do not disturb each
    // other.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let port = SocketAddr::from((Ipv4Addr::new(127, high, low, 1), 20_000));
    let mut host = Host::new();
    let udp = |name: &str| format!("ip link add {name} type udp local {port} remote {port}\n");
    follow(&mut host, &format!("{}ip link add d0 type dummy\n", udp("u0"))).expect("it is free");
    let next = format!("ip link add v0 type veth peer name d0\n{}", udp("u1"));
    // A child process that another test begins has copies of all sockets until it begins its
    // program. A text that fails changes nothing, so it can be followed again.
    let in_use = |done: &Result<_, (usize, Reply)>| {
        done.as_ref().is_err_and(|(_, reply)| reply.err.contains("Address already in use"))
    };
    let mut done = follow(&mut host, &next);
    for _ in 0..24_000 {
        if !in_use(&done) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        done = follow(&mut host, &next);
    }
    done.expect("whoever has them goes first");
    let mut there = names(&host);
    there.sort();
    assert_eq!(there, ["d0", "u1", "v0"]);
    assert_eq!(follow(&mut host, &next), Ok(Vec::new()), "nothing has changed");
}

#[test]
fn programs_are_read_from_files_alone() {
    let folder = std::env::temp_dir().join(format!("onramp-files-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("program"), "1,6 0 0 65535").expect("a file");
    std::fs::write(folder.join("large"), vec![b' '; (1 << 20) + 1]).expect("a file");
    let made = std::process::Command::new("mkfifo").arg(folder.join("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let mut host = host(&["ip link add d0 type dummy", "tc qdisc add dev d0 root handle 1: prio"]);
    let line = |file| {
        let line = "tc filter add dev d0 parent 1: bpf classid 1:1 bytecode-file";
        line.split(' ').chain([file]).collect::<Vec<&str>>()
    };
    for (file, why) in [
        ("large", "more than 1048576 bytes"),
        ("pipe", "not a regular file"),
        (".", "not a regular"),
    ] {
        let reply = host.exec(&line(file), &folder);
        assert!(reply.code != 0 && reply.err.contains(why), "{file}: {reply:?}");
    }
    let reply = host.exec_alone(&line("/etc/hostname"));
    assert!(reply.code != 0 && reply.err.contains("cannot name files"), "{reply:?}");
    assert_eq!(host.exec(&line("program"), &folder), Reply::default());
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn what_is_told_of_a_long_line_is_cut() {
    let mut host = host(&["ip link add d0 type dummy", "tc qdisc add dev d0 root handle 1: prio"]);
    let (tell, told) = std::sync::mpsc::channel();
    host.listen(move |event| tell.send(event.line.clone()).is_ok());
    let long = "ü".repeat(100_000);
    let line = format!("tc filter replace dev d0 parent 1: prio 1 handle 1 fw classid 1:1 {long}");
    exec(&mut host, &line);
    let zeros = "0".repeat(100_000);
    let line = format!("tc filter replace dev d0 parent 1: prio 1 handle {zeros}1 fw classid 1:1");
    assert_eq!(exec(&mut host, &line).code, 0);
    let lines: Vec<String> = told.try_iter().collect();
    assert!(!lines.is_empty(), "it is told");
    assert!(lines.iter().all(|line| line.len() <= onramp_host::Event::LINE_MAX));
    assert!(lines.iter().any(|line| line.ends_with('…')));
}

/// If a text leaves the port of `listen` to the kernel, the device keeps its port, so its clients
/// find it, whether the text has changed or not.
#[test]
fn a_port_that_the_kernel_chose_is_kept() {
    let udp = |remote: u16, listen: &str| {
        format!(
            "ip link add u0 type udp local 127.0.0.1 remote 127.0.0.1:{remote} listen {listen}\n"
        )
    };
    let mut host = Host::new();
    // Between two devices of one port, another program may get the port, but hardly at this
    // address.
    follow(&mut host, &udp(9, "127.6.5.4:0")).expect("it can be done");
    let device = |host: &Host| host.device("u0").expect("it is there").index;
    let there = |host: &mut Host| (device(host), listens_at(host, "u0"));
    let first = there(&mut host);
    for text in [udp(9, "127.6.5.4:0"), udp(9, "127.6.5.4"), udp(9, &first.1.to_string())] {
        assert_eq!(follow(&mut host, &text), Ok(Vec::new()), "{text}");
        assert_eq!(there(&mut host), first, "{text}");
    }
    // A device whose other options change is made anew, at the same address.
    follow(&mut host, &udp(7, "127.6.5.4:0")).expect("it can be done");
    let (index, address) = there(&mut host);
    assert!(index != first.0 && address == first.1, "{address}");
    // Another address is another device.
    follow(&mut host, &udp(7, "127.0.0.2:0")).expect("it can be done");
    assert_eq!(there(&mut host).1.ip(), Ipv4Addr::new(127, 0, 0, 2));
}
