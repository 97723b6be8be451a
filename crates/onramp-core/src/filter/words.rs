//! `u32`: compares words (four bytes) of the packet, each under a mask.
//!
//! Source: `tc-u32(8)`; behaviour of Linux 7.2 `net/sched/cls_u32.c`, and of iproute2 6.1.
//! Differs: listings do not show how many packets `match mark` has matched. As in Linux, `nexthdr+`
//! means the network header until the search has passed a link with `offset`, which moves on in the
//! packet.
//! Invariant: a key matches if the four bytes at its offset equal its value in the bits of its
//! mask; a key beyond the end of the packet ends the search in all filters of this preference.

mod node;
mod show;
mod walk;

use std::net::IpAddr;

use onramp_queue::Packet;

use super::Look;
use super::reader::{Reader, count, leading, mac, prefix};
use crate::base::ConfigError;

pub(super) use self::node::{COUNT_BITS, Line, NODE, Node, SHARED, TABLE, TABLE_BITS, read_handle};
pub(super) use self::show::{handle_name, show_table};
pub(super) use self::walk::{Place, Step};

/// The largest number of keys of a filter, as in Linux.
const KEYS_MAX: usize = 128;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Selector {
    keys: Vec<Key>,
    /// The value and the mask with which the packet's mark is compared.
    mark: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// Offset of the key in bytes from the network header, a multiple of four.
    offset: i32,
    /// Whether the offset counts from the next header (`nexthdr+`) instead of the network header.
    next_header: bool,
    value: u32,
    mask: u32,
}

/// Returns the four bytes at `offset` from the network header. Bytes before the packet read as
/// zeros, because the word with the first two bytes of the link header begins two bytes before the
/// packet.
pub(super) fn word_at(look: &mut Look, pkt: &Packet, offset: i32) -> Option<u32> {
    let dissected = look.at(pkt);
    let at = i64::try_from(dissected.keys().network).ok()? + i64::from(offset);
    if let Ok(at) = usize::try_from(at) {
        return dissected.bytes(pkt, at).map(u32::from_be_bytes);
    }
    (at..at + 4).try_fold(0, |word, at| {
        let byte = usize::try_from(at).map_or(Some([0]), |at| dissected.bytes(pkt, at));
        byte.map(|[byte]: [u8; 1]| word << 8 | u32::from(byte))
    })
}

impl Key {
    /// Returns whether the key matches, or `None` if the packet ends before the key.
    pub(super) fn matches(self, look: &mut Look, pkt: &Packet) -> Option<bool> {
        self.matches_at(look, pkt, 0, 0)
    }

    /// Compares the key like `matches`, after a search has moved on in the packet: adds `on` bytes
    /// to the key's offset, and `next` bytes more if the offset counts from the next header.
    fn matches_at(self, look: &mut Look, pkt: &Packet, on: i32, next: i32) -> Option<bool> {
        let next = if self.next_header { next } else { 0 };
        let word = word_at(look, pkt, self.offset + on + next)?;
        Some((word ^ self.value) & self.mask == 0)
    }

    /// Creates a key that compares `bits` bits at `offset`. Returns `None` if these bits do not lie
    /// within one word of four bytes.
    fn new(value: u32, mask: u32, bits: u32, offset: i32, next_header: bool) -> Option<Self> {
        let shift = match (bits, offset.rem_euclid(4)) {
            (32, 0) | (16, 1..) => 0,
            // As in `tc`, a 16-bit key at an offset that is no multiple of four takes the last two
            // bytes of the word, even at an odd offset.
            (16, _) => 16,
            (8, byte) => 24 - 8 * u32::try_from(byte).ok()?,
            _ => return None,
        };
        let (value, mask) = ((value & mask) << shift, mask << shift);
        Some(Self { offset: offset - offset.rem_euclid(4), next_header, value, mask })
    }

    /// Reads `VALUE MASK`, two numbers of `bits` bits.
    fn read_pair(words: &mut Reader<'_>, key: &str, bits: u32) -> Result<(u32, u32), ConfigError> {
        let max = u32::MAX >> (32 - bits);
        Ok((words.number(key, max)?, words.hex(key, max)?))
    }

    /// Reads the key of a `u32` match in an expression, where `at OFFSET` is required, and the mask
    /// is written like other numbers in C.
    pub(super) fn read_in_full(words: &mut Reader<'_>, align: &str) -> Result<Self, ConfigError> {
        let (value, mask, at) = (words.next(), words.peek(), words.peek_at(1));
        if mask.is_none_or(|mask| count(mask, u32::MAX).is_none()) {
            let why = "expected a value and a mask, such as 0x1122 0xffff";
            return Err(words.wrong(align, mask.unwrap_or_default(), why));
        }
        if at != Some("at") {
            return Err(words.wrong(
                align,
                at.unwrap_or_default(),
                "expected at OFFSET after the mask",
            ));
        }
        if value.is_some() {
            words.back();
        }
        Self::read(words, align)
    }

    /// Reads a key such as `u16 VALUE MASK at [nexthdr+]OFFSET`, after its first word, `u32`, `u16`
    /// or `u8`, which is given as `align`.
    pub(super) fn read(words: &mut Reader<'_>, align: &str) -> Result<Self, ConfigError> {
        let bits = match align {
            "u32" => 32,
            "u16" => 16,
            "u8" => 8,
            _ => return Err(words.wrong("match", align, "expected u8, u16 or u32")),
        };
        let (value, mask) = Self::read_pair(words, align, bits)?;
        if !words.take("at") {
            return Self::place(words, align, (value, mask, bits), 0, false);
        }
        let mut word = words.next().unwrap_or_default();
        let mut next_header = false;
        if let Some(rest) = word.strip_prefix("nexthdr") {
            next_header = true;
            word = match rest {
                // The line may also have spaces, as in `nexthdr + 4`.
                "" if words.take("+") => words.next().unwrap_or_default(),
                rest => rest,
            };
            word = word.strip_prefix('+').unwrap_or(word);
            if word.starts_with('-') {
                return Err(words.wrong("at", word, "expected nexthdr+OFFSET"));
            }
            word = if word.is_empty() { words.next().unwrap_or_default() } else { word };
        }
        let offset = offset(word).ok_or_else(|| {
            words.wrong("at", word, "expected OFFSET or nexthdr+OFFSET, -65535 to 65535")
        })?;
        Self::place(words, align, (value, mask, bits), offset, next_header)
    }

    fn place(
        words: &Reader<'_>,
        key: &str,
        (value, mask, bits): (u32, u32, u32),
        offset: i32,
        next_header: bool,
    ) -> Result<Self, ConfigError> {
        Self::new(value, mask, bits, offset, next_header).ok_or_else(|| {
            let why = "expected a multiple of 4";
            words.wrong(&format!("{key} at"), &offset.to_string(), why)
        })
    }
}

/// Reads an offset in bytes from the network header. A negative offset reaches into the link
/// header.
pub(super) fn offset(word: &str) -> Option<i32> {
    let (word, sign) = word.strip_prefix('-').map_or((word, 1), |word| (word, -1));
    Some(i32::try_from(count(word, 0xffff)?).ok()? * sign)
}

impl Selector {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.mark.is_none()
    }

    /// Adds a key. If there is a key for the same word already, both are merged into one.
    fn add(&mut self, words: &Reader<'_>, key: Key) -> Result<(), ConfigError> {
        let place = (key.offset, key.next_header);
        let same = self.keys.iter_mut().find(|other| (other.offset, other.next_header) == place);
        if let Some(other) = same {
            if (other.value ^ key.value) & other.mask & key.mask != 0 {
                return Err(words.wrong("match", "", "it contradicts an earlier match"));
            }
            other.value |= key.value;
            other.mask |= key.mask;
        } else if self.keys.len() == KEYS_MAX {
            return Err(words.wrong(
                "match",
                "",
                format!("expected at most {KEYS_MAX} words to match"),
            ));
        } else {
            self.keys.push(key);
        }
        Ok(())
    }

    /// Reads the words of a match, after the word `match`.
    fn read(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let what = words.next().unwrap_or_default();
        match what {
            "u32" | "u16" | "u8" => {
                let key = Key::read(words, what)?;
                self.add(words, key)
            }
            "ip" => self.read_fields(words, what, IP),
            "ip6" => self.read_fields(words, what, IP6),
            "tcp" => self.read_fields(words, what, PORTS),
            "udp" => self.read_fields(words, what, PORTS),
            "icmp" => self.read_fields(words, what, ICMP),
            "ether" => self.read_ether(words),
            "mark" => {
                let (value, mask) = Key::read_pair(words, "mark", 32)?;
                self.mark = Some((value & mask, mask));
                Ok(())
            }
            other => {
                let why = "expected u32, u16, u8, ip, ip6, tcp, udp, icmp, ether or mark";
                Err(words.wrong("match", other, why))
            }
        }
    }

    fn read_fields(
        &mut self,
        words: &mut Reader<'_>,
        header: &str,
        fields: &[Field],
    ) -> Result<(), ConfigError> {
        let name = words.next().unwrap_or_default();
        let Some((_, field)) = fields.iter().find(|(names, _)| names.contains(&name)) else {
            let names: Vec<_> = fields.iter().map(|(names, _)| names[0]).collect();
            let why = format!("expected {}", names.join(", "));
            return Err(words.wrong(&format!("match {header}"), name, why));
        };
        match *field {
            At::Address(offset, v6) => self.read_address(words, name, offset, v6),
            At::Number { bits, offset, shift, next_header } => {
                let (value, mask) = Key::read_pair(words, name, bits)?;
                // A field with a `shift` is only a part of its word, so the key compares the whole
                // word under the mask.
                let bits = if shift > 0 { 32 } else { bits };
                let part = (value << shift, mask << shift, bits);
                let key = Key::place(words, name, part, offset, next_header)?;
                self.add(words, key)
            }
            At::Fixed(value, mask) => {
                let key = Key::place(words, name, (value, mask, 16), 6, false)?;
                self.add(words, key)
            }
        }
    }

    fn read_address(
        &mut self,
        words: &mut Reader<'_>,
        name: &str,
        offset: i32,
        v6: bool,
    ) -> Result<(), ConfigError> {
        let expected = if v6 {
            "an IPv6 prefix such as fd00::/8"
        } else {
            "an IPv4 prefix such as 10.0.0.0/8"
        };
        let (address, bits) = words.value(name, expected, |word| {
            prefix(word).filter(|(address, bits)| address.is_ipv6() == v6 || *bits == 0)
        })?;
        let bytes: Vec<u8> = match address {
            IpAddr::V4(address) => address.octets().into(),
            IpAddr::V6(address) => address.octets().into(),
        };
        for (word, from) in bytes.chunks_exact(4).zip((0_u8..).step_by(32)) {
            let mask = leading(bits, from);
            // The first word of an address gets a key even if the prefix has zero bits and the
            // key's mask is empty: a match always gives a key.
            if mask != 0 || from == 0 {
                let value = word.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                let part = (value, mask, 32);
                let key = Key::place(words, name, part, offset + i32::from(from / 8), false)?;
                self.add(words, key)?;
            }
        }
        Ok(())
    }

    fn read_ether(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let name = words.next().unwrap_or_default();
        let start = match name {
            "src" => -8,
            "dst" => -14,
            _ => return Err(words.wrong("match ether", name, "expected src, dst")),
        };
        let mac = words.value(name, "an address such as 02:00:00:00:00:01", mac)?;
        for (pair, offset) in mac.chunks_exact(2).zip((start..).step_by(2)) {
            let value = u32::from(pair[0]) << 8 | u32::from(pair[1]);
            let key = Key::place(words, name, (value, 0xffff, 16), offset, false)?;
            self.add(words, key)?;
        }
        Ok(())
    }
}

/// The names of a header field, and where the field is.
type Field = (&'static [&'static str], At);

#[derive(Clone, Copy)]
enum At {
    /// An IP address at this offset. The truth value says whether it is an IPv6 address.
    Address(i32, bool),
    /// A number of `bits` bits at an offset. With a `shift`, the field lies inside a word, `shift`
    /// bits before the end of the word.
    Number { bits: u32, offset: i32, shift: u32, next_header: bool },
    /// The flags and the fragment offset of IPv4, with this value and mask.
    Fixed(u32, u32),
}

const fn number(bits: u32, offset: i32) -> At {
    At::Number { bits, offset, shift: 0, next_header: false }
}

const fn next(bits: u32, offset: i32) -> At {
    At::Number { bits, offset, shift: 0, next_header: true }
}

const IP: &[Field] = &[
    (&["src"], At::Address(12, false)),
    (&["dst"], At::Address(16, false)),
    (&["tos", "dsfield", "precedence"], number(8, 1)),
    (&["ihl"], number(8, 0)),
    (&["protocol"], number(8, 9)),
    (&["nofrag"], At::Fixed(0, 0x3fff)),
    (&["firstfrag"], At::Fixed(0x2000, 0x3fff)),
    (&["df"], At::Fixed(0x4000, 0x4000)),
    (&["mf"], At::Fixed(0x2000, 0x2000)),
    (&["sport"], number(16, 20)),
    (&["dport"], number(16, 22)),
    (&["icmp_type"], number(8, 20)),
    (&["icmp_code"], number(8, 21)),
];

const IP6: &[Field] = &[
    (&["src"], At::Address(8, true)),
    (&["dst"], At::Address(24, true)),
    (
        &["priority", "dsfield", "tos"],
        At::Number { bits: 8, offset: 0, shift: 20, next_header: false },
    ),
    (&["protocol"], number(8, 6)),
    (&["flowlabel"], number(32, 0)),
    (&["sport"], number(16, 40)),
    (&["dport"], number(16, 42)),
    (&["icmp_type"], number(8, 40)),
    (&["icmp_code"], number(8, 41)),
];

const PORTS: &[Field] = &[(&["src"], next(16, 0)), (&["dst"], next(16, 2))];

const ICMP: &[Field] = &[(&["type"], next(8, 0)), (&["code"], next(8, 1))];
