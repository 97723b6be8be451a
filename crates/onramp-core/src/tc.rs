//! The language of `tc`: command lines, the trees that they describe, and listings.

pub mod cmd;
pub(crate) mod list;
mod listing;
pub(crate) mod setup;
pub(crate) mod spec;
mod whole;

pub use self::list::{Listed, Query};
pub use self::setup::{Change, Facts, Setup, Taken};
pub use self::spec::Spec;
pub use self::whole::{mq, whole};

#[cfg(test)]
mod tests;
