//! The command `onramp lab`: the experiments of the laboratory.

pub(crate) mod aqm;
mod common;
pub(crate) mod contention;
pub(crate) mod control;
pub(crate) mod full;
pub(crate) mod instances;
pub(crate) mod kernel;
pub(crate) mod layout;
pub(crate) mod loopback;
pub(crate) mod pacing;
pub(crate) mod qdisc;
pub(crate) mod report;
pub(crate) mod softirq;
pub(crate) mod wire;
