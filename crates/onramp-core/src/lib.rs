//! Linux traffic control without I/O: this crate opens no socket, reads no clock, starts no thread
//! and contains no `unsafe`.
//!
//! # Where to begin
//!
//! - [`Tree`]: qdiscs for a program that has threads, a clock and devices of its own. The program
//!   enqueues and dequeues.
//! - [`TreeOf`]: a [`Tree`] whose packets carry values of the program's own, such as buffers.
//! - [`Port`]: a tree between many threads that send and a device. Links, in the crate `onramp`,
//!   consist of ports.
//! - [`qdisc::Qdisc`]: the trait of all qdiscs. [`Kinds`] says how to add a kind.
//!
//! # Layers
//!
//! Each folder is a module. A module uses only modules that stand above it in this table. `cargo
//! xtask tidy` reports every use that breaks this rule.
//!
//! | folder | contents |
//! |---|---|
//! | `base` | time, units, handles, errors, parameters, listings, packet headers |
//! | `law` | token buckets, CoDel, PIE, RED: when to send, drop or mark |
//! | `filter` | classifiers and actions: to which class a packet belongs |
//! | `sched` | the trait of a qdisc, its classes and children, and its counters |
//! | `qdisc` | the kinds of qdisc, a file for each, and their table |
//! | `tc` | the command language: command lines, descriptions of trees, listings |
//! | `tree` | a running tree of qdiscs, and changes to it |
//! | `port` | the path of packets from many threads through one tree to its device |
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "tc"), expect(dead_code, reason = "what only lines of tc reach"))]

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(all(test, sim))]
#[macro_use]
extern crate onramp_simulated_test;

mod base;
#[cfg(feature = "tc")]
pub mod filter;
#[cfg(not(feature = "tc"))]
#[path = "no_filter.rs"]
pub mod filter;
mod law;
mod port;
pub mod qdisc;
mod sched;
mod tc;
mod tree;

pub use base::{
    Clash, Clock, ConfigError, Errno, Fault, Handle, HeadStart, Instant, REST_MAX_NS, REST_NS,
    Rate, WakeCost, Wakes, dissect, frame, params, show, stats, units,
};
pub use port::{
    CATCH_UP_NS, COLLECT, Device, DeviceInfo, DeviceWaker, JOBS_MAX, Job, Mode, Port, PortOptions,
    PortWaker, QUOTA, QUOTA_NS, Ran, Share, SharedRate, TICK_NS, TooManyJobs, Transmitted,
};
pub use sched::{Child, Classes};
#[cfg(feature = "tc")]
pub use tc::{BurstOption, Facts, Setup, Taken, cmd};
pub use tc::{Kinds, Spec};
pub use tree::{RootQdisc, Stopped, Totals, Tree, TreeOf};
#[cfg(feature = "tc")]
pub use {tc::Change, tree::Edit, tree::Ingress, tree::Lease, tree::Pending};

/// Types that describe a running tree (its qdiscs, classes and counters) and how `tc` lists them.
pub mod view {
    pub use crate::base::{Counters, Extra};
    pub use crate::sched::{ClassView, Counted, FlowView, QdiscView, Shown};
    #[cfg(feature = "tc")]
    pub use crate::tc::{Listed, Query, mq, whole};
}
