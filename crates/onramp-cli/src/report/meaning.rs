//! What the figures mean, in one sentence, whoever won.

use crate::bench::{Kind, MethodSummary, Results, summarize};

/// One sentence about the method that matters most among `kinds`: Onramp if it ran.
pub(crate) fn bench_udp(results: &Results, kinds: &[Kind]) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let best = methods.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    let subject = methods.iter().find(|method| method.kind == Kind::OURS).or(best);
    let Some(subject) = subject else { return "Nothing was measured.".to_owned() };
    let name = subject.kind.name();
    let (threads, size) = (results.parameters.threads, results.parameters.size);
    let verb = if subject.delivered_per_second.is_some() { "delivered" } else { "sent" };
    let plain = format!(
        "With {threads} threads sending {size}-byte datagrams, {name} {verb} {} a second",
        words(rate(subject))
    );
    let Some(ratio) = ratios.iter().find(|ratio| ratio.kind == subject.kind) else {
        return format!("{plain}.");
    };
    let times = ratio.delivered_per_second.or(ratio.packets_per_second).map(|s| s.median);
    let cpu = ratio.cpu_ns_per_packet.map(|s| s.median);
    let (Some(times), Some(cpu)) = (times, cpu) else { return format!("{plain}.") };
    let verdict = match (times >= 1.0, cpu <= 1.0) {
        (true, true) => "more packets for less CPU",
        (true, false) => "more packets, but for more CPU",
        (false, true) => "fewer packets, but for less CPU each",
        (false, false) => "here it lost: fewer packets for more CPU",
    };
    format!(
        "{plain}, {times:.2} times what the same threads got with send, at {cpu:.2} times the CPU \
         for each: {verdict}."
    )
}

/// A number as one says it.
fn words(count: f64) -> String {
    match count {
        1e6.. => format!("{:.2} million", count / 1e6),
        1e4.. => format!("{:.1} thousand", count / 1e3),
        _ => format!("{count:.0}"),
    }
}

fn rate(method: &MethodSummary<'_>) -> f64 {
    method.delivered_per_second.unwrap_or(method.packets_per_second).median
}
