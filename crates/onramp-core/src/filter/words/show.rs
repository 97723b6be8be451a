//! How `tc` shows the hash tables of `u32` and their nodes.

use std::net::Ipv4Addr;

use super::super::action::class_name;
use super::{Key, Node};
use crate::base::Handle;
use crate::base::dissect::ethertype;
use crate::base::show::Out;

/// Returns a `u32` handle as `tc` shows it, such as `800::1`.
pub(in crate::filter) fn handle_name(handle: u32) -> String {
    let (table, bucket, node) = (handle >> 20, handle >> 12 & 0xff, handle & 0xfff);
    let bucket = if bucket > 0 { format!("{bucket:x}") } else { String::new() };
    match (bucket.as_str(), node) {
        ("", 0) => format!("{table:x}:"),
        (bucket, 0) => format!("{table:x}:{bucket}:"),
        (bucket, node) => format!("{table:x}:{bucket}:{node:x}"),
    }
}

/// Shows a hash table.
pub(in crate::filter) fn show_table(handle: u32, divisor: u32, out: &mut Out) {
    let name = handle_name(handle);
    out.string("fh", &name, format_args!("fh {name} "));
    out.uint("ht_divisor", divisor.into(), format_args!("ht divisor {divisor} "));
}

impl Node {
    /// Shows the node's handle, its table and bucket, the class of its filter, and the table that
    /// it leads to.
    pub(in crate::filter) fn show_place(&self, handle: u32, class: Option<Handle>, out: &mut Out) {
        let (name, order) = (handle_name(handle), handle & 0xfff);
        out.string("fh", &name, format_args!("fh {name} "));
        out.uint("order", order.into(), format_args!("order {order} "));
        let (table, bucket) = (format!("{:x}", handle >> 20), format!("{:x}", handle >> 12 & 0xff));
        out.string("key_ht", &table, format_args!("key ht {table} "));
        out.string("bkt", &bucket, format_args!("bkt {bucket} "));
        match class.map(class_name) {
            Some(class) => {
                let star = if self.terminal { "*" } else { "" };
                out.string("flowid", &class, format_args!("{star}flowid {class} "));
            }
            None if self.terminal => out.text(format_args!("terminal flowid ")),
            None => {}
        }
        if let Some(link) = self.link.map(handle_name) {
            out.string("link", &link, format_args!("link {link} "));
        }
    }

    /// Shows the keys that the node compares. `protocol` is the protocol for which the filter was
    /// added.
    pub(in crate::filter) fn show_keys(&self, protocol: u16, out: &mut Out) {
        self.show_selector(protocol, out);
        self.show_moves(out);
    }

    fn show_selector(&self, protocol: u16, out: &mut Out) {
        if let Some((value, mask)) = self.selector.mark {
            let (value, mask) = (format!("0x{value:04x}"), format!("0x{mask:04x}"));
            out.string("fwmark_value", &value, format_args!("\n  mark {value} "));
            out.string("fwmark_mask", &mask, format_args!("{mask} "));
            out.text(format_args!("(success 0)"));
        }
        for key in &self.selector.keys {
            out.open(Some("match"));
            let named = out.style.pretty && protocol == ethertype::IP && key.show_named(out);
            if !named {
                key.show(out);
            }
            out.close();
        }
    }

    fn show_moves(&self, out: &mut Out) {
        let moves = self.moves;
        if moves.fixed || moves.variable {
            out.text(format_args!("\n    offset "));
        }
        if moves.variable {
            let (mask, shift, at) = (moves.mask, moves.shift, moves.at);
            out.string("offset_mask", &format!("{mask:x}"), format_args!("{mask:04x}"));
            out.uint("offset_shift", shift.into(), format_args!(">>{shift} "));
            out.int("offset_off", at.into(), format_args!("at {at} "));
        }
        if moves.plus > 0 {
            out.uint("plus", moves.plus.into(), format_args!("plus {} ", moves.plus));
        }
        if moves.eat {
            out.flag("eat", true, format_args!(" eat "));
        }
        if self.hash.mask != 0 {
            let (mask, at) = (self.hash.mask, self.hash.offset);
            out.string(
                "hash_mask",
                &format!("{mask:x}"),
                format_args!("\n    hash mask {mask:08x} "),
            );
            out.int("hash_off", at.into(), format_args!("at {at} "));
        }
    }
}

impl Key {
    /// Shows value, mask and offset of a key.
    fn show(self, out: &mut Out) {
        let (value, mask) = (self.value, self.mask);
        out.string("value", &format!("{value:x}"), format_args!("\n  match {value:08x}"));
        out.string("mask", &format!("{mask:x}"), format_args!("/{mask:08x} at "));
        let next = if self.next_header { "nexthdr+" } else { "" };
        out.string("offmask", next, format_args!("{next}"));
        out.int("off", self.offset.into(), format_args!("{}", self.offset));
    }

    /// Returns `VALUE/MASK at OFFSET`, as expressions of `basic` filters show a key.
    pub(in crate::filter) fn short(self) -> String {
        let next = if self.next_header { "nexthdr+" } else { "" };
        format!("{:08x}/{:08x} at {next}{}", self.value, self.mask, self.offset)
    }

    /// Shows a key as a named field of the IPv4 header. Returns false if the key is not such a
    /// field.
    fn show_named(self, out: &mut Out) -> bool {
        let value = self.value;
        match (self.next_header, self.offset, self.mask) {
            (false, 12 | 16, mask) if mask.leading_ones() + mask.trailing_zeros() == 32 => {
                let name = if self.offset == 12 { "src" } else { "dst" };
                let (address, bits) = (Ipv4Addr::from_bits(value), mask.leading_ones());
                out.open(Some(name));
                let text = address.to_string();
                out.string("address", &text, format_args!("\n  match IP {name} {text}"));
                out.uint("prefixlen", bits.into(), format_args!("/{bits}"));
                out.close();
            }
            (false, 0, 0x00ff_0000) => {
                let field = format!("0x{:x}", value >> 16);
                out.string("ip_dsfield", &field, format_args!("\n  match IP dsfield {field}"));
            }
            (false, 8, 0x00ff_0000) => {
                let number = value >> 16;
                let text = format_args!("\n  match IP protocol {number}");
                out.uint("ip_protocol", number.into(), text);
            }
            (false, 20, 0xffff_0000) => {
                let port = value >> 16;
                out.uint("sport", port.into(), format_args!("\n  match sport {port}"));
            }
            (false, 20, 0x0000_ffff) => {
                out.uint("dport", value.into(), format_args!("match dport {value}"));
            }
            _ => return false,
        }
        true
    }
}
