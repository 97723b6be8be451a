//! A thread's waker: waking it ends the next sleep of the thread that the waker was made for.

use std::task::Waker;
use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::{MonotonicClock, ThreadWaker};

/// A timeout longer than any sleep that a waker ends.
const LONG: Duration = Duration::from_secs(50);

/// Checks that both ways to wake a thread (by value and by reference) end the next sleep of this
/// thread at once.
fn wakes(waker: &Waker) {
    let by_value = waker.clone();
    let ways: [Box<dyn FnOnce()>; 2] =
        [Box::new(|| waker.wake_by_ref()), Box::new(|| by_value.wake())];
    for wake in ways {
        // Use up a wake-up that is left over, such as the one at the end of a thread scope.
        thread::park_timeout(Duration::ZERO);
        wake();
        let before = MonotonicClock.now();
        thread::park_timeout(LONG);
        assert!(MonotonicClock.now() < before + LONG, "nobody woke it");
    }
}

#[test]
fn a_thread_keeps_its_waker() {
    let mut mine = ThreadWaker::default();
    let first = mine.get().clone();
    assert!(mine.get().will_wake(&first), "it is made once");
    wakes(&first);
    // If another thread calls `get`, the waker wakes that other thread.
    let second = thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(!mine.get().will_wake(&first), "another thread sleeps now");
            let second = mine.get().clone();
            assert!(mine.get().will_wake(&second));
            wakes(&second);
            second
        });
        other.join().expect("it was woken")
    });
    let third = mine.get().clone();
    assert!(!third.will_wake(&first) && !third.will_wake(&second), "a new one");
    wakes(&third);
}
