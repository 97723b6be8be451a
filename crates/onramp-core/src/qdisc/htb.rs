//! Classes in a tree, each with a rate of its own and a ceiling; who needs more than its rate
//! borrows what its parent does not use.
//!
//! Each class has a bucket for `rate` and one for `ceil`. While the first has tokens, it may send;
//! while only the second has, it may borrow from its parent, if that may send or borrow in turn;
//! else it waits. What a class lends is lent to its children by priority, and within a priority in
//! turns of `quantum` bytes. Classes that lend stand on a higher level than those that borrow from
//! them; lower levels are served first. Filters are asked at the qdisc and at inner classes; what
//! no class takes passes all classes by.
//!
//! Source: `tc-htb(8)`; M. Devera, "HTB Linux queuing discipline manual", 2002; S. Floyd and
//! V. Jacobson, "Link-sharing and Resource Management Models for Packet Networks", 1995; behaviour
//! of Linux 7.2 `net/sched/sch_htb.c`.
//! Differs: events of one call are not limited to two clock ticks. A burst that is not given is what
//! `tc` computes where timers are exact: a packet of `mtu` bytes and a nanosecond at the rate.
//! Invariant: from any packet of a class to any later one, those that leave take no longer at
//! `ceil` than the time between the two, `cburst`, and a packet.

mod class;
mod turns;
mod wait;

use std::array;

use onramp_queue::{DropReason, Packet, PacketList};

use self::class::{Below, Class, Config, LEVELS, Mode, PRIORITIES, ROOT};
use self::turns::Turns;
use self::wait::Waiting;
use super::{Backlog, ClassKind, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use crate::cost::{LINKLAYER, MPU, OVERHEAD};
use crate::filter::{Decision, Filters};
use crate::params::{Default, Param, Unit, Values};
use crate::{Child, Classes, Handle, Instant};

pub(super) const HTB: Kind = Kind {
    id: "htb",
    about: "classes with rates, which borrow from each other",
    params: &[
        Param::new("default", Unit::Minor, Default::Number(0), "class of what no filter matches"),
        Param::new("r2q", Unit::Count, Default::Number(10), "a quantum is the rate divided by it"),
        Param::new(
            "direct_qlen",
            Unit::Count,
            Default::Number(1000),
            "packets without a class held at most",
        ),
    ],
    check: |_| Ok(()),
    classes: ClassKind::Added { params: CLASS, check: |_| Ok(()), nested: true },
    build: |values| Box::new(Htb::new(values)),
};

const CLASS: &[Param] = &[
    Param::new("rate", Unit::Rate, Default::Needed, "what the class gets").at_least(1),
    Param::new("ceil", Unit::Rate, Default::Off, "what it gets with what it borrows").at_least(1),
    Param::new("burst", Unit::Size, Default::Off, "bytes it may send at once at `ceil`")
        .or(&["buffer", "maxburst"]),
    Param::new("cburst", Unit::Size, Default::Off, "bytes it may send at once at any rate")
        .or(&["cbuffer", "cmaxburst"]),
    Param::new("prio", Unit::Count, Default::Number(0), "smaller ones borrow first")
        .within(0, PRIORITIES as u64 - 1),
    Param::new("quantum", Unit::Bytes, Default::Off, "bytes it sends before its turn is over"),
    Param::new("mtu", Unit::Bytes, Default::Number(1600), "a burst that is not given, bytes"),
    OVERHEAD,
    MPU,
    LINKLAYER,
];

/// How long a level has no event, if nobody waits there.
const QUIET_NS: u64 = 1_000_000_000;
/// The longest time until the next look.
const LOOK_NS: u64 = 5_000_000_000;
/// So many classes may stand below one another.
pub(super) const DEPTH_MAX: usize = LEVELS;
/// One more than the highest level.
const ABOVE_ALL: u8 = 8;
const _: () = assert!(ABOVE_ALL as usize == LEVELS);
/// No such class.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Htb {
    handle: Handle,
    default: u16,
    rate_to_quantum: u64,
    direct_limit: u32,

    classes: Vec<Class>,
    /// By minor number: the place in `classes`.
    places: Vec<u32>,
    /// Classes that may send and have packets, by level and priority.
    rows: [[Turns; PRIORITIES]; LEVELS],
    /// By level, a bit for each priority whose row has classes.
    row_mask: [u8; LEVELS],
    /// Classes that may not send, by level.
    waiting: [Waiting; LEVELS],
    /// When the first of these has to be looked at, or earlier.
    next_event_ns: [u64; LEVELS],

    /// Packets that no class takes.
    direct: PacketList,
    /// Dequeued for a parent that looked; not counted in `held`.
    peeked: Option<Packet>,
    held: Backlog,
    /// Leaves of classes that have got children; they still count in `held`.
    orphans: Vec<Child>,
    filters: Filters,
    direct_packets: u64,
    overlimits: u64,
}

/// Where a packet goes.
enum Goes {
    Direct,
    /// To the class at this place.
    To(usize),
    Nowhere,
}

impl Htb {
    fn new(values: &Values<'_>) -> Self {
        Self {
            handle: values.site.handle,
            default: u16::try_from(values.number("default")).unwrap_or(0),
            rate_to_quantum: values.number("r2q"),
            direct_limit: values.number32("direct_qlen"),
            classes: Vec::new(),
            places: Vec::new(),
            rows: array::from_fn(|_| array::from_fn(|_| Turns::default())),
            row_mask: [0; LEVELS],
            waiting: array::from_fn(|_| Waiting::default()),
            next_event_ns: [0; LEVELS],
            direct: PacketList::new(),
            peeked: None,
            held: Backlog::default(),
            orphans: Vec::new(),
            filters: Filters::default(),
            direct_packets: 0,
            overlimits: 0,
        }
    }

    /// The place of class `minor`.
    #[inline]
    fn place(&self, minor: u16) -> Option<usize> {
        let place = self.places.get(usize::from(minor)).filter(|place| **place != NONE);
        place.map(|place| *place as usize)
    }

    #[inline]
    fn named(&self, class: Handle) -> Option<usize> {
        if class.major == self.handle.major { self.place(class.minor) } else { None }
    }

    #[inline]
    fn classify(&mut self, pkt: &mut Packet, now: Instant) -> Goes {
        let class = Handle::from_priority(pkt.priority);
        if class == self.handle {
            return Goes::Direct;
        }
        let mut at = self.named(class);
        // Filters that lead in a circle lead to the default.
        for _ in 0..LEVELS {
            let filters = match at {
                Some(place) if self.classes[place].is_leaf() => return Goes::To(place),
                Some(place) => &mut self.classes[place].filters,
                None => &mut self.filters,
            };
            match filters.classify(pkt, now) {
                Decision::Class(class) if class == self.handle => return Goes::Direct,
                Decision::Class(class) => match self.named(class) {
                    Some(place) => at = Some(place),
                    None => break,
                },
                Decision::Drop => return Goes::Nowhere,
                Decision::Unknown => break,
            }
        }
        match self.place(self.default) {
            Some(place) if self.classes[place].is_leaf() => Goes::To(place),
            _ => Goes::Direct,
        }
    }

    fn enqueue_direct(&mut self, pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        if self.direct.len() >= self.direct_limit {
            cx.drop(pkt, DropReason::Overlimit);
            return Verdict::Dropped;
        }
        self.direct_packets += 1;
        self.held.add(&pkt);
        self.direct.push_back(pkt);
        Verdict::Queued
    }

    /// Notes that a leaf has packets.
    #[inline]
    fn activate(&mut self, place: usize) {
        let class = &mut self.classes[place];
        if class.active == 0 {
            class.active = class.priority_bit();
            self.join(place);
        }
    }

    /// Notes that a leaf has no packets.
    #[inline]
    fn deactivate(&mut self, place: usize) {
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
    fn unwait(&mut self, place: usize) {
        let class = &mut self.classes[place];
        if std::mem::take(&mut class.waits) != 0 {
            let level = usize::from(class.level);
            let (classes, places) = (&self.classes, &self.places);
            self.waiting[level].forget_one(|entry| counts(classes, places, entry));
        }
    }

    /// Looks at the classes of a level whose time has come; says when the next one's comes.
    #[inline]
    fn run_events(&mut self, level: usize, now: Instant) -> u64 {
        loop {
            let (classes, places) = (&self.classes, &self.places);
            let due =
                self.waiting[level].pop_due(now.0, |entry| counts(classes, places, entry));
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
    fn turns(&mut self, place: usize, level: usize, priority: usize) -> Option<&mut Turns> {
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

    /// Takes a packet from a row.
    #[inline]
    fn serve(&mut self, level: usize, priority: usize, cx: &mut Cx<'_>) -> Dequeue {
        let Some(mut first) = self.leaf_in_turn(level, priority) else { return Dequeue::Empty };
        let (mut place, mut wait) = (first, Dequeue::Empty);
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
                if let Dequeue::Ready(pkt) = answer {
                    self.sent(place, level, priority, pkt.len, cx.now);
                    return Dequeue::Ready(pkt);
                }
                wait = wait.or_sooner(answer);
                self.end_turn(place, level, priority);
            } else {
                self.deactivate(place);
            }
            let Some(next) = self.leaf_in_turn(level, priority) else { return wait };
            if self.classes[first].active == 0 {
                first = next;
            } else if next == first {
                return wait;
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

    /// Takes a class out of all turns and queues.
    fn retire(&mut self, place: usize) {
        self.deactivate(place);
        self.unwait(place);
        self.classes[place].mode = Mode::CanSend;
    }

    /// Makes a leaf ready for children.
    fn become_inner(&mut self, place: usize) {
        if !self.classes[place].is_leaf() {
            return;
        }
        self.retire(place);
        let above = self.classes.get(self.classes[place].parent).map(|parent| parent.level);
        let class = &mut self.classes[place];
        class.level = above.unwrap_or(ABOVE_ALL) - 1;
        if let Below::Leaf(child) = std::mem::replace(&mut class.below, Below::inner()) {
            self.orphans.push(child);
        }
    }

    /// Removes a class that nothing refers to.
    fn forget(&mut self, place: usize) {
        let gone = self.classes.swap_remove(place);
        self.places[usize::from(gone.minor)] = NONE;
        // The last one has moved to its place.
        let last = self.classes.len();
        if let Some(moved) = self.classes.get(place) {
            self.places[usize::from(moved.minor)] = u32::try_from(place).unwrap_or(NONE);
            for class in &mut self.classes {
                if class.parent == last {
                    class.parent = place;
                }
            }
        }
    }

    /// Drops what classes held that are no leaves any more.
    #[cold]
    fn purge_orphans(&mut self, cx: &mut Cx<'_>) {
        for mut child in std::mem::take(&mut self.orphans) {
            child.reset(cx, &mut self.held);
        }
    }
}

/// Whether an entry is that of a class that waits.
#[inline]
fn counts(classes: &[Class], places: &[u32], entry: wait::Entry) -> bool {
    let place = places.get(usize::from(entry.number())).map_or(ROOT, |place| *place as usize);
    classes.get(place).is_some_and(|class| class.waits == entry.place())
}

/// The numbers of the bits that are set.
#[inline]
fn each_bit(mut bits: u8) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        number
    })
}

impl Qdisc for Htb {
    #[inline]
    fn enqueue(&mut self, mut pkt: Packet, cx: &mut Cx<'_>) -> Verdict {
        let place = match self.classify(&mut pkt, cx.now) {
            Goes::To(place) => place,
            Goes::Direct => return self.enqueue_direct(pkt, cx),
            Goes::Nowhere => {
                cx.drop(pkt, DropReason::Filter);
                return Verdict::Dropped;
            }
        };
        let class = &mut self.classes[place];
        let Below::Leaf(child) = &mut class.below else {
            cx.drop(pkt, DropReason::Unclassified);
            return Verdict::Dropped;
        };
        let verdict = child.enqueue(pkt, cx, &mut self.held);
        class.stats.drops += u64::from(verdict == Verdict::Dropped);
        if child.held().packets > 0 {
            self.activate(place);
        }
        verdict
    }

    #[inline]
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        if !self.orphans.is_empty() {
            self.purge_orphans(cx);
        }
        if let Some(pkt) = self.peeked.take() {
            return Dequeue::Ready(pkt);
        }
        if let Some(pkt) = self.direct.pop_front() {
            self.held.sub(&pkt);
            return Dequeue::Ready(pkt);
        }
        if self.held.packets == 0 {
            return Dequeue::Empty;
        }
        let now = cx.now;
        let mut wait = Dequeue::NotBefore(now.after(LOOK_NS));
        for level in 0..LEVELS {
            if self.next_event_ns[level] <= now.0 {
                self.next_event_ns[level] = u64::MAX;
                self.next_event_ns[level] = self.run_events(level, now);
            }
            wait = wait.or_sooner(Dequeue::NotBefore(Instant(self.next_event_ns[level])));
            for priority in each_bit(self.row_mask[level]) {
                match self.serve(level, priority, cx) {
                    Dequeue::Ready(pkt) => return Dequeue::Ready(pkt),
                    later => wait = wait.or_sooner(later),
                }
            }
        }
        if self.held.packets == 0 { Dequeue::Empty } else { wait }
    }

    fn peek(&mut self, cx: &mut Cx<'_>) -> Peek {
        let mut peeked = self.peeked.take();
        let answer = Peek::stash(&mut peeked, || self.dequeue(cx));
        self.peeked = peeked;
        answer
    }

    fn backlog(&self) -> Backlog {
        let mut held = self.held;
        self.peeked.iter().for_each(|pkt| held.add(pkt));
        held
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.purge_orphans(cx);
        for class in &mut self.classes {
            match &mut class.below {
                Below::Leaf(child) => child.reset(cx, &mut self.held),
                below @ Below::Inner(_) => *below = Below::inner(),
            }
            class.active = 0;
            class.mode = Mode::CanSend;
            class.waits = 0;
        }
        for pkt in std::mem::take(&mut self.direct) {
            self.held.sub(&pkt);
            cx.drop(pkt, DropReason::Purged);
        }
        if let Some(pkt) = self.peeked.take() {
            cx.drop(pkt, DropReason::Purged);
        }
        self.rows = array::from_fn(|_| array::from_fn(|_| Turns::default()));
        self.row_mask = [0; LEVELS];
        self.waiting.iter_mut().for_each(Waiting::clear);
    }

    fn classes(&mut self) -> Option<&mut dyn Classes> {
        Some(self)
    }

    fn filters(&mut self, minor: u16) -> Option<&mut Filters> {
        match (minor, self.place(minor)) {
            (0, _) => Some(&mut self.filters),
            (_, place) => place.map(|place| &mut self.classes[place].filters),
        }
    }

    fn stats(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("direct_packets_stat", self.direct_packets);
        out("overlimits", self.overlimits);
    }
}

impl Classes for Htb {
    fn set(&mut self, minor: u16, parent: u16, values: &Values<'_>, now: Instant) {
        let config = Config::new(values, self.rate_to_quantum);
        if let Some(place) = self.place(minor) {
            self.classes[place].change(&config);
            return;
        }
        let above = self.place(parent);
        if let Some(above) = above {
            self.become_inner(above);
            self.classes[above].children += 1;
        }
        let index = usize::from(minor);
        if index >= self.places.len() {
            self.places.resize(index + 1, NONE);
        }
        self.places[index] = u32::try_from(self.classes.len()).unwrap_or(NONE);
        self.classes.push(Class::new(minor, above.unwrap_or(ROOT), &config, now));
    }

    fn remove(&mut self, minor: u16, cx: &mut Cx<'_>) {
        let Some(place) = self.place(minor) else { return };
        if let Below::Leaf(child) = &mut self.classes[place].below {
            child.reset(cx, &mut self.held);
        }
        self.retire(place);
        let parent = self.classes[place].parent;
        if let Some(above) = self.classes.get_mut(parent) {
            above.children -= 1;
            if above.children == 0 {
                self.retire(parent);
                self.classes[parent].become_leaf(cx.now);
            }
        }
        self.forget(place);
    }

    fn child(&mut self, minor: u16) -> Option<&mut Child> {
        let place = self.place(minor)?;
        match &mut self.classes[place].below {
            Below::Leaf(child) => Some(child),
            Below::Inner(_) => None,
        }
    }

    fn recount(&mut self, minor: u16) {
        let Some(place) = self.place(minor) else { return };
        let Below::Leaf(child) = &mut self.classes[place].below else { return };
        child.recount(&mut self.held);
        match child.held().packets {
            0 => self.deactivate(place),
            _ => self.activate(place),
        }
    }

    fn stats(&self, minor: u16, out: &mut dyn FnMut(&'static str, i64)) {
        if let Some(place) = self.place(minor) {
            self.classes[place].show(out);
        }
    }
}
