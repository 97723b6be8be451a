//! Tests the descriptions of trees that `tc` commands build: compares the answer to each command,
//! and the listings afterwards, with those of Linux.

mod class_zero;
mod more;
mod settle;
mod words;

use super::*;
use crate::base::show::{Out, Style};
use crate::tc::{Listed, Query};
use crate::tree::Tree;

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

fn with_facts(facts: Facts) -> Setup {
    let mut setup = Setup::default();
    setup.of_device("e", facts);
    setup
}

fn told(setup: &mut Setup, line: &str) -> String {
    setup.apply(line).expect_err(line).to_string()
}

/// Commands that a program generated, and the answers of `tc` 6.1 on Linux 7.2. A line `= QUEUES`
/// replaces the device by a new one that has this many transmit queues, and is up unless the line
/// also says `down`. A line `> ` is a command. The lines after a command are either its exit status
/// with the kernel's text, or the lines of a listing, each between two bars.
const ANSWERS: &str = include_str!("tests/answers.txt");

/// Creates the description of a device to which no command was applied. Its default root is a
/// `noqueue`.
fn device(words: &str) -> Setup {
    let (queues, down) = words.split_once(' ').map_or((words, false), |(n, _)| (n, true));
    let mut setup = Setup::default();
    let facts = Facts {
        fallback: "noqueue".parse().ok(),
        queues: queues.parse().expect(words),
        txqueuelen: 1_000,
        mtu: 1_514,
        dormant: down,
        ports: false,
    };
    setup.of_device("e", facts);
    setup
}

/// Returns the listing that `tc` prints for `words`: flags, an object, `show dev e`, and what to
/// list.
fn listing(setup: &Setup, words: &str) -> String {
    let mut style = Style::default();
    let mut words = words.split(' ').peekable();
    while let Some(flag) = words.next_if(|word| word.starts_with('-')) {
        match flag {
            "-s" => style.stats = true,
            "-j" => style.json = true,
            _ => style.pretty = true,
        }
    }
    let object = words.next().expect("an object");
    let mut query = Query::default();
    let mut words = words.skip("show dev e".split(' ').count());
    while let Some(word) = words.next() {
        let mut class = || cmd::parse_classid(words.next().expect("a class"));
        match word {
            "invisible" => query.invisible = true,
            "root" => query.parent = Some(cmd::ROOT),
            "ingress" => query.parent = Some(cmd::INGRESS),
            "parent" => query.parent = class(),
            "classid" => query.handle = class(),
            _ => query.handle = class().map(|number| number >> 16),
        }
    }
    let mut out = Out::new(style);
    let tree = Tree::of(setup, setup.facts.mtu, 0);
    let views = tree.map(|mut tree| tree.views()).unwrap_or_default();
    let listed = Listed::new(None, setup, setup.facts.mtu, &views);
    match object {
        "qdisc" => listed.qdiscs(query, &mut out),
        _ => listed.classes(query, &mut out),
    }
    out.finish()
}

/// Takes from `lines` those at the beginning that stand between bars (the lines of one listing),
/// and returns them without the bars.
fn barred<'t>(lines: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>) -> String {
    let mut text = String::new();
    while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
        text.push_str(line.strip_prefix('|').and_then(|l| l.strip_suffix('|')).expect(line));
        text.push('\n');
    }
    text
}

#[test]
fn it_is_as_linux_has_it() {
    let mut lines = ANSWERS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).peekable();
    let (mut setup, mut block, mut found) = (Setup::default(), "", Vec::new());
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("= ") {
            setup = device(words);
            block = line;
            continue;
        }
        let typed = line.strip_prefix("> ").expect(line);
        if typed.contains(" show ") {
            let (shown, expected) = (listing(&setup, typed), barred(&mut lines));
            if shown != expected {
                found.push(format!("{block}: {typed}\nhere:\n{shown}Linux:\n{expected}"));
            }
            continue;
        }
        let expected = lines.next_if(|line| !line.starts_with(['>', '=']));
        let before = setup.lines();
        let answer = setup.apply(typed).err().map(|error| {
            let linux = error.fault.kernel_text().unwrap_or_default();
            format!("{} {linux}", error.fault.code()).trim_end().to_owned()
        });
        if answer.as_deref() != expected {
            found.push(format!("{block}: {typed}\nhere: {answer:?}\nLinux: {expected:?}"));
        }
        if answer.is_some() {
            assert_eq!(setup.lines(), before, "{typed}: nothing has changed");
        }
    }
    assert!(found.is_empty(), "{} differ:\n{}", found.len(), found.join("\n\n"));
}
