//! What cannot be opened, what cannot be sent, and interfaces that go down or away.

use std::env;
use std::io::{self, BufRead as _, BufReader, ErrorKind};
use std::process::{Command, Stdio};

use onramp_core::{Clock, Device, Instant};
use onramp_dev::{
    MonotonicClock, PacketOptions, PacketReceiver, PacketSocket, Receive, current_cpu, pin_thread,
};
use onramp_queue::{DropReason, Packet, PacketList};

use super::{
    OPTIONS, PAIR, assert_nothing, await_carrier, fate, next, open, open_as_it_is, pair, segments,
    tagged,
};
use crate::common::transmit;
use crate::namespace::in_namespace;
use crate::tap::{PATIENCE_NS, heap, ip, send, tcp, wait};

#[test]
fn what_cannot_be_opened_says_why() {
    in_namespace("packet::errors::what_cannot_be_opened_says_why", &PAIR, || {
        let error = |name: &str| PacketSocket::open(name, OPTIONS).expect_err("refused");
        for (name, kind, words) in [
            ("x9", ErrorKind::NotFound, "packet socket on x9: there is no such interface"),
            ("lo", ErrorKind::InvalidInput, "packet socket on lo: the interface is not an"),
            ("a name that is too long", ErrorKind::InvalidInput, "at most 15 bytes"),
        ] {
            let error = error(name);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        let (mut socket, _receiver) = open("v0", OPTIONS);
        let error = socket.another_queue().expect_err("no group");
        assert!(error.to_string().contains("v0: several queues need the option `fanout`"));
        let error = socket.receiver().expect_err("the second");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    });
}

#[test]
fn rights_are_needed() {
    const NAME: &str = "packet::errors::rights_are_needed";
    in_namespace(NAME, &[], || {
        const WITHOUT: &str = "ONRAMP_TEST_WITHOUT_RIGHTS";
        if env::var_os(WITHOUT).is_some() {
            let error = PacketSocket::open("lo", OPTIONS).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            let text = error.to_string();
            assert!(text.contains("CAP_NET_RAW") && text.contains("setcap"), "{text}");
            return;
        }
        let this = env::current_exe().expect("a running test has a file");
        // The namespace inside is another one, in which these rights are missing, too.
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"]).arg(this);
        command.args(["--exact", NAME, "--nocapture"]).env(WITHOUT, "1");
        let status = command.status().expect("setpriv is a part of util-linux, as unshare is");
        assert!(status.success());
    });
}

/// A frame above the MTU is refused, and those beside it pass.
#[test]
fn what_is_too_large_is_dropped_alone() {
    in_namespace("packet::errors::what_is_too_large_is_dropped_alone", &PAIR, || {
        for offload in [true, false] {
            let [(mut device, _), (_, mut receiver)] = pair(PacketOptions { offload, ..OPTIONS });
            // 66 bytes of headers: 1,448 bytes of data fill the MTU.
            let frames = [(1_448, None), (1_449, Some(DropReason::MessageSize)), (1_447, None)];
            let packets = frames.map(|(data, _)| tcp(false, data, 0, 0)).into();
            let outcome = transmit(&mut device, packets, Instant(1));
            let fates = outcome.done.iter().map(|&(_, reason)| reason);
            assert!(fates.eq(frames.map(|(_, reason)| reason)));
            assert_eq!(outcome.out.messages, 2);
            for data in [1_448, 1_447] {
                assert_eq!(next(&mut receiver).payload().len(), 66 + data);
            }
            let tag = [0x81, 0, 0, 1];
            let large = tagged(&tcp(false, 1_449, 0, 0), tag);
            assert_eq!(fate(&mut device, large), Some(DropReason::MessageSize));
            // No Ethernet header.
            let short = Packet::with_payload(&[0; 13]);
            assert_eq!(fate(&mut device, short), Some(DropReason::MessageSize));
        }
    });
}

/// Reads until there is no frame, and returns the error if there is one.
fn drain(receiver: &mut PacketReceiver) -> io::Result<()> {
    while receiver.receive(10, &mut heap, &mut PacketList::new())? > 0 {}
    Ok(())
}

/// The kernel does not tell that an interface is removed which went down before. Frames that waited
/// then do not hide it.
#[test]
fn a_removal_is_noticed_behind_frames_that_waited() {
    in_namespace("packet::errors::a_removal_is_noticed_behind_frames_that_waited", &PAIR, || {
        let frame = || tcp(false, 100, 0, 0);
        let [(mut here, _), (_there, mut receiver)] = pair(OPTIONS);
        send(&mut here, frame());
        wait(&[&receiver], 20_000);
        ip("link set v1 down");
        assert_eq!(next(&mut receiver).payload(), frame().payload());
        ip("link del v1");
        let error = drain(&mut receiver).expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    });
}

/// While the interface is down, packets are dropped and nothing is received. When it is removed,
/// the receiver says so.
#[test]
fn an_interface_goes_down_and_away() {
    in_namespace("packet::errors::an_interface_goes_down_and_away", &PAIR, || {
        let frame = || tcp(false, 100, 0, 0);
        let [(mut here, _), (mut there, mut receiver)] = pair(OPTIONS);
        let dropped = Some(DropReason::Unreachable);
        for _ in 0..2 {
            send(&mut here, frame());
            wait(&[&receiver], 20_000);
            ip("link set v1 down");
            assert_eq!(fate(&mut there, frame()), dropped);
            // What came before is received, behind the news.
            assert_eq!(next(&mut receiver).payload(), frame().payload());
            assert_nothing(&mut receiver);
            assert_nothing(&mut receiver);
            ip("link set v1 up");
            assert_nothing(&mut receiver);
            await_carrier("v0");
        }
        // One that is down can be opened.
        ip("link set v1 down");
        let (mut late, mut later) = open_as_it_is("v1", OPTIONS);
        assert_eq!(fate(&mut late, frame()), dropped);
        assert_nothing(&mut later);
        ip("link set v1 up");
        await_carrier("v0");
        for receiver in [&mut receiver, &mut later] {
            drain(receiver).expect("it is up");
        }
        send(&mut here, frame());
        next(&mut receiver);
        next(&mut later);
        // `later` has heard nothing when the interface is removed while it is down.
        ip("link set v1 down");
        drain(&mut receiver).expect("it is only down");
        ip("link del v1");
        assert_eq!(fate(&mut there, frame()), dropped);
        for receiver in [&mut receiver, &mut later] {
            for _ in 0..2 {
                let error = drain(receiver).expect_err("it is gone");
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(error.to_string().starts_with("the interface v1 was removed"), "{error}");
            }
        }
        assert_eq!(fate(&mut late, frame()), dropped);
    });
}

/// An interface that has moved to another namespace is gone, even if another one has its name.
#[test]
fn a_namesake_is_another() {
    in_namespace("packet::errors::a_namesake_is_another", &PAIR, || {
        let (mut socket, mut receiver) = open("v1", OPTIONS);
        ip("link set v1 name v2");
        ip("link set v2 up");
        drain(&mut receiver).expect("it has only another name");
        ip("link del v2");
        ip("link add v1 type veth peer name v2");
        ip("link set v1 up");
        ip("link set v2 up");
        drain(&mut receiver).expect_err("it is gone");
        assert_eq!(fate(&mut socket, tcp(false, 100, 0, 0)), Some(DropReason::Unreachable));
    });
}

/// With `bypass`, the device learns that there is no carrier.
#[test]
fn without_carrier_packets_are_dropped() {
    in_namespace("packet::errors::without_carrier_packets_are_dropped", &PAIR, || {
        let mut device = open("v0", PacketOptions { bypass: true, ..OPTIONS }).0;
        for frame in [tcp(false, 100, 0, 0), tcp(false, 10_000, 1_000, 0)] {
            ip("link set v1 down");
            // The kernel needs a moment to notice that there is no carrier. Until then, it says
            // that it has no buffer.
            let (mut burst, mut done) = (PacketList::new(), PacketList::new());
            let end = MonotonicClock.now().after(PATIENCE_NS);
            loop {
                assert!(MonotonicClock.now() < end, "the device does not notice");
                if burst.is_empty() {
                    burst.push_back(frame.duplicate());
                }
                device.transmit(&mut burst, &mut done, Instant(1));
                match done.pop_front().map(|packet| packet.drop_reason) {
                    Some(Some(DropReason::Unreachable)) => break,
                    None | Some(Some(DropReason::NoBuffers)) => {}
                    Some(other) => panic!("{other:?}"),
                }
            }
            ip("link set v1 up");
            await_carrier("v0");
            send(&mut device, frame);
        }
    });
}

/// The socket's send buffer is full while the interface's qdisc holds the frames.
#[test]
fn a_full_send_buffer_keeps_the_rest() {
    let slow = "tc qdisc add dev v0 root tbf rate 8kbit burst 2000 limit 10000000";
    let set_up = [&PAIR[..], &[slow]].concat();
    in_namespace("packet::errors::a_full_send_buffer_keeps_the_rest", &set_up, || {
        for offload in [true, false] {
            let mut device = open("v0", PacketOptions { offload, ..OPTIONS }).0;
            let packets = (0..1_000).map(|_| tcp(false, 1_000, 0, 0)).collect();
            let outcome = transmit(&mut device, packets, Instant(7));
            assert!((1..999).contains(&outcome.done.len()), "{} taken", outcome.done.len());
            assert!(outcome.done.iter().all(|(_, reason)| reason.is_none()));
            assert_eq!(outcome.out.retry_at, Some(Instant(50_007)));
            // A super-frame of which nothing was sent waits, too.
            let mut burst = PacketList::from_iter([tcp(false, 10_000, 1_000, 0)]);
            let mut done = PacketList::new();
            let out = device.transmit(&mut burst, &mut done, Instant(50_007));
            assert_eq!((out.retry_at, burst.len()), (Some(Instant(150_007)), 1));
            assert_eq!(device.stats().full.get(), 2);
        }
    });
}

/// A super-frame of which the kernel takes only some segments goes on with the next one; and a
/// packet that comes in its place, because it was cancelled, begins at its own beginning.
#[test]
fn a_super_frame_goes_on_where_it_stopped() {
    let slow = "tc qdisc add dev v0 root tbf rate 8kbit burst 2000 limit 10000000";
    let set_up = [&PAIR[..], &[slow]].concat();
    in_namespace("packet::errors::a_super_frame_goes_on_where_it_stopped", &set_up, || {
        // A veth pair keeps the order of the frames of one processor only.
        pin_thread(current_cpu().expect("Linux tells")).expect("it runs there");
        let mut receiver = open("v1", OPTIONS).1;
        for cancel in [false, true] {
            let mut device = open("v0", PacketOptions { offload: false, ..OPTIONS }).0;
            let frame = || tcp(false, 50_000, 1_000, 0);
            let mut burst: PacketList = (0..20).map(|_| frame()).collect();
            let mut done = PacketList::new();
            let out = device.transmit(&mut burst, &mut done, Instant(1));
            let partly = out.messages as usize % 50;
            assert!(out.retry_at.is_some() && partly > 0, "{out:?}");
            assert!(done.metas().all(|meta| meta.drop_reason.is_none()));
            let mut expected: Vec<_> = (0..20).flat_map(|_| segments(&frame())).collect();
            if cancel {
                // Its memory is used again.
                let mut packet = burst.pop_front().expect("it waits");
                packet.set_payload(tcp(false, 50_000, 1_000, 1).payload());
                let new = packet.duplicate();
                burst.push_front(packet);
                let at = out.messages as usize;
                expected.splice(at..at - partly + 50, segments(&new));
            }
            let faster = "tc qdisc change dev v0 root tbf rate 1gbit burst 200000 limit 10000000";
            let mut words = faster.split(' ');
            let status = Command::new(words.next().expect("tc")).args(words).status();
            assert!(status.expect("tc runs").success());
            let end = MonotonicClock.now().after(PATIENCE_NS);
            let mut received = Vec::new();
            while received.len() < expected.len() {
                device.transmit(&mut burst, &mut done, Instant(1));
                let mut list = PacketList::new();
                receiver.receive(64, &mut heap, &mut list).expect("it is up");
                received.extend(list.map(|packet| packet.payload().to_vec()));
                assert!(MonotonicClock.now() < end, "{} frames came", received.len());
            }
            assert!(received == expected, "the segments come in order, and each once");
            assert!(done.len() == 20 && done.metas().all(|meta| meta.drop_reason.is_none()));
            let slow = slow.replace("add", "change");
            let status = Command::new("tc").args(slow.split(' ').skip(1)).status();
            assert!(status.expect("tc runs").success());
        }
    });
}

/// Offers packets, again and again at the times that the device names, until all are done. Returns
/// the drop reasons, and the number of calls.
fn persist(device: &mut PacketSocket, packets: Vec<Packet>) -> (Vec<Option<DropReason>>, u32) {
    let (mut burst, mut done) = (PacketList::from_iter(packets), PacketList::new());
    let (mut now, mut calls) = (Instant(1), 0);
    while !burst.is_empty() {
        let out = device.transmit(&mut burst, &mut done, now);
        calls += 1;
        assert!(calls <= 1_000, "the device never gives up");
        now = out.retry_at.unwrap_or(now);
    }
    (done.metas().map(|meta| meta.drop_reason).collect(), calls)
}

/// Runs `tc`, and returns whether it was successful.
fn tc(line: &str) -> bool {
    Command::new("tc").args(line.split(' ')).status().expect("tc runs").success()
}

/// Commands that make the pair and let the kernel drop each frame of `data` bytes of TCP that v0
/// sends.
fn dropping(data: u16) -> Vec<String> {
    // Load the length of the IP packet, which has 52 bytes of headers, and compare it. 2 is
    // `TC_ACT_SHOT`, 0 is `TC_ACT_OK`. There are tabs between the numbers, because commands are cut
    // at spaces.
    let length = data + 52;
    let program = format!("4,40\t0\t0\t16,21\t0\t1\t{length},6\t0\t0\t2,6\t0\t0\t0");
    let filter = format!("tc filter add dev v0 egress bpf da bytecode {program}");
    let lines = PAIR.iter().map(|&line| line.to_owned());
    lines.chain(["tc qdisc add dev v0 clsact".to_owned(), filter]).collect()
}

/// A frame that the kernel drops each time does not stop the others.
#[test]
fn what_is_always_refused_is_given_up() {
    in_namespace("packet::errors::what_is_always_refused_is_given_up", &PAIR, || {
        let given_up = |options| {
            let (mut device, mut receiver) = (open("v0", options).0, open("v1", OPTIONS).1);
            let packets = vec![tcp(false, 1_400, 0, 0), tcp(false, 100, 0, 0)];
            let (fates, calls) = persist(&mut device, packets);
            let expected = if fates[0].is_some() { (101, 100) } else { (1, 0) };
            assert_eq!((calls, device.stats().full.get()), expected);
            assert_eq!(next(&mut receiver).payload(), tcp(false, 100, 0, 0).payload());
            fates
        };
        let first = [Some(DropReason::NoBuffers), None];
        // It is larger than the bucket of a `tbf`.
        assert!(tc("qdisc add dev v0 root tbf rate 1gbit burst 1000 limit 100000"));
        assert_eq!(given_up(OPTIONS), first);
        assert!(tc("qdisc del dev v0 root"));
        // It is larger than what the far end takes, which Linux reports since 6.6.
        ip("link set v1 mtu 1000");
        for bypass in [false, true] {
            let fates = given_up(PacketOptions { bypass, ..OPTIONS });
            assert!(fates == first || fates == [None; 2], "{fates:?}");
        }
    });
}

/// Where a filter drops some of the frames, the others soon pass without long waits.
#[test]
fn a_filter_holds_the_others_up_only_at_first() {
    let name = "packet::errors::a_filter_holds_the_others_up_only_at_first";
    let set_up = dropping(333);
    let set_up: Vec<_> = set_up.iter().map(String::as_str).collect();
    in_namespace(name, &set_up, || {
        let [(mut device, _), (_, mut receiver)] = pair(OPTIONS);
        let mut calls = Vec::new();
        for _ in 0..10 {
            let packets: Vec<_> =
                (0..64).map(|n| tcp(false, if n % 4 == 3 { n } else { 333 }, 0, 0)).collect();
            let (fates, of_burst) = persist(&mut device, packets);
            let dropped = |n: usize| (n % 4 != 3).then_some(DropReason::NoBuffers);
            assert!(fates.into_iter().eq((0..64).map(dropped)));
            for n in (3..64).step_by(4) {
                assert_eq!(next(&mut receiver).payload(), tcp(false, n, 0, 0).payload());
            }
            calls.push(of_burst);
        }
        assert_eq!(calls, [101, 51, 26, 13, 7, 4, 2, 2, 2, 2]);
    });
}

/// A filter that drops one segment of a super-frame takes the rest of the packet with it. The next
/// packet begins at its own beginning, even if it has the same bytes.
#[test]
fn a_super_frame_is_given_up_in_the_middle() {
    let name = "packet::errors::a_super_frame_is_given_up_in_the_middle";
    let set_up = dropping(500);
    let set_up: Vec<_> = set_up.iter().map(String::as_str).collect();
    in_namespace(name, &set_up, || {
        let mut device = open("v0", PacketOptions { offload: false, ..OPTIONS }).0;
        let mut receiver = open("v1", OPTIONS).1;
        let whole = || tcp(false, 2_500, 1_000, 0);
        let parts = segments(&whole());
        let (fates, calls) = persist(&mut device, vec![whole(), whole()]);
        assert_eq!(fates, [Some(DropReason::NoBuffers); 2]);
        // The second one waits, too, because some of its segments were taken.
        assert_eq!((calls, device.stats().frames.get()), (101, 4));
        for part in [0, 1, 0, 1] {
            assert_eq!(next(&mut receiver).payload(), parts[part]);
        }
        assert_nothing(&mut receiver);
    });
}

/// Commands that give v0 a qdisc that holds two frames, and sends 100 of 1,000 bytes in a second.
const SHORT_QUEUE: [&str; 2] = [
    "tc qdisc add dev v0 root handle 1: tbf rate 800kbit burst 2000 limit 100000",
    "tc qdisc add dev v0 parent 1:1 handle 2: pfifo limit 2",
];

/// Frames of the socket itself that fill the interface's qdisc hold the others back for as long as
/// they need, however often these are offered.
#[test]
fn a_full_qdisc_loses_nothing() {
    let set_up = [&PAIR[..], &SHORT_QUEUE].concat();
    in_namespace("packet::errors::a_full_qdisc_loses_nothing", &set_up, || {
        let [(mut device, _), (_, mut receiver)] = pair(OPTIONS);
        let mut burst: PacketList = (0..30).map(|n| tcp(false, 900 + n, 0, 0)).collect();
        let mut done = PacketList::new();
        let end = MonotonicClock.now().after(PATIENCE_NS);
        while !burst.is_empty() {
            device.transmit(&mut burst, &mut done, Instant(1));
            assert!(MonotonicClock.now() < end, "{} frames wait", burst.len());
        }
        assert!(done.metas().all(|meta| meta.drop_reason.is_none()));
        assert!(device.stats().full.get() > 100, "it asks more often than it does in vain");
        for n in 0..30 {
            assert_eq!(next(&mut receiver).payload(), tcp(false, 900 + n, 0, 0).payload());
        }
    });
}

/// Frames of another program that fill the interface's qdisc hold the others back.
#[test]
fn a_qdisc_that_others_fill_loses_nothing() {
    let set_up = [&PAIR[..], &SHORT_QUEUE].concat();
    in_namespace("packet::errors::a_qdisc_that_others_fill_loses_nothing", &set_up, || {
        let [(mut device, _), (_, mut receiver)] = pair(OPTIONS);
        // If this thread loses its processor, the qdisc gets room meanwhile: try again then.
        let waited = (0..100).any(|_| {
            let mut other = open("v0", OPTIONS).0;
            let packets = (0..10).map(|n| tcp(false, 900 + n, 0, 0)).collect();
            let taken = transmit(&mut other, packets, Instant(1)).done.len();
            let before = device.stats().full.get();
            let (mut burst, mut done) =
                (PacketList::from_iter([tcp(false, 950, 0, 0)]), PacketList::new());
            while done.is_empty() {
                let now = MonotonicClock.now();
                let until = device.transmit(&mut burst, &mut done, now).retry_at;
                while until.is_some_and(|at| MonotonicClock.now() < at) {}
            }
            assert_eq!(done.pop_front().expect("not empty").drop_reason, None);
            (0..taken).for_each(|_| drop(next(&mut receiver)));
            assert_eq!(next(&mut receiver).payload(), tcp(false, 950, 0, 0).payload());
            taken < 10 && device.stats().full.get() > before
        });
        assert!(waited, "the qdisc is full, and it had to wait");
    });
}

/// A receiver that could not join its group does not leave the interface promiscuous.
#[test]
fn a_group_that_is_refused_leaves_nothing() {
    const OTHER_KIND: &str = "\
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('v0', 3))
s.setsockopt(263, 18, 1 << 16 | 7)
print('joined', flush=True)
sys.stdin.read()
";
    in_namespace("packet::errors::a_group_that_is_refused_leaves_nothing", &PAIR, || {
        let mut other = Command::new("python3");
        other.args(["-c", OTHER_KIND]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut other) = other.spawn() else {
            eprintln!("SKIPPED: a fanout group that is refused: no python3");
            return;
        };
        let mut line = String::new();
        let said = other.stdout.take().expect("a pipe");
        BufReader::new(said).read_line(&mut line).expect("it is read");
        assert_eq!(line, "joined\n");
        let options = PacketOptions { promiscuous: true, fanout: Some(7), ..OPTIONS };
        let mut socket = PacketSocket::open("v0", options).expect("it is opened");
        for _ in 0..2 {
            let error = socket.receiver().expect_err("the group is of another kind");
            assert!(error.to_string().contains("cannot join the fanout group 7"), "{error}");
            let show = Command::new("ip").args(["-d", "link", "show", "v0"]).output();
            let text = String::from_utf8(show.expect("ip runs").stdout).expect("text");
            assert!(text.contains("promiscuity 0"), "{text}");
        }
        drop(other.stdin.take());
        other.wait().expect("it ends");
    });
}
