//! What configuring a host from a text makes, and what it leaves unchanged.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::carry::listens_at;
use super::*;

fn follow(host: &mut Host, text: &str) -> Result<Vec<String>, (usize, Reply)> {
    host.configure(text, Path::new("/"))
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
    for _ in 0..1_000 {
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
    follow(&mut host, &udp(9, "127.0.0.1:0")).expect("it can be done");
    let device = |host: &Host| host.device("u0").expect("it is there").index;
    let there = |host: &mut Host| (device(host), listens_at(host, "u0"));
    let first = there(&mut host);
    for text in [udp(9, "127.0.0.1:0"), udp(9, "127.0.0.1"), udp(9, &first.1.to_string())] {
        assert_eq!(follow(&mut host, &text), Ok(Vec::new()), "{text}");
        assert_eq!(there(&mut host), first, "{text}");
    }
    // A device whose other options change is made anew, at the same address.
    follow(&mut host, &udp(7, "127.0.0.1:0")).expect("it can be done");
    let (index, address) = there(&mut host);
    assert!(index != first.0 && address == first.1, "{address}");
    // Another address is another device.
    follow(&mut host, &udp(7, "127.0.0.2:0")).expect("it can be done");
    assert_eq!(there(&mut host).1.ip(), Ipv4Addr::new(127, 0, 0, 2));
}
