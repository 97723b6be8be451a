//! The queue against a kernel that follows a script.

use std::collections::VecDeque;
use std::net::SocketAddr;

use libc::{EAGAIN, ECONNREFUSED, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS};
use onramp_queue::Packet;
use proptest::prelude::*;

use super::super::build::MESSAGE_MAX;
use super::super::route::Route;
use super::*;
use crate::sys::View;

/// What a call is answered; without an answer it takes everything.
#[derive(Clone, Debug)]
enum Answer {
    Take(usize),
    Fail(c_int),
}
use Answer::{Fail, Take};

type Refuses = fn(&View) -> bool;

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// What was taken.
    taken: Vec<View>,
    /// Errors for messages of this kind, whatever the answers are.
    refuse: Option<(Refuses, c_int)>,
}

impl Wire for Script {
    fn send(&mut self, messages: &mut Messages) -> Result<usize, c_int> {
        let views = messages.views();
        assert!(!views.is_empty(), "a call has messages");
        let mut count = match self.answers.pop_front() {
            Some(Fail(errno)) => return Err(errno),
            Some(Take(count)) => count.min(views.len()),
            None => views.len(),
        };
        if let Some((refuses, errno)) = self.refuse
            && let Some(at) = views[..count].iter().position(refuses)
        {
            if at == 0 {
                return Err(errno);
            }
            count = at;
        }
        self.taken.extend_from_slice(&views[..count]);
        Ok(count)
    }
}

impl Script {
    fn datagrams(&self) -> Vec<Vec<u8>> {
        self.taken.iter().flat_map(View::datagrams).collect()
    }
}

const NOW: Instant = Instant(1_000_000);

fn queue(answers: impl IntoIterator<Item = Answer>) -> Queue<Script> {
    queue_on("127.0.0.1:0", |_| {}, answers)
}

fn queue_on(
    addr: &str,
    set_up: impl FnOnce(&UdpSocket),
    answers: impl IntoIterator<Item = Answer>,
) -> Queue<Script> {
    let socket = UdpSocket::bind(addr).expect("the loopback is up");
    set_up(&socket);
    let route = Route::of(&socket).expect("a fresh socket has options");
    let builder = Builder { route, txtime: false, segments_max: 64 };
    let script = Script { answers: answers.into_iter().collect(), ..Script::default() };
    Queue::new(script, builder, Arc::default())
}

/// Packets of one flow with these lengths; the first byte of each says which it is.
fn run(lens: &[usize]) -> PacketList {
    let packet = |(number, &len): (usize, &usize)| {
        let mut pkt = Packet::with_payload(&payload(number, len));
        pkt.cookie = number as u64;
        pkt
    };
    lens.iter().enumerate().map(packet).collect()
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    let mut payload = vec![0; len];
    for (at, chunk) in payload.chunks_mut(4).enumerate() {
        let word = (at * 4_096 + number).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    payload
}

type Fates = Vec<(u64, Option<DropReason>)>;

/// One call: what is done with, and what the device says. The rest is left in `burst`.
fn transmit(queue: &mut Queue<Script>, burst: &mut PacketList) -> (Fates, Transmitted) {
    let before: Vec<_> = cookies(burst);
    let mut done = PacketList::new();
    let out = queue.transmit(burst, &mut done, NOW);
    let done: Fates = done.map(|pkt| (pkt.cookie, pkt.drop_reason)).collect();
    let after = done.iter().map(|&(cookie, _)| cookie).chain(cookies(burst));
    assert!(after.eq(before), "every packet once, in order");
    assert_eq!(out.retry_at.is_some(), !burst.is_empty());
    (done, out)
}

/// The cookies of `list`, in order.
fn cookies(list: &mut PacketList) -> Vec<u64> {
    let packets: Vec<_> = list.by_ref().collect();
    let cookies = packets.iter().map(|pkt| pkt.cookie).collect();
    list.extend(packets);
    cookies
}

fn reasons(fates: &Fates) -> Vec<Option<DropReason>> {
    fates.iter().map(|&(_, reason)| reason).collect()
}

fn wait_us(out: &Transmitted) -> Option<u64> {
    out.retry_at.map(|at| at.since(NOW) / 1_000)
}

#[test]
fn a_full_socket_keeps_the_rest_and_is_asked_ever_less_often() {
    let mut queue = queue([Take(1), Fail(EAGAIN)].into_iter().chain(vec![Fail(EAGAIN); 6]));
    let mut burst = run(&[10, 20, 30]);
    let (done, out) = transmit(&mut queue, &mut burst);
    assert_eq!((done, wait_us(&out)), (vec![(0, None)], Some(50)));
    let waits: Vec<_> = (0..6).map(|_| wait_us(&transmit(&mut queue, &mut burst).1)).collect();
    assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000].map(Some));
    assert_eq!(queue.stats.eagain.get(), 7);
    let (done, out) = transmit(&mut queue, &mut burst);
    assert_eq!((done, out.retry_at), (vec![(1, None), (2, None)], None));
    queue.wire.answers = [Fail(EAGAIN)].into();
    assert_eq!(wait_us(&transmit(&mut queue, &mut run(&[1])).1), Some(50), "from the start");
}

#[test]
fn a_call_that_takes_nothing_and_says_nothing_is_a_full_socket() {
    let mut queue = queue([Take(0)]);
    let mut burst = run(&[10]);
    let (_, out) = transmit(&mut queue, &mut burst);
    assert_eq!((wait_us(&out), out.calls), (Some(50), 1));
}

#[test]
fn want_of_memory_is_waited_for_eight_times() {
    let mut queue = queue(vec![Fail(ENOBUFS); 8]);
    let mut burst = run(&[10, 20]);
    for wait in [50, 100, 200, 400, 800, 1_000, 1_000] {
        let (done, out) = transmit(&mut queue, &mut burst);
        assert_eq!((done, wait_us(&out)), (vec![], Some(wait)));
    }
    let (done, _) = transmit(&mut queue, &mut burst);
    assert_eq!(done, [(0, Some(DropReason::NoBuffers)), (1, None)]);
    assert_eq!(queue.stats.enobufs.get(), 8);
}

#[test]
fn every_packet_has_its_own_eight_times() {
    let mut queue = queue(vec![Fail(libc::ENOMEM); 8 * 2 + 3]);
    let mut burst = run(&[10, 20, 30]);
    let mut fates = Fates::new();
    let mut calls = 0;
    while !burst.is_empty() {
        let (done, out) = transmit(&mut queue, &mut burst);
        fates.extend(done);
        calls += out.calls;
    }
    let dropped = Some(DropReason::NoBuffers);
    assert_eq!(reasons(&fates), [dropped, dropped, None]);
    assert_eq!(calls, 8 * 2 + 3 + 1);
}

#[test]
fn memory_for_single_datagrams_may_be_there() {
    let mut queue = queue([Fail(ENOBUFS)]);
    let (done, out) = transmit(&mut queue, &mut run(&[100; 10]));
    assert_eq!(reasons(&done), vec![None; 10]);
    assert_eq!((out.calls, out.messages), (2, 10));
    assert_eq!(queue.stats.gso_off.get(), 0);
}

#[test]
fn signals_delay_but_not_for_ever() {
    let mut queue = queue(vec![Fail(EINTR); 16]);
    let (done, out) = transmit(&mut queue, &mut run(&[10]));
    assert_eq!((done, out.calls), (vec![(0, None)], 17));
    queue.wire.answers = vec![Fail(EINTR); 17].into();
    let (done, out) = transmit(&mut queue, &mut run(&[10]));
    assert_eq!((done, wait_us(&out)), (vec![], Some(50)));
}

#[test]
fn the_error_of_an_earlier_packet_is_not_held_against_the_next() {
    for errno in [ECONNREFUSED, EMSGSIZE, libc::EHOSTUNREACH, libc::ENOPROTOOPT] {
        let mut queue = queue([Fail(errno)]);
        let (done, out) = transmit(&mut queue, &mut run(&[10, 20]));
        assert_eq!((reasons(&done), out.calls), (vec![None, None], 2));
        assert_eq!(queue.stats.earlier_errors.get(), 1);
    }
}

#[test]
fn an_error_twice_is_the_packets_own() {
    let reasons_of = [
        (EMSGSIZE, DropReason::MessageSize),
        (ECONNREFUSED, DropReason::Refused),
        (libc::ENETUNREACH, DropReason::Unreachable),
        (libc::EHOSTUNREACH, DropReason::Unreachable),
        (libc::ENETDOWN, DropReason::Unreachable),
        (libc::EHOSTDOWN, DropReason::Unreachable),
        (libc::ENONET, DropReason::Unreachable),
        (libc::EADDRNOTAVAIL, DropReason::Unreachable),
        (libc::EPERM, DropReason::NoPermission),
        (libc::EACCES, DropReason::NoPermission),
        (EINVAL, DropReason::DeviceError),
        (libc::EAFNOSUPPORT, DropReason::DeviceError),
        (libc::EPIPE, DropReason::DeviceError),
        (EIO, DropReason::DeviceError),
    ];
    for (errno, reason) in reasons_of {
        let mut queue = queue([Take(1), Fail(errno), Fail(errno)]);
        let (done, out) = transmit(&mut queue, &mut run(&[10, 20, 30]));
        assert_eq!(reasons(&done), [None, Some(reason), None], "errno {errno}");
        assert_eq!((out.calls, out.messages), (4, 2));
        assert_eq!(queue.stats.earlier_errors.get(), 0);
        assert_eq!(queue.wire.datagrams(), [payload(0, 10), payload(2, 30)]);
    }
}

#[test]
fn the_second_error_decides() {
    let mut queue = queue([Fail(ECONNREFUSED), Fail(EMSGSIZE)]);
    let (done, _) = transmit(&mut queue, &mut run(&[10]));
    assert_eq!(reasons(&done), [Some(DropReason::MessageSize)]);
}

#[test]
fn the_fate_of_a_message_is_that_of_its_packets() {
    let mut queue = queue([Fail(libc::EPERM), Fail(libc::EPERM)]);
    let (done, _) = transmit(&mut queue, &mut run(&[100, 100, 100, 7, 50]));
    let dropped = Some(DropReason::NoPermission);
    assert_eq!(reasons(&done), [dropped, dropped, dropped, dropped, None]);
}

#[test]
fn the_datagrams_of_a_message_too_large_are_judged_one_by_one() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.payload.len() > 1_000, EMSGSIZE));
    let (done, _) = transmit(&mut queue, &mut run(&[1_200, 1_200, 900, 10, 10]));
    let dropped = Some(DropReason::MessageSize);
    assert_eq!(reasons(&done), [dropped, dropped, None, None, None]);
    assert_eq!(queue.wire.datagrams(), [payload(2, 900), payload(3, 10), payload(4, 10)]);
    let stats = &queue.stats;
    assert_eq!((stats.gso_fallbacks.get(), stats.gso_off.get()), (1, 0));
    assert_eq!((stats.gso_messages.get(), stats.segments.get()), (1, 3));
}

#[test]
fn segmentation_that_never_works_is_given_up() {
    for errno in [EINVAL, EIO] {
        let mut queue = queue([]);
        queue.wire.refuse = Some((|view| view.segment.is_some(), errno));
        for round in 1..=STRIKES_MAX + 2 {
            let (done, _) = transmit(&mut queue, &mut run(&[100; 5]));
            assert_eq!(reasons(&done), vec![None; 5]);
            assert_eq!(queue.stats.gso_off.get(), u64::from(round >= STRIKES_MAX));
        }
        assert_eq!(queue.stats.gso_fallbacks.get(), STRIKES_MAX.into());
        assert_eq!(queue.builder().segments_max, 1);
    }
}

#[test]
fn segmentation_that_works_at_times_is_kept() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|view| view.segment == Some(2_000), EINVAL));
    for _ in 0..STRIKES_MAX * 2 {
        transmit(&mut queue, &mut run(&[2_000; 3]));
        transmit(&mut queue, &mut run(&[100; 3]));
    }
    assert_eq!(queue.stats.gso_off.get(), 0);
}

#[test]
fn segmentation_is_not_blamed_for_a_bad_destination() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|_| true, EINVAL));
    for _ in 0..STRIKES_MAX * 2 {
        let (done, _) = transmit(&mut queue, &mut run(&[100; 3]));
        assert_eq!(reasons(&done), [Some(DropReason::DeviceError); 3]);
    }
    assert_eq!(queue.stats.gso_off.get(), 0);
}

/// One packet of `len` bytes that is datagrams of `gso_size`.
fn super_packet(len: usize, gso_size: u16) -> PacketList {
    let mut pkt = Packet::with_payload(&payload(0, len));
    pkt.gso_size = gso_size;
    [pkt].into_iter().collect()
}

fn chunks(len: usize, gso_size: usize) -> Vec<Vec<u8>> {
    payload(0, len).chunks(gso_size).map(<[u8]>::to_vec).collect()
}

#[test]
fn a_super_packet_is_one_message() {
    let mut queue = queue([]);
    let (done, out) = transmit(&mut queue, &mut super_packet(10_100, 1_000));
    assert_eq!((done, out.messages), (vec![(0, None)], 1));
    assert_eq!(queue.wire.taken[0].segment, Some(1_000));
    assert_eq!(queue.stats.segments.get(), 11);
}

#[test]
fn a_super_packet_beyond_the_limits_is_several() {
    // 64 segments a message, and 65,507 bytes.
    for (len, size, messages) in [(65_000, 500, 3), (65_535, 1_000, 2), (65_508, 65_000, 2)] {
        let mut queue = queue([]);
        let (done, out) = transmit(&mut queue, &mut super_packet(len, size));
        assert_eq!((done, out.messages), (vec![(0, None)], messages));
        assert_eq!(queue.wire.datagrams(), chunks(len, size.into()));
        assert!(queue.wire.taken.iter().all(|view| view.payload.len() <= MESSAGE_MAX));
    }
}

#[test]
fn a_super_packet_that_is_one_datagram_joins_its_neighbours() {
    let mut queue = queue([]);
    let mut burst = run(&[100; 3]);
    let mut list = super_packet(100, 100);
    list.append(&mut burst);
    let mut done = PacketList::new();
    let out = queue.transmit(&mut list, &mut done, NOW);
    assert_eq!((out.messages, done.len()), (1, 4));
}

#[test]
fn without_segmentation_a_super_packet_is_cut_here() {
    // More messages than fit a call, and more than fit the tables.
    for (len, size) in [(10_001, 1_000), (65_535, 100), (2_000, 1)] {
        let mut queue = queue([]);
        queue.builder.segments_max = 1;
        let (done, out) = transmit(&mut queue, &mut super_packet(len, size));
        assert_eq!(done, [(0, None)]);
        assert_eq!(out.messages as usize, len.div_ceil(size.into()));
        assert_eq!(queue.wire.datagrams(), chunks(len, size.into()));
    }
}

#[test]
fn a_super_packet_sent_in_part_goes_on_where_it_stopped() {
    let mut queue = queue([Take(3), Fail(EAGAIN), Take(2), Fail(EAGAIN), Fail(EAGAIN)]);
    queue.builder.segments_max = 1;
    let mut burst = super_packet(1_050, 100);
    let len = burst.bytes();
    for _ in 0..3 {
        let (done, out) = transmit(&mut queue, &mut burst);
        assert_eq!((done, out.retry_at.is_some()), (vec![], true));
        assert_eq!(burst.bytes(), len, "its length on the wire stays what was accounted for");
    }
    assert_eq!(transmit(&mut queue, &mut burst).0, [(0, None)]);
    assert_eq!(queue.wire.datagrams(), chunks(1_050, 100), "none twice, none missing");
}

#[test]
fn a_super_packet_that_fails_in_part_is_dropped() {
    let mut queue = queue([Take(3), Fail(libc::ENETDOWN), Fail(libc::ENETDOWN)]);
    queue.builder.segments_max = 1;
    let mut burst = super_packet(1_000, 100);
    burst.append(&mut run(&[10]));
    let mut done = PacketList::new();
    queue.transmit(&mut burst, &mut done, NOW);
    let fates: Vec<_> = done.map(|pkt| pkt.drop_reason).collect();
    assert_eq!(fates, [Some(DropReason::Unreachable), None]);
    let mut expected = chunks(300, 100);
    expected.push(payload(0, 10));
    assert_eq!(queue.wire.datagrams().len(), expected.len());
}

#[test]
fn neighbours_join_only_if_all_is_the_same() {
    let there: SocketAddr = "127.0.0.1:7".parse().expect("an address");
    let alter: [fn(&mut Packet, SocketAddr); 5] = [
        |_, _| {},
        |pkt, _| pkt.flow = 1,
        |pkt, _| pkt.ecn = 2,
        |pkt, there| pkt.set_dest(Some(there)),
        |pkt, _| pkt.gso_size = 50,
    ];
    let messages = alter.map(|alter| {
        let mut queue = queue([]);
        let mut packets: Vec<_> = run(&[100, 100, 100]).collect();
        alter(&mut packets[1], there);
        let mut burst = packets.into_iter().collect();
        transmit(&mut queue, &mut burst).1.messages
    });
    assert_eq!(messages, [1, 3, 3, 3, 3]);
}

#[test]
fn sizes_that_cannot_share_a_message_do_not() {
    for (lens, messages) in [
        (&[100, 101, 101][..], 2),
        (&[100, 99, 99], 2),
        (&[0, 0, 0], 3),
        (&[100, 0, 100], 3),
        (&[40_000, 25_507], 1),
        (&[40_000, 25_508], 2),
        (&[32_754, 32_754, 32_754], 3),
        (&[65_507, 1], 2),
        (&[1; 64], 1),
        (&[1; 65], 2),
        (&[1; 2_000], 32),
    ] {
        let mut queue = queue([]);
        let (done, out) = transmit(&mut queue, &mut run(lens));
        assert_eq!(out.messages, messages, "{lens:?}");
        assert!(done.iter().all(|(_, reason)| reason.is_none()));
        let expected: Vec<_> = lens.iter().enumerate().map(|(at, &len)| payload(at, len)).collect();
        assert_eq!(queue.wire.datagrams(), expected);
    }
}

#[test]
fn a_transmit_time_to_come_is_passed_on_and_stands_alone() {
    let mut queue = queue([]);
    let times = [0, NOW.0, NOW.0 + 1, NOW.0 + 1, 0, 0];
    let burst = || -> PacketList {
        let packets = run(&[100; 6]).zip(times);
        let stamp = |(mut pkt, at): (Packet, u64)| {
            pkt.txtime_ns = at;
            pkt
        };
        packets.map(stamp).collect()
    };
    let (_, out) = transmit(&mut queue, &mut burst());
    assert_eq!((out.messages, queue.wire.taken[0].txtime_ns), (1, None), "not asked for");
    queue.wire.taken.clear();
    queue.builder.txtime = true;
    transmit(&mut queue, &mut burst());
    let taken: Vec<_> = queue
        .wire
        .taken
        .iter()
        .map(|view| (view.payload.len(), view.txtime_ns.map(|at| at - NOW.0)))
        .collect();
    assert_eq!(taken, [(200, None), (100, Some(1)), (100, Some(1)), (200, None)]);
}

/// The message for one packet with `ecn` to `dest`.
fn message(queue: &mut Queue<Script>, dest: Option<&str>, ecn: u8) -> View {
    let mut burst = run(&[10]);
    let mut pkt = burst.pop_front().expect("there is one");
    pkt.set_dest(dest.map(|dest| dest.parse().expect("an address")));
    pkt.ecn = ecn;
    burst.push_back(pkt);
    transmit(queue, &mut burst);
    queue.wire.taken.pop().expect("it was taken")
}

#[test]
fn the_peer_needs_no_name() {
    let peer = UdpSocket::bind("127.0.0.1:0").expect("the loopback is up");
    let peer = peer.local_addr().expect("it is bound");
    let connect = |socket: &UdpSocket| socket.connect(peer).expect("the loopback is up");
    let mapped = format!("[::ffff:127.0.0.1]:{}", peer.port());
    let mut queue = queue_on("127.0.0.1:0", connect, []);
    for dest in [None, Some(peer.to_string().as_str()), Some(&mapped)] {
        assert_eq!(message(&mut queue, dest, 0).name, None, "{dest:?}");
    }
    let other = "127.0.0.2:9";
    assert_eq!(message(&mut queue, Some(other), 0).name, other.parse().ok());
}

#[test]
fn names_are_in_the_family_of_the_socket() {
    let mut v4 = queue([]);
    let mut v6 = queue_on("[::]:0", |_| {}, []);
    for (on_v6, dest, name) in [
        (false, "127.0.0.1:9", "127.0.0.1:9"),
        (false, "[::ffff:127.0.0.1]:9", "127.0.0.1:9"),
        // The kernel will refuse it: there is no such way.
        (false, "[::1]:9", "[::1]:9"),
        (true, "127.0.0.1:9", "[::ffff:127.0.0.1]:9"),
        (true, "[fe80::1%3]:9", "[fe80::1%3]:9"),
    ] {
        let queue = if on_v6 { &mut v6 } else { &mut v4 };
        assert_eq!(message(queue, Some(dest), 0).name, name.parse().ok(), "{dest}");
    }
}

#[test]
fn a_code_point_keeps_the_rest_of_the_class() {
    let class = |socket: &UdpSocket| {
        let options = socket2::SockRef::from(socket);
        options.set_tos_v4(0b1011_1000).expect("Linux has it");
        if socket.local_addr().is_ok_and(|addr| addr.is_ipv6()) {
            options.set_tclass_v6(0b0010_1000).expect("Linux has it");
        }
    };
    let mut v4 = queue_on("127.0.0.1:0", class, []);
    let mut v6 = queue_on("[::]:0", class, []);
    for ecn in 1..=3 {
        let view = message(&mut v4, Some("127.0.0.1:9"), ecn);
        assert_eq!((view.class_v4, view.class_v6), (Some(0b1011_1000 | i32::from(ecn)), None));
        let view = message(&mut v6, Some("[::1]:9"), ecn);
        assert_eq!((view.class_v4, view.class_v6), (None, Some(0b0010_1000 | i32::from(ecn))));
        let view = message(&mut v6, Some("127.0.0.1:9"), ecn);
        assert_eq!((view.class_v4, view.class_v6), (Some(0b1011_1000 | i32::from(ecn)), None));
    }
    let view = message(&mut v4, Some("127.0.0.1:9"), 0);
    assert_eq!((view.class_v4, view.class_v6), (None, None));
}

/// A packet of the property test.
#[derive(Clone, Debug)]
struct Given {
    len: usize,
    flow: u64,
    gso_size: u16,
    txtime_ns: u64,
}

fn given() -> impl Strategy<Value = Given> {
    let len = prop_oneof![4 => 1_usize..4, 4 => Just(100_usize), 1 => 1_usize..3_000];
    let gso_size = prop_oneof![6 => Just(0_u16), 1 => 1_u16..40];
    let txtime = prop_oneof![6 => Just(0_u64), 1 => Just(NOW.0 + 9)];
    (len, 0..2_u64, gso_size, txtime).prop_map(|(len, flow, gso_size, txtime_ns)| Given {
        len: len * 4,
        flow,
        gso_size: gso_size * 4,
        txtime_ns,
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    let errors = vec![EAGAIN, EINTR, ENOBUFS, EMSGSIZE, ECONNREFUSED, EINVAL, EIO, libc::EPERM];
    prop_oneof![(0_usize..9).prop_map(Take), prop::sample::select(errors).prop_map(Fail)]
}

proptest! {
    /// Whatever the kernel says: every packet is done with once and in order; one that was not
    /// dropped went out whole, once; of one that was dropped at most a beginning went out.
    #[test]
    fn nothing_is_lost_doubled_or_overtaken(
        given in prop::collection::vec(given(), 1..60),
        answers in prop::collection::vec(answer(), 0..80),
        segments_max in prop::sample::select(vec![1_u16, 2, 64]),
    ) {
        let mut queue = queue(answers);
        (queue.builder.segments_max, queue.builder.txtime) = (segments_max, true);
        let make = |(number, given): (usize, &Given)| {
            let mut pkt = Packet::with_payload(&payload(number, given.len));
            (pkt.flow, pkt.gso_size) = (given.flow, given.gso_size);
            (pkt.cookie, pkt.txtime_ns) = (number as u64, given.txtime_ns);
            pkt
        };
        let mut burst: PacketList = given.iter().enumerate().map(make).collect();
        let mut fates = Fates::new();
        // Each answer ends at most one call; without answers everything is taken.
        for _ in 0..81 {
            fates.extend(transmit(&mut queue, &mut burst).0);
        }
        prop_assert!(burst.is_empty());
        let mut wire = VecDeque::from(queue.wire.datagrams());
        for (given, &(number, reason)) in given.iter().zip(&fates) {
            let whole = payload(usize::try_from(number).expect("small"), given.len);
            let size = if given.gso_size == 0 { usize::MAX } else { given.gso_size.into() };
            // No two datagrams are alike.
            let expected = whole.chunks(size);
            let sent = expected.clone().zip(&wire).take_while(|&(one, other)| one == other).count();
            prop_assert_eq!(sent == expected.len(), reason.is_none(), "packet {}", number);
            wire.drain(..sent);
        }
        prop_assert!(wire.is_empty(), "{wire:?}");
        let stats = &queue.stats;
        let histogram: u64 = stats.segments_per_message.iter().map(|cell| cell.get()).sum();
        prop_assert_eq!(stats.messages.get(), histogram);
        prop_assert_eq!(stats.messages.get(), queue.wire.taken.len() as u64);
        prop_assert_eq!(stats.segments.get(), queue.wire.datagrams().len() as u64);
    }
}
