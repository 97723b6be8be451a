//! Statistics of flows: what became of the packets of a flow, and how long they took.
//!
//! A sender counts the flows that it watches in its own thread: packets when it pushes them, and
//! their fates when it takes their credits back. A packet of a watched flow carries a tag that
//! leads to the flow's statistics, so each packet that was counted as submitted is also counted as
//! sent or dropped, whatever became of it in between. A flow gets another tag when its packets are
//! cancelled, because only those that carry the previous tag are.

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
    /// from its push until the device took it, see [`Completion::left_ns`]; behind `series`, or
    /// `netem` with a child, the time in the last qdisc ([`Completion::pushed_ns`]).
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
    /// The tag that the packets of each watched flow get, by the flow's key.
    flows: HashMap<u64, u16>,
    /// The tags. Tag `t` is `tags[t - 1]`.
    tags: Vec<Tag>,
    /// The statistics of flows, to which the tags refer.
    entries: Vec<Entry>,
    /// Tags that no flow has and no packet carries.
    free_tags: Vec<u16>,
    /// Places of `entries` to which no tag refers.
    free_entries: Vec<usize>,
    /// Cancelled tags that no packet carries any more, and whose cancel the pool has yet to end.
    over: Vec<u16>,
}

/// A tag: what the packets of a flow have in common that were submitted between two cancels.
#[derive(Debug)]
struct Tag {
    /// Place of the flow's statistics.
    entry: usize,
    /// Number of packets in flight that carry the tag.
    in_flight: u32,
    /// Whether packets of the flow still get this tag.
    is_current: bool,
    is_cancelled: bool,
}

/// The statistics of a flow, and the number of tags under which they are counted.
#[derive(Debug, Default)]
struct Entry {
    stats: FlowStats,
    tags: u32,
}

impl Watched {
    /// Whether the sender watches no flow.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Counts packets that the pool has just noted as submitted.
    #[cold]
    pub(super) fn submit(&mut self, pool: &Pool, list: &mut PacketList) {
        for (meta, tag) in pool.counted(list) {
            *tag = self.flows.get(&meta.flow).copied().unwrap_or(0);
            if let Some((state, entry)) = self.counts(*tag) {
                state.in_flight += 1;
                entry.stats.submitted += 1;
            }
        }
    }

    /// Undoes [`submit`](Self::submit) for packets that no port accepted.
    #[cold]
    pub(super) fn revoke(&mut self, pool: &Pool, list: &mut PacketList) {
        for (_, tag) in pool.counted(list) {
            if let Some((state, entry)) = self.counts(*tag) {
                state.in_flight -= 1;
                entry.stats.submitted -= 1;
            }
        }
    }

    /// Counts the fate of a packet with this tag.
    #[inline]
    pub(super) fn complete(&mut self, completion: &Completion, tag: u16) {
        if let Some((state, entry)) = self.counts(tag) {
            entry.stats.count(completion);
            state.in_flight -= 1;
            if !state.is_current && state.in_flight == 0 {
                self.release(tag);
            }
        }
    }

    /// Returns the state of a tag and the statistics to which it refers; `None` for tag 0.
    #[inline]
    fn counts(&mut self, tag: u16) -> Option<(&mut Tag, &mut Entry)> {
        let state = self.tags.get_mut(usize::from(tag).wrapping_sub(1))?;
        let entry = &mut self.entries[state.entry];
        Some((state, entry))
    }

    /// Gives back a tag that no flow has and no packet carries.
    #[cold]
    fn release(&mut self, tag: u16) {
        let state = &self.tags[usize::from(tag) - 1];
        let entry = state.entry;
        if state.is_cancelled {
            self.over.push(tag);
        } else {
            self.free_tags.push(tag);
        }
        self.entries[entry].tags -= 1;
        if self.entries[entry].tags == 0 {
            self.free_entries.push(entry);
        }
    }

    /// Ends the cancels whose packets have all come home.
    #[inline]
    pub(super) fn end_cancels(&mut self, pool: &mut Pool) {
        while let Some(tag) = self.over.pop() {
            pool.end_cancel(tag);
            self.free_tags.push(tag);
        }
    }

    fn add(&mut self, key: u64) {
        if self.flows.contains_key(&key) {
            return;
        }
        let entry = self.free_entries.last().copied().unwrap_or(self.entries.len());
        if entry == self.entries.len() {
            self.entries.push(Entry::default());
            self.free_entries.push(entry);
        }
        self.entries[entry] = Entry::default();
        let tag = self.new_tag(entry);
        self.free_entries.pop();
        self.flows.insert(key, tag);
    }

    /// Returns a tag under which packets are counted in this place of `entries`.
    fn new_tag(&mut self, entry: usize) -> u16 {
        let state = Tag { entry, in_flight: 0, is_current: true, is_cancelled: false };
        let tag = if let Some(tag) = self.free_tags.pop() {
            self.tags[usize::from(tag) - 1] = state;
            tag
        } else {
            // This panics before anything has changed.
            let tag = u16::try_from(self.tags.len() + 1);
            let tag = tag.expect("a sender has at most 65,535 tags");
            self.tags.push(state);
            tag
        };
        self.entries[entry].tags += 1;
        tag
    }

    /// Gives the packets of a watched flow another tag from now on, so that those in flight can be
    /// cancelled. Returns the tag that these carry, and their number; tag 0 if there are none.
    /// Returns `None` if the flow is not watched.
    pub(super) fn cancel(&mut self, key: u64) -> Option<(u16, u32)> {
        let tag = *self.flows.get(&key)?;
        let state = &self.tags[usize::from(tag) - 1];
        let (entry, in_flight) = (state.entry, state.in_flight);
        if in_flight == 0 {
            return Some((0, 0));
        }
        let new = self.new_tag(entry);
        let state = &mut self.tags[usize::from(tag) - 1];
        (state.is_current, state.is_cancelled) = (false, true);
        self.flows.insert(key, new);
        Some((tag, in_flight))
    }

    /// Returns the number of tags that exist.
    #[cfg(test)]
    pub(super) fn tags(&self) -> usize {
        self.tags.len()
    }

    fn get(&self, key: u64) -> Option<&FlowStats> {
        let tag = self.flows.get(&key)?;
        let entry = self.tags[usize::from(*tag) - 1].entry;
        Some(&self.entries[entry].stats)
    }

    fn remove(&mut self, key: u64) -> Option<FlowStats> {
        let stats = self.get(key)?.clone();
        let tag = self.flows.remove(&key)?;
        let state = &mut self.tags[usize::from(tag) - 1];
        state.is_current = false;
        if state.in_flight == 0 {
            self.release(tag);
        }
        Some(stats)
    }
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
    /// flows. Flows that it [no longer watches](Self::unwatch), and [cancels](Self::cancel), count
    /// as long as their packets are in flight.
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
