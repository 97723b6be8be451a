//! A tin of `cake`: its flows, and the order in which these send.
//!
//! A flow is sparse until it has sent a quantum of bytes. After that, the flow is bulk until it has
//! no packet when its turn comes. An empty flow is decaying until its COBALT state (see the module
//! `cobalt`) equals that of a new flow; then the flow is idle.

use onramp_queue::{Packet, PacketList};

use super::classify::{Hashes, Mode};
use super::cobalt::{Aim, Cobalt};
use super::heap::QUEUES;
use super::rounds::Rounds;
use super::shape::Pace;
use crate::base::rng::Rng;

/// Number of queues in a set: a flow may have any queue of its set (the ways of the set).
const WAYS: usize = 8;
/// The value that means "no flow" where the number of a flow is expected.
const NONE: u16 = u16::MAX;

/// How the scheduler treats a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Idle,
    Sparse,
    /// The flow is sparse and empty, but stays among the old flows until its turns have paid off
    /// its debt (the bytes that it sent beyond its quantum).
    SparseInDebt,
    Bulk,
    Decaying,
}

/// The lists of a tin. A flow that is not idle is in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Rota {
    #[default]
    New,
    Old,
    Decaying,
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) queue: PacketList,
    pub(super) law: Cobalt,
    /// Number of bytes that this flow may send. For an old flow in common rounds (see the module
    /// `rounds`): without the common number of bytes.
    pub(super) deficit: i32,
    kind: Kind,
    rota: Rota,
    before: u16,
    behind: u16,
    /// Places in [`Tin::hosts`] of the flow's source host and of its destination host.
    hosts: [u16; 2],
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u16,
    last: u16,
}

/// A host as the source of flows, or as their destination.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    tag: u32,
    bulk_flows: u16,
}

#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    pub(super) marked: u64,
    pub(super) way_indirect: u64,
    pub(super) way_misses: u64,
    pub(super) way_collisions: u64,
    pub(super) peak_delay: u64,
    pub(super) average_delay: u64,
    pub(super) base_delay: u64,
    pub(super) max_len: u32,
}

impl Stats {
    #[inline]
    pub(super) fn came(&mut self, packets: u32, len: u32) {
        self.packets += u64::from(packets);
        self.bytes += u64::from(len);
        self.max_len = self.max_len.max(len);
    }

    /// Updates three moving averages with a packet that waited `ns` nanoseconds: the average delay;
    /// the peak delay, which rises faster than it falls; and the base delay, which falls faster
    /// than it rises.
    #[inline]
    pub(super) fn delayed(&mut self, ns: u64) {
        let follow = |average: &mut u64, shift: u32| {
            *average = *average - (*average >> shift) + (ns >> shift);
        };
        follow(&mut self.average_delay, 8);
        let shift = if ns > self.peak_delay { 2 } else { 8 };
        follow(&mut self.peak_delay, shift);
        let shift = if ns < self.base_delay { 2 } else { 8 };
        follow(&mut self.base_delay, shift);
    }
}

#[derive(Debug)]
pub(super) struct Tin {
    pub(super) rate: u64,
    pub(super) pace: Pace,
    /// The time from which the tin's own rate allows the next packet, in nanoseconds.
    pub(super) next_at: u64,
    /// Number of bytes that the tin may send in a round among tins, and how many of them are left
    /// in this round.
    pub(super) share: i32,
    pub(super) deficit: i32,
    pub(super) aim: Aim,
    /// Number of bytes that a flow may send in a round. If the mode isolates hosts, the bulk flows
    /// of a host share this number.
    pub(super) quantum: u32,
    /// Number of bytes that the tin holds.
    pub(super) held: u64,
    pub(super) sparse: u32,
    pub(super) bulk: u32,
    pub(super) decaying: u32,
    pub(super) unresponsive: u32,
    pub(super) stats: Stats,
    flows: Box<[Flow]>,
    /// Number of packets dropped from each queue.
    drops: Box<[u32]>,
    /// For each queue, the hash of the flow to which the queue belongs.
    tags: Box<[u32]>,
    /// The source hosts and the destination hosts. Either list is empty if the mode does not share
    /// the rate among these hosts.
    hosts: [Box<[Host]>; 2],
    lists: [List; 3],
    /// The common rounds of the old flows (see the module `rounds`).
    rounds: Rounds,
}

/// If one host has all bulk flows of a tin, and more than this number, these flows get their bytes
/// in common rounds (see the module `rounds`). With fewer flows, visiting each flow costs less than
/// half a microsecond per packet, and flows that may send in the same round keep the order of
/// Linux.
const LOAD_FEW: u32 = 32;
/// The smallest and the greatest quantum of a flow, in bytes.
const QUANTUM_MIN: u64 = 300;
const QUANTUM_MAX: u64 = 1514;

impl Tin {
    /// Creates a tin with a rate of `rate` bytes per second (0 = unlimited), which sends `share`
    /// bytes in a round among tins.
    pub(super) fn new(rate: u64, share: i32, rtt: u64, mtu: u32, mode: Mode) -> Self {
        let fresh = || Flow {
            queue: PacketList::new(),
            law: Cobalt::default(),
            deficit: 0,
            kind: Kind::Idle,
            rota: Rota::New,
            before: NONE,
            behind: NONE,
            hosts: [0; 2],
        };
        let hosts =
            |matter| vec![Host::default(); if matter { QUEUES } else { 0 }].into_boxed_slice();
        let mut tin = Self {
            rate,
            pace: Pace::default(),
            next_at: 0,
            share,
            deficit: 0,
            aim: Aim { target: 0, interval: 0, mtu_time: 0 },
            quantum: 0,
            held: 0,
            sparse: 0,
            bulk: 0,
            decaying: 0,
            unresponsive: 0,
            stats: Stats::default(),
            flows: std::iter::repeat_with(fresh).take(QUEUES).collect(),
            drops: vec![0; QUEUES].into(),
            tags: vec![0; QUEUES].into(),
            hosts: mode.isolates().map(hosts),
            lists: [List { first: NONE, last: NONE }; 3],
            rounds: Rounds::default(),
        };
        tin.set_rate(rate, share, rtt, mtu);
        tin
    }

    /// Sets the rate of the tin, and the values that are computed from it.
    pub(super) fn set_rate(&mut self, rate: u64, share: i32, rtt: u64, mtu: u32) {
        let pace = Pace::new(rate);
        let mtu_time = pace.time(mtu);
        let wanted = (rtt / 1_000 / 20).max(1) * 1_000;
        let target = wanted.max(mtu_time * 3 / 2);
        let interval = (rtt + target - wanted).max(2 * target);
        let quantum = if rate == 0 { QUANTUM_MAX } else { rate >> 12 };
        (self.rate, self.pace, self.share) = (rate, pace, share);
        self.aim = Aim { target, interval, mtu_time };
        self.quantum =
            u32::try_from(quantum.clamp(QUANTUM_MIN, QUANTUM_MAX)).expect("at most 1,514");
    }

    /// Sets the rate of the tin, and the values that are computed from it. The flows stay; the
    /// hosts are forgotten if the new mode begins or ceases to share the rate among them.
    pub(super) fn change(&mut self, new: Self) {
        (self.rate, self.pace, self.share) = (new.rate, new.pace, new.share);
        (self.aim, self.quantum) = (new.aim, new.quantum);
        for (hosts, new) in self.hosts.iter_mut().zip(new.hosts) {
            if hosts.len() != new.len() {
                *hosts = new;
            }
        }
    }

    #[inline]
    pub(super) fn flow(&mut self, queue: usize) -> &mut Flow {
        &mut self.flows[queue]
    }

    /// Counts a packet of the queue `queue` as dropped.
    pub(super) fn dropped(&mut self, queue: usize) {
        self.stats.dropped += 1;
        self.drops[queue] += 1;
    }

    /// Returns the number of bytes that a flow may still send, including the bytes of the rounds
    /// that the tin counts once for all old flows.
    pub(super) fn deficit(&self, flow: &Flow) -> i32 {
        flow.deficit + if flow.rota == Rota::Old { self.rounds.got() } else { 0 }
    }

    /// Returns the queues that belong to a flow: number of the queue, the flow, and number of
    /// packets dropped from the queue.
    pub(super) fn used(&self) -> impl Iterator<Item = (usize, &Flow, u32)> {
        let all = self.flows.iter().zip(&self.drops).enumerate();
        let all = all.map(|(queue, (flow, drops))| (queue, flow, *drops));
        all.filter(|(_, flow, _)| flow.kind != Kind::Idle)
    }

    /// Returns the bytes that a queue holds.
    #[inline]
    pub(super) fn bytes(&self, queue: usize) -> u64 {
        self.flows[queue].queue.bytes()
    }

    /// Whether the tin has sparse or bulk flows, which may have packets.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.sparse + self.bulk > 0
    }

    #[inline]
    pub(super) fn push(&mut self, queue: usize, pkt: Packet) {
        self.held += u64::from(pkt.len);
        self.flows[queue].queue.push_back(pkt);
    }

    #[inline]
    pub(super) fn pop(&mut self, queue: usize) -> Option<Packet> {
        let pkt = self.flows[queue].queue.pop_front()?;
        self.held -= u64::from(pkt.len);
        Some(pkt)
    }

    /// Returns the queue for a packet's flow: the queue that already belongs to the flow, else a
    /// free queue of its set, else a queue that the flow must share with another one.
    #[inline]
    pub(super) fn place(&mut self, hashes: Hashes) -> usize {
        let own = hashes.flow as usize % QUEUES;
        if self.tags[own] == hashes.flow && self.flows[own].kind != Kind::Idle {
            return own;
        }
        self.place_in_set(own, hashes)
    }

    #[inline]
    fn place_in_set(&mut self, own: usize, hashes: Hashes) -> usize {
        let find = |is: &dyn Fn(usize) -> bool| set(own).find(|way| is(*way));
        if let Some(queue) = find(&|way| self.tags[way] == hashes.flow) {
            self.stats.way_indirect += u64::from(queue != own);
            if self.flows[queue].kind == Kind::Idle {
                self.settle(queue, hashes);
            }
            return queue;
        }
        if let Some(queue) = find(&|way| self.flows[way].kind == Kind::Idle) {
            self.stats.way_misses += 1;
            self.tags[queue] = hashes.flow;
            self.settle(queue, hashes);
            return queue;
        }
        self.stats.way_collisions += 1;
        let bulk = self.flows[own].kind == Kind::Bulk;
        if bulk {
            self.count_hosts(own, false);
        }
        self.tags[own] = hashes.flow;
        self.settle(own, hashes);
        if bulk {
            self.count_hosts(own, true);
        }
        own
    }

    /// Notes the source host and the destination host of the flow that has the queue `queue`.
    fn settle(&mut self, queue: usize, hashes: Hashes) {
        for (side, hosts) in self.hosts.iter_mut().enumerate() {
            if hosts.is_empty() {
                continue;
            }
            let tag = hashes.hosts[side];
            let own = tag as usize % QUEUES;
            let known = set(own).find(|way| hosts[*way].tag == tag);
            let free = || set(own).find(|way| hosts[*way].bulk_flows == 0);
            let place = known.or_else(free).unwrap_or(own);
            hosts[place].tag = tag;
            self.flows[queue].hosts[side] = index(place);
        }
    }

    /// Adds one to, or subtracts one from, the numbers of bulk flows of the two hosts of a queue's
    /// flow.
    #[inline]
    fn count_hosts(&mut self, queue: usize, more: bool) {
        let places = self.flows[queue].hosts;
        for (hosts, place) in self.hosts.iter_mut().zip(places) {
            if let Some(host) = hosts.get_mut(usize::from(place)) {
                host.bulk_flows = if more {
                    (host.bulk_flows + 1).min(index(QUEUES))
                } else {
                    host.bulk_flows.saturating_sub(1)
                };
            }
        }
    }

    /// Returns the number of bulk flows of the flow's source host or of its destination host,
    /// whichever number is greater; at least 1.
    #[inline]
    fn load(&self, queue: usize) -> u32 {
        let places = self.flows[queue].hosts;
        let load = self.hosts.iter().zip(places).map(|(hosts, place)| {
            hosts.get(usize::from(place)).map_or(1, |host| u32::from(host.bulk_flows))
        });
        load.max().unwrap_or(1).max(1)
    }

    /// Returns the number of bytes that a flow may send in a round if its host has `load` bulk
    /// flows, in units of 2^-16 bytes.
    #[inline]
    fn part(&self, load: u32) -> u32 {
        self.quantum * (u32::from(u16::MAX) / load)
    }

    /// Returns the number of bytes that a flow may send in a round, rounded at random to whole
    /// bytes so that the average is exact.
    #[inline]
    fn round(&self, queue: usize, rng: &mut Rng) -> i32 {
        ((self.part(self.load(queue)) + (rng.next_u32() >> 16)) >> 16).cast_signed()
    }

    /// Notes that a packet was added to a queue: a flow that was idle or decaying becomes sparse,
    /// and a sparse flow in debt becomes bulk.
    #[inline]
    pub(super) fn wake(&mut self, queue: usize, rng: &mut Rng) {
        match self.flows[queue].kind {
            Kind::Idle => self.append(queue, Rota::New),
            Kind::Decaying => {
                self.decaying -= 1;
                self.unlink(queue);
                self.append(queue, Rota::New);
            }
            Kind::SparseInDebt => {
                self.sparse -= 1;
                return self.make_bulk(queue);
            }
            Kind::Sparse | Kind::Bulk => return,
        }
        self.sparse += 1;
        self.flows[queue].kind = Kind::Sparse;
        self.flows[queue].deficit = self.round(queue, rng);
    }

    fn make_bulk(&mut self, queue: usize) {
        self.bulk += 1;
        self.flows[queue].kind = Kind::Bulk;
        self.count_hosts(queue, true);
    }

    /// Returns the flow whose turn it is: new flows first, then old flows, then decaying ones. If
    /// `first` is true (at the first call within a dequeue), a decaying flow comes before all
    /// others, so that decaying flows become idle in time.
    #[inline]
    pub(super) fn turn(&mut self, first: &mut bool, rng: &mut Rng) -> Option<usize> {
        loop {
            let order = if std::mem::take(first) {
                [Rota::Decaying, Rota::New, Rota::Old]
            } else {
                [Rota::New, Rota::Old, Rota::Decaying]
            };
            let firsts = order.map(|rota| self.lists[rota as usize].first);
            let queue = usize::from(*firsts.iter().find(|queue| **queue != NONE)?);
            if self.flows[queue].rota == Rota::Old
                && self.share_rounds(queue)
                && let Some(queue) = self.next_of_all()
            {
                return Some(queue);
            }
            if self.flows[queue].deficit > 0 {
                return Some(queue);
            }
            self.go_round(queue, rng);
        }
    }

    /// Begins common rounds (see the module `rounds`) if one host has all bulk flows and there are
    /// many. Returns whether common rounds are in effect. `first` is the first old flow.
    #[inline]
    fn share_rounds(&mut self, first: usize) -> bool {
        if !self.rounds.shared && self.bulk > LOAD_FEW && self.load(first) == self.bulk {
            self.rounds.shared = true;
            let mut next = self.lists[Rota::Old as usize].first;
            while next != NONE {
                let Flow { deficit, behind, .. } = self.flows[usize::from(next)];
                self.rounds.add(deficit, next);
                next = behind;
            }
        }
        self.rounds.shared
    }

    /// Returns the old flow that may send next in common rounds. If common rounds are no longer
    /// possible, ends them and returns `None`.
    #[inline]
    fn next_of_all(&mut self) -> Option<usize> {
        let (flows, rounds) = (&self.flows, &mut self.rounds);
        let own = |queue: u16| {
            let flow = &flows[usize::from(queue)];
            (flow.kind != Kind::Idle && flow.rota == Rota::Old).then_some(flow.deficit)
        };
        let first = rounds.first(own).map(|(queue, own)| (usize::from(queue), own));
        // In common rounds, all bulk flows must belong to one host. If the first old flow is bulk,
        // its host must be this host. A sparse flow in debt may belong to another host, because it
        // does not count as a bulk flow, and its debt is small.
        let alike =
            |queue: usize| self.flows[queue].kind != Kind::Bulk || self.load(queue) == self.bulk;
        match first {
            Some((queue, own))
                if self.bulk > LOAD_FEW && alike(queue) && !self.rounds.is_long() =>
            {
                self.rounds.go(self.part(self.bulk), own);
                Some(queue)
            }
            _ => {
                self.end_rounds();
                None
            }
        }
    }

    /// Ends common rounds: adds the common number of bytes to the own bytes of each old flow. From
    /// now on, each flow gets the bytes of a round when its turn comes.
    #[cold]
    fn end_rounds(&mut self) {
        let got = self.rounds.got();
        let mut next = self.lists[Rota::Old as usize].first;
        while next != NONE {
            let flow = &mut self.flows[usize::from(next)];
            flow.deficit += got;
            next = flow.behind;
        }
        self.rounds.end();
    }

    /// Moves a flow that has sent all that it may to the end of the old flows, and gives the flow
    /// the bytes of a new round.
    #[inline]
    fn go_round(&mut self, queue: usize, rng: &mut Rng) {
        if self.flows[queue].kind == Kind::Sparse {
            if self.flows[queue].queue.is_empty() {
                self.flows[queue].kind = Kind::SparseInDebt;
            } else {
                self.sparse -= 1;
                self.make_bulk(queue);
            }
        }
        self.flows[queue].deficit += self.round(queue, rng);
        self.unlink(queue);
        self.append(queue, Rota::Old);
    }

    /// Handles a flow that has no packet when its turn comes: the flow becomes decaying or idle.
    #[inline]
    pub(super) fn retire(&mut self, queue: usize, now: u64) {
        let flow = &mut self.flows[queue];
        if flow.law.empty(&self.aim, now) {
            self.unresponsive = self.unresponsive.saturating_sub(1);
        }
        let rests = flow.law.is_at_rest(now);
        match flow.kind {
            Kind::Bulk => {
                self.bulk -= 1;
                self.count_hosts(queue, false);
            }
            Kind::Sparse | Kind::SparseInDebt => self.sparse -= 1,
            Kind::Decaying | Kind::Idle => self.decaying -= 1,
        }
        self.unlink(queue);
        if rests {
            self.flows[queue].kind = Kind::Idle;
        } else {
            self.decaying += 1;
            self.flows[queue].kind = Kind::Decaying;
            self.append(queue, Rota::Decaying);
        }
    }

    #[inline]
    fn append(&mut self, queue: usize, rota: Rota) {
        let list = &mut self.lists[rota as usize];
        let before = std::mem::replace(&mut list.last, index(queue));
        if before == NONE {
            list.first = index(queue);
        } else {
            self.flows[usize::from(before)].behind = index(queue);
        }
        let flow = &mut self.flows[queue];
        (flow.rota, flow.before, flow.behind) = (rota, before, NONE);
        if rota == Rota::Old && self.rounds.shared {
            flow.deficit -= self.rounds.got();
            self.rounds.add(flow.deficit, index(queue));
        }
    }

    #[inline]
    fn unlink(&mut self, queue: usize) {
        let Flow { rota, before, behind, .. } = self.flows[queue];
        if rota == Rota::Old && self.rounds.shared {
            self.flows[queue].deficit += self.rounds.got();
        }
        let list = &mut self.lists[rota as usize];
        match before {
            NONE => list.first = behind,
            before => self.flows[usize::from(before)].behind = behind,
        }
        match behind {
            NONE => list.last = before,
            behind => self.flows[usize::from(behind)].before = before,
        }
    }

    /// Returns the queues that hold packets, and the number of packets in each.
    pub(super) fn packets(&self) -> impl Iterator<Item = (usize, u32)> {
        let all = self.flows.iter().map(|flow| flow.queue.len()).enumerate();
        all.filter(|(_, packets)| *packets > 0)
    }

    /// Removes all packets.
    pub(super) fn drain(&mut self) -> PacketList {
        let mut all = PacketList::new();
        self.flows.iter_mut().for_each(|flow| all.append(&mut flow.queue));
        self.held = 0;
        all
    }
}

/// Returns the numbers of all queues in the set to which the queue `own` belongs, beginning with
/// `own`.
#[inline]
fn set(own: usize) -> impl Iterator<Item = usize> {
    let begin = own - own % WAYS;
    (0..WAYS).map(move |way| begin + (own + way) % WAYS)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most `QUEUES`")]
fn index(place: usize) -> u16 {
    place as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tin(mode: u64) -> Tin {
        Tin::new(1_000_000, 65_535, 100_000_000, 1514, Mode::new(mode))
    }

    /// Each of eight flows in one set gets a queue of its own; the ninth flow must share a queue.
    #[test]
    fn eight_flows_of_a_set_do_not_collide() {
        let (mut tin, mut rng) = (tin(5), Rng::new(1));
        let hashes = |n: u32| Hashes { flow: n << 10 | 3, hosts: [0; 2] };
        let mut place = |n| {
            let queue = tin.place(hashes(n));
            tin.push(queue, Packet::new(100));
            tin.wake(queue, &mut rng);
            queue
        };
        let queues: Vec<usize> = (0..9).map(&mut place).collect();
        assert_eq!(queues, [3, 4, 5, 6, 7, 0, 1, 2, 3]);
        let again = [place(8), place(8), place(5), place(0)];
        assert_eq!(again, [3, 3, 0, 3], "the first one had to share its queue");
        let stats = &tin.stats;
        assert_eq!((stats.way_misses, stats.way_collisions, stats.way_indirect), (8, 2, 1));
    }

    /// Each delay moves the average, the peak and the base delay by a quarter or a 256th of its
    /// distance from them. The part that is taken away and the part that is added are each rounded
    /// down.
    #[test]
    fn delays_are_averaged_three_ways() {
        let mut stats = Stats::default();
        for (ns, average, peak, base) in [
            (1_024, 4, 256, 4),
            (2_048, 4 + 8, 256 - 64 + 512, 4 + 8),
            (0, 12, 704 - 2, 12 - 3),
            (65_536, 12 + 256, 702 - 175 + 16_384, 9 + 256),
            (256, 268 - 1 + 1, 16_911 - 66 + 1, 265 - 66 + 64),
        ] {
            stats.delayed(ns);
            let all = (stats.average_delay, stats.peak_delay, stats.base_delay);
            assert_eq!(all, (average, peak, base), "after {ns}");
        }
    }

    /// Eight bulk flows of host 10 have all queues of a set. When a flow of host 500 has to share
    /// one of these queues, the queue counts as a bulk flow of host 500 and no longer of host 10.
    #[test]
    fn a_bulk_queue_that_is_shared_counts_for_the_hosts_of_the_last() {
        let (mut tin, mut rng) = (tin(0), Rng::new(1));
        let hashes = |n: u32, host: u32| Hashes { flow: n << 10 | 3, hosts: [host, 900] };
        for n in 0..8 {
            let queue = tin.place(hashes(n, 10));
            tin.push(queue, Packet::new(100));
            tin.wake(queue, &mut rng);
        }
        for _ in 0..8 {
            let queue = tin.turn(&mut false, &mut rng).unwrap();
            tin.flow(queue).deficit = 0;
        }
        // All flows have used up the bytes of their turn as new flows and still hold packets, so
        // this call makes them bulk.
        let _ = tin.turn(&mut false, &mut rng);
        assert_eq!((tin.sparse, tin.bulk), (0, 8));
        let bulk = |tin: &Tin| [tin.hosts[0][10].bulk_flows, tin.hosts[0][500].bulk_flows];
        assert_eq!((bulk(&tin), tin.hosts[1][900].bulk_flows), ([8, 0], 8));
        assert_eq!(tin.place(hashes(8, 500)), 3);
        assert_eq!((bulk(&tin), tin.hosts[1][900].bulk_flows), ([7, 1], 8));
    }

    /// The target and the interval of a tin are those that Linux shows, for each rate in bytes per
    /// second and round-trip time in nanoseconds.
    #[test]
    fn a_slow_tin_waits_for_its_packets() {
        let aim = |rate, rtt| Tin::new(rate, 1, rtt, 1514, Mode::new(0)).aim;
        let us = |ns| ns / 1000;
        for (rate, rtt, target_us, interval_us) in [
            (1_000_000, 100_000_000, 5_000, 100_000),
            (392_695, 100_000_000, 5_783, 100_783),
            (125, 100_000_000, 18_168_000, 36_336_000),
            (8_750_000, 1_000_000, 259, 1_209),
            (0, 1_000_000, 50, 1_000),
        ] {
            let aim = aim(rate, rtt);
            assert_eq!((us(aim.target), us(aim.interval)), (target_us, interval_us), "{rate}");
        }
    }

    #[test]
    fn a_flow_is_small() {
        assert!(size_of::<Flow>() <= 80, "{}", size_of::<Flow>());
    }

    #[test]
    fn an_empty_flow_makes_a_round_before_it_rests() {
        let (mut tin, mut rng) = (tin(5), Rng::new(1));
        let queue = tin.place(Hashes::default());
        tin.push(queue, Packet::new(1000));
        tin.wake(queue, &mut rng);
        assert_eq!((tin.sparse, tin.bulk), (1, 0));
        assert_eq!(tin.turn(&mut false, &mut rng), Some(queue));
        tin.pop(queue);
        tin.flow(queue).deficit -= 1000;
        // The flow holds no packet, but has sent more than its quantum. Until its turns have paid
        // off this debt, the flow stays among the old flows and counts as sparse.
        assert_eq!(tin.turn(&mut false, &mut rng), Some(queue));
        assert_eq!((tin.sparse, tin.bulk, tin.flow(queue).kind), (1, 0, Kind::SparseInDebt));
        tin.push(queue, Packet::new(1000));
        tin.wake(queue, &mut rng);
        assert_eq!((tin.sparse, tin.bulk), (0, 1));
        tin.pop(queue);
        tin.retire(queue, 0);
        assert_eq!((tin.sparse, tin.bulk, tin.decaying), (0, 0, 0));
        assert_eq!(tin.turn(&mut false, &mut rng), None);
    }

    /// Sends a packet of the flow whose turn it is. Returns the flow and the packet's length in
    /// bytes.
    fn send(tin: &mut Tin, rng: &mut Rng) -> (usize, u32) {
        let queue = tin.turn(&mut false, rng).expect("packets");
        let pkt = tin.pop(queue).expect("a packet");
        tin.flow(queue).deficit -= pkt.len.cast_signed();
        (queue, pkt.len)
    }

    /// Adds a flow for each pair of hosts and packet length in `flows`. Each flow gets 200 packets
    /// of that length (in bytes).
    fn flows(tin: &mut Tin, rng: &mut Rng, flows: &[([u32; 2], u32)]) {
        for (flow, (hosts, len)) in (0..).zip(flows) {
            let queue = tin.place(Hashes { flow: flow * 8, hosts: *hosts });
            (0..200).for_each(|_| tin.push(queue, Packet::new(*len)));
            tin.wake(queue, rng);
        }
    }

    /// Flows of one host send the same number of bytes, give or take a packet, even if there are so
    /// many flows that each may send less than a byte in a round.
    #[test]
    fn many_flows_of_a_host_are_even_to_a_packet() {
        let few = &[60_u32, 1_514][..];
        for (count, lens) in [(9, few), (33, few), (100, &[60]), (120, &[60, 400, 1_514])] {
            let (mut tin, mut rng) = (tin(0), Rng::new(3));
            let all: Vec<_> = lens.iter().cycle().take(count).map(|len| ([5, 6], *len)).collect();
            flows(&mut tin, &mut rng, &all);
            // First let all flows become bulk: until then, the flows do not get equal bytes per
            // round.
            (0..6 * count).for_each(|_| _ = send(&mut tin, &mut rng));
            assert_eq!(tin.bulk as usize, count);
            let mut bytes = std::collections::BTreeMap::<usize, u32>::new();
            for _ in 0..20 * count {
                let (queue, len) = send(&mut tin, &mut rng);
                *bytes.entry(queue).or_default() += len;
                let (least, most) = (bytes.values().min(), bytes.values().max());
                if let (true, Some(least), Some(most)) = (bytes.len() == count, least, most) {
                    assert!(most - least <= 2 * lens[lens.len() - 1], "{count}: {least} {most}");
                }
            }
            assert_eq!(bytes.len(), count);
        }
    }

    /// Fifty flows of one host get their bytes in common rounds. The end of common rounds does not
    /// change how many bytes each flow may send. When a flow of a second host comes, it sends as
    /// many packets as the fifty flows together.
    #[test]
    fn rounds_are_cut_by_host_again_when_another_one_comes() {
        let (mut tin, mut rng) = (tin(0), Rng::new(3));
        let mut all = vec![([5, 6], 500); 50];
        flows(&mut tin, &mut rng, &all);
        (0..1_000).for_each(|_| _ = send(&mut tin, &mut rng));
        assert!(tin.rounds.shared && tin.rounds.got() > 0);
        let deficits =
            |tin: &Tin| -> Vec<i32> { tin.used().map(|(_, flow, _)| tin.deficit(flow)).collect() };
        let before = deficits(&tin);
        assert!(before.iter().all(|deficit| (-600..600).contains(deficit)), "{before:?}");
        tin.end_rounds();
        assert_eq!((deficits(&tin), tin.rounds.got()), (before, 0));
        all = vec![([7, 8], 500)];
        tin.tags.fill(0);
        let lone = tin.place(Hashes { flow: 777, hosts: all[0].0 });
        (0..200).for_each(|_| tin.push(lone, Packet::new(500)));
        tin.wake(lone, &mut rng);
        let sent = (0..200).filter(|_| send(&mut tin, &mut rng).0 == lone).count();
        assert!((95..=105).contains(&sent), "{sent} of 200 packets");
        assert!(!tin.rounds.shared);
    }
}
