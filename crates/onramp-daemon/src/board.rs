//! What the daemon knows of its shares, for snapshots, and so for metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Handle, Instant};
use onramp_fleet::Traffic;

/// The device, the qdisc (`M:0`) or class, and the limit that it follows.
pub(crate) type Key = (String, Handle, String);

/// A share of a limit, as the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareRow {
    /// Weight among the members of the limit.
    pub(crate) weight: u32,
    /// What the qdisc or class sends, in bytes per second.
    pub(crate) used: u64,
    /// What the qdisc or class wants to send, in bytes per second.
    pub(crate) demand: u64,
    /// The rate that the qdisc or class has, in bytes per second.
    pub(crate) share: u64,
    /// How many bytes the qdisc or class may send at once; `None`: as many as its own options say.
    pub(crate) burst: Option<u64>,
    /// When the qdisc or class changes to `floor` and `burst_after` by itself; `None`: it does not.
    pub(crate) ends: Option<Instant>,
    /// The guaranteed rate, in bytes per second.
    pub(crate) floor: u64,
    /// How many bytes it may send at once at that rate.
    pub(crate) burst_after: Option<u64>,
    /// When the engine last answered.
    pub(crate) answered: Option<Instant>,
    /// How the share came about.
    pub(crate) standing: Standing,
}

/// How a share came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The ledger granted it.
    Granted,
    /// The engine does not answer: the share is the guaranteed rate.
    Alone,
    /// The limit has as many members as it may have, so the qdisc or class sends nothing, unless it
    /// had a share before.
    Full,
    /// No operator has set the limit, as far as the daemon knows.
    Unknown,
}

impl Standing {
    /// Returns the word for it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Alone => "alone",
            Self::Full => "full",
            Self::Unknown => "unknown",
        }
    }
}

/// All shares of the daemon. A `Board` is cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<BTreeMap<Key, ShareRow>>>);

impl Board {
    pub(crate) fn set(&self, key: &Key, row: ShareRow) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), row);
    }

    /// Returns a share; `None` if there is no such share.
    pub(crate) fn get(&self, key: &Key) -> Option<ShareRow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Notes what a qdisc or class sends and wants to send, if it has a share.
    pub(crate) fn note(&self, key: &Key, traffic: Traffic) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = rows.get_mut(key) {
            (row.used, row.demand) = (traffic.used, traffic.demand);
        }
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Returns the shares of a device, in the order of their places.
    pub(crate) fn of(&self, device: &str) -> Vec<(Key, ShareRow)> {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = rows.iter().filter(|((name, ..), _)| name == device);
        ours.map(|(key, row)| (key.clone(), row.clone())).collect()
    }
}
