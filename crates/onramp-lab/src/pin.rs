//! Binds threads to processors, and tells on which processor a thread runs.

#[cfg(not(sim))]
mod real;
#[cfg(sim)]
mod simulated;

#[cfg(not(sim))]
pub use real::{allowed, current, to};
#[cfg(sim)]
pub use simulated::{allowed, current, to};
