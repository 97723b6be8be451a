//! Mutants: places in the code that are weakened on purpose, one at a time, to check that the model
//! checker finds the fault.
//!
//! `cargo xtask mutants-loom` runs the models once with `ONRAMP_MUTANT=NAME` for every name that
//! this crate passes to [`or`] or [`is`], and expects those models to fail whose documentation
//! lists the name after `Must fail with each of these mutants:`. In a build without `--cfg loom`,
//! [`or`] returns its second argument and [`is`] returns false.

use crate::sync::Ordering;

/// Whether the mutant called `name` is active. Without the model checker, none is.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}

/// Whether the mutant called `name` is active in this run of the model checker.
#[cfg(loom)]
pub(crate) fn is(name: &str) -> bool {
    static MUTANT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    MUTANT.get_or_init(|| std::env::var("ONRAMP_MUTANT").ok()).as_deref() == Some(name)
}

/// Returns `order`, because no mutant is active without the model checker.
#[inline(always)]
#[cfg(not(loom))]
pub(crate) const fn or(_name: &str, order: Ordering, _weaker: Ordering) -> Ordering {
    order
}

/// Returns the memory ordering `weaker` if the mutant called `name` is active, otherwise `order`.
#[cfg(loom)]
pub(crate) fn or(name: &str, order: Ordering, weaker: Ordering) -> Ordering {
    if is(name) { weaker } else { order }
}
