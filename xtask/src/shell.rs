//! Running other programs, aloud.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::{Failure, Outcome};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root").to_path_buf()
}

/// `cargo ARGS` in the root, with the toolchain of the project.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root());
    command
}

/// `cargo +nightly ARGS` in the root.
pub(crate) fn cargo_nightly(args: &[&str]) -> Command {
    let mut command = cargo(&["+nightly"]);
    // What the stable cargo that runs us has set would reach build scripts of the other.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").args(args);
    command
}

/// Shows a command and runs it; its output is ours.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let status = status(command)?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Failed(format!("`{}`: {status}", show(command))))
}

/// Runs a command, and says so; gives how it ended.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    eprintln!("$ {}", show(command));
    command.status().map_err(|err| Failure::Unable(format!("`{}`: {err}", show(command))))
}

/// Runs a command, and says so; gives what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    eprintln!("$ {}", show(command));
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|err| Failure::Unable(format!("`{}`: {err}", show(command))))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("`{}`: {}", show(command), output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the command ends well; says nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// As one would type it, with the environment it adds.
pub(crate) fn show(command: &Command) -> String {
    let mut line = String::new();
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            line += &format!("{}={:?} ", key.display(), value);
        }
    }
    line += &command.get_program().to_string_lossy();
    for arg in command.get_args() {
        line += &format!(" {}", arg.display());
    }
    line
}
