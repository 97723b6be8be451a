//! The language of `tc`: command lines, the trees of qdiscs that they describe, and listings of
//! trees.

#[cfg(feature = "tc")]
pub mod cmd;
pub(crate) mod kinds;
#[cfg(feature = "tc")]
pub(crate) mod list;
#[cfg(feature = "tc")]
mod listing;
#[cfg(feature = "tc")]
pub(crate) mod setup;
pub(crate) mod spec;
#[cfg(feature = "tc")]
mod whole;

pub use self::kinds::Kinds;
pub use self::spec::Spec;
#[cfg(feature = "tc")]
pub use self::{
    list::{Listed, Query},
    setup::{BurstOption, Change, Facts, Setup, Taken},
    whole::{mq, whole},
};

#[cfg(all(test, feature = "tc"))]
mod tests;
