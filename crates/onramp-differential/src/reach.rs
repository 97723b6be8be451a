//! What code a run reaches, and about how often, as the compiler's own counters tell
//! (`-C instrument-coverage`): `cargo xtask differential --keep` builds so.

/// What was reached: numbers that stand for a place in the code and about how often it ran.
pub type Reached = Vec<u32>;

/// How often a place ran, as far as it matters: one, few, many, very many times.
const STEPS: [u64; 4] = [1, 2, 8, 64];

/// What `run` reaches, sorted; nothing, in a program that has no counters.
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

/// Whether this program has counters.
#[must_use]
pub fn counts() -> bool {
    cfg!(reach)
}

#[cfg(not(reach))]
fn counters() -> Vec<u64> {
    Vec::new()
}

/// The counters as they are. Nobody else may run meanwhile.
#[cfg(reach)]
fn counters() -> Vec<u64> {
    // The linker gives these names to the ends of the section.
    unsafe extern "C" {
        #[link_name = "__start___llvm_prf_cnts"]
        static START: [u64; 0];
        #[link_name = "__stop___llvm_prf_cnts"]
        static STOP: [u64; 0];
    }
    let (start, stop) = (&raw const START, &raw const STOP);
    let count = (stop.addr() - start.addr()) / size_of::<u64>();
    let first = start.cast::<u64>();
    // SAFETY: between the two names lie `count` counters of eight bytes each, which the program
    // never moves.
    let read = |at: usize| unsafe { first.add(at).read_volatile() };
    (0..count).map(read).collect()
}
