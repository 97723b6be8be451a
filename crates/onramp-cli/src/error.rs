//! What ends the program, and with which exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::ErrorKind;

/// The words on the command line were wrong: exit code 2, as clap's own errors.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A usage error that says `message`.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow!(Usage(message.into()))
}

/// Tells the user, on one line, and picks the exit code. A reader of standard output that went
/// away has seen enough: no message, and no failure.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let message = format!("{error:#}").replace('\n', " ");
    eprintln!("onramp: {message}");
    if error.downcast_ref::<Usage>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// Tells the user what clap found wrong, on one line, or shows the help that was asked for.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A terminal or pipe that went away needs no help.
        let _ = error.print();
        return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    }
    let text = error.to_string();
    let wanted = |line: &&str| {
        !(line.is_empty() || line.starts_with("Usage:") || line.starts_with("For more information"))
    };
    let parts: Vec<_> = text.lines().map(str::trim).filter(wanted).collect();
    let message = parts.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    eprintln!("onramp: {message}; try --help");
    ExitCode::from(2)
}

/// Marks an error of standard output, the only one whose broken pipe is quiet.
#[derive(Debug)]
pub(crate) struct StdoutError(pub(crate) io::Error);

impl fmt::Display for StdoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for StdoutError {}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let stdout = error.downcast_ref::<StdoutError>();
    stdout.is_some_and(|e| e.0.kind() == io::ErrorKind::BrokenPipe)
}
