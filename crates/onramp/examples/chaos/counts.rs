//! Counts the events that a run of the chaos test met (such as removed ports), so that a run that
//! met too few kinds of events fails.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Number of worlds (test runs of one link) from which on a run must have met every kind of event.
pub(crate) const WORLDS: u64 = 45;

macro_rules! counts {
    ($($name:ident: $what:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Met {
            $($name),*
        }

        /// All kinds of events, each at the index that is its number, with its name.
        const ALL: &[(Met, &str)] = &[$((Met::$name, $what)),*];
    };
}

counts! {
    PortAdded: "ports added",
    PortRemoved: "ports removed",
    QdiscSet: "qdiscs set",
    QdiscChanged: "qdiscs changed by a line",
    Blocks: "devices that blocked",
    BlockedClose: "closes that a device kept waiting",
    Deaths: "devices that died",
    Lent: "messages that a device read from the sender's memory",
    CloseAsFuture: "closes as futures",
    CloseWithWaiters: "closes with waiters",
    Cancelled: "cancelled futures",
    Revoked: "cancels of a flow's packets",
    RoomTold: "devices that told their port of room",
    Forks: "forks",
    Callbacks: "callbacks that panicked",
    Wakers: "wakers that panicked",
    WakerControls: "control calls of wakers",
    Hybrid: "links in hybrid mode",
    Inline: "links in inline mode",
    Dedicated: "links in dedicated mode",
    Few: "worlds of 2 threads",
    Eight: "worlds of 8 threads",
    Some: "worlds of 32 threads",
    Many: "worlds of 240 threads",
    OneCpu: "worlds on one CPU",
    ManyOneCpu: "worlds of 240 threads on one CPU",
    Sent: "end sent",
    Dropped: "end dropped",
    Abandoned: "end abandoned",
    ClosedEarly: "end closed early",
    Closed: "end closed",
    Dead: "end dead",
}

static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];

impl Met {
    pub(crate) fn note(self) {
        COUNTS[self as usize].fetch_add(1, SeqCst);
    }

    pub(crate) fn count(self) -> u64 {
        COUNTS[self as usize].load(SeqCst)
    }
}

/// Prints how often the run met each kind of event. Returns the kinds of events that the run did
/// not meet, although a run of `worlds` worlds should have met them.
pub(crate) fn missing(worlds: u64, forks: bool) -> Vec<&'static str> {
    let said: Vec<_> = ALL.iter().map(|(met, what)| format!("{} {what}", met.count())).collect();
    println!("chaos: {}", said.join(", "));
    let needed = |met: &Met| worlds >= WORLDS && (forks || *met != Met::Forks);
    ALL.iter().filter(|(met, _)| met.count() == 0 && needed(met)).map(|(_, what)| *what).collect()
}
