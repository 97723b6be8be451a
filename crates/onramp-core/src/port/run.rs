//! One run of an owner: which thread runs, what the run may still do, and why it ends.

use onramp_queue::PacketList;

use super::{PortWaker, QUOTA_NS};
use crate::base::Instant;
use crate::base::stats::PortStats;

/// The thread that uses a port: its time, its way to the runner, and whether it is the runner.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) now: Instant,
    pub(super) waker: &'a dyn PortWaker,
    pub(super) is_runner: bool,
}

/// One run of an owner.
pub(super) struct Run<'a> {
    pub(super) now: Instant,
    pub(super) waker: &'a dyn PortWaker,
    pub(super) stats: &'a PortStats,
    /// Whether the owner is the runner, and not a sender.
    pub(super) is_runner: bool,
    /// Whether the port was busy when the owner got it.
    pub(super) was_busy: bool,
    pub(super) quota: Quota,
    /// Finished packets. They go home when the run is dropped, after the owner has left the port.
    pub(super) done: PacketList,
}

impl<'a> Run<'a> {
    /// Begins a run whose quota is zero.
    pub(super) fn new(now: Instant, waker: &'a dyn PortWaker, stats: &'a PortStats) -> Self {
        let (quota, done) = (Quota::default(), PacketList::new());
        Self { now, waker, stats, is_runner: false, was_busy: false, quota, done }
    }

    /// Whether the owner has worked for [`QUOTA_NS`], so that it should leave the rest to others.
    pub(super) fn is_late(&self) -> bool {
        self.waker.elapsed(self.now) >= QUOTA_NS
    }

    /// Counts dropped packets and keeps them until the end of the run.
    pub(super) fn finish(&mut self, drops: &mut PacketList) {
        self.stats.count_drops(drops);
        self.done.append(drops);
    }
}

/// What an owner may still do in one run, in packets: `send` to give to the device and `enqueue` to
/// move into the qdisc. `handed` counts the packets that the device passed on to somebody else.
#[derive(Default)]
pub(super) struct Quota {
    pub(super) send: u32,
    pub(super) enqueue: u32,
    pub(super) handed: u32,
    /// Most packets that the owner may still drop if the port is closed.
    pub(super) purge: u32,
    /// Whether the owner has time to drop a whole tree of packets. False for a sender that only
    /// passes by with its own packets.
    pub(super) at_leisure: bool,
}

/// The state in which an owner leaves the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// The port holds no packet that could leave now. The next push sends.
    Idle,
    /// Pushes only stage packets, until the runner's next tick.
    Collecting,
    /// Pushes only stage packets. The runner visits at once if there is `more` to send.
    Staging { more: bool },
}

/// The reason why an owner stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The port holds no packet.
    Empty,
    /// No packet may leave before this time, or the device takes no packet before this time.
    Until(Instant),
    /// The quota is used up.
    Quota,
}
