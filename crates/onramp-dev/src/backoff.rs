//! When to ask a full device again.

use onramp_core::Instant;

/// Waits that double from [`Backoff::FIRST_NS`] to [`Backoff::LAST_NS`] until something is sent.
#[derive(Debug)]
pub(crate) struct Backoff {
    wait_ns: u64,
}

impl Backoff {
    /// The first wait: about as long as a gigabit link takes to empty four full frames, and no
    /// shorter than a timer can keep.
    pub(crate) const FIRST_NS: u64 = 50_000;
    /// The longest wait: 20 times the first leaves a device idle for a millisecond at worst.
    pub(crate) const LAST_NS: u64 = 1_000_000;

    pub(crate) const fn new() -> Self {
        Self { wait_ns: Self::FIRST_NS }
    }

    /// When to ask again.
    pub(crate) fn wait(&mut self, now: Instant) -> Instant {
        let at = now.after(self.wait_ns);
        self.wait_ns = (self.wait_ns * 2).min(Self::LAST_NS);
        at
    }

    /// Something was sent.
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
