//! The commands.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod lab;
pub(crate) mod send;
