//! Wakers may run any code. A thread can find out whether it runs inside a waker.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use onramp_queue::{Armed, Credits, Packet, Pool, hold_wakes, is_in_waker};

/// Makes a pool with one packet out. When that packet comes home, the pool calls `waker`.
fn armed(waker: &Waker) -> (Pool, Packet) {
    let mut pool = Pool::new(Credits { packets: 1, bytes: 1 });
    let pkt = pool.take(1).expect("a credit");
    assert_eq!(pool.arm(waker, 1), Armed::Armed);
    (pool, pkt)
}

/// A waker that records whether it runs inside a waker call. It then drops a packet, which may call
/// another waker, and records again.
#[derive(Default)]
struct Notes {
    seen: Mutex<Vec<bool>>,
    next: Mutex<Option<Packet>>,
}

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.seen.lock().expect("one thread").push(is_in_waker());
        let next = self.next.lock().expect("one thread").take();
        drop(next);
        self.seen.lock().expect("one thread").push(is_in_waker());
    }
}

#[test]
fn a_thread_knows_that_it_is_in_a_waker() {
    let (outer, inner) = (Arc::new(Notes::default()), Arc::new(Notes::default()));
    let (_first_pool, first) = armed(&Waker::from(outer.clone()));
    let (_second_pool, second) = armed(&Waker::from(inner.clone()));
    *outer.next.lock().expect("one thread") = Some(second);
    assert!(!is_in_waker());
    drop(first);
    assert!(!is_in_waker());
    assert_eq!(*outer.seen.lock().expect("one thread"), [true, true], "also behind the inner one");
    assert_eq!(*inner.seen.lock().expect("one thread"), [true, true]);
    // While `hold_wakes` is in force, wakers are not called. They are called later, and then the
    // thread counts as inside a waker.
    let held = Arc::new(Notes::default());
    let (_pool, pkt) = armed(&Waker::from(held.clone()));
    let hold = hold_wakes();
    drop(pkt);
    assert!(!is_in_waker() && held.seen.lock().expect("one thread").is_empty());
    drop(hold);
    assert_eq!(*held.seen.lock().expect("one thread"), [true, true]);
    assert!(!is_in_waker());
}

/// A waker that panics when it is called.
struct Bad(AtomicU32);

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
        panic!("as the test wants it");
    }
}

#[test]
#[cfg_attr(miri, ignore = "what the panic says is left alone, which is a leak")]
fn a_waker_that_panicked_has_ended() {
    let bad = Arc::new(Bad(AtomicU32::new(0)));
    let (mut pool, pkt) = armed(&Waker::from(bad.clone()));
    drop(pkt);
    assert_eq!((bad.0.load(SeqCst), is_in_waker()), (1, false));
    assert_eq!((pool.reclaim(|_| {}), pool.out()), (1, 0), "the packet is home all the same");
}
