//! The clock, and the loop that moves it from event to event.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::fmt;

use onramp_core::Instant;
use onramp_core::qdisc::Backlog;
use onramp_queue::Packet;

use crate::Wire;
use crate::source::{News, Source};

/// Where virtual time begins: 20 s, as in the recordings of a real kernel.
pub const BEGIN: Instant = Instant(20 * SEC);
/// Nanoseconds of a second.
pub const SEC: u64 = 1_000_000_000;

/// Bits of a cookie that are the source's own; the others number the source.
const COOKIE_BITS: u32 = 48;

/// What became of a packet.
#[derive(Debug)]
pub struct Fate {
    /// It, as it left: with the cookie that its source gave it. Why it died is its `drop_reason`.
    pub packet: Packet,
    /// The number of its source.
    pub source: usize,
    /// When it came.
    pub came: Instant,
    /// What it met in the tree.
    pub met: Backlog,
    /// When it left for the wire, or died.
    pub at: Instant,
    /// When its last bit arrives at the other end; none: it died.
    pub arrives: Option<Instant>,
    /// The ECN code point that it came with.
    pub ecn: u8,
    /// It was marked with CE on its way.
    pub marked: bool,
    /// Its like left before: a qdisc has made a copy of it (`netem duplicate`).
    pub copy: bool,
}

impl Fate {
    /// How long it was in the tree.
    #[must_use]
    pub fn sojourn_ns(&self) -> u64 {
        self.at.since(self.came)
    }
}

/// Packets of any number of sources on their way through a wire, in virtual time: an iterator over
/// what became of them, in the order in which it happens.
///
/// Of what happens at one time, the wire comes first, then what sources hear, then what they send,
/// in the order in which they were added.
pub struct Sim<'a> {
    now: Instant,
    stop: Instant,
    wire: Wire,
    sources: Vec<TimedSource<'a>>,
    /// Sources that have a packet to send, by when.
    due: BTreeSet<(Instant, usize)>,
    news: BinaryHeap<Reverse<Message>>,
    messages: u64,
    fates: VecDeque<Fate>,
}

struct TimedSource<'a> {
    source: Box<dyn Source + 'a>,
    /// As it stands in `due`.
    due: Option<Instant>,
}

/// News on their way to a source; ordered by time, then by when they were sent.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    at: Instant,
    number: u64,
    source: usize,
    news: News,
}

impl<'a> Sim<'a> {
    /// A world with a wire, at [`BEGIN`].
    #[must_use]
    pub fn new(wire: Wire) -> Self {
        Self {
            now: BEGIN,
            stop: Instant::MAX,
            wire,
            sources: Vec::new(),
            due: BTreeSet::new(),
            news: BinaryHeap::new(),
            messages: 0,
            fates: VecDeque::new(),
        }
    }

    /// Adds a source; says its number.
    ///
    /// # Panics
    ///
    /// Panics at the 65,537th.
    pub fn add(&mut self, source: impl Source + 'a) -> usize {
        let number = self.sources.len();
        assert!(number < 1 << (64 - COOKIE_BITS), "a world has at most 65,536 sources");
        self.sources.push(TimedSource { source: Box::new(source), due: None });
        self.ask(number);
        number
    }

    /// Lets time end at `stop`: what would happen later does not.
    pub fn stop_at(&mut self, stop: Instant) {
        self.stop = stop;
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The wire.
    #[must_use]
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Notes when source `number` wants to send.
    fn ask(&mut self, number: usize) {
        let timed = &mut self.sources[number];
        let due = timed.source.due().map(|due| due.max(self.now));
        if due == timed.due {
            return;
        }
        if let Some(before) = timed.due.take() {
            self.due.remove(&(before, number));
        }
        self.due.extend(due.map(|due| (due, number)));
        timed.due = due;
    }

    /// Moves on to the next event; false, if there is none.
    fn step(&mut self) -> bool {
        let wire = self.wire.due();
        let heard = self.news.peek().map(|Reverse(message)| message.at);
        let sent = self.due.first().map(|(due, _)| *due);
        let Some(now) = [wire, heard, sent].into_iter().flatten().min() else { return false };
        if now > self.stop {
            return false;
        }
        self.now = now;
        if wire == Some(now) {
            self.wire.run(now, &mut self.fates);
        } else if heard == Some(now) {
            if let Some(Reverse(message)) = self.news.pop() {
                self.sources[message.source].source.hear(now, &message.news);
                self.ask(message.source);
            }
        } else if let Some((_, number)) = self.due.first().copied() {
            if let Some(mut pkt) = self.sources[number].source.packet(now) {
                pkt.cookie = (number as u64) << COOKIE_BITS | (pkt.cookie & own_bits());
                self.wire.take(now, pkt, &mut self.fates);
            }
            self.ask(number);
        }
        true
    }

    /// Gives the packet its own cookie back, and sends the news to its source.
    fn finish(&mut self, mut fate: Fate) -> Fate {
        let cookie = fate.packet.cookie;
        fate.source = usize::try_from(cookie >> COOKIE_BITS).unwrap_or(usize::MAX);
        fate.packet.cookie = cookie & own_bits();
        let back_ns = self.sources.get(fate.source).and_then(|timed| timed.source.back_ns());
        if let (Some(arrives), Some(back_ns)) = (fate.arrives, back_ns) {
            self.messages += 1;
            let news = News { cookie: fate.packet.cookie, ce: fate.packet.ecn == 3 };
            let (at, number) = (arrives.after(back_ns), self.messages);
            self.news.push(Reverse(Message { at, number, source: fate.source, news }));
        }
        fate
    }
}

const fn own_bits() -> u64 {
    (1 << COOKIE_BITS) - 1
}

impl Iterator for Sim<'_> {
    type Item = Fate;

    fn next(&mut self) -> Option<Fate> {
        loop {
            if let Some(fate) = self.fates.pop_front() {
                return Some(self.finish(fate));
            }
            if !self.step() {
                return None;
            }
        }
    }
}

impl fmt::Debug for Sim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("now", &self.now)
            .field("wire", &self.wire)
            .field("sources", &self.sources.len())
            .finish_non_exhaustive()
    }
}
