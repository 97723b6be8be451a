//! The statistics of `cake` that `tc -s` shows.

use super::Cake;
use super::heap::QUEUES;
use crate::sched::{Backlog, FlowView};

const ROWS: usize = 19;

/// The value shown as the smallest packet size while no packet has come: the largest 16-bit number,
/// because Linux keeps sizes in 16 bits.
const SIZE_MAX: u32 = u16::MAX as u32;

macro_rules! names {
    ($($tin:literal)*) => {
        [$([
            concat!("tin", $tin, "_thresh"),
            concat!("tin", $tin, "_target_ns"),
            concat!("tin", $tin, "_interval_ns"),
            concat!("tin", $tin, "_pk_delay_ns"),
            concat!("tin", $tin, "_av_delay_ns"),
            concat!("tin", $tin, "_sp_delay_ns"),
            concat!("tin", $tin, "_backlog"),
            concat!("tin", $tin, "_pkts"),
            concat!("tin", $tin, "_bytes"),
            concat!("tin", $tin, "_way_inds"),
            concat!("tin", $tin, "_way_miss"),
            concat!("tin", $tin, "_way_cols"),
            concat!("tin", $tin, "_drops"),
            concat!("tin", $tin, "_marks"),
            concat!("tin", $tin, "_sp_flows"),
            concat!("tin", $tin, "_bk_flows"),
            concat!("tin", $tin, "_un_flows"),
            concat!("tin", $tin, "_max_len"),
            concat!("tin", $tin, "_quantum"),
        ]),*]
    };
}

/// The names of the statistics of each tin, from the least important tin on.
pub(super) const NAMES: [[&str; ROWS]; 8] = names!(0 1 2 3 4 5 6 7);
impl Cake {
    /// Lists the flows of each tin, from the least important tin on.
    pub(super) fn tell_flows(&self, out: &mut dyn FnMut(FlowView<'_>)) {
        for (place, tin) in self.classifier.plan.order.iter().enumerate() {
            for (queue, flow, drops) in self.tins[usize::from(*tin)].used() {
                let deficit = self.tins[usize::from(*tin)].deficit(flow);
                let extra = flow.law.of_flow(deficit, self.asked_at);
                // The time of the last change of BLUE's probability is shown only while that
                // probability is not zero.
                let told = if extra[4].1 > 0 { &extra[..] } else { &extra[..5] };
                out(FlowView {
                    minor: u16::try_from(place * QUEUES + queue + 1).unwrap_or(u16::MAX),
                    backlog: Backlog::of(&flow.queue),
                    drops: drops.into(),
                    overlimits: 0,
                    extra: told,
                });
            }
        }
    }

    pub(super) fn tell(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("memory_used", self.memory_max);
        out("memory_limit", self.memory_limit);
        out("capacity_estimate", self.estimate.peak);
        if self.estimates {
            out("bandwidth", self.rate);
        }
        out("min_network_size", self.sizes.net.0.min(SIZE_MAX).into());
        out("max_network_size", self.sizes.net.1.into());
        out("min_adj_size", self.sizes.adjusted.0.min(SIZE_MAX).into());
        out("max_adj_size", self.sizes.adjusted.1.into());
        out("avg_hdr_offset", self.sizes.header().into());
        out("overlimits", self.overlimits);
        for (place, tin) in self.classifier.plan.order.iter().enumerate() {
            let tin = &self.tins[usize::from(*tin)];
            let stats = &tin.stats;
            let row = [
                tin.rate,
                tin.aim.target,
                tin.aim.interval,
                stats.peak_delay,
                stats.average_delay,
                stats.base_delay,
                tin.held,
                stats.packets,
                stats.bytes,
                stats.way_indirect,
                stats.way_misses,
                stats.way_collisions,
                stats.dropped,
                stats.marked,
                (tin.sparse + tin.decaying).into(),
                tin.bulk.into(),
                tin.unresponsive.into(),
                stats.max_len.into(),
                tin.quantum.into(),
            ];
            NAMES[place].iter().zip(row).for_each(|(name, value)| out(name, value));
        }
    }
}
