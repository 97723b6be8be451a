//! Places that the model checker's mutation run weakens, one at a time.
//!
//! `cargo xtask mutants-loom` runs the models with `ONRAMP_MUTANT=NAME` for every name given to
//! [`or`] or [`is`] in this crate, and expects those models to fail that list the name. In a build
//! without `--cfg loom`, [`or`] is its second argument and [`is`] is false.

use crate::sync::Ordering;

/// Whether this is the mutant called `name`.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}

/// Whether this is the mutant called `name`.
#[cfg(loom)]
pub(crate) fn is(name: &str) -> bool {
    static MUTANT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    MUTANT.get_or_init(|| std::env::var("ONRAMP_MUTANT").ok()).as_deref() == Some(name)
}

/// `order`, or `weaker` in the mutant called `name`.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) const fn or(_name: &str, order: Ordering, _weaker: Ordering) -> Ordering {
    order
}

/// `order`, or `weaker` in the mutant called `name`.
#[cfg(loom)]
pub(crate) fn or(name: &str, order: Ordering, weaker: Ordering) -> Ordering {
    if is(name) { weaker } else { order }
}
