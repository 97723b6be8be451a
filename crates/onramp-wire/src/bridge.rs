//! The thread that carries frames between two interfaces, each direction through a tree of qdiscs.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use onramp_core::frame::SuperFrame;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Clock, Device, Instant, Setup, Totals, Tree};
use onramp_dev::{MonotonicClock, Receive};
use onramp_queue::{Packet, PacketList};

/// Largest number of frames that are received before the qdisc is asked again.
const BATCH: usize = 64;
/// How far behind the clock a tree may be: when the thread has come late by up to this time, it
/// asks the tree at the instants that were due, so that a rate is kept. Time beyond it is lost.
const CATCH_UP_NS: u64 = 5_000_000;

/// One direction of a [`Bridge`]: from a receiver through a tree to a device.
pub struct Way {
    from: Box<dyn Receive>,
    tree: Tree,
    to: Box<dyn Device>,
    /// Frames that have left the tree and that the device has not taken yet.
    ready: PacketList,
    /// The time at which the tree has to be asked again; the tree's clock never runs backwards.
    due: Option<Instant>,
    clock: Instant,
    /// How long after `due` the thread wakes, nanoseconds.
    slack_ns: u64,
    /// When to offer `ready` to the device again.
    retry: Option<Instant>,
    /// Number of frames that the device did not take: see [`Direction::refused`].
    refused: u64,
    /// Whether super-frames are cut before they enter the tree, and a buffer for a segment.
    cuts: bool,
    segment: Vec<u8>,
}

/// What one direction of a bridge has carried and dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Direction {
    /// What the qdiscs have counted. Frames that they have sent are carried, or refused, or still
    /// waiting.
    pub qdiscs: Totals,
    /// Number of frames that left the qdiscs, but that the interface at the other end did not take,
    /// for example because it was down.
    pub refused: u64,
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
        self.qdiscs.sent_packets - self.refused - self.waiting
    }

    /// Returns the number of packets that the wire still held when it was cut.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.queued + self.waiting
    }
}

impl Way {
    /// Makes a direction. If `cuts` is set, super-frames are cut into their segments before they
    /// enter the tree.
    #[must_use]
    pub fn new(from: Box<dyn Receive>, tree: Tree, cuts: bool, to: Box<dyn Device>) -> Self {
        let (ready, clock, segment) = (PacketList::new(), Instant(0), Vec::new());
        let (due, slack_ns, retry, refused) = (None, 0, None, 0);
        Self { from, tree, to, ready, due, clock, slack_ns, retry, refused, cuts, segment }
    }

    /// Sets how long after the instant at which the tree may release its next frame the thread
    /// wakes, so that one wake-up serves all frames of that time. The default is 0. The tree is
    /// asked at the instants that were due, so rates stay exact; frames leave up to the slack
    /// later. A frame that is received in the meantime lets the due ones leave at once.
    #[must_use]
    pub fn slack(mut self, slack: Duration) -> Self {
        self.slack_ns = u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Makes a direction with the qdiscs of `setup`, or returns `None` if it has no root.
    /// Super-frames are cut before they enter the tree if a `netem` of it loses, duplicates,
    /// corrupts or reorders packets, because a share of single packets is meant then.
    #[must_use]
    pub fn of(
        from: Box<dyn Receive>,
        setup: &Setup,
        seed: u64,
        to: Box<dyn Device>,
    ) -> Option<Self> {
        let tree = Tree::of(setup, to.info().mtu, seed)?;
        Some(Self::new(from, tree, crate::takes_chances(setup), to))
    }

    /// Moves all frames that may move. Returns whether more frames may wait to be received.
    fn run(&mut self) -> io::Result<bool> {
        let mut received = PacketList::new();
        let count = self.from.receive(BATCH, &mut heap, &mut received)?;
        // The clock is read last: a frame that came after it was read would leave too early.
        let now = MonotonicClock.now();
        self.dequeue(now);
        for packet in received {
            self.enqueue(packet, now);
        }
        if count > 0 {
            (self.clock, self.due) = (now, Some(now));
            self.dequeue(now);
        }
        drop(self.tree.drops());
        if !self.ready.is_empty() && self.retry.is_none_or(|at| at <= now) {
            let mut done = PacketList::new();
            self.retry = self.to.transmit(&mut self.ready, &mut done, now).retry_at;
            let refused = done.metas().filter(|meta| meta.drop_reason.is_some()).count();
            self.refused += refused as u64;
        }
        Ok(count == BATCH)
    }

    /// Puts a frame into the tree, a super-frame in segments if the tree wants single packets. A
    /// frame that the tree drops is counted by the tree.
    fn enqueue(&mut self, mut packet: Packet, now: Instant) {
        packet.enqueued_ns = now.0;
        let Some(whole) = SuperFrame::of(&packet).filter(|_| self.cuts) else {
            let _ = self.tree.enqueue(now, packet);
            return;
        };
        for index in 0..whole.count() {
            whole.write_segment(packet.payload(), index, &mut self.segment);
            let mut segment = packet.duplicate_with(&self.segment);
            segment.gso_size = 0;
            segment.len = u32::try_from(self.segment.len()).unwrap_or(u32::MAX);
            let _ = self.tree.enqueue(now, segment);
        }
    }

    /// Takes every frame out of the tree that may leave by `now`, each at the instant that is due.
    fn dequeue(&mut self, now: Instant) {
        while let Some(due) = self.due.filter(|due| *due <= now) {
            let earliest = Instant(now.0.saturating_sub(CATCH_UP_NS.saturating_add(self.slack_ns)));
            self.clock = self.clock.max(due).max(earliest);
            match self.tree.dequeue(self.clock) {
                Dequeue::Ready(packet) => self.ready.push_back(packet),
                // A tree that names a time that is over must not keep this loop for ever.
                Dequeue::NotBefore(at) => self.due = Some(at.max(self.clock.after(1))),
                Dequeue::Empty => self.due = None,
            }
        }
    }

    fn carried(&self) -> Direction {
        let waiting = u64::from(self.ready.len());
        let queued = self.tree.backlog().packets.into();
        let (discarded, missed) = (self.from.discarded(), self.from.missed());
        let (qdiscs, refused) = (self.tree.totals(), self.refused);
        Direction { qdiscs, refused, discarded, missed, queued, waiting }
    }

    /// Returns the time at which this way has something to do, if no frame comes before.
    fn next(&self) -> Option<Instant> {
        let retry = self.retry.filter(|_| !self.ready.is_empty());
        let due = self.due.map(|due| due.after(self.slack_ns));
        due.into_iter().chain(retry).min()
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

/// A thread that carries frames between two interfaces, until it is [stopped](Self::stop) or
/// dropped.
///
/// While no frame waits and no qdisc has one to release, the thread sleeps.
#[derive(Debug)]
pub struct Bridge {
    thread: Option<JoinHandle<[Direction; 2]>>,
    end: Arc<EventFd>,
    error: Arc<Mutex<Option<String>>>,
}

impl Bridge {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it has no descriptors or threads left.
    pub fn start(ways: [Way; 2]) -> io::Result<Self> {
        let end = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let error = Arc::<Mutex<Option<String>>>::default();
        let (ends, fails) = (end.clone(), error.clone());
        let body = move || {
            onramp_dev::exact_timers();
            let mut ways = ways;
            if let Err(error) = carry(&mut ways, &ends) {
                *fails.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            ways.map(|way| way.carried())
        };
        let thread = thread::Builder::new().name("bridge".to_owned()).spawn(body)?;
        Ok(Self { thread: Some(thread), end, error })
    }

    /// Returns the error that ended the thread, if there was one: for example because an interface
    /// is gone.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread. Frames that wait are dropped. Returns what each direction has carried.
    ///
    /// # Panics
    ///
    /// Panics if the thread has panicked.
    #[must_use]
    pub fn stop(mut self) -> [Direction; 2] {
        self.tell();
        let thread = self.thread.take().expect("it is taken only here and in drop");
        thread.join().expect("the thread of the bridge does not panic")
    }

    fn tell(&self) {
        // An error would mean that the number has overflowed, and then the thread has been told.
        let _ = self.end.write(1);
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.tell();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Carries frames until `end` becomes readable.
fn carry(ways: &mut [Way; 2], end: &EventFd) -> io::Result<()> {
    loop {
        let mut more = false;
        for way in &mut *ways {
            more |= way.run()?;
        }
        let due = || ways.iter().filter_map(Way::next).min();
        let next = if more { Some(Instant(0)) } else { due() };
        let wait = next.map(|at| Duration::from_nanos(at.since(MonotonicClock.now())));
        let mut fds = [
            PollFd::new(end.as_fd(), PollFlags::POLLIN),
            PollFd::new(ways[0].from.as_fd(), PollFlags::POLLIN),
            PollFd::new(ways[1].from.as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut fds, wait.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if fds[0].any().unwrap_or_default() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
