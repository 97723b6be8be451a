#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod direction;
mod error;
mod pair;
mod shaped;
mod time;
mod token;

pub use onramp_core::{ConfigError, Setup, Totals};
pub use onramp_queue::DropReason;

pub use self::direction::Direction;
pub use self::error::{Error, setup};
pub use self::pair::{Crossing, End, pair};
pub use self::shaped::{Sending, Shaped};
pub use self::token::{Arrived, Received};
