//! Runs all checks in order. Checks that fail quickly come first.

use std::fs;
use std::time::Duration;

use crate::shell::{cargo, run as shell, timed};
use crate::{Failure, Outcome, api, checks, deb, mutants, python, readme, suite, tidy};

type Check = (&'static str, fn() -> Outcome);

/// The checks with their names. The tests come last, so that the output ends with their results.
const CHECKS: &[Check] = &[
    ("fmt", fmt),
    ("tidy", tidy::run),
    ("clippy", clippy),
    ("docs", docs),
    ("api", || api::run_api(&[])),
    ("features", checks::features),
    ("package", checks::package),
    ("aarch64", checks::aarch64),
    ("loom", || checks::loom(&[])),
    ("mutants-loom", mutants::run_after_loom),
    ("shuttle", || checks::shuttle(&[])),
    ("miri", || checks::miri(&[])),
    ("tsan", || checks::tsan(&[])),
    ("soak", || checks::soak(&["--minutes".into(), "0.5".into()])),
    ("chaos", || checks::chaos(&["--minutes".into(), "1".into()])),
    ("deb", || deb::run(&["--debug".into(), "--check".into()])),
    ("readme", || readme::run(&[])),
    ("python", python::run_python),
    ("test", || suite::run(&[])),
];

/// Whether a check can say anything after the checks before it. If the models of loom fail without
/// a mutant, they also fail with each mutant.
fn may_run(name: &str, before: &[(&&str, Outcome, Duration, Duration)]) -> bool {
    name != "mutants-loom" || before.iter().all(|(name, ok, ..)| **name != "loom" || ok.is_ok())
}

fn no_models() -> Outcome {
    Err(Failure::Unable("the models of loom fail without a mutant".into()))
}

/// Runs every check, even if an earlier one has failed, and prints a summary.
///
/// A check that could not run counts as a failure if the environment variable `CI` is set.
/// Otherwise it is only reported.
pub(crate) fn run() -> Outcome {
    let in_ci = std::env::var_os("CI").is_some();
    let mut results = Vec::new();
    for (name, check) in CHECKS {
        eprintln!("\n=== {name}");
        let before = processor_time();
        let (outcome, took) = timed(|| if may_run(name, &results) { check() } else { no_models() });
        let used = processor_time().saturating_sub(before);
        if let Err(Failure::Failed(why) | Failure::Unable(why)) = &outcome {
            eprintln!("=== {name}: {why}");
        }
        results.push((name, outcome, took, used));
    }
    eprintln!("\n=== summary: the time of each check, and its processor time");
    let mut bad = Vec::new();
    for (name, outcome, took, used) in &results {
        let (word, fails) = match outcome {
            Ok(()) => ("ok", false),
            Err(Failure::Failed(_)) => ("FAILED", true),
            Err(Failure::Unable(_)) => ("COULD NOT RUN", in_ci),
        };
        eprintln!("{name:<14} {word:<14} {:>5} s {:>5} s", took.as_secs(), used.as_secs());
        if fails {
            bad.push(**name);
        }
    }
    let sum = |times: &mut dyn Iterator<Item = Duration>| times.sum::<Duration>().as_secs();
    let took = sum(&mut results.iter().map(|result| result.2));
    let used = sum(&mut results.iter().map(|result| result.3));
    eprintln!("{:<14} {:<14} {took:>5} s {used:>5} s", "all", "");
    if bad.is_empty() { Ok(()) } else { Err(Failure::Failed(bad.join(", "))) }
}

/// Returns the processor time of all programs that this process has started and that have ended.
fn processor_time() -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name, in parentheses, may contain spaces. The 14th and 15th words behind it are
    // the user time and the system time of the children that have ended, in ticks.
    let words = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(13).take(2);
    let ticks: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

fn fmt() -> Outcome {
    shell(&mut cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    // The tests of these two packages need what they leave out; the originals run them.
    let twins = ["onramp-dev-simulated", "onramp-link-simulated"];
    let mut all = cargo(&["clippy", "--workspace", "--all-targets"]);
    all.args(twins.iter().flat_map(|twin| ["--exclude", twin])).args(["--", "-D", "warnings"]);
    shell(&mut all)?;
    let mut libraries = cargo(&["clippy"]);
    libraries.args(twins.iter().flat_map(|twin| ["-p", twin])).args(["--", "-D", "warnings"]);
    shell(&mut libraries)?;
    // Also run clippy on the loom models, and on the code that is compiled only for them.
    let mut models =
        cargo(&["clippy", "-p", "onramp-queue", "--lib", "--test", "loom", "--features", "loom"]);
    models.args(["--target-dir", "target/loom", "--", "-D", "warnings"]);
    shell(models.env("RUSTFLAGS", "--cfg loom"))
}

fn docs() -> Outcome {
    let private = "--document-private-items";
    // `cargo doc` leaves the program out, because it has the name of a library.
    let program = ["rustdoc", "-p", "onramp-cli", "--bin", "onramp", "--", private];
    shell(cargo(&program).env("RUSTDOCFLAGS", "-D warnings"))?;
    let mut libraries = cargo(&["doc", "--workspace", "--no-deps", private]);
    shell(libraries.env("RUSTDOCFLAGS", "-D warnings"))
}
