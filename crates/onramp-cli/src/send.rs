//! The work of `onramp send`: sends the UDP payloads of a capture, or lines of text.

mod capture;
mod dissect;
mod lines;
mod outbox;

use std::collections::BTreeMap;
use std::net::IpAddr;

pub(crate) use self::capture::{ADVICE, read as read_capture};
pub(crate) use self::lines::read as read_lines;
pub(crate) use self::outbox::{Outbox, Summary, TEXT_FLOW};

/// A flow of a capture: its source and its destination.
pub(crate) type FlowId = [(IpAddr, u16); 2];

/// Counts of the packets or lines that were read from the input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Number of packets read from a capture, or of lines read from a text.
    pub(crate) read: u64,
    /// Number of packets or lines without a complete UDP payload, by reason.
    pub(crate) skipped: BTreeMap<&'static str, u64>,
}
