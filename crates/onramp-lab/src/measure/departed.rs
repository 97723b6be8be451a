//! A count of the packets that have left a design on the simulated machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Phase, PhaseCell};

/// Numbers of packets that have left a design. To count them costs no simulated time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departed(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    phase: Arc<PhaseCell>,
    all: AtomicU64,
    measured: AtomicU64,
}

impl Departed {
    /// Makes a count for a run whose phases `phase` tells.
    pub(crate) fn new(phase: Arc<PhaseCell>) -> Self {
        Self(Arc::new(Counts { phase, ..Counts::default() }))
    }

    /// Counts packets that have just left.
    pub(crate) fn add(&self, packets: u64) {
        // Relaxed: the counts publish no other data.
        self.0.all.fetch_add(packets, Ordering::Relaxed);
        if self.0.phase.get() == Phase::Measure {
            self.0.measured.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Returns the number of all packets that have left.
    pub(crate) fn all(&self) -> u64 {
        self.0.all.load(Ordering::Relaxed) // Relaxed: the counts publish no other data.
    }

    /// Returns the number of packets that left while the phase was `Measure`.
    pub(crate) fn measured(&self) -> u64 {
        self.0.measured.load(Ordering::Relaxed) // Relaxed: the counts publish no other data.
    }
}
