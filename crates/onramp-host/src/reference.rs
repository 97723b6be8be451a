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
    /// What follows the words in `words`.
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
    /// One of these words; another word may be allowed, too.
    OneOf(&'static [&'static str]),
    /// A value, such as a number. The string is the placeholder that documentation shows for the
    /// value.
    Value(&'static str),
    /// A type of devices.
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
    /// The options of the type of device.
    Type,
}

impl Takes {
    /// Returns the placeholder that documentation shows for the operand. Empty: the word has no
    /// operand.
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
        flag("-s", "with what was counted (-statistics)"),
        flag("-d", "with what is shown to those who ask for more (-details)"),
        flag("-j", "as JSON (-json)"),
        flag("-p", "JSON with line breaks (-pretty)"),
        flag("-iec", "rates in units of 1024"),
        word(
            "-b",
            Takes::Value("FILE"),
            "the commands of a file, one a line; `-`: standard input (-batch)",
        ),
        flag("-force", "goes on behind commands of a batch that fail"),
        flag("-V", "says its version (-Version)"),
        flag("-help", "says how it is used"),
    ],
    objects: &[
        Object {
            name: "qdisc",
            about: "queueing disciplines",
            verbs: &[
                verb("add", "puts one where none is", QDISC, Then::Qdisc),
                verb(
                    "replace",
                    "puts one in the place of another, or changes it",
                    QDISC,
                    Then::Qdisc,
                ),
                verb("change", "gives one other options", QDISC, Then::Qdisc),
                verb("link", "puts one that there is in the place of another", QDISC, Then::Qdisc),
                verb("delete", "removes one, and what is below it", QDISC, Then::Qdisc),
                verb("show", "lists them", SHOW_QDISC, Then::End),
            ],
        },
        Object {
            name: "class",
            about: "classes of qdiscs that have them",
            verbs: &[
                verb("add", "adds one", CLASS, Then::Class),
                verb("replace", "adds one, or changes it", CLASS, Then::Class),
                verb("change", "gives one other options", CLASS, Then::Class),
                verb("delete", "removes one", CLASS, Then::Class),
                verb("show", "lists those of a device", SHOW_CLASS, Then::End),
            ],
        },
        Object {
            name: "filter",
            about: "what says which class a packet belongs to",
            verbs: &[
                verb("add", "adds one", FILTER, Then::Filter),
                verb("replace", "adds one, or changes it", FILTER, Then::Filter),
                verb("change", "gives one other options", FILTER, Then::Filter),
                verb("delete", "removes one, all of a preference, or all", FILTER, Then::Filter),
                verb("show", "lists those of a qdisc or class", FILTER, Then::End),
            ],
        },
    ],
};

const DEV: Word = word("dev", Takes::Device, "the device");
const ROOT: Word = flag("root", "where packets leave the device");
const PARENT: Word = word("parent", Takes::Class, "the class, or the qdisc, that it is below");
const INGRESS: Word = flag("ingress", "where packets come in");
const CLSACT: Word = flag("clsact", "where packets come in and where they go out");

const QDISC: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    INGRESS,
    CLSACT,
    word("handle", Takes::Handle, "its name, hexadecimal; without one it gets one from 8001: on"),
];

const SHOW_QDISC: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    INGRESS,
    CLSACT,
    word("handle", Takes::Handle, "the one of this name"),
    flag("invisible", "also those that are there by default"),
];

const CLASS: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    word("classid", Takes::Class, "its name, hexadecimal; major is its qdisc's"),
];

const SHOW_CLASS: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    word("classid", Takes::Class, "the one of this name"),
    word("qdisc", Takes::Handle, "those of this qdisc"),
];

const FILTER: &[Word] = &[
    DEV,
    ROOT,
    PARENT,
    INGRESS,
    flag("egress", "where packets go out, of `clsact`"),
    word("pref", Takes::Value("NUMBER"), "its place: the least is asked first; also `prio`"),
    word(
        "protocol",
        Takes::OneOf(&["all", "ip", "ipv6", "arp", "802.1Q", "802.1ad"]),
        "the packets that it is asked about",
    ),
    word("chain", Takes::Value("NUMBER"), "the list it is in; the first is 0"),
    word("handle", Takes::Value("FILTERID"), "its name, by the kind"),
];

/// The tables for the commands of `ip`.
pub const IP: Program = Program {
    name: "ip",
    about: "makes, changes and shows the daemon's devices",
    switches: &[
        flag("-s", "with what was counted (-statistics)"),
        flag("-d", "with what is shown to those who ask for more (-details)"),
        flag("-j", "as JSON (-json)"),
        flag("-p", "JSON with line breaks (-pretty)"),
        flag("-br", "a line for each device (-brief)"),
        flag("-o", "the same, with all that there is (-oneline)"),
        word(
            "-b",
            Takes::Value("FILE"),
            "the commands of a file, one a line; `-`: standard input (-batch)",
        ),
        flag("-force", "goes on behind commands of a batch that fail"),
        flag("-V", "says its version (-Version)"),
        flag("-help", "says how it is used"),
    ],
    objects: &[Object {
        name: "link",
        about: "devices",
        verbs: &[
            verb("add", "makes one", ADD, Then::Type),
            verb("set", "changes one", SET, Then::End),
            verb("delete", "ends one; of a pair, both", DEVICE, Then::End),
            verb("show", "lists them", SHOW, Then::End),
        ],
    }],
};

const MTU: Word = word("mtu", Takes::Value("BYTES"), "its largest packet, without the link header");
const QLEN: Word =
    word("txqueuelen", Takes::Value("PACKETS"), "what pfifo and its like hold by default");
const ADDRESS: Word = word("address", Takes::Value("LLADDR"), "its address of Ethernet");
const UP: Word = flag("up", "it takes packets");
const DOWN: Word = flag("down", "it drops them");

const ADD: &[Word] = &[
    word("dev", Takes::Value("NAME"), "its name; the word may be left out"),
    word("numtxqueues", Takes::Value("NUMBER"), "its transmit queues; else one"),
    QLEN,
    MTU,
    ADDRESS,
    word("index", Takes::Value("NUMBER"), "its number; else the next one"),
    UP,
    DOWN,
    word("type", Takes::Type, "what it is; its options follow"),
];

const SET: &[Word] =
    &[DEV, UP, DOWN, MTU, QLEN, ADDRESS, word("name", Takes::Value("NAME"), "another name")];

const DEVICE: &[Word] = &[DEV];

const SHOW: &[Word] =
    &[DEV, flag("up", "those that take packets"), word("type", Takes::Type, "those of a type")];

/// A type of devices, as documentation shows it. [`device_types`] returns all types.
#[derive(Clone, Debug)]
pub struct DeviceType {
    /// Name of the type.
    pub name: &'static str,
    /// Description of the type, one line.
    pub help: &'static str,
    /// Options that may follow the name of the type in a command.
    pub options: Vec<DeviceOption>,
    /// Size of the largest packet without its link header, bytes: the minimum, the default and the
    /// maximum. Zero means that there is no such bound.
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
    /// Whether a device of the type cannot be made without the option.
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
            Operand::Address => "ADDRESS:PORT",
            Operand::Peer => "[name] NAME ..",
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

    /// Carries out a command on a host that has one device with a tree of qdiscs. Returns the exit
    /// status and the error text.
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
        let signs = ["is unknown", "hat is", "no such kind"];
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
            // This option reads files, so the client handles it, and not the daemon.
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
