//! Traffic control without I/O: no socket, no clock, no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod device;
mod error;
pub mod params;
pub mod qdisc;
mod rate;
mod spec;
mod time;
mod tree;
pub mod units;

pub use device::{Device, DeviceInfo, Transmitted};
pub use error::ConfigError;
pub use rate::Rate;
pub use time::{Clock, Instant};
pub use tree::{Stopped, Totals, Tree};
