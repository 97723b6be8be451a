//! Results of `onramp bench udp` for people at a terminal.

use std::fmt::Write;

use crate::bench::{Checked, Kind, MethodSummary, Percentiles, Ratios, Results, Spread, summarize};

/// The note about the column `read`, which the table has if the option `--verify` was given.
pub(super) const READ: &str = "read: datagrams that the checking receivers read during the \
                               measurement; the receivers share the processors with the senders, \
                               so this figure does not compare methods";

/// The note about the columns with ratios to `send`.
pub(super) const TIMES: &str = "the figure divided by that of send in the same round; the median \
                                of the rounds";

/// Returns the results of `onramp bench udp` as text.
pub(crate) fn bench_udp(results: &Results, kinds: &[Kind]) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let parameters = &results.parameters;
    let mut text = String::new();
    let _ = writeln!(text, "{}", results.machine.summary());
    for warning in results.machine.warnings() {
        let _ = writeln!(text, "{warning}");
    }
    let _ = writeln!(
        text,
        "{} {} x {} {}, {} bytes, sink {}; {} x {} s each: median (min - max)\n",
        parameters.threads,
        if parameters.threads == 1 { "thread" } else { "threads" },
        parameters.flows_per_thread,
        if parameters.flows_per_thread == 1 { "flow" } else { "flows" },
        parameters.size,
        parameters.sink,
        parameters.rounds,
        parameters.seconds,
    );
    let most = methods.iter().map(|method| delivered(method).median).fold(0.0, f64::max);
    let unit = if most < 1e5 { 1e3 } else { 1e6 };
    let header = [
        "method",
        match (parameters.verify, unit < 1e6) {
            (false, true) => "delivered kpps",
            (false, false) => "delivered Mpps",
            (true, true) => "read kpps",
            (true, false) => "read Mpps",
        },
        "x send",
        "CPU ns/packet",
        "x send",
        "send p50",
        "p99",
        "p99.9",
        "max",
        "accept p50",
        "p99",
        "p99.9",
        "max",
        "datagrams/message",
        "fairness",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    // With `--verify`, the receiving threads take processors away from the senders, so the rates do
    // not show which method is faster. The ratios of the rates are left out.
    let ratios = if parameters.verify { Vec::new() } else { ratios };
    rows.extend(methods.iter().map(|method| row(method, &ratios, unit)));
    text.push_str(&align(&rows));
    if parameters.verify {
        let _ = writeln!(text, "{READ}");
    }
    if !ratios.is_empty() {
        let _ = writeln!(text, "x send: {TIMES}");
    }
    text.push('\n');
    for method in &methods {
        text.push_str(&notes(method));
    }
    text.push_str(&results.outcome.text());
    text
}

fn delivered(method: &MethodSummary<'_>) -> Spread {
    method.delivered_per_second.unwrap_or(method.packets_per_second)
}

fn row(method: &MethodSummary<'_>, ratios: &[Ratios], unit: f64) -> Vec<String> {
    let ratios = ratios.iter().find(|ratio| ratio.kind == method.kind);
    let times = |pick: fn(&Ratios) -> Option<Spread>| {
        ratios.and_then(pick).map_or_else(String::new, |s| format!("{:.2}", s.median))
    };
    let rate = delivered(method);
    let known = if method.delivered_per_second.is_some() { "" } else { " offered" };
    let cpu = method
        .cpu_ns_per_packet
        .map_or_else(dash, |s| format!("{:.0} ({:.0} - {:.0})", s.median, s.min, s.max));
    let [p50, p99, p999, max] = latencies(method.send_ns);
    let [accept, accept_p99, accept_p999, accept_max] = latencies(method.accept_ns);
    vec![
        method.kind.name().to_owned(),
        format!(
            "{:.3} ({:.3} - {:.3}){known}",
            rate.median / unit,
            rate.min / unit,
            rate.max / unit
        ),
        times(|r| r.delivered_per_second.or(r.packets_per_second)),
        cpu,
        times(|r| r.cpu_ns_per_packet),
        p50,
        p99,
        p999,
        max,
        accept,
        accept_p99,
        accept_p999,
        accept_max,
        format!("{:.1}", method.median(|round| round.per_message)),
        format!("{:.3}", method.jain.median),
    ]
}

fn latencies(ns: Option<Percentiles>) -> [String; 4] {
    ns.map_or_else(
        || std::array::from_fn(|_| dash()),
        |ns| [ns.p50, ns.p99, ns.p999, ns.max].map(duration),
    )
}

/// Returns the text of a cell without a figure: nothing was measured, or there is nothing.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// Returns the text for a duration of `ns` nanoseconds, in the unit that suits it.
pub(crate) fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn notes(method: &MethodSummary<'_>) -> String {
    let mut text = String::new();
    let name = method.kind.name();
    if let Some(wait) = method.wait_ns {
        let per_second = method.median(|round| round.refused as f64 / round.seconds);
        let [p50, p99, p999, max] = latencies(Some(wait));
        let _ = writeln!(
            text,
            "{name}: waited for room {per_second:.0} times a second: p50 {p50}, p99 {p99}, p99.9 \
             {p999}, max {max}"
        );
    }
    if !method.drops.is_empty() {
        let drops: Vec<_> =
            method.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let _ = writeln!(text, "{name}: dropped: {}", drops.join(", "));
    }
    if let Some(checked) = method.checked() {
        text.push_str(&verify(name, checked));
    }
    text
}

fn verify(name: &str, checked: &Checked) -> String {
    let mut text = String::new();
    let (submitted, delivered) = (checked.submitted, checked.delivered);
    let verdict = match (checked.failures.is_empty(), submitted == delivered) {
        (false, _) => "FAILED",
        (true, true) => "verified, all in order",
        (true, false) => "verified, in order, the rest dropped for the reasons above",
    };
    let _ = writeln!(text, "{name}: {submitted} submitted, {delivered} delivered: {verdict}");
    for failure in &checked.failures {
        let _ = writeln!(text, "{name}: {failure}");
    }
    if checked.foreign > 0 {
        let _ = writeln!(text, "{name}: ignored {} datagrams of other programs", checked.foreign);
    }
    let pace = &checked.pace;
    let [min, median, max] = pace.flow_wire_bits_per_second.map(|rate| rate / 1e6);
    let _ = writeln!(
        text,
        "{name}: receiver's rate {:.4} Mbit/s on the wire ({:.4} of payload); per flow min \
         {min:.4}, median {median:.4}, max {max:.4}",
        pace.wire_bits_per_second / 1e6,
        pace.payload_bits_per_second / 1e6,
    );
    let filled: Vec<_> = pace.gaps.filled().collect();
    let total: u64 = filled.iter().map(|(.., count)| count).sum();
    if total > 0 {
        let _ = writeln!(text, "{name}: gaps between arrivals of a flow:");
    }
    for (from, below, count) in filled {
        let share = count as f64 / total as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 40")]
        let bar = "#".repeat((share * 40.0).round() as usize);
        let _ = writeln!(
            text,
            "  {:>9} - {:>9} {count:>12} {:>6.2} % {bar}",
            duration(from),
            duration(below),
            share * 100.0
        );
    }
    text
}

/// Returns a text table in which every column is as wide as its widest cell. The first column is
/// aligned to the left, the others to the right.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
