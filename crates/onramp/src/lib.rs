//! Linux traffic control you can link.
//!
//! A [`Link`] is a device with one or more ports (transmit queues), each with a qdisc in front.
//! Any number of threads send through it, each with a [`Sender`] of its own, and none of them
//! ever waits for a lock.
#![forbid(unsafe_code)]

mod builder;
mod error;
mod flow;
mod line;
mod link;
mod nap;
mod runner;
mod sender;
mod shared;
mod slots;
mod stats;

pub use builder::{BuildError, LinkBuilder};
pub use error::{Rejected, SendError, TrySendError};
pub use flow::{Flow, Mapping};
pub use line::Line;
pub use link::{CloseReport, Link, PortError};
pub use onramp_core::{
    Change, Clock, ConfigError, Device, DeviceInfo, Facts, Handle, Instant, Mode, Rate, Setup,
    Spec, Stopped, Totals, Transmitted, Tree, cmd, filter, qdisc, stats as port_stats, view,
};
pub use onramp_dev as dev;
pub use onramp_queue::{Completion, Credits, DropReason, Layer, Meta, Packet, PacketList, Pool};
pub use sender::{Ready, Sender};
pub use stats::{LinkStats, PortSnapshot};

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
