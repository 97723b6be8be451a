//! `onramp lab`: the experiments of the laboratory.

pub(crate) mod contention;
