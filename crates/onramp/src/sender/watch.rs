//! Statistics of flows: what became of the packets of a flow, and how long they took.
//!
//! A sender counts the flows that it watches in its own thread: packets when it pushes them, and
//! their fates when it takes their credits back. A packet of a watched flow carries the number of
//! the flow's entry as its tag, so each packet that was counted as submitted is also counted as
//! sent or dropped, whatever became of it in between.

use std::collections::{BTreeMap, HashMap};

use onramp_core::stats::{BUCKETS, bucket_of};
use onramp_queue::{Completion, DropReason, PacketList, Pool};

use super::Sender;
use crate::Flow;

/// What became of the packets of one flow that one sender submitted while it
/// [watched](Sender::watch) the flow.
///
/// Always, `submitted = sent + dropped (all reasons) + in flight`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowStats {
    /// Number of packets that the link accepted.
    pub submitted: u64,
    /// Number of packets that the device took.
    pub sent: u64,
    /// Bytes on the wire of the packets that the device took.
    pub sent_bytes: u64,
    /// Number of dropped packets, by drop reason. Reasons that never occurred are left out.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Sum of the delays of all sent packets, in nanoseconds. The delay of a packet is the time
    /// from its push until the device took it, see [`Completion::left_ns`].
    pub delay_sum_ns: u64,
    /// Longest delay of a sent packet, in nanoseconds.
    pub delay_max_ns: u64,
    /// Histogram of the delays of the sent packets in nanoseconds, by powers of two: see
    /// [`bucket_of`].
    pub delay_ns: [u64; BUCKETS],
}

impl Default for FlowStats {
    fn default() -> Self {
        Self {
            submitted: 0,
            sent: 0,
            sent_bytes: 0,
            dropped: BTreeMap::new(),
            delay_sum_ns: 0,
            delay_max_ns: 0,
            delay_ns: [0; BUCKETS],
        }
    }
}

impl FlowStats {
    /// Returns the number of packets dropped for any reason.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Returns the number of packets that were submitted, and of which the sender has not yet seen
    /// whether they were sent or dropped. Besides packets that wait in the link, these are packets
    /// that a receiver has not dropped yet.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.submitted - self.sent - self.dropped_total()
    }

    /// Returns the mean delay of the sent packets in nanoseconds, or `None` if none was sent.
    #[must_use]
    pub fn delay_mean_ns(&self) -> Option<u64> {
        self.delay_sum_ns.checked_div(self.sent)
    }

    fn count(&mut self, completion: &Completion) {
        if let Some(reason) = completion.drop_reason {
            *self.dropped.entry(reason).or_default() += 1;
            return;
        }
        self.sent += 1;
        self.sent_bytes += u64::from(completion.len);
        let left_ns = completion.left_ns.unwrap_or(completion.pushed_ns);
        let delay_ns = left_ns.saturating_sub(completion.pushed_ns);
        self.delay_sum_ns = self.delay_sum_ns.saturating_add(delay_ns);
        self.delay_max_ns = self.delay_max_ns.max(delay_ns);
        self.delay_ns[bucket_of(delay_ns)] += 1;
    }
}

/// The flows that a sender watches.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// The tag of each watched flow, by the flow's key. Tag `t` belongs to entry `t - 1`.
    tags: HashMap<u64, u16>,
    entries: Vec<FlowStats>,
    /// Tags whose flow is no longer watched. An entry is reused when no packet carries its tag any
    /// more.
    left: Vec<u16>,
}

impl Watched {
    /// Whether the sender watches no flow.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    /// Counts packets that the pool has just noted as submitted.
    #[cold]
    pub(super) fn submit(&mut self, pool: &Pool, list: &mut PacketList) {
        for (meta, tag) in pool.counted(list) {
            *tag = self.tags.get(&meta.flow).copied().unwrap_or(0);
            if let Some(entry) = entry(&mut self.entries, *tag) {
                entry.submitted += 1;
            }
        }
    }

    /// Undoes [`submit`](Self::submit) for packets that no port accepted.
    #[cold]
    pub(super) fn revoke(&mut self, pool: &Pool, list: &mut PacketList) {
        for (_, tag) in pool.counted(list) {
            if let Some(entry) = entry(&mut self.entries, *tag) {
                entry.submitted -= 1;
            }
        }
    }

    /// Counts the fate of a packet with this tag.
    #[inline]
    pub(super) fn complete(&mut self, completion: &Completion, tag: u16) {
        if let Some(entry) = entry(&mut self.entries, tag) {
            entry.count(completion);
        }
    }

    fn add(&mut self, key: u64) {
        if self.tags.contains_key(&key) {
            return;
        }
        let idle = |tag: &u16| self.entries[usize::from(*tag) - 1].in_flight() == 0;
        let tag = if let Some(place) = self.left.iter().position(idle) {
            let tag = self.left.swap_remove(place);
            self.entries[usize::from(tag) - 1] = FlowStats::default();
            tag
        } else {
            self.entries.push(FlowStats::default());
            u16::try_from(self.entries.len()).expect("a sender watches at most 65,535 flows")
        };
        self.tags.insert(key, tag);
    }

    fn get(&self, key: u64) -> Option<&FlowStats> {
        let tag = self.tags.get(&key)?;
        self.entries.get(usize::from(*tag) - 1)
    }

    fn remove(&mut self, key: u64) -> Option<FlowStats> {
        let tag = self.tags.remove(&key)?;
        self.left.push(tag);
        self.entries.get(usize::from(tag) - 1).cloned()
    }
}

/// Returns the entry with this tag; `None` for tag 0.
#[inline]
fn entry(entries: &mut [FlowStats], tag: u16) -> Option<&mut FlowStats> {
    entries.get_mut(usize::from(tag).wrapping_sub(1))
}

impl Sender {
    /// Counts from now on what becomes of the packets of `flow` that this sender makes and submits:
    /// see [`flow_stats`](Self::flow_stats). If this sender watches the flow already, nothing
    /// changes. Each sender counts its own packets; packets that it submitted before this call, and
    /// packets of other senders or of the heap, are not counted. Flows with equal
    /// [keys](Flow::key) are counted together.
    ///
    /// While a sender watches flows, each packet of any flow costs it a look-up in a table. A
    /// sender that watches none pays nothing.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`, and when the sender would watch more than 65,535
    /// flows. Flows that it [no longer watches](Self::unwatch) count as long as packets of them
    /// are in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use onramp::Link;
    ///
    /// let link = Link::devices([Box::new(onramp::dev::Null::default()) as Box<_>]).build()?;
    /// let mut sender = link.sender();
    /// let flow = sender.flow(None);
    /// sender.watch(&flow);
    /// sender.send(&flow, b"hello")?;
    /// assert!(sender.flush(Duration::from_secs(5)));
    /// let stats = sender.flow_stats(&flow).expect("the flow is watched");
    /// assert_eq!((stats.submitted, stats.sent, stats.in_flight()), (1, 1, 0));
    /// println!("delay: {:?} ns, at most {} ns", stats.delay_mean_ns(), stats.delay_max_ns);
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&mut self, flow: &Flow) {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        self.watched.add(flow.key);
    }

    /// Returns what became of the packets of `flow` since this sender began to
    /// [watch](Self::watch) it, or `None` if it does not watch the flow. First takes credits back,
    /// as [`reclaim`](Self::reclaim) does, so completions may be reported during this call.
    pub fn flow_stats(&mut self, flow: &Flow) -> Option<FlowStats> {
        self.reclaim();
        self.watched.get(flow.key).cloned()
    }

    /// Ends what [`watch`](Self::watch) began. Returns the last statistics, or `None` if this
    /// sender does not watch the flow. Packets that are in flight then are not counted any more;
    /// [flush](Self::flush) first if they matter.
    pub fn unwatch(&mut self, flow: &Flow) -> Option<FlowStats> {
        self.reclaim();
        self.watched.remove(flow.key)
    }
}
