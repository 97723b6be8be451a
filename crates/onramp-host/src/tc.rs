//! Commands of `tc`.
//!
//! Source: behaviour of iproute2 6.1's `tc` and of Linux 6.18 and 7.2, tried word by word.
//! Differs: no output is coloured; `-g`, `-r`, `-N` and `-t` are accepted without effect; there are
//! no network namespaces, no commands on chains, and no actions outside filters.

mod help;
mod link;
mod tree;

use std::fmt;

use onramp_core::cmd::{
    INGRESS, OBJECTS, ROOT, is_short_for, parse_classid, parse_qdisc_handle, unshorten,
};
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{Change, ConfigError, Fault, Kinds, Setup};

use crate::Reply;
use crate::configured::Configured;
use crate::follow::{self, List};
use onramp::{Changing, PortError};

pub use self::link::tc;
pub use self::tree::tc_tree;

/// An option that stands before the object (such as `qdisc`), and its effect on the output.
type Switch = (&'static str, fn(&mut Style));

/// The options that may stand before the object. If an abbreviation fits several options, it means
/// the first of them.
const SWITCHES: &[Switch] = &[
    ("-stats", |style| style.stats = true),
    ("-statistics", |style| style.stats = true),
    ("-details", |style| style.details = true),
    ("-raw", |_| {}),
    ("-pretty", |style| style.pretty = true),
    ("-graph", |_| {}),
    ("-iec", |style| style.iec = true),
    ("-force", |_| {}),
    ("-json", |style| style.json = true),
    ("-Numeric", |_| {}),
    ("-timestamp", |_| {}),
    ("-tshort", |_| {}),
    ("-oneline", |_| {}),
];

/// A device that commands of `tc` may name.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    pub(crate) tree: &'a dyn Configured,
    /// Size of the largest packet including its link header, bytes.
    pub(crate) mtu: u32,
    /// Why no packet comes in at the device; `None` if packets may come in.
    pub(crate) deaf: Option<&'static str>,
    /// The rates that follow shares of a fleet's limits; `None`: no rate can.
    pub(crate) followers: Option<&'a List>,
}

/// The devices that commands of `tc` may name.
pub(crate) trait Targets {
    /// Returns the device with this name.
    fn target(&self, name: &str) -> Option<Target<'_>>;
    /// Returns all devices.
    fn targets(&self) -> Vec<Target<'_>>;
    /// Returns the kinds of qdiscs that commands may name.
    fn kinds(&self) -> Kinds;
    /// Notes that the command `line` has changed something on the device `name`, so that the host
    /// can report events.
    fn changed(&mut self, name: &str, line: &str, change: &Change);
    /// Whether a filter may name this device with `indev`. A link or tree that belongs to no host
    /// knows no other devices, so it accepts every name.
    fn has_device(&self, _name: &str) -> bool {
        true
    }
    /// Whether commands may name limits of a fleet.
    fn is_in_fleet(&self) -> bool {
        false
    }
}

/// Error: why a command of `tc` was not carried out.
#[derive(Debug)]
#[non_exhaustive]
pub enum TcError {
    /// The command cannot be understood, or what it asks for is impossible. Nothing has changed.
    Config(ConfigError),
    /// A port (transmit queue) of the link did not make the change.
    Port(PortError),
    /// The command cannot be carried out on a link, or it asks for help. The field contains what
    /// `tc` prints.
    Reply(Reply),
}

impl From<ConfigError> for TcError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<PortError> for TcError {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Config(error) => Self::Config(error),
            error => Self::Port(error),
        }
    }
}

impl From<Reply> for TcError {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl fmt::Display for TcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Port(error) => error.fmt(f),
            Self::Reply(reply) => f.write_str(reply.err.trim_end()),
        }
    }
}

// No `source`: the text of this error already contains the text of its cause.
impl std::error::Error for TcError {}

impl From<TcError> for Reply {
    fn from(error: TcError) -> Self {
        match error {
            TcError::Config(error) => refused(&error),
            // `Late` means that the port will still make the change, without another command, so
            // the exit status is 0.
            TcError::Port(error @ PortError::Late(_)) => said(0, error.to_string()),
            TcError::Port(error) => {
                said(2, format!("RTNETLINK answers: Device or resource busy\n{error}"))
            }
            TcError::Reply(reply) => reply,
        }
    }
}

/// What a command printed, with a warning that may be empty; or the error.
type Done = Result<(String, String), TcError>;

/// Carries out the words after `tc`, and returns what `tc` prints.
pub(crate) fn exec(devices: &mut dyn Targets, words: &[&str]) -> Reply {
    match run(devices, words) {
        Ok((out, err)) => Reply { code: 0, out, err },
        Err(error) => error.into(),
    }
}

/// Does the same as [`exec`], but returns an error as a [`TcError`] and not as printed text.
pub(crate) fn run(devices: &mut dyn Targets, words: &[&str]) -> Done {
    let Asked { style, object, verb, rest } = read(words, &devices.kinds())?;
    match verb {
        "list" | "show" | "lst" => Ok((show(devices, object, rest, style)?, String::new())),
        "get" => get_filter(devices, rest, style),
        verb => change(devices, object, verb, rest),
    }
}

/// A command that needs devices.
struct Asked<'a, 'w> {
    style: Style,
    object: &'static str,
    verb: &'static str,
    rest: &'a [&'w str],
}

/// Returns the reply to a command that needs no devices, such as a request for help; `None` if it
/// needs devices.
pub(crate) fn without_devices(words: &[&str]) -> Option<Reply> {
    read(words, &Kinds::default()).err()
}

/// Reads the options, the object and the verb of a command. Help texts list `kinds`.
///
/// # Errors
///
/// Returns the reply to a command that ends here: it asks for help or for the version, or its first
/// words are wrong.
fn read<'a, 'w>(words: &'a [&'w str], kinds: &Kinds) -> Result<Asked<'a, 'w>, Reply> {
    const VERBS: &[&str] =
        &["add", "change", "replace", "link", "delete", "get", "list", "show", "lst"];
    let (style, words) = switches(words)?;
    let Some((object, words)) = words.split_first() else { return Err(usage(help::TC)) };
    if is_short_for(object, "help") {
        return Err(usage(help::TC));
    }
    let Some(object) = unshorten(object, OBJECTS) else {
        return Err(said(255, format!("Object \"{object}\" is unknown, try \"tc help\".")));
    };
    let (verb, rest) = words.split_first().map_or(("show", words), |(verb, rest)| (*verb, rest));
    if is_short_for(verb, "help") || rest == ["help"] {
        return Err(usage(&help::of(object, kinds)));
    }
    let of_qdisc = |verb: &&str| *verb != "link" || object == "qdisc";
    let of_filter = |verb: &&str| *verb != "get" || object == "filter";
    let verbs: Vec<&str> = VERBS.iter().copied().filter(of_qdisc).filter(of_filter).collect();
    let Some(verb) = unshorten(verb, &verbs) else {
        let why = format!("Command \"{verb}\" is unknown, try \"tc {object} help\".");
        return Err(said(255, why));
    };
    let shows = ["get", "list", "show", "lst"].contains(&verb);
    let asks_for_help = !shows && rest.last() == Some(&"help");
    match asks_for_help.then(|| help::of_kind(object, rest, kinds)).flatten() {
        Some(reply) => Err(reply),
        None => Ok(Asked { style, object, verb, rest }),
    }
}

/// Reads the options that stand in front of the object.
fn switches<'a, 'w>(mut words: &'a [&'w str]) -> Result<(Style, &'a [&'w str]), Reply> {
    let mut style = Style::default();
    while let Some((word, rest)) = words.split_first().filter(|(word, _)| word.starts_with('-')) {
        words = rest;
        // An option may begin with two dashes instead of one.
        let word = if word.starts_with("--") { &word[1..] } else { word };
        let is = |name: &str| is_short_for(word, name) && word.len() > 1;
        if let Some((_, act)) = SWITCHES.iter().find(|(name, _)| is(name)) {
            act(&mut style);
        } else if is("-Version") {
            let out = format!("tc utility, onramp-{}\n", env!("CARGO_PKG_VERSION"));
            return Err(Reply { code: 0, out, err: String::new() });
        } else if is("-help") {
            return Err(usage(help::TC));
        } else if is("-netns") || is("-batch") {
            let why = match is("-batch") {
                true => "Option \"-batch\" must come first, and needs the name of a file, or -.",
                false => "Option \"-netns\": Onramp's devices are not in network namespaces.",
            };
            return Err(said(255, why.to_owned()));
        } else {
            let why = format!("Option \"{word}\" is unknown, try \"tc -help\".");
            return Err(said(255, why));
        }
    }
    Ok((style, words))
}

/// Adds, changes or deletes a qdisc, class or filter.
fn change(devices: &mut dyn Targets, object: &str, verb: &str, words: &[&str]) -> Done {
    let name = words.iter().position(|word| *word == "dev").and_then(|at| words.get(at + 1));
    one_by_one(object, words)?;
    let (mut words, named) = follow::take(devices.is_in_fleet(), words)?;
    // As `tc` does, report a device that does not exist only if the line has no other error.
    let line = format!("{object} {verb} {}", words.join(" "));
    let mut line = line.trim_end().to_owned();
    let Some(target) = name.and_then(|name| devices.target(name)) else {
        return Err(no_device(devices.kinds(), &line, name.copied()));
    };
    let (name, deaf) = (target.name.to_owned(), target.deaf);
    // A qdisc or class that is new has no rate yet that follows a share.
    if object == "filter" && words.iter().any(|word| word == "indev") {
        check_indev(devices, &target, &line)?;
    }
    let changes = object != "filter" && !["add", "delete"].contains(&verb);
    let mut followers = target.followers.map(List::lock);
    let following = followers.as_deref().map_or(&[][..], Vec::as_slice);
    if changes && !following.is_empty() || !named.is_empty() {
        let setup = target.tree.setup();
        if let Some(place) = follow::check(&setup, &line, &words, &named, following)? {
            follow::keep(&mut words, &setup, place, &named, following);
            line = format!("{object} {verb} {}", words.join(" "));
        }
    }
    let (change, changing) = target.tree.begin_change(&line)?;
    if let Some(followers) = followers.as_deref_mut() {
        follow::note(followers, &target.tree.setup(), &words, &change, &named);
        follow::lend_again(target.tree, followers, &change);
    }
    drop(followers);
    let comes_in = matches!(change, Change::Filters(at) if target.tree.setup().is_ingress(at));
    devices.changed(&name, &line, &change);
    changing.map_or(Ok(()), Changing::wait)?;
    let deaf = deaf.filter(|_| comes_in && verb != "delete").map(|why| {
        format!(
            "Warning: the filter is kept and listed, but no packet meets it: nothing comes in at \
             {name}, because {why}.\n"
        )
    });
    Ok((String::new(), deaf.unwrap_or_default()))
}

/// Checks that each argument is a single word, because the arguments are joined to a line that is
/// split into words again later. Only in commands about filters may an argument consist of several
/// words (an expression).
fn one_by_one(object: &str, words: &[&str]) -> Result<(), Reply> {
    let split = |word: &str| word.is_empty() || word.contains(char::is_whitespace);
    let names = |at: usize| object != "filter" || at > 0 && words[at - 1] == "dev";
    let wrong = words.iter().enumerate().find(|(at, word)| split(word) && names(*at));
    wrong.map_or(Ok(()), |(_, word)| {
        Err(said(255, format!("Error: argument {word:?} is wrong: it must be a single word")))
    })
}

/// Returns an error if a line that adds or changes a filter names a device with `indev` that does
/// not exist, and has no other error.
fn check_indev(devices: &dyn Targets, target: &Target<'_>, line: &str) -> Result<(), TcError> {
    let mut tree = Setup::clone(&target.tree.setup());
    tree.change(line)?;
    match tree.indev_of_change() {
        Some(name) if !devices.has_device(name) => {
            let why = format!(
                "Error: Network device not found.\nWe have an error talking to the \
                               kernel\nfilter: \"indev {name}\": there is no such device"
            );
            Err(said(2, why).into())
        }
        _ => Ok(()),
    }
}

/// Returns the error for a command whose device does not exist. If the line has another error,
/// returns that one instead.
fn no_device(kinds: Kinds, line: &str, name: Option<&str>) -> TcError {
    let said_before = Setup::with_kinds(kinds).apply(line).err();
    let said_before = said_before.filter(|error| !matches!(error.fault, Fault::Kernel(..)));
    match (said_before, name) {
        (Some(error), _) => error.into(),
        (None, Some(name)) => said(1, format!("Cannot find device \"{name}\"")).into(),
        (None, None) => said(
            2,
            "RTNETLINK answers: No such device\nthe device is missing: give dev NAME".into(),
        )
        .into(),
    }
}

/// Returns what `tc` prints for an error; where Linux gives no explanation, Onramp's own
/// explanation is added.
fn refused(error: &ConfigError) -> Reply {
    let text = match error.fault {
        Fault::Usage => error.to_string(),
        Fault::Argument if error.value.is_empty() => error.to_string(),
        Fault::Argument => {
            format!("Error: argument \"{}\" is wrong: {}", error.value, error.why)
        }
        Fault::Kernel(..) => {
            let kernel = error.fault.kernel_text().unwrap_or_default();
            let more = match error.at.starts_with("filter") {
                true => "We have an error talking to the kernel\n",
                false => "",
            };
            format!("{kernel}\n{more}{error}")
        }
    };
    said(error.fault.code(), text)
}

fn show(
    devices: &dyn Targets,
    object: &str,
    words: &[&str],
    style: Style,
) -> Result<String, Reply> {
    let mut out = Out::new(style);
    if object == "filter" {
        return show_filters(devices, words, out);
    }
    let (name, query) = query(object, words, devices)?;
    let missing = |name: &str| said(1, format!("Cannot find device \"{name}\""));
    match name {
        Some(name) => {
            let target = devices.target(name).ok_or_else(|| missing(name))?;
            list(&target, None, object, query, &mut out);
        }
        // Classes are listed for one device only, as `tc` does.
        None if object == "class" => {}
        None => devices.targets().iter().for_each(|target| {
            list(target, Some(target.name), object, query, &mut out);
        }),
    }
    Ok(out.finish())
}

fn list(target: &Target<'_>, name: Option<&str>, object: &str, query: Query, out: &mut Out) {
    let (setup, views) = (target.tree.setup(), target.tree.tree_views());
    let listed = Listed::new(name, &setup, target.mtu, &views);
    match object {
        "qdisc" => listed.qdiscs(query, out),
        _ => listed.classes(query, out),
    }
}

/// Reads the words that say which qdiscs or classes shall be listed.
fn query<'w>(
    object: &str,
    words: &[&'w str],
    devices: &dyn Targets,
) -> Result<(Option<&'w str>, Query), Reply> {
    let (mut device, mut query) = (None, Query::default());
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        let mut value = || {
            let missing = || said(255, "Command line is not complete. Try option \"help\"".into());
            words.next().ok_or_else(missing)
        };
        let wrong =
            |word: &str, why| said(255, format!("Error: argument \"{word}\" is wrong: {why}"));
        match (object, word) {
            (_, "dev") => device = Some(value()?),
            (_, "root") => query.parent = Some(ROOT),
            ("qdisc", "ingress" | "clsact") => query.parent = Some(INGRESS),
            ("qdisc", "invisible") => query.invisible = true,
            (_, "parent") => {
                let word = value()?;
                let parent = parse_classid(word);
                query.parent = Some(parent.ok_or_else(|| wrong(word, "invalid parent ID"))?);
            }
            ("qdisc", "handle") => {
                let word = value()?;
                let handle = parse_qdisc_handle(word);
                let handle = handle.ok_or_else(|| wrong(word, "invalid handle ID"))?;
                query.handle = Some(handle.into());
            }
            ("class", "qdisc") => {
                let word = value()?;
                let handle = parse_qdisc_handle(word);
                let handle = handle.ok_or_else(|| wrong(word, "invalid qdisc ID"))?;
                query.parent = Some(u32::from(handle) << 16);
                query.minors = true;
            }
            ("class", "classid") => {
                let word = value()?;
                let class = parse_classid(word);
                query.handle = Some(class.ok_or_else(|| wrong(word, "invalid class ID"))?);
            }
            (_, "help") => return Err(usage(&help::of(object, &devices.kinds()))),
            _ => {
                let why = format!("What is \"{word}\"? Try \"tc {object} help\".");
                return Err(said(255, why));
            }
        }
    }
    Ok((device, query))
}

fn get_filter(devices: &dyn Targets, words: &[&str], style: Style) -> Done {
    let name = words.iter().position(|word| *word == "dev").and_then(|at| words.get(at + 1));
    let name = name.copied().unwrap_or_default();
    let missing = || said(1, format!("Cannot find device \"{name}\""));
    let setup = devices.target(name).ok_or_else(missing)?.tree.setup();
    let mut out = Out::new(style);
    setup.get_filter(&words.join(" "), &mut out)?;
    Ok((out.finish(), String::new()))
}

/// Lists the filters at one place (a parent) of one device. If no device is named, lists nothing.
fn show_filters(devices: &dyn Targets, words: &[&str], mut out: Out) -> Result<String, Reply> {
    if words.contains(&"help") {
        return Err(usage(&help::of("filter", &devices.kinds())));
    }
    let line = words.join(" ");
    let Some(at) = words.iter().position(|word| *word == "dev") else {
        Setup::default().filter_query(&line).map_err(|error| refused(&error))?;
        return Ok(out.finish());
    };
    let name = words.get(at + 1).copied().unwrap_or_default();
    let missing = || said(1, format!("Cannot find device \"{name}\""));
    let tree = devices.target(name).ok_or_else(missing)?.tree;
    let setup = tree.setup();
    let (place, _) = setup.filter_query(&line).map_err(|error| refused(&error))?;
    // Ask the ports for what the filters counted only if counters shall be shown.
    let counted = if out.style.stats { tree.filters(place) } else { Vec::new() };
    setup.show_counted(&line, &counted, &mut out).map_err(|error| refused(&error))?;
    Ok(out.finish())
}

fn said(code: u8, mut err: String) -> Reply {
    if !err.ends_with('\n') {
        err.push('\n');
    }
    Reply { code, out: String::new(), err }
}

/// Returns a help text. Asking for help is not an error, so the exit status is 0.
fn usage(text: &str) -> Reply {
    said(0, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that a port will make later (`Late`) exits with 0 like a change that is made; a
    /// change that the port will not make (`Blocked`) exits with 2.
    #[test]
    fn a_change_that_is_late_exits_with_0() {
        for (error, code) in [(PortError::Late(7), 0), (PortError::Blocked(7), 2)] {
            let reply = Reply::from(TcError::from(error));
            assert_eq!(reply.code, code, "{reply:?}");
            assert!(reply.err.contains("port 7") && reply.out.is_empty(), "{reply:?}");
        }
    }

    #[test]
    fn an_argument_is_one_word() {
        let whole = |object, words: &[&str]| one_by_one(object, words).is_ok();
        assert!(whole("qdisc", &["dev", "d0", "root", "fq", "limit", "5"]));
        for wrong in ["fq limit 5", "", "5\nfoo"] {
            assert!(!whole("qdisc", &["dev", "d0", "root", wrong]), "{wrong:?}");
        }
        assert!(whole("filter", &["dev", "d0", "basic", "match", "meta(mark eq 5)"]));
        assert!(!whole("filter", &["dev", "d 0", "basic"]));
    }
}
