#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod closing;
mod options;
mod poller;
mod socket;
mod stats;

pub use self::options::Options;
pub use self::socket::OnrampSocket;
pub use self::stats::SocketStats;
