//! What a qdisc or class has counted, together with everything beneath it.

use std::collections::BTreeSet;

use crate::base::Handle;
use crate::sched::view::{ClassView, QdiscView};

/// What a qdisc or class of a running tree has counted up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes that have left it.
    pub sent_bytes: u64,
    /// Packets that have left it.
    pub sent_packets: u64,
    /// Packets that were dropped in it or beneath it.
    pub dropped_packets: u64,
    /// Bytes that wait in it or beneath it.
    pub backlog_bytes: u64,
}

impl Counted {
    /// Returns what the qdisc (`M:0`) or class `place` has counted, from the views of its tree;
    /// `None` if the tree has no such qdisc or class.
    #[must_use]
    pub fn at(views: &[QdiscView], place: Handle) -> Option<Self> {
        let own = views.iter().find(|view| view.handle.major == place.major)?;
        if place.minor == 0 {
            return Some(Self {
                sent_bytes: own.counters.bytes,
                sent_packets: own.counters.packets,
                dropped_packets: own.counters.drops,
                backlog_bytes: own.backlog.bytes,
            });
        }
        let class = own.classes.iter().find(|class| class.handle == place)?;
        let leaves = leaves(own, place);
        let leaves = views.iter().filter(|view| leaves.contains(&view.handle.major));
        let mut counted = Self {
            sent_bytes: class.counters.bytes,
            sent_packets: class.counters.packets,
            ..Self::default()
        };
        for leaf in leaves {
            counted.dropped_packets += leaf.counters.drops;
            counted.backlog_bytes += leaf.backlog.bytes;
        }
        Some(counted)
    }
}

/// Returns the major numbers of the qdiscs beneath a class and beneath the classes beneath it.
fn leaves(own: &QdiscView, class: Handle) -> BTreeSet<u16> {
    let mut classes = BTreeSet::from([class]);
    // Level by level.
    loop {
        let before = classes.len();
        let is_beneath = |class: &&ClassView| class.parent.is_some_and(|it| classes.contains(&it));
        let beneath: Vec<Handle> =
            own.classes.iter().filter(is_beneath).map(|class| class.handle).collect();
        classes.extend(beneath);
        if classes.len() == before {
            break;
        }
    }
    own.classes
        .iter()
        .filter(|class| classes.contains(&class.handle))
        .filter_map(|class| class.leaf)
        .collect()
}
