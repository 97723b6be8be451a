//! Checks that the link's runners sleep when there is nothing to do.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use crate::watch::{Doing, Slot};

/// How long the threads of the runners are observed.
const REST: Duration = Duration::from_millis(100);
/// Processor time that a thread may use during the observation, nanoseconds.
const BURN_MAX_NS: u64 = 20_000_000;

/// Returns the processor time that each runner of the link has used so far, in nanoseconds, by
/// thread id.
fn burnt() -> HashMap<String, u64> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return HashMap::new() };
    let of = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let burnt = stat.split_whitespace().next()?.parse().ok()?;
        let tid = task.file_name().to_string_lossy().into_owned();
        name.starts_with("onramp-run").then_some((tid, burnt))
    };
    tasks.flatten().filter_map(of).collect()
}

/// Checks that the link's runners sleep while the link is open and all packets have been sent.
pub(crate) fn check(slot: &Slot) {
    // First wait a little: what the runners still do just after the last packet shall not count.
    slot.call(Doing::Rest, REST * 2, 1, || thread::sleep(REST / 2));
    let before = burnt();
    slot.call(Doing::Rest, REST * 2, 2, || thread::sleep(REST));
    for (tid, burnt) in burnt() {
        let Some(before) = before.get(&tid) else { continue };
        let burnt = burnt.saturating_sub(*before);
        if burnt > BURN_MAX_NS {
            slot.watch().failed(&format!(
                "the link is idle, but its thread {tid} USED {} of {} ms of CPU time",
                burnt / 1_000_000,
                REST.as_millis()
            ));
        }
    }
}
