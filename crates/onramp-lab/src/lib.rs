//! The laboratory: what each step in the history of the transmit path bought, measured on the same
//! packets, the same qdisc and the same device as Onramp.
//!
//! The old designs live here and nowhere else; no crate that users link depends on this one.
//!
//! * [`contention`]: many threads, one queue, one design after another.
//! * [`loopback`] (2004), [`softirq`] (2001), [`instances`] and [`layout`] (2009): other
//!   steps of the history.
//! * [`qdisc`]: what a qdisc costs alone, beside a heap and a search tree.
//! * [`control`]: the cost of readings and changes of qdiscs, to those who send meanwhile.
//! * [`full`]: the cost of a call that is refused, at many ports.
//! * [`Load`]: a stream, or requests and responses, for all of them.
//! * [`kernel`]: the transmit path of the kernel that runs, beside Onramp's.
//! * [`measure`], [`memory`], [`pin`], [`lockstat`]: what the experiments share.
#![deny(unsafe_code)]

mod cell;
pub mod contention;
pub mod control;
mod device;
mod error;
mod exchange;
pub mod full;
pub mod instances;
pub mod kernel;
pub mod layout;
mod load;
mod lock;
pub mod lockstat;
pub mod loopback;
pub mod measure;
pub mod memory;
mod path;
mod peer;
pub mod pin;
pub mod qdisc;
pub mod softirq;
mod thread_group;

pub use error::Error;
pub use load::{BURST_MAX, Load};
