//! The commands.

pub(crate) mod bench;
