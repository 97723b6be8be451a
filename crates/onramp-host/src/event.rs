//! Events: what a host reports to listeners when something on it changes.

use std::time::SystemTime;

/// An event: a change of a device, or of a qdisc, class or filter on a device. A function
/// registered with [`Host::listen`](super::Host::listen) receives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the event.
    pub at: SystemTime,
    /// Name of the device that changed.
    pub device: String,
    /// Kind of the event.
    pub what: What,
    /// The thing that changed, as `tc` or `ip` shows it: `qdisc fq 1: root refcnt 2 limit 10000p
    /// …`.
    pub line: String,
}

impl Event {
    /// Greatest length of a [`line`](Self::line), bytes. A longer line is cut and ends with `…`.
    pub const LINE_MAX: usize = 4096;
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A device, qdisc, class or filter was added.
    Added,
    /// A device, qdisc, class or filter has new parameters.
    Changed,
    /// A device, qdisc, class or filter was deleted.
    Deleted,
    /// A device went up: it accepts packets from now on.
    Up,
    /// A device went down: it drops packets from now on.
    Down,
    /// Packets were dropped: the drop counter has grown.
    Dropped,
}

impl What {
    /// Returns the word for this kind of event, such as `added`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
            Self::Up => "up",
            Self::Down => "down",
            Self::Dropped => "dropped",
        }
    }
}
