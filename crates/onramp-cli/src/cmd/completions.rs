//! The command `onramp completions`: writes the script that a shell needs to complete command
//! lines. To complete the words of `tc` and `ip`, the script calls the program (`onramp complete`),
//! which asks the daemon for names.

use std::env;
use std::ffi::OsString;

use anyhow::Result;
use clap::CommandFactory as _;
use clap::ValueEnum;
use clap_complete::{Shell, generate};
use onramp_daemon::client::Client;
use onramp_daemon::find_path;

use crate::output;
use crate::reference::complete::candidates;

const BASH: &str = include_str!("completions/onramp.bash");
const ZSH: &str = include_str!("completions/onramp.zsh");
const FISH: &str = include_str!("completions/onramp.fish");

/// Texts by which this command finds two places in clap's script for zsh: the beginning of the main
/// function, and the lines at the end that call it.
const ZSH_FUNCTION: &str = "\n_onramp() {";
const ZSH_CALL: &str = "\nif [ \"$funcstack[1]\"";

/// Print the script with which a shell completes command lines
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(onramp completions bash)
  onramp completions zsh > ~/.zfunc/_onramp
  onramp completions fish > ~/.config/fish/completions/onramp.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Name,
    /// Also complete tc or ip, if they are links to this program; may be given more than once
    #[arg(long, value_name = "PROGRAM")]
    also: Vec<Program>,
}

/// A shell.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Bash,
    Zsh,
    Fish,
}

/// A program of iproute2. A link with its name, `tc` or `ip`, may lead to this program.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    Tc,
    Ip,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::Ip => "ip",
        }
    }
}

/// If the program was called as `onramp complete`, returns the words that it got: `tc` or `ip`, and
/// the words of that command up to the cursor, the last of which may be incomplete. `None` if the
/// program was called in another way. Only the scripts use `onramp complete`, so clap does not know
/// this command and shells do not offer it.
pub(crate) fn asked(args: impl Iterator<Item = OsString>) -> Option<Vec<String>> {
    let mut words = args.skip(1).map(|word| word.to_string_lossy().into_owned());
    words.next().filter(|word| word == "complete")?;
    Some(words.collect())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let also: Vec<&str> = args.also.iter().map(|program| program.name()).collect();
    let script = match args.shell {
        Name::Bash => bash(&also),
        Name::Zsh => zsh(&also),
        Name::Fish => fish(&also),
    };
    output::print(&script)
}

/// Returns the completion script that clap generates.
fn of_clap(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut crate::Cli::command(), "onramp", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn bash(also: &[&str]) -> String {
    let mut script = of_clap(Shell::Bash) + BASH;
    for program in also {
        script.push_str(&format!("complete -o nosort -F _onramp_{program} {program}\n"));
    }
    script
}

fn zsh(also: &[&str]) -> String {
    let script = of_clap(Shell::Zsh).replacen(ZSH_FUNCTION, "\n_onramp_program() {", 1);
    let own = format!("\n{ZSH}{ZSH_CALL}");
    let script = script.replacen(ZSH_CALL, &own, 1);
    let names = also.iter().fold("onramp".to_owned(), |names, name| format!("{names} {name}"));
    script.replacen("#compdef onramp", &format!("#compdef {names}"), 1).replacen(
        "compdef _onramp onramp",
        &format!("compdef _onramp {names}"),
        1,
    )
}

fn fish(also: &[&str]) -> String {
    let mut script = of_clap(Shell::Fish) + FISH;
    for program in also {
        script.push_str(&format!("complete -c {program} -f -a '(__onramp_words)'\n"));
    }
    script
}

/// Prints the words that may come next, one on each line, with the meaning of the word after a tab.
pub(crate) fn complete(words: &[String]) -> Result<()> {
    let Some((program, words)) = words.split_first() else { return Ok(()) };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // If no daemon runs, the words that need no daemon are printed all the same; only names, such
    // as those of devices, are missing.
    let mut client = None;
    let folder = env::current_dir().unwrap_or_default();
    let mut ask = |argv: &[&str]| {
        if client.is_none() {
            client = Client::connect(&find_path()).ok();
        }
        let reply = client.as_mut()?.exec(argv, &folder.to_string_lossy()).ok()?;
        (reply.code == 0).then_some(reply.out)
    };
    let lines = candidates(program, &words, &mut ask);
    let lines: Vec<_> = lines.iter().map(|(word, help)| format!("{word}\t{help}\n")).collect();
    output::print(&lines.concat())
}
