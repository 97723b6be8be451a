//! Runs all checks, in three lanes at the same time. In each lane, checks that fail quickly come
//! first.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::shell::{cargo, root, run as shell, timed};
use crate::{Failure, Outcome, api, checks, deb, mutants, python, readme, suite, tidy};

type Check = (&'static str, fn() -> Outcome);

/// The checks of the first lane, which build in the folder `target`. The tests come last, so that
/// the output ends with their results.
const CHECKS: &[Check] = &[
    ("fmt", fmt),
    ("tidy", tidy::run),
    ("clippy", clippy),
    ("docs", docs),
    ("features", checks::features),
    ("deb", || deb::run(&["--debug".into(), "--check".into()])),
    ("readme", || readme::run(&[])),
    ("test", || suite::run(&[])),
];

/// The checks of the other lanes. A check builds in a folder that no check of another lane uses, so
/// that no check waits for cargo's lock on a folder.
const BESIDE: [&[Check]; 2] = [
    &[
        ("api", || api::run_api(&[])),
        ("aarch64", checks::aarch64),
        ("python", || python::run_python(&[])),
        ("loom", || checks::loom(&[])),
        ("mutants-loom", mutants::run_after_loom),
        ("shuttle", || checks::shuttle(&[])),
        ("miri", || checks::miri(&[])),
        ("tsan", || checks::tsan(&[])),
        ("package", checks::package),
    ],
    // These wait for time more than they use processors. All build in `target/example`.
    &[
        ("soak", || checks::soak(&["--minutes".into(), "0.5".into()])),
        ("chaos", || checks::chaos(&["--minutes".into(), "1".into()])),
        ("profiles", || checks::profiles(&[])),
    ],
];

/// What a check said, and how long it took.
type Checked = (&'static str, Outcome, Duration);

/// Runs every check, even if an earlier one has failed, and prints a summary.
///
/// A check that could not run counts as a failure if the environment variable `CI` is set.
/// Otherwise it is only reported.
pub(crate) fn run() -> Outcome {
    let in_ci = std::env::var_os("CI").is_some();
    let (results, took) = timed(|| {
        thread::scope(|scope| {
            let beside = BESIDE.map(|lane| scope.spawn(|| lane_beside(lane)));
            let mut results = first_lane();
            for lane in beside {
                results.extend(lane.join().expect("no lane panics"));
            }
            results
        })
    });
    eprintln!("\n=== summary: the time of each check");
    let mut bad = Vec::new();
    for (name, outcome, took) in &results {
        let (word, fails) = match outcome {
            Ok(()) => ("ok", false),
            Err(Failure::Failed(_)) => ("FAILED", true),
            Err(Failure::Unable(_)) => ("COULD NOT RUN", in_ci),
        };
        eprintln!("{name:<14} {word:<14} {:>5} s", took.as_secs());
        if fails {
            bad.push(*name);
        }
    }
    let (all, used) = (took.as_secs(), processor_time().as_secs());
    eprintln!("{:<14} {:<14} {all:>5} s, {used} s of processor time", "all", "");
    // What the check wrote may be thousands of lines above, between the lines of other checks.
    results.iter().for_each(|(name, outcome, _)| tell(name, outcome));
    if bad.is_empty() { Ok(()) } else { Err(Failure::Failed(bad.join(", "))) }
}

fn first_lane() -> Vec<Checked> {
    let check = |(name, check): &Check| {
        eprintln!("\n=== {name}");
        let (outcome, took) = timed(check);
        tell(name, &outcome);
        (*name, outcome, took)
    };
    CHECKS.iter().map(check).collect()
}

/// Runs each check of a lane in a process of its own, and shows what it wrote when it has ended, so
/// that the lines of two checks do not mix.
fn lane_beside(lane: &[Check]) -> Vec<Checked> {
    let mut results: Vec<Checked> = Vec::new();
    for (name, _) in lane {
        let (outcome, took) =
            timed(|| if may_run(name, &results) { process(name) } else { no_models() });
        results.push((*name, outcome, took));
    }
    results
}

fn tell(name: &str, outcome: &Outcome) {
    if let Err(Failure::Failed(why) | Failure::Unable(why)) = outcome {
        eprintln!("=== {name}: {why}");
    }
}

/// The words with which xtask says that a check could not run.
const UNABLE: &str = "xtask: COULD NOT RUN";

fn process(name: &str) -> Outcome {
    let unable = |error| Failure::Unable(format!("{name}: {error}"));
    let program = std::env::current_exe().map_err(unable)?;
    let output = Command::new(program).args(["ci-check", name]).stdin(Stdio::null()).output();
    let output = output.map_err(unable)?;
    let mut said = format!("\n=== {name}\n").into_bytes();
    said.extend([output.stdout, output.stderr.clone()].concat());
    // If the output of xtask cannot be written any more, the checks go on all the same.
    let _ = std::io::stderr().write_all(&said);
    let last = last_lines(&String::from_utf8_lossy(&output.stderr));
    let why = format!("{}; its last lines on standard error:\n{last}", output.status);
    match output.status.success() {
        true => Ok(()),
        false if String::from_utf8_lossy(&output.stderr).contains(UNABLE) => {
            Err(Failure::Unable(why))
        }
        false => Err(Failure::Failed(why)),
    }
}

/// Returns the last lines of what a check wrote, as many as a reader needs to see why it failed.
fn last_lines(said: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// The command `cargo xtask ci-check NAME`: runs one check of the lanes beside the first.
pub(crate) fn one(args: &[String]) -> Outcome {
    let [name] = args else { return Err(Failure::Failed("ci-check: name one check".into())) };
    let found = BESIDE.iter().copied().flatten().find(|(known, _)| known == name);
    let unknown = || Failure::Failed(format!("ci-check: there is no check {name:?} beside"));
    let (_, check) = found.ok_or_else(unknown)?;
    check()
}

/// Whether a check can say anything after the checks before it. If the models of loom fail without
/// a mutant, they also fail with each mutant.
fn may_run(name: &str, before: &[Checked]) -> bool {
    name != "mutants-loom" || before.iter().all(|(name, ok, _)| *name != "loom" || ok.is_ok())
}

fn no_models() -> Outcome {
    Err(Failure::Unable("the models of loom fail without a mutant".into()))
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
    // The sources of these packages are those of their originals, where clippy sees them. The check
    // `aarch64` refuses what the compiler warns of here.
    let twins = ["onramp-core-simulated", "onramp-dev-simulated", "onramp-link-simulated"];
    let mut all = cargo(&["clippy", "--workspace", "--all-targets"]);
    all.args(twins.iter().flat_map(|twin| ["--exclude", twin])).args(["--", "-D", "warnings"]);
    shell(&mut all)?;
    // Also run clippy on the loom models, and on the code that is compiled only for them.
    let mut models =
        cargo(&["clippy", "-p", "onramp-queue", "--lib", "--test", "loom", "--features", "loom"]);
    models.args(["--target-dir", "target/loom", "--", "-D", "warnings"]);
    shell(models.env("RUSTFLAGS", "--cfg loom"))
}

fn docs() -> Outcome {
    let private = "--document-private-items";
    let unable = |error| Failure::Unable(format!("docs: {error}"));
    // `cargo doc` leaves the program out, because it has the name of a library.
    let program = ["rustdoc", "-p", "onramp-cli", "--bin", "onramp", "--", private];
    shell(cargo(&program).env("RUSTDOCFLAGS", "-D warnings"))?;
    let mut libraries = cargo(&["doc", "--workspace", "--no-deps", private]);
    shell(libraries.env("RUSTDOCFLAGS", "-D warnings"))?;
    // The command of the README shows the library, with its types on the first page. The program's
    // page, which the first command wrote, has the same path, and cargo does not notice that it
    // took the place of the library's: so the pages are made anew.
    let pages = root().join("target/doc/onramp");
    if pages.exists() {
        fs::remove_dir_all(&pages).map_err(unable)?;
    }
    let readme = cargo(&["doc", "--no-deps"]).output().map_err(unable)?;
    let said = String::from_utf8_lossy(&readme.stderr);
    // If the command failed, there is no page, and `said` tells why.
    let page = fs::read_to_string(pages.join("index.html")).unwrap_or_default();
    let has_map = ["struct.Link.html", "struct.TreeOf.html"].iter().all(|to| page.contains(to));
    match readme.status.success() && !said.contains("collision") && has_map {
        true => Ok(()),
        false => Err(Failure::Failed(format!("`cargo doc --no-deps` shows no library: {said}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_need_models_that_pass() {
        let loom = |outcome| [("loom", outcome, Duration::ZERO)];
        assert!(may_run("mutants-loom", &loom(Ok(()))));
        assert!(!may_run("mutants-loom", &loom(Err(Failure::Failed("a model".into())))));
        assert!(may_run("miri", &loom(Err(Failure::Failed("a model".into())))));
    }

    #[test]
    fn a_failure_shows_the_last_lines() {
        assert_eq!(last_lines("one\ntwo\n"), "one\ntwo");
        let many: String = (0..100).map(|line| format!("{line}\n")).collect();
        let last = last_lines(&many);
        assert!(last.starts_with("40\n41\n") && last.ends_with("\n99"), "{last}");
    }

    #[test]
    fn only_checks_beside_the_first_lane_run_alone() {
        for args in [&["fmt".to_owned()][..], &[]] {
            assert!(matches!(one(args), Err(Failure::Failed(why)) if why.starts_with("ci-check")));
        }
    }
}
