//! The commands `onramp tc` and `onramp ip`: they pass their words to the daemon unchanged, unless
//! the words only ask for help.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use onramp_daemon::client::{Client, ClientError};
use onramp_daemon::{find_path, wire};
use onramp_host::{Line, Lines, Reply, without_devices};

use crate::output;

/// Largest number of commands of a batch, and of their bytes, that go to the daemon in one request.
const CHUNK: usize = 1_000;
const CHUNK_BYTES: usize = wire::LINE_MAX / 4;

/// Declares the words of a command to clap, which only needs them for `--help`.
#[derive(Debug, clap::Args)]
pub(crate) struct Words {
    /// The command, in the syntax of iproute2; `help` shows more
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Returns the program that the user meant, `tc` or `ip`, and its arguments. The user may have
/// typed `onramp tc …`, or may have called a link to this program, or a copy of it, that has the
/// name `tc`. `None` if the user called the program in another way.
pub(crate) fn called(
    mut args: impl Iterator<Item = OsString>,
) -> Option<(&'static str, Vec<OsString>)> {
    let own = args.next()?;
    let find = |name: &OsString| wire::PROGRAMS.into_iter().find(|program| name == program);
    let own = Path::new(&own).file_name().map(OsString::from);
    let program = own.as_ref().and_then(find).or_else(|| find(&args.next()?))?;
    Some((program, args.collect()))
}

/// An error in this program, not in the daemon: the exit code and the message.
struct Fault(u8, String);

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        // iproute2's `tc` exits with 2, too, if the kernel does not answer it.
        Self(2, format!("onramp: {error}"))
    }
}

/// Sends the command to the daemon and returns the daemon's exit code.
pub(crate) fn run(program: &str, words: &[OsString]) -> ExitCode {
    let code = told(program, words).unwrap_or_else(|Fault(code, why)| {
        // If standard error cannot be written, the message cannot be shown anywhere.
        let _ = writeln!(io::stderr(), "{why}");
        code
    });
    ExitCode::from(code)
}

fn told(program: &str, words: &[OsString]) -> Result<u8, Fault> {
    let mut argv = vec![program.to_owned()];
    for word in words {
        let Some(word) = word.to_str() else {
            return Err(Fault(1, format!("onramp: {word:?} is not UTF-8")));
        };
        argv.push(word.to_owned());
    }
    let folder =
        env::current_dir().ok().and_then(|folder| folder.into_os_string().into_string().ok());
    let folder = folder.unwrap_or_else(|| "/".to_owned());
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    if let Some(switches) = Switches::read(program, &argv[1..]) {
        return batch(program, &switches, &folder);
    }
    let reply = match without_devices(&words) {
        Some(reply) => reply,
        None => Client::connect(&find_path())?.exec(&argv, &folder)?,
    };
    show(&reply)?;
    Ok(reply.code)
}

/// Prints a reply. A reader that has closed the output does not need the rest, so
/// that is no error.
fn show(reply: &Reply) -> Result<(), Fault> {
    let printed = output::print(&reply.out);
    let _ = io::stderr().write_all(reply.err.as_bytes());
    printed.map_err(|error| Fault(1, format!("onramp: {error:#}")))
}

/// The options of a batch. A batch is a file of commands, which `-batch` names.
struct Switches<'a> {
    /// The name of the file with the commands, or `-` for standard input.
    file: &'a str,
    force: bool,
    /// The other options, which apply to each command.
    others: Vec<&'a str>,
}

impl<'a> Switches<'a> {
    /// Reads the options at the beginning of `words`; `None` if `-batch` is not among them.
    fn read(program: &str, words: &'a [String]) -> Option<Self> {
        let mut words = words.iter().map(String::as_str);
        let (mut file, mut force, mut others) = (None, false, Vec::new());
        while let Some(word) = words.next().filter(|word| word.starts_with('-')) {
            // Options may begin with two dashes instead of one.
            let short = if word.starts_with("--") { &word[1..] } else { word };
            let is = |name: &str, least: usize| short.len() >= least && name.starts_with(short);
            if is("-batch", 2) {
                // If no file name follows `-batch`, the daemon gets the words as they are, and
                // reports what is missing.
                file = Some(words.next()?);
            } else if is("-force", if program == "ip" { 3 } else { 2 }) {
                force = true;
            } else {
                others.push(word);
            }
        }
        Some(Self { file: file?, force, others })
    }
}

fn batch(program: &str, switches: &Switches<'_>, folder: &str) -> Result<u8, Fault> {
    if switches.file == "-" {
        let unread = |error| Fault(1, format!("onramp: cannot read standard input: {error}"));
        let input = io::stdin().as_fd().try_clone_to_owned().map_err(unread)?;
        return send(program, switches, folder, input.into());
    }
    let file = File::open(switches.file).map_err(|error| {
        let said = error.to_string();
        let said = said.split(" (os error").next().unwrap_or_default();
        Fault(1, format!("Cannot open file \"{}\" for reading: {said}", switches.file))
    })?;
    send(program, switches, folder, file)
}

/// Sends the commands of a file to the daemon. Commands that can already be read are sent together.
/// If a user types commands into standard input line by line, each command is executed as soon as
/// its line is complete.
fn send(program: &str, switches: &Switches<'_>, folder: &str, input: File) -> Result<u8, Fault> {
    let mut client = Client::connect(&find_path())?;
    let mut lines = Lines::new(BufReader::with_capacity(CHUNK_BYTES, input));
    let mut code = 0;
    loop {
        let Chunk { numbers, commands, unread } = chunk(program, switches, &mut lines);
        if commands.is_empty() {
            return unread.map_or(Ok(code), Err);
        }
        let done = client.batch(&commands, folder, switches.force)?;
        for (place, reply) in &done.said {
            show(reply)?;
            if reply.code != 0 {
                code = 1;
                let number = numbers.get(*place).copied().unwrap_or_default();
                let _ = writeln!(io::stderr(), "Command failed {}:{number}", switches.file);
            }
        }
        // If a request is too large, the daemon reports that and does not try the remaining
        // commands, so this program ends, too.
        if code != 0 && (!switches.force || done.tried < numbers.len()) {
            return Ok(code);
        }
        // As in `tc`, a line that cannot be read ends the batch also with `-force`.
        if let Some(fault) = unread {
            return Err(fault);
        }
    }
}

/// Commands of a batch that are executed together.
#[derive(Default)]
struct Chunk {
    /// For each command, the number of its line.
    numbers: Vec<usize>,
    /// The words of each command.
    commands: Vec<Vec<String>>,
    /// Why what follows the commands cannot be read. `None`: it may be readable.
    unread: Option<Fault>,
}

/// Reads as many commands as can be read without waiting.
fn chunk(program: &str, switches: &Switches<'_>, lines: &mut Lines<BufReader<File>>) -> Chunk {
    let (mut chunk, mut bytes) = (Chunk::default(), 0);
    while let Some(line) = lines.next() {
        let Line { number, words } = match line {
            Ok(line) => line,
            Err(error) => {
                let place = format!("{}:{}", switches.file, lines.number());
                chunk.unread = Some(Fault(1, format!("onramp: cannot read {place}: {error}")));
                break;
            }
        };
        let others = switches.others.iter().map(|word| (*word).to_owned());
        let argv: Vec<String> =
            std::iter::once(program.to_owned()).chain(others).chain(words).collect();
        bytes += argv.iter().map(|word| word.len() + 3).sum::<usize>();
        chunk.numbers.push(number);
        chunk.commands.push(argv);
        // The commands read so far are executed before the program waits for more input.
        let more = lines.reader().buffer().contains(&b'\n');
        if chunk.commands.len() >= CHUNK || bytes >= CHUNK_BYTES || !more {
            break;
        }
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called_as(line: &str) -> Option<(&'static str, usize)> {
        let (program, words) = called(line.split(' ').map(OsString::from))?;
        Some((program, words.len()))
    }

    #[test]
    fn the_name_of_the_program_or_the_first_word_counts() {
        assert_eq!(called_as("/usr/bin/onramp tc qdisc show"), Some(("tc", 2)));
        assert_eq!(called_as("onramp ip --help"), Some(("ip", 1)));
        assert_eq!(called_as("/opt/bin/tc qdisc"), Some(("tc", 1)));
        assert_eq!(called_as("ip tc"), Some(("ip", 1)));
        assert_eq!(called_as("onramp"), None);
        assert_eq!(called_as("onramp demo tc"), None);
        assert_eq!(called_as("tcx tc -s"), Some(("tc", 1)));
    }

    fn switches(program: &str, line: &str) -> Option<(String, bool, usize)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let read = Switches::read(program, &words)?;
        Some((read.file.to_owned(), read.force, read.others.len()))
    }

    #[test]
    fn a_batch_is_found_among_the_options() {
        assert_eq!(switches("tc", "-b x"), Some(("x".into(), false, 0)));
        assert_eq!(switches("tc", "-s -f --batch - -j"), Some(("-".into(), true, 2)));
        assert_eq!(switches("ip", "-f -b x"), Some(("x".into(), false, 1)), "-family");
        assert_eq!(switches("ip", "-fo -ba x link"), Some(("x".into(), true, 0)));
        assert_eq!(switches("tc", "qdisc -b x"), None);
        assert_eq!(switches("tc", "-br qdisc"), None);
        assert_eq!(switches("tc", "-b"), None);
    }
}
