//! Linux traffic control (qdiscs) as a library.
//!
//! A [`Link`] is a device with one or more ports (transmit queues). Each port has a qdisc in front
//! of its device. Any number of threads send through a link, each with its own [`Sender`], and no
//! sending thread ever waits for a lock.
#![forbid(unsafe_code)]

mod builder;
mod error;
mod flow;
pub mod host;
mod link;
mod nap;
mod runner;
mod sender;
mod shared;
mod slots;
mod stats;
pub mod tc;

pub use builder::{BuildError, LinkBuilder};
pub use error::{Rejected, SendError, TrySendError};
pub use flow::{Flow, Mapping};
pub use host::Host;
pub use link::{CloseReport, Link, PortError};
#[doc(hidden)]
pub use onramp_core::Change;
pub use onramp_core::{
    Clock, ConfigError, Device, DeviceInfo, Instant, Mode, Rate, Setup, Spec, Stopped, Totals,
    Transmitted, Tree, qdisc, stats as port_stats, view,
};
pub use onramp_dev as dev;
pub use onramp_queue::{Completion, Credits, DropReason, Layer, Meta, Packet, PacketList, Pool};
pub use sender::{Ready, Sender};
pub use stats::{LinkStats, PortSnapshot};
pub use tc::TcError;

/// Checks that the example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
