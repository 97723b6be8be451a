#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod burst;
mod claim;
mod definition;
mod demand;
mod host;
mod ledger;
mod text;
pub mod world;

pub use self::burst::Bursts;
pub use self::claim::{Claim, Knot, divide};
pub use self::definition::{Definition, DefinitionError, Definitions, GROUP_MAX, is_name};
pub use self::demand::{Meter, Traffic};
pub use self::host::{Act, Host, Joined};
pub use self::ledger::{Answer, Book, HOLD, KEEP, MemberView, Place, Refusal, Report, TICK, Terms};
pub use self::text::TextError;
