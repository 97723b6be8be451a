//! The words of the commands `tc` and `ip` as tables, from which manual pages, completion and
//! documentation are made.
//!
//! The options of the kinds of qdiscs and filters are in other tables:
//! [`KINDS`](onramp_core::qdisc::KINDS) and [`filter::reference`](onramp_core::filter::reference).

use super::device::{Operand, TYPES};

/// A program whose commands the daemon executes: `tc` or `ip`.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name of the program.
    pub name: &'static str,
    /// Description of the program, one line.
    pub about: &'static str,
    /// Options that may stand before the object (`tc -s qdisc show`: `-s`).
    pub switches: &'static [Word],
    /// Objects of the program's commands.
    pub objects: &'static [Object],
}

/// An object of commands, such as `qdisc` in `tc qdisc show`.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Name of the object.
    pub name: &'static str,
    /// Description of the object, one line.
    pub about: &'static str,
    /// The verbs that may follow the object.
    pub verbs: &'static [Verb],
}

/// A verb of commands, such as `show` in `tc qdisc show`.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// Name of the verb.
    pub name: &'static str,
    /// Description of the verb, one line.
    pub about: &'static str,
    /// Words that may follow the verb, in any order, before a kind of qdisc or filter.
    pub words: &'static [Word],
    /// What follows the verb and the words in `words`, such as a kind of qdisc.
    pub then: Then,
}

/// A word of a command, and its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word itself, as a user types it.
    pub name: &'static str,
    /// The operand that follows the word.
    pub takes: Takes,
    /// Description of the word, one line.
    pub help: &'static str,
}

/// The operand of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// No operand.
    Nothing,
    /// The name of a device of the daemon.
    Device,
    /// A handle of a qdisc: `1:`.
    Handle,
    /// A handle of a class or a qdisc: `1:20`.
    Class,
    /// One of the words in this list. Some commands accept further words, too.
    OneOf(&'static [&'static str]),
    /// A value, such as a number. The string is the placeholder that documentation shows for the
    /// value.
    Value(&'static str),
    /// A type of device, such as `dummy` or `veth`.
    Type,
}

/// What follows after a verb and its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing follows.
    End,
    /// A kind of qdisc and its options.
    Qdisc,
    /// A kind of qdisc and the options of its classes.
    Class,
    /// A kind of filter and its options.
    Filter,
    /// The options of the device type that the command names (`ip link add .. type TYPE`).
    Type,
}

impl Takes {
    /// Returns the placeholder that documentation shows for the operand, or an empty text if the
    /// word takes no operand.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Device => "DEVICE",
            Self::Handle => "HANDLE",
            Self::Class => "CLASS",
            Self::OneOf(_) => "NAME",
            Self::Value(name) => name,
            Self::Type => "TYPE",
        }
    }
}

impl Word {
    /// Returns the word with its operand, as a user writes them.
    #[must_use]
    pub fn usage(&self) -> String {
        format!("{} {}", self.name, self.takes.placeholder()).trim_end().to_owned()
    }
}

const fn flag(name: &'static str, help: &'static str) -> Word {
    Word { name, takes: Takes::Nothing, help }
}

const fn word(name: &'static str, takes: Takes, help: &'static str) -> Word {
    Word { name, takes, help }
}

const fn verb(name: &'static str, about: &'static str, words: &'static [Word], then: Then) -> Verb {
    Verb { name, about, words, then }
}

/// The programs whose commands the daemon executes.
pub const PROGRAMS: &[Program] = &[TC, IP];

/// The tables for the commands of `tc`.
pub const TC: Program = Program {
    name: "tc",
    about: "configures qdiscs, classes and filters of the daemon's devices",
    switches: &[
        flag("-s", "also shows counters (-statistics)"),
        flag("-d", "also shows details (-details)"),
        flag("-j", "prints JSON (-json)"),
        flag("-p", "prints JSON with line breaks (-pretty)"),
        flag("-iec", "prints rates in units of 1024"),
        word(
            "-b",
            Takes::Value("FILE"),
            "carries out the commands of a file, one per line; `-`: standard input (-batch)",
        ),
        flag("-force", "continues a batch after a command that failed"),
        flag("-V", "prints the version (-Version)"),
        flag("-help", "prints the usage"),
    ],
    objects: &[
        Object {
            name: "qdisc",
            about: "queueing disciplines",
            verbs: &[
                verb("add", "adds a qdisc where there is none", QDISC, Then::Qdisc),
                verb(
                    "replace",
                    "replaces a qdisc by another, or changes or adds it",
                    QDISC,
                    Then::Qdisc,
                ),
                verb("change", "changes the options of a qdisc", QDISC, Then::Qdisc),
                verb("link", "puts an existing qdisc in the place of another", QDISC, Then::Qdisc),
                verb("delete", "deletes a qdisc and everything below it", QDISC, Then::Qdisc),
                verb("show", "lists qdiscs", SHOW_QDISC, Then::End),
            ],
        },
        Object {
            name: "class",
            about: "classes of qdiscs that have them",
            verbs: &[
                verb("add", "adds a class", CLASS, Then::Class),
                verb("replace", "changes a class, or adds it", CLASS, Then::Class),
                verb("change", "changes the options of a class", CLASS, Then::Class),
                verb("delete", "deletes a class", CLASS, Then::Class),
                verb("show", "lists the classes of a device", SHOW_CLASS, Then::End),
            ],
        },
        Object {
            name: "filter",
            about: "rules that decide which class a packet belongs to",
            verbs: &[
                verb("add", "adds a filter", FILTER, Then::Filter),
                verb("replace", "changes a filter, or adds it", FILTER, Then::Filter),
                verb("change", "changes the options of a filter", FILTER, Then::Filter),
                verb(
                    "delete",
                    "deletes a filter, all filters of a preference, or all filters",
                    FILTER,
                    Then::Filter,
                ),
                verb("show", "lists the filters of a qdisc or class", FILTER, Then::End),
            ],
        },
    ],
};

const DEV: Word = word("dev", Takes::Device, "the device");
const ROOT: Word = flag("root", "the root, where packets leave the device");
const PARENT: Word = word("parent", Takes::Class, "the parent: a class or a qdisc");
const INGRESS: Word = flag("ingress", "the place where packets come in");
const CLSACT: Word = flag("clsact", "the places where packets come in and where they go out");

const QDISC: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    INGRESS,
    CLSACT,
    word(
        "handle",
        Takes::Handle,
        "handle of the qdisc, hexadecimal; if missing, the next free one from 8001:",
    ),
];

const SHOW_QDISC: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    INGRESS,
    CLSACT,
    word("handle", Takes::Handle, "only the qdisc with this handle"),
    flag("invisible", "also qdiscs that exist by default"),
];

const CLASS: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    word(
        "classid",
        Takes::Class,
        "ID of the class, hexadecimal; its major number is that of the qdisc",
    ),
];

const SHOW_CLASS: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    word("classid", Takes::Class, "only the class with this ID"),
    word("qdisc", Takes::Handle, "only classes of this qdisc"),
];

const FILTER: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    INGRESS,
    flag("egress", "the place where packets go out, of `clsact`"),
    word(
        "pref",
        Takes::Value("NUMBER"),
        "preference: filters with the smallest number are tried first; also `prio`",
    ),
    word(
        "protocol",
        Takes::OneOf(&["all", "ip", "ipv6", "arp", "802.1Q", "802.1ad"]),
        "protocol of the packets that the filter is applied to",
    ),
    word(
        "chain",
        Takes::Value("NUMBER"),
        "chain that the filter belongs to; packets enter at chain 0",
    ),
    word("handle", Takes::Value("FILTERID"), "handle of the filter; its form depends on the kind"),
];

/// The tables for the commands of `ip`.
pub const IP: Program = Program {
    name: "ip",
    about: "makes, changes and shows the daemon's devices",
    switches: &[
        flag("-s", "also shows counters (-statistics)"),
        flag("-d", "also shows details (-details)"),
        flag("-j", "prints JSON (-json)"),
        flag("-p", "prints JSON with line breaks (-pretty)"),
        flag("-br", "one short line for each device (-brief)"),
        flag("-o", "one complete line for each device (-oneline)"),
        word(
            "-b",
            Takes::Value("FILE"),
            "carries out the commands of a file, one per line; `-`: standard input (-batch)",
        ),
        flag("-force", "continues a batch after a command that failed"),
        flag("-V", "prints the version (-Version)"),
        flag("-help", "prints the usage"),
    ],
    objects: &[Object {
        name: "link",
        about: "devices",
        verbs: &[
            verb("add", "makes a device", ADD, Then::Type),
            verb("set", "changes a device", SET, Then::End),
            verb("delete", "deletes a device; both ends of a pair", DEVICE, Then::End),
            verb("show", "lists devices", SHOW, Then::End),
        ],
    }],
};

const MTU: Word =
    word("mtu", Takes::Value("BYTES"), "size of the largest packet, without the link header");
const QLEN: Word = word(
    "txqueuelen",
    Takes::Value("PACKETS"),
    "number of packets that pfifo and similar qdiscs hold by default",
);
const ADDRESS: Word = word("address", Takes::Value("LLADDR"), "Ethernet address of the device");
const UP: Word = flag("up", "the device takes packets");
const DOWN: Word = flag("down", "the device drops packets");

const ADD: &[Word] = &[
    word("dev", Takes::Value("NAME"), "name of the device; the word `dev` may be left out"),
    word("numtxqueues", Takes::Value("NUMBER"), "number of transmit queues; default 1"),
    QLEN,
    MTU,
    ADDRESS,
    word("index", Takes::Value("NUMBER"), "index of the device; default: the next number"),
    UP,
    DOWN,
    word("type", Takes::Type, "type of the device; the options of the type follow"),
];

const SET: &[Word] = &[
    DEV,
    UP,
    DOWN,
    MTU,
    QLEN,
    ADDRESS,
    word("name", Takes::Value("NAME"), "new name of the device"),
];

const DEVICE: &[Word] = &[DEV];

const SHOW: &[Word] = &[
    DEV,
    flag("up", "only devices that are up"),
    word("type", Takes::Type, "only devices of this type"),
];

/// A type of devices, as documentation shows it. [`device_types`] returns all types.
#[derive(Clone, Debug)]
pub struct DeviceType {
    /// Name of the type.
    pub name: &'static str,
    /// Description of the type, one line.
    pub help: &'static str,
    /// Options that may follow the name of the type in a command.
    pub options: Vec<DeviceOption>,
    /// Size of the largest packet without its link header, bytes: the smallest size that a user can
    /// set, the default, and the largest size. Zero means that the size has no such bound.
    pub mtu: [u32; 3],
    /// Whether devices of this type have no qdisc unless one is added.
    pub no_queue: bool,
}

/// An option of a type of devices.
#[derive(Clone, Debug)]
pub struct DeviceOption {
    /// The word that names the option.
    pub key: &'static str,
    /// Placeholder for the operand of the option.
    pub operand: &'static str,
    /// Whether the option is required to make a device of this type.
    pub needed: bool,
    /// Description of the option, one line.
    pub help: &'static str,
}

/// Returns the types of devices that `ip link add` can make.
#[must_use]
pub fn device_types() -> Vec<DeviceType> {
    let option = |option: &super::device::Opt| DeviceOption {
        key: option.key,
        operand: match option.what {
            Operand::Peer => "[name] NAME ..",
            what => what.name(),
        },
        needed: option.needed,
        help: option.help,
    };
    let kind = |kind: &super::device::Type| DeviceType {
        name: kind.name,
        help: kind.help,
        options: kind.options.iter().map(option).collect(),
        mtu: kind.mtu,
        no_queue: kind.no_queue,
    };
    TYPES.iter().map(kind).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Host;

    /// Carries out a command on a host that has one device, whose root qdisc is a `prio`. Returns
    /// the exit status and the error text.
    fn said(line: &str) -> (u8, String) {
        let mut host = Host::new();
        let mut exec = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            host.exec(&words, Path::new("/"))
        };
        for line in ["ip link add d0 type dummy", "tc qdisc add dev d0 root handle 1: prio"] {
            assert_eq!(exec(line).code, 0, "{line}");
        }
        let reply = exec(line);
        (reply.code, reply.err)
    }

    /// Carries out the command `line`. Returns its error text if the command failed because the
    /// word `word` was not understood, and `None` otherwise.
    fn is_unknown(line: &str, word: &str) -> Option<String> {
        let (_, err) = said(line);
        let signs = ["is unknown", "hat is", "no such kind", "unexpected"];
        let unknown =
            err.contains(&format!("\"{word}\"")) && signs.iter().any(|it| err.contains(it));
        unknown.then(|| format!("{line}: {err}"))
    }

    /// Returns an example of a value for this operand.
    fn example(takes: Takes) -> &'static str {
        match takes {
            Takes::Nothing => "",
            Takes::Device => "d0",
            Takes::Handle => "1:",
            Takes::Class => "1:1",
            Takes::OneOf(words) => words[0],
            Takes::Value("LLADDR") => "02:00:00:00:00:01",
            Takes::Value(_) => "1",
            Takes::Type => "dummy",
        }
    }

    #[test]
    fn every_word_of_the_tables_is_understood() {
        let mut bad = Vec::new();
        for Program { name, switches, objects, .. } in PROGRAMS {
            // The daemon does not know `-b`, which reads files: the client handles that option.
            for switch in switches.iter().filter(|switch| switch.name != "-b") {
                let line = format!("{name} {} {} show", switch.name, objects[0].name);
                bad.extend(is_unknown(&line, switch.name));
            }
            let all =
                objects.iter().flat_map(|object| object.verbs.iter().map(move |v| (object, v)));
            for (object, verb) in all {
                for word in verb.words {
                    let dev = if *name == "tc" && word.name != "dev" { "dev d0" } else { "" };
                    let value = example(word.takes);
                    let line = [*name, object.name, verb.name, dev, word.name, value].join(" ");
                    bad.extend(is_unknown(&line, word.name));
                }
            }
        }
        assert!(bad.is_empty(), "{bad:#?}");
    }

    #[test]
    fn a_word_that_nobody_knows_is_told_from_these() {
        for line in [
            "tc frob",
            "tc qdisc frob",
            "tc qdisc show frob",
            "tc qdisc add dev d0 parent 1:1 frob",
            "tc class add dev d0 parent 1:1 frob",
            "tc filter add dev d0 parent 1: frob",
            "ip frob",
            "ip link frob",
        ] {
            assert!(is_unknown(line, "frob").is_some(), "{line}: {:?}", said(line));
        }
    }
}
