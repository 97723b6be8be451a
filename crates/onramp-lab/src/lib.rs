//! The laboratory: measures the effect of each step in the history of Linux's transmit path, with
//! the same packets, the same qdisc and the same device as Onramp.
//!
//! The old designs exist only in this crate; no crate that users link depends on this one.
//!
//! * [`contention`]: many threads send through one queue, with one design after another.
//! * [`loopback`] (2004), [`softirq`] (2001), [`instances`] and [`layout`] (2009): experiments on
//!   other steps of that history.
//! * [`qdisc`]: the cost of a qdisc alone, compared with a binary heap and a search tree.
//! * [`control`]: how much reading and changing qdiscs slows down the threads that send meanwhile.
//! * [`full`]: the cost of a send call that a full link refuses, with many ports.
//! * [`pacing`]: how exactly packets leave a shaper, and what that costs.
//! * [`wire`]: what it costs to forward frames between two interfaces.
//! * [`Load`]: the work of the sending threads: a stream, or requests and responses.
//! * [`kernel`]: the transmit path of the running kernel, compared with Onramp's.
//! * [`measure`], [`memory`], [`pin`], [`lockstat`]: tools that the experiments share.
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
mod manners;
pub mod measure;
pub mod memory;
pub mod pacing;
mod path;
mod peer;
pub mod pin;
pub mod qdisc;
pub mod softirq;
mod thread_group;
pub mod wire;

pub use error::Error;
pub use load::{BURST_MAX, Load};
