//! One direction of a connection of a relay: its bytes, what has been sent of them through the line
//! and what has arrived. No socket and no clock: every call takes the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use onramp_core::Instant;

use super::message::{Ack, BLOCKS, Data};
use super::window::Window;

/// Most bytes of a direction that the relay holds: that have been read from one socket and not been
/// acknowledged, or not been written to the other.
pub(crate) const WINDOW: usize = 4 << 20;
/// Most bytes that wait to be sent for the first time.
const UNSENT: usize = 64 << 10;
/// So many later transmissions must have arrived until one counts as lost. The number grows if one
/// that counted as lost arrives later, up to the largest.
const LATER: u64 = 3;
const LATER_MOST: u64 = 300;
/// Transmissions that counted as lost and that are remembered, in case that they arrive.
const REMEMBERED: usize = 1_024;
/// How long the answer to a single segment waits for a second one (as in Linux).
const ANSWER: Duration = Duration::from_millis(40);
/// How often the timer may expire without progress until the connection is given up (as in Linux,
/// `tcp_retries2`).
const TRIES: u32 = 15;

/// A part that was sent and whose arrival is not known.
#[derive(Debug)]
struct Flight {
    len: u32,
    at: Instant,
    /// Its last transmission; `None`: that one counts as lost, and the part waits to be sent again.
    tx: Option<u64>,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Half {
    mss: u32,
    /// The bytes from `base` on.
    data: VecDeque<u8>,
    base: u64,
    has_end: bool,

    window: Window,
    /// All before is known to have arrived.
    acked: u64,
    /// The first that was not sent yet.
    next: u64,
    next_tx: u64,
    /// The latest transmission that is known to have arrived.
    last_tx: u64,
    later: u64,
    flights: BTreeMap<u64, Flight>,
    /// The parts that are on their way by their transmissions, and the sum of their lengths.
    out: BTreeMap<u64, u64>,
    out_bytes: u64,
    lost: BTreeSet<u64>,
    /// Transmissions that counted as lost.
    doubted: VecDeque<u64>,
    /// Whether the window was the reason to send no more.
    is_full: bool,
    timer: Option<Instant>,
    /// Number of parts that were sent again.
    pub(crate) resent: u64,

    /// All before has arrived; and what has arrived behind it.
    arrived: u64,
    ranges: BTreeMap<u64, u64>,
    written: u64,
    answer: Ack,
    /// Segments that wait for an answer, and when it is sent at the latest.
    owed: u32,
    answer_at: Option<Instant>,
}

impl Half {
    /// Makes a direction whose segments have at most `mss` bytes.
    pub(crate) const fn new(mss: u32) -> Self {
        Self {
            mss,
            data: VecDeque::new(),
            base: 0,
            has_end: false,
            window: Window::new(mss, WINDOW as u64),
            acked: 0,
            next: 0,
            next_tx: 1,
            last_tx: 0,
            later: LATER,
            flights: BTreeMap::new(),
            out: BTreeMap::new(),
            out_bytes: 0,
            lost: BTreeSet::new(),
            doubted: VecDeque::new(),
            is_full: false,
            timer: None,
            resent: 0,
            arrived: 0,
            ranges: BTreeMap::new(),
            written: 0,
            answer: Ack { upto: 0, tx: 0, ce: false, blocks: [(0, 0); BLOCKS] },
            owed: 0,
            answer_at: None,
        }
    }

    /// The number of the byte behind the last that was read from the sender's socket.
    fn end(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    /// Returns how many bytes may be read from the sender's socket.
    pub(crate) fn room(&self) -> usize {
        let unsent = usize::try_from(self.end().saturating_sub(self.next)).unwrap_or(UNSENT);
        let room = UNSENT.saturating_sub(unsent).min(WINDOW.saturating_sub(self.data.len()));
        if self.has_end { 0 } else { room }
    }

    /// Adds bytes, at most as many as there is [room](Self::room) for.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.data.extend(bytes);
    }

    /// The sender has ended its direction.
    pub(crate) const fn finish(&mut self) {
        self.has_end = true;
    }

    /// Gives `emit` what may be sent at `now`.
    pub(crate) fn send(&mut self, now: Instant, mut emit: impl FnMut(Data)) {
        loop {
            let limit = self.end() + u64::from(self.has_end);
            let (seq, len) = match self.lost.first() {
                Some(seq) => (*seq, self.flights[seq].len),
                None if self.next < self.end() => {
                    let len = (self.end() - self.next).min(u64::from(self.mss));
                    (self.next, u32::try_from(len).unwrap_or(self.mss))
                }
                None if self.next < limit => (self.next, 1),
                None => {
                    self.is_full = false;
                    return;
                }
            };
            self.is_full = self.out_bytes + u64::from(len) > self.window.size();
            if self.is_full && self.out_bytes > 0 {
                return;
            }
            let tx = self.next_tx;
            self.next_tx += 1;
            self.resent += u64::from(self.lost.remove(&seq));
            self.next = self.next.max(seq + u64::from(len));
            self.flights.insert(seq, Flight { len, at: now, tx: Some(tx) });
            self.out.insert(tx, seq);
            self.out_bytes += u64::from(len);
            self.timer.get_or_insert_with(|| now + self.window.wait());
            emit(Data { seq, len, tx });
        }
    }

    /// Forgets a part that has arrived. Returns its length.
    fn forget(&mut self, seq: u64) -> u64 {
        let Some(flight) = self.flights.remove(&seq) else { return 0 };
        let len = u64::from(flight.len);
        match flight.tx {
            Some(tx) => {
                self.out.remove(&tx);
                self.out_bytes -= len;
            }
            None => drop(self.lost.remove(&seq)),
        }
        len
    }

    /// Takes an acknowledgement.
    pub(crate) fn acknowledged(&mut self, ack: &Ack, now: Instant) {
        let was_full = self.is_full;
        if let Some(flight) = self.out.get(&ack.tx).and_then(|seq| self.flights.get(seq)) {
            self.window.measured(flight.at, now);
        }
        if let Ok(place) = self.doubted.binary_search(&ack.tx) {
            // It was only late, so that one must wait for more before the next counts as lost.
            self.doubted.remove(place);
            let late = self.last_tx.saturating_sub(ack.tx) + 1;
            self.later = self.later.max(late).min(LATER_MOST);
            self.window.undo();
        }
        self.acked = self.acked.max(ack.upto);
        let mut arrived = 0;
        for (from, to) in [(0, ack.upto)].into_iter().chain(ack.blocks) {
            let to = to.max(from);
            let known: Vec<_> = self.flights.range(from..to).map(|(seq, _)| *seq).collect();
            arrived += known.into_iter().map(|seq| self.forget(seq)).sum::<u64>();
        }
        self.last_tx = self.last_tx.max(ack.tx);
        if arrived > 0 {
            self.window.grow(arrived, ack.tx, was_full);
            self.timer = (!self.flights.is_empty()).then(|| now + self.window.wait());
        }
        if ack.ce {
            self.window.congested(ack.tx, self.next_tx);
        }
        while let Some((&tx, _)) = self.out.first_key_value() {
            if tx + self.later > self.last_tx {
                break;
            }
            self.lose(tx);
            self.window.congested(tx, self.next_tx);
        }
        self.release();
    }

    /// A transmission that is on its way counts as lost.
    fn lose(&mut self, tx: u64) {
        let Some(seq) = self.out.remove(&tx) else { return };
        let flight = self.flights.get_mut(&seq).expect("what is on its way is known");
        flight.tx = None;
        self.out_bytes -= u64::from(flight.len);
        self.lost.insert(seq);
        if self.doubted.back().is_none_or(|last| *last < tx) {
            self.doubted.push_back(tx);
        }
        if self.doubted.len() > REMEMBERED {
            self.doubted.pop_front();
        }
    }

    /// Does what is due at `now`. Returns false if the direction has to be given up.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if self.timer.is_some_and(|at| at <= now) {
            while let Some((&tx, _)) = self.out.first_key_value() {
                self.lose(tx);
            }
            self.window.expire(self.next_tx);
            self.timer = Some(now + self.window.wait());
        }
        self.window.expired <= TRIES
    }

    /// A part has arrived at the receiver; `ce`: with a mark of congestion.
    pub(crate) fn arrive(&mut self, data: Data, ce: bool, now: Instant) {
        let (from, to) = (data.seq, data.seq + u64::from(data.len));
        let is_next = from <= self.arrived && self.arrived < to && self.ranges.is_empty();
        self.join(from, to);
        self.answer.tx = data.tx;
        self.answer.ce |= ce;
        self.owed += 1;
        let has_ended = self.has_end && self.arrived > self.end();
        let wait =
            if is_next && !ce && !has_ended && self.owed < 2 { ANSWER } else { Duration::ZERO };
        let at = now + wait;
        self.answer_at = Some(self.answer_at.map_or(at, |other| other.min(at)));
        // The block with the part comes first, so that all blocks are told if answers are lost.
        let own = self.ranges.range(..to).next_back().map(|(from, to)| (*from, *to));
        let own = own.filter(|(_, end)| *end >= to);
        let others = self.ranges.iter().map(|(from, to)| (*from, *to));
        let mut blocks = own.into_iter().chain(others.filter(|block| Some(*block) != own));
        self.answer.blocks = std::array::from_fn(|_| blocks.next().unwrap_or_default());
        self.answer.upto = self.arrived;
    }

    /// Adds the bytes of this range to what has arrived.
    fn join(&mut self, mut from: u64, mut to: u64) {
        while let Some((&start, &end)) = self.ranges.range(..=to).next_back() {
            if end < from {
                break;
            }
            (from, to) = (from.min(start), to.max(end));
            self.ranges.remove(&start);
        }
        if from > self.arrived {
            self.ranges.insert(from, to);
        } else {
            self.arrived = self.arrived.max(to);
        }
    }

    /// Returns the acknowledgement that is due at `now`.
    pub(crate) fn answer(&mut self, now: Instant) -> Option<Ack> {
        self.answer_at.filter(|at| *at <= now)?;
        (self.answer_at, self.owed) = (None, 0);
        Some(Ack { ce: std::mem::take(&mut self.answer.ce), ..self.answer })
    }

    /// Returns bytes that have arrived and may be written to the receiver's socket.
    pub(crate) fn readable(&self) -> &[u8] {
        let from = usize::try_from(self.written - self.base).expect("it is part of a window");
        let to = usize::try_from(self.arrived.min(self.end()) - self.base).expect("so is this");
        let (front, back) = self.data.as_slices();
        match from < front.len() {
            true => &front[from..to.min(front.len())],
            false => &back[from - front.len()..to - front.len()],
        }
    }

    /// `count` bytes were written to the receiver's socket.
    pub(crate) fn consume(&mut self, count: usize) {
        self.written += count as u64;
        self.release();
    }

    /// Frees the bytes that nobody needs any more.
    fn release(&mut self) {
        let until = self.acked.min(self.written).max(self.base);
        self.data.drain(..usize::try_from(until - self.base).expect("it is part of a window"));
        self.base = until;
    }

    /// Whether all has been written to the receiver's socket, and the end has arrived.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_end && self.arrived > self.end() && self.written == self.end()
    }

    /// Whether the sender knows that all has arrived, the end included.
    pub(crate) fn is_known_to_end(&self) -> bool {
        self.has_end && self.acked > self.end()
    }

    /// Returns when [`expire`](Self::expire) or [`answer`](Self::answer) has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timer.into_iter().chain(self.answer_at).min()
    }

    /// Returns how many bytes are held.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.data.len()
    }
}
