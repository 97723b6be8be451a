//! The summary of `onramp traffic`.

use std::fmt::Write as _;

use onramp_daemon::traffic::Report;
use serde_json::{Value, json};

use super::json::number;

/// Returns the summary as JSON for programs.
pub(crate) fn json(sent: &Report) -> Value {
    let mut document = json!({ "schema": "onramp.traffic", "version": 1 });
    let report = serde_json::to_value(sent).unwrap_or_default();
    for (key, value) in report.as_object().into_iter().flatten() {
        document[key] = value.clone();
    }
    document["packets_per_second"] = number(rate(sent.sent, sent.seconds));
    document["wire_bits_per_second"] = number(rate(sent.wire_bytes * 8, sent.seconds));
    document
}

/// Returns the summary as text for people.
pub(crate) fn text(sent: &Report) -> String {
    let Report { device, flows, size, submitted, seconds, .. } = sent;
    let flows = if *flows == 1 { "1 flow".to_owned() } else { format!("{flows} flows") };
    let mut text = format!("{submitted} packets of {size} bytes in {flows} into {device}\n");
    let _ = write!(text, "{} sent", sent.sent);
    let dropped: u64 = sent.drops.values().sum();
    if dropped > 0 {
        let reasons = sent.drops.iter().map(|(reason, count)| format!("{reason} {count}"));
        let _ = write!(text, ", {dropped} dropped ({})", reasons.collect::<Vec<_>>().join(", "));
    }
    if sent.queued > 0 {
        let _ = write!(text, ", {} still in the device", sent.queued);
    }
    let _ = writeln!(
        text,
        "\n{seconds:.3} s: {:.0} packets/s, {:.4} Mbit/s on the wire",
        rate(sent.sent, *seconds),
        rate(sent.wire_bytes * 8, *seconds) / 1e6
    );
    text
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use onramp_daemon::traffic::Ended;

    use super::*;

    fn report() -> Report {
        Report {
            device: "d0".into(),
            flows: 16,
            size: 1_000,
            threads: 1,
            seconds: 2.0,
            submitted: 10,
            sent: 5,
            wire_bytes: 5_000,
            drops: [("congested".into(), 1), ("overlimit".into(), 2)].into(),
            queued: 2,
            ended: Ended::Stopped,
            ..Report::default()
        }
    }

    #[test]
    fn all_packets_are_accounted_for() {
        let want = "10 packets of 1000 bytes in 16 flows into d0\n\
                    5 sent, 3 dropped (congested 1, overlimit 2), 2 still in the device\n\
                    2.000 s: 2 packets/s, 0.0200 Mbit/s on the wire\n";
        assert_eq!(text(&report()), want);
        let plain = Report { flows: 1, sent: 10, drops: [].into(), queued: 0, ..report() };
        let want = "10 packets of 1000 bytes in 1 flow into d0\n10 sent\n";
        assert!(text(&plain).starts_with(want), "{}", text(&plain));
    }

    #[test]
    fn json_has_the_keys_of_its_page() {
        let document = json(&report());
        let keys: Vec<&String> = document.as_object().expect("an object").keys().collect();
        let page = include_str!("../../../../docs/json.md");
        let (_, part) = page.split_once("## `onramp.traffic`, version 1").expect("it is there");
        let (part, _) = part.split_once("\n## ").expect("more follows");
        for key in keys {
            assert!(part.contains(&format!("`{key}`")), "{key}");
        }
        assert_eq!(document["ended"], "stopped");
        assert_eq!(document["wire_bits_per_second"], 20_000.0);
        assert_eq!(document["bytes_per_second"], Value::Null);
    }
}
