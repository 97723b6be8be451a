//! What threads that do not own a port may read of it.

use super::Port;
use crate::base::stats::{PortSnapshot, PortStats};
use crate::port::Device;

impl<D: Device> Port<D> {
    /// Returns the port's counters, which change while other threads send.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Returns a copy of the port's counters.
    pub fn snapshot(&self) -> PortSnapshot {
        self.stats.snapshot(u64::from(self.intake.waiting()))
    }

    /// Returns the message of the panic that killed the port, or `None` if the port is alive.
    pub fn death(&self) -> Option<&str> {
        self.known.death.get().map(|why| &**why)
    }

    /// Whether the port holds no packet and no thread owns it. While senders are active, the answer
    /// may be wrong at once.
    pub fn is_quiet(&self) -> bool {
        // Read the intake first: if the intake is quiet, the last owner has already stored how many
        // packets it left behind (`backlog`).
        self.intake.is_quiet() && self.stats.backlog.get() == 0
    }

    /// Whether the intake holds as many packets as it may. While other threads push or send, the
    /// answer may be wrong at once.
    pub fn is_full(&self) -> bool {
        self.intake.waiting() >= u32::from(self.intake.cap())
    }

    /// Whether the port is busy, so that pushes only stage packets. While other threads push or
    /// send, the answer may be wrong at once.
    pub fn is_busy(&self) -> bool {
        self.intake.is_busy()
    }
}
