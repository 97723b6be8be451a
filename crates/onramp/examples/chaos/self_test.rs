//! Tests the chaos test itself: whether it finds faults that are committed on purpose.

use std::process::ExitCode;
use std::thread;

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
        thread::scope(|scope| {
            scope.spawn(|| watch.guard());
            crate::live(&plan, &watch);
            watch.end();
        });
        let caught = watch.caught();
        let found = match fault {
            Some(fault) => caught.iter().any(|caught| caught.contains(fault.word())),
            None => caught.is_empty(),
        };
        let what = fault.map_or_else(|| "no fault".to_owned(), |fault| format!("{fault:?}"));
        println!("chaos: self-test: {what}: {}", if found { "as expected" } else { "WRONG" });
        if !found {
            println!("{caught:?}");
        }
        failed |= !found;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
