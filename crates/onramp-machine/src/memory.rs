//! The memory of the machine: which cores hold each cache line, and what each access costs.
//!
//! ```text
//! state of a line        a load of core c                a write of core c
//! nobody holds it        from memory; c shares it        from memory; c owns it
//! cores share it         c shares: hit; else clean copy  the others lose it; c owns it
//! core o owns it         o = c: hit; else from o; c     o = c: hit; else from o; c owns it
//!                        owns it if o wrote it, else
//!                        both share it
//! ```
//!
//! A load takes a line over that its owner has written, because what loads such a line will mostly
//! write it, too. On the processor where this was measured (Intel, family 6, model 207), a ball
//! that two cores throw by a load and a store takes as long as one by a single compare-and-swap,
//! and as a load alone of a line that the other core has written: so the store that follows the
//! load costs no second transfer. The measurement is `onramp sim calibrate --check`.
//!
//! The right to write a line goes from core to core in the order of the requests. A transfer of
//! latency L has two parts. First the request finds its way to the owner, who goes on using the
//! line meanwhile ([`STAYS`]); then the line travels. So if many cores want the line, one gets it
//! every L, and each has it for a part of L: enough for several accesses, such as an exchange that
//! fails and the next one, which succeeds. Copies of a line that nobody modifies are made in
//! parallel.
//!
//! Source: the directory protocols of current processors, as far as public measurements show them
//! (D. Molka et al., "Cache Coherence Protocol and Memory Performance of the Intel Haswell-EP
//! Architecture", 2015; T. David et al., "Everything you always wanted to know about
//! synchronization but were afraid to ask", 2013).

use std::collections::VecDeque;
use std::mem;

use rustc_hash::FxHashMap;

use crate::machine::{Machine, Topology};
use crate::report::{Origin, Site, SiteCounts};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads memory, as an atomic load or as ordinary code does.
    Load,
    /// Writes memory.
    Store,
    /// Reads and writes memory in one step.
    Update,
}

/// How an access was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// When the line is there, picoseconds.
    pub(crate) at: u64,
    /// How much of the time until then the request waited for other requests of the same line.
    pub(crate) waited: u64,
    /// Where the line came from; `None` if the core held it.
    pub(crate) from: Option<Origin>,
}

/// A set of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cores([u64; 4]);

/// The greatest number of cores that a machine may have.
pub(crate) const CORES_MAX: u16 = 256;

impl Cores {
    fn only(core: u16) -> Self {
        let mut this = Self::default();
        this.add(core);
        this
    }
    fn add(&mut self, core: u16) {
        self.0[usize::from(core / 64)] |= 1 << (core % 64);
    }
    fn has(&self, core: u16) -> bool {
        self.0[usize::from(core / 64)] & (1 << (core % 64)) != 0
    }
    fn iter(self) -> impl Iterator<Item = u16> {
        (0_u16..).zip(self.0).flat_map(|(word, mut bits)| {
            std::iter::from_fn(move || {
                let bit = u16::try_from(bits.trailing_zeros()).unwrap_or(u16::MAX);
                let more = bits != 0;
                bits &= bits.wrapping_sub(1);
                more.then_some(word * 64 + bit)
            })
        })
    }
}

/// The part of a transfer's latency, in thousandths, in which the owner still has the line: one of
/// the three ways of a request, to the directory, to the owner, and with the line to the requester.
const STAYS: u64 = 333;

/// Who holds a line, once all transfers under way have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nobody,
    Shared,
    Owned,
}

/// A core's right to write a line: from when, and until when.
#[derive(Clone, Copy, Debug)]
struct Owner {
    core: u16,
    from: u64,
    until: u64,
}

/// A cache line.
struct Line {
    held: Held,
    /// Whether the owner, or the last one whose request waits, has written the line.
    is_modified: bool,
    /// The cores that own the line, one after another: the present one and those whose requests
    /// wait. The last one is the owner if the line is `Owned`.
    owners: VecDeque<Owner>,
    /// The cores that have copies, from when, and until when.
    sharers: Cores,
    shared_from: u64,
    shared_until: u64,
    /// The copies that may still be on their way: to which core, and when each arrives.
    coming: Vec<(u16, u64)>,
    /// The socket whose memory holds the line: that of the core which touched the line first.
    home: u16,
    /// Counts the writes, so that a thread that spins notices one.
    version: u64,
    /// Processors that spin until the line is written.
    spinners: Vec<u16>,
    /// The core that touched the line first, and whether others have touched it, too.
    first: u16,
    is_common: bool,
}

impl Line {
    fn new(first: u16, home: u16) -> Self {
        Self {
            held: Held::Nobody,
            is_modified: false,
            owners: VecDeque::new(),
            sharers: Cores::default(),
            shared_from: 0,
            shared_until: 0,
            coming: Vec::new(),
            home,
            version: 0,
            spinners: Vec::new(),
            first,
            is_common: false,
        }
    }

    /// Returns from when the core may make the access without a transfer, or `None` if it may not.
    fn holds(&mut self, core: u16, access: Access, now: u64) -> Option<u64> {
        while self.owners.front().is_some_and(|owner| owner.until <= now) {
            self.owners.pop_front();
        }
        let owner = self.owners.iter().find(|owner| owner.core == core && owner.until > now);
        if let Some(owner) = owner {
            return Some(owner.from);
        }
        if access != Access::Load || !self.sharers.has(core) || now >= self.shared_until {
            return None;
        }
        self.coming.retain(|(_, arrives)| *arrives > now);
        let coming = self.coming.iter().rfind(|(to, _)| *to == core);
        Some(coming.map_or(0, |(_, arrives)| *arrives))
    }

    /// Gives the line to a core that does not hold it as the access needs it. Returns how long the
    /// request waits, and when the line is there.
    fn transfer(&mut self, core: u16, access: Access, now: u64, latency: u64) -> (u64, u64) {
        let free = match self.held {
            Held::Nobody => now,
            Held::Shared => self.shared_from,
            Held::Owned => self.owners.back().map_or(now, |owner| owner.from),
        };
        let begins = now.max(free);
        let (leaves, arrives) = (begins + latency * STAYS / 1_000, begins + latency);
        if let (Held::Owned, Some(owner)) = (self.held, self.owners.back_mut()) {
            owner.until = leaves;
        }
        let takes_over = access != Access::Load || self.held == Held::Owned && self.is_modified;
        self.is_modified = access != Access::Load;
        match (access, self.held) {
            _ if takes_over => {
                if self.held == Held::Shared {
                    self.shared_until = leaves;
                }
                self.held = Held::Owned;
                self.owners.push_back(Owner { core, from: arrives, until: u64::MAX });
            }
            (_, Held::Shared) => {
                self.sharers.add(core);
                self.coming.push((core, arrives));
            }
            (_, Held::Nobody | Held::Owned) => {
                self.sharers = Cores::only(core);
                // Those were copies of what was written over since.
                self.coming.clear();
                if let Some(owner) = self.owners.back() {
                    self.sharers.add(owner.core);
                }
                (self.held, self.shared_from) = (Held::Shared, arrives);
                self.shared_until = u64::MAX;
                self.coming.push((core, arrives));
            }
        }
        (begins - now, arrives)
    }
}

/// The caches of one core. They remember which lines were touched last: of all lines with the same
/// place in a cache, the last one.
struct Cache {
    l1: Box<[u32]>,
    l2: Box<[u32]>,
}

impl Cache {
    /// Notes a touch of a line. Returns the level of the cache that holds the line: 1, 2, or 3 for
    /// none of the core's own.
    fn touch(&mut self, line: u32) -> u8 {
        let level = |cache: &mut [u32]| {
            let place = line as usize % cache.len();
            mem::replace(&mut cache[place], line) == line
        };
        let (in_l1, in_l2) = (level(&mut self.l1), level(&mut self.l2));
        match (in_l1, in_l2) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 3,
        }
    }
}

pub(crate) struct Memory {
    machine: Machine,
    line_shift: u32,
    /// The number of each line by its address. Lines are numbered in the order of their first
    /// touch, so that nothing depends on addresses, which differ from run to run.
    numbers: FxHashMap<usize, u32>,
    lines: Vec<Line>,
    caches: Vec<Cache>,
    /// Counts by place in the source (the address of its `Location`).
    sites: FxHashMap<usize, (Site, SiteCounts)>,
}

impl Memory {
    pub(crate) fn new(machine: &Machine) -> Self {
        let caches = &machine.caches;
        let empty = |lines: u32| vec![u32::MAX; lines.max(1) as usize].into_boxed_slice();
        let cache = |_| Cache { l1: empty(caches.l1_lines), l2: empty(caches.l2_lines) };
        Self {
            machine: *machine,
            line_shift: caches.line_bytes.trailing_zeros(),
            numbers: FxHashMap::default(),
            lines: Vec::new(),
            caches: (0..machine.topology.all_cores()).map(cache).collect(),
            sites: FxHashMap::default(),
        }
    }

    /// Returns the number of the line at an address. The core that touches a line first decides in
    /// which socket's memory it lies.
    pub(crate) fn line_at(&mut self, address: usize, core: u16) -> u32 {
        let home = self.machine.topology.socket(core);
        let lines = &mut self.lines;
        *self.numbers.entry(address >> self.line_shift).or_insert_with(|| {
            lines.push(Line::new(core, home));
            u32::try_from(lines.len() - 1).expect("fewer than 2^32 lines")
        })
    }

    /// Returns the addresses at which the lines of some bytes begin.
    pub(crate) fn lines_of(
        &self,
        address: usize,
        bytes: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let shift = self.line_shift;
        let last = address.saturating_add(bytes.max(1) - 1) >> shift;
        (address >> shift..=last).map(move |line| line << shift)
    }

    /// Whether no other core than `core` has ever touched the line.
    pub(crate) fn is_private(&self, line: u32, core: u16) -> bool {
        let line = &self.lines[line as usize];
        line.first == core && !line.is_common
    }

    /// Serves an access of `core` that begins at the time `now`.
    pub(crate) fn serve(
        &mut self,
        line: u32,
        core: u16,
        access: Access,
        now: u64,
        at: Site,
    ) -> Served {
        let served = self.served(line, core, access, now);
        let entry = self.sites.entry(std::ptr::from_ref(at).addr());
        let (_, counts) = entry.or_insert_with(|| (at, SiteCounts::default()));
        counts.accesses += 1;
        if let Some(from) = served.from {
            counts.transfers.count(from);
            counts.contended += u64::from(served.waited > 0);
            counts.waited += served.waited;
        }
        served
    }

    fn served(&mut self, number: u32, core: u16, access: Access, now: u64) -> Served {
        let level = self.caches[usize::from(core)].touch(number);
        let costs = &self.machine.costs;
        let line = &mut self.lines[number as usize];
        line.is_common |= line.first != core;
        let locked = if access == Access::Update { costs.atomic } else { 0 };
        if access != Access::Load {
            line.version += 1;
        }
        if let Some(from) = line.holds(core, access, now) {
            line.is_modified |= access != Access::Load;
            // The line may still be on its way, after a prefetch or a store.
            let hit = match level {
                1 => costs.l1,
                2 => costs.l2,
                _ => costs.llc,
            };
            return Served { at: now.max(from) + hit + locked, waited: 0, from: None };
        }
        let (origin, latency) = source(line, core, access, &self.machine);
        let (waited, arrives) = line.transfer(core, access, now, latency);
        Served { at: arrives + locked, waited, from: Some(origin) }
    }

    /// Notes that a processor waited for `ps` picoseconds at a place in the source.
    pub(crate) fn note_stall(&mut self, at: Site, ps: u64) {
        if let Some((_, counts)) = self.sites.get_mut(&std::ptr::from_ref(at).addr()) {
            counts.stalled += ps;
        }
    }

    /// Returns how often the line was written.
    pub(crate) fn version(&self, line: u32) -> u64 {
        self.lines[line as usize].version
    }

    /// Notes that a processor spins until the line is written.
    pub(crate) fn spin(&mut self, line: u32, processor: u16) {
        self.lines[line as usize].spinners.push(processor);
    }

    /// Returns the processors that spin until the line is written, and forgets them.
    pub(crate) fn take_spinners(&mut self, line: u32) -> Vec<u16> {
        mem::take(&mut self.lines[line as usize].spinners)
    }

    /// Returns what happened at each place in the source, and forgets it.
    pub(crate) fn take_sites(&mut self) -> Vec<(Site, SiteCounts)> {
        let mut sites: Vec<_> = mem::take(&mut self.sites).into_values().collect();
        let place = |site: Site| (site.file(), site.line(), site.column());
        sites.sort_by_key(|(site, _)| place(site));
        // The compiler may give one place several addresses, such as one in each crate that uses a
        // generic function.
        sites.dedup_by(|(site, more), (first, counts)| {
            let is_same = place(site) == place(first);
            if is_same {
                counts.add(more);
            }
            is_same
        });
        sites
    }
}

/// Returns where a line comes from that `core` does not hold as the access needs it, and how long
/// its transfer takes.
fn source(line: &Line, core: u16, access: Access, machine: &Machine) -> (Origin, u64) {
    let Machine { topology, costs, .. } = machine;
    let modified = |holder: u16| {
        if topology.cluster(holder) == topology.cluster(core) {
            (Origin::Near, costs.near)
        } else if topology.socket(holder) == topology.socket(core) {
            (Origin::Far, costs.far)
        } else {
            (Origin::Remote, costs.remote)
        }
    };
    let is_near = line.home == topology.socket(core);
    let memory = (Origin::Memory, if is_near { costs.memory } else { costs.memory_remote });
    match line.held {
        Held::Nobody => memory,
        Held::Owned => line.owners.back().map_or(memory, |owner| modified(owner.core)),
        Held::Shared if access == Access::Load => {
            let is_in = |same: fn(&Topology, u16) -> u16| {
                line.sharers.iter().any(|sharer| same(topology, sharer) == same(topology, core))
            };
            if is_in(Topology::cluster) {
                (Origin::Clean, costs.llc)
            } else if is_in(Topology::socket) {
                (Origin::Clean, costs.far)
            } else {
                (Origin::Remote, costs.remote_clean)
            }
        }
        Held::Shared => {
            // The farthest core that shares the line must give it up. A core that shares it alone
            // asks its socket's directory, which takes as long as a load from there.
            let others = line.sharers.iter().filter(|sharer| *sharer != core).map(modified);
            others.max_by_key(|(_, latency)| *latency).unwrap_or((Origin::Clean, costs.llc))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::testing::SMALL;

    /// An access of `core` at the time `now`, nanoseconds. Returns how many nanoseconds later it is
    /// served, and how many of these it waited.
    struct Trial(Memory);

    impl Trial {
        fn new() -> Self {
            Self(Memory::new(&SMALL))
        }
        #[track_caller]
        fn access(&mut self, core: u16, access: Access, now: u64) -> (u64, u64) {
            let line = self.0.line_at(0x1000, core);
            let served = self.0.serve(line, core, access, now * 1_000, Location::caller());
            ((served.at - now * 1_000) / 1_000, served.waited / 1_000)
        }
        #[track_caller]
        fn load(&mut self, core: u16, now: u64) -> (u64, u64) {
            self.access(core, Access::Load, now)
        }
        #[track_caller]
        fn store(&mut self, core: u16, now: u64) -> (u64, u64) {
            self.access(core, Access::Store, now)
        }
    }

    #[test]
    fn a_line_costs_by_the_distance_of_its_holder() {
        let mut line = Trial::new();
        assert_eq!(line.store(0, 0), (80, 0), "from memory");
        assert_eq!(line.load(0, 1_000), (1, 0), "its own");
        assert_eq!(line.store(1, 2_000), (30, 0), "of a core in the same cluster");
        assert_eq!(line.store(2, 3_000), (60, 0), "of another cluster");
        assert_eq!(line.store(4, 4_000), (100, 0), "of another socket");
        assert_eq!(line.load(5, 5_000), (30, 0), "modified by core 4, which loses it");
        assert_eq!(line.store(5, 5_100), (1, 0), "the core that loaded it owns it");
        assert_eq!(line.load(4, 5_200), (30, 0), "modified by core 5, which loses it");
        assert_eq!(line.load(5, 5_300), (30, 0), "not modified by core 4, which keeps a copy");
        assert_eq!(line.load(4, 6_000), (1, 0), "the copy");
        assert_eq!(line.load(6, 7_000), (60, 0), "unmodified, of another cluster");
        assert_eq!(line.load(7, 8_000), (20, 0), "unmodified, of the same cluster");
        assert_eq!(line.load(0, 9_000), (90, 0), "unmodified, of another socket");
        assert_eq!(line.store(0, 10_000), (100, 0), "the cores of the other socket lose it");
        assert_eq!(line.access(0, Access::Update, 11_000), (6, 0), "1 and the lock");
    }

    #[test]
    fn memory_belongs_to_the_socket_that_touched_it_first() {
        let mut line = Trial::new();
        assert_eq!(line.load(4, 0), (80, 0));
        let mut memory = Memory::new(&SMALL);
        let number = memory.line_at(0x1000, 4);
        let served = memory.serve(number, 0, Access::Load, 0, Location::caller());
        assert_eq!((served.at, served.from), (130_000, Some(Origin::Memory)));
    }

    #[test]
    fn requests_for_one_line_are_served_one_after_another() {
        let mut line = Trial::new();
        line.store(0, 0);
        assert_eq!(line.store(1, 1_000), (30, 0));
        assert_eq!(line.store(2, 1_010), (80, 20), "waits until 1,030, and then 60");
        assert_eq!(line.store(4, 1_020), (170, 70), "waits until 1,090, and then 100");
        assert_eq!(line.load(5, 1_000), (220, 190), "even a load");
        assert_eq!(line.load(6, 1_300), (60, 0), "core 5 did not write it, and shares it");
        assert_eq!(line.load(7, 1_300), (80, 60), "when core 6 has it");
        assert_eq!(line.load(4, 1_300), (80, 60), "copies are made in parallel");
    }

    #[test]
    fn a_prefetch_hides_the_way() {
        let mut line = Trial::new();
        line.store(4, 0);
        line.store(0, 1_000); // The prefetch; nobody waits for it.
        assert_eq!(line.store(0, 1_040), (61, 0), "the rest of the way");
        assert_eq!(line.store(0, 1_200), (1, 0), "it is there");
    }

    #[test]
    fn a_copy_is_there_when_it_has_arrived() {
        let mut line = Trial::new();
        line.load(4, 0);
        let (way, _) = line.load(0, 1_000); // A prefetch; nobody waits for it.
        assert_eq!(line.load(0, 1_040), (way - 40 + 1, 0), "the rest of the way");
        assert_eq!(line.load(0, 1_200), (1, 0), "it is there");
        line.load(1, 2_000);
        assert_eq!(line.load(0, 2_001), (1, 0), "the copy on the way is that of another core");
        for round in 3..100 {
            line.store(4, round * 1_000);
            line.load(0, round * 1_000 + 300);
            line.load(1, round * 1_000 + 600);
        }
        assert!(line.0.lines.iter().all(|line| line.coming.len() <= 2), "old copies are forgotten");
    }

    #[test]
    fn caches_forget() {
        let mut memory = Memory::new(&SMALL);
        let mut now = 0;
        let mut load = |address: usize| {
            now += 1_000_000;
            let line = memory.line_at(address, 0);
            let served = memory.serve(line, 0, Access::Load, now, Location::caller());
            (served.at - now) / 1_000
        };
        let mut all = |count: usize| (0..count).map(|n| load(n * 64)).max();
        assert_eq!(all(8), Some(80), "new");
        assert_eq!(all(8), Some(1), "the first level holds them");
        assert_eq!(all(32), Some(80));
        assert_eq!(all(32), Some(4), "the second level holds them");
        assert_eq!(all(64), Some(80));
        assert_eq!(all(64), Some(20), "the last level holds them");
    }

    #[test]
    fn bytes_lie_on_lines() {
        let memory = Memory::new(&SMALL);
        let lines = |address, bytes| memory.lines_of(address, bytes).collect::<Vec<_>>();
        assert_eq!(lines(0x100, 64), [0x100]);
        assert_eq!(lines(0x13f, 2), [0x100, 0x140]);
        assert_eq!(lines(0x100, 0), [0x100]);
    }

    #[test]
    fn places_in_the_source_are_counted() {
        let mut line = Trial::new();
        line.store(0, 0);
        for core in [1, 4, 2] {
            line.store(core, 1_000);
        }
        let sites = line.0.take_sites();
        assert_eq!(sites.len(), 2);
        let (_, counts) = sites[1];
        assert_eq!((counts.accesses, counts.contended, counts.waited), (3, 2, 160_000));
        assert_eq!((counts.transfers.near, counts.transfers.remote), (1, 2));
        assert!(line.0.take_sites().is_empty());
    }

    /// The compiler puts one place in the source at several addresses if several crates use it.
    #[test]
    fn a_place_with_two_addresses_is_one_place() {
        let mut line = Trial::new();
        let first: Site = Location::caller();
        let second: Site = Box::leak(Box::new(*first));
        let number = line.0.line_at(0x1000, 0);
        for (now, site) in [(0, first), (1_000_000, second), (2_000_000, second)] {
            line.0.serve(number, 0, Access::Load, now, site);
            line.0.note_stall(site, 7);
        }
        let sites = line.0.take_sites();
        assert_eq!(sites.len(), 1);
        let (_, counts) = sites[0];
        assert_eq!((counts.accesses, counts.stalled, counts.transfers.all()), (3, 21, 1));
    }
}
