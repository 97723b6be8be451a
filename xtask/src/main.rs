//! `cargo xtask`: the project's own checks. See `HACKING.md`.

mod adapters;
mod api;
mod checks;
mod ci;
mod compare;
mod deb;
mod deny;
mod figures;
mod layers;
mod lex;
mod licences;
mod mutants;
mod mutation;
mod programs;
mod python;
mod readme;
mod repeat;
mod shell;
mod suite;
mod tally;
mod tidy;
mod toolchain;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  test            install what the tests need (as root), run all tests, list the skipped ones
  repeat          run all tests many times beside busy loops: see --help
  ci              run the checks that .ci/run runs, in three lanes at the same time
  tidy            check the project's own rules, which no compiler checks
  loom            run the models of onramp-queue under the model checker loom
  mutants         change the libraries in one place at a time; a test must fail each time; --help
  mutants-loom    weaken the atomic orderings one at a time; a model must fail for each
  shuttle         run senders, port, runner and credits together under random schedules
  miri            run the tests of onramp-queue in Miri, which finds undefined behaviour
  tsan            run the stress tests under ThreadSanitizer
  fuzz            parse random bytes as trees, lines of tc, packets, captures: see HACKING.md
  figures         run the commands behind the documents' tables, and print old beside new: --write
  compare         compare the speed of two builds of the program onramp: see --help
  readme          run the shell blocks of README.md and of the pages in docs
  conformance     compare our qdiscs with recordings of a real kernel: see --help
  differential    compare our qdiscs with a real kernel in random cases: see --help
  soak            run links under random faults: --minutes N (default 10), --seed N
  chaos           all operations at once, with a watchdog: --minutes N (default 1), --seed N,
                  --worlds N, --tsan, --self-test, --verbose: see --help
  profiles        measure the profiles of `onramp wire` with real programs: [NAME...]
  fleet           check how fast fifty daemons in one limit follow: [SCENARIO...]; needs root
  aarch64         type-check the workspace for another processor, with the oldest Rust
  features        check the combinations of features that an embedder may use, and run the tests
                  that need none
  api             compare the public API with docs/api/: --write
  python          build the Python package in python/, and run its tests and examples; --write:
                  only bring the statement of its crates' licences up to date
  adapters        build and run the README examples of the adapter crates in new programs
  package         pack every crate that is published; type-check those that programs link
  deb             make a Debian package of the program: --debug, --check, --clean
  deny            check licences, sources and known faults of the dependencies: --offline

loom, shuttle, miri, tsan pass further arguments to the test binary, e.g. `cargo xtask loom intake`.
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

/// Runs a command that takes no arguments. Fails if there are any.
fn none(args: &[String], command: fn() -> Outcome) -> Outcome {
    match args.first() {
        Some(arg) => Err(Failure::Failed(format!("`{arg}`: this command takes no arguments"))),
        None => command(),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let outcome = match args.first().map(String::as_str) {
        Some("test") => suite::run(rest),
        Some("ci") => none(rest, ci::run),
        // One check of `ci`, in the process that `ci` starts for it.
        Some("ci-check") => ci::one(rest),
        Some("tidy") => none(rest, tidy::run),
        Some("loom") => checks::loom(rest),
        Some("mutants") => mutation::run(rest),
        Some("mutants-loom") => mutants::run(rest),
        Some("shuttle") => checks::shuttle(rest),
        Some("miri") => checks::miri(rest),
        Some("tsan") => checks::tsan(rest),
        Some("soak") => checks::soak(rest),
        Some("chaos") => checks::chaos(rest),
        Some("profiles") => checks::profiles(rest),
        Some("fleet") => checks::fleet(rest),
        Some("compare") => compare::run(rest),
        Some("figures") => figures::run(rest),
        Some("readme") => readme::run(rest),
        Some("repeat") => repeat::run(rest),
        Some("fuzz") => checks::fuzz(rest),
        Some("conformance") => checks::conformance(rest),
        Some("differential") => checks::differential(rest),
        Some("aarch64") => none(rest, checks::aarch64),
        Some("features") => none(rest, checks::features),
        Some("adapters") => adapters::run(rest),
        Some("api") => api::run_api(rest),
        Some("python") => python::run_python(rest),
        Some("package") => none(rest, checks::package),
        Some("deb") => deb::run(rest),
        Some("deny") => deny::run(rest),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprint!("xtask: unknown command {:?}\n\n{HELP}", other.unwrap_or(""));
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
