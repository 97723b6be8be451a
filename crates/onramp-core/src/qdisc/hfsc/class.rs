//! What the scheduler of `hfsc` knows of a class.

use std::collections::BTreeMap;

use super::curve::{Curve, Path};
use crate::base::Instant;
use crate::filter::Filters;
use crate::qdisc::pfifo_child;
use crate::sched::Child;

/// A class, or the root.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) minor: u16,
    /// The place of the parent class; `None` for the root.
    pub(super) parent: Option<usize>,
    /// Height above the leaves; 0 = the class has no classes below it.
    pub(super) level: u32,
    pub(super) child: Child,
    /// When the child wanted to be asked again, the last time that the child made the class wait.
    pub(super) timer: Instant,
    pub(super) filters: Filters,
    pub(super) real: Option<Real>,
    pub(super) share: Option<Share>,
    /// Number of bytes sent.
    pub(super) total: u64,
    pub(super) below: Below,
}

impl Class {
    pub(super) fn new(minor: u16, parent: Option<usize>) -> Self {
        Self {
            minor,
            parent,
            level: 0,
            child: pfifo_child(),
            timer: Instant(0),
            filters: Filters::default(),
            real: None,
            share: None,
            total: 0,
            below: Below::default(),
        }
    }

    /// Resets the class to its state before its first packet.
    pub(super) fn restart(&mut self) {
        self.real = self.real.as_ref().map(|real| Real::new(real.curve));
        let limit = self.share.as_ref().and_then(|share| share.limit.as_ref());
        let limit = limit.map(|limit| Limit::new(limit.curve));
        self.share = self.share.as_ref().map(|share| Share::new(share.curve));
        if let Some(share) = &mut self.share {
            share.limit = limit;
        }
        self.total = 0;
        self.below = Below::default();
    }
}

/// The service guaranteed to a class, whatever other classes do.
#[derive(Debug)]
pub(super) struct Real {
    pub(super) curve: Curve,
    pub(super) deadline: Path,
    pub(super) eligible: Path,
    /// Number of bytes sent under the guarantee.
    pub(super) cumul: u64,
    /// When the next packet becomes eligible (`e`), and by when it has to be sent (`d`), in ticks.
    pub(super) e: u64,
    pub(super) d: u64,
    pub(super) place: Place,
    /// A sequence number that keeps classes with equal times in order.
    pub(super) turn: u64,
}

/// In which of the two ordered maps a class is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The class is in no map, because it holds no packets.
    Nowhere,
    /// The class waits, ordered by the time at which it becomes eligible.
    Waiting,
    /// The class is eligible, ordered by its deadline.
    Ready,
}

impl Real {
    pub(super) fn new(curve: Curve) -> Self {
        let deadline = curve.at(0, 0);
        let eligible = deadline.eligible();
        let (cumul, e, d, turn) = (0, 0, 0, 0);
        Self { curve, deadline, eligible, cumul, e, d, place: Place::Nowhere, turn }
    }
}

/// A class's share of what its parent has.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) curve: Curve,
    pub(super) path: Path,
    pub(super) limit: Option<Limit>,
    /// Number of active children; for a leaf, 1 if the leaf is active.
    pub(super) active: u32,
    /// The virtual time, and the sum of its corrections, in ticks.
    pub(super) vt: u64,
    pub(super) correction: u64,
    pub(super) turn: u64,
    /// When the class's own limit and those of its children allow it to send, in ticks.
    pub(super) f: u64,
    /// How often the class became active, and how often its parent had when the class last did.
    pub(super) period: u32,
    pub(super) parent_period: u32,
}

impl Share {
    pub(super) fn new(curve: Curve) -> Self {
        Self {
            curve,
            path: curve.at(0, 0),
            limit: None,
            active: 0,
            vt: 0,
            correction: 0,
            turn: 0,
            f: 0,
            period: 0,
            parent_period: 0,
        }
    }
}

/// The upper limit of a class: the curve `ul`.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) curve: Curve,
    pub(super) path: Path,
    /// When the limit allows the class to send, in ticks.
    pub(super) f: u64,
}

impl Limit {
    pub(super) fn new(curve: Curve) -> Self {
        Self { curve, path: curve.at(0, 0), f: 0 }
    }
}

/// The active classes below a class, and what the class knows of them.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// The active classes by virtual time; of equal ones, the one that has been here longest is
    /// first.
    pub(super) by_vt: BTreeMap<(u64, u64), usize>,
    /// The active classes by the time from which they may send.
    pub(super) by_f: BTreeMap<(u64, usize), usize>,
    /// The virtual time of the class that was chosen last.
    pub(super) vt_min: u64,
    /// The greatest virtual time of classes that have become passive.
    pub(super) vt_offset: u64,
}

impl Below {
    /// Returns when the first active class may send, in ticks; zero if no class is active.
    pub(super) fn f_min(&self) -> u64 {
        self.by_f.first_key_value().map_or(0, |((f, _), _)| *f)
    }
}
