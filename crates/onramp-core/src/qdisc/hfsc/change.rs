//! Adding and changing classes of `hfsc`.

use super::class::{Class, Limit, Share};
use super::curve::Curve;
use super::{Hfsc, ROOT};
use crate::base::params::Site;
use crate::qdisc::pfifo_child;
use crate::sched::Cx;

impl Hfsc {
    /// Adds a class without curves, below the class `parent`. Returns its place.
    pub(super) fn add(&mut self, minor: u16, parent: u16, site: Site) -> usize {
        let parent = self.find(parent).unwrap_or(ROOT);
        self.become_inner(parent, site);
        let new = Class::new(Some(parent), site);
        let class = self.free.pop().unwrap_or(self.classes.len());
        match self.classes.get_mut(class) {
            Some(gone) => *gone = new,
            None => self.classes.push(new),
        }
        let place = self.minors.partition_point(|(other, _)| *other < minor);
        self.minors.insert(place, (minor, class));
        self.count_child(class, None, Some(0));
        class
    }

    /// Makes a leaf class an inner class, so that it can have children. As in Linux, the packets in
    /// its qdisc are dropped.
    fn become_inner(&mut self, class: usize, site: Site) {
        if self.classes[class].level > 0 {
            return;
        }
        self.part(class);
        self.forget_timer(class);
        let own = &mut self.classes[class];
        self.orphans.push(own.child.replace(pfifo_child(site)));
        if own.share.is_none() {
            // A class with children must have a share of its parent's rate (the curve `ls`). If
            // the class has none, its share gets the curve of its guarantee (`rt`).
            own.share = own.real.as_ref().map(|real| Share::new(real.curve, own.total));
        }
    }

    /// Drops the packets that classes still held when they got children and so ceased to be leaves.
    #[cold]
    pub(super) fn purge_orphans(&mut self, cx: &mut Cx<'_>) {
        for mut child in std::mem::take(&mut self.orphans) {
            child.reset(cx, &mut self.held);
        }
    }

    /// Gives the share of an inner class another curve and another limit. The class stays active if
    /// it is, because its children share by it, and its virtual time goes on from where it is.
    pub(super) fn change_share(&mut self, class: usize, curve: Curve, limit: Option<Limit>) {
        let own = &mut self.classes[class];
        let Some(share) = &mut own.share else { return };
        share.curve = curve;
        (share.path, share.correction) = (curve.at(share.vt, own.total), 0);
        share.limit = limit;
        self.book(class, 0, false);
    }

    /// Notes that the class `below` is new on the level `to`, or is removed from the level `from`.
    /// Sets the levels of all classes above it.
    pub(super) fn count_child(
        &mut self,
        mut below: usize,
        mut from: Option<u32>,
        mut to: Option<u32>,
    ) {
        while let Some(parent) = self.classes[below].parent {
            let above = &mut self.classes[parent];
            let before = above.level;
            above.count(from, to);
            if above.level == before {
                return;
            }
            (below, from, to) = (parent, Some(before), Some(above.level));
        }
    }
}
