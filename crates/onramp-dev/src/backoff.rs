//! Computes when to offer packets again to a device that was full.

use onramp_core::Instant;

/// Waiting times for a device that is full: they double from [`Backoff::FIRST_NS`] to
/// [`Backoff::LAST_NS`], and start again when the device sends a packet.
#[derive(Debug)]
pub(crate) struct Backoff {
    wait_ns: u64,
}

impl Backoff {
    /// The first wait, in nanoseconds: about as long as a gigabit link takes to send four full
    /// frames. A timer cannot keep a much shorter wait.
    pub(crate) const FIRST_NS: u64 = 50_000;
    /// The longest wait, in nanoseconds: 20 times the first one. So a device that has room again
    /// stays unused for at most this millisecond.
    pub(crate) const LAST_NS: u64 = 1_000_000;

    pub(crate) const fn new() -> Self {
        Self { wait_ns: Self::FIRST_NS }
    }

    /// Returns the time at which to offer packets to the device again, and doubles the next wait.
    pub(crate) fn wait(&mut self, now: Instant) -> Instant {
        let at = now.after(self.wait_ns);
        self.wait_ns = (self.wait_ns * 2).min(Self::LAST_NS);
        at
    }

    /// Starts again with the first wait, because the device has sent something.
    pub(crate) fn reset(&mut self) {
        self.wait_ns = Self::FIRST_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_a_millisecond_and_starts_again() {
        let mut backoff = Backoff::new();
        let mut waits = || backoff.wait(Instant(7)).since(Instant(7)) / 1_000;
        assert_eq!([waits(), waits(), waits(), waits()], [50, 100, 200, 400]);
        assert_eq!([waits(), waits(), waits()], [800, 1_000, 1_000]);
        backoff.reset();
        assert_eq!(backoff.wait(Instant(0)), Instant(50_000));
    }
}
