//! How `tc` shows a `cake`: its options on one line, and a table with a column for each tin.

use super::classify::Mode;
use super::shape::Framing;
use super::stats::NAMES;
use super::tins::MODES;
use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::units::Size;
use crate::base::{Clash, Errno, Extra, shown};
use crate::sched::Shown;

pub(super) const SHOWN: Shown =
    Shown { options, extra: statistics, class_extra: flow, ..Shown::TABLE };

/// Checks `overhead` as `tc` does, and refuses `nat` and `ack-filter`, which Onramp does not
/// support.
pub(super) fn check(values: &Values<'_>) -> Result<(), Clash> {
    let overhead = super::shape::given_overhead(values);
    if !(-64..=256).contains(&overhead) {
        return Err(Clash::usage("overhead", "expected a whole number, -64 to 256 bytes"));
    }
    if values.number("nat") == 1 {
        let why = "Onramp does not track connections, so it does not know addresses before \
                   NAT: leave it out, or use `nonat`";
        let said = "No conntrack support in kernel";
        return Err(Clash::from(("nat", why)).said(Errno::NotSupported, said));
    }
    if values.number("ack-filter") > 0 {
        let why =
            "Onramp does not filter TCP acknowledgements: leave it out, or use `no-ack-filter`";
        let said = "sch_cake: there is no filter of acknowledgements here";
        return Err(Clash::from(("ack-filter", why)).said(Errno::NotSupported, said));
    }
    Ok(())
}

/// Returns the word that stands for the value of the option `key`.
fn word(words: &[&'static str], values: &Values<'_>, key: &str) -> &'static str {
    let place = usize::try_from(values.number(key)).unwrap_or(0);
    words.get(place).copied().unwrap_or_default()
}

/// Shows the option `key`, whose value is one of two words. Text shows the word; JSON shows whether
/// it is the second word.
fn switch(out: &mut Out, values: &Values<'_>, key: &str, names: (&str, [&str; 2])) {
    let on = values.number(key) == 1;
    let word = names.1[usize::from(on)];
    out.flag(names.0, on, format_args!("{word}{}", if word.is_empty() { "" } else { " " }));
}

fn options(values: &Values<'_>, extra: &Extra, out: &mut Out) {
    let estimated = extra.find("bandwidth").map(i64::unsigned_abs);
    match estimated.unwrap_or_else(|| values.number("bandwidth")) {
        0 => out.string("bandwidth", "unlimited", format_args!("bandwidth unlimited ")),
        rate => out.uint("bandwidth", rate, format_args!("bandwidth {} ", out.style.rate(rate))),
    }
    if values.is_given("autorate-ingress") {
        out.string("autorate", "autorate-ingress", format_args!("autorate-ingress "));
    }
    let diffserv = word(MODES, values, "diffserv");
    let diffserv = if diffserv == "diffserv" { "diffserv4" } else { diffserv };
    out.string("diffserv", diffserv, format_args!("{diffserv} "));
    let flows = word(Mode::WORDS, values, "flows");
    out.string("flowmode", flows, format_args!("{flows} "));
    switch(out, values, "nat", ("nat", ["nonat", "nat"]));
    switch(out, values, "wash", ("wash", ["nowash", "wash"]));
    switch(out, values, "ingress", ("ingress", ["", "ingress"]));
    let (filter, json) = match values.number("ack-filter") {
        0 => ("no-ack-filter", "disabled"),
        1 => ("ack-filter", "enabled"),
        _ => ("ack-filter-aggressive", "aggressive"),
    };
    out.string("ack-filter", json, format_args!("{filter} "));
    let splits = values.number("split-gso") == 0;
    let no = if splits { "" } else { "no-" };
    out.flag("split_gso", splits, format_args!("{no}split-gso "));
    shown::time(out, "rtt", values.number("rtt") / 1_000);
    framing(&Framing::new(values), out);
    if values.is_given("memlimit") {
        shown::size(out, "memlimit", values.number("memlimit"));
    }
    let mark = values.number("fwmark");
    let text = if mark > 0 { format!("fwmark {mark:#x} ") } else { String::new() };
    let json = if mark > 0 { format!("{mark:#x}") } else { "0".into() };
    out.string("fwmark", &json, format_args!("{text}"));
}

/// Shows how the link frames packets.
fn framing(framing: &Framing, out: &mut Out) {
    let (raw, cells) = (framing.raw, framing.cells.word());
    out.flag("raw", raw, format_args!("{}", if raw { "raw " } else { "" }));
    if !raw || cells != "noatm" {
        out.string("atm", cells, format_args!("{cells} "));
    }
    let overhead = framing.overhead;
    out.int("overhead", overhead.into(), format_args!("overhead {overhead} "));
    if framing.mpu > 0 {
        shown::number(out, "mpu", framing.mpu.into());
    }
}

/// The unit of a value in the table.
#[derive(Clone, Copy)]
enum Cell {
    Rate,
    Time,
    Size,
    Count,
}

/// The rows of the table in text: the label of the row, and the place of its statistic in
/// [`NAMES`]. `None` marks rows about the filtering of acknowledgements, which Onramp does not do:
/// these rows show 0.
const ROWS: [(&str, Option<usize>, Cell); 20] = [
    ("thresh", Some(0), Cell::Rate),
    ("target", Some(1), Cell::Time),
    ("interval", Some(2), Cell::Time),
    ("pk_delay", Some(3), Cell::Time),
    ("av_delay", Some(4), Cell::Time),
    ("sp_delay", Some(5), Cell::Time),
    ("backlog", Some(6), Cell::Size),
    ("pkts", Some(7), Cell::Count),
    ("bytes", Some(8), Cell::Count),
    ("way_inds", Some(9), Cell::Count),
    ("way_miss", Some(10), Cell::Count),
    ("way_cols", Some(11), Cell::Count),
    ("drops", Some(12), Cell::Count),
    ("marks", Some(13), Cell::Count),
    ("ack_drop", None, Cell::Count),
    ("sp_flows", Some(14), Cell::Count),
    ("bk_flows", Some(15), Cell::Count),
    ("un_flows", Some(16), Cell::Count),
    ("max_len", Some(17), Cell::Count),
    ("quantum", Some(18), Cell::Count),
];

/// The members of a tin's JSON object: for each, its name and the place of its statistic in
/// [`NAMES`] (`None`: as in [`ROWS`]).
const MEMBERS: [(&str, Option<usize>, Cell); 20] = [
    ("threshold_rate", Some(0), Cell::Rate),
    ("sent_bytes", Some(8), Cell::Count),
    ("backlog_bytes", Some(6), Cell::Size),
    ("target_us", Some(1), Cell::Time),
    ("interval_us", Some(2), Cell::Time),
    ("peak_delay_us", Some(3), Cell::Time),
    ("avg_delay_us", Some(4), Cell::Time),
    ("base_delay_us", Some(5), Cell::Time),
    ("sent_packets", Some(7), Cell::Count),
    ("way_indirect_hits", Some(9), Cell::Count),
    ("way_misses", Some(10), Cell::Count),
    ("way_collisions", Some(11), Cell::Count),
    ("drops", Some(12), Cell::Count),
    ("ecn_mark", Some(13), Cell::Count),
    ("ack_drops", None, Cell::Count),
    ("sparse_flows", Some(14), Cell::Count),
    ("bulk_flows", Some(15), Cell::Count),
    ("unresponsive_flows", Some(16), Cell::Count),
    ("max_pkt_len", Some(17), Cell::Count),
    ("flow_quantum", Some(18), Cell::Count),
];

/// Returns the value of a row for one tin; times are in microseconds.
fn value(extra: &Extra, tin: usize, row: Option<usize>, cell: Cell) -> u64 {
    let value = row.map_or(0, |row| extra.get(NAMES[tin][row]).unsigned_abs());
    if matches!(cell, Cell::Time) { value / 1_000 } else { value }
}

fn statistics(extra: &Extra, out: &mut Out) {
    let number = |key| extra.get(key).unsigned_abs();
    let (used, limit) = (number("memory_used"), number("memory_limit"));
    out.uint("memory_used", used, format_args!(" memory used: {}", Size(used)));
    out.uint("memory_limit", limit, format_args!(" of {}\n", Size(limit)));
    let (key, rate) = ("capacity_estimate", number("capacity_estimate"));
    out.uint(key, rate, format_args!(" capacity estimate: {}\n", out.style.rate(rate)));
    let (min, max) = (number("min_network_size"), number("max_network_size"));
    out.uint("min_network_size", min, format_args!(" min/max network layer size: {min:12}"));
    out.uint("max_network_size", max, format_args!(" / {max:7}\n"));
    let (min, max) = (number("min_adj_size"), number("max_adj_size"));
    out.uint("min_adj_size", min, format_args!(" min/max overhead-adjusted size: {min:8}"));
    out.uint("max_adj_size", max, format_args!(" / {max:7}\n"));
    let offset = number("avg_hdr_offset");
    out.uint(
        "avg_hdr_offset",
        offset,
        format_args!(" average network hdr offset: {offset:12}\n\n"),
    );
    let tins = NAMES.iter().take_while(|names| extra.find(names[0]).is_some()).count();
    if out.is_json() {
        members(extra, tins, out);
    } else {
        table(extra, tins, out);
    }
}

fn members(extra: &Extra, tins: usize, out: &mut Out) {
    out.json(|json| json.open_array(Some("tins")));
    for tin in 0..tins {
        out.open(None);
        for (key, row, cell) in MEMBERS {
            out.uint(key, value(extra, tin, row, cell), format_args!(""));
        }
        out.close();
    }
    out.json(crate::base::show::Json::close_array);
}

/// Returns the name of a tin. The tins of `diffserv3` and of `diffserv4` have names; the tins of
/// other modes have numbers.
fn tin_name(tin: usize, tins: usize) -> String {
    let names: &[&str] = match tins {
        3 => &["Bulk", "Best Effort", "Voice"],
        4 => &["Bulk", "Best Effort", "Video", "Voice"],
        _ => &[],
    };
    names.get(tin).map_or_else(|| format!("Tin {tin}"), |name| (*name).to_owned())
}

fn table(extra: &Extra, tins: usize, out: &mut Out) {
    out.text(format_args!("{:10}", ""));
    for tin in 0..tins {
        out.text(format_args!("{:>13}", tin_name(tin, tins)));
    }
    out.text(format_args!("\n"));
    for (name, row, cell) in ROWS {
        out.text(format_args!("  {name:8}"));
        for tin in 0..tins {
            let value = value(extra, tin, row, cell);
            let text = match cell {
                Cell::Rate => out.style.rate(value).to_string(),
                Cell::Time => shown::micros(value),
                Cell::Size => Size(value).to_string(),
                Cell::Count => value.to_string(),
            };
            out.text(format_args!("{text:>13}"));
        }
        out.text(format_args!("\n"));
    }
    out.text(format_args!("\n"));
}

/// Shows the statistics of a flow.
fn flow(extra: &Extra, out: &mut Out) {
    shown::row(out, extra, "  ", &["deficit", "count"]);
    if extra.get("dropping") > 0 {
        shown::law_time(out, extra, "drop_next_ns");
    }
    shown::row(out, extra, " ", &["blue_prob"]);
    if let Some(ns) = extra.find("blue_timer_ns") {
        let us = ns / 1_000;
        out.int("blue_timer", us, format_args!(" blue_timer {}", shown::signed_micros(us)));
    }
    out.text(format_args!("\n"));
}
