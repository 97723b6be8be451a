//! The cost of a packet on a link: the time that the packet's bytes, and the bytes that the link
//! adds, take at a given rate.
//!
//! Source: `tc-stab(8)`, sections "overhead", "mpu", "linklayer"; behaviour of Linux 7.2
//! `net/sched/sch_generic.c` (`psched_ratecfg_precompute`) and of iproute2 6.1 `tc/tc_core.c`.

use crate::base::Fault;
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::show::Out;

/// The option `overhead`: bytes that a link adds to each packet.
pub(crate) const OVERHEAD: Param =
    Param::new("overhead", Unit::Bytes, Default::Off, "bytes that the link adds to each packet")
        .within(0, u16::MAX as u64)
        .refused(Fault::Usage)
        .reset()
        .decimal()
        .short();

/// The option `mpu`: a packet of fewer bytes counts as this many bytes.
pub(crate) const MPU: Param = Param::new(
    "mpu",
    Unit::Bytes,
    Default::Off,
    "smallest number of bytes that a packet counts for",
)
.within(0, u16::MAX as u64)
.refused(Fault::Usage)
.reset()
.decimal();

/// The option `linklayer`: whether the link cuts packets into ATM cells.
pub(crate) const LINKLAYER: Param = Param::new(
    "linklayer",
    Unit::Choice(&["ethernet", "atm", "adsl"]),
    Default::Off,
    "atm and adsl count cells of 53 bytes that carry 48 bytes each",
)
.reset()
.short();

/// Prints the link layer as `tc` shows it. Without details, `tc` shows only a link layer that is
/// not ethernet.
pub(crate) fn show_linklayer(values: &Values<'_>, out: &mut Out) {
    let cells = values.number("linklayer") > 0;
    if cells || out.style.details {
        let name = if cells { "atm" } else { "ethernet" };
        out.string("linklayer", name, format_args!("linklayer {name} "));
    }
}

/// How many bytes a packet occupies on a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framing {
    overhead: u32,
    mpu: u32,
    cells: bool,
}

impl Framing {
    /// Creates a framing that adds `overhead` bytes, counts at least `mpu` bytes, and, if `cells`
    /// is true, counts whole ATM cells.
    pub(crate) fn new(overhead: u32, mpu: u32, cells: bool) -> Self {
        Self { overhead, mpu, cells }
    }

    /// Creates a framing from the options [`OVERHEAD`], [`MPU`] and [`LINKLAYER`].
    pub(crate) fn of(values: &Values<'_>) -> Self {
        Self {
            overhead: values.number32("overhead"),
            mpu: values.number32("mpu"),
            cells: values.number("linklayer") > 0,
        }
    }
}

/// Converts lengths of packets to nanoseconds at a fixed rate, by a multiplication and a shift.
/// Linux computes in the same way, so that the rounding errors, which add up over thousands of
/// packets, are the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    multiplier: u64,
    shift: u32,
    framing: Framing,
}

/// The largest shift. `Cost::new` chooses the shift with which the multiplier has 32 bits, or this
/// shift if a larger one would be needed.
const SHIFT_MAX: u32 = 34;

impl Cost {
    /// Creates a cost for `rate` bytes per second, which must not be zero.
    pub(crate) fn new(rate: u64, framing: Framing) -> Self {
        let multiplier = |shift: u32| (1_000_000_000_u64 << shift) / rate.max(1);
        let shift = (0..SHIFT_MAX).find(|shift| multiplier(*shift) >> 31 > 0);
        let shift = shift.unwrap_or(SHIFT_MAX);
        Self { multiplier: multiplier(shift), shift, framing }
    }

    /// Returns the nanoseconds that a packet of `len` bytes takes on the link.
    #[inline]
    pub(crate) fn ns(&self, len: u32) -> i64 {
        let framing = &self.framing;
        let mut bytes = u64::from(len.saturating_add(framing.overhead).max(framing.mpu));
        if framing.cells {
            bytes = bytes.div_ceil(48) * 53;
        }
        // The multiplication saturates, because with cells the product may just exceed 64 bits.
        // `shift` is at least 2, so the result fits into 63 bits.
        (bytes.saturating_mul(self.multiplier) >> self.shift).cast_signed()
    }
}

/// Returns the nanoseconds that `bytes` take at `rate` bytes per second, as `tc` passes them to
/// Linux: rounded down to whole microseconds, then to whole units of 64 ns. A millisecond has
/// 15,625 such units.
pub(crate) fn ticked_ns(rate: u64, bytes: u64) -> i64 {
    #[expect(clippy::cast_precision_loss, reason = "tc computes with floating point numbers")]
    let micros = 1e6 * (bytes as f64 / rate as f64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let micros = u64::from(micros as u32);
    (micros * 125 / 8 * 64).cast_signed()
}

/// Returns the size in bytes that `tc` shows for a bucket that is `ns` nanoseconds deep at `rate`
/// bytes per second. The kernel tells `tc` the depth as a 32-bit number of units of 64 ns, which
/// `tc` converts to whole microseconds.
pub(crate) fn shown_bytes(rate: u64, ns: i64) -> u64 {
    let ticks = (ns.cast_unsigned() / 64) & u64::from(u32::MAX);
    let bytes = u128::from(rate) * u128::from(shown_micros(ticks)) / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns the whole microseconds in a number of units of 64 ns (`tc`'s ticks).
pub(crate) const fn shown_micros(ticks: u64) -> u64 {
    ticks * 8 / 125
}

/// Returns the bytes that Linux charges for the memory of a datagram of `len` bytes on the wire:
/// its buffer, rounded up to a size that Linux's allocators have, and its metadata
/// (`struct sk_buff`).
#[inline]
pub(crate) fn memory(len: u32) -> u64 {
    const HEADROOM: u64 = 17;
    const TRAILER: u64 = 320;
    const HEADER: u64 = 256;
    /// The largest `len` for which Linux takes the buffer from its cache for small packets, and the
    /// size of such a buffer in bytes.
    const SMALL: (u32, u64) = (239, 576);
    if len <= SMALL.0 {
        return SMALL.1 + HEADER;
    }
    (u64::from(len) + HEADROOM + TRAILER).next_power_of_two() + HEADER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_as_long_as_its_bytes() {
        let cost = Cost::new(1_000_000, Framing::default());
        assert_eq!((cost.ns(1000), cost.ns(1)), (1_000_000, 1_000));
        // At 3 bytes per second, 8 bytes take 2,666,666,666.6 ns, rounded down.
        assert_eq!(Cost::new(3, Framing::default()).ns(8), 2_666_666_666);
        // The time of a byte, 10^9 / 3 ns, is stored times 2^3 as the multiplier 2,666,666,666 (32
        // bits), so that the result for 1,000 bytes is 83 ns too small.
        assert_eq!(Cost::new(3, Framing::default()).ns(1_000), 2_666_666_666 * 1_000 / 8);
        // At a terabyte per second, a packet of 65,535 bytes takes 65 ns (65.535, rounded down).
        assert_eq!(Cost::new(1_000_000_000_000, Framing::default()).ns(65_535), 65);
    }

    #[test]
    fn the_link_adds_to_it() {
        let framing = Framing { overhead: 24, mpu: 84, cells: false };
        let cost = Cost::new(1_000_000, framing);
        assert_eq!((cost.ns(59), cost.ns(60), cost.ns(61)), (84_000, 84_000, 85_000));
        // With an overhead of 10 bytes, a packet of 38 bytes fits into one cell of 48 bytes; one
        // byte more needs two cells.
        let cost = Cost::new(1_000_000, Framing { overhead: 10, mpu: 0, cells: true });
        assert_eq!((cost.ns(38), cost.ns(39)), (53_000, 106_000));
    }

    #[test]
    fn bursts_come_in_ticks() {
        // At 875,000 bytes per second, 15,000 bytes take 17,142.857 us. 17,142 us are 267,843.75
        // units of 64 ns, rounded down.
        assert_eq!(ticked_ns(875_000, 15_000), 267_843 * 64);
        assert_eq!(ticked_ns(1_250_000, 15_000), 12_000_000);
        assert_eq!(ticked_ns(1_000_000_000, 100), 0);
    }

    #[test]
    fn memory_is_charged_as_in_linux() {
        for (len, bytes) in
            [(60, 832), (239, 832), (240, 1280), (687, 1280), (688, 2304), (1514, 2304)]
        {
            assert_eq!(memory(len), bytes, "{len}");
        }
    }
}
