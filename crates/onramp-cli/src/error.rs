//! What ends the program, and with which exit code.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::{ContextKind, ErrorKind};

/// Characters of one word, and of a whole message, at most.
const WORD_MAX: usize = 160;
const LINE_MAX: usize = 1_000;
/// Stands for what was cut out.
const CUT: &str = "[...]";

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
    tell(&format!("{error:#}"));
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
        // How to pass an argument that begins like an option is no help for an option's value.
        let other = ["Usage:", "For more information", "tip: to pass"];
        !(line.is_empty() || other.iter().any(|start| line.starts_with(start)))
    };
    let parts: Vec<_> = text.lines().map(str::trim).filter(wanted).collect();
    let message = parts.join(" ").replace(" tip: ", "; tip: ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    // Read as options, as their names begin alike.
    let below_zero = error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::InvalidArg).is_some_and(|word| {
            word.to_string().starts_with('-')
                && word.to_string()[1..].starts_with(|c: char| c.is_ascii_digit())
        });
    let message = match below_zero {
        true => format!("{message}: no option takes a number below zero"),
        false => message.to_owned(),
    };
    tell(&format!("{message}; try --help"));
    ExitCode::from(2)
}

/// Says `message` on one line of standard error.
pub(crate) fn tell(message: &str) {
    // A standard error that went away needs no help.
    let _ = writeln!(io::stderr(), "onramp: {}", line(message));
}

/// Text that fits on a line: words without end lose their middle, and so does the whole; control
/// characters, which a path may hold, lose their power over the terminal.
pub(crate) fn line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_inclusive([' ', '\n']) {
        let (word, space) = match word.strip_suffix([' ', '\n']) {
            Some(word) => (word, " "),
            None => (word, ""),
        };
        let visible: String = word.chars().flat_map(visible).collect();
        line.push_str(&shortened(&visible, WORD_MAX));
        line.push_str(space);
    }
    shortened(&line, LINE_MAX)
}

fn visible(character: char) -> impl Iterator<Item = char> {
    let escaped = character.is_control().then(|| character.escape_default());
    let plain = escaped.is_none().then_some(character);
    escaped.into_iter().flatten().chain(plain)
}

/// The beginning and the end of a text of more than `longest` characters.
fn shortened(text: &str, longest: usize) -> String {
    let length = text.chars().count();
    if length <= longest {
        return text.to_owned();
    }
    let kept = (longest - CUT.len()) / 2;
    let head = text.chars().take(kept);
    head.chain(CUT.chars()).chain(text.chars().skip(length - kept)).collect()
}

/// A failure, if ports of a link died: what [`onramp::Link::deaths`] says.
pub(crate) fn died(deaths: &[(usize, String)]) -> Option<anyhow::Error> {
    let (port, why) = deaths.first()?;
    let more = match deaths.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(anyhow!(
        "port {port} of the link died{more}: its qdisc or device panicked: {why}; please report \
         this with the command that led to it"
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_loses_its_middle() {
        let path = format!("/tmp/{}/out.json", "a".repeat(4_000));
        let message = line(&format!("cannot write {path}: it is a directory; name a file"));
        assert!(message.starts_with("cannot write /tmp/aaa"), "{message}");
        assert!(message.contains("a[...]a"), "{message}");
        assert!(message.ends_with("aa/out.json: it is a directory; name a file"), "{message}");
        assert!(message.len() < 250, "{message}");

        let many = line(&"word ".repeat(10_000));
        assert!(many.chars().count() <= LINE_MAX && many.contains(CUT), "{many}");
        assert_eq!(line(&"\u{e4}".repeat(4_000)).chars().count(), WORD_MAX - 1);
    }

    #[test]
    fn what_fits_stays_and_is_one_line() {
        let longest = "x".repeat(WORD_MAX);
        assert_eq!(line(&longest), longest);
        assert_eq!(line("two\nlines, a  gap"), "two lines, a  gap");
        assert_eq!(line("red \u{1b}[31m\r"), "red \\u{1b}[31m\\r");
    }
}
