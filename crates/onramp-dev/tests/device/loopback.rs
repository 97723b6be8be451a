//! The in-memory loopback.

use std::time::Duration;

use onramp_core::{Device, Instant};
use onramp_dev::loopback;
use onramp_queue::{DropReason, Packet};

use crate::common::{packet, pattern, transmit, transmit_all};

fn packets(count: usize) -> Vec<Packet> {
    (0..count).map(|seed| packet(None, 3, 20, seed)).collect()
}

#[test]
fn delivers_what_was_sent_in_order() {
    let (mut device, receiver) = loopback(8);
    let dest = "127.0.0.1:9".parse().ok();
    let mut pkt = packet(dest, 5, 30, 0);
    (pkt.ecn, pkt.len) = (2, 72);
    transmit_all(&mut device, vec![pkt, packet(None, 6, 0, 1)]);
    let first = receiver.try_recv().expect("it arrived");
    assert_eq!((first.payload.as_slice(), first.dest), (&pattern(30, 0)[..], dest));
    assert_eq!((first.flow, first.cookie, first.ecn, first.len), (5, 0, 2, 72));
    assert_eq!(first.sent_ns, 1);
    let second = receiver.recv_timeout(Duration::from_secs(10)).expect("it arrived");
    assert_eq!((second.flow, second.cookie, second.payload.len()), (6, 1, 0));
    assert_eq!(receiver.try_recv(), None);
    assert_eq!(receiver.recv_timeout(Duration::ZERO), None);
}

#[test]
fn a_full_queue_is_asked_again_later() {
    let (mut device, receiver) = loopback(4);
    let mut outcome = transmit(&mut device, packets(10), Instant(1_000));
    assert_eq!((outcome.done.len(), outcome.out.messages), (4, 4));
    assert_eq!(outcome.out.retry_at, Some(Instant(51_000)));
    for cookie in 0..3 {
        assert_eq!(receiver.try_recv().map(|got| got.cookie), Some(cookie));
    }
    let out = device.transmit(&mut outcome.left, &mut Default::default(), Instant(51_000));
    assert_eq!((out.messages, outcome.left.len()), (3, 3));
    assert_eq!(out.retry_at, Some(Instant(101_000)));
    let rest = std::iter::from_fn(|| receiver.try_recv()).map(|got| got.cookie);
    assert!(rest.eq(3..7));
}

#[test]
fn without_a_receiver_packets_are_refused() {
    let (mut device, receiver) = loopback(4);
    drop(receiver);
    let outcome = transmit(&mut device, packets(10), Instant(1));
    let refused = |&(_, reason): &(u64, _)| reason == Some(DropReason::Refused);
    assert!(outcome.done.len() == 10 && outcome.done.iter().all(refused));
    assert_eq!(outcome.out.messages, 0);
}

#[test]
fn a_super_packet_arrives_whole_and_knows_its_datagrams() {
    let (mut device, receiver) = loopback(4);
    let mut pkt = packet(None, 1, 250, 0);
    pkt.gso_size = 100;
    transmit_all(&mut device, vec![pkt, packet(None, 1, 0, 0)]);
    let whole = receiver.try_recv().expect("it arrived");
    let sizes: Vec<_> = whole.datagrams().map(<[u8]>::len).collect();
    assert_eq!(sizes, [100, 100, 50]);
    assert!(whole.datagrams().flatten().eq(&pattern(250, 0)));
    let empty = receiver.try_recv().expect("it arrived");
    assert!(empty.datagrams().eq([&[][..]]));
}
