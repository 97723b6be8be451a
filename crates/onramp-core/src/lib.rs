//! Traffic control without I/O: no socket, no clock, no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod device;
pub mod qdisc;
mod time;

pub use device::{Device, DeviceInfo, Transmitted};
pub use time::{Clock, Instant};
