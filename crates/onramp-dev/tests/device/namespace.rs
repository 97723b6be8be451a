//! Tests that need their own routes, links and qdiscs. Each test runs itself again under `unshare`
//! in a new network namespace, which disappears when that process ends.

use std::env;
use std::fs::OpenOptions;
use std::io::{Write, stderr};
use std::net::UdpSocket;
use std::process::{Command, ExitStatus};

use onramp_core::{Device, Instant};
use onramp_dev::{Udp, UdpOptions};
use onramp_queue::{DropReason, PacketList};
use socket2::SockRef;

use crate::common::{Sink, packet, pattern, transmit, transmit_all};

/// Environment variable that is set in the process inside the namespace.
const INSIDE: &str = "ONRAMP_TEST_NAMESPACE";

/// Runs `test`, which is the test called `name`, in a namespace in which the `ip` and `tc` commands
/// of `set_up` have been run. If namespaces are not allowed or a command fails, skips the test and
/// reports that on standard error.
pub(crate) fn in_namespace(name: &str, set_up: &[&str], test: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        for line in set_up {
            let mut words = line.split(' ');
            let program = words.next().expect("a command has a name");
            let status = Command::new(program).args(words).status();
            if !status.as_ref().is_ok_and(ExitStatus::success) {
                let lacks = if status.is_ok() { "kernel: " } else { "" };
                return skip(lacks, &format!("{name}: `{line}`: {status:?}"));
            }
        }
        return test();
    }
    let unshare = |flags: &str| {
        let mut command = Command::new("unshare");
        command.arg(flags);
        command
    };
    let allowed = |flags: &&str| {
        let tried = unshare(flags).arg("true").output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(flags) = ["-n", "-rn"].into_iter().find(allowed) else {
        let why = "`unshare -n` needs root, `unshare -rn` user namespaces";
        return skip("", &format!("{name}: {why}"));
    };
    let this = env::current_exe().expect("a running test has a file");
    let status = unshare(flags)
        .arg(this)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .expect("it ran a moment ago");
    assert!(status.success(), "{name} failed inside the namespace");
}

/// Runs `test` as [`in_namespace`] does, but skips it unless root outside of user namespaces runs
/// it, as whom a user in a namespace of their own may not do what the test needs.
pub(crate) fn in_namespace_of_root(name: &str, set_up: &[&str], test: impl FnOnce()) {
    if env::var_os(INSIDE).is_none() && !is_root() {
        return skip("", &format!("{name}: the test needs root with all rights"));
    }
    in_namespace(name, set_up, test);
}

/// Runs `test` as [`in_namespace`] does, but skips it if this user may not open `/dev/net/tun`.
pub(crate) fn in_namespace_with_tun(name: &str, set_up: &[&str], test: impl FnOnce()) {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    if let (Err(error), None) = (opened, env::var_os(INSIDE)) {
        return skip("", &format!("{name}: /dev/net/tun: {error}"));
    }
    in_namespace(name, set_up, test);
}

/// Whether this process is root outside of user namespaces, and may make network namespaces, as
/// root in many containers may not.
pub(crate) fn is_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_outside = map.split_whitespace().nth(2) == Some("4294967295");
    let may = || Command::new("unshare").args(["-n", "true"]).output();
    nix::unistd::Uid::effective().is_root()
        && is_outside
        && may().is_ok_and(|output| output.status.success())
}

/// Reports a skipped test directly on standard error, because the test harness hides what passing
/// tests print. In CI, a test may only be skipped because the kernel lacks a feature (`lacks` names
/// it), because everything else is installed there.
fn skip(lacks: &str, why: &str) {
    assert!(!lacks.is_empty() || env::var_os("CI").is_none(), "CI has all that tests need: {why}");
    writeln!(stderr(), "SKIP: {lacks}{why}").expect("standard error is open");
}

/// Sends one packet to `dest` from a socket that is bound to no particular address. Returns the
/// packet's drop reason.
fn fate(dest: &str, len: usize) -> Option<DropReason> {
    let dest: std::net::SocketAddr = dest.parse().expect("an address");
    let any = if dest.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let mut udp = Udp::bind(any.parse().expect("an address")).expect("a port is free");
    let outcome = transmit(&mut udp, vec![packet(Some(dest), 1, len, 0)], Instant(1));
    outcome.done[0].1
}

#[test]
fn no_route_is_unreachable() {
    in_namespace("namespace::no_route_is_unreachable", &[], || {
        assert_eq!(fate("192.0.2.1:9", 10), Some(DropReason::Unreachable));
        assert_eq!(fate("[2001:db8::1]:9", 10), Some(DropReason::Unreachable));
        assert_eq!(Udp::path_mtu("192.0.2.1:9".parse().expect("an address")), None);
    });
}

#[test]
fn routes_that_refuse_have_their_reasons() {
    let set_up = [
        "ip link set lo up",
        "ip route add prohibit 192.0.2.1",
        "ip route add unreachable 192.0.2.2",
        "ip route add blackhole 192.0.2.3",
    ];
    in_namespace("namespace::routes_that_refuse_have_their_reasons", &set_up, || {
        assert_eq!(fate("192.0.2.1:9", 10), Some(DropReason::NoPermission));
        assert_eq!(fate("192.0.2.2:9", 10), Some(DropReason::Unreachable));
        // For a packet to a blackhole route, Linux returns EINVAL, which the device reports as
        // `DeviceError`.
        assert_eq!(fate("192.0.2.3:9", 10), Some(DropReason::DeviceError));
        assert_eq!(fate("127.255.255.255:9", 10), Some(DropReason::NoPermission), "broadcast");
    });
}

/// Commands that give the loopback interface the MTU of Ethernet.
const SMALL: [&str; 2] = ["ip link set lo mtu 1500", "ip link set lo up"];

#[test]
fn segments_beyond_the_mtu_are_sent_singly() {
    in_namespace("namespace::segments_beyond_the_mtu_are_sent_singly", &SMALL, || {
        for (addr, fits) in [("127.0.0.1:0", 1_472), ("[::1]:0", 1_452)] {
            let sink = Sink::bind(addr);
            let mut udp = Udp::bind(addr.parse().expect("an address")).expect("a port is free");
            let mut send = |len| {
                let packets = (0..5).map(|seed| packet(Some(sink.addr()), 1, len, seed));
                let out = transmit_all(&mut udp, packets.collect());
                (0..5).for_each(|seed| assert!(sink.recv() == pattern(len, seed)));
                sink.assert_empty();
                out.messages
            };
            assert_eq!(send(fits), 1);
            assert_eq!(send(fits + 1), 5, "in fragments");
            assert_eq!(send(fits), 1, "the others are still segmented");
            assert_eq!(Udp::path_mtu(sink.addr()), Some(1_500));
        }
    });
}

#[test]
fn what_may_not_be_fragmented_is_dropped_alone() {
    in_namespace("namespace::what_may_not_be_fragmented_is_dropped_alone", &SMALL, || {
        for (addr, fits) in [("127.0.0.1:0", 1_472), ("[::1]:0", 1_452)] {
            let sink = Sink::bind(addr);
            let socket = UdpSocket::bind(addr).expect("a port is free");
            // `UdpSocketState::new` sets the socket option that forbids IP fragments.
            quinn_udp::UdpSocketState::new((&socket).into()).expect("Linux has all options");
            let mut udp = Udp::new(socket, UdpOptions::default()).expect("a socket will do");
            let lens = [fits + 1, fits + 1, fits, fits];
            let packets = lens
                .iter()
                .enumerate()
                .map(|(seed, &len)| packet(Some(sink.addr()), 1, len, seed))
                .collect();
            let outcome = transmit(&mut udp, packets, Instant(1));
            let fates: Vec<_> = outcome.done.iter().map(|&(_, reason)| reason).collect();
            let dropped = Some(DropReason::MessageSize);
            assert_eq!(fates, [dropped, dropped, None, None]);
            (2..4).for_each(|seed| assert!(sink.recv() == pattern(fits, seed)));
            sink.assert_empty();
            assert_eq!((udp.stats().gso_fallbacks.get(), udp.stats().gso_off.get()), (1, 0));
        }
    });
}

#[test]
fn a_full_send_buffer_keeps_the_rest() {
    let set_up = [
        "ip link add v0 type veth peer name v1",
        "ip addr add 10.9.0.1/24 dev v0",
        "ip link set v1 up",
        "ip link set v0 up",
        "ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent",
        "tc qdisc add dev v0 root tbf rate 8kbit burst 2000 limit 1000000",
    ];
    in_namespace("namespace::a_full_send_buffer_keeps_the_rest", &set_up, || {
        let socket = UdpSocket::bind("10.9.0.1:0").expect("a port is free");
        socket.connect("10.9.0.2:9").expect("there is a route");
        SockRef::from(&socket).set_send_buffer_size(1 << 14).expect("it may be small");
        let mut udp = Udp::new(socket, UdpOptions::default()).expect("a fresh socket will do");
        assert_eq!(udp.info().mtu, 1_514);
        let packets = (0..100).map(|flow| packet(None, flow, 1_000, 0)).collect();
        let outcome = transmit(&mut udp, packets, Instant(7));
        assert!((1..99).contains(&outcome.done.len()), "{} taken", outcome.done.len());
        assert!(outcome.done.iter().all(|(_, reason)| reason.is_none()));
        assert_eq!(outcome.out.retry_at, Some(Instant(50_007)));
        assert_eq!(udp.stats().eagain.get(), 1);
        // The interface sends only 1,000 bytes per second, so the send buffer is still full, and
        // the device again asks to be called later.
        let (mut left, mut done) = (outcome.left, PacketList::new());
        let out = udp.transmit(&mut left, &mut done, Instant(50_007));
        assert!(out.retry_at.is_some());
        assert_eq!(done.len() as usize + left.len() as usize + outcome.done.len(), 100);
    });
}
