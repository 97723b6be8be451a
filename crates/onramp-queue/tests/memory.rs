//! No memory leaks, in whatever order pools, their packets and their bells (by which other threads
//! wake a sender) are dropped.

use std::sync::Arc;
use std::task::{Wake, Waker};

use allocation_counter::measure;
use onramp_queue::{Armed, Credits, Intake, Mailbox, Packet, PacketList, Pool};

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

/// Fails if `run` leaks memory. Calls `run` once before, because some allocations are made only
/// once in a thread.
#[track_caller]
fn all_is_freed(run: impl Fn()) {
    run();
    let left = measure(&run);
    assert!(left.count_total > 0, "it allocates");
    assert_eq!((left.count_current, left.bytes_current), (0, 0));
}

/// Makes a pool and packets of all sizes, some of which have already come home.
fn pool() -> (Pool, Vec<Packet>) {
    let mut pool = Pool::new(Credits { packets: 9, bytes: u32::MAX });
    let mut out: Vec<_> = [0, 128, 129, 600, 3_000, 65_535, 9, 9, 9]
        .into_iter()
        .map(|size| pool.take(size).expect("a credit"))
        .collect();
    out.truncate(8);
    pool.take_back(out.pop().expect("one of eight"));
    assert_eq!(pool.reclaim(|_| {}), 1);
    out.truncate(6);
    (pool, out)
}

#[test]
fn pools_packets_and_bells_go_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for waits in [false, true] {
            all_is_freed(|| {
                let (mut pool, out) = pool();
                let mut bell = pool.bell();
                if waits {
                    let waker = Waker::from(Arc::new(Nothing));
                    assert_eq!(pool.arm(&waker, 5), Armed::Armed);
                }
                let (mut pool, mut out) = (Some(pool), Some(out));
                for what in order {
                    match what {
                        0 => drop(pool.take()),
                        1 => drop(out.take()),
                        _ => drop(bell.take()),
                    }
                }
            });
        }
    }
}

#[test]
fn lists_of_all_homes_go_at_once_or_one_by_one() {
    for at_once in [true, false] {
        all_is_freed(|| {
            let ((one, mine), (other, theirs)) = (pool(), pool());
            let heap = (0..3).map(|len| Packet::with_payload(&vec![1; len * 100]));
            let mut list: PacketList = mine.into_iter().chain(theirs).chain(heap).collect();
            // The first pool is dropped before its packets, so only the packets keep its home
            // alive. The home of the second pool's packets is kept alive by that pool.
            drop(one);
            if !at_once {
                list.by_ref().for_each(drop);
            }
            drop(list);
            drop(other);
        });
    }
}

#[test]
fn what_waits_goes_with_where_it_waits() {
    let packets = || [Packet::new(1), Packet::with_payload(b"abc")].into_iter().collect();
    all_is_freed(|| {
        let port = Intake::new(Box::new(7), 9, 9);
        let owner = port.own().expect("nobody owns it");
        assert!(port.push(packets()).is_ok());
        assert_eq!(**owner, 7);
        owner.leave_busy();
        drop(port);
    });
    for reads in [false, true] {
        all_is_freed(|| {
            let mailbox = Mailbox::new(9);
            let mut reader = mailbox.open().expect("nobody reads it");
            let waker = Waker::from(Arc::new(Nothing));
            assert_eq!(reader.arm(&waker), Armed::Armed);
            drop(waker);
            assert!(mailbox.post(packets()).is_ok());
            if reads {
                drop(mailbox);
                assert_eq!(reader.take().len(), 2);
            } else {
                drop(reader);
                drop(mailbox);
            }
        });
    }
}

/// A sender submits a guest (a packet that is not from the sender's pool) again and again. When the
/// sender has memory for the times of one packet, `submit` allocates no more, because the sender
/// already counts the guest.
#[test]
fn a_guest_is_noted_once() {
    let (mut first, mut second) = (pool().0, pool().0);
    let mut list: PacketList = [Packet::new(1)].into_iter().collect();
    first.submit(&mut list, 1);
    first.submit(&mut list, 2);
    assert_eq!(measure(|| first.submit(&mut list, 3)).count_total, 0, "its only sender");
    second.submit(&mut list, 4);
    let again = measure(|| {
        first.submit(&mut list, 5);
        second.submit(&mut list, 6);
    });
    assert_eq!(again.count_total, 0, "both of its senders");
    assert!(first.has_guests() && second.has_guests());
}

/// Several senders, one after another, submit a packet that none of them owns (a guest). The packet
/// holds one reference to each of these senders until the packet is dropped. The senders may be
/// dropped before or after the packet.
#[test]
fn guests_go_with_their_packets() {
    for hosts_first in [true, false] {
        all_is_freed(|| {
            let (mut first, mut second, (owner, mut out)) = (pool().0, pool().0, pool());
            let mut list: PacketList = out.drain(..).collect();
            for turn in 0..3 {
                first.submit(&mut list, turn);
                second.submit(&mut list, turn);
                first.revoke(&mut list);
            }
            if hosts_first {
                drop((first, second));
                drop(list);
            } else {
                drop(list);
                assert!(!first.has_guests() && !second.has_guests());
            }
            drop(owner);
        });
    }
}
