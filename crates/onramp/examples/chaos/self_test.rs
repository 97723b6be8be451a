//! Tests the chaos test itself: whether it finds faults that are committed on purpose.

use std::process::ExitCode;

use crate::plan::{Fault, Plan};
use crate::watch::Watch;

/// The worlds of this test: one without a fault, and one for each kind of fault.
const FAULTS: [Option<Fault>; 7] = [
    None,
    Some(Fault::Sleeps),
    Some(Fault::Burns),
    Some(Fault::WakesItself),
    Some(Fault::Books),
    Some(Fault::Forgets),
    Some(Fault::Overtakes),
];

pub(crate) fn run() -> ExitCode {
    let mut failed = false;
    for (index, fault) in FAULTS.into_iter().enumerate() {
        let watch = Watch::new(1, false);
        let plan = Plan::small(index as u64, fault);
        crate::live(&plan, &watch);
        let caught = watch.caught();
        let found = if fault.is_none() { caught.is_empty() } else { watch.found(fault) };
        let what = fault.map_or_else(|| "no fault".to_owned(), |fault| format!("{fault:?}"));
        eprintln!("chaos: self-test: {what}: {}", if found { "as expected" } else { "WRONG" });
        if !found {
            eprintln!("{caught:?}");
        }
        failed |= !found;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
