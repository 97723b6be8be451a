//! Decides which classes may send, which may borrow, which class has the turn, and which classes
//! pay for a packet.

use onramp_queue::Packet;

use super::class::{Below, Class, LEVELS, Mode, ROOT};
use super::turns::ActiveClasses;
use super::wait::Entry;
use super::{Htb, QUIET_NS};
use crate::base::Instant;
use crate::sched::{Cx, Dequeue, segments};

impl Htb {
    /// Notes that the leaf at `place` has packets.
    #[inline]
    pub(super) fn activate(&mut self, place: usize) {
        let class = &mut self.classes[place];
        if class.active == 0 {
            class.active = class.priority_bit();
            self.join(place);
        }
    }

    /// Notes that the leaf at `place` has no packets.
    #[inline]
    pub(super) fn deactivate(&mut self, place: usize) {
        if self.classes[place].active != 0 {
            self.leave(place);
            self.classes[place].active = 0;
        }
    }

    /// Lets a class take turns as its mode allows, in all priorities in which the class is active.
    /// A class that may send joins the row (the classes of one level and priority that take turns)
    /// of its level; a class that must borrow joins its parent's borrowers, and the parent then
    /// joins in the same way.
    fn join(&mut self, place: usize) {
        let (mut at, mut bits) = (place, self.classes[place].active);
        while bits != 0 && self.classes[at].mode == Mode::MayBorrow {
            let (minor, parent) = (self.classes[at].minor, self.classes[at].parent);
            let Some(above) = self.classes.get_mut(parent) else { return };
            let Below::Inner(borrowers) = &mut above.below else { return };
            let mut new = bits;
            for priority in each_bit(bits) {
                // In this priority, the parent already takes turns because it lends to another
                // child.
                if !borrowers[priority].is_empty() {
                    new &= !(1 << priority);
                }
                borrowers[priority].insert(minor);
            }
            above.active |= new;
            (at, bits) = (parent, new);
        }
        let class = &self.classes[at];
        if class.mode == Mode::CanSend && bits != 0 {
            let level = usize::from(class.level);
            self.row_mask[level] |= bits;
            for priority in each_bit(bits) {
                self.rows[level][priority].insert(class.minor);
            }
        }
    }

    /// Undoes [`join`](Self::join): the class no longer takes turns.
    fn leave(&mut self, place: usize) {
        let (mut at, mut bits) = (place, self.classes[place].active);
        while bits != 0 && self.classes[at].mode == Mode::MayBorrow {
            let (minor, parent) = (self.classes[at].minor, self.classes[at].parent);
            let Some(above) = self.classes.get_mut(parent) else { return };
            let Below::Inner(borrowers) = &mut above.below else { return };
            let mut gone = 0;
            for priority in each_bit(bits) {
                borrowers[priority].remove_keeping_turn(minor);
                if borrowers[priority].is_empty() {
                    gone |= 1 << priority;
                }
            }
            above.active &= !gone;
            (at, bits) = (parent, gone);
        }
        let class = &self.classes[at];
        if class.mode == Mode::CanSend && bits != 0 {
            let level = usize::from(class.level);
            for priority in each_bit(bits) {
                let row = &mut self.rows[level][priority];
                row.remove(class.minor);
                if row.is_empty() {
                    self.row_mask[level] &= !(1 << priority);
                }
            }
        }
    }

    /// Updates the mode of a class (may send, may borrow, must wait) from its tokens, `elapsed_ns`
    /// nanoseconds after the tokens were last counted. Returns for how many nanoseconds the new
    /// mode holds.
    #[inline]
    fn update_mode(&mut self, place: usize, elapsed_ns: i64) -> i64 {
        let class = &mut self.classes[place];
        let (mode, holds_ns) = class.mode_after(elapsed_ns);
        if mode == class.mode {
            return holds_ns;
        }
        if mode == Mode::CannotSend {
            class.stats.overlimits += 1;
            self.overlimits += 1;
        }
        if class.active != 0 && class.mode != Mode::CannotSend {
            self.leave(place);
        }
        self.classes[place].mode = mode;
        if self.classes[place].active != 0 && mode != Mode::CannotSend {
            self.join(place);
        }
        holds_ns
    }

    /// Makes a class wait for `delay_ns` nanoseconds.
    #[inline]
    pub(super) fn wait(&mut self, place: usize, delay_ns: i64, now: Instant) {
        let class = &mut self.classes[place];
        let level = usize::from(class.level);
        // The wait must end after `now`. Otherwise `run_events` would find the same class again and
        // again in one call.
        let then = now.after(delay_ns.max(1).unsigned_abs()).0;
        self.next_event_ns[level] = self.next_event_ns[level].min(then);
        class.waits = self.waiting[level].push(then, class.minor);
    }

    /// Ends the wait of the class at `place`, if it waits.
    #[inline]
    pub(super) fn unwait(&mut self, place: usize) {
        let class = &mut self.classes[place];
        if std::mem::take(&mut class.waits) != 0 {
            let level = usize::from(class.level);
            let (classes, places) = (&self.classes, &self.places);
            self.waiting[level].forget_one(|entry| counts(classes, places, entry));
        }
    }

    /// Updates the modes of the classes of a level whose wait has ended. Returns when the next
    /// class of that level must be checked, in nanoseconds.
    #[inline]
    pub(super) fn run_events(&mut self, level: usize, now: Instant) -> u64 {
        loop {
            let (classes, places) = (&self.classes, &self.places);
            let due = self.waiting[level].pop_due(now.0, |entry| counts(classes, places, entry));
            let place = match due {
                Ok(entry) => self.places[usize::from(entry.number())] as usize,
                Err(then) => return then.unwrap_or_else(|| now.after(QUIET_NS).0),
            };
            self.classes[place].waits = 0;
            let elapsed_ns = self.classes[place].elapsed_ns(now);
            let holds_ns = self.update_mode(place, elapsed_ns);
            if self.classes[place].mode != Mode::CanSend {
                self.wait(place, holds_ns, now);
            }
        }
    }

    /// Returns the leaf whose turn it is in a row (the classes of one level and priority). If an
    /// inner class has the turn in the row, returns the leaf whose turn it is among the borrowers
    /// below that class.
    #[inline]
    fn leaf_in_turn(&mut self, level: usize, priority: usize) -> Option<usize> {
        // The inner classes through which the search has gone down, from the row (the classes of
        // one level and priority) to the borrowers that it searches now.
        let mut path = [ROOT; LEVELS];
        let mut depth = 0;
        if self.row_mask[level] & 1 << priority == 0 {
            return None;
        }
        // As in Linux, the number of steps is bounded, so that the search ends even if it finds no
        // leaf.
        for _ in 0..=u16::MAX {
            let turns = self.turns(path[depth], level, priority)?;
            if let Some(minor) = turns.current() {
                let place = self.place(minor)?;
                if self.classes[place].is_leaf() {
                    return Some(place);
                }
                depth += 1;
                path[depth] = place;
                continue;
            }
            // The round among these borrowers is over, so the turn passes from their parent to the
            // next class beside that parent.
            turns.rewind();
            if depth > 0 {
                depth -= 1;
                self.turns(path[depth], level, priority)?.advance();
            }
        }
        None
    }

    /// Returns the borrowers of the class at `place` in this priority; for the root, the row (the
    /// classes that take turns) of `level` and `priority`.
    #[inline]
    fn turns(&mut self, place: usize, level: usize, priority: usize) -> Option<&mut ActiveClasses> {
        match self.classes.get_mut(place) {
            None => Some(&mut self.rows[level][priority]),
            Some(Class { below: Below::Inner(borrowers), .. }) => Some(&mut borrowers[priority]),
            Some(_) => None,
        }
    }

    /// Ends the turn of a leaf that has sent with tokens of a class on `level`.
    #[inline]
    fn end_turn(&mut self, place: usize, level: usize, priority: usize) {
        // A leaf that sent with its own tokens takes turns in the row of level 0 (the leaves of one
        // priority). A leaf that borrowed takes turns among its parent's borrowers, whatever class
        // lent the tokens.
        let above = if level == 0 { ROOT } else { self.classes[place].parent };
        if let Some(turns) = self.turns(above, 0, priority) {
            turns.advance();
        }
    }

    /// Takes a packet from a row (the classes of one level and priority). If no leaf of the row has
    /// a packet ready, returns as an error the earliest time at which the qdisc of one of these
    /// leaves wants to be asked again.
    #[inline]
    pub(super) fn serve(
        &mut self,
        level: usize,
        priority: usize,
        cx: &mut Cx<'_>,
    ) -> Result<Packet, Instant> {
        let mut wait = Instant::MAX;
        let mut first = self.leaf_in_turn(level, priority).ok_or(wait)?;
        let mut place = first;
        loop {
            let class = &mut self.classes[place];
            let before = class.packets();
            if let Below::Leaf(child) = &mut class.below
                && before > 0
            {
                let answer = child.dequeue(cx, &mut self.held);
                let after = child.held().packets;
                if after == 0 && (before > 1 || !matches!(answer, Dequeue::Ready(_))) {
                    // The leaf's qdisc has dropped, during this `dequeue`, all packets that it did
                    // not return. The leaf must leave the row (the classes that take turns) before
                    // its turn ends.
                    self.deactivate(place);
                }
                match answer {
                    Dequeue::Ready(pkt) => {
                        self.sent(place, level, priority, &pkt, cx.now);
                        return Ok(pkt);
                    }
                    Dequeue::NotBefore(then) => wait = wait.min(then),
                    Dequeue::Empty => {}
                }
                self.end_turn(place, level, priority);
            } else {
                self.deactivate(place);
            }
            let next = self.leaf_in_turn(level, priority).ok_or(wait)?;
            // The round ends when the first leaf has the turn again. If the first leaf has become
            // empty, it never gets the turn again, so let the next leaf count as the first one.
            if self.classes[first].active == 0 {
                first = next;
            } else if next == first {
                return Err(wait);
            }
            place = next;
        }
    }

    /// Accounts for a packet of `len` bytes that a leaf sent with tokens of a class on `level`: the
    /// leaf and all classes above it pay for the packet.
    #[inline]
    fn sent(&mut self, place: usize, level: usize, priority: usize, pkt: &Packet, now: Instant) {
        let (len, parts) = (pkt.len, segments::count(pkt));
        let class = &mut self.classes[place];
        let deficit = &mut class.deficit[level];
        *deficit = deficit.saturating_sub_unsigned(len);
        if *deficit < 0 {
            *deficit += class.quantum;
            self.end_turn(place, level, priority);
        }
        if self.classes[place].packets() == 0 {
            self.deactivate(place);
        }
        let mut at = place;
        while let Some(class) = self.classes.get_mut(at) {
            #[expect(clippy::cast_possible_truncation, reason = "there are eight")]
            class.pay(level as u8, len, now);
            class.stats.packets += u64::from(parts);
            class.stats.bytes += u64::from(len);
            let (before, above) = (class.mode, class.parent);
            // `pay` has just counted the tokens up to `now`, so no time has elapsed since then.
            let holds_ns = self.update_mode(at, 0);
            let mode = self.classes[at].mode;
            if mode != before {
                if before != Mode::CanSend {
                    self.unwait(at);
                }
                if mode != Mode::CanSend {
                    self.wait(at, holds_ns, now);
                }
            }
            at = above;
        }
    }
}

/// Whether an entry is valid: its class still waits, and this is the class's newest entry.
#[inline]
fn counts(classes: &[Class], places: &[u32], entry: Entry) -> bool {
    let place = places.get(usize::from(entry.number())).map_or(ROOT, |place| *place as usize);
    classes.get(place).is_some_and(|class| class.waits == entry.place())
}

/// Returns the positions of the bits that are set in `bits`.
#[inline]
pub(super) fn each_bit(mut bits: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        number
    })
}
