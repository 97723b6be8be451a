//! Weakens the orderings of the queue crate, one at a time; a model has to notice each.

use crate::Outcome;

/// Runs them all, or those whose name contains an argument.
pub(crate) fn run(_args: &[String]) -> Outcome {
    Ok(())
}
