//! The HTML report of `onramp bench udp`.

use maud::{Markup, html};

use super::chart::{Bar, Bars, Words};
use super::page;
use super::table::{READ, TIMES, duration};
use crate::bench::{Kind, MethodSummary, Percentiles, Ratios, Results, Spread, summarize};

/// Returns the HTML page of `onramp bench udp` and `onramp demo`. `meaning` is a text about what
/// the results mean.
pub(crate) fn bench_udp(results: &Results, kinds: &[Kind], meaning: &str) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let parameters = &results.parameters;
    let verify = parameters.verify;
    let rate = if verify { "Datagrams read" } else { "Datagrams delivered" };
    let rates = bars(&format!("{rate}, millions a second"), &methods, 1e6, |m| {
        m.delivered_per_second.or(Some(m.packets_per_second))
    });
    let cpu = "CPU of the process for each, nanoseconds";
    let cpu = bars(cpu, &methods, 1.0, |m| m.cpu_ns_per_packet);
    let charts = [rates, cpu].into_iter().filter_map(|bars| bars.draw()).collect::<Vec<_>>();
    // With `--verify`, the receiving threads take processors away from the senders, so the rates do
    // not show which method is faster. The ratios of the rates are left out.
    let ratios = if verify { Vec::new() } else { ratios };
    let body = html! {
        p class="soft" { (results.machine.summary()) }
        "\n"
        p class="meaning" { (meaning) }
        "\n"
        @for sentence in results.outcome.sentences() { p class="failed" { (sentence) } "\n" }
        (page::charts(&charts))
        @if verify { p class="soft" { (READ) } }
        (table(&methods, &ratios, if verify { "read" } else { "delivered" }))
        @if !ratios.is_empty() { p class="soft" { "× send: " (TIMES) } "\n" }
        @for method in &methods { (verification(method)) }
        (how(results))
    };
    let title = format!("{} threads, {} bytes over UDP", parameters.threads, parameters.size);
    page::page(&format!("Onramp: {title}"), &body)
}

/// Returns a bar chart with a bar for each method, and on each bar a line from the least to the
/// greatest value over the rounds.
fn bars(
    title: &str,
    methods: &[MethodSummary<'_>],
    unit: f64,
    figure: impl Fn(&MethodSummary<'_>) -> Option<Spread>,
) -> Bars {
    let bar = |method: &MethodSummary<'_>| {
        let spread = figure(method)?;
        Some(Bar {
            name: method.kind.name().to_owned(),
            figure: Some(spread.median / unit),
            range: Some((spread.min / unit, spread.max / unit)),
            note: String::new(),
            highlighted: method.kind == Kind::OURS,
        })
    };
    let words: Words = if unit > 1.0 { |x| format!("{x:.2}") } else { |x| format!("{x:.0}") };
    Bars { title: title.to_owned(), bars: methods.iter().filter_map(bar).collect(), words }
}

fn table(methods: &[MethodSummary<'_>], ratios: &[Ratios], rate: &str) -> Markup {
    let rate = format!("{rate}, Mpps");
    let head = [
        "method",
        &rate,
        "× send",
        "CPU, ns",
        "× send",
        "machine, ns",
        "send call p50",
        "p99",
        "p99.9",
        "max",
        "accept p50",
        "p99",
        "p99.9",
        "max",
        "datagrams per message",
        "fairness",
        "dropped",
    ];
    let rows: Vec<_> = methods.iter().map(|method| row(method, ratios)).collect();
    html! { h2 { "Figures" } (page::table(&head.map(str::to_owned), &rows)) }
}

fn row(method: &MethodSummary<'_>, ratios: &[Ratios]) -> Vec<String> {
    let ratio = ratios.iter().find(|ratio| ratio.kind == method.kind);
    let rate = method.delivered_per_second.unwrap_or(method.packets_per_second);
    let ns =
        |spread: Option<Spread>| spread.map_or_else(|| "-".into(), |s| format!("{:.0}", s.median));
    let times = |spread: Option<Spread>| {
        spread.map_or_else(String::new, |spread| format!("{:.2}", spread.median))
    };
    let latencies = |ns: Option<Percentiles>| {
        ns.map_or_else(
            || ["-"; 4].map(str::to_owned),
            |ns| [ns.p50, ns.p99, ns.p999, ns.max].map(duration),
        )
    };
    let mut cells = vec![
        method.kind.name().to_owned(),
        format!("{:.3}", rate.median / 1e6),
        times(ratio.and_then(|r| r.delivered_per_second.or(r.packets_per_second))),
        ns(method.cpu_ns_per_packet),
        times(ratio.and_then(|r| r.cpu_ns_per_packet)),
        ns(method.machine_cpu_ns_per_packet),
    ];
    cells.extend(latencies(method.send_ns));
    cells.extend(latencies(method.accept_ns));
    cells.extend([
        format!("{:.1}", method.median(|round| round.per_message)),
        format!("{:.3}", method.jain.median),
        method.drops.values().sum::<u64>().to_string(),
    ]);
    cells
}

fn verification(method: &MethodSummary<'_>) -> Markup {
    let Some(checked) = method.checked() else { return html! {} };
    let verdict = match checked.failures.first() {
        None => "everything arrived in order, or was dropped for a reason".to_owned(),
        Some(failure) => format!("failed: {failure}"),
    };
    let head = ["gaps between arrivals", "count"].map(str::to_owned);
    let gap = |(from, below, count): (u64, u64, u64)| {
        vec![format!("{} to {}", duration(from), duration(below)), count.to_string()]
    };
    let [wire, payload] = [checked.pace.wire_bits_per_second, checked.pace.payload_bits_per_second]
        .map(|rate| format!("{:.4}", rate / 1e6));
    html! {
        h2 { "Verification of " (method.kind.name()) }
        p {
            (verdict) ": " (checked.submitted) " submitted, " (checked.delivered) " delivered. "
            "Receiver's rate: " (wire) " Mbit/s on the wire, " (payload) " Mbit/s of payload."
        }
        "\n"
        @for (reason, count) in &method.drops { p { "Dropped, " (reason) ": " (count) } "\n" }
        (page::table(&head, &checked.pace.gaps.filled().map(gap).collect::<Vec<_>>()))
    }
}

fn how(results: &Results) -> Markup {
    let parameters = &results.parameters;
    html! {
        h2 { "How it was measured" }
        p {
            "All methods took turns in one run: " (parameters.rounds) " rounds of "
            (parameters.seconds) " s each after a warm-up of " (parameters.warm_up_seconds)
            " s, flows per thread: " (parameters.flows_per_thread) ", sink " (parameters.sink)
            ", the link's qdisc " code { (parameters.qdisc) } ", onramp "
            (results.machine.onramp) ". Rates are medians; bars end at the median, lines reach "
            "from the worst to the best round. " (results.machine.was_busy().unwrap_or_default())
        }
        "\n"
    }
}
