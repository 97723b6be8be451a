//! `flower`: compares fields of a packet's headers, each under a mask.
//!
//! Source: `tc-flower(8)`; behaviour of Linux 7.2 `net/sched/cls_flower.c`, and of iproute2 6.1.
//! Differs: no inner VLAN tags, ARP, MPLS, PPPoE, tunnels, connection tracking.
//! Invariant: a packet matches if each of its fields equals the filter's field in the bits that the
//! mask has set, and its ports lie in the ranges; a field that the packet does not have counts as
//! zero.

mod show;

use std::net::IpAddr;

use onramp_queue::Packet;

use super::Look;
use super::protocol::{self, ALL};
use super::reader::{Reader, count, hexadecimal, leading, mac, masked, prefix};
use crate::base::ConfigError;
use crate::base::dissect::{Dissected, Fragment, ethertype, ip_proto};

/// Number of bytes that all fields need in a `Row`, rounded up to a multiple of eight.
const LEN: usize = 72;

/// All fields of a packet's headers in a row of bytes, so that one loop can compare them.
pub(super) type Row = [u8; LEN];

/// The position of a field in a `Row`: the index of its first byte, and its length in bytes.
type Field = (usize, usize);

const SRC: Field = (0, 16);
const DST: Field = (16, 16);
const SRC_MAC: Field = (32, 6);
const DST_MAC: Field = (38, 6);
const ETHERTYPE: Field = (44, 2);
const VLAN_TYPE: Field = (46, 2);
const VLAN_ID: Field = (48, 2);
const SRC_PORT: Field = (50, 2);
const DST_PORT: Field = (52, 2);
const TCP_FLAGS: Field = (54, 2);
const VLAN_PRIO: Field = (56, 1);
const IP_PROTO: Field = (57, 1);
const TOS: Field = (58, 1);
const TTL: Field = (59, 1);
const ICMP_TYPE: Field = (60, 1);
const ICMP_CODE: Field = (61, 1);
const FLAGS: Field = (62, 1);

const FLAG_FRAGMENT: u8 = 1;
const FLAG_FIRST: u8 = 2;

fn put(row: &mut Row, (at, len): Field, value: &[u8]) {
    row[at..at + len].copy_from_slice(value);
}

/// Whether the header fields in `a` and `b` are equal in the bits of `mask`.
fn same(a: &Row, b: &Row, mask: &Row) -> bool {
    let differ = a.iter().zip(b).zip(mask).fold(0, |sum, ((a, b), mask)| sum | ((a ^ b) & mask));
    differ == 0
}

/// Returns the fields of a packet's headers as a `Row`, which has a fixed position for each field.
pub(super) fn row_of(dissected: &Dissected) -> Row {
    let keys = dissected.keys();
    let mut row = [0; LEN];
    put(&mut row, DST_MAC, &keys.macs.0);
    put(&mut row, SRC_MAC, &keys.macs.1);
    put(&mut row, ETHERTYPE, &keys.ethertype.to_be_bytes());
    if let Some(vlan) = keys.vlan {
        put(&mut row, VLAN_TYPE, &vlan.ethertype.to_be_bytes());
        put(&mut row, VLAN_ID, &vlan.id.to_be_bytes());
        put(&mut row, VLAN_PRIO, &[vlan.prio]);
    }
    match keys.addresses {
        Some((IpAddr::V4(src), IpAddr::V4(dst))) => {
            put(&mut row, (SRC.0, 4), &src.octets());
            put(&mut row, (DST.0, 4), &dst.octets());
        }
        Some((IpAddr::V6(src), IpAddr::V6(dst))) => {
            put(&mut row, SRC, &src.octets());
            put(&mut row, DST, &dst.octets());
        }
        _ => {}
    }
    put(&mut row, IP_PROTO, &[keys.protocol]);
    put(&mut row, TOS, &[keys.tos]);
    put(&mut row, TTL, &[keys.ttl]);
    if let Some((src, dst)) = keys.ports {
        put(&mut row, SRC_PORT, &src.to_be_bytes());
        put(&mut row, DST_PORT, &dst.to_be_bytes());
    }
    put(&mut row, TCP_FLAGS, &keys.tcp_flags.to_be_bytes());
    if let Some((kind, code)) = keys.icmp {
        put(&mut row, ICMP_TYPE, &[kind]);
        put(&mut row, ICMP_CODE, &[code]);
    }
    let flags = match keys.fragment {
        Fragment::No => 0,
        Fragment::First => FLAG_FRAGMENT | FLAG_FIRST,
        Fragment::Later => FLAG_FRAGMENT,
    };
    put(&mut row, FLAGS, &[flags]);
    row
}

/// Which parts of a packet a filter compares: bits of fields, and whether it has a range of source
/// ports and a range of destination ports.
pub(super) type Mask = (Row, [bool; 2]);

/// Mask, values and port ranges of a filter. Two filters with the same key match the same packets.
pub(super) type Key = (Row, Row, [Option<(u16, u16)>; 2]);

#[derive(Clone, Debug)]
pub(super) struct Flower {
    value: Row,
    /// The values of the fields as the user gave them, including bits that the mask does not
    /// compare.
    told: Row,
    mask: Row,
    /// First and last port of the range of source ports and of the range of destination ports, or
    /// `None` without such a range.
    ports: [Option<(u16, u16)>; 2],
}

impl Flower {
    pub(super) fn matches(&self, look: &mut Look, pkt: &Packet) -> bool {
        let row = look.row(pkt);
        let in_range = |range: Option<(u16, u16)>, (at, _): Field| {
            let port = u16::from_be_bytes([row[at], row[at + 1]]);
            range.is_none_or(|(first, last)| (first..=last).contains(&port))
        };
        same(row, &self.value, &self.mask)
            && in_range(self.ports[0], SRC_PORT)
            && in_range(self.ports[1], DST_PORT)
    }

    /// Returns which parts of a packet the filter compares, as a mask. Filters with the same mask
    /// are asked one after another.
    pub(super) fn mask(&self) -> Mask {
        (self.mask, self.ports.map(|range| range.is_some()))
    }

    pub(super) fn key(&self) -> Key {
        (self.mask, self.value, self.ports)
    }

    /// Creates a filter that matches every packet of `protocol`. `read` then adds the fields to
    /// compare.
    pub(super) fn new(protocol: u16) -> Self {
        let mut this = Self { value: [0; LEN], told: [0; LEN], mask: [0; LEN], ports: [None; 2] };
        match protocol {
            ALL => {}
            ethertype::VLAN | ethertype::QINQ => {
                this.set(VLAN_TYPE, &protocol.to_be_bytes(), &[0xff; 2]);
            }
            _ => this.set(ETHERTYPE, &protocol.to_be_bytes(), &[0xff; 2]),
        }
        this
    }

    /// Adds a field to compare. The bits of `value` outside of `mask` are cleared, because `same`
    /// compares only bits inside the mask.
    fn set(&mut self, field: Field, value: &[u8], mask: &[u8]) {
        put(&mut self.told, field, value);
        let value: Vec<u8> = value.iter().zip(mask).map(|(value, mask)| value & mask).collect();
        put(&mut self.value, field, &value);
        put(&mut self.mask, field, mask);
    }

    fn has(&self, (at, len): Field, value: &[u8]) -> bool {
        self.mask[at..at + len].iter().all(|mask| *mask == 0xff)
            && self.value[at..at + len] == *value
    }

    fn is_ip(&self) -> bool {
        self.has(ETHERTYPE, &ethertype::IP.to_be_bytes()) || self.is_v6()
    }

    fn is_v6(&self) -> bool {
        self.has(ETHERTYPE, &ethertype::IPV6.to_be_bytes())
    }

    /// Reads the value of the option `key`. Returns false if `key` is no option of this filter.
    pub(super) fn read(&mut self, key: &str, words: &mut Reader<'_>) -> Result<bool, ConfigError> {
        match key {
            "src_mac" => self.read_mac(SRC_MAC, key, words)?,
            "dst_mac" => self.read_mac(DST_MAC, key, words)?,
            "vlan_id" | "vlan_prio" | "vlan_ethtype" => self.read_vlan(key, words)?,
            "ip_proto" => {
                self.need(self.is_ip(), key, "protocol ip or ipv6", words)?;
                let expected = "tcp, udp, sctp, icmp, icmpv6 or a hexadecimal number up to ff";
                let number = words.value(key, expected, protocol_number)?;
                self.set(IP_PROTO, &[number], &[0xff]);
            }
            "src_ip" => self.read_address(SRC, key, words)?,
            "dst_ip" => self.read_address(DST, key, words)?,
            "src_port" => self.read_port(0, SRC_PORT, key, words)?,
            "dst_port" => self.read_port(1, DST_PORT, key, words)?,
            "ip_tos" => self.read_byte(TOS, key, words)?,
            "ip_ttl" => self.read_byte(TTL, key, words)?,
            "tcp_flags" => {
                let read = |word: &str, _| u16::try_from(hexadecimal(word, 0xfff)?).ok();
                let expected = "FLAGS or FLAGS/MASK, hexadecimal, 0 to fff";
                let (flags, mask) = words.value(key, expected, |word| masked(word, 0xfff, read))?;
                // As in Linux, `tcp_flags` is ignored unless the filter has `ip_proto tcp`.
                if self.has(IP_PROTO, &[ip_proto::TCP]) {
                    self.set(TCP_FLAGS, &flags.to_be_bytes(), &mask.to_be_bytes());
                }
            }
            "type" | "code" => {
                let icmp = [ip_proto::ICMP, ip_proto::ICMPV6];
                let icmp = icmp.iter().any(|number| self.has(IP_PROTO, &[*number]));
                self.need(icmp, key, "ip_proto icmp or icmpv6", words)?;
                let field = if key == "type" { ICMP_TYPE } else { ICMP_CODE };
                let read = |word: &str, _| word.parse::<u8>().ok();
                let (value, mask) =
                    words.value(key, "0 to 255, optionally with /MASK", |word| {
                        masked(word, 0xff, read)
                    })?;
                self.set(field, &[value], &[mask]);
            }
            "ip_flags" => self.read_flags(key, words)?,
            // `verbose` asks for more information in error messages, which is given in any case.
            "verbose" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    #[expect(clippy::unused_self, reason = "reads as a sentence")]
    fn need(
        &self,
        there: bool,
        key: &str,
        what: &str,
        words: &Reader<'_>,
    ) -> Result<(), ConfigError> {
        if there { Ok(()) } else { Err(words.wrong(key, "", format!("it needs {what} before it"))) }
    }

    fn read_mac(
        &mut self,
        field: Field,
        key: &str,
        words: &mut Reader<'_>,
    ) -> Result<(), ConfigError> {
        let expected = "an address such as 02:00:00:00:00:01, optionally with /MASK or /BITS";
        let read = |word: &str, is_mask: bool| {
            let bits = || u8::try_from(count(word, 48)?).ok();
            mac(word).or_else(|| {
                let bits = is_mask.then(bits).flatten()?;
                let mask = u64::from(leading(bits, 0)) << 32 | u64::from(leading(bits, 32));
                mask.to_be_bytes()[..6].try_into().ok()
            })
        };
        let (value, mask) = words.value(key, expected, |word| masked(word, [0xff; 6], read))?;
        self.set(field, &value, &mask);
        Ok(())
    }

    fn read_vlan(&mut self, key: &str, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        let vlan = self.mask[VLAN_TYPE.0] != 0;
        self.need(vlan, key, "protocol 802.1Q or 802.1ad", words)?;
        match key {
            "vlan_id" => {
                let id = u16::try_from(words.number(key, 0xfff)?).unwrap_or(0);
                self.set(VLAN_ID, &id.to_be_bytes(), &[0x0f, 0xff]);
            }
            "vlan_prio" => {
                let prio = u8::try_from(words.number(key, 7)?).unwrap_or(0);
                self.set(VLAN_PRIO, &[prio], &[7]);
            }
            _ => {
                let inner = words.value(key, "ip, ipv6 or a number, 0 to 65535", protocol::read)?;
                self.set(ETHERTYPE, &inner.to_be_bytes(), &[0xff; 2]);
            }
        }
        Ok(())
    }

    fn read_address(
        &mut self,
        field: Field,
        key: &str,
        words: &mut Reader<'_>,
    ) -> Result<(), ConfigError> {
        self.need(self.is_ip(), key, "protocol ip or ipv6", words)?;
        let v6 = self.is_v6();
        let expected = if v6 {
            "an IPv6 prefix such as fd00::/8"
        } else {
            "an IPv4 prefix such as 10.0.0.0/8"
        };
        let (address, bits) = words.value(key, expected, |word| {
            prefix(word).filter(|(address, bits)| address.is_ipv6() == v6 || *bits == 0)
        })?;
        let mut mask = [0; 16];
        for (word, from) in mask.chunks_exact_mut(4).zip((0_u8..).step_by(32)) {
            word.copy_from_slice(&leading(bits, from).to_be_bytes());
        }
        match address {
            IpAddr::V4(address) => self.set((field.0, 4), &address.octets(), &mask[..4]),
            IpAddr::V6(address) => self.set(field, &address.octets(), &mask),
        }
        Ok(())
    }

    fn read_port(
        &mut self,
        which: usize,
        field: Field,
        key: &str,
        words: &mut Reader<'_>,
    ) -> Result<(), ConfigError> {
        let known = [ip_proto::TCP, ip_proto::UDP, ip_proto::SCTP];
        let known = known.iter().any(|number| self.has(IP_PROTO, &[*number]));
        self.need(known, key, "ip_proto tcp, udp or sctp", words)?;
        let port = |word: &str| word.parse::<u16>().ok();
        let range = |word: &str| {
            let (first, last) = word.split_once('-')?;
            port(first).zip(port(last)).filter(|(first, last)| first < last)
        };
        let word = words.peek().unwrap_or_default();
        if let Some(range) = range(word) {
            words.next();
            self.ports[which] = Some(range);
            return Ok(());
        }
        let read = |word: &str, mask| {
            let hex = || hexadecimal(word, 0xffff).and_then(|mask| u16::try_from(mask).ok());
            if mask { hex() } else { port(word) }
        };
        let (value, mask) =
            words.value(key, "PORT, PORT/MASK or FIRST-LAST", |word| masked(word, 0xffff, read))?;
        self.set(field, &value.to_be_bytes(), &mask.to_be_bytes());
        Ok(())
    }

    /// Reads a byte and an optional mask: the value in decimal or, if that fails, in hexadecimal;
    /// the mask in hexadecimal.
    fn read_byte(
        &mut self,
        field: Field,
        key: &str,
        words: &mut Reader<'_>,
    ) -> Result<(), ConfigError> {
        self.need(self.is_ip(), key, "protocol ip or ipv6", words)?;
        let read = |word: &str, is_mask: bool| {
            let decimal = word.parse::<u8>().ok().filter(|_| !is_mask && !word.starts_with('+'));
            decimal.or_else(|| u8::try_from(hexadecimal(word, 0xff)?).ok())
        };
        let (value, mask) =
            words.value(key, "a byte such as 0x10, optionally with /MASK", |word| {
                masked(word, 0xff, read)
            })?;
        self.set(field, &[value], &[mask]);
        Ok(())
    }

    fn read_flags(&mut self, key: &str, words: &mut Reader<'_>) -> Result<(), ConfigError> {
        self.need(self.is_ip(), key, "protocol ip or ipv6", words)?;
        let expected = "frag, nofrag, firstfrag or nofirstfrag, separated by /";
        let (value, mask) = words.value(key, expected, |word| {
            word.split('/').try_fold((0, 0), |(value, mask), flag| {
                let (set, flag) = match flag {
                    "frag" => (true, FLAG_FRAGMENT),
                    "nofrag" => (false, FLAG_FRAGMENT),
                    "firstfrag" => (true, FLAG_FIRST),
                    "nofirstfrag" => (false, FLAG_FIRST),
                    _ => return None,
                };
                Some((if set { value | flag } else { value }, mask | flag))
            })
        })?;
        self.set(FLAGS, &[value], &[mask]);
        Ok(())
    }
}

fn protocol_number(word: &str) -> Option<u8> {
    Some(match word {
        "tcp" => ip_proto::TCP,
        "udp" => ip_proto::UDP,
        "sctp" => ip_proto::SCTP,
        "icmp" => ip_proto::ICMP,
        "icmpv6" => ip_proto::ICMPV6,
        number => u8::try_from(hexadecimal(number, 0xff)?).ok()?,
    })
}

/// The options of `flower` filters, for error messages.
pub(super) const KEYS: &str = "src_mac, dst_mac, vlan_id, vlan_prio, vlan_ethtype, ip_proto, \
                               src_ip, dst_ip, src_port, dst_port, ip_tos, ip_ttl, tcp_flags, \
                               type, code, ip_flags";
