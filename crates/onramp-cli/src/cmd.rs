//! The commands.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod lab;
pub(crate) mod replay;
pub(crate) mod send;
