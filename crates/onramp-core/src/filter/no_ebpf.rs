//! Replaces the module for eBPF programs in a build without the feature `ebpf`. Every eBPF program
//! is refused.

use std::str::FromStr;

use onramp_queue::Packet;

use super::{Look, Match};
use crate::base::{ConfigError, Handle};

/// An eBPF program. This build leaves the feature `ebpf` out, so no value of this type exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ebpf {}

/// What an eBPF program returned.
pub(super) struct Answer {
    pub(super) value: u32,
}

/// The error with which this build refuses every eBPF program.
fn left_out() -> ConfigError {
    let why = "this build leaves eBPF out; enable the feature `ebpf` of the crate";
    ConfigError::new("ebpf", "", "", why)
}

impl Ebpf {
    /// Refuses a program from an object file.
    pub(super) fn digits(_file: &[u8], _section: &str) -> Result<String, ConfigError> {
        Err(left_out())
    }

    pub(super) fn act(&self, _look: &mut Look, _pkt: &Packet, _class: Handle) -> Match {
        match *self {}
    }

    pub(super) fn answer(&self, _look: &mut Look, _pkt: &Packet, _class: u32) -> Option<Answer> {
        match *self {}
    }
}

impl FromStr for Ebpf {
    type Err = ConfigError;

    fn from_str(_digits: &str) -> Result<Self, ConfigError> {
        Err(left_out())
    }
}
