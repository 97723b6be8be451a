//! The commands of the program.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod exec;
pub(crate) mod fleet;
pub(crate) mod lab;
pub(crate) mod man;
pub(crate) mod monitor;
pub(crate) mod remote;
pub(crate) mod replay;
pub(crate) mod save;
pub(crate) mod send;
pub(crate) mod shape;
pub(crate) mod sim;
pub(crate) mod top;
pub(crate) mod traffic;
pub(crate) mod values;
pub(crate) mod wire;

use anyhow::Result;
use onramp_core::Rate;

use crate::error::usage;

/// Reads the rate `word` of the option `option`.
fn rate_with_unit(option: &str, word: &str) -> Result<Rate> {
    values::rate(word).map_err(|why| usage(format!("{option} {word}: {why}")))
}
