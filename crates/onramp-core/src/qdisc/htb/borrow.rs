//! Who may send, who may borrow, whose turn it is, and who pays.

use onramp_queue::Packet;

use super::class::{Below, Class, LEVELS, Mode, ROOT};
use super::turns::ActiveClasses;
use super::wait::Entry;
use super::{Htb, QUIET_NS};
use crate::base::Instant;
use crate::sched::{Cx, Dequeue};

impl Htb {
    /// Notes that a leaf has packets.
    #[inline]
    pub(super) fn activate(&mut self, place: usize) {
        let class = &mut self.classes[place];
        if class.active == 0 {
            class.active = class.priority_bit();
            self.join(place);
        }
    }

    /// Notes that a leaf has no packets.
    #[inline]
    pub(super) fn deactivate(&mut self, place: usize) {
        if self.classes[place].active != 0 {
            self.leave(place);
            self.classes[place].active = 0;
        }
    }

    /// Lets a class take turns where its mode allows it, in all priorities it is active in: in the
    /// row of its level, or among those who borrow from its parent, which then does the same.
    fn join(&mut self, place: usize) {
        let (mut at, mut bits) = (place, self.classes[place].active);
        while bits != 0 && self.classes[at].mode == Mode::MayBorrow {
            let (minor, parent) = (self.classes[at].minor, self.classes[at].parent);
            let Some(above) = self.classes.get_mut(parent) else { return };
            let Below::Inner(borrowers) = &mut above.below else { return };
            let mut new = bits;
            for priority in each_bit(bits) {
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

    /// Undoes [`join`](Self::join).
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

    /// Sets the mode of a class as its tokens say so long after the last look; gives how long that
    /// holds.
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

    /// Lets a class wait so long.
    #[inline]
    fn wait(&mut self, place: usize, delay_ns: i64, now: Instant) {
        let class = &mut self.classes[place];
        let level = usize::from(class.level);
        let then = now.after(delay_ns.max(1).unsigned_abs()).0;
        self.next_event_ns[level] = self.next_event_ns[level].min(then);
        class.waits = self.waiting[level].push(then, class.minor);
    }

    /// Lets a class wait no longer.
    #[inline]
    pub(super) fn unwait(&mut self, place: usize) {
        let class = &mut self.classes[place];
        if std::mem::take(&mut class.waits) != 0 {
            let level = usize::from(class.level);
            let (classes, places) = (&self.classes, &self.places);
            self.waiting[level].forget_one(|entry| counts(classes, places, entry));
        }
    }

    /// Looks at the classes of a level whose time has come; says when the next one's comes.
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

    /// The leaf whose turn it is in a row, or among those who borrow from who has the turn there.
    #[inline]
    fn leaf_in_turn(&mut self, level: usize, priority: usize) -> Option<usize> {
        // The classes whose borrowers are looked at, from the row downwards.
        let mut path = [ROOT; LEVELS];
        let mut depth = 0;
        if self.row_mask[level] & 1 << priority == 0 {
            return None;
        }
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
            // The round is over: it is for the next one above to lend.
            turns.rewind();
            if depth > 0 {
                depth -= 1;
                self.turns(path[depth], level, priority)?.advance();
            }
        }
        None
    }

    /// Those who borrow from the class at `place`; at the root, the row.
    #[inline]
    fn turns(&mut self, place: usize, level: usize, priority: usize) -> Option<&mut ActiveClasses> {
        match self.classes.get_mut(place) {
            None => Some(&mut self.rows[level][priority]),
            Some(Class { below: Below::Inner(borrowers), .. }) => Some(&mut borrowers[priority]),
            Some(_) => None,
        }
    }

    /// Ends the turn of a leaf that sent at `level`.
    #[inline]
    fn end_turn(&mut self, place: usize, level: usize, priority: usize) {
        let above = if level == 0 { ROOT } else { self.classes[place].parent };
        if let Some(turns) = self.turns(above, 0, priority) {
            turns.advance();
        }
    }

    /// Takes a packet from a row, or says when one of its leaves wants to be asked again.
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
                    // It dropped the rest, and is out before its turn is ended.
                    self.deactivate(place);
                }
                match answer {
                    Dequeue::Ready(pkt) => {
                        self.sent(place, level, priority, pkt.len, cx.now);
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
            if self.classes[first].active == 0 {
                first = next;
            } else if next == first {
                return Err(wait);
            }
            place = next;
        }
    }

    /// Books a packet that a leaf sent with tokens from `level`.
    #[inline]
    fn sent(&mut self, place: usize, level: usize, priority: usize, len: u32, now: Instant) {
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
            class.stats.packets += 1;
            class.stats.bytes += u64::from(len);
            let (before, above) = (class.mode, class.parent);
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

/// Whether an entry is that of a class that waits.
#[inline]
fn counts(classes: &[Class], places: &[u32], entry: Entry) -> bool {
    let place = places.get(usize::from(entry.number())).map_or(ROOT, |place| *place as usize);
    classes.get(place).is_some_and(|class| class.waits == entry.place())
}

/// The numbers of the bits that are set.
#[inline]
pub(super) fn each_bit(mut bits: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        number
    })
}
