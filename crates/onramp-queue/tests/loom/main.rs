//! Models: every interleaving of a few threads, and every value the memory model lets them see.
//!
//! `cargo xtask loom` runs them. Beside each model stands what breaks it (`Broken by:`): names
//! of weakened orderings and left-out steps, marked in the source by `mutant::or` and
//! `mutant::is`. `cargo xtask mutants-loom` proves each entry.
#![cfg(loom)]

mod alarm;
mod gate;
mod intake;
mod mailbox;
mod pool;
mod role;
mod succession;
mod wait;
mod whole;

use std::cell::Cell;
use std::sync::Arc;

use loom::thread::{JoinHandle, yield_now};

thread_local! {
    /// Whether a spawned thread goes first, or who spawns it. loom runs all threads of a model on
    /// one thread of the system, so each test has its own.
    static SPAWNED_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Checks `model`, with at most `preemptions` thread switches that nothing forces. (The models of
/// single parts also hold with two more; that takes ten minutes. All others hold with one more;
/// that takes twenty.)
///
/// loom looks for other orders by what conflicts with the *last* access only, so it can miss some
/// when it starts at the wrong end. It starts at both.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let model = Arc::new(model);
    for spawned_first in [false, true] {
        SPAWNED_FIRST.set(spawned_first);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        let model = model.clone();
        builder.check(move || model());
    }
}

fn spawn<T: 'static>(run: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let thread = loom::thread::spawn(run);
    if SPAWNED_FIRST.get() {
        yield_now();
    }
    thread
}

/// Waits for all of them.
fn join<T, const N: usize>(threads: [JoinHandle<T>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}
