//! Writes the manual pages.

mod text;

use std::io;

use clap::CommandFactory as _;
use clap_mangen::Man;
use onramp_core::filter::reference::{ACTIONS, COMMON, Entry, FILTERS};
use onramp_core::params::Param;
use onramp_host::reference::{IP, Object, Program, TC, Word, device_types};
use roff::{Inline, Roff, bold, italic, roman};

use super::{aliases, class_params, kinds, range};

/// A manual page: the name of its file, and its content.
pub(crate) type Page = (String, Vec<u8>);

/// Returns all manual pages.
///
/// # Errors
///
/// An error if the pages of the program could not be written.
pub(crate) fn pages() -> io::Result<Vec<Page>> {
    Ok(vec![
        ("onramp.1".into(), program()?),
        ("onramp-daemon.8".into(), daemon()?),
        ("onramp-ip.8".into(), remote(&IP).into_bytes()),
        ("onramp-tc.8".into(), remote(&TC).into_bytes()),
    ])
}

/// Returns the beginning of a manual page. It contains no date, so that the page changes only if
/// its text changes.
fn title(name: &str, section: &str) -> String {
    format!(".TH {name} {section} \"\" \"onramp {}\" Onramp\n", env!("CARGO_PKG_VERSION"))
}

/// Returns the first part of a command's manual page, which clap writes: from the name of the
/// command to its options.
fn of_clap(command: clap::Command, section: &str) -> io::Result<Vec<u8>> {
    let mut page = title(command.get_name(), section).into_bytes();
    let man = Man::new(command);
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    Ok(page)
}

/// Returns the page `onramp(1)`. Most commands have no page of their own, only `--help`.
fn program() -> io::Result<Vec<u8>> {
    let command = crate::Cli::command().name("onramp");
    let mut end = Roff::new();
    end.control("SH", ["COMMANDS"]);
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        item(&mut end, sub.get_name(), "", &format!("{about}."));
    }
    sections(&mut end, text::PROGRAM);
    see_also(&mut end, &["onramp-daemon(8)", "onramp-ip(8)", "onramp-tc(8)"]);
    let mut page = of_clap(command, "1")?;
    page.extend(end.render().into_bytes());
    Ok(page)
}

/// Returns the page `onramp-daemon(8)`.
fn daemon() -> io::Result<Vec<u8>> {
    let command = crate::Cli::command();
    let daemon = command.find_subcommand("daemon").cloned().unwrap_or_default();
    let mut page = of_clap(daemon.name("onramp-daemon").bin_name("onramp daemon"), "8")?;
    let mut end = Roff::new();
    sections(&mut end, text::DAEMON);
    see_also(&mut end, &["onramp(1)", "onramp-ip(8)", "onramp-tc(8)"]);
    page.extend(end.render().into_bytes());
    Ok(page)
}

/// Returns the page `onramp-tc(8)` or `onramp-ip(8)`.
fn remote(program: &Program) -> String {
    let mut page = Roff::new();
    let name = format!("onramp-{}", program.name);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {}", program.about))]);
    synopsis(&mut page, program);
    page.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut page, if program.name == "tc" { text::TC } else { text::IP });
    page.control("SH", ["OPTIONS"]);
    program.switches.iter().for_each(|word| of_word(&mut page, word));
    page.control("SH", ["COMMANDS"]);
    program.objects.iter().for_each(|object| of_object(&mut page, object));
    if program.name == "tc" {
        of_tables(&mut page);
    } else {
        of_types(&mut page);
    }
    sections(&mut page, text::REMOTE);
    let examples = if program.name == "tc" { text::TC_EXAMPLES } else { text::IP_EXAMPLES };
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    for line in examples {
        page.text([roman(*line)]);
    }
    page.control("fi", []);
    let other = if program.name == "tc" { "onramp-ip(8)" } else { "onramp-tc(8)" };
    see_also(&mut page, &["onramp(1)", "onramp-daemon(8)", other]);
    title(&name, "8") + &page.render()
}

fn synopsis(page: &mut Roff, program: &Program) {
    page.control("SH", ["SYNOPSIS"]);
    for object in program.objects {
        let verbs: Vec<&str> = object.verbs.iter().map(|verb| verb.name).collect();
        page.text([
            bold(format!("onramp {}", program.name)),
            roman(" [ "),
            italic("OPTIONS"),
            roman(" ] "),
            bold(object.name),
            roman(format!(" {{ {} }} ", verbs.join(" | "))),
            italic("..."),
        ]);
        page.control("br", []);
    }
    page.text([
        bold(format!("onramp {} -batch", program.name)),
        roman(" "),
        italic("FILE"),
        roman(" [ -force ]"),
    ]);
}

/// Writes one item of a list: a word in bold, the operand that follows the word, and what the word
/// means.
fn item(page: &mut Roff, key: &str, operand: &str, help: &str) {
    page.control("TP", []);
    let mut head = vec![bold(key)];
    if !operand.is_empty() {
        head.push(italic(format!(" {operand}")));
    }
    page.text(head);
    page.text([roman(help)]);
}

fn of_word(page: &mut Roff, word: &Word) {
    item(page, word.name, word.takes.placeholder(), word.help);
}

fn of_object(page: &mut Roff, object: &Object) {
    page.control("SS", [format!("{}: {}", object.name, object.about).as_str()]);
    let mut done: Vec<&[Word]> = Vec::new();
    for verb in object.verbs {
        item(page, &format!("{} {}", object.name, verb.name), "", verb.about);
    }
    for verb in object.verbs {
        if done.contains(&verb.words) {
            continue;
        }
        done.push(verb.words);
        let alike = object.verbs.iter().filter(|other| other.words == verb.words);
        let names: Vec<&str> = alike.map(|verb| verb.name).collect();
        page.control("PP", []);
        page.text([roman(format!("Words of {}:", names.join(", ")))]);
        page.control("RS", []);
        verb.words.iter().for_each(|word| of_word(page, word));
        page.control("RE", []);
    }
}

fn of_tables(page: &mut Roff) {
    page.control("SH", ["QDISCS"]);
    for kind in kinds() {
        page.control("SS", [format!("{}: {}", kind.id, kind.about).as_str()]);
        if kind.params.is_empty() {
            page.text([roman("No options.")]);
        }
        kind.params.iter().for_each(|param| of_param(page, param));
        if let Some(params) = class_params(kind) {
            page.control("PP", []);
            page.text([roman("Options of its classes:")]);
            page.control("RS", []);
            params.iter().for_each(|param| of_param(page, param));
            page.control("RE", []);
        }
    }
    page.control("SH", ["FILTERS"]);
    page.text([roman("Options of all kinds except flow:")]);
    COMMON.iter().for_each(|option| item(page, option.key, option.operand, option.help));
    FILTERS.iter().for_each(|entry| of_entry(page, entry));
    page.control("SH", ["ACTIONS"]);
    ACTIONS.iter().for_each(|entry| of_entry(page, entry));
}

fn of_param(page: &mut Roff, param: &Param) {
    let usage = param.usage();
    let (key, operand) = match param.takes_value() {
        true => usage.split_once(' ').unwrap_or((&usage, "")),
        false => (usage.as_str(), ""),
    };
    let range = range(param).map(|range| format!(": {range}")).unwrap_or_default();
    let default = match param.without() {
        Some(default) => format!("default: {default}"),
        None => "needed".to_owned(),
    };
    let help = format!("{}{}{range} ({default})", param.help, aliases(param));
    item(page, key, operand, &help);
}

fn of_entry(page: &mut Roff, entry: &Entry) {
    page.control("SS", [entry.id]);
    page.text([roman(entry.about)]);
    entry.options.iter().for_each(|option| item(page, option.key, option.operand, option.help));
}

fn of_types(page: &mut Roff) {
    page.control("SH", ["TYPES"]);
    for kind in device_types() {
        page.control("SS", [kind.name]);
        let [least, usual, most] = kind.mtu;
        let most = if most == 0 { "any".to_owned() } else { most.to_string() };
        page.text([roman(format!("{}; mtu {usual} ({least} to {most})", kind.help))]);
        for option in kind.options {
            let needed = if option.needed { " (needed)" } else { "" };
            item(page, option.key, option.operand, &format!("{}{needed}", option.help));
        }
    }
}

/// Writes a text that consists of several paragraphs.
fn paragraphs(page: &mut Roff, text: &[&str]) {
    for (place, part) in text.iter().enumerate() {
        if place > 0 {
            page.control("PP", []);
        }
        page.text([roman(*part)]);
    }
}

fn sections(page: &mut Roff, sections: &[text::Section]) {
    for (title, parts) in sections {
        page.control("SH", [*title]);
        for (place, (key, help)) in parts.iter().enumerate() {
            if !key.is_empty() {
                item(page, key, "", help);
                continue;
            }
            if place > 0 {
                page.control("PP", []);
            }
            page.text([roman(*help)]);
        }
    }
}

fn see_also(page: &mut Roff, pages: &[&str]) {
    page.control("SH", ["SEE ALSO"]);
    let mut names: Vec<Inline> = Vec::new();
    for (place, name) in pages.iter().enumerate() {
        let (name, section) = name.split_at(name.find('(').unwrap_or(name.len()));
        let end = if place + 1 == pages.len() { "" } else { ", " };
        names.extend([bold(name), roman(format!("{section}{end}"))]);
    }
    page.text(names);
}
