//! The summary of `onramp exec`.

use std::net::SocketAddr;

use onramp_dev::exec::{Counts, Flow, Process};
use serde_json::{Map, Value, json};

/// Most flows that the text lists.
const LISTED: usize = 10;

/// Returns the summary as JSON for programs. `exit_code` is the program's.
pub(crate) fn json(processes: &[Process], exit_code: u8) -> Value {
    let (all, around) = sum(processes);
    let mut whole = json!({ "schema": "onramp.exec", "version": 1, "exit_code": exit_code });
    add_counts(&mut whole, &all);
    whole["around"] = around.into();
    whole["processes"] = processes.iter().map(process).collect();
    whole
}

fn process(process: &Process) -> Value {
    let mut value = json!({ "pid": process.pid, "name": process.name });
    add_counts(&mut value, &process.counts);
    value["around"] = process.around.into();
    value["flows"] = process.flows.iter().map(flow).collect();
    value
}

fn flow(flow: &Flow) -> Value {
    let address = |address: Option<SocketAddr>| address.map(|address| address.to_string());
    let mut value = json!({ "local": address(flow.local), "remote": address(flow.remote) });
    add_counts(&mut value, &flow.counts);
    value
}

fn add_counts(to: &mut Value, counts: &Counts) {
    let drops = counts.drops.iter().map(|(reason, count)| (reason.name().to_owned(), json!(count)));
    to["datagrams"] = counts.datagrams.into();
    to["made"] = counts.made.into();
    to["sent"] = counts.sent.into();
    to["sent_bytes"] = counts.sent_bytes.into();
    to["marked"] = counts.marked.into();
    to["drops"] = Value::Object(drops.collect::<Map<_, _>>());
    to["queued"] = counts.held().into();
}

/// Returns the summary as lines for people: all datagrams, and those of the largest flows.
pub(crate) fn lines(processes: &[Process]) -> Vec<String> {
    let (all, around) = sum(processes);
    if all.datagrams == 0 && around == 0 {
        return vec![
            "no UDP datagram passed the qdisc (docs/exec.md says which ones cannot)".into(),
        ];
    }
    let mut first = text(&all);
    if around > 0 {
        first += &format!(", {around} messages around the qdisc");
    }
    let mut flows: Vec<_> = processes
        .iter()
        .flat_map(|process| process.flows.iter().map(move |flow| (process, flow)))
        .collect();
    flows.sort_by_key(|(_, flow)| std::cmp::Reverse(flow.counts.datagrams));
    let counted = |count: usize, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    first += &format!(
        "; {}, {}",
        counted(processes.len(), "process", "processes"),
        counted(flows.len(), "flow", "flows")
    );
    let mut lines = vec![first];
    lines.extend(flows.iter().take(LISTED).map(|(process, flow)| {
        let address = |address: Option<SocketAddr>| {
            address.map_or_else(|| "others".to_owned(), |address| address.to_string())
        };
        let (local, remote) = (address(flow.local), address(flow.remote));
        format!("{} {}: {local} to {remote}: {}", process.name, process.pid, text(&flow.counts))
    }));
    let rest = flows.len().saturating_sub(LISTED);
    if rest > 0 {
        lines.push(format!("and {rest} further flows (--json FILE lists all)"));
    }
    lines
}

fn text(counts: &Counts) -> String {
    let mut text = format!("{} datagrams sent", counts.sent);
    let reasons: Vec<_> =
        counts.drops.iter().map(|(reason, count)| format!("{} {count}", reason.name())).collect();
    if !reasons.is_empty() {
        text += &format!(", {} dropped ({})", counts.dropped(), reasons.join(", "));
    }
    for (count, what) in [
        (counts.marked, "marked (ECN)"),
        (counts.made, "made by qdiscs"),
        (counts.held(), "left in the queue"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

fn sum(processes: &[Process]) -> (Counts, u64) {
    let (mut all, mut around) = (Counts::default(), 0);
    for process in processes {
        all.add(&process.counts);
        around += process.around;
    }
    (all, around)
}

#[cfg(test)]
mod tests {
    use onramp_queue::DropReason;

    use super::*;

    fn counts(datagrams: u64, sent: u64, drops: &[(DropReason, u64)]) -> Counts {
        let sent_bytes = sent * 100;
        Counts { datagrams, sent, sent_bytes, drops: drops.to_vec(), ..Counts::default() }
    }

    fn example() -> Vec<Process> {
        let flow = |port: u16, counts| Flow {
            local: Some(([127, 0, 0, 1], 1_000).into()),
            remote: Some(([127, 0, 0, 1], port).into()),
            counts,
        };
        let drops = [(DropReason::Overlimit, 2)];
        let flows = vec![flow(1, counts(1, 1, &[])), flow(2, counts(9, 6, &drops))];
        let name = "client".to_owned();
        vec![
            Process {
                pid: 7,
                name,
                counts: Counts { marked: 1, ..counts(10, 7, &drops) },
                around: 3,
                flows,
            },
            Process {
                pid: 8,
                name: "child".to_owned(),
                counts: counts(4, 1, &[(DropReason::Impaired, 3)]),
                around: 0,
                flows: vec![flow(3, counts(4, 1, &[(DropReason::Impaired, 3)]))],
            },
        ]
    }

    #[test]
    fn the_text_has_the_sum_and_the_largest_flows() {
        let lines = lines(&example());
        assert_eq!(
            lines,
            [
                "8 datagrams sent, 5 dropped (overlimit 2, impaired 3), 1 marked (ECN), \
                 1 left in the queue, \
                 3 messages around the qdisc; 2 processes, 3 flows",
                "client 7: 127.0.0.1:1000 to 127.0.0.1:2: 6 datagrams sent, 2 dropped \
                 (overlimit 2), 1 left in the queue",
                "child 8: 127.0.0.1:1000 to 127.0.0.1:3: 1 datagrams sent, 3 dropped (impaired 3)",
                "client 7: 127.0.0.1:1000 to 127.0.0.1:1: 1 datagrams sent",
            ]
        );
    }

    #[test]
    fn the_document_has_each_process_and_flow() {
        let document = json(&example(), 5);
        assert_eq!((&document["exit_code"], &document["datagrams"]), (&json!(5), &json!(14)));
        assert_eq!(document["marked"], 1);
        assert_eq!(document["drops"], json!({ "overlimit": 2, "impaired": 3 }));
        assert_eq!((&document["queued"], &document["around"]), (&json!(1), &json!(3)));
        let flow = &document["processes"][1]["flows"][0];
        assert_eq!((&flow["remote"], &flow["sent"]), (&json!("127.0.0.1:3"), &json!(1)));
    }

    #[test]
    fn many_flows_are_not_all_listed() {
        let mut processes = example();
        let one = processes[1].flows[0].clone();
        processes[1].flows = vec![one; 40];
        let lines = lines(&processes);
        assert_eq!(lines.len(), 1 + LISTED + 1);
        assert!(lines[LISTED + 1].starts_with("and 32 further flows"), "{lines:?}");
    }
}
