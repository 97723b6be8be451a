//! Results to look at: one file that needs nothing else, in light and dark.

use std::fmt::Write;

use super::table::{READ, duration};
use crate::bench::{Kind, MethodSummary, Ratios, Results, Spread, summarize};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2733;--soft:#5b6b7b;--line:#d7dee5;--paper:#fff;\
--other:#9fb1c2;--ours:#0b7a75}\
@media(prefers-color-scheme:dark){:root{--ink:#e4eaf0;--soft:#94a5b5;--line:#33414e;\
--paper:#131a21;--other:#56697b;--ours:#2fb3ab}}\
body{margin:0 auto;max-width:60rem;padding:2rem 1rem;color:var(--ink);background:var(--paper);\
font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
p.meaning{font-size:1.15rem;border-left:.25rem solid var(--ours);padding-left:.75rem}\
.soft,figcaption{color:var(--soft)}figure{margin:1rem 0}svg{width:100%;height:auto;display:block}\
svg text{fill:var(--ink);font:13px system-ui,sans-serif}svg .other{fill:var(--other)}\
svg .ours{fill:var(--ours)}svg line{stroke:var(--ink);stroke-width:1.5}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}\
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;\
white-space:nowrap}th:first-child,td:first-child{text-align:left}th{font-weight:600}";

/// `onramp bench udp` and `onramp demo`; `meaning` says in a sentence what it means.
pub(crate) fn bench_udp(results: &Results, kinds: &[Kind], meaning: &str) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let parameters = &results.parameters;
    let title = format!("{} threads, {} bytes over UDP", parameters.threads, parameters.size);
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Onramp: {title}</title><style>{STYLE}</style></head>\n<body>\n\
         <h1>{title}</h1>\n<p class=\"soft\">{}</p>\n<p class=\"meaning\">{}</p>\n",
        escape(&results.machine.summary()),
        escape(meaning),
    );
    let delivered = |m: &MethodSummary<'_>| m.delivered_per_second.or(Some(m.packets_per_second));
    let verify = parameters.verify;
    let title = if verify { "Datagrams read" } else { "Datagrams delivered" };
    chart(&mut page, &format!("{title}, millions a second"), &methods, delivered, 1e6);
    if verify {
        let _ = writeln!(page, "<p class=\"soft\">{READ}</p>");
    }
    let cpu = |m: &MethodSummary<'_>| m.cpu_ns_per_packet;
    chart(&mut page, "CPU of the process for each, nanoseconds", &methods, cpu, 1.0);
    // What receivers read says little about who sends faster.
    let ratios = if verify { Vec::new() } else { ratios };
    table(&mut page, &methods, &ratios, if verify { "read" } else { "delivered" });
    verification(&mut page, &methods);
    let _ = write!(
        page,
        "<h2>How it was measured</h2>\n<p>All methods took turns in one run: {} rounds of {} s \
         each after a warm-up of {} s, flows per thread: {}, sink {}, the link's qdisc \
         <code>{}</code>, onramp {}. Rates are medians; bars end at the median, lines reach from \
         the worst to the best round. {}</p>\n</body></html>\n",
        parameters.rounds,
        parameters.seconds,
        parameters.warm_up_seconds,
        parameters.flows_per_thread,
        escape(&parameters.sink),
        escape(&parameters.qdisc),
        results.machine.onramp,
        escape(&results.machine.was_busy().unwrap_or_default()),
    );
    page
}

/// A bar for each method, with a line from its least to its greatest round.
fn chart(
    page: &mut String,
    title: &str,
    methods: &[MethodSummary<'_>],
    figure: impl Fn(&MethodSummary<'_>) -> Option<Spread>,
    unit: f64,
) {
    let figures: Vec<_> = methods.iter().map(|m| (m.kind, figure(m))).collect();
    let most = figures.iter().filter_map(|(_, s)| s.map(|s| s.max)).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let height = figures.len() * 30;
    let _ = write!(
        page,
        "<figure><figcaption>{title}</figcaption>\n\
         <svg viewBox=\"0 0 720 {height}\" role=\"img\" aria-label=\"{title}\">"
    );
    for (row, (kind, spread)) in figures.iter().enumerate() {
        let Some(spread) = spread else { continue };
        let (top, middle) = (row * 30 + 4, row * 30 + 15);
        let x = |value: f64| 90.0 + value / most * 520.0;
        let _ = write!(
            page,
            "<text x=\"0\" y=\"{}\">{name}</text>\
             <rect class=\"{}\" x=\"90\" y=\"{top}\" width=\"{:.1}\" height=\"22\" rx=\"2\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{:.*}</text>",
            middle + 5,
            if *kind == Kind::OURS { "ours" } else { "other" },
            x(spread.median) - 90.0,
            x(spread.min),
            x(spread.max),
            x(spread.max) + 8.0,
            middle + 5,
            if unit > 1.0 { 2 } else { 0 },
            spread.median / unit,
            name = kind.name(),
        );
    }
    page.push_str("</svg></figure>\n");
}

fn table(page: &mut String, methods: &[MethodSummary<'_>], ratios: &[Ratios], rate: &str) {
    let _ = write!(
        page,
        "<h2>Figures</h2>\n<div class=\"wide\"><table><thead><tr><th>method<th>{rate}, \
         Mpps<th>&times; send<th>CPU, ns<th>&times; send<th>machine, ns<th>send call p50<th>p99\
         <th>p99.9<th>max<th>datagrams per message<th>fairness<th>dropped</tr></thead><tbody>\n",
    );
    for method in methods {
        let ratio = ratios.iter().find(|ratio| ratio.kind == method.kind);
        let rate = method.delivered_per_second.unwrap_or(method.packets_per_second);
        let ns = |spread: Option<Spread>| {
            spread.map_or_else(|| "-".into(), |s| format!("{:.0}", s.median))
        };
        let times = |spread: Option<Spread>| {
            spread.map_or(String::new(), |spread| format!("{:.2}", spread.median))
        };
        let send = method.send_ns.map_or_else(
            || ["-"; 4].map(str::to_owned),
            |ns| [ns.p50, ns.p99, ns.p999, ns.max].map(duration),
        );
        let cells = [
            method.kind.name().to_owned(),
            format!("{:.3}", rate.median / 1e6),
            times(ratio.and_then(|r| r.delivered_per_second.or(r.packets_per_second))),
            ns(method.cpu_ns_per_packet),
            times(ratio.and_then(|r| r.cpu_ns_per_packet)),
            ns(method.machine_cpu_ns_per_packet),
        ];
        let tail = [
            format!("{:.1}", method.median(|round| round.per_message)),
            format!("{:.3}", method.jain.median),
            method.drops.values().sum::<u64>().to_string(),
        ];
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{}</tr>",
            cells.join("<td>"),
            send.join("<td>"),
            tail.join("<td>")
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn verification(page: &mut String, methods: &[MethodSummary<'_>]) {
    for method in methods {
        let Some(checked) = method.checked() else { continue };
        let name = method.kind.name();
        let verdict = match checked.failures.first() {
            None => "everything arrived in order, or was dropped for a reason".to_owned(),
            Some(failure) => format!("failed: {failure}"),
        };
        let _ = writeln!(
            page,
            "<h2>Verification of {name}</h2>\n<p>{}: {} submitted, {} delivered. Receiver's rate: \
             {:.4} Mbit/s on the wire, {:.4} Mbit/s of payload.</p>",
            escape(&verdict),
            checked.submitted,
            checked.delivered,
            checked.pace.wire_bits_per_second / 1e6,
            checked.pace.payload_bits_per_second / 1e6,
        );
        for (reason, count) in &method.drops {
            let _ = writeln!(page, "<p>Dropped, {}: {count}</p>", escape(reason));
        }
        page.push_str("<table><thead><tr><th>gaps between arrivals<th>count</tr></thead><tbody>\n");
        for (from, below, count) in checked.pace.gaps.filled() {
            let (from, below) = (duration(from), duration(below));
            let _ = writeln!(page, "<tr><td>{from} to {below}<td>{count}</tr>");
        }
        page.push_str("</tbody></table>\n");
    }
}

/// Text that means itself in HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_stays_text() {
        assert_eq!(escape("<b a=\"&\">"), "&lt;b a=&quot;&amp;&quot;&gt;");
    }
}
