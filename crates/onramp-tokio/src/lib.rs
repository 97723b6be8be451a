#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod driver;
mod incoming;
mod socket;

pub use self::driver::Driver;
pub use self::incoming::Received;
pub use self::socket::{Options, Socket};
