//! Models: every interleaving of a few threads, and every value the memory model lets them see.
//!
//! `cargo xtask loom` runs them. Beside each model stands what breaks it (`Broken by:`): names
//! of weakened orderings and left-out steps, marked in the source by `mutant::or` and
//! `mutant::is`. `cargo xtask mutants-loom` proves each entry.
#![cfg(loom)]

mod intake;
mod pool;

/// Checks `model`, with at most `preemptions` thread switches that nothing forces.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
