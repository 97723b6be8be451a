//! Expressions of the filter `basic`, such as `cmp(u8 at 9 eq 17) and not meta(priority gt 3)`.
//!
//! The matches of an expression are evaluated from left to right. After `and`, the rest of the
//! expression is evaluated only if the match before was true; after `or`, only if it was false.
//! Neither operator binds stronger: `a and b or c` means a and (b or c).
//!
//! Source: `tc-ematch(8)`; behaviour of Linux 7.2 `net/sched/ematch.c`, `em_cmp.c`, `em_u32.c`,
//! `em_meta.c`, `em_nbyte.c`.
//! Differs: there is no `ipset`, `ipt`, `canid` or `text`; `meta` knows only properties of the
//! packet.
//! Invariant: a match that reads beyond the end of the packet is false.

mod show;

use onramp_queue::Packet;

use super::reader::{Reader, count};
use super::words::{Key, offset};
use super::{Look, quoted};
use crate::base::{ConfigError, Errno};

/// How deep parentheses may be nested in an expression, as in Linux.
const DEPTH_MAX: usize = 32;

/// An expression. An empty expression is true for every packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree(Vec<Term>);

#[derive(Clone, Debug)]
struct Term {
    not: bool,
    test: Test,
    /// The operator that follows this match in the expression.
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    And,
    Or,
    End,
}

#[derive(Clone, Debug)]
enum Test {
    Inner(Tree),
    Compare { value: Place, op: Op, with: u32 },
    Word(Key),
    Meta { left: Object, op: Op, right: Object },
    Bytes { layer: LayerOf, offset: i32, needle: Vec<u8> },
}

/// The position, the length and the mask of a number in the packet that a match compares.
#[derive(Clone, Copy, Debug)]
struct Place {
    bytes: u8,
    layer: LayerOf,
    offset: i32,
    mask: Option<u32>,
    /// Whether the bytes of the number are in reversed order (`trans`).
    swap: bool,
}

#[derive(Clone, Copy, Debug)]
enum LayerOf {
    Link,
    Network,
    Transport,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Equal,
    Less,
    Greater,
}

#[derive(Clone, Copy, Debug)]
struct Object {
    what: What,
    shift: u32,
    mask: u32,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Value(u32),
    Priority,
    Mark,
    Protocol,
    Length,
    Vlan,
    /// A property of `meta` that, also in Linux, is zero for every packet that is sent.
    Zero(&'static str),
}

impl Op {
    fn holds(self, left: u32, right: u32) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Less => left < right,
            Self::Greater => left > right,
        }
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        words.value("ematch", "eq, lt or gt", |word| match word {
            "eq" | "=" => Some(Self::Equal),
            "lt" | "<" => Some(Self::Less),
            "gt" | ">" => Some(Self::Greater),
            _ => None,
        })
    }
}

impl LayerOf {
    /// Returns the position in the packet that is `offset` bytes after the start of this layer
    /// (link, network or transport). Returns `None` if the packet has no such layer.
    fn at(self, look: &mut Look, pkt: &Packet, offset: i32) -> Option<usize> {
        let keys = look.at(pkt).keys();
        let begin = match self {
            Self::Link => 0,
            Self::Network => keys.network,
            Self::Transport => keys.transport?,
        };
        usize::try_from(i64::try_from(begin).ok()? + i64::from(offset)).ok()
    }

    fn read(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        words.value("layer", "link, network, transport or 0 to 2", |word| match word {
            "link" | "0" => Some(Self::Link),
            "network" | "1" => Some(Self::Network),
            "transport" | "tcp" | "2" => Some(Self::Transport),
            _ => None,
        })
    }
}

impl Place {
    fn value(self, look: &mut Look, pkt: &Packet) -> Option<u32> {
        let at = self.layer.at(look, pkt, self.offset)?;
        let dissected = look.at(pkt);
        let value = match self.bytes {
            1 => u8::from_be_bytes(dissected.bytes(pkt, at)?).into(),
            2 => {
                let value = u16::from_be_bytes(dissected.bytes(pkt, at)?);
                (if self.swap { value.swap_bytes() } else { value }).into()
            }
            _ => {
                let value = u32::from_be_bytes(dissected.bytes(pkt, at)?);
                if self.swap { value.swap_bytes() } else { value }
            }
        };
        // A mask of zero means that all bits are compared.
        Some(self.mask.filter(|mask| *mask != 0).map_or(value, |mask| value & mask))
    }
}

impl Object {
    /// Returns the value of this property of the packet, or `None` if the packet does not have the
    /// property.
    fn value(self, look: &mut Look, pkt: &Packet) -> Option<u32> {
        let value = match self.what {
            What::Value(value) => return Some(value),
            What::Priority => pkt.priority,
            What::Mark => pkt.mark,
            // As in Linux on little-endian machines, `protocol` is the two bytes on the wire, read
            // as a little-endian number.
            What::Protocol => look.at(pkt).keys().outer.swap_bytes().into(),
            What::Length => look.way.len(pkt),
            What::Vlan => {
                let vlan = look.at(pkt).keys().vlan?;
                u32::from(vlan.prio) << 13 | u32::from(vlan.id)
            }
            What::Zero(_) => 0,
        };
        let value = value >> self.shift;
        Some(if self.mask == 0 { value } else { value & self.mask })
    }
}

impl Test {
    fn holds(&self, look: &mut Look, pkt: &Packet) -> bool {
        match self {
            Self::Inner(tree) => tree.holds(look, pkt),
            Self::Compare { value, op, with } => {
                value.value(look, pkt).is_some_and(|value| op.holds(value, *with))
            }
            Self::Word(key) => key.matches(look, pkt) == Some(true),
            Self::Meta { left, op, right } => {
                let values = left.value(look, pkt).zip(right.value(look, pkt));
                values.is_some_and(|(left, right)| op.holds(left, right))
            }
            Self::Bytes { layer, offset, needle } => {
                let Some(at) = layer.at(look, pkt, *offset) else { return false };
                let dissected = look.at(pkt);
                needle.iter().zip(at..).all(|(byte, at)| dissected.bytes(pkt, at) == Some([*byte]))
            }
        }
    }
}

impl Tree {
    pub(super) fn holds(&self, look: &mut Look, pkt: &Packet) -> bool {
        let mut result = true;
        for term in &self.0 {
            result = term.test.holds(look, pkt) != term.not;
            match (term.then, result) {
                (Then::And, true) | (Then::Or, false) => {}
                _ => return result,
            }
        }
        result
    }

    /// Reads an expression, up to the first match after which there is neither `and` nor `or`.
    pub(super) fn read(words: &mut Reader<'_>) -> Result<Self, ConfigError> {
        Self::read_below(words, 1)
    }

    fn read_below(words: &mut Reader<'_>, depth: usize) -> Result<Self, ConfigError> {
        if depth > DEPTH_MAX {
            let why = format!("parentheses can be nested at most {DEPTH_MAX} deep");
            return Err(words.wrong("ematch", "(", why));
        }
        let mut terms = Vec::new();
        loop {
            let mut not = false;
            while words.take("not") || words.take("NOT") || words.take("!") {
                not = !not;
            }
            let test = if words.take("(") {
                let inner = Self::read_below(words, depth + 1)?;
                close(words)?;
                Test::Inner(inner)
            } else {
                read_test(words)?
            };
            let then = match words.peek() {
                Some("and" | "AND" | "&&") => Then::And,
                Some("or" | "OR" | "||") => Then::Or,
                _ => Then::End,
            };
            terms.push(Term { not, test, then });
            if then == Then::End {
                return Ok(Self(terms));
            }
            words.next();
        }
    }
}

fn close(words: &mut Reader<'_>) -> Result<(), ConfigError> {
    words.value("ematch", "`)`", |word| (word == ")").then_some(()))
}

/// Kinds of matches that Onramp lacks. Their error is that of a Linux built without these kinds.
const ABSENT: &[&str] = &["canid", "ipset", "ipt", "text"];
const EMATCHES: &str = "expected cmp, u32, meta, nbyte, not or `(`";

fn read_test(words: &mut Reader<'_>) -> Result<Test, ConfigError> {
    let kind = words.next().unwrap_or_default();
    if ABSENT.contains(&kind) {
        return Err(words.wrong("ematch", kind, EMATCHES).kernel(Errno::NoEntry, ""));
    }
    if !matches!(kind, "cmp" | "u32" | "meta" | "nbyte") {
        return Err(words.wrong("ematch", kind, EMATCHES));
    }
    if !words.take("(") {
        return Err(words.wrong(kind, words.peek().unwrap_or_default(), "expected `(`"));
    }
    let test = match kind {
        "cmp" => read_compare(words)?,
        "u32" => {
            let align = words.next().unwrap_or_default();
            Test::Word(Key::read_in_full(words, align)?)
        }
        "meta" => {
            let left = read_object(words)?;
            let op = Op::read(words)?;
            Test::Meta { left, op, right: read_object(words)? }
        }
        _ => read_bytes(words)?,
    };
    close(words)?;
    Ok(test)
}

fn read_compare(words: &mut Reader<'_>) -> Result<Test, ConfigError> {
    let bytes = words.value("cmp", "u8, u16 or u32", |word| match word {
        "u8" => Some(1),
        "u16" => Some(2),
        "u32" => Some(4),
        _ => None,
    })?;
    let mut place = Place { bytes, layer: LayerOf::Network, offset: 0, mask: None, swap: false };
    let (mut placed, mut compared) = (false, None);
    loop {
        match words.peek() {
            Some("at") => {
                words.next();
                place.offset = words.value("at", "an offset, -65535 to 65535", offset)?;
                placed = true;
            }
            Some("layer") => {
                words.next();
                place.layer = LayerOf::read(words)?;
            }
            Some("mask") => {
                words.next();
                place.mask = Some(words.number("mask", u32::MAX)?);
            }
            Some("trans") => {
                words.next();
                place.swap = true;
            }
            None | Some(")") => break,
            _ => {
                let op = Op::read(words)?;
                compared = Some((op, words.number("cmp", u32::MAX)?));
            }
        }
    }
    match compared {
        Some((op, with)) if placed => Ok(Test::Compare { value: place, op, with }),
        Some(_) => Err(no_offset("cmp", words)),
        None => Err(words.wrong("cmp", "", "expected eq, lt or gt, and a number")),
    }
}

fn no_offset(kind: &str, words: &Reader<'_>) -> ConfigError {
    words.wrong(kind, words.peek().unwrap_or_default(), "expected at OFFSET")
}

fn read_bytes(words: &mut Reader<'_>) -> Result<Test, ConfigError> {
    let word = words.next().unwrap_or_default();
    let needle = quoted::bytes(word).filter(|needle| !needle.is_empty()).ok_or_else(|| {
        let why = "expected a string of at least one byte; \\OCTAL is a byte up to \\377";
        words.wrong("nbyte", word, why)
    })?;
    let (mut layer, mut from) = (LayerOf::Network, None);
    loop {
        match words.peek() {
            Some("at") => {
                words.next();
                from = Some(words.value("at", "an offset, -65535 to 65535", offset)?);
            }
            Some("layer") => {
                words.next();
                layer = LayerOf::read(words)?;
            }
            _ => {
                let offset = from.ok_or_else(|| no_offset("nbyte", words))?;
                return Ok(Test::Bytes { layer, offset, needle });
            }
        }
    }
}

/// Whether Linux knows this property of `meta` and this crate does not: sockets, routes, devices,
/// load, or random numbers.
fn is_absent(word: &str) -> bool {
    matches!(word, "random" | "dev" | "rtclassid" | "rt_iif")
        || word.starts_with("sk_")
        || word.starts_with("loadavg_")
}

fn read_object(words: &mut Reader<'_>) -> Result<Object, ConfigError> {
    let expected = "a number, priority, nf_mark, fwmark, protocol, pkt_len, pkt_type, data_len, \
                    mac_len, vlan or tc_index";
    if let Some(word) = words.peek().filter(|word| is_absent(word)) {
        let why = "packets here do not have this property";
        return Err(words.wrong("meta", word, why).kernel(Errno::NotSupported, ""));
    }
    let what = words.value("meta", expected, |word| {
        Some(match word {
            "priority" => What::Priority,
            "nf_mark" | "fwmark" => What::Mark,
            "protocol" => What::Protocol,
            "pkt_len" => What::Length,
            "vlan" => What::Vlan,
            "data_len" => What::Zero("data_len"),
            "mac_len" => What::Zero("mac_len"),
            "pkt_type" => What::Zero("pkt_type"),
            "tc_index" => What::Zero("tc_index"),
            word => What::Value(count(word, u32::MAX)?),
        })
    })?;
    let mut object = Object { what, shift: 0, mask: 0 };
    loop {
        match words.peek() {
            Some("shift") => {
                words.next();
                object.shift = words.number("shift", 31)?;
            }
            Some("mask") => {
                words.next();
                object.mask = words.number("mask", u32::MAX)?;
            }
            _ => return Ok(object),
        }
    }
}
