//! `intake-shards`: a variant of Onramp's intake with one list (a shard) per cluster of processors.
//!
//! A cluster is the set of processors that share the last level of cache. If all processors share
//! that cache, each processor has its own list, so that the experiment has more than one list to
//! measure. A sender keeps using one list while it has packets in flight, because its packets could
//! otherwise overtake each other.

use onramp_queue::{Counter, Packet, PacketList};

use super::{Peer, Sink};
use crate::cell::shards::Sharded;
use crate::cell::words::Pushed;
use crate::pin;

/// The intake, and for each processor the number of its shard (list).
#[derive(Debug)]
pub(crate) struct Shards {
    intake: Sharded<Sink>,
    of_cpu: Vec<usize>,
}

impl Shards {
    fn drain(sink: &mut Sink, batch: PacketList) {
        for pkt in batch {
            sink.put(pkt);
            sink.free_run();
        }
    }
}

impl Peer for Shards {
    /// The number of the sender's shard.
    type End<'a> = usize;
    type Taker = ();

    fn new(_senders: usize, _credits: u32, sink: Sink) -> (Self, ()) {
        let of_cpu = shards(&pin::allowed().unwrap_or_default(), last_level);
        let shards = of_cpu.iter().max().map_or(1, |last| last + 1);
        (Self { intake: Sharded::new(shards, sink), of_cpu }, ())
    }

    fn end(&self, _sender: usize) -> usize {
        0
    }

    const PLACED: bool = true;

    #[inline]
    fn place(&self, shard: &mut usize) {
        let cpu = self.of_cpu.get(pin::current()).copied();
        *shard = cpu.unwrap_or(0) % self.intake.shards();
    }

    #[inline]
    fn push(&self, shard: &mut usize, pkt: Packet, count: &Counter) -> Result<(), Packet> {
        let Pushed::Owner(mut owner, fresh) = self.intake.push(pkt, *shard)? else {
            return Ok(());
        };
        fresh.into_iter().for_each(|pkt| owner.put(pkt));
        loop {
            for shard in owner.waiting() {
                let mut batch = PacketList::new();
                owner.take(shard).for_each(|pkt| batch.push_front(pkt));
                Self::drain(&mut owner, batch);
            }
            count.set(owner.taken);
            owner.free_rest();
            match owner.leave() {
                Ok(()) => return Ok(()),
                Err(still) => owner = still,
            }
        }
    }

    const DRAINED: bool = false;
}

/// Returns, for each processor up to the last of `cpus`, the number of its shard. `cluster` returns
/// the name of a processor's cluster.
fn shards(cpus: &[usize], cluster: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let names: Vec<_> = cpus.iter().map(|cpu| cluster(*cpu)).collect();
    let mut distinct = names.clone();
    distinct.sort();
    distinct.dedup();
    let mut shards = vec![0; cpus.last().map_or(0, |last| last + 1)];
    for (at, (cpu, name)) in cpus.iter().zip(&names).enumerate() {
        let alone = distinct.len() < 2;
        shards[*cpu] = if alone { at } else { distinct.binary_search(name).unwrap_or(0) };
    }
    shards
}

/// Returns the processors that share the last level of cache with `cpu`, as Linux lists them, or
/// the number of the cluster on the simulated machine.
fn last_level(cpu: usize) -> Option<String> {
    #[cfg(sim)]
    if let Some(cluster) = u16::try_from(cpu).ok().and_then(onramp_machine::hook::cluster) {
        return Some(cluster.to_string());
    }
    let list = |index: u32| {
        let cache = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/shared_cpu_list");
        std::fs::read_to_string(cache).ok()
    };
    (0..).map_while(list).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_for_each_cluster_or_else_for_each_processor() {
        let halves = |cpu: usize| Some(if cpu < 4 { "0-3" } else { "4-7" }.to_owned());
        assert_eq!(shards(&[0, 1, 4, 6], halves), [0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(shards(&[1, 2], halves), [0, 0, 1], "one cluster");
        assert_eq!(shards(&[0, 1], |_| None), [0, 1], "nobody says");
        assert!(shards(&[], halves).is_empty());
    }
}
