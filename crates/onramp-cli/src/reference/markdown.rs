//! Writes the tables of `docs/tc-reference.md`.

use std::fmt::Write as _;

use onramp_core::filter::reference::{ACTIONS, COMMON, Entry, FILTERS, Opt};
use onramp_core::params::Param;
use onramp_core::qdisc::Kind;
use onramp_host::reference::{DeviceOption, Object, PROGRAMS, Program, Word, device_types};

use super::{aliases, class_params, kinds, on_change, range, shown};

/// The HTML comments in `docs/tc-reference.md` between which the generated tables stand.
const BEGIN: &str = "<!-- begin tables -->\n";
const END: &str = "<!-- end tables -->\n";

/// Returns the page `page` with newly generated tables; `None` if it lacks the marks between which
/// the tables stand.
pub(super) fn renew(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{after}", tables()))
}

/// Returns all tables.
fn tables() -> String {
    let mut text = String::new();
    for program in PROGRAMS {
        of_program(&mut text, program);
    }
    of_devices(&mut text);
    text.push_str("\n## Kinds of qdiscs\n");
    kinds().into_iter().for_each(|kind| of_kind(&mut text, kind));
    text.push_str("\n## Kinds of filters\n\nOptions of all kinds except `flow`:\n");
    of_options(&mut text, COMMON);
    FILTERS.iter().for_each(|entry| of_entry(&mut text, entry));
    text.push_str("\n## Actions\n");
    ACTIONS.iter().for_each(|entry| of_entry(&mut text, entry));
    text.push('\n');
    text
}

/// Returns the text of a table cell, with `|`, the separator of cells, escaped.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

fn row(text: &mut String, cells: &[&str]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

fn of_words(text: &mut String, words: &[Word]) {
    text.push_str("\n| word | |\n|---|---|\n");
    for word in words {
        row(text, &[&code(&word.usage()), &cell(word.help)]);
    }
}

fn of_program(text: &mut String, program: &Program) {
    let _ = writeln!(text, "\n## Words of `{}`\n\nOptions in front of the object:", program.name);
    of_words(text, program.switches);
    for object in program.objects {
        of_object(text, program.name, object);
    }
}

fn of_object(text: &mut String, program: &str, object: &Object) {
    let _ = writeln!(text, "\n### `{program} {}`: {}", object.name, object.about);
    let mut done: Vec<&[Word]> = Vec::new();
    for verb in object.verbs {
        // Several verbs of an object may take the same words after them. Such verbs share a table.
        if done.contains(&verb.words) {
            continue;
        }
        done.push(verb.words);
        let alike = object.verbs.iter().filter(|other| other.words == verb.words);
        let names: Vec<String> =
            alike.map(|verb| format!("`{}`: {}", verb.name, verb.about)).collect();
        let _ = writeln!(text, "\n{}", names.join(";\n"));
        of_words(text, verb.words);
    }
}

fn of_devices(text: &mut String) {
    text.push_str(
        "\n## Types of devices\n\n| type | | mtu | qdisc by default |\n|---|---|---|---|\n",
    );
    for kind in device_types() {
        let [least, usual, most] = kind.mtu;
        let most = if most == 0 { "any".to_owned() } else { most.to_string() };
        let mtu = format!("{usual} ({least} to {most})");
        let qdisc = if kind.no_queue { "`noqueue`" } else { "`pfifo_fast`" };
        row(text, &[&code(kind.name), &cell(kind.help), &mtu, qdisc]);
    }
    text.push_str("\n| type | option | |\n|---|---|---|\n");
    for kind in device_types() {
        for DeviceOption { key, operand, needed, help } in kind.options {
            let needed = if needed { " (needed)" } else { "" };
            let usage = code(&format!("{key} {operand}"));
            row(text, &[&code(kind.name), &usage, &format!("{}{needed}", cell(help))]);
        }
    }
}

fn of_params(text: &mut String, params: &[Param]) {
    text.push_str("\n| option | | default | change |\n|---|---|---|---|\n");
    for param in params {
        let default = param.without().map_or_else(|| "needed".to_owned(), |default| code(&default));
        let mut help = format!("{}{}", cell(param.help), aliases(param));
        if let Some(range) = range(param) {
            let _ = write!(help, ": {}", cell(&range));
        }
        row(text, &[&code(&param.usage()), &help, &default, on_change(param)]);
    }
}

fn of_kind(text: &mut String, kind: &Kind) {
    let _ = writeln!(text, "\n### `{}`: {}", kind.id, kind.about);
    if kind.params.is_empty() {
        text.push_str("\nNo options.\n");
    } else {
        of_params(text, kind.params);
    }
    if let Some(params) = class_params(kind) {
        let _ = writeln!(text, "\nOptions of its classes:");
        of_params(text, params);
    }
    let Some(shown) = shown::look(kind.id).filter(|shown| !shown.text.is_empty()) else { return };
    let _ = writeln!(text, "\nIf it was added without options, `tc -d qdisc show` prints:");
    let _ = writeln!(text, "\n```text\n{}\n```", shown.text);
    if !shown.keys.is_empty() {
        let keys: Vec<String> = shown.keys.iter().map(|key| code(key)).collect();
        text.push_str("\nKeys in JSON:\n");
        wrap(text, &keys);
    }
}

/// Appends words to the page, in lines of at most 100 columns.
fn wrap(text: &mut String, words: &[String]) {
    let mut line = String::new();
    for (place, word) in words.iter().enumerate() {
        let end = if place + 1 == words.len() { "." } else { "," };
        if line.len() + word.len() + 2 > 100 {
            let _ = writeln!(text, "{}", line.trim_end());
            line.clear();
        }
        let _ = write!(line, "{word}{end} ");
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn of_options(text: &mut String, options: &[Opt]) {
    text.push_str("\n| option | |\n|---|---|\n");
    for option in options {
        row(text, &[&code(&option.usage()), &cell(option.help)]);
    }
}

fn of_entry(text: &mut String, entry: &Entry) {
    let _ = writeln!(text, "\n### `{}`: {}", entry.id, entry.about);
    if !entry.options.is_empty() {
        of_options(text, entry.options);
    }
}
