//! Finds the packets that were dropped since the previous snapshot.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use onramp::DropReason;
use serde_json::{Value, json};

use crate::snapshot::{Device, Name, Qdisc, Queue, Snapshot};

/// What the previous snapshot has counted, by place (device, queue, qdisc) and reason.
#[derive(Debug, Default)]
pub(super) struct Drops {
    before: Option<HashMap<Key, Seen>>,
}

/// Device index, queue, qdisc and reason. A `None` qdisc stands for the whole queue: the drops in
/// front of all qdiscs, in them, and by the device itself.
type Key = (u32, usize, Option<(Name, String, Option<String>)>, Name);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The count of the place, which includes the drops of the qdiscs below.
    count: u64,
    /// How many drops below the place its own count does not include yet, because it was read
    /// before theirs.
    ahead: u64,
}

impl Drops {
    /// Whether there was a snapshot.
    pub(super) const fn has_begun(&self) -> bool {
        self.before.is_some()
    }

    /// Returns an event for each qdisc and reason whose drop count has grown since the previous
    /// snapshot by more than those of the qdiscs below. For the first snapshot, there are no
    /// events.
    pub(super) fn since(&mut self, snapshot: &Snapshot) -> Vec<Value> {
        let before = self.before.take();
        let mut now = HashMap::new();
        let mut events = Vec::new();
        for device in &snapshot.devices {
            for queue in &device.queues {
                let grown = grown(before.as_ref(), &mut now, device, queue);
                if before.is_some() {
                    let event = |(qdisc, reason, more): (_, &Name, _)| {
                        event(snapshot, device, queue, qdisc, reason, more)
                    };
                    events.extend(grown.into_iter().map(event));
                }
            }
        }
        self.before = Some(now);
        events
    }
}

/// Returns the packets that each qdisc of a queue and, last, the queue outside its qdiscs have
/// dropped for each reason since `before`, and adds to `now` what they have counted.
///
/// Differences of counts that include each other would not do: a qdisc that is replaced takes its
/// count along, and the counts above it stay.
fn grown<'q>(
    before: Option<&HashMap<Key, Seen>>,
    now: &mut HashMap<Key, Seen>,
    device: &Device,
    queue: &'q Queue,
) -> Vec<(Option<&'q Qdisc>, &'q Name, u64)> {
    let key = |qdisc: Option<&Qdisc>, reason: &Name| {
        let name = qdisc.map(|of| (of.kind.clone(), of.handle.clone(), of.parent.clone()));
        (device.index, queue.queue, name, reason.clone())
    };
    let then = |key: &Key| before.and_then(|before| before.get(key)).copied().unwrap_or_default();
    // An `mq` drops nothing itself: it counts the drops of the qdiscs of all queues.
    let qdiscs: Vec<&Qdisc> = queue.qdiscs.iter().filter(|qdisc| qdisc.kind != "mq").collect();
    let known = before.into_iter().flatten();
    let known = known.filter(|(key, _)| (key.0, key.1) == (device.index, queue.queue));
    // The qdiscs of a dead port never answer again.
    let is_dead = queue.drops.contains_key(DropReason::PortDead.name());
    if qdiscs.is_empty() && !is_dead && known.clone().any(|(key, _)| key.2.is_some()) {
        // The qdiscs have not answered in time. The next snapshot is compared with the previous
        // one.
        now.extend(known.map(|(key, seen)| (key.clone(), *seen)));
        return Vec::new();
    }
    // By how much the counts directly below each qdisc and, last, below the queue have grown.
    let mut below = vec![BTreeMap::<&Name, u64>::new(); qdiscs.len() + 1];
    for (qdisc, above) in qdiscs.iter().zip(places_above(&qdiscs)) {
        for (reason, count) in &qdisc.drops {
            let more = count.saturating_sub(then(&key(Some(*qdisc), reason)).count);
            *below[above].entry(reason).or_default() += more;
        }
    }
    let places = qdiscs.iter().map(|qdisc| (Some(*qdisc), &qdisc.drops));
    let mut found = Vec::new();
    for ((qdisc, counts), below) in places.chain([(None, &queue.drops)]).zip(&below) {
        let reasons: BTreeSet<&Name> = counts.keys().chain(below.keys().copied()).collect();
        for reason in reasons {
            let key = key(qdisc, reason);
            let seen = then(&key);
            let count = counts.get(reason).copied().unwrap_or(0);
            // A counter that has decreased was reset.
            let more = count.saturating_sub(seen.count);
            let theirs = seen.ahead + below.get(reason).copied().unwrap_or(0);
            if more > theirs {
                found.push((qdisc, reason, more - theirs));
            }
            now.insert(key, Seen { count, ahead: theirs.saturating_sub(more) });
        }
    }
    found
}

/// Returns what is directly above each qdisc: the place of a qdisc, or their number for the queue.
fn places_above(qdiscs: &[&Qdisc]) -> Vec<usize> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (at, qdisc) in qdiscs.iter().enumerate() {
        places.insert(&qdisc.handle, at);
        places.extend(qdisc.classes.iter().map(|class| (class.handle.as_str(), at)));
    }
    let above = |(at, qdisc): (usize, &&Qdisc)| {
        let above = qdisc.parent.as_deref().and_then(|parent| places.get(parent)).copied();
        above.filter(|above| *above != at).unwrap_or(qdiscs.len())
    };
    qdiscs.iter().enumerate().map(above).collect()
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
