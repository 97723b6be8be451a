//! One direction of a bridge: from receivers through qdiscs to a device.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use onramp_core::{Clock, Device, Instant, Setup, TICK_NS, Totals, Tree, frame};
use onramp_dev::{MonotonicClock, Receive};
use onramp_queue::{Packet, PacketList};

use crate::change::Change;
use crate::edit::EditError;
use crate::lane::Lane;
use crate::steps::Trace;

/// Largest number of frames that are received before the qdisc is asked again.
const BATCH: usize = 64;

/// Sees the frames of one direction of a wire, in the thread that carries them: so its methods must
/// be quick and must not block. Use it for captures.
///
/// A frame may be a super-frame, and its checksum may be left to the interface.
pub trait Watch: fmt::Debug + Send {
    /// A frame came from its sender, with its Ethernet header.
    fn entered(&mut self, at: Instant, frame: &[u8]);

    /// A frame came to the other end.
    fn left(&mut self, at: Instant, frame: &[u8]);

    /// No further frame is there at present: what was gathered may be passed on.
    fn pause(&mut self) {}
}

/// One direction of a [`Bridge`](crate::Bridge): from a receiver, or several, through a tree to a
/// device.
pub struct Way {
    from: Vec<Box<dyn Receive>>,
    lane: Lane,
    to: Box<dyn Device>,
    /// Frames that have left the line and that the device has not taken yet.
    ready: PacketList,
    /// When to offer `ready` to the device again.
    retry: Option<Instant>,
    /// Number of frames that the device did not take: see [`Direction::refused`].
    refused: u64,
    watch: Option<Box<dyn Watch>>,
}

/// What one direction of a bridge has carried and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Direction {
    /// What the qdiscs have counted. Frames that they have sent are carried, or refused, or lost,
    /// or still waiting.
    pub qdiscs: Totals,
    /// Number of frames that left the qdiscs, but that the interface at the other end did not take,
    /// for example because it was down.
    pub refused: u64,
    /// Number of frames that left the qdiscs while the direction was down ([`Change::Link`]).
    pub lost: u64,
    /// Number of frames that were received but discarded before the qdiscs, because their virtio
    /// header contradicts them or because there was no packet for them.
    pub discarded: u64,
    /// Number of frames that the kernel has dropped because the bridge did not receive them in
    /// time; 0 if the interface does not tell.
    pub missed: u64,
    /// Number of packets that the qdiscs held when the wire was cut.
    pub queued: u64,
    /// Number of frames that left the qdiscs and waited for the interface at the other end when the
    /// wire was cut.
    pub waiting: u64,
}

impl Direction {
    /// Returns the number of packets that came to the other end.
    #[must_use]
    pub const fn carried(&self) -> u64 {
        self.qdiscs.sent_packets - self.refused - self.lost - self.waiting
    }

    /// Returns the number of packets that the wire still held when it was cut.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.queued + self.waiting
    }
}

impl Way {
    /// Makes a direction. While a `netem` loses, duplicates, corrupts or reorders packets,
    /// super-frames are cut into their segments before they enter the tree.
    #[must_use]
    pub fn new(from: Box<dyn Receive>, tree: Tree, to: Box<dyn Device>) -> Self {
        let (from, lane, ready) = (vec![from], Lane::new(tree), PacketList::new());
        let (retry, refused, watch) = (None, 0, None);
        Self { from, lane, to, ready, retry, refused, watch }
    }

    /// Makes a direction with the qdiscs of `setup`, or returns `None` if it has no root.
    #[must_use]
    pub fn of(
        from: Box<dyn Receive>,
        setup: &Setup,
        seed: u64,
        to: Box<dyn Device>,
    ) -> Option<Self> {
        let tree = Tree::of(setup, to.info().mtu, seed)?;
        Some(Self::new(from, tree, to))
    }

    /// Adds a receiver, such as that of another queue of the same interface. All frames go through
    /// the same tree.
    #[must_use]
    pub fn and_from(mut self, from: Box<dyn Receive>) -> Self {
        self.from.push(from);
        self
    }

    /// Sets how long after the instant at which the qdiscs may release their next frame the thread
    /// wakes, so that one wake-up serves all frames of that time. By default, it wakes at the
    /// instant itself, but at most once in 90 us ([`REST_NS`](onramp_core::REST_NS)). The qdiscs
    /// are asked at the instants that were due, so rates stay exact; frames leave up to the slack
    /// later. A frame that is received in the meantime lets the due ones leave at once.
    #[must_use]
    pub fn slack(mut self, slack: Duration) -> Self {
        self.lane.set_slack(slack);
        self
    }

    /// Lets the direction follow a trace, whose clock begins with
    /// [`Bridge::begin`](crate::Bridge::begin). Of a [`Schedule`](crate::Schedule), the first stage
    /// of a [`series`](crate::series) stands in front, and the others behind. `seed` is that of the
    /// qdiscs, which are built anew.
    ///
    /// # Errors
    ///
    /// [`EditError`] if the qdiscs cannot follow the trace.
    pub fn follow(mut self, trace: Trace, seed: u64) -> Result<Self, EditError> {
        self.lane.line.follow(trace, seed)?;
        Ok(self)
    }

    /// Moves all frames that may move. Returns whether more frames may wait to be received.
    pub(crate) fn run(&mut self) -> io::Result<bool> {
        let (mut received, mut count, mut more) = (PacketList::new(), 0, false);
        let mut failed = None;
        for from in &mut self.from {
            match from.receive(BATCH, &mut heap, &mut received) {
                Ok(of_one) => {
                    count += of_one;
                    more |= of_one == BATCH;
                }
                // The frames of the other receivers are counted all the same.
                Err(error) => failed = Some(error),
            }
        }
        // The clock is read last: a frame that came after it was read would leave too early.
        let now = MonotonicClock.now();
        self.lane.wake(now);
        self.dequeue(now)?;
        for packet in received {
            if let Some(watch) = &mut self.watch {
                watch.entered(now, packet.payload());
            }
            self.lane.line.enqueue(packet, now);
        }
        if count > 0 {
            self.look(now)?;
        }
        self.lane.line.forget_drops();
        self.send(now)?;
        if let Some(watch) = &mut self.watch {
            watch.pause();
        }
        failed.map_or(Ok(more), Err)
    }

    /// Offers the frames that have left the line to the device, and takes further ones out of the
    /// line as long as the device takes all.
    fn send(&mut self, now: Instant) -> io::Result<()> {
        while !self.ready.is_empty() && self.retry.is_none_or(|at| at <= now) {
            let mut done = PacketList::new();
            let retry = self.to.transmit(&mut self.ready, &mut done, now).retry_at;
            let refused = done.metas().filter(|meta| meta.drop_reason.is_some()).count();
            self.refused += refused as u64;
            // A device that names no time for what it has left is asked again after a tick.
            self.retry =
                (!self.ready.is_empty()).then(|| retry.unwrap_or_else(|| now.after(TICK_NS)));
            if self.retry.is_some() {
                // From now on the device and not the line holds the frames back, so the line is not
                // behind any more.
                self.lane.hold(now);
            }
            self.dequeue(now)?;
        }
        Ok(())
    }

    /// Takes the frames out of the line that may leave by `now`, each at the instant that is due.
    /// Leaves them there while a whole batch waits for the device, so that frames that cannot leave
    /// wait in the qdiscs, which have limits.
    fn dequeue(&mut self, now: Instant) -> io::Result<()> {
        while (self.ready.len() as usize) < BATCH {
            let taken = self.lane.take(now).map_err(io::Error::other)?;
            let Some((at, mut packet)) = taken else { break };
            if let Some(watch) = &mut self.watch {
                if packet.ecn == 3 {
                    // The device would write the mark only later.
                    frame::write_ce(&mut packet);
                }
                watch.left(at, packet.payload());
            }
            self.ready.push_back(packet);
        }
        Ok(())
    }

    /// Asks the line at `now`, because something has come to it or changed in it.
    fn look(&mut self, now: Instant) -> io::Result<()> {
        self.lane.look(now);
        self.dequeue(now)
    }

    /// Makes the changes, or none of them if one is wrong.
    pub(crate) fn change(&mut self, changes: &[Change]) -> io::Result<Result<(), EditError>> {
        let now = MonotonicClock.now();
        self.dequeue(now)?;
        let changed = self.lane.line.change(now, changes);
        self.look(now)?;
        Ok(changed)
    }

    /// Tells `watch` of all frames from now on.
    pub(crate) fn watch(&mut self, watch: Box<dyn Watch>) {
        self.watch = Some(watch);
    }

    /// Begins the clock of the trace.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        let now = MonotonicClock.now();
        self.dequeue(now)?;
        self.lane.line.begin(now);
        self.look(now)
    }

    pub(crate) fn carried(&self) -> Direction {
        Direction {
            qdiscs: self.lane.line.totals(),
            refused: self.refused,
            lost: self.lane.line.lost(),
            discarded: self.from.iter().map(|from| from.discarded()).sum(),
            missed: self.from.iter().map(|from| from.missed()).sum(),
            queued: self.lane.line.held(),
            waiting: self.ready.len().into(),
        }
    }

    /// Returns the lines of `tc` that describe the qdiscs.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lane.line.setup().lines()
    }

    /// Returns the time at which this way has something to do, if no frame comes before.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let retry = self.retry.filter(|_| !self.ready.is_empty());
        if self.ready.len() as usize >= BATCH {
            return self.retry;
        }
        self.lane.next().into_iter().chain(retry).min()
    }

    /// Returns the descriptors, of which one is readable while frames wait to be received.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.from.iter().map(|from| from.as_fd())
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = &self.to.info().name;
        f.debug_struct("Way").field("from", &self.from).field("to", to).finish_non_exhaustive()
    }
}

fn heap(bytes: usize) -> Option<Packet> {
    Some(Packet::with_capacity(u16::try_from(bytes).ok()?))
}

#[cfg(test)]
mod tests;
