//! The requests to be woken that a sender can make of its pool, and what happens when a request is
//! replaced, cancelled or answered.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use onramp_queue::{Armed, Credits, Packet, PacketList, Pool};

use super::{Calls, pool};

fn pool_out(packets: u32) -> (Pool, Vec<Packet>) {
    let mut pool = pool(packets, u32::MAX);
    let out = std::iter::from_fn(|| pool.take(8)).collect();
    (pool, out)
}

#[test]
fn a_pool_tells_what_it_was_made_with() {
    let credits = Credits { packets: 7, bytes: 900 };
    let pool = Pool::new(credits);
    assert_eq!((pool.credits(), pool.out(), pool.below(), pool.returned()), (credits, 0, 0, 0));
}

/// Returns how many packets can be taken out of the pool, and gives them back at once.
fn room(pool: &mut Pool) -> usize {
    let all: Vec<_> = std::iter::from_fn(|| pool.take(8)).collect();
    let count = all.len();
    all.into_iter().for_each(|pkt| pool.take_back(pkt));
    count
}

#[test]
fn a_pool_may_be_allowed_less_for_a_while() {
    let mut pool = pool(5, 1_000);
    for (allowed, expected) in [(3, 3), (1, 1), (0, 1), (4, 4), (5, 5), (6, 5), (u32::MAX, 5)] {
        pool.allow(allowed);
        assert_eq!(room(&mut pool), expected, "allowed {allowed}");
        assert_eq!(pool.credits().packets, 5, "what it was made with stays");
    }
    // More packets are out than the pool now allows. No packet can be taken until enough of them
    // are back.
    let mut out: Vec<_> = std::iter::from_fn(|| pool.take(8)).collect();
    pool.allow(2);
    for left in [4, 3, 2] {
        assert!(!pool.has_room(8), "more are out than {left}");
        pool.take_back(out.pop().expect("one of five"));
    }
    assert!(!pool.has_room(8), "two are out");
    pool.take_back(out.pop().expect("one of two"));
    assert!(pool.has_room(8));
}

/// If a sender replaces its request by a smaller one that is answered at once, the larger request
/// has ended, too.
#[test]
fn an_answer_ends_the_request_before() {
    let (mut pool, mut out) = pool_out(3);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 3), Armed::Armed);
    out.truncate(1);
    assert_eq!(pool.arm(&waker, 2), Armed::Ready, "two are home");
    drop(out);
    assert_eq!((calls.count(), pool.returned()), (0, 3), "nobody asked for the third");
}

/// When a request has ended, its waker is not called for later events.
#[test]
fn who_took_the_request_back_hears_no_bell() {
    let (mut pool, mut out) = pool_out(3);
    let bell = pool.bell().expect("the first");
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    pool.disarm();
    bell.ring();
    bell.ring();
    bell.ring();
    assert_eq!(calls.count(), 0, "disarmed");
    assert_eq!(pool.arm(&waker, 1), Armed::Ready, "it rang");
    // `reclaim` ends the request to be woken if packets have come home.
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    drop(out.pop());
    assert_eq!(pool.reclaim(|_| {}), 1);
    bell.ring();
    bell.ring();
    assert_eq!(calls.count(), 0, "reclaimed");
    assert_eq!(pool.arm(&waker, 1), Armed::Ready, "it rang");
    // When the bell (by which other threads wake a sender) has woken a sender, a packet that comes
    // home does not wake it again.
    assert_eq!(pool.arm(&waker, 1), Armed::Armed);
    bell.ring();
    drop(out.pop());
    assert_eq!((calls.count(), pool.returned()), (1, 1));
    assert_eq!(pool.arm(&waker, 2), Armed::Ready, "the bell, first of all");
    assert_eq!(pool.arm(&waker, 1), Armed::Ready, "then the packet");
    assert_eq!(pool.arm(&waker, 2), Armed::Armed);
    drop(out);
    assert_eq!((calls.count(), pool.reclaim(|_| {}), pool.out()), (2, 2, 0));
}

/// A listener (a sender that waits only for the bell) is woken by nothing else, however many
/// packets it takes out and gives back itself.
#[test]
fn a_listener_may_take_and_give_back_for_ever() {
    let mut pool = pool(2, 1_000);
    let bell = pool.bell().expect("the first");
    let (calls, waker) = Calls::new();
    assert_eq!(pool.listen(&waker), Armed::Armed);
    let turns = if cfg!(miri) { 10 } else { Credits::PACKETS_MAX + 10 };
    for _ in 0..turns {
        let pkt = pool.take(8).expect("a credit");
        pool.take_back(pkt);
    }
    assert_eq!((calls.count(), pool.out(), pool.returned()), (0, 0, 0));
    bell.ring();
    assert_eq!(calls.count(), 1);
}

/// Even in the largest pool, a listener (a sender that waits only for the bell) is not woken when
/// all packets but one come home.
#[test]
#[cfg_attr(miri, ignore = "too many packets for an interpreter")]
fn a_listener_with_a_large_pool() {
    let (mut pool, mut out) = pool_out(Credits::PACKETS_MAX);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.listen(&waker), Armed::Armed);
    out.truncate(1);
    assert_eq!((calls.count(), pool.returned()), (0, Credits::PACKETS_MAX - 1));
    pool.disarm();
    assert_eq!(pool.returned(), Credits::PACKETS_MAX - 1);
}

/// A request for nearly all packets of the largest pool also counts packets that the sender takes
/// back itself.
#[test]
#[cfg_attr(miri, ignore = "too many packets for an interpreter")]
fn a_large_request_counts_what_is_taken_back() {
    let (mut pool, mut out) = pool_out(Credits::PACKETS_MAX);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, Credits::PACKETS_MAX - 1), Armed::Armed);
    pool.take_back(out.pop().expect("one of many"));
    out.truncate(2);
    assert_eq!(calls.count(), 0, "one less than asked for");
    out.pop();
    assert_eq!(calls.count(), 1);
}

/// The same for all packets of the largest pool.
#[test]
#[cfg_attr(miri, ignore = "too many packets for an interpreter")]
fn the_largest_request_counts_what_is_taken_back() {
    let (mut pool, mut out) = pool_out(Credits::PACKETS_MAX);
    let (calls, waker) = Calls::new();
    assert_eq!(pool.arm(&waker, Credits::PACKETS_MAX), Armed::Armed);
    pool.take_back(out.pop().expect("one of many"));
    out.truncate(1);
    assert_eq!(calls.count(), 0, "one less than asked for");
    out.pop();
    assert_eq!(calls.count(), 1);
}

/// A waker that records how many packets of its pool are home when it is called.
#[derive(Default)]
struct Home {
    pool: Mutex<Option<Pool>>,
    home: Mutex<Vec<u32>>,
}

impl Wake for Home {
    fn wake(self: Arc<Self>) {
        let pool = self.pool.lock().expect("one thread");
        let home = pool.as_ref().expect("it was given").returned();
        self.home.lock().expect("one thread").push(home);
    }
}

/// The packets of a dropped list return home in runs of up to 1,024 packets, with one atomic
/// exchange for each run. A sender that waits for one packet finds the whole first run at home when
/// it is woken.
#[test]
fn packets_go_home_in_runs() {
    for (packets, found) in [(1, 1), (5, 5), (1_024, 1_024), (1_025, 1_024), (3_000, 1_024)] {
        if cfg!(miri) && packets > 5 {
            return;
        }
        let (mut pool, out) = pool_out(packets);
        let home = Arc::new(Home::default());
        assert_eq!(pool.arm(&Waker::from(home.clone()), 1), Armed::Armed);
        *home.pool.lock().expect("one thread") = Some(pool);
        drop(out.into_iter().collect::<PacketList>());
        assert_eq!(*home.home.lock().expect("one thread"), [found], "of {packets}");
        let pool = home.pool.lock().expect("one thread").take();
        assert_eq!(pool.expect("it is there").returned(), packets);
    }
}
