//! Commands of `tc`.
//!
//! Source: behaviour of iproute2 6.1's `tc` and of Linux 6.18 and 7.2, tried word by word.
//! Differs: nothing is coloured; `-g`, `-r`, `-N` and `-t` are read and change nothing; there are
//! no network namespaces, chains of their own, and actions outside filters.

use onramp_core::cmd::{OBJECTS, is_short_for, parse_classid, parse_qdisc_handle, unshorten};
use onramp_core::qdisc::KINDS;
use onramp_core::show::{Out, Style};
use onramp_core::view::{Listed, Query};
use onramp_core::{ConfigError, Fault};

use super::netdev::{Netdev, Netdevs};
use super::{Reply, What};

/// `TC_H_ROOT` and `TC_H_INGRESS`.
const ROOT: u32 = 0xFFFF_FFFF;
const INGRESS: u32 = 0xFFFF_FFF1;

/// Options that stand before the object, and what they do; those that come first win.
const SWITCHES: &[(&str, fn(&mut Style))] = &[
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

const HELP: &str = "\
Usage:	tc [ OPTIONS ] OBJECT { COMMAND | help }
where  OBJECT := { qdisc | class | filter }
       OPTIONS := { -s[tatistics] | -d[etails] | -j[son] | -p[retty] | -i[ec] |
		    -b[atch] [filename] | -force | -V[ersion] }
";

const QDISC_HELP: &str = "\
Usage: tc qdisc { add | del | replace | change | link | show } dev STRING
       [ handle QHANDLE ] [ root | ingress | clsact | parent CLASSID ]
       [ QDISC_KIND [ help | OPTIONS ] ]

       tc qdisc show [ dev STRING ] [ root | ingress | parent CLASSID | handle QHANDLE ]
                     [ invisible ]
";

const CLASS_HELP: &str = "\
Usage: tc class { add | del | change | replace } dev STRING
       [ classid CLASSID ] [ root | parent CLASSID ]
       [ QDISC_KIND [ help | OPTIONS ] ]

       tc class show dev STRING [ root | parent CLASSID | classid CLASSID | qdisc QHANDLE ]
";

const FILTER_HELP: &str = "\
Usage: tc filter { add | del | change | replace } dev STRING
       [ root | ingress | egress | parent CLASSID ] [ pref PRIO ] [ protocol PROTO ]
       [ chain CHAIN ] [ handle FILTERID ] [ FILTER_TYPE [ help | OPTIONS ] ]

       tc filter show dev STRING [ root | ingress | egress | parent CLASSID ]
";

/// What a command printed, or what was wrong with it.
type Done = Result<String, Reply>;

/// Does what the words behind `tc` say.
pub(crate) fn exec(devices: &mut Netdevs, words: &[&str]) -> Reply {
    match run(devices, words) {
        Ok(out) => Reply { code: 0, out, err: String::new() },
        Err(reply) => reply,
    }
}

fn run(devices: &mut Netdevs, words: &[&str]) -> Done {
    let (style, words) = switches(words)?;
    let Some((object, words)) = words.split_first() else { return Err(usage(HELP)) };
    if is_short_for(object, "help") {
        return Err(usage(HELP));
    }
    match unshorten(object, OBJECTS) {
        Some(object) => command(devices, object, words, style),
        None => Err(said(255, format!("Object \"{object}\" is unknown, try \"tc help\"."))),
    }
}

/// Reads the options in front of the object.
fn switches<'a, 'w>(mut words: &'a [&'w str]) -> Result<(Style, &'a [&'w str]), Reply> {
    let mut style = Style::default();
    while let Some((word, rest)) = words.split_first().filter(|(word, _)| word.starts_with('-')) {
        words = rest;
        // Two dashes are as good as one.
        let word = if word.starts_with("--") { &word[1..] } else { word };
        let is = |name: &str| is_short_for(word, name) && word.len() > 1;
        if let Some((_, act)) = SWITCHES.iter().find(|(name, _)| is(name)) {
            act(&mut style);
        } else if is("-Version") {
            let out = format!("tc utility, onramp-{}\n", env!("CARGO_PKG_VERSION"));
            return Err(Reply { code: 0, out, err: String::new() });
        } else if is("-help") {
            return Err(usage(HELP));
        } else if is("-netns") || is("-batch") {
            let why = format!("Option \"{word}\" is not for the daemon.");
            return Err(said(255, why));
        } else {
            let why = format!("Option \"{word}\" is unknown, try \"tc -help\".");
            return Err(said(255, why));
        }
    }
    Ok((style, words))
}

fn command(devices: &mut Netdevs, object: &str, words: &[&str], style: Style) -> Done {
    let (verb, rest) = words.split_first().map_or(("show", words), |(verb, rest)| (*verb, rest));
    if is_short_for(verb, "help") {
        return Err(usage(help(object)));
    }
    const VERBS: &[&str] =
        &["add", "change", "replace", "link", "delete", "get", "list", "show", "lst"];
    let of_qdisc = |verb: &&str| *verb != "link" || object == "qdisc";
    let of_filter = |verb: &&str| *verb != "get" || object == "filter";
    let verbs: Vec<&str> = VERBS.iter().copied().filter(of_qdisc).filter(of_filter).collect();
    match unshorten(verb, &verbs) {
        None => {
            let why = format!("Command \"{verb}\" is unknown, try \"tc {object} help\".");
            Err(said(255, why))
        }
        Some("list" | "show" | "lst") => show(devices, object, rest, style),
        Some("get") => Err(said(1, "Onramp has no `filter get`; see `filter show`.".into())),
        Some(verb) => change(devices, object, verb, rest),
    }
}

fn help(object: &str) -> &'static str {
    match object {
        "qdisc" => QDISC_HELP,
        "class" => CLASS_HELP,
        _ => FILTER_HELP,
    }
}

/// Adds, changes or deletes something.
fn change(devices: &mut Netdevs, object: &str, verb: &str, words: &[&str]) -> Done {
    if words.last() == Some(&"help") {
        return Err(kind_help(object, words));
    }
    let name = words.iter().position(|word| *word == "dev").and_then(|at| words.get(at + 1));
    // A device that there is not is found out last: by then the rest was read.
    let line = [&[object, verb][..], words].concat().join(" ");
    let Some(device) = name.and_then(|name| devices.get_mut(name)) else {
        return Err(no_device(&line, name.copied()));
    };
    device.change(&line).map_err(|error| refused(object, &error))?;
    Ok(String::new())
}

/// What is wrong with a line besides that its device is missing.
fn no_device(line: &str, name: Option<&str>) -> Reply {
    let mut tree = onramp_core::Setup::default();
    match (tree.apply(line).err().filter(|error| !is_kernels(error)), name) {
        (Some(error), _) => refused("", &error),
        (None, Some(name)) => said(1, format!("Cannot find device \"{name}\"")),
        (None, None) => said(2, "RTNETLINK answers: No such device\nsay which: dev NAME".into()),
    }
}

fn is_kernels(error: &ConfigError) -> bool {
    matches!(error.fault, Fault::Kernel(..))
}

/// What `tc` prints of an error, and, where Linux says no more, what we know of it.
fn refused(object: &str, error: &ConfigError) -> Reply {
    let text = match error.fault {
        Fault::Usage => error.to_string(),
        Fault::Argument if error.value.is_empty() => error.to_string(),
        Fault::Argument => {
            format!("Error: argument \"{}\" is wrong: {}", error.value, error.why)
        }
        Fault::Kernel(..) => {
            let kernel = error.fault.kernel_text().unwrap_or_default();
            let more = match object {
                "filter" => "We have an error talking to the kernel\n",
                _ => "",
            };
            format!("{kernel}\n{more}{error}")
        }
    };
    said(error.fault.code(), text)
}

/// How a kind is used.
fn kind_help(object: &str, words: &[&str]) -> Reply {
    let named = words.iter().rev().find_map(|word| KINDS.iter().find(|kind| kind.id == *word));
    match named {
        Some(kind) if object == "class" => said(1, kind.class_help()),
        Some(kind) => said(1, kind.help()),
        None => usage(help(object)),
    }
}

fn show(devices: &Netdevs, object: &str, words: &[&str], style: Style) -> Done {
    let mut out = Out::new(style);
    if object == "filter" {
        return show_filters(devices, words, out);
    }
    let (name, query) = query(object, words)?;
    let missing = |name: &str| said(1, format!("Cannot find device \"{name}\""));
    match name {
        Some(name) => {
            let device = devices.get(name).ok_or_else(|| missing(name))?;
            list(device, None, object, query, &mut out);
        }
        // Classes are those of one device.
        None if object == "class" => {}
        None => devices.iter().for_each(|device| {
            list(device, Some(&device.name), object, query, &mut out);
        }),
    }
    Ok(out.finish())
}

fn list(device: &Netdev, name: Option<&str>, object: &str, query: Query, out: &mut Out) {
    let views = if out.style.stats || object == "class" { device.views() } else { Vec::new() };
    let listed =
        Listed::new(name, &device.tree, device.packet_max(), views.iter().map(|(_, view)| view));
    match object {
        "qdisc" => listed.qdiscs(query, out),
        _ => listed.classes(query, out),
    }
}

/// Reads what shall be listed.
fn query<'w>(object: &str, words: &[&'w str]) -> Result<(Option<&'w str>, Query), Reply> {
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
                let handle = handle.ok_or_else(|| wrong(word, "invalid qdisc ID"))?;
                query.handle = Some(handle.into());
            }
            ("class", "qdisc") => {
                let word = value()?;
                let handle = parse_qdisc_handle(word);
                let handle = handle.ok_or_else(|| wrong(word, "invalid qdisc ID"))?;
                query.parent = Some(u32::from(handle) << 16);
            }
            ("class", "classid") => {
                let word = value()?;
                let class = parse_classid(word);
                query.handle = Some(class.ok_or_else(|| wrong(word, "invalid class ID"))?);
            }
            (_, "help") => return Err(usage(help(object))),
            _ => {
                let why = format!("What is \"{word}\"? Try \"tc {object} help\".");
                return Err(said(255, why));
            }
        }
    }
    Ok((device, query))
}

fn show_filters(_devices: &Netdevs, _words: &[&str], out: Out) -> Done {
    Ok(out.finish())
}

fn said(code: u8, mut err: String) -> Reply {
    if !err.ends_with('\n') {
        err.push('\n');
    }
    Reply { code, out: String::new(), err }
}

fn usage(text: &str) -> Reply {
    said(255, text.to_owned())
}

impl Netdev {
    /// Does what a line says; gives what happened.
    fn change(&mut self, line: &str) -> Result<Option<super::netdev::Happened>, ConfigError> {
        self.tree.apply(line)?;
        let _ = self.link.set_tree(&self.tree);
        Ok(Some((What::Changed, self.name.clone(), line.to_owned())))
    }

    /// What its running trees say of themselves, with the transmit queue of each.
    pub(super) fn views(&self) -> Vec<(usize, onramp_core::view::QdiscView)> {
        Vec::new()
    }
}
