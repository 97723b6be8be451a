//! Cancelled packets, which their sender has taken back: the owner drops them before they enter the
//! qdisc, or else after they have left it.
//!
//! A packet that a qdisc holds stays there until the qdisc releases it, as any other packet would,
//! because no qdisc can give up packets out of order. So the device never gets the packet, but the
//! packet takes its place in the qdisc, and its share of a shaper's rate.

use onramp_queue::{DropReason, PacketList};

use super::run::Run;
use super::state::PortState;
use crate::port::Device;

impl<D: Device> PortState<D> {
    /// Drops the cancelled packets among those that this run may still move from `inbox` into the
    /// qdisc.
    #[cold]
    pub(super) fn drop_staged(&mut self, run: &mut Run<'_>) {
        let most = run.quota.enqueue;
        run.quota.enqueue -= drop_cancelled(&mut self.inbox, most, run);
    }

    /// Drops the cancelled packets of `burst`, which the qdisc has released. Returns their number.
    #[cold]
    pub(super) fn drop_dequeued(&mut self, run: &mut Run<'_>) -> u32 {
        let dropped = drop_cancelled(&mut self.burst, u32::MAX, run);
        run.quota.send = run.quota.send.saturating_sub(dropped);
        dropped
    }
}

/// Drops the cancelled packets among the first `most` of `list`. Returns their number.
fn drop_cancelled(list: &mut PacketList, most: u32, run: &mut Run<'_>) -> u32 {
    let (mut kept, mut drops) = (PacketList::new(), PacketList::new());
    for mut packet in list.by_ref().take(most as usize) {
        if packet.is_cancelled() {
            packet.drop_reason = Some(DropReason::Cancelled);
            drops.push_back(packet);
        } else {
            kept.push_back(packet);
        }
    }
    kept.append(list);
    list.append(&mut kept);
    let dropped = drops.len();
    run.finish(&mut drops);
    dropped
}
