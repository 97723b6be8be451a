//! Where threads gather so that all begin at once, and what tells them to measure and to stop.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// A start line. Unlike `std::sync::Barrier` it can be opened before all have come, because some
/// could not be started; and who passes takes no lock, so that the last of hundreds does not wait
/// for all before it.
#[derive(Debug, Default)]
pub struct Gate {
    open: AtomicBool,
    waiting: Mutex<Vec<Thread>>,
    came: Condvar,
}

impl Gate {
    /// Waits until the gate opens.
    pub fn wait(&self) {
        self.lock().push(thread::current());
        self.came.notify_all();
        // Acquire: pairs with the release in `open`.
        while !self.open.load(Ordering::Acquire) {
            thread::park();
        }
    }

    /// Waits until `count` threads wait at the gate.
    pub fn gathered(&self, count: usize) {
        let mut waiting = self.lock();
        while waiting.len() < count {
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets all pass, those who come later too.
    pub fn open(&self) {
        // Release: pairs with the acquire in `wait`.
        self.open.store(true, Ordering::Release);
        self.unpark();
    }

    /// Wakes all that ever waited here, should they sleep: after a change of phase.
    pub fn unpark(&self) {
        for thread in self.lock().iter() {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Thread>> {
        // The list is valid at every moment, whoever panicked.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the threads of an experiment are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Running, but nothing counts yet.
    WarmUp,
    /// Everything counts.
    Measure,
    /// To end, at once.
    Stop,
}

/// The present phase: set by one thread, looked at by all.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PhaseCell(AtomicU8);

impl PhaseCell {
    /// Warming up.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The present phase.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Phase {
        // Relaxed: nothing else is published by a change of phase.
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    /// Whether it is time to end: for loops that spin.
    #[must_use]
    #[inline]
    pub fn is_stop(&self) -> bool {
        self.get() == Phase::Stop
    }

    /// Goes on to `phase`.
    pub fn set(&self, phase: Phase) {
        // Relaxed: as in `get`.
        self.0.store(phase as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_passes_a_closed_gate() {
        let (gate, passed) = (Gate::default(), AtomicU8::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    gate.wait();
                    passed.fetch_add(1, Ordering::SeqCst);
                });
            }
            gate.gathered(8);
            assert_eq!(passed.load(Ordering::SeqCst), 0);
            gate.open();
        });
        assert_eq!(passed.load(Ordering::SeqCst), 8);
        gate.wait(); // It stays open.
    }

    #[test]
    fn phases_read_back() {
        let phase = PhaseCell::default();
        assert_eq!(phase.get(), Phase::WarmUp);
        for next in [Phase::Measure, Phase::Stop] {
            phase.set(next);
            assert_eq!(phase.get(), next);
        }
        assert!(phase.is_stop());
    }
}
