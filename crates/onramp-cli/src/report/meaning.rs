//! Says in a sentence or two what the figures of a benchmark mean, whether Onramp won or not.

use onramp::DropReason;

use crate::bench::{Kind, MethodSummary, OVERFLOW, Results, WIRE_OVERFLOW, summarize};

/// Returns a sentence or two about Onramp if it is among the methods in `kinds`; otherwise about
/// the fastest method.
pub(crate) fn bench_udp(results: &Results, kinds: &[Kind]) -> String {
    let (methods, ratios) = summarize(kinds, &results.rounds);
    let best = methods.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    let subject = methods.iter().find(|method| method.kind == Kind::OURS).or(best);
    let Some(subject) = subject else { return "Nothing was measured.".to_owned() };
    let name = subject.kind.name();
    let (threads, size) = (results.parameters.threads, results.parameters.size);
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let given = format!("With {threads} sending {size}-byte datagrams, {name}");
    if results.parameters.verify {
        return format!("{given} {}", verified(subject));
    }
    if nothing(subject).is_some() {
        return format!("{given} delivered nothing.");
    }
    let verb = if subject.delivered_per_second.is_some() { "delivered" } else { "sent" };
    let plain = format!("{given} {verb} {} a second", words(rate(subject)));
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
    // With several rounds, the text gives the median of the rounds' ratios, which differs from the
    // ratio of the two medians.
    let (plain, medians) = match subject.rounds.len() {
        1 => (format!("{plain},"), ""),
        rounds => (
            format!("{plain}, the median of {rounds} rounds. Round by round, it {verb}"),
            " (medians of the rounds' ratios)",
        ),
    };
    format!(
        "{plain} {times:.2} times what the same threads got with send, at {cpu:.2} times the CPU \
         for each{medians}: {verdict}."
    )
}

/// Returns what [`bench_udp`] and [`own_gso`] return, as paragraphs for a terminal.
pub(crate) fn paragraphs(results: &Results, kinds: &[Kind]) -> String {
    let own_gso = own_gso(results, kinds).map_or_else(String::new, |text| format!("\n{text}\n"));
    format!("{}\n{own_gso}", bench_udp(results, kinds))
}

/// If the method `gso` used less CPU for each datagram than Onramp, returns a text that says so and
/// when to send like that; `None` if it did not, or if one of the two was not measured.
pub(crate) fn own_gso(results: &Results, kinds: &[Kind]) -> Option<String> {
    let (methods, _) = summarize(kinds, &results.rounds);
    let cpu = |kind| {
        let method = methods.iter().find(|method| method.kind == kind)?;
        Some(method.cpu_ns_per_packet?.median)
    };
    let (gso, ours) = (cpu(Kind::Gso)?, cpu(Kind::OURS)?);
    // The verifying receivers take CPU time of the same process, so the figures mean nothing then.
    (gso.round() < ours.round() && !results.parameters.verify).then(|| {
        format!(
            "gso used less CPU for each datagram than onramp: {gso:.0} ns against {ours:.0} ns. \
             With it, each thread fills a buffer of its own for one destination and hands the \
             whole buffer to the kernel in one call (UDP_SEGMENT). Do that instead of using Onramp \
             if each of your threads has whole batches for one destination, and needs no pacing, \
             no priorities, no fairness and no rate that threads share."
        )
    })
}

/// Returns a text about what became of all datagrams of a method in verified rounds. The text says
/// nothing about speed, because the receiving threads take processors away from the senders.
fn verified(method: &MethodSummary<'_>) -> String {
    let checks = method.rounds.iter().filter_map(|round| round.checked.as_ref());
    let (mut submitted, mut delivered, mut failed) = (0, 0, false);
    for checked in checks {
        submitted += checked.submitted;
        delivered += checked.delivered;
        failed |= !checked.failures.is_empty();
    }
    match (failed, submitted.saturating_sub(delivered)) {
        (true, _) => "FAILED the verification: see above.".to_owned(),
        (false, 0) => format!("delivered all of {submitted}, in order."),
        (false, dropped) => format!(
            "delivered {delivered} of {submitted}, in order; {dropped} were dropped, each for a \
             reason."
        ),
    }
}

/// For each method that delivered no datagram, returns a sentence that says so and gives the
/// reason.
pub(crate) fn nothing_delivered(results: &Results, kinds: &[Kind]) -> Vec<String> {
    let (methods, _) = summarize(kinds, &results.rounds);
    methods.iter().filter_map(nothing).collect()
}

fn nothing(method: &MethodSummary<'_>) -> Option<String> {
    let none = method.rounds.iter().all(|round| match (&round.checked, round.delivered) {
        (Some(checked), _) => checked.delivered == 0,
        (None, Some(delivered)) => delivered == 0,
        // If the sink is another program's socket, the benchmark cannot count arrivals. It then
        // says that nothing was delivered only if no datagram was handed to the kernel.
        (None, None) => round.per_message == 0.0,
    });
    if !none {
        return None;
    }
    let name = method.kind.name();
    let submitted: u64 = method.rounds.iter().map(|round| round.submitted).sum();
    let Some((reason, count)) = method.drops.iter().max_by_key(|(_, count)| **count) else {
        return Some(match submitted {
            0 => format!(
                "method {name}: nothing was sent while it was measured: its threads got no \
                 processor; measure longer (--seconds), or when the machine is idle"
            ),
            _ => format!(
                "method {name}: nothing was delivered while it was measured, of {submitted} \
                 submitted, and nothing dropped either; measure longer (--seconds), or look at \
                 --qdisc"
            ),
        });
    };
    let known = DropReason::ALL.iter().find(|known| known.name() == *reason);
    let about = match known {
        Some(DropReason::Purged) => {
            "The qdisc held it until the link closed: give a faster rate, or measure longer \
             (--seconds)."
        }
        Some(known) => known.about(),
        None if *reason == OVERFLOW => "The receiver's buffer was full.",
        None if *reason == WIRE_OVERFLOW => "The wire's queue was full.",
        None => "",
    };
    Some(format!("method {name}: nothing was delivered: {count} dropped as {reason}: {about}"))
}

/// Returns the text for a number as people would say it, such as in millions.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bench::{Round, planted};
    use crate::machine::Machine;
    use crate::watch::Outcome;

    fn results(verify: bool, rounds: Vec<Round>) -> Results {
        let mut parameters = planted::plan().parameters();
        parameters.verify = verify;
        let outcome = Outcome::default();
        Results { machine: Machine::here(), parameters, rounds, outcome }
    }

    #[test]
    fn a_verified_run_compares_nothing() {
        let round = |kind| Round {
            checked: Some(planted::checked([2, 1], [&[0, 1], &[0]])),
            ..planted::round(kind, 8, 1)
        };
        let kinds = [Kind::Send, Kind::OURS];
        let meaning = bench_udp(&results(true, kinds.map(round).into()), &kinds);
        let given = "With 2 threads sending 58-byte datagrams, onramp";
        assert_eq!(meaning, format!("{given} delivered all of 3, in order."));
        let plain = kinds.map(|kind| planted::round(kind, 8, 1));
        let meaning = bench_udp(&results(false, plain.into()), &kinds);
        assert!(meaning.contains("1.00 times what the same threads got with send"), "{meaning}");
    }

    #[test]
    fn that_ones_own_gso_costs_less_is_told_where_it_holds() {
        let told = |gso, ours, verify| {
            let kinds = [Kind::Gso, Kind::OURS];
            let rounds = [planted::round(kinds[0], 8, gso), planted::round(kinds[1], 8, ours)];
            own_gso(&results(verify, rounds.into()), &kinds)
        };
        let less = told(400, 800, false).expect("it costs less");
        assert!(less.starts_with("gso used less CPU for each datagram than onramp: "), "{less}");
        assert!(less.contains("Do that instead of using Onramp if each of your threads"), "{less}");
        assert_eq!(
            [told(800, 400, false), told(400, 400, false), told(400, 800, true)],
            [None, None, None]
        );
        let alone = results(false, vec![planted::round(Kind::OURS, 8, 400)]);
        assert_eq!(own_gso(&alone, &[Kind::OURS]), None);
    }

    #[test]
    fn a_ratio_of_several_rounds_is_not_that_of_the_rates_told() {
        let kinds = [Kind::Send, Kind::OURS];
        let round = |send, ours| {
            [planted::round(kinds[0], send, send * 100), planted::round(kinds[1], ours, ours * 40)]
        };
        // With `send`, 50, 100 and 200 datagrams arrive per second in the three rounds; with
        // Onramp, 4, 6 and 2.5 times as many.
        let rounds = [round(200, 800), round(400, 2_400), round(800, 2_000)];
        let meaning = bench_udp(&results(false, rounds.into_iter().flatten().collect()), &kinds);
        assert_eq!(
            meaning,
            "With 2 threads sending 58-byte datagrams, onramp delivered 500 a second, the median \
             of 3 rounds. Round by round, it delivered 4.00 times what the same threads got with \
             send, at 0.40 times the CPU for each (medians of the rounds' ratios): more packets \
             for less CPU."
        );
    }

    #[test]
    fn that_nothing_was_delivered_is_told_with_its_reason() {
        let told = |round: Round| nothing_delivered(&results(false, vec![round]), &[Kind::OURS]);
        let round = || planted::round(Kind::OURS, 8, 1);
        assert!(told(round()).is_empty());
        let drops = BTreeMap::from([("overlimit", 7), ("purged", 1)]);
        let dropped = told(Round { delivered: Some(0), drops, ..round() });
        let reason = "7 dropped as overlimit: The qdisc held its `limit` of packets or bytes.";
        assert_eq!(dropped, [format!("method onramp: nothing was delivered: {reason}")]);
        let starved = told(Round { delivered: Some(0), submitted: 0, ..round() });
        assert!(starved[0].contains("got no processor"), "{starved:?}");
        let stuck = told(Round { delivered: None, per_message: 0.0, ..round() });
        assert!(stuck[0].contains("of 8 submitted"), "{stuck:?}");
    }
}
