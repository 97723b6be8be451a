#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod closing;
mod options;
mod peers;
mod poller;
mod room;
mod socket;
mod stats;

pub use self::options::Options;
pub use self::socket::OnrampSocket;
pub use self::stats::SocketStats;
