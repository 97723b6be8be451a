//! The packet list keeps the order, the packet count and the byte count correct under all of its
//! operations.

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(sim)]
#[macro_use]
extern crate onramp_simulated_test;

use std::collections::VecDeque;

use onramp_queue::{Credits, Layer, Packet, PacketList, PartialChecksum, Pool};

fn packet(cookie: u64, len: u32) -> Packet {
    let mut pkt = Packet::new(len);
    pkt.cookie = cookie;
    pkt
}

fn list(cookies: impl IntoIterator<Item = u64>) -> PacketList {
    cookies.into_iter().map(|cookie| packet(cookie, 1)).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

#[test]
fn first_in_first_out() {
    let mut list = PacketList::new();
    assert!(list.is_empty() && list.pop_front().is_none());
    assert!(list.front().is_none() && list.back().is_none());
    for (cookie, len) in [(1, 100), (2, 1_500), (3, 60)] {
        list.push_back(packet(cookie, len));
    }
    assert_eq!((list.len(), list.bytes(), list.is_empty()), (3, 1_660, false));
    assert_eq!(list.front().map(|pkt| (pkt.cookie, pkt.len)), Some((1, 100)));
    assert_eq!(list.back().map(|pkt| (pkt.cookie, pkt.len)), Some((3, 60)));
    assert_eq!(list.pop_front().map(|pkt| pkt.cookie), Some(1));
    assert_eq!((list.len(), list.bytes()), (2, 1_560));
    assert_eq!(cookies(list), [2, 3]);
}

#[test]
fn it_is_as_good_as_new_when_it_has_run_dry() {
    let mut list = list([1]);
    drop(list.pop_front());
    assert!(list.back().is_none());
    list.push_back(packet(2, 7));
    assert_eq!((list.len(), list.bytes()), (1, 7));
    drop(list.pop_front());
    list.push_front(packet(3, 8));
    list.push_back(packet(4, 9));
    assert_eq!((list.len(), list.bytes()), (2, 17));
    assert_eq!(cookies(list), [3, 4]);
}

#[test]
fn appending_takes_all_of_the_other() {
    for (left, right) in [(0, 0), (0, 2), (2, 0), (1, 1), (3, 4)] {
        let (mut a, mut b) = (list(0..left), list(left..left + right));
        a.append(&mut b);
        assert_eq!((u64::from(a.len()), a.bytes()), (left + right, left + right));
        assert!(b.is_empty() && b.bytes() == 0 && b.front().is_none());
        b.push_back(packet(9, 1));
        a.push_back(packet(left + right, 1));
        assert_eq!(cookies(a), (0..=left + right).collect::<Vec<_>>());
        assert_eq!(cookies(b), [9]);
    }
}

/// Runs every sequence of eight operations (push at either end, pop, append) on the list and on the
/// standard library's deque. After each operation, both must have the same length, bytes and ends.
#[test]
fn it_is_a_deque() {
    let (operations, steps) = if cfg!(miri) { (4_u32, 3) } else { (4, 8) };
    for sequence in 0..operations.pow(steps) {
        let (mut real, mut model) = (PacketList::new(), VecDeque::new());
        for step in 0..steps {
            let cookie = u64::from(step);
            match sequence / operations.pow(step) % operations {
                0 => {
                    real.push_back(packet(cookie, 10 + step));
                    model.push_back((cookie, 10 + step));
                }
                1 => {
                    real.push_front(packet(cookie, 10 + step));
                    model.push_front((cookie, 10 + step));
                }
                2 => {
                    let popped = real.pop_front().map(|pkt| (pkt.cookie, pkt.len));
                    assert_eq!(popped, model.pop_front());
                }
                _ => {
                    real.append(
                        &mut [packet(cookie, 1), packet(cookie + 100, 2)].into_iter().collect(),
                    );
                    model.extend([(cookie, 1), (cookie + 100, 2)]);
                }
            }
            let bytes = model.iter().map(|&(_, len)| u64::from(len)).sum::<u64>();
            assert_eq!((real.len() as usize, real.bytes()), (model.len(), bytes));
            let ends = |pkt: Option<&Packet>| pkt.map(|pkt| (pkt.cookie, pkt.len));
            assert_eq!(ends(real.front()), model.front().copied());
            assert_eq!(ends(real.back()), model.back().copied());
        }
        let left: Vec<_> = real.map(|pkt| (pkt.cookie, pkt.len)).collect();
        assert_eq!(left, Vec::from(model));
    }
}

/// When a list is dropped, each packet returns to its own home, even if the list has packets of
/// several homes.
#[test]
fn dropped_packets_go_to_their_own_homes() {
    let credits = Credits { packets: 100, bytes: 100_000 };
    let (mut ours, mut theirs) = (Pool::new(credits), Pool::new(credits));
    let mut list = PacketList::new();
    for cookie in 0..30_u64 {
        let pool = match cookie % 7 {
            0 | 1 | 4 => Some(&mut ours),
            2 | 3 => Some(&mut theirs),
            _ => None,
        };
        let mut pkt = match pool {
            Some(pool) => pool.take(10).unwrap(),
            None => Packet::new(10),
        };
        pkt.cookie = cookie;
        pkt.set_submitted(true);
        list.push_back(pkt);
    }
    drop(list);
    for (pool, digits) in [(&mut ours, [0, 1, 4].as_slice()), (&mut theirs, &[2, 3])] {
        let mut told = Vec::new();
        let count = pool.reclaim(|fate| told.push(fate.cookie));
        told.sort_unstable();
        let expected: Vec<u64> = (0..30).filter(|cookie| digits.contains(&(cookie % 7))).collect();
        assert_eq!(told, expected);
        assert_eq!((count as usize, pool.out()), (expected.len(), 0));
    }
}

/// Packets return home in runs of limited length. A list that is longer than one run still returns
/// completely.
#[test]
fn a_long_list_goes_home_whole() {
    let packets = if cfg!(miri) { 1_030 } else { 5_000 };
    let mut pool = Pool::new(Credits { packets, bytes: u32::MAX });
    let list: PacketList = std::iter::from_fn(|| pool.take(1)).collect();
    assert_eq!((list.len(), pool.out(), pool.returned()), (packets, packets, 0));
    drop(list);
    assert_eq!(pool.returned(), packets);
    assert_eq!((pool.reclaim(|_| {}), pool.out()), (packets, 0));
}

#[test]
fn a_duplicate_has_all_that_can_be_seen() {
    let mut pkt = Packet::with_payload(b"payload");
    (pkt.len, pkt.flow, pkt.priority, pkt.mark, pkt.ecn) = (49, 7, 6, 5, 2);
    pkt.set_layer(Layer::Ethernet);
    pkt.set_queue(3);
    pkt.set_dest(Some(([192, 0, 2, 1], 9).into()));
    assert_eq!(format!("{:?}", pkt.duplicate()), format!("{pkt:?}"));
    let copy = pkt.duplicate();
    assert_eq!((copy.layer(), copy.queue(), copy.payload()), (Layer::Ethernet, 3, &b"payload"[..]));
}

/// The payload is written in place: filled by a function, changed, and appended to.
#[test]
fn a_payload_is_written_in_place() {
    let mut pkt = Packet::with_capacity(8);
    assert_eq!((pkt.capacity(), pkt.payload()), (8, &b""[..]));
    pkt.fill::<()>(|buffer| {
        assert_eq!(buffer.len(), 8);
        Ok(buffer.split_at_mut(3).0.write_copy_of_slice(b"abc"))
    })
    .expect("no error");
    pkt.payload_mut()[1] = b'x';
    pkt.append_payload(b"defgh");
    assert_eq!(pkt.payload(), b"axcdefgh");
    assert_eq!(pkt.duplicate().payload(), b"axcdefgh");
    for (len, left) in [(1 << 16, 8), (8, 8), (6, 6), (7, 6)] {
        pkt.truncate_payload(len);
        assert_eq!(pkt.payload(), &b"axcdefgh"[..left], "to {len} bytes");
    }
    // An error leaves an empty payload, and so does a function that writes nothing.
    assert_eq!(pkt.fill(|_| Err(7)), Err(7));
    assert_eq!(pkt.payload(), b"");
    pkt.append_payload(b"again");
    pkt.fill::<()>(|_| Ok(&mut [])).expect("no error");
    assert_eq!(pkt.payload(), b"");
    let mut none = Packet::new(60);
    none.fill::<()>(|buffer| Ok(buffer.write_copy_of_slice(b""))).expect("no error");
    none.append_payload(b"");
    assert_eq!(none.payload_mut(), b"");
}

#[test]
#[should_panic(expected = "begins with the buffer")]
fn a_payload_that_lies_elsewhere_is_refused() {
    let _ = Packet::with_payload(b"abc")
        .fill::<()>(|buffer| Ok(buffer.split_at_mut(1).1.write_copy_of_slice(b"bc")));
}

#[test]
#[should_panic(expected = "fits the packet's buffer")]
fn more_than_fits_is_not_appended() {
    Packet::with_payload(b"abc").append_payload(b"d");
}

/// A checksum that is missing and a destination exclude each other; copies keep either.
#[test]
fn a_frame_has_a_checksum_or_a_destination() {
    let mut pkt = Packet::with_payload(b"frame");
    let partial = PartialChecksum { start: 14, offset: 16 };
    pkt.set_partial_checksum(Some(partial));
    assert_eq!((pkt.partial_checksum(), pkt.dest()), (Some(partial), None));
    assert_eq!(pkt.duplicate_with(b"other").partial_checksum(), Some(partial));
    pkt.set_partial_checksum(None);
    let dest = "192.0.2.1:9".parse().ok();
    pkt.set_dest(dest);
    assert_eq!((pkt.partial_checksum(), pkt.duplicate_with(b"other").dest()), (None, dest));
}
