//! Simulates qdiscs in virtual time.
//!
//! A [`Sim`] plays the packets of [`source`]s through a tree of qdiscs in front of a [`Wire`]; a
//! [`Sink`] counts what became of the packets. Module [`recording`] replays the packets that a real
//! Linux kernel was given and compares what Onramp and the kernel did with them. Module [`aqm`] has
//! scenarios that show the effects of active queue management. Module `capture` (feature `capture`)
//! plays capture files.
//!
//! Nothing in this crate reads a clock, and random numbers come from seeds, so a run with the same
//! input always gives the same packets at the same times.
//!
//! ```
//! use onramp_core::{Instant, Setup, Tree};
//! use onramp_sim::source::{Cbr, Traffic, Window};
//! use onramp_sim::{BEGIN, SEC, Sim, Sink, Wire};
//!
//! let tree = Tree::of(&Setup::of("pfifo limit 50".parse()?), 1514, 1).expect("it has a root");
//! let wire = Wire::new(tree, Some("10mbit".parse()?), 5_000_000);
//! let mut sim = Sim::new(wire);
//! sim.add(Cbr::new(Traffic::of(1), "2mbit".parse()?));
//! sim.add(Window::new(Traffic::of(2), 15_000_000)); // a round trip of 20 ms
//! sim.stop_at(BEGIN.after(5 * SEC));
//!
//! let mut sink = Sink::new();
//! for fate in &mut sim {
//!     sink.note(&fate);
//! }
//! assert!(sink.total().sent_bytes * 8 > 40_000_000, "the wire was busy");
//! # Ok::<(), onramp_core::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

pub mod aqm;
#[cfg(feature = "capture")]
pub mod capture;
mod chance;
mod fate;
mod histogram;
pub mod recording;
mod sim;
mod sink;
pub mod source;
mod time;
mod wire;

pub use chance::Chance;
pub use fate::Fate;
pub use histogram::Histogram;
pub use sim::Sim;
pub use sink::{Counts, Sink, jain, max_min_fairness};
pub use time::{BEGIN, SEC};
pub use wire::Wire;
