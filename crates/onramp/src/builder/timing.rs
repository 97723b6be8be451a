//! When the runners of a link come: how much lateness its ports make up for, how late they may come
//! on purpose, and how long they spin to come on time.

use std::time::Duration;

use super::{BuildError, LinkBuilder};
use crate::timing::Timing;

/// Greatest time that a port may be told to catch up on, and greatest slack, nanoseconds.
const CATCH_UP_MAX_NS: u64 = 1_000_000_000;
const SLACK_MAX_NS: u64 = 1_000_000_000;
/// Longest time that a runner may spin before each instant, nanoseconds.
const SPIN_MAX_NS: u64 = 1_000_000;

/// The default of [`LinkBuilder::patience`].
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Checks that all times are within their ranges.
pub(super) fn check(timing: Timing) -> Result<(), BuildError> {
    let number = |ns: u64, unit: u64| usize::try_from(ns / unit).unwrap_or(usize::MAX);
    if timing.catch_up_ns > CATCH_UP_MAX_NS {
        let ms = number(timing.catch_up_ns, 1_000_000);
        return Err(BuildError::Range("the milliseconds to catch up on", ms, "0 to 1000"));
    }
    if timing.slack_ns > SLACK_MAX_NS {
        let us = number(timing.slack_ns, 1_000);
        return Err(BuildError::Range("the microseconds of slack", us, "0 to 1000000"));
    }
    if timing.spin_ns > SPIN_MAX_NS {
        let us = number(timing.spin_ns, 1_000);
        return Err(BuildError::Range("the microseconds to spin", us, "0 to 1000"));
    }
    Ok(())
}

pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl LinkBuilder {
    /// Sets the credits of each sender in time: see
    /// [`Sender::set_credit_time`](crate::Sender::set_credit_time), which changes them for one
    /// sender. Default: none, so only [`credits`](Self::credits) bound what a sender has in flight.
    ///
    /// Set it for short queues below all flows, also those of [`Peers`](crate::Peers) and of
    /// sockets over the link.
    #[must_use]
    pub fn credit_time(mut self, time: Duration) -> Self {
        self.credit_time = Some(time);
        self
    }

    /// Sets how long a sender that waits for room waits until half of its packets in flight have
    /// come home, so that it wakes once for many packets. Then it takes what has come; if nothing
    /// has, it waits for one packet. Default: 10 ms.
    ///
    /// Lower it where packets that are held for long (in a `netem`, by a paced flow, by a receiver)
    /// use some of a sender's credits, and the others must be used again at once. With 0, a sender
    /// may wake for each packet.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how much lateness a port catches up on. Timers and schedulers wake a runner later than
    /// it asked for. When it comes, it sends at once what the qdiscs would have released in the
    /// meantime, so that shapers keep their exact rate; it looks back at most `catch_up`. Default:
    /// 5 ms. The range is 0 to 1 s.
    ///
    /// The bound is also the longest burst that a late runner gives to the device, in time at the
    /// shaper's rate. Lower it if the network behind the device cannot take such a burst; with 0, a
    /// shaper loses the rate of the time by which a runner is late, as in Linux. Raise it if
    /// [`PortSnapshot::lost_ns`](onramp_core::stats::PortSnapshot::lost_ns) grows.
    #[must_use]
    pub fn catch_up(mut self, catch_up: Duration) -> Self {
        self.timing.catch_up_ns = ns(catch_up);
        self
    }

    /// Sets how long after the instant at which a qdisc may release its next packet the port wakes
    /// its runner, so that one wake-up serves all packets of that time. The range is 0 to 1 s.
    ///
    /// By default, a port wakes its runner at the instant itself, but not again before a rest is
    /// over; several packets that are due in it leave together. The rest is 90 us
    /// ([`REST_NS`](onramp_core::REST_NS)), so packets that are further apart, up to 11,000 a
    /// second, leave at their instants. While packets wait that are closer together, it grows until
    /// the wake-ups take 5 % of a processor, to at most 400 us
    /// ([`REST_MAX_NS`](onramp_core::REST_MAX_NS)): the runner measures what a wake-up costs, which
    /// is 2 us on one machine and 20 us on another. When several packets in a row are further apart
    /// than 90 us, or none waits any more, it is 90 us again. Set the slack to 0 to wake the runner
    /// for each packet.
    ///
    /// With a slack of 1 ms, a shaper that releases a packet every 20 us needs one wake-up for some
    /// 50 packets, where it would need one for each. The runner asks the qdiscs at the instants
    /// that were due, so rates stay exact and the same packets are sent and dropped; but packets
    /// leave up to the slack later, in bursts as long as the slack. A sender that pushes a packet
    /// in the meantime sends what is due then. Lateness counts from the end of the slack, and
    /// [`catch_up`](Self::catch_up) comes on top of it.
    ///
    /// Raise it where a burst of this length does no harm, to save processor time. The packets that
    /// wait in the qdisc must last for the slack: if the credits of the senders allow fewer packets
    /// in flight than the rate sends in this time, the qdisc runs empty and rate is lost.
    ///
    /// The option `timer_slack` of `fq` is another slack, inside that qdisc and as in Linux: `fq`
    /// names an instant that is later by it, so the packets of several flows leave together, and
    /// the next packet of a flow makes up for the delay. The link's slack counts from the instant
    /// that the qdisc names, whatever its kind, and so adds to the `timer_slack` of `fq`.
    #[must_use]
    pub fn slack(mut self, slack: Duration) -> Self {
        (self.timing.slack_ns, self.timing.rest_ns) = (ns(slack), 0);
        self
    }

    /// Sets how long a runner spins before each instant for which it waits, so that it is there
    /// exactly at that instant. Default: 0. The range is 0 to 1 ms.
    ///
    /// The kernel wakes a thread 5 to 50 us after the time that it asked for, because its processor
    /// has to leave a sleep state and the scheduler has to choose the thread. A runner learns how
    /// much that usually is, ends its sleep so much earlier ([`HeadStart`](crate::HeadStart)), and
    /// spins if the kernel is faster than usual, by default for a few microseconds of one wake-up
    /// in four; also if an instant is nearer than that, but never twice in a row. A runner that
    /// spins longer also makes up for wake-ups that are later than usual. It keeps the
    /// instants of its qdiscs to about a microsecond, and takes this much processor time for each
    /// wake-up: a whole processor if packets leave more often than that. Set it to 20 to 50 us
    /// where the times at which packets leave matter more than the processor, and the
    /// [slack](Self::slack) to 0 if more than 11,000 packets a second leave. With a time to spin,
    /// the rest between two wake-ups does not grow. It has no effect on packets that need not wait.
    ///
    /// A runner that another thread wakes while it spins notices at once. If other threads compete
    /// for its processor, spinning does not help: see [`runner_priority`](Self::runner_priority).
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.timing.spin_ns = ns(spin);
        self
    }
}
