//! What a packet costs on a link: the time that its bytes, and what the link adds, take at a rate.
//!
//! Source: `tc-stab(8)`, sections "overhead", "mpu", "linklayer"; behaviour of Linux 7.2
//! `net/sched/sch_generic.c` (`psched_ratecfg_precompute`) and of iproute2 6.1 `tc/tc_core.c`.

use crate::base::Fault;
use crate::base::params::{Default, Param, Unit, Values};
use crate::base::show::Out;

/// Bytes that a link adds to each packet.
pub(crate) const OVERHEAD: Param =
    Param::new("overhead", Unit::Bytes, Default::Off, "bytes that the link adds to each packet")
        .within(0, u16::MAX as u64)
        .refused(Fault::Usage)
        .reset()
        .short();

/// The least that a packet counts for.
pub(crate) const MPU: Param =
    Param::new("mpu", Unit::Bytes, Default::Off, "bytes that a packet counts for at least")
        .within(0, u16::MAX as u64)
        .refused(Fault::Usage)
        .reset();

/// What the link cuts packets into.
pub(crate) const LINKLAYER: Param = Param::new(
    "linklayer",
    Unit::Choice(&["ethernet", "atm", "adsl"]),
    Default::Off,
    "atm and adsl count cells of 53 bytes, which carry 48",
)
.reset()
.short();

/// Its name, as `tc` shows it; without details, only what is not ethernet.
pub(crate) fn show_linklayer(values: &Values<'_>, out: &mut Out) {
    let cells = values.number("linklayer") > 0;
    if cells || out.style.details {
        let name = if cells { "atm" } else { "ethernet" };
        out.string("linklayer", name, format_args!("linklayer {name} "));
    }
}

/// What the link makes of a packet's length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framing {
    overhead: u32,
    mpu: u32,
    cells: bool,
}

impl Framing {
    /// Adds `overhead`, counts `mpu` at least, and in cells of ATM or not.
    pub(crate) fn new(overhead: u32, mpu: u32, cells: bool) -> Self {
        Self { overhead, mpu, cells }
    }

    /// As [`OVERHEAD`], [`MPU`] and [`LINKLAYER`] say.
    pub(crate) fn of(values: &Values<'_>) -> Self {
        Self {
            overhead: values.number32("overhead"),
            mpu: values.number32("mpu"),
            cells: values.number("linklayer") > 0,
        }
    }
}

/// Lengths to nanoseconds, at a rate: multiplied and shifted, as Linux does, whose roundings
/// show after some thousand packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    multiplier: u64,
    shift: u32,
    framing: Framing,
}

/// The multiplier has 32 bits, but is never shifted further than this.
const SHIFT_MAX: u32 = 34;

impl Cost {
    /// At `rate` bytes per second, which is not zero.
    pub(crate) fn new(rate: u64, framing: Framing) -> Self {
        let multiplier = |shift: u32| (1_000_000_000_u64 << shift) / rate.max(1);
        let shift = (0..SHIFT_MAX).find(|shift| multiplier(*shift) >> 31 > 0);
        let shift = shift.unwrap_or(SHIFT_MAX);
        Self { multiplier: multiplier(shift), shift, framing }
    }

    /// Nanoseconds for a packet of `len` bytes.
    #[inline]
    pub(crate) fn ns(&self, len: u32) -> i64 {
        let framing = &self.framing;
        let mut bytes = u64::from(len.saturating_add(framing.overhead).max(framing.mpu));
        if framing.cells {
            bytes = bytes.div_ceil(48) * 53;
        }
        // 64 bits less a rate that is not zero: at most 2^32 packets of 2^32 bytes.
        (bytes.saturating_mul(self.multiplier) >> self.shift).cast_signed()
    }
}

/// Nanoseconds that `bytes` take at `rate` bytes per second, as `tc` hands them to Linux: in whole
/// microseconds, and of these in whole ticks of 64 ns, of which there are 15,625 in a millisecond.
pub(crate) fn ticked_ns(rate: u64, bytes: u64) -> i64 {
    #[expect(clippy::cast_precision_loss, reason = "tc computes with floating point numbers")]
    let micros = 1e6 * (bytes as f64 / rate as f64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let micros = u64::from(micros as u32);
    (micros * 125 / 8 * 64).cast_signed()
}

/// The bytes that `tc` shows for a bucket that is so many nanoseconds deep at `rate`: it knows
/// ticks, in 32 bits, and takes whole microseconds of them.
pub(crate) fn shown_bytes(rate: u64, ns: i64) -> u64 {
    let ticks = (ns.cast_unsigned() / 64) & u64::from(u32::MAX);
    let bytes = u128::from(rate) * u128::from(shown_micros(ticks)) / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The whole microseconds in a number of ticks.
pub(crate) const fn shown_micros(ticks: u64) -> u64 {
    ticks * 8 / 125
}

/// What Linux charges for the memory of a datagram of this length on the wire: its buffer, of the
/// sizes that its allocators have, and its header.
#[inline]
pub(crate) fn memory(len: u32) -> u64 {
    const HEADROOM: u64 = 17;
    const TRAILER: u64 = 320;
    const HEADER: u64 = 256;
    /// What fits the cache for small heads, and its size.
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
        // 8 bits at 3 bit/s and a half: 2,666,666,666.6 ns.
        assert_eq!(Cost::new(3, Framing::default()).ns(8), 2_666_666_666);
        // Its multiplier has 32 bits, 8e9 / 3 = 2,666,666,666, and is shifted by three: of 1,000
        // bytes, 83 ns are lost.
        assert_eq!(Cost::new(3, Framing::default()).ns(1_000), 2_666_666_666 * 1_000 / 8);
        // A terabyte per second: 65,535 bytes take 65 ns.
        assert_eq!(Cost::new(1_000_000_000_000, Framing::default()).ns(65_535), 65);
    }

    #[test]
    fn the_link_adds_to_it() {
        let framing = Framing { overhead: 24, mpu: 84, cells: false };
        let cost = Cost::new(1_000_000, framing);
        assert_eq!((cost.ns(59), cost.ns(60), cost.ns(61)), (84_000, 84_000, 85_000));
        // 10 and 38 bytes are a cell, one byte more are two.
        let cost = Cost::new(1_000_000, Framing { overhead: 10, mpu: 0, cells: true });
        assert_eq!((cost.ns(38), cost.ns(39)), (53_000, 106_000));
    }

    #[test]
    fn bursts_come_in_ticks() {
        // 17,142.857 us: 17,142 us are 267,843.75 ticks.
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
