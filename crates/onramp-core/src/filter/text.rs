//! The words of a filter as a line that makes the filter again has them.
//!
//! The words are those that the user wrote, so that they stay readable. What the user left to be
//! assigned (the handle, the numbers of actions) is added, so that the new filter gets the same.

use std::ops::Range;
use std::sync::Arc;

use super::action::Action;
use super::read::FilterSpec;
use super::reader::Reader;
use super::table::SHARED;
use super::{Matcher, protocol, words};

/// Stands in the options of a filter where an action's number, which the user did not give, is to
/// be written.
const NUMBER: &str = "\u{1}";

/// Under which chain, preference and protocol a line names a filter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) chain: u32,
    pub(super) pref: u16,
    pub(super) protocol: u16,
}

impl Home {
    /// Returns the words of a line that name the chain, the preference and the protocol.
    pub(super) fn words(self) -> String {
        let protocol = protocol::word(self.protocol);
        format!("protocol {protocol} pref {} chain {}", self.pref, self.chain)
    }
}

/// A line that makes a filter again: the verb, and the words after the qdisc or class.
pub(crate) type Line = (&'static str, String);

/// The options of a filter, as a user wrote them: the kind, and then first those options that a
/// later change of the filter keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    all: Arc<str>,
    /// Length of the part that a change keeps, with the kind. A change of a filter that keeps
    /// nothing replaces all options, so the length does not matter then.
    kept: usize,
}

/// Which words of a line are options that a later change keeps, and which are to be left out, by
/// their positions.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) kept: Vec<Range<usize>>,
    pub(super) left_out: Vec<Range<usize>>,
}

impl Text {
    /// Returns the text of a filter of this kind that has no options.
    pub(super) fn bare(kind: &str) -> Self {
        Self { all: kind.into(), kept: kind.len() }
    }

    /// Returns the text of the words from the position `from` on, which describe these actions.
    pub(super) fn of(
        kind: &str,
        words: &Reader<'_>,
        from: usize,
        marks: &Marks,
        actions: &[Action],
    ) -> Self {
        let has = |ranges: &[Range<usize>], at| ranges.iter().any(|range| range.contains(&at));
        let (mut kept, mut rest) = (kind.to_owned(), String::new());
        for at in from..=words.len() {
            if actions.iter().any(|action| action.number_at == Some(at)) {
                rest += &format!(" {NUMBER}");
            }
            if at == words.len() || has(&marks.left_out, at) {
                continue;
            }
            let part = if has(&marks.kept, at) { &mut kept } else { &mut rest };
            *part += " ";
            *part += &words.again(at);
        }
        Self { kept: kept.len(), all: (kept + &rest).into() }
    }

    /// Returns this text, which a line gives that changes a filter, with `kept`, the kind and the
    /// options that the filter then has, in place of those that the line gives. Adds `indev` if the
    /// filter has one and the line does not give it.
    pub(super) fn with_kept(&self, kept: &str, indev: Option<&str>) -> Self {
        let mut all = format!("{kept}{}", &self.all[self.kept..]);
        if let Some(name) = indev
            && !all.split(' ').any(|word| word == "indev")
        {
            all += &format!(" indev {name}");
        }
        Self { all: all.into(), kept: kept.len() }
    }

    pub(super) fn all(&self) -> &str {
        &self.all
    }

    /// Returns the kind and the options that a change keeps.
    pub(super) fn kept(&self) -> &str {
        &self.all[..self.kept]
    }
}

/// Returns the options `text` with `link` as the only link.
pub(super) fn with_link(text: &str, link: u32) -> String {
    let mut words = text.split(' ');
    let mut kept = String::new();
    while let Some(word) = words.next() {
        if word == "link" {
            words.next();
        } else {
            kept += word;
            kept += " ";
        }
    }
    format!("{kept}link {:x}:", link >> words::TABLE_BITS)
}

impl FilterSpec {
    /// Returns the lines that make this filter again under the name `home`. `number` says whether
    /// the first hash table of a preference of `u32` needs its number to be given.
    pub(super) fn lines(&self, home: Home, number: bool) -> Vec<Line> {
        let whole = |handle: &str, text: &str| format!("{} {handle}{text}", home.words());
        let text = self.with_numbers(self.text.all());
        let Matcher::U32(node) = &self.matcher else {
            return vec![("add", whole(&self.handle_word(number), &text))];
        };
        let in_table = |text: &str| match (self.chain, text.strip_prefix("u32")) {
            (SHARED, Some(rest)) => format!("u32 ht {} {}", self.bucket_name(), rest.trim_start()),
            _ => text.to_owned(),
        };
        let handle = self.handle_word(number);
        if node.is_terminal() == (self.class.is_some() || !self.actions.is_empty()) {
            return vec![("add", whole(&handle, &in_table(&text)))];
        }
        // A change has added the class and the actions to a node that had none, or the other way
        // round, and the node remembers which.
        let class = if node.is_terminal() { " classid :1" } else { "" };
        let first = format!("{}{class}", in_table(self.text.kept()));
        let name = format!("handle {}{:x} ", self.bucket_name(), self.handle & words::NODE);
        vec![("add", whole(&handle, &first)), ("change", whole(&name, &text))]
    }

    /// Returns the option `handle` that gives the filter its handle again.
    fn handle_word(&self, number: bool) -> String {
        match (&self.matcher, self.handle) {
            (Matcher::Mark(mark, u32::MAX), _) => format!("handle {mark:#x} "),
            (Matcher::Mark(mark, mask), _) => format!("handle {mark:#x}/{mask:#x} "),
            (Matcher::MarkIsClass(_), _) => String::new(),
            (Matcher::U32(_), handle) => format!("handle ::{:x} ", handle & words::NODE),
            (Matcher::Table(_), _) if self.chain != SHARED && !number => String::new(),
            (Matcher::Table(_), handle) => format!("handle {:x}: ", handle >> words::TABLE_BITS),
            (_, handle) => format!("handle {handle:#x} "),
        }
    }

    /// Returns the name of the table and bucket of this node: `2:3:`.
    fn bucket_name(&self) -> String {
        let (table, bucket) = (self.handle >> words::TABLE_BITS, self.handle >> 12 & 0xff);
        format!("{table:x}:{bucket:x}:")
    }

    /// Returns the options `text` with the numbers that the actions have, and with the present name
    /// of the device after `indev`.
    fn with_numbers(&self, text: &str) -> String {
        let mut numbers = self.actions.iter().filter(|action| action.number_at.is_some());
        let mut is_name = false;
        let words = text.split(' ').map(|word| {
            let now = self.indev.as_deref().filter(|_| is_name);
            is_name = !is_name && word == "indev";
            match word {
                NUMBER => {
                    numbers.next().map_or_else(String::new, |it| format!("index {}", it.index))
                }
                word => now.unwrap_or(word).to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }
}
