//! System calls behind safe functions. The crate's only `unsafe` code is here.
#![allow(unsafe_code)]

mod fork;
mod measure;
mod mmsg;
mod sockopt;
mod time;

pub use fork::{forks, run_in_child, watch_forks};
pub use measure::{SocketMemory, socket_memory};
#[cfg(test)]
pub(crate) use mmsg::View;
pub(crate) use mmsg::{Close, Messages};
pub(crate) use sockopt::{enable_txtime, path_mtu, set_udp_segment};
pub(crate) use time::monotonic_ns;
pub use time::{current_cpu, exact_timers, pin_thread};
