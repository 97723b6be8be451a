//! Finds the packets that were dropped since the previous snapshot.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::snapshot::{Counts, Device, Name, Qdisc, Queue, Snapshot};

/// The drop counts of the previous snapshot, by place (device, queue, qdisc) and reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    before: Option<HashMap<Key, u64>>,
}

/// Device index, queue, qdisc and reason. A `None` qdisc stands for drops in front of all qdiscs or
/// by the device itself.
type Key = (u32, usize, Option<(Name, String, Option<String>)>, Name);

impl Drops {
    /// Whether there was a snapshot.
    pub(super) const fn has_begun(&self) -> bool {
        self.before.is_some()
    }

    /// Returns an event for each qdisc and reason whose drop count has grown since the previous
    /// snapshot. For the first snapshot, there are no events.
    pub(super) fn since(&mut self, snapshot: &Snapshot) -> Vec<Value> {
        let mut now = HashMap::new();
        let mut events = Vec::new();
        for device in &snapshot.devices {
            for queue in &device.queues {
                for (qdisc, own) in shares(queue) {
                    for (reason, count) in own {
                        let name =
                            qdisc.map(|of| (of.kind.clone(), of.handle.clone(), of.parent.clone()));
                        let key = (device.index, queue.queue, name, reason);
                        let then = self.before.as_ref().map(|before| before.get(&key));
                        let then = then.map(|then| then.copied().unwrap_or(0));
                        if let Some(more) = then.and_then(|then| count.checked_sub(then))
                            && more > 0
                        {
                            let reason = &key.3;
                            events.push(event(snapshot, device, queue, qdisc, reason, more));
                        }
                        now.insert(key, count);
                    }
                }
            }
        }
        self.before = Some(now);
        events
    }
}

/// Returns, for each qdisc, the drops of the qdisc itself, and for the whole queue, the drops
/// outside all qdiscs. A counter of a qdisc or queue also includes the drops of the qdiscs below,
/// so these are subtracted here.
fn shares(queue: &Queue) -> Vec<(Option<&Qdisc>, Counts)> {
    let mut below: HashMap<&str, usize> = HashMap::new();
    for (at, qdisc) in queue.qdiscs.iter().enumerate() {
        below.insert(&qdisc.handle, at);
        below.extend(qdisc.classes.iter().map(|class| (class.handle.as_str(), at)));
    }
    let mut own: Vec<Counts> = queue.qdiscs.iter().map(|qdisc| qdisc.drops.clone()).collect();
    let mut rest = queue.drops.clone();
    for (at, qdisc) in queue.qdiscs.iter().enumerate() {
        let above = qdisc.parent.as_deref().and_then(|parent| below.get(parent)).copied();
        let above = match above.filter(|above| *above != at) {
            Some(above) => &mut own[above],
            None => &mut rest,
        };
        for (reason, count) in &qdisc.drops {
            if let Some(sum) = above.get_mut(reason) {
                *sum = sum.saturating_sub(*count);
            }
        }
    }
    let qdiscs = queue.qdiscs.iter().map(Some).zip(own);
    qdiscs.chain([(None, rest)]).collect()
}

fn event(
    snapshot: &Snapshot,
    device: &Device,
    queue: &Queue,
    qdisc: Option<&Qdisc>,
    reason: &str,
    packets: u64,
) -> Value {
    let place = match qdisc {
        Some(qdisc) => format!("{} {} {}", device.name, qdisc.kind, qdisc.handle),
        None => format!("{} queue {}", device.name, queue.queue),
    };
    json!({
        "unix_us": snapshot.unix_ms * 1000,
        "what": "dropped",
        "device": device.name,
        "line": format!("{packets} packets on {place} {reason}"),
        "queue": queue.queue,
        "handle": qdisc.map(|qdisc| qdisc.handle.as_str()),
        "reason": reason,
        "packets": packets,
    })
}
