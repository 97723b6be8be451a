//! Traffic control without I/O: no socket, no clock, no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod device;
mod port;
pub mod qdisc;
pub mod stats;
mod time;

pub use device::{Device, DeviceInfo, Transmitted};
pub use port::{BATCH, Keeper, Port, QUOTA, Ran, TICK_NS};
pub use time::{Clock, Instant};
