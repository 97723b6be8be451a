//! Replaces the filters in a build without the feature `tc`: no qdisc or class has filters.

use onramp_queue::Packet;

use crate::base::{Handle, Instant};

/// The result of asking the filters about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No filter has matched.
    Unknown,
    /// The packet belongs to this class.
    Class(Handle),
    /// An action of a filter has decided to drop the packet.
    Drop,
}

/// The filters of a qdisc or of a class. In this build there are never any.
#[derive(Debug, Default)]
pub struct Filters(());

impl Filters {
    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn classify(&mut self, _pkt: &mut Packet, _now: Instant) -> Decision {
        Decision::Unknown
    }
}
