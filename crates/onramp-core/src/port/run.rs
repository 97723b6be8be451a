//! One run of an owner: which thread runs, what it may still do in the run, and why it stops.

use onramp_queue::PacketList;

use super::{PortWaker, QUOTA_NS};
use crate::base::Instant;
use crate::base::stats::PortStats;

/// The thread that owns the port in a run: the time at which the thread read the clock, how it
/// wakes the runner, and whether it is the runner itself.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) now: Instant,
    pub(super) waker: &'a dyn PortWaker,
    pub(super) is_runner: bool,
}

/// One run of an owner: from the moment at which a thread becomes owner of the port until it leaves
/// the port.
pub(super) struct Run<'a> {
    /// The time at which the run began.
    began: Instant,
    /// The time of the owner: when it read the clock, or when the newest packet that it has
    /// enqueued was pushed, if that was later.
    pub(super) now: Instant,
    pub(super) waker: &'a dyn PortWaker,
    pub(super) stats: &'a PortStats,
    /// Whether the owner has time to drop all packets of a tree at once. True for the runner and
    /// for a thread that closes the port; false for a sender, which came only to push its own
    /// packets.
    pub(super) is_runner: bool,
    /// Whether the port was busy when the owner got it.
    pub(super) was_busy: bool,
    pub(super) quota: Quota,
    /// Packets that were sent or dropped. They go home when the `Run` is dropped, after the owner
    /// has left the port.
    pub(super) done: PacketList,
}

impl<'a> Run<'a> {
    /// Begins a run with a quota of zero packets.
    pub(super) fn new(now: Instant, waker: &'a dyn PortWaker, stats: &'a PortStats) -> Self {
        let (quota, done) = (Quota::default(), PacketList::new());
        let (began, is_runner, was_busy) = (now, false, false);
        Self { began, now, waker, stats, is_runner, was_busy, quota, done }
    }

    /// Whether the run has lasted for [`QUOTA_NS`], so that the owner should leave the rest to
    /// other threads.
    pub(super) fn is_late(&self) -> bool {
        self.lasts() >= QUOTA_NS
    }

    /// Returns how long the run has lasted, in nanoseconds; 0 if the waker reads no clock.
    pub(super) fn lasts(&self) -> u64 {
        self.waker.elapsed(self.began)
    }

    /// Returns the present time, or the time of the run if the waker reads no clock.
    pub(super) fn present(&self) -> Instant {
        self.now.max(self.began.after(self.lasts()))
    }

    /// Counts the packets in `drops` as dropped, and keeps them until the end of the run.
    pub(super) fn finish(&mut self, drops: &mut PacketList) {
        self.stats.count_drops(drops, self.now);
        self.done.append(drops);
    }
}

/// What an owner may still do in one run: how many packets it may give to the device (`send`) and
/// move into the qdisc (`enqueue`). `handed` is no limit but counts the packets that the device has
/// handed over to other code.
#[derive(Default)]
pub(super) struct Quota {
    pub(super) send: u32,
    pub(super) enqueue: u32,
    pub(super) handed: u32,
    /// How many packets the owner of a closed port may still drop in this run.
    pub(super) purge: u32,
}

/// How an owner leaves the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// No packet is left that could leave now. The next thread that pushes becomes the owner and
    /// sends.
    Idle,
    /// The port collects: pushes only stage packets, which the runner sends at its next tick.
    Collecting,
    /// Pushes only stage packets. If `more` is true, the port holds packets that could be sent (or,
    /// in a closed port, dropped) now, so the runner must visit the port at once.
    Staging { more: bool },
}

/// The reason why an owner stops sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The port holds no packet.
    Empty,
    /// The port holds packets, but none can leave before this time: the qdisc or the port's share
    /// of a rate holds them back, or the device is full.
    Until(Instant),
    /// The quota of the run is used up, and packets are left.
    Quota,
}
