//! Service curves in integer arithmetic: a curve consists of two straight lines, and a path is a
//! curve that starts at a given time and number of bytes.
//!
//! Source: I. Stoica, H. Zhang, T. S. E. Ng, "A Hierarchical Fair Service Curve Algorithm for
//! Link-Sharing, Real-Time and Priority Services", 1997; the fixed-point formats are those of Linux
//! 7.2, so that results are rounded in the same way. Time is counted in units of 64 ns, service in
//! bytes.

/// The unit of time (called tick in the code) is 2 to this power nanoseconds long: 64 ns.
const TICK_SHIFT: u32 = 6;
const TICKS_PER_SEC: u64 = 1_000_000_000 >> TICK_SHIFT;
/// Number of fractional bits of a slope in bytes per 64 ns.
const SLOPE_BITS: u32 = 30 - TICK_SHIFT;
/// Number of fractional bits of an inverse slope in units of 64 ns per byte.
const INVERSE_BITS: u32 = 8 + TICK_SHIFT;
/// The inverse of a slope of zero; also the time that such a slope needs for any number of bytes.
const NEVER: u64 = u64::MAX;

/// Converts the time `ns` from nanoseconds to whole units of 64 ns, rounded down.
pub(super) fn tick(ns: u64) -> u64 {
    ns >> TICK_SHIFT
}

/// Converts the time `tick` from units of 64 ns to nanoseconds.
pub(super) fn tick_ns(tick: u64) -> u64 {
    tick.saturating_mul(1 << TICK_SHIFT)
}

/// Returns `number * factor`, where one of the two has `bits` fractional bits, without using a
/// wider integer type.
fn scaled(number: u64, factor: u64, bits: u32) -> u64 {
    let low = number & ((1 << bits) - 1);
    (number >> bits).wrapping_mul(factor).wrapping_add(low.wrapping_mul(factor) >> bits)
}

/// The slope of a line: `forth` is bytes per 64 ns, `back` is units of 64 ns per byte. Both are
/// fixed-point numbers.
#[derive(Clone, Copy, Debug)]
struct Slope {
    forth: u64,
    back: u64,
}

impl Slope {
    /// Creates the slope for a rate in bytes per second. Both `forth` and `back` are rounded up.
    fn new(rate: u64) -> Self {
        let back = if rate == 0 { NEVER } else { (TICKS_PER_SEC << INVERSE_BITS).div_ceil(rate) };
        Self { forth: (rate << SLOPE_BITS).div_ceil(TICKS_PER_SEC), back }
    }

    fn bytes(self, ticks: u64) -> u64 {
        scaled(ticks, self.forth, SLOPE_BITS)
    }

    fn ticks(self, bytes: u64) -> u64 {
        match (bytes, self.back) {
            (0, _) => 0,
            (_, NEVER) => NEVER,
            (_, back) => scaled(bytes, back, INVERSE_BITS),
        }
    }
}

/// A service curve: a first slope for some time, and a second slope after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Curve {
    first: Slope,
    second: Slope,
    /// How long the first slope lasts, in units of 64 ns, and how many bytes it reaches in that
    /// time.
    ticks: u64,
    bytes: u64,
}

impl Curve {
    /// Creates a curve from the numbers of an option: the first rate, for how many nanoseconds it
    /// holds, and the second rate. Returns `None` if both rates are zero.
    pub(super) fn of(option: &[u64]) -> Option<Self> {
        let [m1, d_ns, m2] = option else { return None };
        if (*m1, *m2) == (0, 0) {
            return None;
        }
        let first = Slope::new(*m1);
        let ticks = (d_ns / 1_000 * TICKS_PER_SEC).div_ceil(1_000_000);
        Some(Self { first, second: Slope::new(*m2), ticks, bytes: first.bytes(ticks) })
    }

    /// Whether the second slope is at least as steep as the first.
    fn is_convex(&self) -> bool {
        self.first.forth <= self.second.forth
    }

    /// Returns the path that follows this curve, starting at the time `tick`, in units of 64 ns,
    /// with `bytes` bytes.
    pub(super) fn at(self, tick: u64, bytes: u64) -> Path {
        Path { tick, bytes, curve: self }
    }
}

/// A service curve that starts at a given time and number of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    tick: u64,
    bytes: u64,
    /// The curve that the path follows. [`lower`](Self::lower) may have shortened its first slope.
    curve: Curve,
}

impl Path {
    /// Returns the time, in units of 64 ns, at which the path (a service curve with a starting
    /// point) reaches `bytes` bytes.
    pub(super) fn tick_of(&self, bytes: u64) -> u64 {
        let Self { tick, bytes: from, curve } = *self;
        if bytes < from {
            return tick;
        }
        let bytes = bytes - from;
        if bytes > curve.bytes {
            let on = curve.second.ticks(bytes - curve.bytes);
            tick.wrapping_add(curve.ticks).wrapping_add(on)
        } else if curve.bytes == 0 {
            tick.wrapping_add(curve.ticks)
        } else {
            tick.wrapping_add(curve.first.ticks(bytes))
        }
    }

    /// Returns how many bytes the path (a service curve with a starting point) has reached at the
    /// time `tick`, in units of 64 ns.
    fn bytes_at(&self, tick: u64) -> u64 {
        let Self { tick: from, bytes, curve } = *self;
        let ticks = tick.saturating_sub(from);
        if ticks <= curve.ticks {
            bytes.wrapping_add(curve.first.bytes(ticks))
        } else {
            let on = curve.second.bytes(ticks - curve.ticks);
            bytes.wrapping_add(curve.bytes).wrapping_add(on)
        }
    }

    /// Replaces this path by the lower of two paths: this path itself, and a new path that follows
    /// `curve` and starts at the time `tick`, in units of 64 ns, with `bytes` bytes.
    pub(super) fn lower(&mut self, curve: &Curve, tick: u64, bytes: u64) {
        let here = self.bytes_at(tick);
        if curve.is_convex() {
            if here >= bytes {
                (self.tick, self.bytes) = (tick, bytes);
            }
            return;
        }
        if here <= bytes {
            return;
        }
        let there = self.bytes_at(tick.wrapping_add(curve.ticks));
        if there >= bytes.wrapping_add(curve.bytes) {
            *self = Self { tick, bytes, curve: *curve };
            return;
        }
        // The new path is lower at first, but the two paths cross. Let the new path change to its
        // second slope where they cross: from there on, the old path is the lower one and has that
        // slope.
        let lead = (here - bytes) << SLOPE_BITS;
        let mut ticks = lead / (curve.first.forth - curve.second.forth);
        ticks += self.tick.wrapping_add(self.curve.ticks).saturating_sub(tick);
        (self.tick, self.bytes) = (tick, bytes);
        (self.curve.ticks, self.curve.bytes) = (ticks, curve.first.bytes(ticks));
    }

    /// Returns the path along which packets become eligible (may be sent under the guarantee). This
    /// is the path itself if the second slope is flatter than the first; otherwise, it is the
    /// second slope alone, from the starting point on.
    pub(super) fn eligible(&self) -> Self {
        let mut path = *self;
        if path.curve.is_convex() {
            (path.curve.ticks, path.curve.bytes) = (0, 0);
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 Mbit/s is 125,000 bytes in one second (15,625,000 units of 64 ns), which is 8 thousandths
    /// of a byte per unit. Both `forth` (bytes per unit) and `back` (units per byte) are rounded
    /// up.
    #[test]
    fn both_directions_of_a_slope_round_up() {
        let slope = Slope::new(125_000);
        assert_eq!((slope.forth, slope.back), (134_218, 125 << INVERSE_BITS));
        assert_eq!(slope.bytes(15_625_000), 125_000);
        assert_eq!(slope.ticks(125_000), 15_625_000);
        assert_eq!((Slope::new(0).bytes(77), Slope::new(0).ticks(77)), (0, NEVER));
        assert_eq!(Slope::new(0).ticks(0), 0);
    }

    fn curve(m1: u64, d_ms: u64, m2: u64) -> Curve {
        Curve::of(&[m1, d_ms * 1_000_000, m2]).expect("it is not flat")
    }

    #[test]
    fn a_path_bends_where_its_first_slope_ends() {
        // 10 ms are 156,250 units of 64 ns; in that time, a rate of 250,000 bytes per second gives
        // 2,500 bytes.
        let path = curve(250_000, 10, 125_000).at(1_000, 500);
        assert_eq!(path.tick_of(400), 1_000);
        assert_eq!(path.tick_of(3_000), 1_000 + 156_250);
        assert_eq!(path.tick_of(3_125), 1_000 + 156_250 + 15_625);
        assert_eq!(path.bytes_at(1_000 + 156_250), 3_000);
        assert_eq!(path.bytes_at(1_000 + 156_250 + 15_625), 3_125);
        assert_eq!(path.bytes_at(0), 500);
        // With a convex curve, packets become eligible (may be sent under the guarantee) along the
        // second slope from the start.
        assert_eq!(path.eligible().tick_of(3_125), path.tick_of(3_125));
        let convex = curve(0, 10, 125_000).at(0, 0);
        assert_eq!((convex.tick_of(0), convex.tick_of(125)), (156_250, 156_250 + 15_625));
        assert_eq!((convex.eligible().tick_of(0), convex.eligible().tick_of(125)), (0, 15_625));
    }

    #[test]
    fn the_lower_of_two_curves_is_followed() {
        let concave = curve(250_000, 10, 125_000);
        // If the class starts a new path much later than the old one, the new path is the lower
        // one. If it starts a new path at the same time, but at more bytes, the old path is the
        // lower one.
        let mut path = concave.at(0, 0);
        path.lower(&concave, 10_000_000, 100);
        assert_eq!((path.tick, path.bytes, path.curve.ticks), (10_000_000, 100, 156_250));
        let mut path = concave.at(0, 0);
        path.lower(&concave, 0, 100);
        assert_eq!((path.tick, path.bytes), (0, 0));
        // 20 ms after its start, the old path is at 3,750 bytes. A new path that starts at that
        // time at 3,000 bytes catches up in 6 ms: its first slope is steeper by 125,000 bytes per
        // second.
        let mut path = concave.at(0, 0);
        path.lower(&concave, 312_500, 3_000);
        assert_eq!((path.tick, path.bytes), (312_500, 3_000));
        assert!(path.curve.ticks.abs_diff(93_750) <= 2, "{}", path.curve.ticks);
        assert!(path.curve.bytes.abs_diff(1_500) <= 1, "{}", path.curve.bytes);
    }
}
