//! Decides to which tin and to which queue of the tin a packet goes.

use onramp_queue::Packet;

use super::headers;
use super::heap::QUEUES;
use super::tins::TinLayout;
use crate::base::params::Values;
use crate::base::rng::mix;
use crate::base::{Handle, Instant};
use crate::filter::{Decision, Filters};

/// The hashes by which a packet's queue is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hashes {
    pub(super) flow: u32,
    /// Hashes of the source host and of the destination host.
    pub(super) hosts: [u32; 2],
}

/// What determines the queue of a packet: its source host, its destination host, its flow, or a
/// combination of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    source: bool,
    destination: bool,
    flows: bool,
}

impl Mode {
    pub(super) const WORDS: &'static [&'static str] = &[
        "triple-isolate",
        "flowblind",
        "srchost",
        "dsthost",
        "hosts",
        "flows",
        "dual-srchost",
        "dual-dsthost",
    ];

    pub(super) fn new(place: u64) -> Self {
        let word = Self::WORDS[usize::try_from(place).expect("a word of the table")];
        let is = |words: &[&str]| words.contains(&word);
        Self {
            source: is(&["triple-isolate", "srchost", "hosts", "dual-srchost"]),
            destination: is(&["triple-isolate", "dsthost", "hosts", "dual-dsthost"]),
            flows: is(&["triple-isolate", "flows", "dual-srchost", "dual-dsthost"]),
        }
    }

    /// Returns whether the flows of a source host share that host's part of the rate, and whether
    /// the flows of a destination host share that host's part.
    pub(super) fn isolates(self) -> [bool; 2] {
        [self.flows && self.source, self.flows && self.destination]
    }

    fn is_blind(self) -> bool {
        !(self.source || self.destination || self.flows)
    }
}

#[derive(Debug)]
pub(super) struct Classifier {
    handle: Handle,
    mode: Mode,
    wash: bool,
    mark_mask: u32,
    pub(super) plan: TinLayout,
    /// Seed of the hashes, which this classifier keeps when its parameters change.
    seed: u64,
    pub(super) filters: Filters,
}

impl Classifier {
    pub(super) fn new(values: &Values<'_>, mode: Mode, plan: TinLayout) -> Self {
        Self {
            handle: values.site.handle,
            mode,
            wash: values.number("wash") == 1,
            mark_mask: values.number32("fwmark"),
            plan,
            seed: mix(!values.site.seed),
            filters: Filters::default(),
        }
    }

    /// Sets new parameters; keeps the seed of the hashes and the filters.
    pub(super) fn change(&mut self, new: Self) {
        let filters = std::mem::take(&mut self.filters);
        *self = Self { filters, seed: self.seed, ..new };
    }

    /// Whether all packets of a tin go to the same queue.
    #[inline]
    pub(super) fn is_blind(&self) -> bool {
        self.mode.is_blind()
    }

    /// Returns the number of a packet's tin. With the option `wash`, also clears the packet's code
    /// point (DSCP).
    #[inline]
    pub(super) fn tin(&mut self, pkt: &mut Packet) -> usize {
        let dscp = |pkt: &Packet| usize::from(self.plan.index[usize::from(headers::dscp(pkt))]);
        let count = self.plan.order.len();
        let washed = self.wash.then(|| dscp(pkt));
        if self.wash {
            headers::wash(pkt);
        }
        if count == 1 {
            return 0;
        }
        let mark = match self.mark_mask {
            0 => 0,
            mask => ((pkt.mark & mask) >> mask.trailing_zeros()) as usize,
        };
        let named = Handle::from_priority(pkt.priority);
        let minor = usize::from(named.minor);
        if (1..=count).contains(&mark) {
            self.plan.order[mark - 1].into()
        } else if named.major == self.handle.major && (1..=count).contains(&minor) {
            self.plan.order[minor - 1].into()
        } else {
            washed.unwrap_or_else(|| dscp(pkt))
        }
    }

    /// Returns the hashes of a packet, or `None` if an action of a filter drops the packet.
    #[inline]
    pub(super) fn hashes(&mut self, pkt: &mut Packet, now: Instant) -> Option<Hashes> {
        if self.mode.is_blind() {
            return Some(Hashes::default());
        }
        let (mut flow, mut host) = (0, 0);
        if !self.filters.is_empty() {
            match self.filters.classify(pkt, now) {
                Decision::Class(class) => (flow, host) = (class.minor, class.major),
                Decision::Drop => return None,
                Decision::Unknown => {}
            }
        }
        let named =
            |number: u16| (1..=QUEUES).contains(&number.into()).then(|| u32::from(number) - 1);
        let mut hashes = Hashes::default();
        if self.mode.source || self.mode.destination {
            hashes.hosts = match named(host) {
                Some(host) => [host; 2],
                None => {
                    let (source, destination) = headers::hosts(pkt);
                    [self.hash(source), self.hash(destination)]
                }
            };
        }
        if let Some(flow) = named(flow) {
            hashes.flow = flow;
        } else if self.mode.flows {
            hashes.flow = self.hash(pkt.flow);
        }
        if !self.mode.flows {
            let [source, destination] = hashes.hosts;
            hashes.flow ^= if self.mode.source { source } else { 0 };
            hashes.flow ^= if self.mode.destination { destination } else { 0 };
        }
        Some(hashes)
    }

    /// Hashes the key of a flow. As in Linux, even flows with consecutive keys fall into random
    /// sets of queues.
    #[inline]
    fn hash(&self, key: u64) -> u32 {
        (mix(key ^ self.seed) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::Spec;

    /// Flows with consecutive keys spread over the sets of queues like flows with random keys: of
    /// 558 flows, 7.75 on average (over many seeds) find no free queue, because other flows have
    /// taken all eight queues of their set.
    #[test]
    fn flows_in_a_row_fall_into_sets_by_chance() {
        let spec: Spec = "cake".parse().expect("a line");
        let crowded = |seed| {
            let mut values = spec.values(1514);
            values.site.seed = seed;
            let classifier = Classifier::new(&values, Mode::new(5), TinLayout::new(3, 0));
            let mut sets = [0_u32; QUEUES / 8];
            (0..558).for_each(|flow| {
                sets[classifier.hash(flow) as usize % QUEUES / 8] += 1;
            });
            sets.iter().map(|flows| flows.saturating_sub(8)).sum::<u32>()
        };
        let all: Vec<u32> = (1..=200).map(crowded).collect();
        let sum: u32 = all.iter().sum();
        assert!((1_350..1_750).contains(&sum), "{sum} in 200 seeds");
        assert!(all.iter().max() > all.iter().min().map(|least| least + 8).as_ref(), "{all:?}");
    }
}
