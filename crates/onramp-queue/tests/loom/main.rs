//! Models for the loom checker, which runs every interleaving of a few threads with every value
//! that the memory model lets them see.
//!
//! `cargo xtask loom` runs the models. The comment of each model lists the changes of the source
//! that make the model fail, after `Must fail with each of these mutants:`. Each name there is a
//! weakened ordering or a left-out step, which the source marks by `mutant::or` or `mutant::is`.
//! `cargo xtask mutants-loom` checks each entry of these lists.
#![cfg(loom)]

mod alarm;
mod gate;
mod intake;
mod mailbox;
mod mapped;
mod pool;
mod role;
mod room;
mod succession;
mod wait;
mod whole;

use std::cell::Cell;
use std::sync::Arc;

use loom::thread::{JoinHandle, yield_now};

thread_local! {
    /// Whether a thread that a model spawns runs before the spawning thread continues. Each test
    /// has its own value: the test harness runs each test on a system thread of its own, and loom
    /// runs all threads of a model on that system thread.
    static SPAWNED_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Checks `model` with at most `preemptions` forced thread switches. (With two more, the models of
/// single parts pass, too, and take ten minutes. With one more, all other models pass, too, and
/// take twenty minutes.)
///
/// loom looks for other interleavings only at accesses that conflict with the *last* access, so it
/// can miss some interleavings, depending on which thread starts. So this function checks the model
/// twice: with the spawning thread first, and with the spawned thread first.
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

/// Waits until all of `threads` have ended.
fn join<T, const N: usize>(threads: [JoinHandle<T>; N]) {
    for thread in threads {
        thread.join().unwrap();
    }
}
