//! The summary of `onramp replay`.

use std::fmt::Write;

use maud::html;
use onramp_queue::DropReason;
use onramp_sim::Counts;
use serde_json::{Map, Value, json};

use super::chart::{Legend, Scene, TimeLine, Times, Words};
use super::json::number;
use super::page;
use super::table::{align, dash, duration};
use crate::error::line;
use crate::replay::{Cell, Flow, MTU, Results};

/// Largest number of flows: in the JSON summary (`FLOWS`), in tables (`FLOWS_SHOWN`), and in charts
/// (`FLOWS_DRAWN`).
const FLOWS: usize = 100;
const FLOWS_SHOWN: usize = 10;
const FLOWS_DRAWN: usize = 6;
/// Largest number of points in a line that shows a rate. There are few points, because in a short
/// time only a few packets are sent, which do not make a meaningful rate.
const RATES: usize = 128;

const PERCENTILES: [(&str, u32); 4] = [("p50", 500), ("p95", 950), ("p99", 990), ("p999", 999)];

/// What the summary says about one flow.
struct Row<'r> {
    key: u64,
    number: usize,
    flow: Option<&'r Flow>,
    counts: &'r Counts,
    /// This flow's share of all bytes that were sent, from 0 to 1.
    share: f64,
}

/// Returns the flows, beginning with the flow that sent the most bytes. Flows that sent the same
/// number of bytes are in the order in which they came.
fn rows(results: &Results) -> Vec<Row<'_>> {
    let total = results.sink.total().sent_bytes.max(1) as f64;
    let row = |(key, counts): (&u64, _)| {
        let counts: &Counts = counts;
        let (number, flow) = (results.read.number(*key), results.read.flow(*key));
        Row { key: *key, number, flow, counts, share: counts.sent_bytes as f64 / total }
    };
    let mut rows: Vec<_> = results.sink.flows().iter().map(row).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.counts.sent_bytes), row.number));
    rows
}

/// Returns the mean and the maximum of the number of packets that a packet found in the tree of
/// qdiscs when it came.
fn queue(results: &Results) -> (f64, u32) {
    let cells = results.timeline.cells();
    let came: u64 = cells.iter().map(|cell| cell.came).sum();
    let sum: u64 = cells.iter().map(|cell| cell.queue_sum).sum();
    let most = cells.iter().map(|cell| cell.queue_most).max();
    (sum as f64 / came.max(1) as f64, most.unwrap_or(0))
}

/// Returns the time in seconds from the moment when the first packet came to the moment when the
/// last bit was sent.
fn seconds(results: &Results) -> f64 {
    let total = results.sink.total();
    let ends = total.first.zip(total.last);
    ends.map_or(0.0, |(first, last)| last.since(first) as f64 / 1e9)
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Returns the summary as JSON for programs.
pub(crate) fn json(results: &Results) -> Value {
    let (read, plan, sink) = (&results.read, &results.plan, &results.sink);
    let total = sink.total();
    let offered = read.span_ns as f64 / 1e9;
    let drops: Map<_, _> =
        sink.drops().map(|(reason, count)| (reason.name().to_owned(), count.into())).collect();
    let (queue_mean, queue_most) = queue(results);
    let flows = rows(results);
    let stats: Map<_, _> =
        results.stats.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    json!({
        "schema": "onramp.replay",
        "version": 1,
        "from": plan.from,
        "tree": plan.tree,
        "rate_bits_per_second": plan.rate.map(|rate| rate.as_bytes_per_second() * 8),
        "mtu": MTU,
        "seed": plan.seed,
        "first_unix_ns": read.first_unix_ns,
        "packets": read.packets,
        "bytes": read.bytes,
        "not_ip": read.not_ip,
        "out_of_order": read.out_of_order,
        "untimed": read.untimed,
        "offered_seconds": number(offered),
        "offered_bits_per_second": number(per_second(read.bytes * 8, offered)),
        "sent_packets": total.sent_packets,
        "sent_bytes": total.sent_bytes,
        "seconds": number(seconds(results)),
        "sent_bits_per_second": number(per_second(total.sent_bytes * 8, seconds(results))),
        "drops": drops,
        "dropped_bytes": total.dropped_bytes,
        "marked": total.marked,
        "copies": total.copies,
        "held": results.held.packets,
        "sojourn_ns": sojourn(results),
        "queue_packets": {"mean": number(queue_mean), "max": queue_most},
        "jain": sink.jain().map(number),
        "max_min_fairness": sink.max_min_fairness().map(number),
        "flows_known": sink.flows().len(),
        "flows": flows.iter().take(FLOWS).map(|row| flow(row)).collect::<Vec<_>>(),
        "stats": stats,
        "series": series(results, &flows),
        "error": results.error,
    })
}

fn sojourn(results: &Results) -> Value {
    let all = results.sink.sojourns();
    if all.count() == 0 {
        return Value::Null;
    }
    let mut map = Map::new();
    map.insert("min".into(), json!(all.least()));
    map.insert("mean".into(), all.mean().map_or(Value::Null, number));
    for (name, part) in PERCENTILES {
        map.insert(name.into(), json!(all.per_mille(part)));
    }
    map.insert("max".into(), json!(all.most()));
    map.into()
}

fn flow(row: &Row<'_>) -> Value {
    let counts = row.counts;
    json!({
        "flow": row.number,
        "protocol": row.flow.map(Flow::protocol),
        "source": row.flow.and_then(|flow| flow.end(0)),
        "destination": row.flow.and_then(|flow| flow.end(1)),
        "packets": counts.packets,
        "bytes": counts.bytes,
        "sent_packets": counts.sent_packets,
        "sent_bytes": counts.sent_bytes,
        "sent_bits_per_second": counts.sent_bits_per_second().map(number),
        "share": number(row.share),
        "dropped_packets": counts.dropped_packets,
        "marked": counts.marked,
        "sojourn_mean_ns": counts.sojourn_mean_ns().map(number),
        "sojourn_max_ns": (counts.sent_packets > 0).then_some(counts.sojourn_most_ns),
    })
}

fn series(results: &Results, flows: &[Row<'_>]) -> Value {
    let timeline = &results.timeline;
    let width = timeline.width_ns() as f64 / 1e9;
    let cells = timeline.cells();
    let mean = |sum: f64, count: u64| (count > 0).then(|| number(sum / count as f64));
    let flows = drawn(results, flows).map(|row| {
        let rates = timeline.flow(row.key).into_iter().flatten();
        let rates: Vec<_> = rates.map(|bytes| number(bytes as f64 * 8.0 / width)).collect();
        json!({"flow": row.number, "sent_bits_per_second": rates})
    });
    json!({
        "width_seconds": number(width),
        "queue_packets_mean":
            cells.iter().map(|c| mean(c.queue_sum as f64, c.came)).collect::<Vec<_>>(),
        "queue_packets_max":
            cells.iter().map(|c| (c.came > 0).then_some(c.queue_most)).collect::<Vec<_>>(),
        "sojourn_mean_ns":
            cells.iter().map(|c| mean(c.sojourn_sum_ns as f64, c.sent)).collect::<Vec<_>>(),
        "sojourn_max_ns":
            cells.iter().map(|c| (c.sent > 0).then_some(c.sojourn_most_ns)).collect::<Vec<_>>(),
        "sent_bits_per_second":
            cells.iter().map(|c| number(c.sent_bytes as f64 * 8.0 / width)).collect::<Vec<_>>(),
        "flows": flows.collect::<Vec<_>>(),
    })
}

/// Returns the flows that the charts show: of those whose rates over time were recorded, the flows
/// that sent the most bytes.
fn drawn<'r, 'f>(
    results: &'r Results,
    flows: &'r [Row<'f>],
) -> impl Iterator<Item = &'r Row<'f>> + use<'r, 'f> {
    let known = |row: &&Row<'_>| results.timeline.flow(row.key).is_some();
    flows.iter().filter(known).take(FLOWS_DRAWN)
}

/// Returns the summary as text for people.
pub(crate) fn text(results: &Results) -> String {
    let mut text = String::new();
    for (name, value) in facts(results) {
        let _ = writeln!(text, "{name:<9} {value}");
    }
    let flows = rows(results);
    if !flows.is_empty() {
        text.push('\n');
        text.push_str(&align(&flow_table(&flows)));
        if flows.len() > FLOWS_SHOWN {
            let _ = writeln!(text, "and {} more flows", flows.len() - FLOWS_SHOWN);
        }
    }
    text
}

/// Returns facts about the replay as a whole, as names and values.
fn facts(results: &Results) -> Vec<(&'static str, String)> {
    let (read, plan, sink) = (&results.read, &results.plan, &results.sink);
    let total = sink.total();
    let mbit = |bits: f64| format!("{:.4} Mbit/s", bits / 1e6);
    let offered = read.span_ns as f64 / 1e9;
    let mut facts = vec![("capture", line(&plan.from))];
    facts.extend(plan.tree.iter().map(|tree| ("tree", line(tree))));
    let link = plan.rate.map_or_else(|| "infinitely fast".into(), |rate| rate.to_string());
    facts.push(("link", link));
    let flows = sink.flows().len();
    let mut came = format!(
        "{} packets of {flows} {} in {offered:.3} s, {}",
        read.packets,
        if flows == 1 { "flow" } else { "flows" },
        mbit(per_second(read.bytes * 8, offered)),
    );
    for (count, what) in [
        (read.not_ip, "not IP"),
        (read.out_of_order, "out of order: each arrives with the packet before it"),
        (read.untimed, "without a time: each arrives with the packet before it"),
    ] {
        if count > 0 {
            let _ = write!(came, "; {count} {what}");
        }
    }
    facts.push(("came", came));
    let sent = mbit(per_second(total.sent_bytes * 8, seconds(results)));
    let mut left = format!("{} packets in {:.3} s, {sent}", total.sent_packets, seconds(results));
    for (count, what) in [(total.marked, "marked with CE"), (total.copies, "copies")] {
        if count > 0 {
            let _ = write!(left, "; {count} {what}");
        }
    }
    facts.push(("sent", left));
    facts.push(("dropped", dropped(results)));
    if results.held.packets > 0 {
        facts.push((
            "held",
            format!("{} packets, which had not left at the end", results.held.packets),
        ));
    }
    let all = sink.sojourns();
    if let (Some(least), Some(most)) = (all.least(), all.most()) {
        let parts = PERCENTILES.map(|(name, part)| {
            format!("{name} {}", all.per_mille(part).map_or_else(String::new, duration))
        });
        let parts = parts.join(", ");
        let ends = (duration(least), duration(most));
        facts.push(("sojourn", format!("min {}, {parts}, max {}", ends.0, ends.1)));
    }
    let (mean, most) = queue(results);
    facts.push((
        "queue",
        format!("{mean:.1} packets in the mean when a packet arrived, {most} at most"),
    ));
    if let Some(fairness) = sink.max_min_fairness().filter(|_| flows > 1) {
        let how = "max-min: 1 if flows that asked for little got it, and the others equal shares";
        facts.push(("fairness", format!("{fairness:.3} ({how})")));
    }
    if let Some(error) = &results.error {
        facts.push(("ended", line(error)));
    }
    facts
}

fn dropped(results: &Results) -> String {
    let total = results.sink.total();
    if total.dropped_packets == 0 {
        return "nothing".into();
    }
    let reasons = results.sink.drops();
    let reasons: Vec<_> =
        reasons.map(|(reason, count)| format!("{} {count}", DropReason::name(reason))).collect();
    let share = total.dropped_packets as f64 * 100.0 / total.packets.max(1) as f64;
    format!("{} packets, {share:.2} % ({})", total.dropped_packets, reasons.join(", "))
}

fn flow_table(flows: &[Row<'_>]) -> Vec<Vec<String>> {
    let head =
        ["flow", "packets", "sent", "Mbit/s", "share", "dropped", "marked", "sojourn mean", "max"];
    let row = |row: &Row<'_>| {
        let counts = row.counts;
        let rate = counts.sent_bits_per_second().map(|rate| format!("{:.3}", rate / 1e6));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a duration")]
        let mean = counts.sojourn_mean_ns().map(|mean| duration(mean as u64));
        vec![
            name(row),
            counts.packets.to_string(),
            counts.sent_packets.to_string(),
            rate.unwrap_or_else(dash),
            format!("{:.1} %", row.share * 100.0),
            counts.dropped_packets.to_string(),
            counts.marked.to_string(),
            mean.unwrap_or_else(dash),
            duration(counts.sojourn_most_ns),
        ]
    };
    let mut rows = vec![head.map(str::to_owned).into()];
    rows.extend(flows.iter().take(FLOWS_SHOWN).map(row));
    rows
}

fn name(row: &Row<'_>) -> String {
    row.flow.map_or_else(|| "another".into(), |flow| format!("{} {flow}", row.number))
}

/// Returns the summary as an HTML page.
pub(crate) fn html(results: &Results) -> String {
    let facts: Vec<_> =
        facts(results).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let flows = rows(results);
    let table = flow_table(&flows);
    let charts = charts(results, &flows);
    let (queue, others) = charts.split_at(charts.len().min(1));
    let body = html! {
        p class="meaning" { (lead(results)) }
        "\n"
        p { (CAVEAT) }
        "\n"
        @if !queue.is_empty() { (page::charts(queue)) }
        (page::list(&facts))
        @if !others.is_empty() { (page::charts(others)) }
        @if !flows.is_empty() {
            h2 { "Flows" }
            (page::table(&table[0], &table[1..]))
            @if flows.len() > FLOWS_SHOWN {
                p class="soft" { "and " (flows.len() - FLOWS_SHOWN) " more flows" }
            }
        }
        h2 { "How to read it" }
        p class="soft" {
            "Time is virtual: each packet arrived at its time in the capture. A packet's sojourn "
            "begins when the packet arrives and ends when its first bit leaves. The queue is the "
            "number of packets that were waiting when a packet arrived; after the last one "
            "arrived, the number that had not left yet. Each point of a line stands for "
            (duration(results.timeline.width_ns()))
            " of the capture; where no packet came, or none left, the line leads straight to the "
            "next point."
        }
        "\n"
        p class="soft" {
            "Fairness is max-min: what each flow got is divided by what it would have got if flows "
            "that asked for little got all of it and the others equal shares of the rest; the "
            "figure is Jain's index of these quotients, 1 if all are the same. A flow that got "
            "everything because it asked for little does not count as treated unfairly."
        }
        "\n"
        @if !results.stats.is_empty() {
            h2 { "Statistics of the root" }
            (page::list(&stats(results)))
        }
    };
    page::page("Onramp: a capture replayed", &body)
}

/// A capture is a recording, and what that means for the figures.
const CAVEAT: &str = "\
A capture does not answer to drops: its packets come at their recorded times, whatever becomes of \
those before them. Real senders send lost packets again and slow down, so on a real link the queue \
and the drops would differ. onramp lab aqm shows qdiscs with senders that do answer.";

/// Returns a text that says what was done and what came out.
fn lead(results: &Results) -> String {
    let (total, all) = (results.sink.total(), results.sink.sojourns());
    let link = results.plan.rate.map_or_else(
        || "a link that is infinitely fast".to_owned(),
        |rate| format!("a link of {rate}"),
    );
    let waits = match (all.per_mille(500), all.per_mille(990)) {
        (Some(half), Some(most)) => format!(
            " Half of the packets sent waited no longer than {}, and 99 of 100 no longer than {}.",
            duration(half),
            duration(most)
        ),
        _ => String::new(),
    };
    let held = results.held.packets as u64;
    let ends = [
        (total.sent_packets, "were sent"),
        (total.dropped_packets, "were dropped"),
        (held, "had not left at the end"),
    ];
    let ends = ends.into_iter().filter(|(count, what)| *count > 0 || !what.starts_with("had"));
    let ends = ends.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ");
    format!(
        "This page shows what would have become of the packets of a capture in queues in front of \
         {link}. Of {} packets, {ends}.{waits}",
        results.read.packets
    )
}

/// Returns the points with straight lines in place of the gaps between them.
fn joined(mut points: Vec<Option<f64>>) -> Vec<Option<f64>> {
    let known: Vec<_> =
        points.iter().enumerate().filter_map(|(at, point)| Some((at, (*point)?))).collect();
    for pair in known.windows(2) {
        let [(from, before), (to, after)] = pair else { continue };
        for (step, point) in points[*from..*to].iter_mut().enumerate() {
            *point = Some(before + (after - before) * step as f64 / (to - from) as f64);
        }
    }
    points
}

fn stats(results: &Results) -> Vec<(String, String)> {
    results.stats.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
}

/// Returns the most packets in the queue, and their mean number, in each part of the time. While
/// packets come, these are the lengths that they met. After the last one came, the queue is what
/// has not left yet; `held` packets stay to the end.
fn queue_over_time(cells: &[Cell], held: u64) -> Vec<(Option<f64>, Option<f64>)> {
    let last = cells.iter().rposition(|cell| cell.came > 0);
    let mut waiting = held;
    let point = |(at, cell): (usize, &Cell)| {
        let before = waiting as f64;
        waiting = (waiting + cell.entered).saturating_sub(cell.left);
        if cell.came > 0 {
            let mean = cell.queue_sum as f64 / cell.came as f64;
            return (Some(cell.queue_most.into()), Some(mean));
        }
        let is_after = last.is_some_and(|last| at > last);
        let mean = f64::midpoint(before, waiting as f64);
        (is_after.then_some(before), is_after.then_some(mean))
    };
    cells.iter().enumerate().map(point).collect()
}

fn charts(results: &Results, flows: &[Row<'_>]) -> Vec<Scene> {
    let cells = results.timeline.cells();
    let width = results.timeline.width_ns() as f64 / 1e9;
    let line = |name: &str, points: Vec<Option<f64>>, highlighted| TimeLine {
        name: name.to_owned(),
        points: joined(points),
        highlighted,
    };
    let times = |title: &str, lines, width, words: Words| {
        let (title, legend) = (title.to_owned(), Legend::Beneath);
        Times { title, lines, width, legend, words, fitting: false }.draw()
    };
    let mean = |sum: f64, count: u64| (count > 0).then(|| sum / count as f64);
    let plain: Words = |x| format!("{x:.4}").trim_end_matches('0').trim_end_matches('.').into();
    let (queue_most, queue_mean) =
        queue_over_time(cells, results.held.packets as u64).into_iter().unzip();
    let queue = [line("most", queue_most, false), line("mean", queue_mean, true)];
    let most = |ns: u64| ns as f64 / 1e6;
    let sojourn = [
        line(
            "most",
            cells.iter().map(|c| (c.sent > 0).then(|| most(c.sojourn_most_ns))).collect(),
            false,
        ),
        line(
            "mean",
            cells.iter().map(|c| mean(c.sojourn_sum_ns as f64 / 1e6, c.sent)).collect(),
            true,
        ),
    ];
    // Each point in the charts of rates combines `fold` neighbouring cells of the timeline, so that
    // there are at most `RATES` points. The other charts have a point for each cell.
    let fold = cells.len().div_ceil(RATES).max(1);
    let rates = |bytes: Vec<u64>| -> Vec<Option<f64>> {
        let rate = |part: &[u64]| {
            part.iter().sum::<u64>() as f64 * 8.0 / 1e6 / (part.len() as f64 * width)
        };
        bytes.chunks(fold).map(|part| Some(rate(part))).collect()
    };
    let all = cells.iter().map(|cell| cell.sent_bytes).collect();
    let mut sent = vec![line("all", rates(all), true)];
    sent.extend(drawn(results, flows).map(|row| {
        let bytes = results.timeline.flow(row.key).into_iter().flatten().collect();
        line(&name(row), rates(bytes), false)
    }));
    [
        times("Packets in the queue over time", queue.into(), width, plain),
        times("Sojourn, milliseconds", sojourn.into(), width, plain),
        times("Sent, Mbit/s", sent, width * fold as f64, plain),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_drawn_until_the_last_packet_has_left() {
        let cell = |came, left| Cell {
            came,
            queue_sum: came * 5,
            queue_most: 9,
            entered: came,
            left,
            ..Cell::default()
        };
        let cells = [cell(10, 2), cell(0, 2), cell(4, 0), cell(0, 6), cell(0, 0), cell(0, 4)];
        let points = queue_over_time(&cells, 1);
        let most: Vec<_> = points.iter().map(|point| point.0).collect();
        assert_eq!(most, [Some(9.0), None, Some(9.0), Some(11.0), Some(5.0), Some(5.0)]);
        let mean: Vec<_> = points.iter().map(|point| point.1).collect();
        assert_eq!(mean, [Some(5.0), None, Some(5.0), Some(8.0), Some(5.0), Some(3.0)]);
        assert!(queue_over_time(&[], 0).is_empty());
    }

    #[test]
    fn gaps_between_points_are_joined_and_ends_stay_open() {
        let points = [None, Some(4.0), None, None, Some(1.0), Some(7.0), None];
        let want = [None, Some(4.0), Some(3.0), Some(2.0), Some(1.0), Some(7.0), None];
        assert_eq!(joined(points.to_vec()), want);
        assert_eq!(joined(vec![None, Some(2.0), None]), [None, Some(2.0), None]);
        assert!(joined(Vec::new()).is_empty());
    }
}
