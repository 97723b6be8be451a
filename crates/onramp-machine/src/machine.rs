//! The description of a machine: its processors, and what each access and each step of the
//! scheduler costs.

/// How the processors of a machine are arranged. A *core* has caches of its own; a *processor* is a
/// hardware thread of a core, and what Linux calls a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of sockets.
    pub sockets: u16,
    /// Number of clusters in each socket. The cores of a cluster share a last-level cache, or lie
    /// on one die.
    pub clusters: u16,
    /// Number of cores in each cluster.
    pub cores: u16,
    /// Number of processors (hardware threads) in each core.
    pub threads: u16,
}

impl Topology {
    /// Returns the number of cores of the machine.
    #[must_use]
    pub const fn all_cores(&self) -> u16 {
        self.sockets * self.clusters * self.cores
    }

    /// Returns the number of processors of the machine.
    #[must_use]
    pub const fn processors(&self) -> u16 {
        self.all_cores() * self.threads
    }

    /// Returns the core of a processor. Processors are numbered as Linux numbers them on most
    /// machines: first the first hardware threads of all cores, socket by socket, then the second
    /// ones.
    #[must_use]
    pub const fn core(&self, processor: u16) -> u16 {
        processor % self.all_cores()
    }

    /// Returns the number of the cluster of a core, counted over the whole machine.
    #[must_use]
    pub const fn cluster(&self, core: u16) -> u16 {
        core / self.cores
    }

    /// Returns the socket of a core.
    #[must_use]
    pub const fn socket(&self, core: u16) -> u16 {
        core / (self.cores * self.clusters)
    }
}

/// The sizes of a core's caches, in cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// Size of a cache line in bytes, a power of two.
    pub line_bytes: u32,
    /// Number of lines in the first-level data cache.
    pub l1_lines: u32,
    /// Number of lines in the second-level cache.
    pub l2_lines: u32,
}

/// What accesses and steps of the scheduler cost, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A load of a line in the own first-level cache.
    pub l1: u64,
    /// A load of a line in the own second-level cache.
    pub l2: u64,
    /// A load of an unmodified line from the last-level cache of the own cluster.
    pub llc: u64,
    /// The transfer of a modified line from another core of the same cluster.
    pub near: u64,
    /// The transfer of a modified line from another cluster of the same socket.
    pub far: u64,
    /// The transfer of a modified line from another socket.
    pub remote: u64,
    /// A load of an unmodified line from the caches of another socket.
    pub remote_clean: u64,
    /// A load from the memory of the own socket.
    pub memory: u64,
    /// A load from the memory of another socket.
    pub memory_remote: u64,
    /// An atomic read-modify-write, in addition to the load of the line.
    pub atomic: u64,
    /// A full fence with an empty store buffer.
    pub fence: u64,
    /// One hint that the thread spins (`PAUSE`).
    pub pause: u64,
    /// A reading of the clock.
    pub clock: u64,
    /// The switch of a processor from one thread to another.
    pub context_switch: u64,
    /// The time from a wake-up call until the woken thread runs on another processor that was idle.
    pub wake: u64,
    /// The part of a wake-up that the calling processor works for.
    pub wake_call: u64,
    /// The time slice of a thread while other threads wait for its processor.
    pub slice: u64,
    /// How much longer local work takes while the core's other hardware thread works, in
    /// thousandths: 1,000 is not longer.
    pub smt: u64,
    /// The same while the other hardware thread spins with the hint.
    pub smt_spin: u64,
}

/// A machine: its processors, caches and costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How the processors are arranged.
    pub topology: Topology,
    /// The sizes of the caches.
    pub caches: Caches,
    /// What each step costs.
    pub costs: Costs,
}

#[cfg(test)]
mod tests {
    use crate::testing::SMALL;

    #[test]
    fn processors_are_numbered_as_linux_numbers_them() {
        let topology = SMALL.topology;
        assert_eq!((topology.all_cores(), topology.processors()), (8, 16));
        assert_eq!((topology.core(3), topology.core(11)), (3, 3), "hardware threads of one core");
        let place = |core| (topology.cluster(core), topology.socket(core));
        assert_eq!(
            [place(0), place(1), place(2), place(4), place(7)],
            [(0, 0), (0, 0), (1, 0), (2, 1), (3, 1)]
        );
    }
}
