//! Tells which code a run reaches, and roughly how often, from the compiler's coverage counters
//! (`-C instrument-coverage`). `cargo xtask differential --keep` builds with these counters.

/// The places in the code that a run reached. Each number stands for a place and a rough count of
/// its executions.
pub type Reached = Vec<u32>;

/// Numbers of executions at which a place of the code enters the next class: executed once, a few
/// times (from 2), many times (from 8), very many times (from 64).
const STEPS: [u64; 4] = [1, 2, 8, 64];

/// Calls `run`, and returns its result and the code that it reaches, sorted. The list is empty in a
/// program built without coverage counters.
pub fn reached<T>(run: impl FnOnce() -> T) -> (T, Reached) {
    let before = counters();
    let done = run();
    let mut reached = Reached::new();
    for (at, (after, before)) in counters().into_iter().zip(before).enumerate() {
        let steps = STEPS.iter().take_while(|step| after - before >= **step).count();
        reached.extend(
            (0..steps).map(|step| u32::try_from(at * STEPS.len() + step).unwrap_or(u32::MAX)),
        );
    }
    (done, reached)
}

/// Whether this program was built with coverage counters.
#[must_use]
pub fn counts() -> bool {
    cfg!(reach)
}

#[cfg(not(reach))]
fn counters() -> Vec<u64> {
    Vec::new()
}

/// Returns the current values of the counters. No other thread may run meanwhile.
#[cfg(reach)]
fn counters() -> Vec<u64> {
    // The linker defines these symbols at the start and the end of the section that holds the
    // counters.
    unsafe extern "C" {
        #[link_name = "__start___llvm_prf_cnts"]
        static START: [u64; 0];
        #[link_name = "__stop___llvm_prf_cnts"]
        static STOP: [u64; 0];
    }
    let (start, stop) = (&raw const START, &raw const STOP);
    let count = (stop.addr() - start.addr()) / size_of::<u64>();
    let first = start.cast::<u64>();
    // SAFETY: between the two symbols lie `count` counters of eight bytes each, which the program
    // never moves.
    let read = |at: usize| unsafe { first.add(at).read_volatile() };
    (0..count).map(read).collect()
}
