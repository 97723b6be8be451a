//! What became of the packets of a traffic.

use std::collections::BTreeMap;

use onramp_queue::{Completion, DropReason};
use serde::{Deserialize, Serialize};

use super::Options;

/// Why a traffic ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// It was sent for as long as it was asked for.
    #[default]
    Time,
    /// Its client wanted it to end, or has gone.
    Stopped,
    /// Its device was deleted.
    Deleted,
    /// The qdisc or the device panicked, which is a bug.
    Died,
    /// The daemon ended.
    Daemon,
}

/// What became of the packets of a traffic: `submitted` packets = `sent` + all `drops` + `queued`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The device, and the other options of the traffic.
    pub device: String,
    /// Number of flows.
    pub flows: u32,
    /// Size of each packet in bytes, headers included.
    pub size: u32,
    /// Number of threads that sent.
    pub threads: u32,
    /// The rate that was asked for; `None`: as fast as the device takes packets.
    pub bytes_per_second: Option<u64>,
    /// Time from the first packet until the last was sent or dropped, or until the report was made,
    /// seconds.
    pub seconds: f64,
    /// Number of packets given to the device.
    pub submitted: u64,
    /// Number of packets that the device sent.
    pub sent: u64,
    /// Number of bytes of the packets that the device sent, headers included.
    pub wire_bytes: u64,
    /// Number of packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Number of packets that still waited in the device.
    pub queued: u64,
    /// Why the traffic ended.
    pub ended: Ended,
}

impl Report {
    /// Returns the report of a traffic for which the threads counted `counts`.
    pub(super) fn new(options: &Options, counts: &Counts, seconds: f64, ended: Ended) -> Self {
        let drops = counts.drops.iter().map(|(why, count)| (why.name().to_owned(), *count));
        let dropped: u64 = counts.drops.values().sum();
        Self {
            device: options.dev.clone(),
            flows: options.flows,
            size: options.size,
            threads: options.threads,
            bytes_per_second: options.bytes_per_second,
            seconds,
            submitted: counts.submitted,
            sent: counts.sent,
            wire_bytes: counts.wire_bytes,
            drops: drops.collect(),
            queued: counts.submitted.saturating_sub(counts.sent + dropped),
            ended,
        }
    }
}

/// What one thread, or all threads of a traffic, sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) submitted: u64,
    pub(super) sent: u64,
    pub(super) wire_bytes: u64,
    pub(super) drops: BTreeMap<DropReason, u64>,
}

impl Counts {
    /// Counts a packet that was sent or dropped.
    pub(super) fn complete(&mut self, completion: Completion) {
        match completion.drop_reason {
            Some(why) => *self.drops.entry(why).or_default() += 1,
            None => {
                self.sent += 1;
                self.wire_bytes += u64::from(completion.len);
            }
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.sent += other.sent;
        self.wire_bytes += other.wire_bytes;
        for (why, count) in &other.drops {
            *self.drops.entry(*why).or_default() += count;
        }
    }
}
