//! Helpers for the tests of several kinds of filters: they show filters and build packets.

use super::super::{FilterSpec, Head, How, Query, Reader, Table, show_filter, show_filters};
use super::{PLACE, try_table};
use crate::base::ConfigError;
use crate::base::show::{Out, Style};

pub(super) const TEXT: Style =
    Style { stats: false, details: false, json: false, pretty: false, iec: false };
pub(super) const JSON: Style = Style { json: true, ..TEXT };
pub(super) const PRETTY: Style = Style { pretty: true, ..TEXT };

/// Applies a line to the filters of a table.
pub(super) fn apply(table: &mut Table, how: How, line: &str) -> Result<(), ConfigError> {
    let mut words = Reader::new(line);
    let head = Head::read(&mut words)?;
    table.apply(PLACE, how, &head, words)
}

/// Returns the listing of all filters at the qdisc, as `tc filter show` writes it.
pub(super) fn all(table: &Table) -> String {
    let mut out = Out::new(TEXT);
    let query = Query { parent: Some(PLACE), ..Query::default() };
    show_filters(table.at(PLACE), PLACE, &query, &mut out);
    out.finish()
}

/// Returns how `tc filter show` shows a filter if the command gives the filter's parent,
/// preference, protocol and chain, which the listing then does not repeat.
pub(super) fn whole(filter: &FilterSpec, style: Style) -> String {
    let query = Query {
        parent: Some(PLACE),
        pref: Some(filter.pref),
        protocol: Some(filter.protocol),
        chain: Some(filter.chain),
    };
    let mut out = Out::new(style);
    show_filter(filter, PLACE, &query, &mut out);
    out.finish()
}

/// Returns the options of a filter as `tc filter show` shows them, without the text before and
/// after the options.
pub(super) fn options(filter: &FilterSpec, style: Style) -> String {
    let out = whole(filter, style);
    let (before, behind) = match style.json {
        true => (format!(r#"[{{"kind":"{}","options":"#, filter.kind), "}]\n"),
        false => (format!("filter {} ", filter.kind), "\n"),
    };
    let inner = out.strip_prefix(&before).and_then(|out| out.strip_suffix(behind));
    inner.unwrap_or_else(|| panic!("{out}")).to_owned()
}

/// Adds the filters that these lines describe, and returns how the options of the last filter (in
/// the order in which filters are asked) are shown.
pub(super) fn shown(lines: &[&str], style: Style) -> String {
    let table = try_table(lines).unwrap_or_else(|error| panic!("{lines:?}: {error}"));
    options(table.at(PLACE).last().expect("a filter"), style)
}

/// Adds the filter that this line describes, and returns how its options are shown as text.
pub(super) fn text(line: &str) -> String {
    shown(&[line], TEXT)
}

pub(super) fn json(line: &str) -> String {
    shown(&[line], JSON)
}

/// Returns the error for a wrong line: the exit status of `tc`, and the whole message.
pub(super) fn wrong(line: &str) -> (u8, String) {
    match try_table(&[line]) {
        Ok(_) => panic!("{line} is taken"),
        Err(error) => (error.fault.code(), error.to_string()),
    }
}

/// Checks that each line is refused with this status and this message.
pub(super) fn are_wrong(lines: &[(&str, u8, &str)]) {
    for (line, code, message) in lines {
        assert_eq!(wrong(line), (*code, (*message).to_owned()), "{line}");
    }
}

/// Returns an IPv4 frame with this protocol number, these IP options, and these bytes after the IP
/// header.
pub(super) fn v4(protocol: u8, options: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let words = u8::try_from(5 + options.len() / 4).expect("at most 40 bytes");
    frame.extend([0x40 | words, 0xb9, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend([10, 1, 2, 3, 10, 9, 8, 7]);
    frame.extend(options);
    frame.extend(rest);
    frame
}

/// Returns an IPv6 frame from fd00:…:1 to fd00:…:2, with this protocol number, and these bytes
/// after the IP header.
pub(super) fn v6(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    frame.extend([0x6b, 0x91, 0x23, 0x45, 0, 0, protocol, 63]);
    for last in [1, 2] {
        let mut address = [0; 16];
        (address[0], address[1], address[6], address[15]) = (0xfd, 0, 0x77, last);
        frame.extend(address);
    }
    frame.extend(rest);
    frame
}

/// Returns the bytes of two ports, followed by zeros.
pub(super) fn ports(src: u16, dst: u16) -> Vec<u8> {
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &[0; 16]].concat()
}

/// Returns the frame with a VLAN tag added.
pub(super) fn tagged(frame: &[u8], kind: u16, prio: u8, id: u16) -> Vec<u8> {
    let tag = (u16::from(prio) << 13 | id).to_be_bytes();
    [&frame[..12], &kind.to_be_bytes(), &tag, &frame[12..]].concat()
}
