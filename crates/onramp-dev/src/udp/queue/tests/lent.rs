//! Packets whose payload lies elsewhere.

use libc::{EAGAIN, ECONNREFUSED};

use super::Answer::{Fail, Take};
use super::*;

/// Makes a packet without a payload, of datagrams of `gso_size` bytes (0: one datagram).
fn bare(gso_size: u16) -> Packet {
    let mut pkt = Packet::new(9_000);
    (pkt.gso_size, pkt.ecn) = (gso_size, 2);
    pkt.set_dest(Some("192.0.2.7:77".parse().expect("an address")));
    pkt
}

#[test]
fn it_leaves_as_if_the_payload_was_in_the_packet() {
    for (len, gso_size) in
        [(0, 0), (1, 0), (9_000, 0), (65_507, 0), (9_000, 1_000), (8_999, 4_500), (64_000, 1_000)]
    {
        let (mut lent, mut copied) = (queue([]), queue([]));
        let (pkt, payload) = (bare(gso_size), payload(3, len));
        assert!(lent.transmit_lent(&pkt, &payload, NOW), "{len} {gso_size}");
        let mut burst = PacketList::from_iter([pkt.duplicate_with(&payload)]);
        let _ = transmit(&mut copied, &mut burst);
        assert_eq!(lent.wire.taken, copied.wire.taken, "{len} {gso_size}");
        let counts = |stats: &UdpStats| {
            let few = &stats.segments_per_message;
            let all = [&stats.messages, &stats.segments, &stats.bytes, &stats.calls];
            all.into_iter()
                .chain([&stats.gso_messages])
                .chain(few)
                .map(|count| count.get())
                .collect()
        };
        let (lent, copied): (Vec<_>, Vec<_>) = (counts(&lent.stats), counts(&copied.stats));
        assert_eq!(lent, copied, "{len} {gso_size}");
    }
}

#[test]
fn its_source_is_that_of_the_packet() {
    let mut queue = queue([]);
    let mut pkt = bare(0);
    let addr = "192.0.2.1".parse().expect("an address");
    pkt.set_source(Some(crate::udp::Source::new(addr, 0).expect("a number").number()));
    assert!(queue.transmit_lent(&pkt, b"hello", NOW));
    assert!(queue.wire.taken[0].from.is_some());
}

#[test]
fn what_needs_several_messages_is_left_to_transmit() {
    for (len, gso_size) in [(65_508, 0), (65_508, 65_507), (65_000, 1_000), (65, 1)] {
        let mut queue = queue([]);
        assert!(!queue.transmit_lent(&bare(gso_size), &payload(0, len), NOW), "{len} {gso_size}");
        assert_eq!((queue.wire.taken.len(), queue.stats.calls.get()), (0, 0));
    }
    let mut queue = queue([]);
    queue.builder.segments_max = 1;
    assert!(!queue.transmit_lent(&bare(100), &payload(0, 200), NOW), "the kernel cannot segment");
}

/// The kernel refuses the message. The queue keeps nothing of it; `transmit` finds out why.
#[test]
fn a_refusal_leaves_nothing_behind() {
    for (answers, calls) in [
        (vec![Fail(EAGAIN)], 1),
        (vec![Fail(ECONNREFUSED), Fail(ECONNREFUSED)], 2),
        (vec![Take(0)], 1),
    ] {
        let mut queue = queue(answers);
        assert!(!queue.transmit_lent(&bare(0), &payload(0, 5_000), NOW));
        assert_eq!((queue.wire.taken.len(), queue.stats.messages.get()), (0, 0));
        assert_eq!((queue.stats.calls.get(), queue.stats.earlier_errors.get()), (calls, 0));
        let (done, _) = transmit(&mut queue, &mut run(&[700, 700, 300]));
        assert_eq!(done.len(), 3);
        assert_eq!(queue.wire.datagrams(), [payload(0, 700), payload(1, 700), payload(2, 300)]);
    }
}

/// The first call reports the error of an earlier packet. The message is offered again, and sent.
#[test]
fn an_earlier_error_is_counted() {
    let mut queue = queue([Fail(ECONNREFUSED)]);
    assert!(queue.transmit_lent(&bare(0), &payload(0, 5_000), NOW));
    assert_eq!((queue.stats.calls.get(), queue.stats.earlier_errors.get()), (2, 1));
    assert_eq!(queue.wire.datagrams(), [payload(0, 5_000)]);
}

/// A wire that panics leaves no message whose payload may be gone.
#[test]
fn a_panic_leaves_nothing_behind() {
    let mut queue = queue([]);
    queue.wire.refuse = Some((|_| panic!("a bad wire"), EAGAIN));
    let lends =
        std::panic::AssertUnwindSafe(|| queue.transmit_lent(&bare(0), &payload(0, 5_000), NOW));
    assert!(std::panic::catch_unwind(lends).is_err());
    assert!(queue.messages.pending().is_empty());
}
