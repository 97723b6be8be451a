#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod clock;
mod drive;
mod engine;
#[cfg(feature = "link")]
mod join;
mod limits;
mod roles;
mod script;

pub use self::clock::BootClock;
pub use self::drive::{Limit, Member, Share, drive};
pub use self::engine::{Engine, EngineError};
#[cfg(feature = "link")]
pub use self::join::{JoinError, Membership, join};
pub use self::roles::{HOST_RULES, OPERATOR_RULES};
pub use self::script::Held;
