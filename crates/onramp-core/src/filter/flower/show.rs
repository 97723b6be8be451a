//! How `tc` shows the fields of a `flower` filter and their masks.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::protocol;
use super::{
    DST, DST_MAC, DST_PORT, ETHERTYPE, FLAG_FIRST, FLAG_FRAGMENT, FLAGS, Field, Flower, ICMP_CODE,
    ICMP_TYPE, IP_PROTO, SRC, SRC_MAC, SRC_PORT, TCP_FLAGS, TOS, TTL, VLAN_ID, VLAN_PRIO,
    VLAN_TYPE,
};
use crate::base::dissect::{ethertype, ip_proto};
use crate::base::show::Out;

/// Returns how many leading bits of the mask are set, or `None` if bits after these are set as
/// well.
fn bits(mask: &[u8]) -> Option<u32> {
    let leading = mask.iter().position(|byte| *byte != 0xff).unwrap_or(mask.len());
    let (full, rest) = mask.split_at(leading);
    let part = rest.first().copied().unwrap_or(0);
    let whole = part.leading_ones() + part.trailing_zeros() >= 8;
    let empty = rest.iter().skip(1).all(|byte| *byte == 0);
    let bits = u32::try_from(full.len()).ok()? * 8 + part.leading_ones();
    (whole && empty).then_some(bits)
}

fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

impl Flower {
    fn value(&self, (at, len): Field) -> &[u8] {
        &self.told[at..at + len]
    }

    fn mask_at(&self, (at, len): Field) -> &[u8] {
        &self.mask[at..at + len]
    }

    /// Returns value and mask of a field of one or two bytes, or `None` if the filter does not
    /// compare the field.
    fn number(&self, field: Field) -> Option<(u16, u16)> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u16::from(*byte));
        let mask = number(self.mask_at(field));
        (mask != 0).then(|| (number(self.value(field)), mask))
    }

    /// Shows all fields that the filter compares.
    pub(in crate::filter) fn show(&self, out: &mut Out) {
        self.show_vlan(out);
        self.show_mac("dst_mac", DST_MAC, out);
        self.show_mac("src_mac", SRC_MAC, out);
        if let Some((number, _)) = self.number(ETHERTYPE) {
            let name = match number {
                ethertype::IP => "ipv4".into(),
                ethertype::IPV6 => "ipv6".into(),
                ethertype::ARP => "arp".into(),
                other => format!("{other:04x}"),
            };
            out.string("eth_type", &name, format_args!("\n  eth_type {name}"));
        }
        if let Some((number, _)) = self.number(IP_PROTO) {
            let name = match u8::try_from(number).unwrap_or(0) {
                ip_proto::TCP => "tcp".into(),
                ip_proto::UDP => "udp".into(),
                ip_proto::SCTP => "sctp".into(),
                ip_proto::ICMP => "icmp".into(),
                ip_proto::ICMPV6 => "icmpv6".into(),
                other => format!("{other:02x}"),
            };
            out.string("ip_proto", &name, format_args!("\n  ip_proto {name}"));
        }
        self.show_masked("ip_tos", TOS, 0xff, out);
        self.show_masked("ip_ttl", TTL, 0xff, out);
        self.show_address("dst_ip", DST, out);
        self.show_address("src_ip", SRC, out);
        self.show_port("dst_port", 1, DST_PORT, out);
        self.show_port("src_port", 0, SRC_PORT, out);
        if let Some((flags, mask)) = self.number(TCP_FLAGS) {
            let flags = format!("0x{flags:x}/{mask:x}");
            out.string("tcp_flags", &flags, format_args!("\n  tcp_flags {flags}"));
        }
        for (key, field) in [("icmp_type", ICMP_TYPE), ("icmp_code", ICMP_CODE)] {
            if let Some((value, mask)) = self.number(field) {
                let mask = if mask == 0xff { String::new() } else { format!("/0x{mask:x}") };
                let value = format!("{value}{mask}");
                out.string(key, &value, format_args!("\n  {key} {value}"));
            }
        }
        self.show_flags(out);
    }

    fn show_vlan(&self, out: &mut Out) {
        if let Some((id, _)) = self.number(VLAN_ID) {
            out.uint("vlan_id", id.into(), format_args!("\n  vlan_id {id}"));
        }
        if let Some((prio, _)) = self.number(VLAN_PRIO) {
            out.uint("vlan_prio", prio.into(), format_args!("\n  vlan_prio {prio}"));
        }
        // If the packets have a VLAN tag, the filter's protocol is that of the tag, and the
        // Ethernet type after the tag is shown as a field of its own.
        if let (Some(_), Some((inner, _))) = (self.number(VLAN_TYPE), self.number(ETHERTYPE)) {
            let name = protocol::name(inner);
            out.string("vlan_ethtype", &name, format_args!("\n  vlan_ethtype {name}"));
        }
    }

    fn show_mac(&self, key: &str, field: Field, out: &mut Out) {
        let mask = match bits(self.mask_at(field)) {
            Some(0) => return,
            Some(48) => String::new(),
            Some(bits) => format!("/{bits}"),
            None => format!("/{}", mac(self.mask_at(field))),
        };
        let text = format!("{}{mask}", mac(self.value(field)));
        out.string(key, &text, format_args!("\n  {key} {text}"));
    }

    fn show_address(&self, key: &str, field: Field, out: &mut Out) {
        let v6 = self.is_v6();
        let field = if v6 { field } else { (field.0, 4) };
        let most = if v6 { 128 } else { 32 };
        let Some(bits) = bits(self.mask_at(field)).filter(|bits| *bits > 0) else { return };
        let value = self.value(field);
        let address = match (<[u8; 4]>::try_from(value), <[u8; 16]>::try_from(value)) {
            (Ok(octets), _) => Ipv4Addr::from(octets).to_string(),
            (_, Ok(octets)) => Ipv6Addr::from(octets).to_string(),
            _ => return,
        };
        let text = if bits == most { address } else { format!("{address}/{bits}") };
        out.string(key, &text, format_args!("\n  {key} {text}"));
    }

    fn show_port(&self, key: &str, which: usize, field: Field, out: &mut Out) {
        let Some((first, last)) = self.ports[which] else {
            self.show_masked(key, field, 0xffff, out);
            return;
        };
        out.open(Some(key));
        out.uint("start", first.into(), format_args!("\n  {key} {first}"));
        out.uint("end", last.into(), format_args!("-{last}"));
        out.close();
    }

    fn show_masked(&self, key: &str, field: Field, all: u16, out: &mut Out) {
        let Some((value, mask)) = self.number(field) else { return };
        out.uint(key, value.into(), format_args!("\n  {key} {value}"));
        if mask != all {
            let name = format!("{key}_mask");
            out.string(&name, &format!("{mask:x}"), format_args!("/0x{mask:x}"));
        }
    }

    fn show_flags(&self, out: &mut Out) {
        let Some((value, mask)) = self.number(FLAGS) else { return };
        let names = [(FLAG_FRAGMENT, "frag"), (FLAG_FIRST, "firstfrag")];
        let mut before = "\n  ip_flags ";
        out.open(Some("ip_flags"));
        for (flag, name) in names {
            if mask & u16::from(flag) != 0 {
                let set = value & u16::from(flag) != 0;
                let no = if set { "" } else { "no" };
                out.flag(name, set, format_args!("{before}{no}{name}"));
                before = "/";
            }
        }
        out.close();
    }
}
