//! Orderings that the model checker's mutation run weakens, one at a time.
//!
//! `cargo xtask mutants-loom` builds with `ONRAMP_MUTANT=NAME` for every name given to [`or`] in
//! this crate, and expects a model to fail. In a build without `--cfg loom`, [`or`] is `order`.

use crate::sync::Ordering;

/// `order`, or `weaker` in the mutant called `name`.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) const fn or(_name: &str, order: Ordering, _weaker: Ordering) -> Ordering {
    order
}

/// `order`, or `weaker` in the mutant called `name`.
#[cfg(loom)]
pub(crate) fn or(name: &str, order: Ordering, weaker: Ordering) -> Ordering {
    if option_env!("ONRAMP_MUTANT") == Some(name) { weaker } else { order }
}
