//! smoltcp's clock, which counts microseconds, and the clock of the trees, which counts
//! nanoseconds.

use onramp_core::Instant;
use smoltcp::time::Instant as Micros;

/// Returns the time for a tree. A time before the beginning of smoltcp's clock becomes the
/// beginning.
pub(crate) fn for_tree(at: Micros) -> Instant {
    Instant(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1_000))
}

/// Returns the first time of smoltcp's clock that is not before `at`.
pub(crate) fn for_stack(at: Instant) -> Micros {
    Micros::from_micros(i64::try_from(at.0.div_ceil(1_000)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_departure_is_never_asked_for_too_early() {
        assert_eq!(for_stack(Instant(0)), Micros::ZERO);
        assert_eq!(for_stack(Instant(1)), Micros::from_micros(1));
        assert_eq!(for_stack(Instant(1_000)), Micros::from_micros(1));
        assert_eq!(for_tree(for_stack(Instant(1_001))), Instant(2_000));
        assert_eq!(for_tree(Micros::from_micros(-5)), Instant(0));
        assert!(for_tree(for_stack(Instant::MAX)) >= Instant(u64::MAX - 1_000));
    }
}
