//! The commands.

pub(crate) mod bench;
pub(crate) mod demo;
