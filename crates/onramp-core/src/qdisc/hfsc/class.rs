//! What the scheduler knows of a class.

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
    /// None: it is the root.
    pub(super) parent: Option<usize>,
    /// 0 = it has no classes below it.
    pub(super) level: u32,
    pub(super) child: Child,
    /// When the child wanted to be asked again, the last time it made us wait.
    pub(super) timer: Instant,
    pub(super) filters: Filters,
    pub(super) real: Option<Real>,
    pub(super) share: Option<Share>,
    /// Bytes sent.
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

    /// As it was before its first packet.
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

/// Service guaranteed, whatever others do.
#[derive(Debug)]
pub(super) struct Real {
    pub(super) curve: Curve,
    pub(super) deadline: Path,
    pub(super) eligible: Path,
    /// Bytes sent for the guarantee.
    pub(super) cumul: u64,
    /// When the next packet is eligible, and when it has to be sent.
    pub(super) e: u64,
    pub(super) d: u64,
    pub(super) place: Place,
    /// Which of the same time is first.
    pub(super) turn: u64,
}

/// Where a class is kept by its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It holds nothing.
    Nowhere,
    /// By the time when it is eligible.
    Waiting,
    /// It is eligible: by its deadline.
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

/// A part of what the parent has.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) curve: Curve,
    pub(super) path: Path,
    pub(super) limit: Option<Limit>,
    /// Active children; of a leaf, whether it is active.
    pub(super) active: u32,
    /// Virtual time, and what it was corrected by.
    pub(super) vt: u64,
    pub(super) correction: u64,
    pub(super) turn: u64,
    /// When its own limit, and that of its children, let it send.
    pub(super) f: u64,
    /// How often it became active, and the parent's number at the last time.
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

/// An upper limit.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) curve: Curve,
    pub(super) path: Path,
    /// When it lets the class send.
    pub(super) f: u64,
}

impl Limit {
    pub(super) fn new(curve: Curve) -> Self {
        Self { curve, path: curve.at(0, 0), f: 0 }
    }
}

/// The active classes below one, and what it knows of them.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// By virtual time; among equal ones, the one longest there is first.
    pub(super) by_vt: BTreeMap<(u64, u64), usize>,
    /// By the time when they may send.
    pub(super) by_f: BTreeMap<(u64, usize), usize>,
    /// The virtual time of the last that was chosen.
    pub(super) vt_min: u64,
    /// The greatest virtual time of those that have become passive.
    pub(super) vt_offset: u64,
}

impl Below {
    /// When the first of them may send; zero without any.
    pub(super) fn f_min(&self) -> u64 {
        self.by_f.first_key_value().map_or(0, |((f, _), _)| *f)
    }
}
