//! Tests of a sender: its time slices, when it yields its processor, and how its packets count.

mod cancel;

use onramp_dev::{Null, run_in_child};
use onramp_queue::Credits;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;
use crate::Link;

fn sender() -> (Sender, Flow) {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).build().expect("a link");
    let sender = link.sender();
    let flow = sender.flow(None);
    (sender, flow)
}

/// Sends one packet as if the sender's time slice (the 300 µs for which it sends before it yields
/// its processor) had begun `sent_for_ns` nanoseconds ago. Returns the times before and after the
/// send.
fn send_after(sender: &mut Sender, flow: &Flow, sent_for_ns: u64) -> [Instant; 2] {
    let before = sender.shared().clock.now();
    sender.slice_start = Instant(before.0 - sent_for_ns);
    sender.try_send(flow, b"x").expect("there is room");
    [before, sender.shared().clock.now()]
}

#[test]
fn a_slice_is_three_hundred_microseconds() {
    let (mut sender, flow) = sender();
    for _ in 0..3 {
        send_after(&mut sender, &flow, 300_001);
        assert!(sender.slice_over, "longer than a slice");
    }
    // The time slice of 300 µs has 50 µs left, so it must not be over after the send. The clock
    // advances during the send, so try again if the send itself took longer than 50 µs.
    loop {
        let [before, after] = send_after(&mut sender, &flow, 250_000);
        if after.since(before) <= 50_000 {
            assert!(!sender.slice_over, "no longer than a slice");
            break;
        }
    }
    // If a time slice of a sender begins in the future, it must not count as over.
    sender.slice_start = Instant::MAX;
    sender.slice_over = true;
    sender.try_send(&flow, b"x").expect("there is room");
    assert!(!sender.slice_over);
}

#[test]
fn a_slice_begins_when_the_sender_has_given_way() {
    let (mut sender, _flow) = sender();
    let clock = sender.shared().clock;
    sender.slice_start = Instant(7);
    assert_eq!(sender.give_way(), Duration::ZERO);
    assert_eq!(sender.slice_start, Instant(7), "the slice is not over");
    sender.slice_over = true;
    let before = clock.now();
    let gave = sender.give_way();
    assert!((before..=clock.now()).contains(&sender.slice_start));
    assert!(!sender.slice_over);
    assert_eq!(gave, Duration::ZERO, "the only sender yields to nobody");
    assert_eq!(sender.give_way(), Duration::ZERO);
}

/// Among more senders than processors, a sender yields, and says for how long.
#[test]
fn a_sender_among_many_gives_way() {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).build().expect("a link");
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut senders: Vec<_> = (0..=processors).map(|_| link.sender()).collect();
    let sender = &mut senders[0];
    let clock = sender.shared().clock;
    sender.slice_over = true;
    let before = clock.now();
    let gave = sender.give_way();
    let after = clock.now();
    assert!(!gave.is_zero() && before + gave <= after, "no longer than the call took");
    assert!((before..=after).contains(&sender.slice_start) && !sender.slice_over);
}

/// The sending calls that may block yield the processor when the sender's time slice (300 µs) is
/// over; `try_send` and `try_send_batch` do not.
#[test]
fn a_send_gives_way() {
    let (mut sender, flow) = sender();
    let long_ago = |sender: &mut Sender| {
        sender.slice_start = Instant(0);
        sender.slice_over = true;
    };
    long_ago(&mut sender);
    sender.try_send(&flow, b"x").expect("there is room");
    sender.try_send_batch(&flow, ["x"; 3]).expect("there is room");
    assert_eq!((sender.slice_start, sender.slice_over), (Instant(0), true));
    sender.send(&flow, b"x").expect("there is room");
    assert!(sender.slice_start > Instant(0) && !sender.slice_over);
    long_ago(&mut sender);
    sender.send_batch(&flow, &["x"; 3]).expect("there is room");
    assert!(sender.slice_start > Instant(0) && !sender.slice_over);
}

/// A waiting sender that sends packets of other senders yields its processor when its own time
/// slice (300 µs) is over, and not before.
#[test]
fn a_wait_that_helps_gives_way() {
    let device = Box::new(Null::default()) as Box<_>;
    let credits = Credits { packets: 1_000, bytes: 1 << 20 };
    let builder =
        Link::devices([device]).qdisc("fq flow_limit 1000 horizon 4000s").credits(credits);
    let link = builder.build().expect("a link");
    let (mut waits, mut busy) = (link.sender(), link.sender());
    let (flow, other) = (waits.flow(None), busy.flow(None));
    // The sender waits for a packet of its own that stays in the qdisc for an hour.
    let mut packet = waits.packet(&flow, b"later").expect("there is room");
    packet.txtime_ns = link.now().after(3_600_000_000_000).0;
    waits.submit(&flow, packet).expect("there is room");
    for (slice_start, gives_way) in [(Instant(0), true), (Instant::MAX, false)] {
        // If the runner owns the port during the flush by `waits`, this sender can send no packets
        // of `busy`. In that case, try again.
        let helped = (0..1_000).any(|_| {
            busy.cork();
            (0..500).for_each(|_| busy.try_send(&other, b"now").expect("there is room"));
            busy.uncork().expect("there is room");
            let before = link.stats().sent;
            (waits.slice_start, waits.slice_over) = (slice_start, !gives_way);
            assert!(!waits.flush(Duration::ZERO), "the packet stays");
            let gave_way = waits.slice_start != slice_start;
            assert!(gives_way || !gave_way, "its slice is not over");
            let helped = if gives_way { gave_way } else { link.stats().sent > before };
            assert!(busy.flush(Duration::from_secs(50)));
            helped
        });
        assert!(helped);
    }
}

/// The length of a packet that holds several datagrams includes the headers of each datagram, as on
/// the wire, unless the caller has set another length.
#[test]
fn several_datagrams_count_with_all_their_headers() {
    for (gso_size, said, expected) in
        [(0, None, 2_542), (1_000, None, 2_626), (2_500, None, 2_542), (1_000, Some(77), 77)]
    {
        let (mut sender, flow) = sender();
        let mut packet = sender.packet(&flow, &[0; 2_500]).unwrap();
        packet.gso_size = gso_size;
        packet.len = said.unwrap_or(packet.len);
        sender.cork();
        sender.submit(&flow, packet).unwrap();
        let held: u64 = sender.corked.iter().map(PacketList::bytes).sum();
        assert_eq!(held, expected, "{gso_size}");
    }
}

/// A sender's time slice (the time for which it sends before it yields its processor) is over as
/// soon as it has lasted one nanosecond longer than 300 µs.
#[test]
fn a_slice_ends_to_the_nanosecond() {
    let start = Instant(1_000_000);
    for (ns, over) in [(0, false), (299_999, false), (300_000, false), (300_001, true)] {
        assert_eq!(is_over(start, start.after(ns)), over, "{ns} ns");
    }
    assert!(!is_over(start, Instant(0)), "one that begins in the future is not over");
    assert_eq!(Sender::SLICE, Duration::from_micros(300));
}

/// A new packet has none of the metadata (mark, priority, cookie and so on) of the earlier packet
/// that used the same memory.
#[test]
fn a_packet_has_nothing_of_an_earlier_one() {
    let (mut sender, flow) = sender();
    let plain = flow.clone();
    let mut loud = flow.with_mark(7).with_priority(8).with_ecn(2);
    loud.set_pacing_rate(onramp_core::Rate::bytes_per_second(9_000_000_000));
    for round in 0..200 {
        let mut packet = sender.packet(&loud, b"first").expect("there is room");
        let meta = (packet.mark, packet.priority, packet.ecn, packet.pacing_rate);
        assert_eq!(meta, (7, 8, 2, 9_000_000_000));
        (packet.txtime_ns, packet.cookie, packet.gso_size) = (1, 2, 3);
        sender.submit(&loud, packet).expect("there is room");
        assert!(sender.flush(Duration::from_secs(50)), "{round}");
        let packet = sender.packet(&plain, b"second").expect("there is room");
        let meta = (packet.mark, packet.priority, packet.ecn, packet.pacing_rate);
        assert_eq!(meta, (0, 0, 0, 0), "{round}");
        assert_eq!((packet.txtime_ns, packet.cookie, packet.gso_size), (0, 0, 0), "{round}");
        assert_eq!((packet.payload(), packet.flow), (&b"second"[..], plain.key()));
        drop(packet);
    }
    assert_eq!(sender.memory_repeated(), 0, "nobody else was at its memory");
}

/// The length of a packet includes the headers of UDP (8 bytes), IPv4 or IPv6 (20 or 40 bytes) and
/// Ethernet (14 bytes).
#[test]
fn a_packet_counts_with_the_headers_of_its_destination() {
    let (mut sender, connected) = sender();
    for (dest, headers) in [(None, 42), (Some("192.0.2.1:9"), 42), (Some("[2001:db8::1]:9"), 62)] {
        let dest: Option<SocketAddr> = dest.map(|dest| dest.parse().expect("an address"));
        let flow = sender.flow(dest);
        let packet = sender.packet(&flow, &[0; 100]).expect("there is room");
        assert_eq!(packet.len, 100 + headers, "{dest:?}");
    }
    assert_eq!(sender.packet(&connected, &[]).expect("there is room").len, 42);
}

/// A sender can wait for room on a flow that is mapped by processor before it has sent any packet.
#[test]
fn a_sender_that_never_sent_has_room() {
    let (mut sender, _) = sender();
    let flow = sender.flow_with(None, Mapping::Cpu);
    assert!(sender.wait_room_timeout(&flow, 10, Duration::from_secs(50)));
    assert_eq!(sender.try_send(&flow, b"x"), Ok(()));
}

/// The process forks while a thread that waits for its packets calls a device. In the child, which
/// has no other threads, the wait ends, though no packet comes home.
#[test]
fn a_wait_ends_in_a_forked_child() {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).qdisc("netem delay 200s");
    let link = link.build().expect("a link");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.send(&flow, b"x").expect("there is room");
    // The child goes on as if the fork had come in the middle of the wait.
    let wait = || i32::from(sender.wait_returned(0, 1, Instant::MAX));
    let child = run_in_child(wait).expect("there can be a child");
    let child = Pid::from_raw(child).expect("it has a number");
    for _ in 0..12_000 {
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).expect("a child") {
            assert_eq!(status.exit_status(), Some(0), "the packet did not come");
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    kill_process(child, Signal::KILL).expect("it still runs");
    let _ = waitpid(Some(child), WaitOptions::empty());
    panic!("the child waits for ever");
}
