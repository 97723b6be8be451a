//! Senders that wait for the bell (a flag and a waker by which other threads wake a sender) instead
//! of packets, and packets that senders take back while they wait.

use std::sync::Arc;

use onramp_queue::{Armed, Packet, Pool};

use super::{Calls, pool};

/// Makes a pool of `packets` packets, all of which are taken out.
fn pool_out(packets: u32) -> (Pool, Vec<Packet>) {
    let mut pool = pool(packets, 1_000);
    let out = std::iter::from_fn(|| pool.take(8)).collect();
    (pool, out)
}

#[test]
fn a_ring_wakes_a_sender_that_waits() {
    let (mut pool, out) = pool_out(2);
    let bell = pool.bell().expect("the first");
    let (calls, waker) = Calls::new();
    for need in [1, 2] {
        assert_eq!(pool.arm(&waker, need), Armed::Armed);
        bell.ring();
        assert_eq!((calls.count(), pool.returned()), (need, 0));
        bell.ring();
        assert_eq!(calls.count(), need, "nobody waits");
        assert_eq!(pool.arm(&waker, need), Armed::Ready, "it has to look");
    }
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    drop(out);
    assert_eq!((calls.count(), pool.reclaim(|_| {})), (3, 2));
}

#[test]
fn a_ring_that_nobody_heard_is_kept() {
    let (mut pool, mut out) = pool_out(2);
    let bell = pool.bell().expect("the first");
    let (calls, waker) = Calls::new();
    bell.ring();
    bell.ring();
    assert_eq!(pool.arm(&waker, 1), Armed::Ready);
    assert_eq!(pool.arm(&waker, 1), Armed::Armed, "it was heard once");
    // If the bell rings while no sender waits, the next `arm` or `listen` returns `Ready`. Other
    // methods, such as `disarm` and `reclaim`, do not make the pool forget the ring.
    pool.disarm();
    bell.ring();
    pool.disarm();
    assert!(pool.forget_waker());
    drop(out.pop());
    assert_eq!((pool.returned(), pool.reclaim(|_| {})), (1, 1));
    assert_eq!(pool.listen(&waker), Armed::Ready);
    assert_eq!((pool.listen(&waker), calls.count()), (Armed::Armed, 0));
}

#[test]
fn a_listener_is_woken_by_the_bell_alone() {
    let (mut pool, mut out) = pool_out(3);
    let bell = pool.bell().expect("the first");
    let (calls, waker) = Calls::new();
    assert_eq!(pool.listen(&waker), Armed::Armed);
    drop(out.pop());
    pool.take_back(out.pop().expect("one of three"));
    assert_eq!((calls.count(), pool.returned(), pool.out()), (0, 1, 2));
    bell.ring();
    assert_eq!(calls.count(), 1);
    assert_eq!(pool.listen(&waker), Armed::Ready);
    // A call of `arm` (a request to be woken by packets) replaces an earlier call of `listen` (a
    // request to be woken only by the bell), and a call of `listen` replaces an earlier call of
    // `arm`.
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    assert_eq!(pool.listen(&waker), Armed::Armed);
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (1, 2));
    assert_eq!(pool.arm(&waker, 2), Armed::Ready);
    assert_eq!((pool.reclaim(|_| {}), pool.out()), (2, 0));
    assert_eq!(pool.listen(&waker), Armed::Armed, "nothing is out, and it may ring still");
    drop(waker);
    assert!(pool.forget_waker());
    bell.ring();
    assert_eq!((calls.count(), Arc::strong_count(&calls)), (1, 1));
}

#[test]
fn there_is_one_bell() {
    let mut pool = pool(1, 1);
    let bell = pool.bell().expect("the first");
    assert!(pool.bell().is_none());
    drop(bell);
    assert!(pool.bell().is_some(), "nobody has it any more");
}

#[test]
fn a_bell_a_pool_and_its_packets_go_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (mut pool, out) = pool_out(2);
        let (calls, waker) = Calls::new();
        let bell = pool.bell().expect("the first");
        assert_eq!(pool.arm(&waker, 2), Armed::Armed);
        let (mut pool, mut bell, mut out) = (Some(pool), Some(bell), Some(out));
        for what in order {
            match what {
                0 => drop(pool.take()),
                1 => drop(out.take()),
                _ => drop(bell.take()),
            }
            if let Some(bell) = &bell {
                bell.ring();
            }
        }
        drop(waker);
        assert_eq!(Arc::strong_count(&calls), 1);
        // The returning packets call the waker only if the pool has not been dropped before. The
        // bell never calls the waker: each ring comes after the packets have answered the request,
        // or after the pool is gone.
        let place = |what| order.iter().position(|at| *at == what);
        assert_eq!(calls.count(), u32::from(place(1) < place(0)), "{order:?}");
    }
}

#[test]
fn what_is_taken_back_is_one_less_to_come() {
    for taken_first in [true, false] {
        let (mut pool, mut out) = pool_out(4);
        let (calls, waker) = Calls::new();
        assert_eq!(pool.arm(&waker, 2), Armed::Armed);
        let (one, other) = (out.pop().expect("one of four"), out.pop().expect("one of four"));
        if taken_first {
            pool.take_back(one);
            assert_eq!((calls.count(), pool.returned(), pool.out()), (0, 0, 3));
            drop(other);
        } else {
            drop(other);
            assert_eq!((calls.count(), pool.returned(), pool.out()), (0, 1, 4));
            pool.take_back(one);
        }
        assert_eq!((calls.count(), pool.returned(), pool.out()), (1, 1, 3));
        // The request to be woken was answered, so further packets do not count for it.
        pool.take_back(out.pop().expect("one of four"));
        drop(out.pop());
        assert_eq!((calls.count(), pool.returned(), pool.out()), (1, 2, 2));
        assert_eq!((pool.reclaim(|_| {}), pool.out()), (2, 0));
    }
}

#[test]
fn to_take_back_all_that_is_waited_for_wakes() {
    let (mut pool, mut out) = pool_out(2);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    out.drain(..).for_each(|pkt| pool.take_back(pkt));
    assert_eq!((calls.count(), pool.returned(), pool.out()), (1, 0, 0));
    // A sender that takes a packet back is not woken if it has no request, or if the packet is from
    // another pool.
    let (mut others, mut strangers) = pool_out(1);
    let (one, other) = (pool.take(8).expect("a credit"), pool.take(8).expect("a credit"));
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    pool.disarm();
    pool.take_back(one);
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    pool.take_back(strangers.pop().expect("theirs"));
    assert_eq!((calls.count(), pool.out(), others.reclaim(|_| {})), (1, 1, 1));
    // The pool's own packet was taken back while there was no request, and the other packet belongs
    // to another pool, so neither of them counts for a request. Therefore no packet counts as
    // returned when the last request is cancelled.
    pool.disarm();
    assert_eq!((pool.returned(), pool.out()), (0, 1));
    drop(other);
    assert_eq!((calls.count(), pool.reclaim(|_| {}), pool.out()), (1, 1, 0));
}

#[test]
fn a_request_is_taken_back_with_what_it_counted() {
    let (mut pool, mut out) = pool_out(3);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 3), Armed::Armed);
    pool.take_back(out.pop().expect("one of three"));
    drop(out.pop());
    pool.disarm();
    assert_eq!((pool.returned(), pool.out()), (1, 2));
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    pool.take_back(out.pop().expect("the last"));
    assert_eq!((calls.count(), pool.returned(), pool.out()), (1, 1, 1));
    assert_eq!((pool.reclaim(|_| {}), pool.out()), (1, 0));
}
