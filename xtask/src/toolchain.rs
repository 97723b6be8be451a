//! Installs parts of the Rust toolchain that some checks need and that are missing.

use std::process::Command;

use crate::shell::{run, succeeds};
use crate::{Failure, Outcome};

/// Installs the nightly toolchain and its `components`, unless they are already installed.
pub(crate) fn nightly(components: &[&str]) -> Outcome {
    bring("nightly")?;
    let have = list(&["component", "list", "--toolchain", "nightly", "--installed"]);
    for &component in components {
        if !have.lines().any(|line| line.starts_with(component)) {
            let args = ["component", "add", "--toolchain", "nightly", component];
            install(&args, &format!("{component} of the nightly toolchain"))?;
        }
    }
    Ok(())
}

/// Installs a toolchain, `nightly` or a version such as `1.93.0`, unless it is already installed.
pub(crate) fn bring(toolchain: &str) -> Outcome {
    if succeeds(Command::new("rustup").args(["run", toolchain, "rustc", "--version"])) {
        return Ok(());
    }
    let args = ["toolchain", "install", toolchain, "--profile", "minimal"];
    install(&args, &format!("the toolchain {toolchain}"))
}

/// Installs the standard library of a toolchain for `target`, unless it is already installed.
pub(crate) fn target(toolchain: &str, target: &str) -> Outcome {
    let have = list(&["target", "list", "--toolchain", toolchain, "--installed"]);
    if have.lines().any(|line| line == target) {
        return Ok(());
    }
    install(&["target", "add", "--toolchain", toolchain, target], target)
}

fn install(args: &[&str], what: &str) -> Outcome {
    run(Command::new("rustup").args(args)).map_err(|_| {
        let by_hand = args.join(" ");
        Failure::Unable(format!("{what} is missing; install it with `rustup {by_hand}`"))
    })
}

fn list(args: &[&str]) -> String {
    let output = Command::new("rustup").args(args).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
