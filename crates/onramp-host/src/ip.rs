//! Commands of `ip`.
//!
//! Source: behaviour of iproute2 6.1's `ip link`, tried word by word.
//! Differs: no output is coloured; `-h`, `-r`, `-t`, `-N` and `-4` to `-B` are accepted without
//! effect; properties that only Linux's devices have (`gso_max_size`, `addrgenmode`) are not shown.

mod add;
mod ask;
mod help;
mod set;
mod show;
mod words;

use onramp_core::show::Style;

pub(crate) use self::set::{put_back, take};
pub(crate) use self::show::address;
use self::words::{Fault, Words};
use super::Reply;
use super::netdev::Netdevs;

/// What a command printed, or the error.
type Done = Result<String, Fault>;

/// The options of `ip` before its object.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    style: Style,
    /// Whether each device is shown on one short line (`-br`).
    brief: bool,
    /// Whether each device is shown with all its properties on one line (`-o`).
    one_line: bool,
}

/// An option of `ip`, and the function that applies it. If an abbreviation fits several options, it
/// means the first of them.
type Switch = (&'static str, fn(&mut Options) -> Done);

const GO_ON: fn(&mut Options) -> Done = |_| Ok(String::new());

/// The options that take no argument, in the order in which abbreviations are looked up.
const SWITCHES: &[Switch] = &[
    ("-4", GO_ON),
    ("-6", GO_ON),
    ("-0", GO_ON),
    ("-M", GO_ON),
    ("-B", GO_ON),
    ("-human-readable", GO_ON),
    ("-iec", GO_ON),
    ("-stats", |options| set(&mut options.style.stats)),
    ("-statistics", |options| set(&mut options.style.stats)),
    ("-details", |options| set(&mut options.style.details)),
    ("-resolve", GO_ON),
    ("-oneline", |options| set(&mut options.one_line)),
    ("-timestamp", GO_ON),
    ("-tshort", GO_ON),
    ("-Version", |_| Err(Fault::version())),
    ("-force", GO_ON),
    ("-brief", |options| set(&mut options.brief)),
    ("-json", |options| set(&mut options.style.json)),
    ("-pretty", |options| set(&mut options.style.pretty)),
    ("-help", |_| Err(Fault::usage(help::IP))),
    ("-Numeric", GO_ON),
    ("-all", GO_ON),
];

fn set(flag: &mut bool) -> Done {
    *flag = true;
    Ok(String::new())
}

/// Carries out the words after `ip`, and returns what `ip` prints.
pub(crate) fn exec(devices: &mut Netdevs, words: &[&str]) -> Reply {
    match run(devices, &mut Words::new(words)) {
        Ok(out) => Reply { code: 0, out, err: String::new() },
        Err(fault) => fault.into(),
    }
}

/// Returns the reply to a command that asks for help or for the version; `None` if it asks for
/// something else.
pub(crate) fn without_devices(words: &[&str]) -> Option<Reply> {
    // A host without devices, which uses nothing outside the process, answers all commands. Its
    // answer holds for every host if it is a help text or the version.
    let mut devices = Netdevs::default();
    devices.is_trial = true;
    let reply = exec(&mut devices, words);
    let is_version = || reply == Fault::version().into();
    (reply.err.starts_with("Usage:") || is_version()).then_some(reply)
}

fn run(devices: &mut Netdevs, words: &mut Words<'_>) -> Done {
    let options = switches(words)?;
    let Some(object) = words.next() else { return Err(Fault::usage(help::IP)) };
    // The abbreviation `l` means `link` here as in `ip`, which looks up `link` before `l2tp`.
    match object {
        _ if begins(object, "link") => link(devices, words, options),
        _ if begins(object, "help") => Err(Fault::usage(help::IP)),
        _ => Err(Fault::said(1, format!("Object \"{object}\" is unknown, try \"ip help\"."))),
    }
}

/// Reads the options that stand in front of the object (such as `link`).
fn switches(words: &mut Words<'_>) -> Result<Options, Fault> {
    let mut options = Options::default();
    while let Some(word) = words.peek().filter(|word| word.starts_with('-')) {
        words.next();
        if word == "--" {
            break;
        }
        // An option may begin with two dashes instead of one.
        let word = if word.starts_with("--") { &word[1..] } else { word };
        let known = SWITCHES.iter().find(|(name, _)| begins(word, name));
        let Some((_, act)) = known else {
            let why = format!("Option \"{word}\" is unknown, try \"ip -help\".");
            return Err(Fault::said(255, why));
        };
        act(&mut options)?;
    }
    Ok(options)
}

fn link(devices: &mut Netdevs, words: &mut Words<'_>, options: Options) -> Done {
    let Some(verb) = words.next() else { return show::run(devices, words, options) };
    let is = |names: &[&str]| names.iter().any(|name| begins(verb, name));
    match verb {
        _ if is(&["add"]) => add::run(devices, words),
        _ if is(&["set", "change"]) => set::run(devices, words),
        _ if is(&["replace"]) => add::run(devices, words),
        _ if is(&["delete"]) => set::delete(devices, words),
        _ if is(&["show", "lst", "list"]) => show::run(devices, words, options),
        _ if is(&["help"]) => Err(Fault::usage(&help::link())),
        _ => {
            let why = format!("Command \"{verb}\" is unknown, try \"ip link help\".");
            Err(Fault::said(255, why))
        }
    }
}

/// Returns whether `word` is `name` or an abbreviation of it.
fn begins(word: &str, name: &str) -> bool {
    !word.is_empty() && name.starts_with(word)
}
