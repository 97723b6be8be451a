//! What stands in for filters in a build without the feature `tc`: there are none.

use onramp_queue::Packet;

use crate::base::{Handle, Instant};

/// What filters say of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// No filter has matched.
    Unknown,
    /// The packet belongs to this class.
    Class(Handle),
    /// An action drops the packet.
    Drop,
}

/// The filters of a qdisc or of a class: none.
#[derive(Debug, Default)]
pub struct Filters;

impl Filters {
    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn classify(&mut self, _pkt: &mut Packet, _now: Instant) -> Decision {
        Decision::Unknown
    }
}
