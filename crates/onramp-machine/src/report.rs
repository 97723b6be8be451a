//! What a simulation tells about the machine: how processors spent their time, and which places in
//! the source waited for memory.

use std::panic::Location;

/// The place in the source that makes an access.
pub(crate) type Site = &'static Location<'static>;

/// Where a line comes from that the core does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An unmodified copy in the same socket.
    Clean,
    /// A modified line, or the right to modify it, of another core in the same cluster.
    Near,
    /// The same of another cluster in the same socket.
    Far,
    /// The same of another socket.
    Remote,
    /// Memory.
    Memory,
}

/// What happened at one place in the source.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SiteCounts {
    pub(crate) accesses: u64,
    pub(crate) transfers: Transfers,
    /// Number of transfers that waited for others of the same line, and how long they waited.
    pub(crate) contended: u64,
    pub(crate) waited: u64,
    /// How long processors waited.
    pub(crate) stalled: u64,
}

impl SiteCounts {
    pub(crate) fn add(&mut self, more: &Self) {
        self.accesses += more.accesses;
        self.transfers.add(&more.transfers);
        self.contended += more.contended;
        self.waited += more.waited;
        self.stalled += more.stalled;
    }
}

/// Numbers of transfers of cache lines, by where the line came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// From an unmodified copy in the same socket.
    pub clean: u64,
    /// From another core of the same cluster, which had the line modified or had to give it up.
    pub near: u64,
    /// From another cluster of the same socket.
    pub far: u64,
    /// From another socket.
    pub remote: u64,
    /// From memory.
    pub memory: u64,
}

impl Transfers {
    /// Adds the numbers of `more`.
    pub fn add(&mut self, more: &Self) {
        self.clean += more.clean;
        self.near += more.near;
        self.far += more.far;
        self.remote += more.remote;
        self.memory += more.memory;
    }

    pub(crate) fn count(&mut self, from: Origin) {
        *match from {
            Origin::Clean => &mut self.clean,
            Origin::Near => &mut self.near,
            Origin::Far => &mut self.far,
            Origin::Remote => &mut self.remote,
            Origin::Memory => &mut self.memory,
        } += 1;
    }

    /// Returns the number of all transfers.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.clean + self.near + self.far + self.remote + self.memory
    }
}

/// How processors spent their time, in picoseconds, summed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Local work.
    pub useful: u64,
    /// Waiting for cache lines.
    pub stalled: u64,
    /// Spinning.
    pub spinning: u64,
    /// Switching and waking threads.
    pub scheduling: u64,
    /// Nothing to do.
    pub idle: u64,
}

impl Times {
    pub(crate) fn add(&mut self, other: &Self) {
        self.useful += other.useful;
        self.stalled += other.stalled;
        self.spinning += other.spinning;
        self.scheduling += other.scheduling;
        self.idle += other.idle;
    }

    /// Returns the sum of all parts.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.useful + self.stalled + self.spinning + self.scheduling + self.idle
    }
}

/// What the accesses of one place in the source cost.
#[derive(Clone, Copy, Debug)]
pub struct HotSite {
    /// The place in the source.
    pub location: &'static Location<'static>,
    /// Number of accesses.
    pub accesses: u64,
    /// Number of accesses for which a line had to be transferred.
    pub transfers: Transfers,
    /// Number of transfers that waited for other transfers of the same line.
    pub contended: u64,
    /// How long they waited, picoseconds.
    pub waited: u64,
    /// How long processors waited here for lines that were not in the first-level cache,
    /// picoseconds. A transfer that was requested in advance, or in the background, counts where a
    /// processor then waits for it.
    pub stalled: u64,
}

impl HotSite {
    pub(crate) fn new((location, counts): (Site, SiteCounts)) -> Self {
        let SiteCounts { accesses, transfers, contended, waited, stalled } = counts;
        Self { location, accesses, transfers, contended, waited, stalled }
    }
}

/// What happened on the machine between two moments of a simulation, or in all of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How long that was, picoseconds.
    pub duration: u64,
    /// How the processors spent the time, summed over all of them.
    pub times: Times,
    /// What accesses to memory cost, by place in the source; the costliest first.
    pub sites: Vec<HotSite>,
    /// Number of switches of a processor from one thread to another, or from idleness to a thread.
    pub switches: u64,
    /// Number of threads that continued on another processor than before.
    pub migrations: u64,
    /// Number of sleeping threads that other threads woke.
    pub wakeups: u64,
    /// Number of sleeping threads that woke because the time came that they had asked for.
    pub timers: u64,
}
