//! The checkers beside the tests: loom, miri, ThreadSanitizer, another processor.

use std::process::Command;

use crate::shell::{cargo, cargo_nightly, run};
use crate::{Outcome, toolchain};

const QUEUE: &str = "onramp-queue";

/// Runs the models.
pub(crate) fn loom(args: &[String]) -> Outcome {
    run(loom_tests().arg("--").args(args))
}

/// `cargo test` for the models: optimised, since they run millions of steps, but with assertions.
pub(crate) fn loom_tests() -> Command {
    let mut command = cargo(&["test", "--release", "-p", QUEUE, "--test", "loom"]);
    command
        .args(["--target-dir", "target/loom"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    command
}

/// Runs the tests of the queue crate in the interpreter.
pub(crate) fn miri(args: &[String]) -> Outcome {
    toolchain::nightly(&["miri", "rust-src"])?;
    let mut command = cargo_nightly(&["miri", "test", "-p", QUEUE]);
    run(command
        .args(["--target-dir", "target/miri", "--"])
        .args(args)
        .env("MIRIFLAGS", "-Zmiri-strict-provenance"))
}

/// Runs the stress tests under ThreadSanitizer, the standard library included.
pub(crate) fn tsan(args: &[String]) -> Outcome {
    toolchain::nightly(&["rust-src"])?;
    let target = "x86_64-unknown-linux-gnu";
    let mut command = cargo_nightly(&["test", "-Zbuild-std", "--target", target]);
    command.args(["--target-dir", "target/tsan", "-p", QUEUE, "-p", "onramp", "--test", "stress"]);
    let command = command.env("RUSTFLAGS", "-Zsanitizer=thread").arg("--").args(args);
    run(command)
}

/// Type-checks the workspace for a processor whose memory model is weaker.
pub(crate) fn aarch64() -> Outcome {
    let target = "aarch64-unknown-linux-gnu";
    toolchain::target(target)?;
    run(&mut cargo(&["check", "--workspace", "--target", target]))
}
