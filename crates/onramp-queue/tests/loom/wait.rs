//! Models of senders that wait for packets that do not come home, and of the bell (a flag and a
//! waker by which other threads wake a sender).

use std::sync::Arc as StdArc;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::yield_now;
use onramp_queue::{Armed, Gate, Pool};

use crate::pool::{Sleep, drop_on_threads, pool, split};
use crate::{check, join, spawn};

/// A flag that is set once, for an event such as the closing of a link. Its accesses are relaxed,
/// so only the bell orders them.
#[derive(Clone)]
struct Event(Arc<AtomicBool>);

impl Event {
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    fn happens(&self) {
        self.0.store(true, Relaxed);
    }

    fn happened(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Requests a wake-up and sleeps, as a sender does, until `is_over` (which looks at the pool)
/// returns true.
fn wait(
    pool: &mut Pool,
    sleep: &Sleep,
    is_over: impl Fn(&mut Pool) -> bool,
    ask: impl Fn(&mut Pool) -> Armed,
) {
    while !is_over(pool) {
        match ask(pool) {
            Armed::Ready => {}
            Armed::Armed => sleep.0.wait(),
            Armed::Busy => yield_now(),
        }
    }
}

/// Checks that only the test still refers to `sleeps`: no pool and no other thread keeps a waker of
/// one of them.
fn let_go<const N: usize>(sleeps: [StdArc<Sleep>; N]) {
    assert!(sleeps.iter().all(|sleep| StdArc::strong_count(sleep) == 1));
}

/// A sender waits for a packet that another thread keeps. When the link closes, the bell ends the
/// wait.
///
/// Must fail with each of these mutants: bell-ring-acquire, bell-ring-forgets, pool-arm-deaf,
/// pool-arm-release.
#[test]
fn a_close_ends_a_wait() {
    check(3, || {
        let (mut pool, kept) = pool(1);
        let (sleep, waker) = Sleep::new();
        let (gate, bell) = (Arc::new(Gate::default()), pool.bell().expect("the first"));
        let theirs = gate.clone();
        let closer = spawn(move || {
            theirs.close();
            bell.ring();
        });
        wait(&mut pool, &sleep, |_| gate.is_closed(), |pool| pool.arm(&waker, 1));
        join([closer]);
        drop((pool, kept, waker));
        let_go([sleep]);
    });
}

/// A sender waits for a packet that another thread keeps. When a port dies, the bell ends the wait.
///
/// Must fail with each of these mutants: bell-ring-release, bell-ring-forgets, pool-arm-deaf.
#[test]
fn a_death_ends_a_wait() {
    check(3, || {
        let (mut pool, kept) = pool(1);
        let (sleep, waker) = Sleep::new();
        let (death, bell) = (Event::new(), pool.bell().expect("the first"));
        let theirs = death.clone();
        let owner = spawn(move || {
            theirs.happens();
            bell.ring();
        });
        wait(&mut pool, &sleep, |_| death.happened(), |pool| pool.arm(&waker, 1));
        join([owner]);
        drop((pool, kept, waker));
        let_go([sleep]);
    });
}

/// A sender waits only for the bell, and meanwhile a packet comes home. The packet does not wake
/// the sender, but the bell does.
///
/// Must fail with each of these mutants: bell-ring-release, pool-arm-deaf.
#[test]
fn a_listener_hears_the_bell() {
    check(3, || {
        let (mut pool, out) = pool(1);
        let (sleep, waker) = Sleep::new();
        let (event, bell) = (Event::new(), pool.bell().expect("the first"));
        let theirs = event.clone();
        let rings = spawn(move || {
            theirs.happens();
            bell.ring();
        });
        let threads = drop_on_threads::<1>(out);
        wait(&mut pool, &sleep, |_| event.happened(), |pool| pool.listen(&waker));
        join([rings]);
        join(threads);
        assert_eq!(pool.reclaim(|_| {}), 1);
        drop((pool, waker));
        let_go([sleep]);
    });
}

/// The bell rings at the same time as the packet comes home for which a sender waits. The sender
/// notices both.
///
/// Must fail with each of these mutants: bell-ring-release, bell-ring-acquire, pool-put-acquire,
/// pool-put-release.
#[test]
fn a_ring_meets_a_packet() {
    check(2, || {
        let (mut pool, out) = pool(1);
        let (sleep, waker) = Sleep::new();
        let (event, bell) = (Event::new(), pool.bell().expect("the first"));
        let theirs = event.clone();
        let rings = spawn(move || {
            theirs.happens();
            bell.ring();
        });
        let threads = drop_on_threads::<1>(out);
        let both = |pool: &mut Pool| {
            pool.reclaim(|_| {});
            pool.out() == 0 && event.happened()
        };
        let ask = |pool: &mut Pool| match pool.out() {
            0 => pool.listen(&waker),
            _ => pool.arm(&waker, 1),
        };
        wait(&mut pool, &sleep, both, ask);
        join([rings]);
        join(threads);
        drop((pool, waker));
        let_go([sleep]);
    });
}

/// Two threads ring the bell, each for its own event. The sender notices both events.
///
/// Must fail with each of these mutants: bell-ring-release, bell-ring-acquire, pool-rung-acquire,
/// pool-arm-acquire.
#[test]
fn two_ring() {
    check(2, || {
        let (mut pool, kept) = pool(1);
        let (sleep, waker) = Sleep::new();
        let bell = Arc::new(pool.bell().expect("the first"));
        let events = [Event::new(), Event::new()];
        let threads = events.clone().map(|event| {
            let bell = bell.clone();
            spawn(move || {
                event.happens();
                bell.ring();
            })
        });
        let both = |_: &mut Pool| events.iter().all(Event::happened);
        wait(&mut pool, &sleep, both, |pool| pool.arm(&waker, 1));
        join(threads);
        drop((pool, kept, waker, bell));
        let_go([sleep]);
    });
}

/// A sender drops its waker while the bell rings, and then waits for the bell with another waker.
/// The sender notices the event, and no thread keeps one of the wakers.
///
/// Must fail with each of these mutants: pool-forget-acquire, pool-forget-early, pool-wake-release,
/// bell-ring-acquire.
#[test]
fn a_ring_meets_a_waker_that_is_forgotten() {
    check(3, || {
        let (mut pool, kept) = pool(1);
        let ((sleep, waker), (other_sleep, other)) = (Sleep::new(), Sleep::new());
        let (event, bell) = (Event::new(), pool.bell().expect("the first"));
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        drop(waker);
        let theirs = event.clone();
        let rings = spawn(move || {
            theirs.happens();
            bell.ring();
        });
        pool.forget_waker();
        wait(&mut pool, &other_sleep, |_| event.happened(), |pool| pool.listen(&other));
        join([rings]);
        drop((pool, kept, other));
        let_go([sleep, other_sleep]);
    });
}

/// A sender calls `reclaim`, which cancels its request to be woken, while another thread rings the
/// sender's bell. The sender notices the event for which that thread rang.
///
/// Must fail with each of these mutants: bell-ring-release, bell-ring-acquire, bell-ring-forgets,
/// pool-arm-deaf.
#[test]
fn a_ring_meets_a_reclaim() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let ((sleep, waker), (other_sleep, other)) = (Sleep::new(), Sleep::new());
        let (event, bell) = (Event::new(), pool.bell().expect("the first"));
        assert_eq!(pool.arm(&waker, 2), Armed::Armed);
        drop(waker);
        let [first, second] = split(out);
        drop(first);
        let theirs = event.clone();
        let rings = spawn(move || {
            theirs.happens();
            bell.ring();
        });
        assert_eq!(pool.reclaim(|_| {}), 1);
        wait(&mut pool, &other_sleep, |_| event.happened(), |pool| pool.arm(&other, 1));
        join([rings]);
        assert_eq!((pool.returned(), pool.out()), (0, 1));
        drop((pool, second, other));
        let_go([sleep, other_sleep]);
    });
}

/// One thread drops a pool, a second thread rings the pool's bell and drops it, and a third thread
/// returns the pool's last packet. Exactly one of these threads frees the home, the memory that the
/// pool, its bell and its packets share.
///
/// Must fail with each of these mutants: bell-drop-release, bell-drop-acquire, pool-wake-acquire,
/// pool-forget-acquire.
#[test]
fn a_pool_goes_as_its_bell_rings() {
    check(3, || {
        let (mut pool, out) = pool(1);
        let (sleep, waker) = Sleep::new();
        let bell = pool.bell().expect("the first");
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        drop(waker);
        let rings = spawn(move || {
            bell.ring();
            drop(bell);
        });
        let threads = drop_on_threads::<1>(out);
        drop(pool);
        join([rings]);
        join(threads);
        let_go([sleep]);
    });
}

/// Three threads drop a pool, the pool's bell and its last packet, in any order. The home, the
/// memory that pool, bell and packet share, is freed once.
///
/// Must fail with each of these mutants: bell-drop-acquire, pool-close-acquire, pool-close-release,
/// pool-put-acquire, pool-put-release.
#[test]
fn a_bell_a_pool_and_a_packet_go() {
    check(3, || {
        let (mut pool, out) = pool(1);
        let bell = pool.bell().expect("the first");
        let rings = spawn(move || drop(bell));
        let threads = drop_on_threads::<1>(out);
        drop(pool);
        join([rings]);
        join(threads);
    });
}

/// A sender waits for two packets. The sender itself takes one packet back while another thread
/// returns another packet. Each of these packets counts for the sender's request, and the thread
/// whose packet comes second calls the sender's waker.
///
/// Must fail with each of these mutants: pool-put-release, pool-reclaim-acquire.
#[test]
fn what_is_taken_back_counts() {
    check(3, || {
        let (mut pool, out) = pool(3);
        let (sleep, waker) = Sleep::new();
        let [first, second, third] = split(out);
        assert_eq!(pool.arm(&waker, 2), Armed::Armed);
        let thread = spawn(move || drop(first));
        pool.take_back(second);
        while pool.returned() < 1 {
            sleep.0.wait();
        }
        assert_eq!((pool.reclaim(|_| {}), pool.out()), (1, 1));
        join([thread]);
        drop((pool, third, waker));
        let_go([sleep]);
    });
}

/// A sender that waits for a packet takes that packet back itself while the bell rings. One of the
/// two events wakes the sender.
///
/// Must fail with each of these mutants: bell-ring-acquire, bell-ring-release, pool-arm-deaf.
#[test]
fn what_is_taken_back_meets_a_ring() {
    check(3, || {
        let (mut pool, out) = pool(2);
        let ((sleep, waker), (other_sleep, other)) = (Sleep::new(), Sleep::new());
        let (event, bell) = (Event::new(), pool.bell().expect("the first"));
        let [first, second] = split(out);
        assert_eq!(pool.arm(&waker, 1), Armed::Armed);
        drop(waker);
        let theirs = event.clone();
        let rings = spawn(move || {
            theirs.happens();
            bell.ring();
        });
        pool.take_back(first);
        sleep.0.wait();
        wait(&mut pool, &other_sleep, |_| event.happened(), |pool| pool.arm(&other, 1));
        join([rings]);
        assert_eq!((pool.returned(), pool.out()), (0, 1));
        drop((pool, second, other));
        let_go([sleep, other_sleep]);
    });
}
