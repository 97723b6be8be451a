//! Traffic control without I/O: no socket, no clock, no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod device;
mod error;
pub mod params;
mod port;
pub mod qdisc;
mod rate;
mod share;
mod spec;
pub mod stats;
mod time;
mod tree;
pub mod units;

pub use device::{Device, DeviceInfo, Transmitted};
pub use error::ConfigError;
pub use port::{COLLECT, Keeper, Mode, Port, QUOTA, QUOTA_NS, Ran, TICK_NS};
pub use rate::Rate;
pub use share::{Share, SharedRate};
pub use time::{Clock, Instant};
pub use tree::{Stopped, Totals, Tree};
