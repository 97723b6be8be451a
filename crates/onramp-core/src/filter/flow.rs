//! `flow`: computes a class from properties of a packet.
//!
//! Source: `tc-flow(8)`; behaviour of Linux 7.2 `net/sched/cls_flow.c`, and of iproute2 6.1.
//! Differs: Linux hashes with a secret of its own, so for `hash`, packets are distributed as evenly
//! as in Linux, but not to the same classes. If a packet has no ports or addresses, Linux uses the
//! memory address of the packet's socket; here, the packet's `flow` is used. The keys of connection
//! tracking (`nfct-src` and so on) are those of the packet itself, as in Linux without connection
//! tracking; the keys for the input device, the class of the route and the owner of the socket are
//! always zero.
//! Invariant: with a divisor n, the class is one of n classes that begin with `baseclass`.

mod show;

use std::net::IpAddr;

use onramp_queue::Packet;

use super::Look;
use super::ematch::Tree;
use super::reader::{Reader, count, is, prefix};
use crate::base::error::Errno;
use crate::base::units::parse_count;
use crate::base::{ConfigError, Handle, Instant};

#[derive(Clone, Debug)]
pub(super) struct Flow {
    keys: Vec<Key>,
    /// Whether the class is computed from a hash of all keys (mode `hash`). Otherwise there is only
    /// one key, and the class is computed from its value (mode `map`).
    hash: bool,
    perturb_s: u32,
    mask: u32,
    xor: u32,
    rshift: u32,
    addend: u32,
    divisor: u32,
    base: Handle,
    only: Tree,
    /// Used only while a line is read: true until the line's first `and`, `or` or `xor`, which
    /// discards the operations on bits that the filter had before the line.
    fresh: bool,
    /// Used only while a line is read: whether the line has given `perturb`, and whether it has
    /// given `hash`.
    perturbs: bool,
    hashes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Src,
    Dst,
    Proto,
    ProtoSrc,
    ProtoDst,
    Iif,
    Priority,
    Mark,
    Nfct,
    NfctSrc,
    NfctDst,
    NfctProtoSrc,
    NfctProtoDst,
    RtClassid,
    SkUid,
    SkGid,
    VlanTag,
    RxHash,
}

const KEYS: &[(&str, Key)] = &[
    ("src", Key::Src),
    ("dst", Key::Dst),
    ("proto", Key::Proto),
    ("proto-src", Key::ProtoSrc),
    ("proto-dst", Key::ProtoDst),
    ("iif", Key::Iif),
    ("priority", Key::Priority),
    ("mark", Key::Mark),
    ("nfct", Key::Nfct),
    ("nfct-src", Key::NfctSrc),
    ("nfct-dst", Key::NfctDst),
    ("nfct-proto-src", Key::NfctProtoSrc),
    ("nfct-proto-dst", Key::NfctProtoDst),
    ("rt-classid", Key::RtClassid),
    ("sk-uid", Key::SkUid),
    ("sk-gid", Key::SkGid),
    ("vlan-tag", Key::VlanTag),
    ("rxhash", Key::RxHash),
];

#[expect(clippy::cast_possible_truncation, reason = "both halves are in it")]
fn fold(number: u64) -> u32 {
    (number ^ number >> 32) as u32
}

fn fold_address(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let words = address.octets();
            let words = words.chunks_exact(4);
            words.fold(0, |sum, word| {
                sum ^ word.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
            })
        }
    }
}

impl Key {
    fn of(self, look: &mut Look, pkt: &Packet) -> u32 {
        let flow = fold(pkt.flow);
        match self {
            Self::Priority => return pkt.priority,
            Self::Mark => return pkt.mark,
            Self::RxHash => return flow,
            Self::Iif | Self::Nfct | Self::RtClassid | Self::SkUid | Self::SkGid => return 0,
            _ => {}
        }
        let keys = look.at(pkt).keys();
        match self {
            Self::Src | Self::NfctSrc => keys.addresses.map_or(flow, |(src, _)| fold_address(src)),
            Self::Dst | Self::NfctDst => keys.addresses.map_or(flow, |(_, dst)| fold_address(dst)),
            Self::Proto => keys.protocol.into(),
            Self::ProtoSrc | Self::NfctProtoSrc => keys.ports.map_or(flow, |(src, _)| src.into()),
            Self::ProtoDst | Self::NfctProtoDst => keys.ports.map_or(flow, |(_, dst)| dst.into()),
            _ => keys.vlan.map_or(0, |vlan| u32::from(vlan.id)),
        }
    }
}

impl Flow {
    /// Returns the class that the filter computes for the packet, or `None` if the filter has an
    /// expression that is false for the packet.
    pub(super) fn class_of(&self, look: &mut Look, pkt: &Packet, now: Instant) -> Option<Handle> {
        if !self.only.holds(look, pkt) {
            return None;
        }
        let mut class = if self.hash {
            let salt = match self.perturb_s {
                0 => 0,
                seconds => now.0 / (u64::from(seconds) * 1_000_000_000),
            };
            let keys = self.keys.iter();
            fold(keys.fold(mix(salt), |sum, key| mix(sum ^ u64::from(key.of(look, pkt)))))
        } else {
            let key = self.keys.first().map_or(0, |key| key.of(look, pkt));
            (((key & self.mask) ^ self.xor) >> self.rshift).wrapping_add(self.addend)
        };
        if self.divisor > 0 {
            class %= self.divisor;
        }
        let base = self.base;
        let low = Handle::from_priority(u32::from(base.minor).wrapping_add(class)).minor;
        Some(Handle::new(base.major, low))
    }

    /// Creates a `flow` filter of qdisc `major`, without any options yet.
    pub(super) fn new(major: u16) -> Self {
        Self {
            keys: Vec::new(),
            hash: false,
            perturb_s: 0,
            mask: u32::MAX,
            xor: 0,
            rshift: 0,
            addend: 0,
            divisor: 0,
            base: Handle::new(major, 1),
            only: Tree::default(),
            fresh: true,
            perturbs: false,
            hashes: false,
        }
    }

    /// Begins a change of the filter by a line: options that the line does not give keep their
    /// values, except the expression and the operations `and`, `or` and `xor`, which the line
    /// replaces.
    pub(super) fn begin(&mut self) {
        self.only = Tree::default();
        (self.fresh, self.perturbs, self.hashes) = (true, false, false);
    }

    /// Returns the kind and the options, as a line gives them, without the expression.
    pub(super) fn words(&self) -> String {
        let name = |key: &Key| KEYS.iter().find(|(_, it)| it == key).map_or("", |(name, _)| *name);
        let names = self.keys.iter().map(name).collect::<Vec<_>>().join(",");
        let mut words = match self.hash {
            true => format!("flow hash keys {names}"),
            false => format!("flow map key {names}"),
        };
        if (self.mask, self.xor) != (u32::MAX, 0) {
            words += &format!(" and {:#x} xor {:#x}", self.mask, self.xor);
        }
        let others = [
            ("rshift", self.rshift),
            ("addend", self.addend),
            ("divisor", self.divisor),
            ("perturb", self.perturb_s),
        ];
        for (key, value) in others.into_iter().filter(|(_, value)| *value > 0) {
            words += &format!(" {key} {value}");
        }
        format!("{words} baseclass {}", self.base)
    }

    /// Reads one option of the filter and its value.
    pub(super) fn read(&mut self, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let Some(word) = words.next() else { return Ok(()) };
        self.read_option(word, words)
    }

    /// Returns an error if Linux would refuse these options together.
    pub(super) fn check(&mut self, words: &Reader<'_>) -> Result<(), ConfigError> {
        if !self.hash && !self.perturbs {
            self.perturb_s = 0;
        }
        let refused = |key, errno, why: &str| Err(words.wrong(key, "", why).kernel(errno, ""));
        match (self.keys.len(), self.hash) {
            (0, _) => refused("flow", Errno::Invalid, "expected `map key KEY` or `hash keys KEYS`"),
            (2.., false) => Err(words.wrong("keys", "", "map takes one key; use hash")),
            _ if self.perturbs && !(self.hash && self.hashes) => {
                refused("perturb", Errno::Invalid, "it needs hash mode: add `hash`")
            }
            _ if self.rshift > 31 => refused("rshift", Errno::Range, "expected 0 to 31"),
            _ => Ok(()),
        }
    }

    fn read_option(&mut self, word: &str, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        match word {
            "map" => self.hash = false,
            "hash" => (self.hash, self.hashes) = (true, true),
            "keys" => {
                let expected = format!("keys separated by commas: {}", names());
                self.keys =
                    words.value(word, &expected, |list| list.split(',').map(key).collect())?;
                // The order in which the user gives the keys does not matter: Linux uses its own
                // order.
                self.keys.sort();
                self.keys.dedup();
            }
            "key" => self.keys = vec![words.value(word, &names(), key)?],
            "and" => self.bits(words.number(word, u32::MAX)?, 0),
            "or" => {
                let bits = words.number(word, u32::MAX)?;
                self.bits(!bits, bits);
            }
            "xor" => self.bits(u32::MAX, words.number(word, u32::MAX)?),
            "rshift" => self.rshift = words.number(word, u32::MAX)?,
            "addend" => {
                self.addend =
                    words.value(word, "a number or an address, optionally after a -", addend)?;
            }
            "divisor" => self.divisor = words.number(word, u32::MAX)?,
            "perturb" => {
                let seconds =
                    |word: &str| count(word.strip_suffix("sec").unwrap_or(word), u32::MAX / 100);
                self.perturb_s = words.value(word, "seconds", seconds)?;
                self.perturbs = true;
            }
            "baseclass" => {
                let base = words.class(word)?;
                if base.minor == 0 {
                    let why = "expected a class such as 1:1";
                    return Err(words.wrong(word, &base.to_string(), why));
                }
                let major = if base.major == 0 { self.base.major } else { base.major };
                self.base = Handle::new(major, base.minor);
            }
            word if is(word, "match") => self.only = Tree::read(words)?,
            other => {
                let why = "flow takes map, hash, key, keys, and, or, xor, rshift, addend, divisor, \
                           baseclass, perturb, match, action, police";
                return Err(words.wrong("", other, why));
            }
        }
        Ok(())
    }

    /// Appends an operation on the bits of the key: clears all bits that are not in `mask`, then
    /// inverts the bits in `xor`.
    fn bits(&mut self, mask: u32, xor: u32) {
        if std::mem::take(&mut self.fresh) {
            (self.mask, self.xor) = (u32::MAX, 0);
        }
        self.mask &= mask;
        self.xor = xor ^ (self.xor & mask);
    }
}

fn key(name: &str) -> Option<Key> {
    KEYS.iter().find(|(known, _)| *known == name).map(|(_, key)| *key)
}

fn names() -> String {
    KEYS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Reads a number or an IP address, which may have a minus sign in front.
fn addend(word: &str) -> Option<u32> {
    let (word, minus) = word.strip_prefix('-').map_or((word, false), |word| (word, true));
    let number = match parse_count(word) {
        Some(number) => u32::try_from(number).ok()?,
        None => fold_address(prefix(word)?.0),
    };
    Some(if minus { number.wrapping_neg() } else { number })
}

/// One step of `SplitMix64` (Steele, Lea and Flood 2014), as a hash function: each input bit
/// affects each output bit.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
