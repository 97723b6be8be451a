//! The counters of a link as JSON.

use std::collections::BTreeMap;

use onramp::show::Json;
use onramp::{DropReason, LinkStats};

/// Writes the counters of a link as one JSON object; `docs/json.md` describes it.
pub(crate) fn json(stats: &LinkStats) -> String {
    let mut json = Json::new(false);
    json.open_object(None);
    json.string(Some("schema"), "onramp.link.stats");
    numbers(
        &mut json,
        &[
            ("version", 1),
            ("submitted", stats.submitted),
            ("made", stats.made),
            ("refused", stats.refused),
            ("sent", stats.sent),
            ("sent_bytes", stats.sent_bytes),
            ("held", stats.held),
            ("senders", stats.senders.into()),
            ("credits", stats.credits.into()),
            ("waits", stats.waits),
            ("parks", stats.parks),
            ("runner_wakeups", stats.runner_wakeups),
        ],
    );
    dropped(&mut json, &stats.dropped);
    json.open_array(Some("ports"));
    for port in &stats.ports {
        json.open_object(None);
        numbers(
            &mut json,
            &[
                ("enqueued", port.enqueued),
                ("made", port.made),
                ("sent", port.sent),
                ("sent_bytes", port.sent_bytes),
                ("held", port.held),
            ],
        );
        dropped(&mut json, &port.dropped.iter().copied().collect());
        json.close_object();
    }
    json.close_array();
    json.close_object();
    json.finish().trim_end().to_owned()
}

fn numbers(json: &mut Json, fields: &[(&str, u64)]) {
    for (key, value) in fields {
        json.raw(Some(key), format_args!("{value}"));
    }
}

fn dropped(json: &mut Json, reasons: &BTreeMap<DropReason, u64>) {
    json.open_object(Some("drops"));
    for (reason, count) in reasons {
        json.raw(Some(reason.name()), format_args!("{count}"));
    }
    json.close_object();
}

#[cfg(test)]
mod tests {
    use onramp::Link;

    use super::*;

    #[test]
    fn the_counters_are_one_object() {
        let device = Box::new(onramp::dev::Null::default());
        let link = Link::devices([device as _]).qdisc("blackhole").build().expect("a link");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, b"hello").expect("the link is open");
        assert!(sender.flush(std::time::Duration::from_secs(60)));
        let text = json(&link.stats());
        let begins = "{\"schema\":\"onramp.link.stats\",\"version\":1,\"submitted\":1,\"made\":0,\
                      \"refused\":0,\"sent\":0,\"sent_bytes\":0,\"held\":0,\"senders\":1,\
                      \"credits\":96,";
        let ends = "\"drops\":{\"blackhole\":1},\"ports\":[{\"enqueued\":1,\"made\":0,\"sent\":0,\
                    \"sent_bytes\":0,\"held\":0,\"drops\":{\"blackhole\":1}}]}";
        assert!(text.starts_with(begins) && text.ends_with(ends), "{text}");
    }
}
