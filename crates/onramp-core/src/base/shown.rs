//! Functions that print items as many listings of `tc` have them: a key and its value, followed by
//! a space.

use crate::base::Extra;
use crate::base::show::{General, Json, Out};
use crate::base::units::{Size, Time};

/// Prints `key` and a plain number.
pub(crate) fn number(out: &mut Out, key: &str, n: u64) {
    out.uint(key, n, format_args!("{key} {n} "));
}

/// Prints `key` and a number of packets.
pub(crate) fn packets(out: &mut Out, key: &str, n: u64) {
    out.uint(key, n, format_args!("{key} {n}p "));
}

/// Prints `key` and a number of bytes.
pub(crate) fn size(out: &mut Out, key: &str, n: u64) {
    out.uint(key, n, format_args!("{key} {} ", Size(n)));
}

/// Prints `key` and a time of `us` microseconds.
pub(crate) fn time(out: &mut Out, key: &str, us: u64) {
    out.uint(key, us, format_args!("{key} {} ", micros(us)));
}

/// Prints `key` and a number with a fraction.
pub(crate) fn float(out: &mut Out, key: &str, n: f64) {
    out.float(key, n, format_args!("{key} {} ", General(n)));
}

/// Prints only `key`, for a flag that is set.
pub(crate) fn flag(out: &mut Out, key: &str) {
    out.flag(key, true, format_args!("{key} "));
}

/// Formats a time of `us` microseconds as `tc` does.
pub(crate) fn micros(us: u64) -> String {
    match us {
        0 => "0us".into(),
        us => Time(us.saturating_mul(1_000)).to_string(),
    }
}

/// Formats a time of `us` microseconds, which may be negative.
pub(crate) fn signed_micros(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "" };
    format!("{sign}{}", micros(us.unsigned_abs()))
}

/// Prints that a drop law (such as CoDel's) is dropping packets, and the time until its next drop.
/// In text, a time in the past has a minus sign.
pub(crate) fn law_time(out: &mut Out, extra: &Extra, key: &str) {
    let us = extra.get(key) / 1_000;
    out.flag("dropping", true, format_args!(" dropping"));
    out.int("drop_next", us, format_args!(" drop_next {}", signed_micros(us)));
}

/// Prints statistics on one line, each as its name and its value. `begin` is printed before the
/// first name.
pub(crate) fn row(out: &mut Out, extra: &Extra, begin: &str, names: &[&str]) {
    for (place, name) in names.iter().enumerate() {
        let (space, value) = (if place == 0 { begin } else { " " }, extra.get(name));
        out.int(name, value, format_args!("{space}{name} {value}"));
    }
}

/// Prints the statistics that `fq_codel` lists for a flow.
pub(crate) fn codel_flow(extra: &Extra, out: &mut Out) {
    row(out, extra, "  ", &["deficit", "count", "lastcount"]);
    let us = extra.get("ldelay_ns") / 1_000;
    out.int("ldelay", us, format_args!(" ldelay {}", signed_micros(us)));
    if extra.get("dropping") > 0 {
        law_time(out, extra, "drop_next_ns");
    }
    out.text(format_args!("\n"));
}

/// Prints all statistics that only the qdisc's kind has, in one line.
pub(crate) fn statistics(extra: &Extra, out: &mut Out) {
    for (name, value) in &extra.0 {
        out.int(name, *value, format_args!("  {name} {value}"));
    }
    if !extra.0.is_empty() {
        out.text(format_args!("\n"));
    }
}

/// Prints `key` and numbers in a row, such as `quanta 1500 3000 `.
pub(crate) fn list(out: &mut Out, key: &str, numbers: &[u64]) {
    out.json(|json| json.open_array(Some(key)));
    out.text(format_args!("{key} "));
    for n in numbers {
        out.json(|json| json.raw(None, format_args!("{n}")));
        out.text(format_args!("{n} "));
    }
    out.json(Json::close_array);
}
