//! The lines that make a filter again.
//!
//! Their words are those that the user wrote. What the user left to be assigned (the handle, the
//! numbers of actions) is added, so that the new filter gets the same.

use super::read::FilterSpec;
use super::text::NUMBER;
use super::words::SHARED;
use super::{Matcher, protocol, words};

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
