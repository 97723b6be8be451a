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
//!
//! Without the feature `full`, which is on by default, only the designs and the loop that drives
//! them are left. That is what the package in `twins/lab` compiles for the simulated machine of the
//! crate `onramp-machine`: the module `contention::simulated` exists only there.
#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "full"),
    allow(dead_code, reason = "the designs have more than the simulated machine uses")
)]

mod cell;
pub mod contention;
#[cfg(feature = "full")]
pub mod control;
#[cfg(feature = "full")]
mod device;
mod error;
#[cfg(feature = "full")]
mod exchange;
#[cfg(feature = "full")]
pub mod full;
#[cfg(feature = "full")]
pub mod instances;
#[cfg(feature = "full")]
pub mod kernel;
#[cfg(feature = "full")]
pub mod layout;
mod load;
mod lock;
pub mod lockstat;
#[cfg(feature = "full")]
pub mod loopback;
mod manners;
pub mod measure;
pub mod memory;
#[cfg(feature = "full")]
pub mod pacing;
mod path;
mod peer;
pub mod pin;
#[cfg(feature = "full")]
pub mod qdisc;
#[cfg(feature = "full")]
pub mod softirq;
mod sync;
#[cfg(feature = "full")]
mod thread_group;
#[cfg(feature = "full")]
pub mod wire;

pub use error::Error;
pub use load::{BURST_MAX, Load};
