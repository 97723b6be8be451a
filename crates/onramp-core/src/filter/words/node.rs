//! Nodes (the filters of a `u32` hash table): what a node compares, and to which table it leads.

use super::super::Matcher;
use super::super::reader::{Reader, hexadecimal, is};
use super::{Selector, offset};
use crate::base::ConfigError;
use crate::base::error::Errno;

/// The bits of a `u32` handle that name a table.
pub(in crate::filter) const TABLE: u32 = 0xfff0_0000;
/// Stands in place of a chain where the tables are that all `u32` filters of a qdisc or class
/// share. No chain has this number, so no packet meets these filters by their preference.
pub(in crate::filter) const SHARED: u32 = u32::MAX;
/// Number of handle bits to the right of the bits that name a table.
pub(in crate::filter) const TABLE_BITS: u32 = 20;
/// The bits of a `u32` handle that name a node.
pub(in crate::filter) const NODE: u32 = 0xfff;
/// A node's rank contains the node's handle without the bits of the table and, in this many low
/// bits, how many nodes had been created before.
pub(in crate::filter) const COUNT_BITS: u32 = 40;

#[derive(Clone, Debug, Default)]
pub(in crate::filter) struct Node {
    pub(super) selector: Selector,
    /// The hash table and the bucket into which the node is to be put, if the line gives them.
    pub(in crate::filter) table: Option<u32>,
    /// Whether the node has a class or actions, so that a match decides about the packet.
    pub(super) terminal: bool,
    /// The hash table in which the search goes on if the node matches.
    pub(in crate::filter) link: Option<u32>,
    pub(super) hash: Hash,
    pub(super) moves: Moves,
}

/// How to choose a bucket of the linked table: by the number at an offset in the packet, under a
/// mask.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hash {
    pub(super) mask: u32,
    pub(super) offset: i32,
}

/// By how many bytes to move on in the packet before the linked table is searched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moves {
    pub(super) fixed: bool,
    pub(super) plus: u16,
    /// Whether the search also moves on by a number from the packet: the 16 bits at the offset
    /// `at`, under `mask`, shifted to the right by `shift`.
    pub(super) variable: bool,
    pub(super) at: i32,
    pub(super) mask: u16,
    pub(super) shift: u32,
    /// Whether all keys of the linked table count from the new position. Otherwise, only keys with
    /// `nexthdr` do.
    pub(super) eat: bool,
}

/// The options of a `u32` filter while a line is read.
#[derive(Debug, Default)]
pub(in crate::filter) struct Line {
    node: Node,
    divisor: Option<u32>,
    order: Option<u32>,
    any: bool,
}

impl Line {
    /// Reads the value of the option `word`. Returns false if there is no such option.
    pub(in crate::filter) fn read(
        &mut self,
        word: &str,
        words: &mut Reader<'_>,
    ) -> Result<bool, ConfigError> {
        let (node, table) = (&mut self.node, "a table such as 1: or 1:5:, hexadecimal");
        match word {
            word if is(word, "match") => node.selector.read(words)?,
            "divisor" => self.divisor = Some(read_divisor(words)?),
            "order" => self.order = Some(words.number(word, NODE)?),
            "link" => {
                let read = |word: &str| read_handle(word).filter(|table| table & !TABLE == 0);
                node.link = Some(words.value(word, "a table such as 1:, hexadecimal", read)?);
            }
            "ht" => {
                let read = |word: &str| read_handle(word).filter(|table| table & NODE == 0);
                node.table = Some(words.value(word, table, read)?);
            }
            "sample" => {
                let mut sample = Selector::default();
                sample.read(words)?;
                let divisor = if words.take("divisor") { read_divisor(words)? } else { 256 };
                let key = sample.keys.first().copied();
                let bucket = key.map_or(0, |key| fold(key.value, key.mask)) % divisor;
                node.table = Some(node.table.unwrap_or(0) & TABLE | bucket << 12);
            }
            "hashkey" => node.hash.read(words)?,
            "offset" => node.moves.read(words)?,
            _ => return Ok(false),
        }
        self.any = true;
        Ok(true)
    }

    /// Returns the node number that the option `order` gives, or `None` if none is given.
    pub(in crate::filter) fn order(&self) -> Option<u32> {
        self.order.filter(|order| *order > 0)
    }

    /// Returns the table or node that the options describe. `handle` is the handle of the filter;
    /// `acts` says whether the filter has a class or actions. If `before`, a node to be changed, is
    /// given, takes only the option `link` and keeps the rest of `before`.
    pub(in crate::filter) fn build(
        &mut self,
        words: &Reader<'_>,
        handle: u32,
        acts: bool,
        before: Option<&Node>,
    ) -> Result<Matcher, ConfigError> {
        let refused =
            |key, why: &str, said| Err(words.wrong(key, "", why).kernel(Errno::Invalid, said));
        if let Some(divisor) = self.divisor {
            if handle & NODE != 0 {
                let said = "cls_u32: Divisor can only be used on a hash table";
                return refused(
                    "divisor",
                    "it needs the handle of a table, but the handle names a node",
                    said,
                );
            }
            return Ok(Matcher::Table(divisor));
        }
        let mut node = std::mem::take(&mut self.node);
        if let Some(before) = before {
            let link = node.link.or(before.link);
            node = Node { link, table: None, ..before.clone() };
        } else if node.selector.is_empty() && (self.any || acts) {
            let said = "cls_u32: Selector not specified";
            return refused("match", "expected at least one, such as match u32 0 0", said);
        } else if node.selector.is_empty() {
            return Ok(Matcher::Root);
        } else {
            node.terminal = acts;
        }
        Ok(Matcher::U32(Box::new(node)))
    }
}

fn read_divisor(words: &mut Reader<'_>) -> Result<u32, ConfigError> {
    let read = |word: &str| {
        let divisor = super::super::reader::count(word, 256)?;
        divisor.is_power_of_two().then_some(divisor)
    };
    words.value("divisor", "a power of two, 1 to 256", read)
}

/// Returns the bits of `value` under the mask, shifted to the right end.
pub(super) fn fold(value: u32, mask: u32) -> u32 {
    (value & mask).checked_shr(mask.trailing_zeros()).unwrap_or(0)
}

impl Hash {
    /// Reads the options of `hashkey`: `mask MASK at OFFSET`.
    fn read(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        loop {
            if words.take("mask") {
                self.mask = words.hex("mask", u32::MAX)?;
            } else if words.take("at") {
                self.offset = words.value("at", "an offset, -65535 to 65535", offset)?;
            } else {
                return Ok(());
            }
        }
    }
}

impl Moves {
    /// Reads the options of `offset`: `plus NUMBER`, `at OFFSET mask MASK shift NUMBER`, `eat`.
    fn read(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        loop {
            if words.take("mask") {
                (self.variable, self.mask) = (true, short(words.hex("mask", 0xffff)?));
            } else if words.take("at") {
                let read = words.value("at", "an offset, -65535 to 65535", offset)?;
                (self.variable, self.at) = (true, read);
            } else if words.take("shift") {
                self.shift = words.number("shift", 15)?;
            } else if words.take("plus") {
                (self.fixed, self.plus) = (true, short(words.number("plus", 0xffff)?));
            } else if words.take("eat") {
                self.eat = true;
            } else {
                return Ok(());
            }
        }
    }
}

/// Reads a `u32` handle such as `800::1`, `800:`, `1:5:` or `::1`, with the numbers of table,
/// bucket and node.
pub(in crate::filter) fn read_handle(word: &str) -> Option<u32> {
    let mut parts = word.split(':');
    let mut part = |max: u32| match parts.next() {
        None | Some("") => Some(0),
        Some(digits) => hexadecimal(digits, max),
    };
    let handle = part(0xfff)? << 20 | part(0xff)? << 12 | part(NODE)?;
    (word.contains(':') && parts.next().is_none()).then_some(handle)
}
