//! The parameters of the RED law as a user gives them: how `tc` derives other values from them,
//! which it refuses, and how it shows them.

use super::shrinking;
use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::units::{PROBABILITY_PARTS, Size};
use crate::base::{Clash, shown};

/// The parameters of the law as a user gives them, in bytes, or in packets where `average_packet`
/// is 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// Number of packets that may arrive at once without a drop.
    pub(crate) burst: u32,
    /// Drop probability when the average reaches `max`, in units of 2^-32.
    pub(crate) probability: u32,
    /// Size of a usual packet in bytes, or 1 if `min` and `max` count packets.
    pub(crate) average_packet: u32,
}

impl Shape {
    /// Reads the options `min`, `max`, `burst` and `probability`. If `min` or `max` is missing or
    /// zero, it is derived from `limit`.
    pub(crate) fn of(values: &Values<'_>, limit: u32, average_packet: u32) -> Self {
        let or = |key, other| if values.number(key) == 0 { other } else { values.number32(key) };
        let max = or("max", limit / 4);
        let min = or("min", max / 3);
        Self { max, ..Self::of_bounds(values, min, max, average_packet) }
    }

    /// Reads the options `burst` and `probability`, for given `min` and `max`.
    pub(crate) fn of_bounds(values: &Values<'_>, min: u32, max: u32, average_packet: u32) -> Self {
        let burst = match values.number32("burst") {
            0 => usual_burst(min, max, average_packet),
            given => given,
        };
        Self { min, max, burst, probability: values.number32("probability"), average_packet }
    }

    /// Checks what `tc` checks. Returns the weight of a new value in the average, as the n of 2^-n.
    pub(crate) fn check(&self) -> Result<u32, Clash> {
        let Self { min, max, burst, average_packet, .. } = *self;
        if min > max {
            return Err(Clash::usage("min", format!("{min} is more than max, {max}")));
        }
        let weight = weight(min, burst, average_packet).ok_or_else(|| {
            let least = min.div_ceil(average_packet.max(1));
            let why = if burst < least {
                format!("{burst} is too small: expected {least} or more packets")
            } else {
                format!("{burst} is too large: so slow an average would never reach min, {min}")
            };
            Clash::usage("burst", why)
        })?;
        match self.halvings() {
            Some(_) => Ok(weight),
            None => Err(Clash::usage(
                "probability",
                "it is too small for the distance from min to max; raise it, or lower max",
            )),
        }
    }

    /// Returns these parameters and the weight of a new value in the average. The caller has made
    /// sure that `check` accepts the parameters.
    pub(crate) fn checked(self) -> (Self, u32) {
        let weight = self.check().unwrap_or(1);
        (self, weight)
    }

    /// Checks that `max` is at most the queue's limit, and `min` less than `max`. As in Linux,
    /// `choke` and `sfq` check this, but `red` does not.
    pub(crate) fn check_limit(&self, limit: u32) -> Result<(), Clash> {
        let Self { min, max, .. } = *self;
        if max > limit {
            return Err(Clash::usage("max", format!("{max} is more than the limit, {limit}")));
        }
        if min >= max {
            return Err(Clash::usage("min", format!("{min} is not less than max, {max}")));
        }
        Ok(())
    }

    /// Checks that averages, which are stored times 2^weight, fit into the bits that the kernel has
    /// for them.
    pub(crate) fn check_bits(&self) -> Result<(), Clash> {
        let (_, weight) = self.checked();
        let bits = |number: u32| u32::BITS - number.leading_zeros();
        for (key, number) in [("min", self.min), ("max", self.max)] {
            if bits(number) + weight >= 32 {
                let why = format!(
                    "{number} is too large for an average this slow; lower it, or lower burst"
                );
                return Err((key, why).into());
            }
        }
        Ok(())
    }

    /// Returns how often the probability per byte, which is the probability divided by `max - min`,
    /// must be doubled to exceed one, or `None` if 31 times is not enough.
    fn halvings(&self) -> Option<u32> {
        let span = self.max.checked_sub(self.min)?;
        let probability = match self.probability {
            u32::MAX => 1.0,
            parts => f64::from(parts) / PROBABILITY_PARTS,
        };
        let mut share = probability / f64::from(span);
        for halvings in 0..32 {
            if span == 0 || share > 1.0 {
                return Some(halvings);
            }
            share *= 2.0;
        }
        None
    }

    /// Returns the probability that the kernel uses. The probability 1 does not fit into the
    /// kernel's 32 bits; instead, the kernel uses the probability per byte that `tc` sends, which
    /// is a power of two, times the range `max - min`.
    pub(crate) fn max_p(&self) -> u32 {
        match self.halvings() {
            Some(halvings @ 1..) if self.probability == u32::MAX => {
                (u32::MAX >> halvings).wrapping_mul(self.max - self.min)
            }
            _ => self.probability,
        }
    }

    fn show_probability(&self, out: &mut Out) {
        shown::float(out, "probability", f64::from(self.max_p()) / PROBABILITY_PARTS);
    }
}

/// Returns the weight of a new value in the average, as the n of 2^-n: the greatest weight with
/// which a burst just reaches `min` from an empty queue. Returns `None` if `burst` is too small for
/// that, or far too large.
pub(super) fn weight(min: u32, burst: u32, average_packet: u32) -> Option<u32> {
    let needed = f64::from(burst) + 1.0 - f64::from(min) / f64::from(average_packet.max(1));
    if needed < 1.0 {
        return None;
    }
    (1..32).find(|weight| {
        let share = 0.5_f64.powi(i32::try_from(*weight).unwrap_or(i32::MAX));
        needed <= (1.0 - (1.0 - share).powf(f64::from(burst))) / share
    })
}

/// Returns the burst in packets that `tc` assumes if none is given, by Floyd's advice on
/// parameters.
fn usual_burst(min: u32, max: u32, average_packet: u32) -> u32 {
    let bytes = 2 * u64::from(min) + u64::from(max);
    u32::try_from(bytes / (3 * u64::from(average_packet.max(1)))).unwrap_or(u32::MAX)
}

/// Prints the RED parameters of a qdisc that has one queue, as `tc` shows them: the switches (`ecn`
/// and so on), and with the option `-d` also the weight, the probability and the length of a cell.
/// `packet` (bytes) and `rate` (bytes per second) decide how the average of an idle queue shrinks.
pub(crate) fn show_queue(
    values: &Values<'_>,
    (shape, weight): (Shape, u32),
    (packet, rate): (u32, u64),
    out: &mut Out,
) {
    show_flags(values, out);
    if out.style.details {
        shown::number(out, "ewma", weight.into());
        shape.show_probability(out);
        let (_, cells) = shrinking(weight, packet, rate);
        out.uint("Scell_log", cells.into(), format_args!("Scell_log {cells}"));
    }
}

/// Prints the parameters of the law that each flow has, as `tc` shows them.
pub(crate) fn show_flows(values: &Values<'_>, (shape, weight): (Shape, u32), out: &mut Out) {
    shown::number(out, "ewma", weight.into());
    for (key, bytes) in [("min", shape.min), ("max", shape.max)] {
        out.uint(key, bytes.into(), format_args!("{key} {} ", Size(bytes.into())));
    }
    shape.show_probability(out);
    show_flags(values, out);
}

/// Prints the switches `ecn`, `harddrop`, `adaptive` and `nodrop`: text has only those that are on,
/// JSON has all four.
fn show_flags(values: &Values<'_>, out: &mut Out) {
    for key in ["ecn", "harddrop", "adaptive", "nodrop"] {
        let on = values.has(key) && values.is_given(key);
        out.json(|json| json.raw(Some(key), format_args!("{on}")));
        if on {
            out.text(format_args!("{key} "));
        }
    }
}
