//! Decides which class of `hfsc` sends next: first guarantees, by deadline; then shares, by virtual
//! time.

use super::class::{Place, Real};
use super::{Hfsc, ROOT};

impl Hfsc {
    pub(super) fn is_active(&self, class: usize) -> bool {
        let class = &self.classes[class];
        class.share.as_ref().is_some_and(|share| share.active > 0)
            || class.real.as_ref().is_some_and(|real| real.place != Place::Nowhere)
    }

    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// Makes `class` active: it held nothing before, and now holds a packet of `len` bytes.
    pub(super) fn activate(&mut self, class: usize, len: u32, now: u64) {
        if let Some(real) = &mut self.classes[class].real {
            real.deadline.lower(&real.curve, now, real.cumul);
            real.eligible = real.deadline.eligible();
            self.plan(class, len, true);
        }
        if self.classes[class].share.is_some() {
            self.join(class, now);
        }
    }

    /// Computes by when the next packet of `class`, of `len` bytes, has to be sent. If `guaranteed`
    /// is true (the last packet was sent under the guarantee), also computes when the next packet
    /// becomes eligible (may be sent under the guarantee).
    pub(super) fn plan(&mut self, class: usize, len: u32, guaranteed: bool) {
        let turn = self.next_turn();
        let Some(real) = &mut self.classes[class].real else { return };
        let before = (real.place, real.e, real.d, real.turn);
        real.d = real.deadline.tick_of(real.cumul + u64::from(len));
        if guaranteed {
            real.e = real.eligible.tick_of(real.cumul);
            (real.place, real.turn) = (Place::Waiting, turn);
        }
        let Real { place, e, d, turn, .. } = *real;
        self.take_out(before);
        match place {
            Place::Waiting => self.waiting.insert((e, turn), class),
            Place::Ready => self.ready.insert((d, e, turn), class),
            Place::Nowhere => None,
        };
    }

    fn take_out(&mut self, (place, e, d, turn): (Place, u64, u64, u64)) {
        match place {
            Place::Waiting => self.waiting.remove(&(e, turn)),
            Place::Ready => self.ready.remove(&(d, e, turn)),
            Place::Nowhere => None,
        };
    }

    /// Removes `class` from the maps of classes with guarantees, because it has no packet with a
    /// deadline.
    pub(super) fn forget_real(&mut self, class: usize) {
        let Some(real) = &mut self.classes[class].real else { return };
        let before = (real.place, real.e, real.d, real.turn);
        real.place = Place::Nowhere;
        self.take_out(before);
    }

    /// Returns the class with the earliest deadline among those whose next packet is eligible (may
    /// be sent under the guarantee); of equal deadlines, the class whose packet became eligible
    /// first.
    pub(super) fn most_urgent(&mut self, now: u64) -> Option<usize> {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let ((e, turn), class) = first.remove_entry();
            if let Some(real) = &mut self.classes[class].real {
                real.place = Place::Ready;
                self.ready.insert((real.d, e, turn), class);
            }
        }
        self.ready.first_key_value().map(|(_, class)| *class)
    }

    /// Returns the leaf whose share is furthest behind, or `None` if no class may send. The search
    /// goes down from the root; at each level, it takes the class with the smallest virtual time
    /// among those whose limits allow them to send.
    pub(super) fn furthest_behind(&mut self, now: u64) -> Option<usize> {
        let mut class = ROOT;
        if self.classes[ROOT].below.f_min() > now {
            return None;
        }
        while self.classes[class].level > 0 {
            let share = |class: usize| self.classes[class].share.as_ref();
            let fits = |class: &usize| {
                let Some(share) = share(*class) else { return false };
                debug_assert!(share.active > 0, "a class that is not active is in `by_vt`");
                share.active > 0 && share.f <= now
            };
            let next = self.classes[class].below.by_vt.values().copied().find(fits)?;
            let vt = share(next).map_or(0, |share| share.vt);
            let below = &mut self.classes[class].below;
            below.vt_min = below.vt_min.max(vt);
            class = next;
        }
        Some(class)
    }

    /// Makes `class` active in its parent's share; a parent that becomes active by this becomes
    /// active in its own parent's share, and so on.
    fn join(&mut self, mut class: usize, now: u64) {
        let mut joins = true;
        while let Some(parent) = self.classes[class].parent {
            let turn = self.next_turn();
            let Ok([own, above]) = self.classes.get_disjoint_mut([class, parent]) else { return };
            let Some(share) = &mut own.share else { return };
            if joins {
                joins = share.active == 0;
                share.active += 1;
            }
            if joins {
                let (period, active) =
                    above.share.as_ref().map_or((0, 0), |share| (share.period, share.active));
                let below = &mut above.below;
                if let Some((&(last, _), _)) = below.by_vt.last_key_value() {
                    // The virtual time of the class starts halfway between the greatest virtual
                    // time that was served (`vt_min`) and the greatest one of the active classes;
                    // or at the latter, if no class was served yet. If the parent has not become
                    // passive since the class was active, the class keeps its old virtual time if
                    // that is greater.
                    let vt = match below.vt_min {
                        0 => last,
                        first => first.wrapping_add(last) / 2,
                    };
                    if period != share.parent_period || vt > share.vt {
                        share.vt = vt;
                    }
                } else {
                    share.vt = below.vt_offset;
                    below.vt_min = 0;
                }
                share.path.lower(&share.curve, share.vt, own.total);
                share.correction = 0;
                share.period = share.period.wrapping_add(1);
                share.parent_period = period.wrapping_add(u32::from(active == 0));
                (share.f, share.turn) = (0, turn);
                below.by_vt.insert((share.vt, turn), class);
                below.by_f.insert((0, class), class);
                if let Some(limit) = &mut share.limit {
                    limit.path.lower(&limit.curve, now, own.total);
                    limit.f = limit.path.tick_of(own.total);
                }
            }
            self.update_f(class, parent);
            class = parent;
        }
    }

    /// Adds `len` bytes to what `class` has sent. If the class's qdisc holds no more packets, makes
    /// the class passive in its parent's share.
    pub(super) fn serve(&mut self, class: usize, len: u64) {
        let own = &self.classes[class];
        self.book(class, len, own.child.held().packets == 0 && own.share.is_some());
    }

    /// Makes `class` passive, even if it holds packets.
    pub(super) fn part(&mut self, class: usize) {
        let is_sharing = self.classes[class].share.as_ref().is_some_and(|share| share.active > 0);
        if is_sharing {
            self.book(class, 0, true);
        }
        self.forget_real(class);
    }

    /// Adds `len` bytes to what `class` and all classes above it have sent. If `leaves` is true,
    /// makes `class` passive in its parent's share.
    pub(super) fn book(&mut self, mut class: usize, len: u64, mut leaves: bool) {
        while let Some(parent) = self.classes[class].parent {
            let turn = self.next_turn();
            let Ok([own, above]) = self.classes.get_disjoint_mut([class, parent]) else { return };
            own.total += len;
            if let Some(share) = own.share.as_mut().filter(|share| share.active > 0) {
                if leaves {
                    share.active -= 1;
                    leaves = share.active == 0;
                }
                let below = &mut above.below;
                below.by_vt.remove(&(share.vt, share.turn));
                share.vt = share.path.tick_of(own.total).wrapping_add(share.correction);
                if share.vt < below.vt_min {
                    // The limit of the class held it back while other classes were served. Move its
                    // virtual time forward, so that the class does not get more service later to
                    // make up for that.
                    share.correction =
                        share.correction.wrapping_add(below.vt_min).wrapping_sub(share.vt);
                    share.vt = below.vt_min;
                }
                if leaves {
                    below.vt_offset = below.vt_offset.max(share.vt);
                    below.by_f.remove(&(share.f, class));
                } else {
                    share.turn = turn;
                    below.by_vt.insert((share.vt, turn), class);
                    if let Some(limit) = &mut share.limit {
                        limit.f = limit.path.tick_of(own.total);
                    }
                    self.update_f(class, parent);
                }
            }
            class = parent;
        }
    }

    /// Updates the time from which `class` may send: when its own limit, and the limit of at least
    /// one of its children, allow it.
    fn update_f(&mut self, class: usize, parent: usize) {
        let Ok([own, above]) = self.classes.get_disjoint_mut([class, parent]) else { return };
        let Some(share) = &mut own.share else { return };
        let limit = share.limit.as_ref().map_or(0, |limit| limit.f);
        let f = limit.max(own.below.f_min());
        if f != share.f {
            above.below.by_f.remove(&(share.f, class));
            above.below.by_f.insert((f, class), class);
            share.f = f;
        }
    }
}
