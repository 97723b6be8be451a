//! Traffic control without I/O: no socket, no clock, no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod bucket;
mod buckets;
mod class;
pub mod cmd;
mod codel;
mod cost;
mod device;
pub mod dissect;
mod ecn;
mod error;
pub mod filter;
mod flows;
mod handle;
mod meter;
pub mod params;
mod pie;
mod port;
pub mod qdisc;
mod rate;
mod red;
mod rng;
mod segments;
mod setup;
mod share;
pub mod show;
mod spec;
pub mod stats;
mod sync;
mod time;
mod tree;
mod turns;
pub mod units;
pub mod view;
mod wheel;

pub use class::{Child, Classes};
pub use device::{Device, DeviceInfo, Transmitted};
pub use error::{Clash, ConfigError, Errno, Fault};
pub use handle::Handle;
pub use port::{
    COLLECT, JOBS_MAX, Job, Keeper, Mode, Port, QUOTA, QUOTA_NS, Ran, TICK_NS, TooManyJobs,
};
pub use rate::Rate;
pub use setup::{Facts, Setup, Taken};
pub use share::{Share, SharedRate};
pub use time::{Clock, Instant};
pub use tree::{Stopped, Totals, Tree, Trunk};
#[doc(hidden)]
pub use {setup::Change, tree::Edit};
