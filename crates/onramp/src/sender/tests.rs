//! Slices of time.

use onramp_dev::Null;
use onramp_queue::Credits;

use super::*;
use crate::Link;

fn sender() -> (Sender, Flow) {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).build().expect("a link");
    let sender = link.sender();
    let flow = sender.flow(None);
    (sender, flow)
}

/// Sends one packet as if the slice had begun `sent_for_ns` ago. Gives the present before and
/// after.
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
    // The clock goes on meanwhile: only an attempt that took less than the rest counts.
    loop {
        let [before, after] = send_after(&mut sender, &flow, 250_000);
        if after.since(before) <= 50_000 {
            assert!(!sender.slice_over, "no longer than a slice");
            break;
        }
    }
    // A slice that begins in the future is not over.
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
    assert!(before + gave <= clock.now(), "no longer than the call took");
    assert_eq!(sender.give_way(), Duration::ZERO);
}

/// All sends but `try_send` give way by themselves.
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
/// A sender that works for others while it waits gives way, too, once its slice is over.
#[test]
fn a_wait_that_helps_gives_way() {
    let device = Box::new(Null::default()) as Box<_>;
    let credits = Credits { packets: 1_000, bytes: 1 << 20 };
    let builder =
        Link::devices([device]).qdisc("fq flow_limit 1000 horizon 4000s").credits(credits);
    let link = builder.build().expect("a link");
    let (mut waits, mut busy) = (link.sender(), link.sender());
    let (flow, other) = (waits.flow(None), busy.flow(None));
    // It waits for a packet that stays.
    let mut packet = waits.packet(&flow, b"later").expect("there is room");
    packet.txtime_ns = link.now().after(3_600_000_000_000).0;
    waits.submit(&flow, packet).expect("there is room");
    for (slice_start, gives_way) in [(Instant(0), true), (Instant::MAX, false)] {
        // The runner may be at it, just when we look: then once more.
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

/// On the wire, each datagram has headers.
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
