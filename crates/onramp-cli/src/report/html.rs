//! The HTML report of `onramp bench udp`.

use maud::{Markup, html};

use super::chart::{Bar, Bars, Words};
use super::table::{READ, TIMES, dash, duration};
use super::{meaning, page};
use crate::bench::{Kind, MethodSummary, Percentiles, Ratios, Results, Spread, summarize};

/// Returns the HTML page of `onramp bench udp` and `onramp demo`.
pub(crate) fn bench_udp(results: &Results, kinds: &[Kind]) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let parameters = &results.parameters;
    let verify = parameters.verify;
    let rate = if verify { "Datagrams read" } else { "Datagrams delivered" };
    let rates = bars(&format!("{rate}, millions a second"), &methods, 1e6, |m| {
        m.delivered_per_second.or(Some(m.packets_per_second))
    });
    let cpu = "CPU of the process for each, nanoseconds";
    let cpu = bars(cpu, &methods, 1.0, |m| m.cpu_ns_per_packet);
    // With `--verify`, the receiving threads take processors away from the senders, so the rates do
    // not show which method is faster. The ratios of the rates are left out.
    let ratios = if verify { Vec::new() } else { ratios };
    let own_gso = meaning::own_gso(results, kinds);
    let body = html! {
        p class="meaning" { (question(results)) " " (meaning::bench_udp(results, kinds)) }
        "\n"
        @for sentence in results.outcome.sentences() { p class="failed" { (sentence) } "\n" }
        (page::charts(&rates.draw()))
        @if verify { p class="soft" { (READ) } "\n" }
        @if let Some(own_gso) = own_gso { p { (own_gso) } "\n" }
        (page::charts(&cpu.draw()))
        h2 { "The methods" }
        (page::list(&methods.iter().map(about).collect::<Vec<_>>()))
        (figures(&methods, &ratios, if verify { "read" } else { "delivered" }))
        @if !ratios.is_empty() { p class="soft" { "× send: " (TIMES) } "\n" }
        (latencies(&methods))
        @for method in &methods { (verification(method)) }
        (how(results))
    };
    let title = format!("{} threads, {} bytes over UDP", parameters.threads, parameters.size);
    page::page(&format!("Onramp: {title}"), &body)
}

/// Returns a text that says, for readers who do not know the subject, what was measured.
fn question(results: &Results) -> String {
    let (threads, size) = (results.parameters.threads, results.parameters.size);
    let of = match threads {
        1 => "one thread sends".to_owned(),
        _ => format!("{threads} threads send at once"),
    };
    format!(
        "A datagram is a message over UDP, here of {size} bytes. This page shows how many get \
         through a second if {of}, and how much processor time each costs."
    )
}

fn about(method: &MethodSummary<'_>) -> (String, String) {
    (method.kind.name().to_owned(), method.kind.about().to_owned())
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

fn figures(methods: &[MethodSummary<'_>], ratios: &[Ratios], rate: &str) -> Markup {
    let rate = format!("{rate}, millions a second");
    let head = [
        "method",
        &rate,
        "× send",
        "CPU of the process for each, ns",
        "× send",
        "CPU of the machine for each, ns",
        "datagrams per message",
        "fairness",
        "dropped",
    ];
    let rows: Vec<_> = methods.iter().map(|method| row(method, ratios)).collect();
    html! { h2 { "Figures" } (page::table(&head.map(str::to_owned), &rows)) }
}

/// Returns the table of how long calls took, and how long it took until a batch was accepted.
fn latencies(methods: &[MethodSummary<'_>]) -> Markup {
    let parts = ["p50", "p99", "p99.9", "max"];
    let head = ["send call", "accept"].into_iter().flat_map(|what| parts.map(|p| (what, p)));
    let head = head.map(|(what, part)| format!("{what} {part}"));
    let head: Vec<_> = std::iter::once("method".to_owned()).chain(head).collect();
    let cells = |ns: Option<Percentiles>| {
        ns.map_or_else(
            || std::array::from_fn(|_| dash()),
            |ns| [ns.p50, ns.p99, ns.p999, ns.max].map(duration),
        )
    };
    let row = |method: &MethodSummary<'_>| {
        let mut row = vec![method.kind.name().to_owned()];
        row.extend([method.send_ns, method.accept_ns].into_iter().flat_map(cells));
        row
    };
    html! {
        h2 { "How long a thread was busy with a call" }
        (page::table(&head, &methods.iter().map(row).collect::<Vec<_>>()))
        p class="soft" {
            "p99: 99 of 100 took no longer. Accept: from the first call for a batch until the "
            "thread may go on to the next one."
        }
        "\n"
    }
}

fn row(method: &MethodSummary<'_>, ratios: &[Ratios]) -> Vec<String> {
    let ratio = ratios.iter().find(|ratio| ratio.kind == method.kind);
    let rate = method.delivered_per_second.unwrap_or(method.packets_per_second);
    let ns = |spread: Option<Spread>| spread.map_or_else(dash, |s| format!("{:.0}", s.median));
    let times = |spread: Option<Spread>| {
        spread.map_or_else(String::new, |spread| format!("{:.2}", spread.median))
    };
    vec![
        method.kind.name().to_owned(),
        format!("{:.3}", rate.median / 1e6),
        times(ratio.and_then(|r| r.delivered_per_second.or(r.packets_per_second))),
        ns(method.cpu_ns_per_packet),
        times(ratio.and_then(|r| r.cpu_ns_per_packet)),
        ns(method.machine_cpu_ns_per_packet),
        format!("{:.1}", method.median(|round| round.per_message)),
        format!("{:.3}", method.jain.median),
        method.drops.values().sum::<u64>().to_string(),
    ]
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
            (results.machine.summary()) ". All methods took turns in one run: "
            (parameters.rounds) " rounds of "
            (parameters.seconds) " s each after a warm-up of " (parameters.warm_up_seconds)
            " s, flows per thread: " (parameters.flows_per_thread) ", sink " (parameters.sink)
            ", the link's qdisc " code { (parameters.qdisc) } ", onramp "
            (results.machine.onramp) ". Rates are medians; bars end at the median, lines reach "
            "from the worst to the best round. Fairness is Jain's index over the flows: 1 if the "
            "same number was delivered for each. All flows want more than they get, so none is "
            "unequal because it asked for little. " (results.machine.warnings().join(" "))
        }
        "\n"
    }
}
