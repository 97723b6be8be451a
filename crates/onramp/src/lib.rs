//! Linux traffic control you can link.
//!
//! A [`Link`] is a device with one or more ports (transmit queues), each with a qdisc in front.
//! Any number of threads send through it, each with a [`Sender`] of its own, and none of them
//! ever waits for a lock.
#![forbid(unsafe_code)]

mod builder;
mod link;
mod runner;
mod sender;
mod stats;
mod wait;

pub use builder::{BuildError, LinkBuilder};
pub use link::{CloseReport, Link};
pub use onramp_core::{
    Clock, ConfigError, Device, DeviceInfo, Instant, Rate, Stopped, Totals, Transmitted, Tree,
    qdisc, stats as port_stats,
};
pub use onramp_dev as dev;
pub use onramp_queue::{Completion, Credits, DropReason, Packet, PacketList};
pub use sender::{Flow, Ready, Rejected, SendError, Sender, TrySendError};
pub use stats::{LinkStats, PortSnapshot};
