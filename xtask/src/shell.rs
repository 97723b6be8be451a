//! Runs other programs, prints each command line, and measures how long something takes.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Failure, Outcome};

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root").to_path_buf()
}

/// Makes the command `cargo ARGS`, run in the root with the project's toolchain.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    forget_xtask(command.args(args).current_dir(root()));
    command
}

/// Takes away from a command the variables in which cargo has described xtask.
///
/// A dependency's build script (that of `ring`) has cargo run it anew when they change, and compile
/// what uses the dependency. So a cargo that xtask starts would undo what a user's cargo has built.
pub(crate) fn forget_xtask(command: &mut Command) {
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(describes_xtask)) {
        command.env_remove(name);
    }
}

fn describes_xtask(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|begin| name.starts_with(begin))
}

/// Makes the command `cargo +nightly ARGS`, run in the root.
pub(crate) fn cargo_nightly(args: &[&str]) -> Command {
    cargo_of("nightly", args)
}

/// Makes the command `cargo +TOOLCHAIN ARGS`, run in the root.
pub(crate) fn cargo_of(toolchain: &str, args: &[&str]) -> Command {
    let mut command = cargo(&[&format!("+{toolchain}")]);
    // The cargo that runs xtask has set these variables. They would reach build scripts, which
    // would then not use the cargo of the other toolchain.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").args(args);
    command
}

/// Prints a command line and runs it. The output of the command goes to the output of xtask.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let status = status(command)?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Failed(format!("`{}`: {status}", show(command))))
}

/// Prints a command line, runs it, and returns the exit status of the command.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    eprintln!("$ {}", show(command));
    command.status().map_err(|err| Failure::Unable(format!("`{}`: {err}", show(command))))
}

/// Prints a command line and runs it. Returns what the command wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    eprintln!("$ {}", show(command));
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|err| Failure::Unable(format!("`{}`: {err}", show(command))))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("`{}`: {}", show(command), output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs commands at the same time. Prints the output of each when it has ended.
pub(crate) fn run_together(commands: &mut [Command]) -> Outcome {
    let prints = Mutex::new(());
    let one = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output();
        let _turn = prints.lock();
        eprintln!("$ {}", show(command));
        let output =
            output.map_err(|err| Failure::Unable(format!("`{}`: {err}", show(command))))?;
        // If the output of xtask cannot be written any more, the commands go on all the same.
        let _ = std::io::stderr().write_all(&output.stderr);
        let _ = std::io::stdout().write_all(&output.stdout);
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::Failed(format!("`{}`: {}", show(command), output.status)))
    };
    thread::scope(|scope| {
        let runs: Vec<_> =
            commands.iter_mut().map(|command| scope.spawn(|| one(command))).collect();
        runs.into_iter().try_for_each(|run| run.join().expect("no run panics"))
    })
}

/// Runs a command without showing its output. Returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Returns the command line as a person would type it, with the environment variables that the
/// command sets.
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

/// Calls `act`. Returns its result, and how long the call took.
#[expect(clippy::disallowed_methods, reason = "a report of how long something took")]
pub(crate) fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = act();
    (result, start.elapsed())
}
