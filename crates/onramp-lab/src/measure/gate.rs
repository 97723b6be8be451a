//! A gate at which the threads of an experiment wait until all of them can start together, and the
//! phase (warm-up, measurement or stop) that the threads read while they run.

#[cfg(sim)]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// A gate at which threads wait, so that they start together. Unlike `std::sync::Barrier`, the gate
/// can be opened before all threads have come, in case some of them could not be started. A waiting
/// thread takes no lock when the gate opens, so among hundreds of threads the last one does not
/// wait until all others have had the lock.
///
/// Threads of the simulated machine pass an open gate, but must not wait at a closed one: all of
/// them run in one real thread.
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

    /// Opens the gate: lets all waiting threads pass, and all threads that come later.
    pub fn open(&self) {
        // Release: pairs with the acquire in `wait`.
        self.open.store(true, Ordering::Release);
        self.unpark();
    }

    /// Wakes all threads that ever waited at this gate, whatever they wait for now. Call it after a
    /// change of phase, so that these threads notice the change.
    pub fn unpark(&self) {
        for thread in self.lock().iter() {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Thread>> {
        // Ignore a poisoned lock: the list is valid at every moment, even if a thread panicked
        // while it held the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A phase of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The threads run, but nothing is counted yet.
    WarmUp,
    /// The threads run, and everything is counted.
    Measure,
    /// The threads must stop as soon as they see this phase.
    Stop,
}

/// The current phase of an experiment. One thread sets it, and all threads read it.
///
/// On the simulated machine, reading the phase costs nothing, because it is no part of the designs.
/// There the phase may also change by itself, at fixed times.
#[derive(Debug)]
#[repr(align(128))]
pub struct PhaseCell {
    set: AtomicU8,
    #[cfg(sim)]
    by_time: ByTime,
}

impl PhaseCell {
    /// Makes a `PhaseCell` in the phase `WarmUp`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            set: AtomicU8::new(0),
            #[cfg(sim)]
            by_time: ByTime { measure: AtomicU64::new(u64::MAX), stop: AtomicU64::new(u64::MAX) },
        }
    }

    /// Returns the current phase.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Phase {
        // Relaxed: a change of phase publishes no other data.
        match self.set.load(Ordering::Relaxed) {
            #[cfg(sim)]
            0 => self.by_time.get(),
            #[cfg(not(sim))]
            0 => Phase::WarmUp,
            1 => Phase::Measure,
            _ => Phase::Stop,
        }
    }

    /// Whether threads must stop, because the phase is `Stop`. Meant for loops that spin.
    #[must_use]
    #[inline]
    pub fn is_stop(&self) -> bool {
        self.get() == Phase::Stop
    }

    /// Changes the phase to `phase`.
    pub fn set(&self, phase: Phase) {
        // Relaxed: a change of phase publishes no other data.
        self.set.store(phase as u8, Ordering::Relaxed);
    }
}

impl Default for PhaseCell {
    fn default() -> Self {
        Self::new()
    }
}

/// The times at which the phase changes by itself on the simulated machine, picoseconds.
#[cfg(sim)]
#[derive(Debug)]
struct ByTime {
    measure: AtomicU64,
    stop: AtomicU64,
}

#[cfg(sim)]
impl ByTime {
    fn get(&self) -> Phase {
        let now = onramp_machine::hook::time_ps().unwrap_or(0);
        // Relaxed: a change of phase publishes no other data.
        if now >= self.stop.load(Ordering::Relaxed) {
            Phase::Stop
        } else if now >= self.measure.load(Ordering::Relaxed) {
            Phase::Measure
        } else {
            Phase::WarmUp
        }
    }
}

#[cfg(sim)]
impl PhaseCell {
    /// Lets the phase become `Measure` and `Stop` at these simulated times, in picoseconds. So all
    /// threads change together, and no thread needs a processor in order to change the phase.
    pub(crate) fn change_at(&self, measure: u64, stop: u64) {
        // Relaxed: a change of phase publishes no other data.
        self.by_time.measure.store(measure, Ordering::Relaxed);
        self.by_time.stop.store(stop, Ordering::Relaxed);
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
        gate.wait(); // A thread that comes after the gate was opened passes, too.
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
