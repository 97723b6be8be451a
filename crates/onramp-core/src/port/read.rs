//! What other threads may read of a port.

use super::Port;
use crate::base::stats::{PortSnapshot, PortStats};
use crate::port::Device;

impl<D: Device> Port<D> {
    /// Returns the port's counters.
    pub fn stats(&self) -> &PortStats {
        &self.stats
    }

    /// Returns the present values of the port's counters.
    pub fn snapshot(&self) -> PortSnapshot {
        self.stats.snapshot(u64::from(self.intake.waiting()))
    }

    /// Returns the message of the panic that killed the port, or `None` if the port is alive.
    pub fn death(&self) -> Option<&str> {
        self.known.death.get().map(|why| &**why)
    }

    /// Whether the port holds no packet and has no owner. Only a hint while senders are active.
    pub fn is_quiet(&self) -> bool {
        // The order matters: once the intake is quiet, the last owner has already stored the
        // backlog that it left.
        self.intake.is_quiet() && self.stats.backlog.get() == 0
    }

    /// Whether the intake holds its cap of packets. Only a hint: the answer may be stale.
    pub fn is_full(&self) -> bool {
        self.intake.waiting() >= u32::from(self.intake.cap())
    }

    /// Whether the port is busy, so that pushes only stage packets. Only a hint: the answer may be
    /// stale.
    pub fn is_busy(&self) -> bool {
        self.intake.is_busy()
    }
}
