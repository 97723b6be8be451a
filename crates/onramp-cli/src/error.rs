//! Errors that end the program, their messages, and the exit codes.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use nix::sys::signal::Signal;

/// Largest number of characters that are shown of one word of a message, and of a whole message.
const WORD_MAX: usize = 160;
const LINE_MAX: usize = 1_000;
/// The text that stands in place of a part that was cut out.
const CUT: &str = "[...]";

/// An error in the words of the command line. The exit code is 2, as for clap's own errors.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Returns an error about the words of the command line, with this `message`.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow!(Usage(message.into()))
}

/// Prints the error on one line for the user and returns the exit code. If the error is that the
/// reader of standard output has closed it, prints nothing and returns the exit code of success.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if error.downcast_ref::<Ended>().is_some() {
        return exit_code(error);
    }
    tell(&format!("{error:#}"));
    exit_code(error)
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if let Some(Several { first, .. }) = error.downcast_ref() {
        return exit_code(first);
    }
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        return ExitCode::from(interrupted.exit_code());
    }
    if let Some(NotRun { code, .. }) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if let Some(Ended(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if error.downcast_ref::<Usage>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// A program that `onramp` ran for the user has failed, with this exit code, which becomes that of
/// `onramp`. The program has said why.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) u8);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the program ended with exit code {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// A program that the user wants to run cannot be run; the exit code is that of a shell: 127 if
/// there is no such program, 126 if it is none or may not be run, and 1 otherwise.
#[derive(Debug)]
pub(crate) struct NotRun {
    pub(crate) code: u8,
    pub(crate) why: String,
}

impl NotRun {
    /// Returns the error for a program that `name` names and that could not be started.
    pub(crate) fn because(error: &io::Error, name: impl fmt::Display) -> Self {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Self { code, why: format!("cannot run {name}: {error}") }
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for NotRun {}

/// Several errors. The first decides the exit code.
#[derive(Debug)]
pub(crate) struct Several {
    pub(crate) first: anyhow::Error,
    pub(crate) more: Vec<anyhow::Error>,
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.first)?;
        self.more.iter().try_for_each(|error| write!(f, "; also: {error:#}"))
    }
}

impl std::error::Error for Several {}

/// Prints what clap found wrong on one line for the user, or the help that the user asked for.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let printed = error.print().and_then(|()| io::stdout().flush());
        return match printed {
            _ if error.use_stderr() => ExitCode::from(2),
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report(&StdoutError(error).into()),
        };
    }
    let text = error.to_string();
    let wanted = |line: &&str| {
        // Some lines of clap's message do not help and are left out, such as the tip on how to pass
        // an argument that begins like an option.
        // The second line of a usage begins with the program's name.
        let other = ["Usage:", "onramp wire <", "For more information", "tip: to pass"];
        !(line.is_empty() || other.iter().any(|start| line.starts_with(start)))
    };
    let is_tip = |line: &&str| line.starts_with("tip: ");
    let helps = |line: &&str| wanted(line) && (!is_tip(line) || suggests_near(error));
    let parts: Vec<_> = text.lines().map(str::trim).filter(helps).collect();
    let message = parts.join(" ").replace(" tip: ", "; tip: ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    // clap takes a negative number for an option, because both begin with a dash. The message then
    // says that no option takes a number below zero.
    let below_zero = error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::InvalidArg).is_some_and(|word| {
            word.to_string().starts_with('-')
                && word.to_string()[1..].starts_with(|c: char| c.is_ascii_digit())
        });
    let message = match below_zero {
        true => format!("{message}: no option takes a negative number"),
        false => message.to_owned(),
    };
    tell(&format!("{message}; try --help"));
    ExitCode::from(2)
}

/// Returns whether a command that clap suggests in place of an unknown one differs from it only by
/// a slip of the fingers. If the error is not about an unknown command, returns true.
fn suggests_near(error: &clap::Error) -> bool {
    let known = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(known)) => known.iter().map(String::as_str).collect(),
        Some(ContextValue::String(known)) => vec![known.as_str()],
        _ => return true,
    };
    let given = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    given.is_none_or(|given| known.iter().any(|known| is_near(&given, known)))
}

/// Returns whether at most a third of the letters must be changed, added or removed to make `known`
/// from `word` (Levenshtein's distance).
fn is_near(word: &str, known: &str) -> bool {
    let known: Vec<char> = known.chars().collect();
    // The distances between the part of `word` read so far, and each beginning of `known`.
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (at, letter) in word.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (place, other) in known.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[place + 1];
            row[place + 1] = changed.min(row[place] + 1).min(diagonal + 1);
        }
    }
    row[known.len()] * 3 <= known.len().max(word.chars().count())
}

/// Prints `message` on one line of standard error.
pub(crate) fn tell(message: &str) {
    // If standard error is closed, nobody needs the message, so a failed write is ignored.
    let _ = writeln!(io::stderr(), "onramp: {}", line(message));
}

/// Returns text that fits on a line. The middle of very long words, and of a very long text, is cut
/// out. Control characters, which a path may contain, are made visible so that they have no effect
/// on the terminal.
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

/// Returns `text` without its middle if it has more than `longest` characters.
fn shortened(text: &str, longest: usize) -> String {
    let length = text.chars().count();
    if length <= longest {
        return text.to_owned();
    }
    let kept = (longest - CUT.len()) / 2;
    let head = text.chars().take(kept);
    head.chain(CUT.chars()).chain(text.chars().skip(length - kept)).collect()
}

/// The error with which a run fails that was ended by a signal.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) Signal);

/// The error of an output that nobody read until a signal came, as text for people.
#[derive(Debug)]
pub(crate) struct Stalled(pub(crate) String);

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stalled {}

impl Interrupted {
    /// Returns the exit code with which a shell reports a program that this signal has ended.
    pub(crate) fn exit_code(&self) -> u8 {
        128 + u8::try_from(self.0 as i32).unwrap_or_default()
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Returns an error if ports of a link have died; see [`onramp::Link::deaths`].
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

/// Marks an error as one of writing to standard output. If standard output is a pipe whose reader
/// has gone, the program does not report that; a broken pipe of any other output is reported.
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
    fn only_a_slip_of_the_fingers_is_near() {
        for (word, known) in
            [("bnch", "bench"), ("replya", "replay"), ("to", "top"), ("moniter", "monitor")]
        {
            assert!(is_near(word, known), "{word}");
        }
        for (word, known) in [("nosuch", "bench"), ("tx", "tc"), ("", "ip"), ("sand", "lab")] {
            assert!(!is_near(word, known), "{word}");
        }
    }

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
