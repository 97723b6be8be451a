//! A connection through a relay, without sockets and without a clock: how it begins, what passes
//! the line in both directions, and how it ends.
//!
//! The kernel ends the connections of the client and of the target at the relay, so the relay has a
//! protocol of its own between the two, much like TCP: see [`Half`] for the bytes. A connection
//! begins with a `Syn` through the line, at which the target is connected, and a `SynAck` back, and
//! only then are bytes sent.

use onramp_core::Instant;

use super::half::Half;
use super::message::{Ack, BLOCKS, Segment};
use super::window::WAIT_FIRST;

/// How often the first segment of an end may be sent again (as in Linux, `tcp_syn_retries`), and a
/// reset.
const TRIES: u32 = 6;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end of the client, which has connected to the relay.
    Near,
    /// The end of the target, to which the relay has connected.
    Far,
}

impl End {
    pub(crate) const BOTH: [Self; 2] = [Self::Near, Self::Far];

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// What an end sends until the other end has answered.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    segment: Segment,
    at: Instant,
    tries: u32,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The directions of bytes, by the end that sends them.
    halves: [Half; 2],
    /// Whether each end knows that the other one is there.
    is_open: [bool; 2],
    repeated: [Option<Repeated>; 2],
    /// Whether a `Syn` has come, and whether the target has been connected.
    has_syn: bool,
    is_connected: bool,
    /// An acknowledgement of the `SynAck` is due.
    owes_ack: bool,
    /// The end whose socket is broken, and whether the other end knows.
    broken: Option<End>,
    is_reset: bool,
}

impl Stream {
    /// Makes the connection of a client that has connected at `now`.
    pub(crate) const fn new(mss: u32, now: Instant) -> Self {
        let syn = Repeated { segment: Segment::Syn, at: now, tries: 0 };
        Self {
            halves: [Half::new(mss), Half::new(mss)],
            is_open: [false; 2],
            repeated: [Some(syn), None],
            has_syn: false,
            is_connected: false,
            owes_ack: false,
            broken: None,
            is_reset: false,
        }
    }

    /// Returns the direction of the bytes that `end` sends.
    pub(crate) const fn half(&self, end: End) -> &Half {
        &self.halves[end as usize]
    }

    /// Returns the direction of the bytes that `end` sends.
    pub(crate) const fn half_mut(&mut self, end: End) -> &mut Half {
        &mut self.halves[end as usize]
    }

    /// Returns how many bytes may be read from the socket of `end`.
    pub(crate) fn room(&self, end: End) -> usize {
        let is_open = self.is_open[end as usize] && self.broken.is_none();
        if is_open { self.half(end).room() } else { 0 }
    }

    /// Whether the client's `Syn` has come and the target is to be connected.
    pub(crate) const fn wants_target(&self) -> bool {
        self.has_syn && !self.is_connected && self.broken.is_none()
    }

    /// The target has accepted the connection.
    pub(crate) const fn connected(&mut self, now: Instant) {
        self.is_connected = true;
        let segment = Segment::SynAck;
        self.repeated[End::Far as usize] = Some(Repeated { segment, at: now, tries: 0 });
    }

    /// The socket of `end` is broken, or the target has refused: the other end is told.
    pub(crate) fn fail(&mut self, end: End, now: Instant) {
        if self.broken.is_none() {
            self.broken = Some(end);
            self.repeated = [None; 2];
            self.repeated[end as usize] =
                Some(Repeated { segment: Segment::Reset, at: now, tries: 0 });
        }
    }

    /// A segment has arrived at `end`; `ce`: with a mark of congestion.
    pub(crate) fn arrive(&mut self, end: End, segment: Segment, ce: bool, now: Instant) {
        if let Some(broken) = self.broken {
            match segment {
                _ if end == broken => {}
                Segment::Reset => self.is_reset = true,
                // What was sent before the connection broke still arrives.
                Segment::Data(data) => self.half_mut(broken).arrive(data, ce, now),
                _ => {}
            }
            return;
        }
        match segment {
            Segment::Syn => {
                self.has_syn = true;
                if let Some(answer) = &mut self.repeated[End::Far as usize] {
                    // The client has not got the answer.
                    answer.at = answer.at.min(now);
                }
                return;
            }
            Segment::SynAck => self.owes_ack = true,
            Segment::Data(data) => self.half_mut(end.other()).arrive(data, ce, now),
            Segment::Ack(ack) => self.half_mut(end).acknowledged(&ack, now),
            // Nobody sends it as long as the connection is whole.
            Segment::Reset => return,
        }
        self.is_open[end as usize] = true;
        self.repeated[end as usize] = None;
    }

    /// Does what is due at `now`, and gives `emit` what each end sends.
    pub(crate) fn run(&mut self, now: Instant, mut emit: impl FnMut(End, Segment)) {
        for end in End::BOTH {
            if !self.half_mut(end).expire(now) {
                self.fail(end, now);
            }
            let Some(repeated) = &mut self.repeated[end as usize] else { continue };
            if repeated.at > now {
                continue;
            }
            if repeated.tries > TRIES {
                // The line carries nothing. Without an answer, both ends are given up.
                self.is_reset = self.broken.is_some();
                self.fail(end, now);
                continue;
            }
            repeated.at = now + WAIT_FIRST * (1 << repeated.tries);
            repeated.tries += 1;
            emit(end, repeated.segment);
        }
        if self.broken.is_some() {
            return;
        }
        if std::mem::take(&mut self.owes_ack) {
            let none = Ack { upto: 0, tx: 0, ce: false, blocks: [(0, 0); BLOCKS] };
            emit(End::Near, Segment::Ack(none));
        }
        for end in End::BOTH {
            if let Some(ack) = self.half_mut(end.other()).answer(now) {
                emit(end, Segment::Ack(ack));
            }
            if self.is_open[end as usize] {
                self.half_mut(end).send(now, |data| emit(end, Segment::Data(data)));
            }
        }
    }

    /// Returns when [`run`](Self::run) has something to do, if nothing arrives before.
    pub(crate) fn due(&self) -> Option<Instant> {
        let repeated = self.repeated.iter().flatten().map(|repeated| repeated.at);
        let halves = self.halves.iter().filter(|_| self.broken.is_none()).filter_map(Half::due);
        repeated.chain(halves).min()
    }

    /// The end whose socket is broken.
    pub(crate) const fn broken(&self) -> Option<End> {
        self.broken
    }

    /// Whether both ends know that the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.is_reset || self.halves.iter().all(|half| half.has_ended() && half.is_known_to_end())
    }

    /// Returns the number of segments that were sent again.
    pub(crate) fn resent(&self) -> u64 {
        self.halves.iter().map(|half| half.resent).sum()
    }
}
