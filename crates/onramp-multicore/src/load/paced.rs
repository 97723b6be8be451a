//! Flows that have a pacing rate.

use onramp_core::Rate;

use super::Load;

/// Bytes that a flow's rate counts for a packet besides the payload: the headers of Ethernet, IPv4
/// and UDP. Flows without a destination count them too.
const HEADERS: u64 = 14 + 20 + 8;

/// The pacing of flows: each has this rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Bits on the wire that a flow sends in a second, headers included.
    pub bits_per_second: u64,
}

impl Pacing {
    /// Returns the time from one packet of a flow to the next, nanoseconds. `payload` is the number
    /// of bytes of a payload.
    #[must_use]
    pub fn gap_ns(self, payload: usize) -> u64 {
        let bits = (payload as u64 + HEADERS) * 8;
        bits * 1_000_000_000 / self.bits_per_second.max(1)
    }

    /// Returns the rate that a flow is given.
    pub(super) fn rate(self) -> Rate {
        Rate::bytes_per_second(self.bits_per_second / 8)
    }

    /// Checks that the load can be paced so, and measured.
    pub(super) fn check(self, load: &Load) -> Result<(), String> {
        let wrong = |why: String| Err(format!("pacing_bits_per_second: {why}"));
        let Self { bits_per_second } = self;
        if load.qdisc != "fq" {
            return wrong(format!("only the qdisc fq paces, and the qdisc is {}", load.qdisc));
        }
        if !(8..=MOST).contains(&bits_per_second) {
            return wrong(format!("{bits_per_second} is not between 8 and {MOST}"));
        }
        let gap_us = self.gap_ns(load.payload) / 1_000;
        if gap_us > load.measure_us / 2 {
            return wrong(format!(
                "at {bits_per_second} bits per second a flow sends a packet every {gap_us} us, \
                 which is too seldom for measure_us = {}: raise one of them",
                load.measure_us
            ));
        }
        Ok(())
    }
}

/// The greatest rate, bits per second: a packet every few hundred picoseconds.
const MOST: u64 = 1_000_000_000_000;
