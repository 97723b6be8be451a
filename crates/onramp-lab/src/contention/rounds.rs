//! The rounds of the experiment.

use std::ops::Range;

use super::{Plan, Row, trial};
use crate::measure::{Steps, rotated};

/// Runs the experiment.
///
/// The returned rows are ordered by number of threads, then by manners, then by the plan's order of
/// designs. A cell of which not even one run was measured has no row. A run fails if threads could
/// not be started or bound, if no packet leaves, or if packets were lost or duplicated.
///
/// # Panics
///
/// Panics if the plan has no rounds or no queues.
pub fn run(plan: &Plan, steps: &mut Steps<'_>) -> Vec<Row> {
    assert!(plan.rounds > 0 && plan.queues > 0, "at least one round, and one queue");
    rounds(plan, 0..plan.rounds, steps)
}

/// Runs only these rounds of the experiment; rounds are counted from 0.
pub(crate) fn rounds(plan: &Plan, numbers: Range<usize>, steps: &mut Steps<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for &threads in &plan.threads {
        let cells = plan.cells(threads);
        let mut found: Vec<Row> = cells.iter().map(|cell| Row::new(*cell)).collect();
        for round in numbers.clone() {
            for cell in rotated(&cells, round) {
                for timed in [false, true] {
                    let part = format!("round {} of {}", round + 1, plan.rounds);
                    let trial = steps.step(cell, part, || trial::run(plan, *cell, timed));
                    let row = found.iter_mut().find(|row| row.cell() == *cell);
                    if let Some((row, trial)) = row.zip(trial) {
                        row.add(trial);
                    }
                }
            }
        }
        rows.extend(found.into_iter().filter(Row::is_measured));
    }
    rows
}
