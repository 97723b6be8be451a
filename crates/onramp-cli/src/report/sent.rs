//! The summary of `onramp send`.

use std::collections::BTreeMap;
use std::fmt::Write;

use onramp::DropReason;
use serde_json::{Value, json};

use super::json::number;
use crate::error::line;
use crate::send::Summary;

/// Returns the summary as JSON for programs.
pub(crate) fn json(summary: &Summary) -> Value {
    let stats = &summary.stats;
    let drops: BTreeMap<_, _> =
        stats.dropped.iter().map(|(reason, count)| (reason.name(), *count)).collect();
    json!({
        "schema": "onramp.send",
        "version": 1,
        "from": summary.from,
        "to": summary.to.to_string(),
        "qdisc": summary.qdisc,
        "loops": summary.loops,
        "flows": summary.flows,
        "packets_read": summary.counts.read,
        "skipped": summary.counts.skipped,
        "submitted": stats.submitted,
        "sent": stats.sent,
        "drops": drops,
        "payload_bytes": summary.payload_bytes,
        "wire_bytes": stats.sent_bytes,
        "seconds": number(summary.seconds),
        "packets_per_second": number(rate(stats.sent, summary.seconds)),
        "wire_bits_per_second": number(rate(stats.sent_bytes * 8, summary.seconds)),
        "error": summary.error,
    })
}

/// Returns the summary as text for people.
pub(crate) fn text(summary: &Summary) -> String {
    let (stats, counts) = (&summary.stats, &summary.counts);
    let mut text = String::new();
    let skipped: u64 = counts.skipped.values().sum();
    let _ = write!(text, "{} read from {}", counts.read, line(&summary.from));
    if skipped > 0 {
        let reasons = list(counts.skipped.iter().map(|(reason, count)| (*reason, *count)));
        let _ = write!(text, ", {skipped} skipped ({reasons})");
    }
    let flows = if summary.flows == 1 { "flow" } else { "flows" };
    let _ = write!(
        text,
        "\n{} datagrams of {} {flows} sent to {}",
        stats.sent, summary.flows, summary.to
    );
    let dropped = stats.dropped_total();
    if dropped > 0 {
        let reasons =
            stats.dropped.iter().map(|(reason, count)| (DropReason::name(*reason), *count));
        let _ = write!(text, ", {dropped} dropped ({})", list(reasons));
    }
    let _ = writeln!(
        text,
        "\n{:.3} s: {:.0} datagrams/s, {:.4} Mbit/s on the wire",
        summary.seconds,
        rate(stats.sent, summary.seconds),
        rate(stats.sent_bytes * 8, summary.seconds) / 1e6
    );
    text
}

/// Returns a sentence that says why nothing was sent; `None` if something was sent, or if the
/// summary has an error, which gives the reason.
pub(crate) fn nothing(summary: &Summary) -> Option<String> {
    let (stats, counts) = (&summary.stats, &summary.counts);
    if stats.sent > 0 || summary.error.is_some() {
        return None;
    }
    if counts.read == 0 {
        return Some(format!("nothing was sent: {} holds nothing to send", summary.from));
    }
    if let Some((reason, count)) = stats.dropped.iter().max_by_key(|(_, count)| **count) {
        let (submitted, qdisc) = (stats.submitted, &summary.qdisc);
        let (name, about) = (reason.name(), reason.about());
        return Some(format!(
            "nothing was sent: of {submitted} datagrams the qdisc ({qdisc}) dropped {count} as \
             {name}: {about}"
        ));
    }
    let skipped = list(counts.skipped.iter().map(|(reason, count)| (*reason, *count)));
    Some(format!("nothing was sent: {} holds no whole UDP payload ({skipped})", summary.from))
}

fn list(counts: impl Iterator<Item = (&'static str, u64)>) -> String {
    counts.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
