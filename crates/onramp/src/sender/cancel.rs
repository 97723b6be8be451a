//! Taking packets back that a sender has submitted.

use onramp_queue::{DropReason, PacketList};

use super::Sender;
use crate::Flow;

impl Sender {
    /// Takes back the packets of `flow`, a flow that this sender [watches](Self::watch), that have
    /// not left yet: those that this sender has made and submitted since it began to watch the
    /// flow, and those of the flow that its cork holds back. They are dropped as
    /// [`cancelled`](DropReason::Cancelled), and their [completions](Self::on_complete) and
    /// [statistics](Self::flow_stats) say so. Packets of the flow that are sent after this call
    /// leave as usual. Use it for data that is outdated before it has left, such as frames of a
    /// video before a new key frame.
    ///
    /// Returns the number of packets that are taken back, as far as the sender knows: those that a
    /// device took in the meantime, or takes just now, are sent. Returns `None`, and does nothing,
    /// if this sender does not watch the flow. First takes credits back, as
    /// [`reclaim`](Self::reclaim) does, so completions may be reported during this call.
    ///
    /// # What it does not do
    ///
    /// Packets that a cork holds back, or that no owner has moved into the qdisc yet, are dropped
    /// before the qdisc. A packet that is in the qdisc stays there until it would have left. So it
    /// takes its place in the qdisc, delays later packets of its flow if the flow is paced, takes
    /// its share of a shaper's rate, and keeps its credit until then; but it is not sent. (To leave
    /// less in the qdisc, give the sender fewer [credits](crate::LinkBuilder::credits).) Copies
    /// that `netem` has made, and datagrams that a qdisc has split off a larger packet, are sent.
    ///
    /// # What it costs
    ///
    /// The call takes no lock and waits for nobody. The first call of a sender allocates 8 KiB.
    /// While a cancel stands, the owners of all ports of the link look at each packet that they
    /// have taken, each time that they come by, which takes some nanoseconds. It stands until all
    /// of its packets have come home and this sender has [taken their credits back](Self::reclaim);
    /// if the sender is dropped before, until the last of its packets has come home. While none
    /// stands, owners pay one load for each burst, and one for each batch that they take from the
    /// intake.
    ///
    /// # Panics
    ///
    /// Panics when another link made `flow`, and when the flows that this sender watches,
    /// together with its cancels that stand, would be more than 65,535.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// use onramp::{DropReason, Link};
    ///
    /// let null = Box::new(onramp::dev::Null::default());
    /// let link = Link::devices([null as Box<_>]).qdisc("netem delay 20ms").build()?;
    /// let mut sender = link.sender();
    /// let video = sender.flow(None);
    /// sender.watch(&video);
    /// sender.send_batch(&video, &[b"an old frame"; 9])?;
    /// let cancelled = sender.cancel(&video).expect("the flow is watched");
    /// sender.send(&video, b"a new frame")?;
    /// assert!(sender.flush(Duration::from_secs(5)));
    /// let stats = sender.flow_stats(&video).expect("the flow is watched");
    /// println!("{cancelled} packets taken back, {} sent", stats.sent);
    /// # assert_eq!(stats.submitted, 10);
    /// # assert!(stats.dropped_total() <= u64::from(cancelled) && stats.sent >= 1);
    /// # assert!(stats.dropped.keys().all(|reason| *reason == DropReason::Cancelled));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`None` says that nothing is cancelled, because the flow is not watched"]
    pub fn cancel(&mut self, flow: &Flow) -> Option<u32> {
        assert_eq!(flow.link, self.shared().id, "a flow belongs to the link that made it");
        self.reclaim();
        let (tag, in_flight) = self.watched.cancel(flow.key)?;
        if tag != 0 {
            self.pool.cancel(tag, &self.handle.shared.cancels);
        }
        Some(in_flight + self.drop_corked(flow.key))
    }

    /// Drops the packets of a flow that the cork holds back. Returns their number.
    fn drop_corked(&mut self, key: u64) -> u32 {
        let mut drops = PacketList::new();
        for list in &mut self.corked {
            let (mut theirs, others) =
                std::mem::take(list).partition::<PacketList, _>(|packet| packet.flow == key);
            drops.append(&mut theirs);
            *list = others;
        }
        self.end.counters.cancelled.add(drops.len().into());
        self.discard(&mut drops, DropReason::Cancelled);
        drops.len()
    }
}
