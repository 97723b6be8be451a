//! The attribute `#[test]` of this crate's tests runs them on the simulated machine.
#![cfg(sim)]

#[macro_use]
extern crate onramp_simulated_test;

use std::num::ParseIntError;

use onramp_machine::sync::atomic::{AtomicU32, Ordering::Relaxed};
use onramp_machine::testing::SMALL;
use onramp_machine::thread;

#[test]
fn a_test_is_a_thread_of_the_simulated_machine() {
    let processors = thread::available_parallelism().expect("a machine has processors");
    assert_eq!(processors.get(), usize::from(SMALL.topology.processors()));
    // Another simulated thread, and not one of the system, adds to what this one waits for.
    static SUM: AtomicU32 = AtomicU32::new(0);
    let real = std::thread::current().id();
    let adds = thread::spawn(move || {
        SUM.fetch_add(1, Relaxed);
        std::thread::current().id() == real
    });
    assert!(adds.join().expect("it does not panic"), "both are fibers of one real thread");
    assert_eq!(SUM.load(Relaxed), 1);
}

#[test]
fn a_test_may_return_an_error() -> Result<(), ParseIntError> {
    assert_eq!("7".parse::<u32>()?, 7);
    Ok(())
}

#[test]
#[should_panic(expected = "as it should")]
fn a_test_may_panic() {
    panic!("as it should");
}

#[test]
#[should_panic(expected = "threads wait for ever: main")]
fn a_test_that_waits_for_ever_fails() {
    thread::park();
}
