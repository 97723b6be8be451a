//! The help texts of `tc`.

use onramp_core::filter::reference::FILTERS;
use onramp_core::qdisc::{ClassKind, Kind};
use onramp_core::{Fault, Kinds, Setup};

use super::{said, usage};
use crate::Reply;

/// The output of `tc help`.
pub(super) const TC: &str = "\
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

/// Returns the help text of an object, with the kinds that it has.
pub(super) fn of(object: &str, kinds: &Kinds) -> String {
    let classful = |kind: &&'static Kind| matches!(kind.classes, ClassKind::Added { .. });
    match object {
        "qdisc" => with_kinds(QDISC_HELP, "QDISC_KIND", kinds.iter().map(|kind| kind.id)),
        "class" => {
            let classful = kinds.iter().filter(classful).map(|kind| kind.id);
            with_kinds(CLASS_HELP, "QDISC_KIND", classful)
        }
        _ => with_kinds(FILTER_HELP, "FILTER_TYPE", FILTERS.iter().map(|entry| entry.id)),
    }
}

/// Returns a help text, followed by the kinds that may stand in place of `word`.
fn with_kinds<'a>(text: &str, word: &str, kinds: impl Iterator<Item = &'a str>) -> String {
    const COLUMNS: usize = 80;
    const INDENT: &str = "       ";
    let mut lines = vec![INDENT.to_owned()];
    for kind in kinds {
        let line = lines.last_mut().filter(|line| line.len() + kind.len() + 3 <= COLUMNS);
        match line {
            Some(line) => *line += &format!(" {kind} |"),
            None => lines.push(format!("{INDENT} {kind} |")),
        }
    }
    format!("{text}\n{word} :=\n{}\n", lines.join("\n").trim_end_matches(" |"))
}

/// Returns the help text of a kind of qdisc, class or filter, for a command whose last word is
/// `help`. `None` if a word of the command is wrong, such as the name of a kind that is not among
/// `kinds`: then the command is refused as it would be without `help`.
pub(super) fn of_kind(object: &str, words: &[&str], kinds: &Kinds) -> Option<Reply> {
    let help = match object {
        "filter" => FILTERS.iter().find(|entry| words.contains(&entry.id)).map(|it| it.help()),
        _ => words.iter().rev().find_map(|word| kinds.find(word)).map(|kind| match object {
            "class" => kind.class_help(),
            _ => kind.help(),
        }),
    };
    match help {
        Some(help) => Some(said(1, help)),
        None if has_wrong_word(object, words, kinds) => None,
        None => Some(usage(&of(object, kinds))),
    }
}

/// Whether a word in front of the word `help`, with which a command ends, is wrong. If a command
/// names no kind, its first wrong word is `help` itself.
fn has_wrong_word(object: &str, words: &[&str], kinds: &Kinds) -> bool {
    let line = format!("{object} add {}", words.join(" "));
    let error = Setup::with_kinds(kinds.clone()).apply(&line).err();
    let is_read = |fault| !matches!(fault, Fault::Kernel(..));
    error.is_some_and(|it| is_read(it.fault) && !["", "help"].contains(&&*it.value))
}
