//! Models of credits: packets come home to their pool from other threads, and wake the sender that
//! waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Wake, Waker};

use loom::sync::Notify;
use loom::thread::{JoinHandle, yield_now};
use onramp_queue::{Armed, Credits, Packet, PacketList, Pool};

use crate::{check, join, spawn};

/// A sleep that ends when its waker is called. If the waker is never called, there is a deadlock,
/// which loom reports.
pub(crate) struct Sleep(pub(crate) Notify);

impl Sleep {
    pub(crate) fn new() -> (Arc<Self>, Waker) {
        let sleep = Arc::new(Self(Notify::new()));
        (sleep.clone(), Waker::from(sleep))
    }
}

impl Wake for Sleep {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Makes a pool of `packets` packets, takes all of them out, and marks them as submitted.
pub(crate) fn pool(packets: u32) -> (Pool, PacketList) {
    let mut pool = Pool::new(Credits { packets, bytes: 1_000 });
    let take = |cookie| {
        let mut pkt = pool.take(8).expect("within the credits");
        pkt.cookie = cookie;
        pkt.set_submitted(true);
        pkt
    };
    let out = (0..u64::from(packets)).map(take).collect();
    (pool, out)
}

pub(crate) fn split<const N: usize>(mut list: PacketList) -> [Packet; N] {
    std::array::from_fn(|_| list.pop_front().expect("a packet for each"))
}

/// Drops each packet of the list in a thread of its own.
pub(crate) fn drop_on_threads<const N: usize>(list: PacketList) -> [JoinHandle<()>; N] {
    split(list).map(|pkt| spawn(move || drop(pkt)))
}

/// Waits, as a sender does, until `need` packets have come home to the pool.
fn wait(pool: &mut Pool, sleep: &Sleep, waker: &Waker, need: u32) {
    loop {
        match pool.arm(waker, need) {
            Armed::Ready => return,
            Armed::Armed => sleep.0.wait(),
            Armed::Busy => yield_now(),
        }
    }
}

/// A sender waits for two packets. The thread that returns the second of them wakes the sender.
///
/// Must fail with each of these mutants: pool-arm-release, pool-arm-unchecked, pool-put-acquire,
/// pool-put-release.
#[test]
fn who_waits_is_woken() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let (sleep, waker) = Sleep::new();
        let threads = drop_on_threads::<2>(out);
        wait(&mut pool, &sleep, &waker, 2);
        assert_eq!(pool.reclaim(|_| {}), 2);
        join(threads);
        assert_eq!(pool.out(), 0);
    });
}

/// A sender waits for more packets than are out of its pool. It is woken when all of them are home.
#[test]
fn who_asks_for_too_much_is_woken() {
    check(3, || {
        let (mut pool, out) = pool(1);
        let (sleep, waker) = Sleep::new();
        let threads = drop_on_threads::<1>(out);
        wait(&mut pool, &sleep, &waker, 7);
        assert_eq!(pool.reclaim(|_| {}), 1);
        join(threads);
    });
}

/// A sender that waits for two packets replaces its request by one for a single packet, while a
/// packet comes home. The sender does not sleep for ever.
///
/// Must fail with each of these mutants: pool-arm-unchecked.
#[test]
fn a_smaller_need_is_not_missed() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let (sleep, waker) = Sleep::new();
        assert_eq!(pool.arm(&waker, 2), Armed::Armed);
        let [first, second] = split(out);
        let thread = spawn(move || drop(first));
        wait(&mut pool, &sleep, &waker, 1);
        thread.join().unwrap();
        assert_eq!(pool.reclaim(|_| {}), 1);
        drop(second);
        assert_eq!(pool.reclaim(|_| {}), 1);
    });
}

/// While the waker of a sender is being called, the sender makes a new request with another waker.
/// The new request uses the new waker, and in the end no waker is kept.
///
/// Must fail with each of these mutants: pool-arm-acquire, pool-wake-release,
/// pool-put-without-waking.
#[test]
fn the_waker_changes_hands() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let (sleep, waker) = Sleep::new();
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        let [first, second] = split(out);
        let thread = spawn(move || drop(first));
        let (other_sleep, other) = Sleep::new();
        while pool.arm(&other, 2) == Armed::Busy {
            yield_now();
        }
        thread.join().unwrap();
        drop(second);
        wait(&mut pool, &other_sleep, &other, 2);
        drop((pool, waker, other));
        assert_eq!(Arc::strong_count(&sleep), 1);
        assert_eq!(Arc::strong_count(&other_sleep), 1);
    });
}

/// While the waker of a sender is being called, the sender makes a new request with the same waker.
/// The call that is under way serves the new request, and the sender sleeps until that call.
///
/// Must fail with each of these mutants: pool-put-acquire, pool-arm-acquire, pool-wake-release,
/// pool-put-without-waking.
#[test]
fn the_waker_on_its_way_will_do() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let (sleep, waker) = Sleep::new();
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        let [first, second] = split(out);
        let thread = spawn(move || drop(first));
        assert_eq!(pool.arm(&waker, 2), Armed::Armed, "of this waker");
        drop(second);
        sleep.0.wait();
        join([thread]);
        assert_eq!(pool.reclaim(|_| {}), 2);
    });
}

/// While the waker of a sender is being called, the sender makes a new request with another waker.
/// During that call, the request returns `Busy`, so the sender tries again. After the call, the new
/// waker is stored, and later wakes the sender.
///
/// Must fail with each of these mutants: pool-put-acquire, pool-arm-acquire, pool-wake-release,
/// pool-put-without-waking.
#[test]
fn another_waker_has_to_be_armed() {
    let busy = Arc::new(AtomicBool::new(false));
    let seen = busy.clone();
    check(3, move || {
        let (mut pool, out) = pool(2);
        let ((_, waker), (other_sleep, other)) = (Sleep::new(), Sleep::new());
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        let [first, second] = split(out);
        let thread = spawn(move || drop(first));
        while pool.arm(&other, 2) == Armed::Busy {
            seen.store(true, Relaxed);
            yield_now();
        }
        drop(second);
        join([thread]);
        other_sleep.0.wait();
        assert_eq!(pool.reclaim(|_| {}), 2);
    });
    assert!(busy.load(Relaxed), "in one order it is just being woken");
}

/// A sender cancels its request to be woken and makes a new one, while packets come home. The new
/// request still wakes the sender.
///
/// Must fail with each of these mutants: pool-arm-unchecked.
#[test]
fn a_request_is_taken_back() {
    check(2, || {
        let (mut pool, out) = pool(2);
        let (sleep, waker) = Sleep::new();
        let threads = drop_on_threads::<2>(out);
        let _ = pool.arm(&waker, 1);
        pool.disarm();
        let mut home = pool.reclaim(|_| {});
        wait(&mut pool, &sleep, &waker, 2 - home);
        home += pool.reclaim(|_| {});
        join(threads);
        assert_eq!((home, pool.out()), (2, 0));
    });
}

/// Two threads return packets to a pool while the pool's sender calls `reclaim`, which reports the
/// completions of the packets that have come home. Each completion is reported once.
///
/// Must fail with each of these mutants: pool-put-release, pool-reclaim-acquire.
#[test]
fn every_fate_is_told_once() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let threads = drop_on_threads::<2>(out);
        let mut told = Vec::new();
        pool.reclaim(|fate| told.push(fate.cookie));
        join(threads);
        pool.reclaim(|fate| told.push(fate.cookie));
        told.sort_unstable();
        assert_eq!(told, [0, 1]);
        assert_eq!((pool.out(), pool.returned()), (0, 0));
    });
}

/// A packet that came home is taken out again and comes home again, while another thread is
/// returning a second packet. No packet is lost.
///
/// Must fail with each of these mutants: pool-put-release, pool-reclaim-acquire.
#[test]
fn a_node_comes_home_twice() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let [first, second] = split(out);
        let thread = spawn(move || drop(first));
        drop(second);
        let mut home = pool.reclaim(|_| {});
        let again = pool.take(8).expect("one is home, at least");
        drop(again);
        thread.join().unwrap();
        home += pool.reclaim(|_| {});
        assert_eq!((home, pool.out()), (3, 0));
    });
}

/// The pool is dropped while its packets are out. The last packet that comes home frees the home's
/// memory, and no earlier packet does.
///
/// Must fail with each of these mutants: pool-close-acquire, pool-close-release, pool-put-acquire,
/// pool-put-release.
#[test]
fn a_pool_goes_before_its_packets() {
    check(3, || {
        let (pool, out) = pool(2);
        let threads = drop_on_threads::<2>(out);
        drop(pool);
        join(threads);
    });
}

/// Several packets come home in one step while the pool is dropped. The home's memory is freed
/// once.
///
/// Must fail with each of these mutants: pool-close-acquire, pool-close-release, pool-put-acquire,
/// pool-put-release.
#[test]
fn a_pool_goes_before_a_run() {
    check(3, || {
        let (mut pool, mut out) = pool(3);
        let third = out.pop_front().unwrap();
        let threads = [spawn(move || drop(out)), spawn(move || drop(third))];
        let _ = pool.reclaim(|_| {});
        drop(pool);
        join(threads);
    });
}

/// The pool is dropped while another thread wakes the pool's sender. The waker is called or
/// dropped, and only once.
///
/// Must fail with each of these mutants: pool-forget-acquire, pool-forget-early, pool-wake-release,
/// pool-wake-acquire, pool-put-without-waking.
#[test]
fn a_pool_goes_during_a_wake_up() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let (sleep, waker) = Sleep::new();
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        drop(waker);
        let threads = drop_on_threads::<2>(out);
        drop(pool);
        join(threads);
        assert_eq!(Arc::strong_count(&sleep), 1);
    });
}

/// A sender cancels its request and drops the waker while packets come home from two threads. Then
/// it makes a new request with another waker. It is woken once, by the new waker.
///
/// Must fail with each of these mutants: pool-forget-acquire, pool-forget-early, pool-wake-release,
/// pool-put-without-waking.
#[test]
fn a_waker_is_forgotten_during_a_wake_up() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let ((sleep, waker), (other_sleep, other)) = (Sleep::new(), Sleep::new());
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        drop(waker);
        let threads = drop_on_threads::<2>(out);
        if pool.forget_waker() {
            // Nobody keeps the sender's first waker, or a thread that returned a packet has taken
            // this waker to call it. In the second case, that packet is home.
            assert!(Arc::strong_count(&sleep) == 1 || pool.returned() > 0);
        }
        wait(&mut pool, &other_sleep, &other, 2);
        assert_eq!(pool.reclaim(|_| {}), 2);
        join(threads);
        drop((pool, other));
        assert_eq!(Arc::strong_count(&sleep), 1);
        assert_eq!(Arc::strong_count(&other_sleep), 1);
    });
}

/// A sender drops its waker (`forget_waker`) while a packet comes home, and then drops the pool.
/// The waker is not kept, whichever happens first.
///
/// Must fail with each of these mutants: pool-forget-acquire, pool-forget-early, pool-wake-release,
/// pool-put-without-waking.
#[test]
fn a_pool_forgets_its_waker_and_goes() {
    let late = Arc::new(AtomicBool::new(false));
    let seen = late.clone();
    check(3, move || {
        let (mut pool, out) = pool(1);
        let (sleep, waker) = Sleep::new();
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        drop(waker);
        let threads = drop_on_threads::<1>(out);
        let forgot = pool.forget_waker();
        assert!(forgot || pool.returned() == 1, "only a packet that is home wakes");
        seen.fetch_or(!forgot, Relaxed);
        drop(pool);
        join(threads);
        assert_eq!(Arc::strong_count(&sleep), 1);
    });
    assert!(late.load(Relaxed), "in one order the waker is just being taken out");
}
