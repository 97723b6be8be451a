//! The properties of a packet, and how its payload is split into datagrams.

use std::num::NonZero;

use onramp_queue::{
    Completion, Credits, DropReason, Layer, PAYLOAD_MAX, Packet, PacketList, Pool, prefetch,
    prefetch_write,
};

#[test]
fn a_new_packet_says_nothing() {
    let pkt = Packet::new(60);
    assert_eq!((pkt.len, pkt.capacity(), pkt.payload()), (60, 0, &b""[..]));
    assert_eq!((pkt.queue(), pkt.chosen_queue(), pkt.layer()), (0, None, Layer::Datagram));
    assert_eq!((pkt.dest(), pkt.drop_reason, pkt.gso_size), (None, None, 0));
}

#[test]
fn queue_layer_and_source_are_what_was_said_last() {
    let mut pkt = Packet::with_payload(b"abc");
    for queue in [7, u16::MAX, 1, 0] {
        pkt.set_queue(queue);
        assert_eq!((pkt.queue(), pkt.chosen_queue()), (queue, Some(queue)));
        assert_eq!(pkt.duplicate().chosen_queue(), Some(queue));
    }
    for layer in [Layer::Ip, Layer::Ethernet, Layer::Datagram] {
        pkt.set_layer(layer);
        assert_eq!((pkt.layer(), pkt.duplicate().layer()), (layer, layer));
    }
    assert_eq!(Packet::new(1).duplicate().chosen_queue(), None);
    for (mut pkt, queue) in [(pkt, Some(0)), (Packet::new(1), None)] {
        for number in [0, 1, 0x7fff, 0] {
            pkt.set_source(NonZero::new(number));
            assert_eq!((pkt.source(), pkt.chosen_queue()), (NonZero::new(number), queue));
            assert_eq!(pkt.duplicate().source(), pkt.source());
        }
    }
}

#[test]
#[should_panic(expected = "sources have the numbers 1 to 32767")]
fn a_source_beyond_the_last_is_refused() {
    Packet::new(1).set_source(NonZero::new(0x8000));
}

/// When a pool hands out a packet again, the packet has lost all properties that it had before,
/// also those that its `Debug` output does not show.
#[test]
fn a_packet_taken_again_has_no_queue_layer_and_source() {
    let mut pool = Pool::new(Credits { packets: 1, bytes: 100 });
    let mut pkt = pool.take(16).expect("a credit");
    let address = pkt.payload().as_ptr();
    pkt.set_queue(9);
    pkt.set_layer(Layer::Ip);
    pkt.set_source(NonZero::new(3));
    pool.take_back(pkt);
    let again = pool.take(16).expect("it is back");
    assert_eq!(again.payload().as_ptr(), address, "the same memory");
    assert_eq!((again.chosen_queue(), again.layer()), (None, Layer::Datagram));
    assert_eq!(again.source(), None);
}

fn sizes(len: usize, gso_size: u16) -> Vec<usize> {
    let payload: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
    let mut pkt = Packet::with_payload(&payload);
    pkt.gso_size = gso_size;
    assert_eq!(pkt.datagrams().collect::<Vec<_>>().concat(), payload, "nothing is left out");
    pkt.datagrams().map(<[u8]>::len).collect()
}

#[test]
fn a_payload_is_cut_at_the_size_of_its_datagrams() {
    assert_eq!(sizes(250, 0), [250], "one, of any length");
    assert_eq!(sizes(250, 100), [100, 100, 50]);
    assert_eq!(sizes(200, 100), [100, 100]);
    assert_eq!(sizes(201, 100), [100, 100, 1]);
    assert_eq!(sizes(100, 100), [100]);
    assert_eq!(sizes(99, 100), [99]);
    assert_eq!(sizes(3, 1), [1, 1, 1]);
    assert_eq!(sizes(PAYLOAD_MAX, u16::MAX), [PAYLOAD_MAX]);
    // A packet with an empty payload is still one datagram.
    assert_eq!((sizes(0, 0), sizes(0, 100), sizes(1, 0)), (vec![0], vec![0], vec![1]));
}

#[test]
fn payloads_up_to_the_limit_fit() {
    let pkt = Packet::with_payload(&vec![7; PAYLOAD_MAX]);
    assert_eq!((pkt.len, pkt.capacity(), pkt.payload().len()), (65_535, 65_535, 65_535));
}

#[test]
#[should_panic(expected = "at most 65535 bytes")]
fn a_payload_beyond_the_limit() {
    let _ = Packet::with_payload(&vec![7; PAYLOAD_MAX + 1]);
}

#[test]
fn a_stamp_is_set_and_taken_back() {
    let mut pool = Pool::new(Credits { packets: 2, bytes: 100 });
    let mut list: PacketList = std::iter::from_fn(|| pool.take(8)).collect();
    list.stamp(70, true);
    let seen = |list: &PacketList| -> Vec<_> {
        list.metas().map(|meta| (meta.enqueued_ns, meta.drop_reason)).collect()
    };
    assert_eq!(seen(&list), [(70, Some(DropReason::PortDead)); 2]);
    let mut one: PacketList = list.pop_front().into_iter().collect();
    one.stamp(80, false);
    assert_eq!(seen(&one), [(80, None)]);
    drop((one, list));
    let mut told = Vec::new();
    assert_eq!(pool.reclaim(|fate| told.push(fate)), 2);
    let dead = Completion {
        flow: 0,
        cookie: 0,
        drop_reason: Some(DropReason::PortDead),
        len: 0,
        payload: 8,
        pushed_ns: 70,
        left_ns: None,
    };
    assert_eq!(told, [dead], "one of them was not submitted");
}

/// Prefetching packets does not change them.
#[test]
fn a_prefetch_changes_nothing() {
    let mut list = PacketList::new();
    list.prefetch_front();
    list.prefetch_back();
    for len in [0, 1, 63, 64, 65, 256, 257, 1_500] {
        let pkt = Packet::with_payload(&vec![9; len]);
        pkt.prefetch();
        prefetch(&*pkt);
        prefetch_write(&*pkt);
        list.push_back(pkt);
        list.prefetch_front();
        list.prefetch_back();
    }
    assert_eq!((list.len(), list.bytes()), (8, 2_206));
    assert!(list.all(|pkt| pkt.payload().iter().all(|byte| *byte == 9)));
}
