//! The path `onramp`: Onramp's own transmit path, with one sender of a link per thread.

use std::time::Duration;

use onramp::{Flow, Link, Mode, TrySendError};
use onramp_queue::{Credits, DropReason};

use super::root::add_drops;
use super::{Account, Behind, Notes, Path, Seat, Sent, Worker};
use crate::Error;
use crate::measure::Octaves;
use crate::memory::{self, MemoryNotes};

/// Longest duration of one wait for room.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long the closing link may take to send the packets that it still holds.
const FLUSH: Duration = Duration::from_secs(10);

/// The path `onramp`: packets go through a link.
#[derive(Debug)]
pub(crate) struct Linked {
    link: Link,
}

impl Linked {
    pub(crate) fn new(behind: Behind<'_>, mode: Mode) -> Result<Self, Error> {
        let mut builder = Link::devices(behind.devices).tree(behind.tree).mode(mode);
        if let Some(packets) = behind.credits {
            builder = builder.credits(Credits { packets, bytes: u32::MAX });
        }
        Ok(Self { link: builder.build().map_err(Error::Link)? })
    }
}

impl Path for Linked {
    type Worker<'a> = Sender<'a>;

    fn worker<'a>(&'a self, seat: &'a Seat<'a>) -> Sender<'a> {
        let sender = self.link.sender();
        // A link numbers its flows and assigns them to its ports in turn.
        let flow = sender.flow(None);
        memory::begin(flow.key(), seat.timed);
        Sender { sender, flow, seat, notes: MemoryNotes::default(), out_max: 0, repeated: 0 }
    }

    fn finish(&mut self) -> Account {
        self.link.flush(FLUSH);
        self.link.close(Duration::ZERO);
        let stats = self.link.stats();
        let mut account = Account { sent: stats.sent, held: stats.held, ..Account::default() };
        let count = |reason: DropReason| stats.dropped.get(&reason).copied().unwrap_or(0);
        add_drops(&mut account.dropped, count);
        let mut staging = Octaves::default();
        for port in &stats.ports {
            staging.merge(&Octaves::from_counts(&port.staging_ns));
        }
        account.staging = Some(staging);
        account.runs = Some(stats.ports.iter().map(|port| port.runs).sum());
        account
    }
}

/// One thread's end of the path: a sender of the link, and a flow.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    sender: onramp::Sender,
    flow: Flow,
    seat: &'a Seat<'a>,
    notes: MemoryNotes,
    out_max: u32,
    /// Value of the sender's `memory_repeated` when the measured window began.
    repeated: u64,
}

impl Sender<'_> {
    /// Counts a packet that the path took, and records the largest number of packets in flight. If
    /// the sender became the owner, its packet may have left already, so the recorded number may be
    /// below the true maximum.
    fn note(&mut self) {
        self.notes.taken += 1;
        let out = self.sender.in_flight();
        if out > self.out_max {
            self.out_max = out;
            self.notes.allocated += 1;
        }
    }
}

impl Worker for Sender<'_> {
    #[inline]
    fn send(&mut self, payload: &[u8]) -> Sent {
        match self.sender.try_send(&self.flow, payload) {
            Ok(()) => {
                if self.seat.timed {
                    self.note();
                }
                Sent::Staged
            }
            Err(TrySendError::Full) => Sent::Full,
            // These errors cannot happen: no thread closes the link during the run, and neither
            // qdisc nor device panics. If one did happen, the sender would stop.
            Err(_) => Sent::Stopped,
        }
    }

    fn wait(&mut self) {
        self.sender.wait_room_timeout(&self.flow, 0, PATIENCE);
    }

    fn flush(&mut self) {
        while !self.sender.flush(PATIENCE) && !self.seat.phase.is_stop() {}
    }

    fn begin_notes(&mut self) {
        self.notes = MemoryNotes::default();
        self.repeated = self.sender.memory_repeated();
    }

    fn end_notes(&mut self) -> Option<Notes> {
        let mut notes = Notes::new(false, 0);
        notes.memory = std::mem::take(&mut self.notes);
        notes.memory.repeated = Some(self.sender.memory_repeated() - self.repeated);
        Some(notes)
    }

    fn give_way(&mut self) {
        self.sender.give_way();
    }
}
