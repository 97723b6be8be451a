//! How `tc` shows a `netem`.
//!
//! Source: behaviour of iproute2 6.1, which does not know `seed`: a `seed` that was given is shown
//! after all other options. In JSON, times are in seconds and probabilities are fractions of one.

use super::{JITTER_MAX_NS, gap, ticks_ns};
use crate::base::Extra;
use crate::base::params::{Values, signed};
use crate::base::show::{General, Out};
use crate::base::shown::micros;
use crate::base::units::Time;

/// The number that stands for a probability of one.
const ALL: u64 = u32::MAX as u64;

pub(super) fn options(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let limit = values.number("limit");
    out.uint("limit", limit, format_args!("limit {limit}"));
    delay(&values.list("delay"), out);
    loss(&values.list("loss"), out);
    chance("duplicate", &values.list("duplicate"), out);
    chance("reorder", &values.list("reorder"), out);
    chance("corrupt", &values.list("corrupt"), out);
    rate(&values.list("rate"), out);
    slot(values, out);
    let ecn = values.is_given("ecn");
    out.flag("ecn", ecn, format_args!("{}", if ecn { " ecn " } else { "" }));
    match gap(values) {
        0 => out.uint("gap", 0, format_args!("")),
        gap => out.uint("gap", gap, format_args!(" gap {gap}")),
    }
    if values.is_given("seed") {
        let seed = values.number("seed");
        out.uint("seed", seed, format_args!(" seed {seed}"));
    }
}

fn at(list: &[u64], place: usize) -> u64 {
    list.get(place).copied().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "a part has 32 bits, and six digits are shown")]
fn part(value: u64) -> f64 {
    value as f64 / ALL as f64
}

#[expect(clippy::cast_precision_loss, reason = "six digits are shown")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Shows a fraction (a probability, for example); text shows it as a percentage.
fn percent(key: &str, before: &str, value: u64, out: &mut Out) {
    let number = part(value);
    out.float(key, number, format_args!("{before}{}%", General(100.0 * number)));
}

/// Shows a correlation; text shows it only if it is not zero.
fn correlation(value: u64, out: &mut Out) {
    match value {
        0 => out.float("correlation", 0.0, format_args!("")),
        _ => percent("correlation", " ", value, out),
    }
}

fn delay(list: &[u64], out: &mut Out) {
    let us = |place| ticks_ns(at(list, place).min([u64::MAX, JITTER_MAX_NS][place])) / 1_000;
    let ticks = |place| ticks_ns(at(list, place)) > 0;
    if !ticks(0) {
        return;
    }
    out.open(Some("delay"));
    out.float("delay", seconds(us(0) * 1_000), format_args!(" delay {}", micros(us(0))));
    let jitter = seconds(us(1) * 1_000);
    if ticks(1) {
        out.float("jitter", jitter, format_args!("  {}", micros(us(1))));
        correlation(at(list, 2), out);
    } else {
        out.float("jitter", jitter, format_args!(""));
        out.float("correlation", part(at(list, 2)), format_args!(""));
    }
    out.close();
}

fn loss(list: &[u64], out: &mut Out) {
    let Some((form, list)) = list.split_first() else { return };
    let or = |place, default| list.get(place).copied().unwrap_or(default);
    let first = at(list, 0);
    let rest = ALL - first;
    let (model, words, keys, parts) = match form {
        0 if first == 0 => return,
        0 => {
            out.open(Some("loss-random"));
            percent("loss", " loss ", first, out);
            correlation(at(list, 1), out);
            return out.close();
        }
        1 => (
            "loss-state",
            " loss state",
            &["p13", "p31", "p32", "p23", "p14"][..],
            vec![first, or(1, rest), or(2, 0), or(3, ALL), or(4, 0)],
        ),
        _ => (
            "loss-gemodel",
            " loss gemodel",
            &["p", "r", "1-h", "1-k"][..],
            vec![first, or(1, rest), or(2, ALL), or(3, 0)],
        ),
    };
    out.open(Some(model));
    out.text(format_args!("{words}"));
    for (key, value) in keys.iter().zip(parts) {
        percent(key, &format!(" {key} "), value, out);
    }
    out.close();
}

fn chance(key: &str, list: &[u64], out: &mut Out) {
    if at(list, 0) == 0 {
        return;
    }
    out.open(Some(key));
    percent(key, &format!(" {key} "), at(list, 0), out);
    correlation(at(list, 1), out);
    out.close();
}

fn rate(list: &[u64], out: &mut Out) {
    let rate = at(list, 0);
    if rate == 0 {
        return;
    }
    let cell = i64::try_from(at(list, 2)).unwrap_or(i64::MAX);
    out.open(Some("rate"));
    out.uint("rate", rate, format_args!(" rate {}", out.style.rate(rate)));
    for (key, number) in [
        ("packetoverhead", signed(at(list, 1)).into()),
        ("cellsize", cell),
        ("celloverhead", signed(at(list, 3)).into()),
    ] {
        match number {
            0 => out.int(key, 0, format_args!("")),
            _ => out.int(key, number, format_args!(" {key} {number}")),
        }
    }
    out.close();
}

fn slot(values: &Values<'_>, out: &mut Out) {
    let list = values.list("slot");
    let (word, keys, times) = match list[..] {
        [0, min] => (" slot", ["min-delay", "max-delay"], [min, min]),
        [0, min, max] => (" slot", ["min-delay", "max-delay"], [min, max]),
        [_, _, mean, jitter] => (" slot distribution", ["distribution", "jitter"], [mean, jitter]),
        _ => return,
    };
    if times == [0, 0] {
        return;
    }
    out.open(Some("slot"));
    out.text(format_args!("{word}"));
    for (key, ns) in keys.into_iter().zip(times) {
        out.float(key, seconds(ns), format_args!(" {}", Time(ns)));
    }
    for key in ["packets", "bytes"] {
        match values.number(key) {
            0 => out.uint(key, 0, format_args!("")),
            number => out.uint(key, number, format_args!(" {key} {number}")),
        }
    }
    out.close();
}
