//! The state that the scheduler of `hfsc` keeps for each class.

use std::collections::BTreeMap;

use super::curve::{Curve, Path};
use crate::base::Instant;
use crate::base::params::Site;
use crate::filter::Filters;
use crate::qdisc::pfifo_child;
use crate::sched::Child;

/// A class, or the root.
#[derive(Debug)]
pub(super) struct Class {
    /// The place of the parent class in the list of classes; `None` for the root.
    pub(super) parent: Option<usize>,
    /// Height above the leaves; 0 = the class has no classes below it.
    pub(super) level: u32,
    /// For each level: the number of child classes on it.
    children: Vec<u32>,
    pub(super) child: Child,
    /// When the class's qdisc wanted to be asked again, the last time that it had no packet ready.
    pub(super) timer: Option<Instant>,
    pub(super) filters: Filters,
    pub(super) real: Option<Real>,
    pub(super) share: Option<Share>,
    /// Number of bytes that the class and all classes below it have sent.
    pub(super) total: u64,
    pub(super) below: Below,
}

impl Class {
    pub(super) fn new(parent: Option<usize>, site: Site) -> Self {
        Self {
            parent,
            level: 0,
            children: Vec::new(),
            child: pfifo_child(site),
            timer: None,
            filters: Filters::default(),
            real: None,
            share: None,
            total: 0,
            below: Below::default(),
        }
    }

    /// Counts a child class that leaves the level `from` or comes to the level `to`, and sets the
    /// level of this class, which is one above the highest level of a child.
    pub(super) fn count(&mut self, from: Option<u32>, to: Option<u32>) {
        if let Some(to) = to {
            let to = to as usize;
            self.children.resize(self.children.len().max(to + 1), 0);
            self.children[to] += 1;
        }
        if let Some(from) = from {
            self.children[from as usize] -= 1;
        }
        self.children
            .truncate(self.children.iter().rposition(|count| *count > 0).map_or(0, |top| top + 1));
        self.level = u32::try_from(self.children.len()).unwrap_or(u32::MAX);
    }

    /// Resets the class to its state before its first packet; its curves stay.
    pub(super) fn restart(&mut self) {
        self.real = self.real.as_ref().map(|real| Real::new(real.curve));
        let limit = self.share.as_ref().and_then(|share| share.limit.as_ref());
        let limit = limit.map(|limit| Limit::new(limit.curve, 0, 0));
        self.share = self.share.as_ref().map(|share| Share::new(share.curve, 0));
        if let Some(share) = &mut self.share {
            share.limit = limit;
        }
        self.total = 0;
        self.below = Below::default();
    }
}

/// The guarantee of a class (the curve `rt`): service that the class gets whatever other classes
/// do.
#[derive(Debug)]
pub(super) struct Real {
    pub(super) curve: Curve,
    pub(super) deadline: Path,
    pub(super) eligible: Path,
    /// Number of bytes that the class has sent under the guarantee.
    pub(super) cumul: u64,
    /// The time at which the next packet becomes eligible, so that it may be sent under the
    /// guarantee (`e`), and the time by which the packet has to be sent (`d`), in units of 64 ns.
    pub(super) e: u64,
    pub(super) d: u64,
    pub(super) place: Place,
    /// A sequence number by which classes with equal times are ordered.
    pub(super) turn: u64,
}

/// In which of the two ordered maps of the scheduler a class with a guarantee is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The class is in neither map, because it holds no packets.
    Nowhere,
    /// The class is in the map of classes that wait until their next packet becomes eligible (may
    /// be sent under the guarantee), ordered by that time.
    Waiting,
    /// The class is in the map of classes whose next packet is eligible, ordered by deadline.
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

/// The share (the curve `ls`) of a class in what its parent has.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) curve: Curve,
    pub(super) path: Path,
    pub(super) limit: Option<Limit>,
    /// Number of active children; for a leaf, 1 if the leaf is active, else 0.
    pub(super) active: u32,
    /// The virtual time of the class, and the sum of all corrections that moved this time forward,
    /// in units of 64 ns.
    pub(super) vt: u64,
    pub(super) correction: u64,
    pub(super) turn: u64,
    /// The time from which the class's own limit and the limits of its children allow the class to
    /// send, in units of 64 ns.
    pub(super) f: u64,
    /// How often this class has become active; and how often its parent had become active by the
    /// time at which this class last became active.
    pub(super) period: u32,
    pub(super) parent_period: u32,
}

impl Share {
    /// Creates the share of a class that has sent `total` bytes and is not active.
    pub(super) fn new(curve: Curve, total: u64) -> Self {
        Self {
            curve,
            path: curve.at(0, total),
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
    /// The time from which the limit allows the class to send, in units of 64 ns.
    pub(super) f: u64,
}

impl Limit {
    /// Creates the limit of a class that has sent `total` bytes. It counts what the class sends
    /// after the time `tick`, in units of 64 ns.
    pub(super) fn new(curve: Curve, tick: u64, total: u64) -> Self {
        Self { curve, path: curve.at(tick, total), f: 0 }
    }
}

/// The active classes directly below a class, and times that their parent keeps for them.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// The active classes by virtual time; of classes with equal virtual times, the one that has
    /// been in the map longest is first.
    pub(super) by_vt: BTreeMap<(u64, u64), usize>,
    /// The active classes by the time from which they may send.
    pub(super) by_f: BTreeMap<(u64, usize), usize>,
    /// The greatest virtual time of the children chosen since the last time that no child was
    /// active; 0 if none was chosen.
    pub(super) vt_min: u64,
    /// The greatest virtual time that a child had when it became passive.
    pub(super) vt_offset: u64,
}

impl Below {
    /// Returns the earliest time at which an active child may send, in units of 64 ns; zero if no
    /// child is active.
    pub(super) fn f_min(&self) -> u64 {
        self.by_f.first_key_value().map_or(0, |((f, _), _)| *f)
    }
}
