//! Tests of a port in virtual time: one thread, a device that follows a script, and a runner that
//! records what it is asked for.

mod busy;
mod close;
mod counts;
mod death;
mod device;
mod edges;
mod histograms;
mod hold;
mod inline;
mod jobs;
mod lists;
mod modes;
mod pace;
mod part;
mod purge;
mod random;
mod regressions;
mod requests;
mod review;
mod succeed;
mod told;
mod world;
