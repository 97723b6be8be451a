//! Checks the dependencies against `deny.toml` with the tool cargo-deny.

use std::process::Command;

use crate::shell::{cargo, run as shell, succeeds};
use crate::{Failure, Outcome};

/// The packages that have a lock file of their own.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "python/Cargo.toml", "fuzz/Cargo.toml"];

/// Checks licences, sources and versions of all dependencies, and whether a security advisory
/// names one. `--offline` leaves out the advisories, whose database comes from the network.
pub(crate) fn run(args: &[String]) -> Outcome {
    let offline = match args {
        [] => false,
        [option] if option == "--offline" => true,
        _ => return Err(Failure::Failed("usage: cargo xtask deny [--offline]".to_owned())),
    };
    if !succeeds(Command::new("cargo").args(["deny", "--version"])) {
        let why = "cargo-deny is missing; install it with `cargo install --locked cargo-deny`";
        return Err(Failure::Unable(why.into()));
    }
    for manifest in MANIFESTS {
        let mut deny = cargo(&["deny", "--config", "deny.toml", "--manifest-path", manifest]);
        deny.args(offline.then_some("--offline"));
        deny.args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"]);
        shell(deny.args((!offline).then_some("advisories")))?;
    }
    Ok(())
}
