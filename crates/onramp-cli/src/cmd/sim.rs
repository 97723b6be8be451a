//! The command `onramp sim`: predicts by simulation how Onramp behaves on machines of many
//! processors.

pub(crate) mod calibrate;
pub(crate) mod draw;
mod draws;
pub(crate) mod published;
pub(crate) mod run;
mod summary;
pub(crate) mod sweep;
