//! A line whose time is its own: a thread that comes late asks it at the instants that were due.

use std::time::Duration;

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, REST_NS, Tree, Wakes};
use onramp_queue::Packet;

use crate::edit::EditError;
use crate::line::Line;

/// How far behind the clock a tree may be: when the thread has come late by up to this time, it
/// asks the tree at the instants that were due, so that a rate is kept. Time beyond it is lost.
pub(crate) const CATCH_UP_NS: u64 = 5_000_000;

/// A line, and the times at which it has to be asked.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) line: Line,
    /// The time at which the line has to be asked again; the line's clock never runs backwards.
    due: Option<Instant>,
    clock: Instant,
    /// When the thread wakes for `due`.
    wakes: Wakes,
}

impl Lane {
    pub(crate) fn new(tree: Tree) -> Self {
        let (due, clock, wakes) = (None, Instant(0), Wakes::new(0, REST_NS));
        Self { line: Line::new(tree), due, clock, wakes }
    }

    /// Sets how long after `due` the thread wakes.
    pub(crate) fn set_slack(&mut self, slack: Duration) {
        self.wakes = Wakes::new(u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX), 0);
    }

    /// Notes that the thread has come, at `now`.
    pub(crate) fn wake(&mut self, now: Instant) {
        if let Some(due) = self.due.filter(|due| *due <= now) {
            self.wakes.serve(due, now);
        }
    }

    /// Returns the next packet that may leave by `now`, and the instant at which it left.
    pub(crate) fn take(&mut self, now: Instant) -> Result<Option<(Instant, Packet)>, EditError> {
        while let Some(due) = self.due.filter(|due| *due <= now) {
            let behind_ns = CATCH_UP_NS.saturating_add(self.wakes.longest_ns());
            let earliest = Instant(now.0.saturating_sub(behind_ns));
            self.clock = self.clock.max(due).max(earliest);
            match self.line.dequeue(self.clock)? {
                Dequeue::Ready(packet) => return Ok(Some((self.clock, packet))),
                // A tree that names a time that is over must not keep this loop for ever.
                Dequeue::NotBefore(at) => self.due = Some(at.max(self.clock.after(1))),
                Dequeue::Empty => self.due = None,
            }
        }
        Ok(None)
    }

    /// Lets the line be asked at `now`, because something has come to it or changed in it.
    pub(crate) const fn look(&mut self, now: Instant) {
        (self.clock, self.due) = (now, Some(now));
    }

    /// Notes that the line is not behind any more, because something else holds its packets back.
    pub(crate) fn hold(&mut self, now: Instant) {
        self.due = self.due.map(|due| due.max(now));
    }

    /// Returns the time at which the thread has to come.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        self.due.map(|due| self.wakes.ask(due))
    }
}
