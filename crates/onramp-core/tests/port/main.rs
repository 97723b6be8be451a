//! Tests of a port in virtual time: one thread, a device that follows a script, and in place of a
//! runner an object that records which visits are requested.

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(sim)]
#[macro_use]
extern crate onramp_simulated_test;

mod busy;
mod cancel;
mod close;
mod counts;
mod death;
mod device;
mod device_waker;
mod edges;
mod histograms;
mod hold;
mod inline;
mod jobs;
mod leases;
mod lent;
mod lists;
mod migrate;
mod modes;
mod own_time;
mod pace;
mod part;
mod purge;
mod random;
mod regressions;
mod requests;
mod review;
mod slack;
mod succeed;
mod times;
mod told;
mod walk;
mod world;
