//! What happens on a host.

use std::time::SystemTime;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: SystemTime,
    /// To which device.
    pub device: String,
    /// What.
    pub what: What,
    /// The thing, as `tc` or `ip` shows it: `qdisc fq 1: root refcnt 2 limit 10000p …`.
    pub line: String,
}

impl Event {
    /// Bytes of a [`line`](Self::line), at most; one that was longer ends with `…`.
    pub const LINE_MAX: usize = 4096;
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Something is new.
    Added,
    /// Something has other parameters.
    Changed,
    /// Something has gone.
    Deleted,
    /// A device takes packets from now on.
    Up,
    /// A device takes none any more.
    Down,
    /// Packets were dropped, more than before.
    Dropped,
}

impl What {
    /// A word for it.
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
