//! A property test of the queue with random packets and random answers of the kernel.

use libc::{EAGAIN, ECONNREFUSED, EINTR, EINVAL, EIO, EMSGSIZE, ENOBUFS};
use proptest::prelude::*;

use super::Answer::{Fail, Take};
use super::*;

/// Limits on the sizes in the test. They are small under Miri, an interpreter that runs the test
/// slowly.
const LEN_MAX: usize = if cfg!(miri) { 100 } else { 3_000 };
const PACKETS_MAX: usize = if cfg!(miri) { 12 } else { 60 };
const ANSWERS_MAX: usize = if cfg!(miri) { 12 } else { 80 };

/// One packet of the property test.
#[derive(Clone, Debug)]
struct Given {
    len: usize,
    flow: u64,
    gso_size: u16,
    txtime_ns: u64,
}

fn given() -> impl Strategy<Value = Given> {
    let len = prop_oneof![4 => 1_usize..4, 4 => Just(100_usize), 1 => 1..LEN_MAX];
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

fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever the kernel answers, the queue finishes every packet once and in order. A packet
    /// that is not dropped is sent completely, once; of a packet that is dropped, at most the first
    /// part is sent.
    #[test]
    fn nothing_is_lost_doubled_or_overtaken(
        given in prop::collection::vec(given(), 1..PACKETS_MAX),
        answers in prop::collection::vec(answer(), 0..ANSWERS_MAX),
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
        // Each scripted answer ends at most one call of `transmit`. When no answers are left, the
        // kernel takes everything.
        for _ in 0..=ANSWERS_MAX {
            fates.extend(transmit(&mut queue, &mut burst).0);
        }
        prop_assert!(burst.is_empty());
        let mut wire = VecDeque::from(queue.wire.datagrams());
        for (given, &(number, reason)) in given.iter().zip(&fates) {
            let whole = payload(usize::try_from(number).expect("small"), given.len);
            let size = if given.gso_size == 0 { usize::MAX } else { given.gso_size.into() };
            // All datagrams differ, so the test recognizes each by its content.
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
