//! `cargo xtask`: the project's own checks. See `HACKING.md`.

mod api;
mod checks;
mod ci;
mod figures;
mod layers;
mod lex;
mod mutants;
mod mutation;
mod shell;
mod suite;
mod tidy;
mod toolchain;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  test            install what tests need (as root), run all tests, say what was skipped
  ci              everything below and above, as .ci/run does
  tidy            the house rules that no compiler knows
  loom            the models of onramp-queue, under the model checker
  mutants         change the libraries in one place at a time: a test must fail; see --help
  mutants-loom    weaken each ordering, one at a time: some model must fail for each
  shuttle         senders, port, runner and credits together, under random schedules
  miri            tests of onramp-queue in the interpreter that finds undefined behaviour
  tsan            stress tests under ThreadSanitizer
  fuzz            random bytes as trees, lines of tc, packets, captures, programs: see HACKING.md
  figures         run again what the documents' tables were made by, old beside new: --write
  conformance     our qdiscs against recordings of a real kernel: see --help
  differential    random cases, put to a real kernel and to our qdiscs: see --help
  soak            links under random faults: --minutes N (default 10), --seed N
  chaos           everything at once, and a watchdog: --minutes N (default 1), --seed N,
                  --worlds N, --tsan, --self-test, --verbose: see --help
  aarch64         type-check the workspace for another processor
  features        check every combination of features that an embedder may want
  api             compare the public API with docs/api/: --write
  package         pack every crate that is published, and build it from its package

loom, shuttle, miri, tsan: what follows is given to the test binary, e.g. `cargo xtask loom intake`.
";

/// Why a check did not succeed.
#[derive(Debug)]
enum Failure {
    /// The check ran and found a problem.
    Failed(String),
    /// The check could not run.
    Unable(String),
}

type Outcome = Result<(), Failure>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let outcome = match args.first().map(String::as_str) {
        Some("test") => suite::run(rest),
        Some("ci") => ci::run(),
        Some("tidy") => tidy::run(),
        Some("loom") => checks::loom(rest),
        Some("mutants") => mutation::run(rest),
        Some("mutants-loom") => mutants::run(rest),
        Some("shuttle") => checks::shuttle(rest),
        Some("miri") => checks::miri(rest),
        Some("tsan") => checks::tsan(rest),
        Some("soak") => checks::soak(rest),
        Some("chaos") => checks::chaos(rest),
        Some("figures") => figures::run(rest),
        Some("fuzz") => checks::fuzz(rest),
        Some("conformance") => checks::conformance(rest),
        Some("differential") => checks::differential(rest),
        Some("aarch64") => checks::aarch64(),
        Some("features") => checks::features(),
        Some("api") => api::run_api(rest),
        Some("package") => checks::package(),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprint!("xtask: no command {:?}\n\n{HELP}", other.unwrap_or(""));
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(what)) => {
            eprintln!("xtask: FAILED: {what}");
            ExitCode::FAILURE
        }
        Err(Failure::Unable(why)) => {
            eprintln!("xtask: COULD NOT RUN: {why}");
            ExitCode::FAILURE
        }
    }
}
