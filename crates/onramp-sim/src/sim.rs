//! The simulation: a virtual clock, and the loop that moves the clock from event to event.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::fmt;

use onramp_core::Instant;

use crate::fate::Fate;
use crate::source::{News, Source};
use crate::time::BEGIN;
use crate::wire::Wire;

/// Number of low bits of a packet's cookie (a number that comes back with the packet) that its
/// source may use. While the packet is in the tree, the other 16 bits hold the number of the
/// source.
const COOKIE_BITS: u32 = 48;

/// A simulated world: any number of sources that send packets through one wire in virtual time.
/// Iterate over it to run the simulation: each item is the fate of a packet, in the order in which
/// packets are sent or dropped.
///
/// Events at the same time happen in this order: first what the wire does; then sources hear of
/// arrivals, in the order in which the packets were sent; then sources send packets, in the order
/// in which the sources were added.
pub struct Sim<'a> {
    now: Instant,
    stop: Instant,
    wire: Wire,
    sources: Vec<TimedSource<'a>>,
    /// The times at which sources want to send their next packets, each with the number of the
    /// source.
    due: BTreeSet<(Instant, usize)>,
    news: BinaryHeap<Reverse<Message>>,
    messages: u64,
    fates: VecDeque<Fate>,
}

struct TimedSource<'a> {
    source: Box<dyn Source + 'a>,
    /// The time of this source in the set `due` of [`Sim`]; `None` if the source is not in that
    /// set.
    due: Option<Instant>,
}

/// The news of an arrival on its way to a source. Messages are ordered by the time at which the
/// source hears them, and then by the order in which they were sent.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    at: Instant,
    number: u64,
    source: usize,
    news: News,
}

impl<'a> Sim<'a> {
    /// Creates a world with `wire` and without sources. Its time is [`BEGIN`].
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

    /// Adds a source and returns its number. Sources are numbered from 0 on.
    ///
    /// # Panics
    ///
    /// Panics when the 65,537th source is added.
    pub fn add(&mut self, source: impl Source + 'a) -> usize {
        let number = self.sources.len();
        assert!(number < 1 << (64 - COOKIE_BITS), "a world has at most 65,536 sources");
        self.sources.push(TimedSource { source: Box::new(source), due: None });
        self.ask(number);
        number
    }

    /// Ends the simulation at `stop`: events at that instant still happen, later events do not.
    pub fn stop_at(&mut self, stop: Instant) {
        self.stop = stop;
    }

    /// Returns the present virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the wire, and with it the tree of qdiscs.
    #[must_use]
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Ends the simulation and returns its wire, and with it the tree of qdiscs.
    #[must_use]
    pub fn into_wire(self) -> Wire {
        self.wire
    }

    /// Asks source `number` when it wants to send its next packet, and notes that time in `due`.
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

    /// Moves the clock to the next event and lets it happen. Returns false if there is no further
    /// event, or if it would come after the end of the simulation.
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

    /// Restores the packet's cookie as its source set it. If the packet arrived and its source
    /// listens, sends the source the news of the arrival.
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
