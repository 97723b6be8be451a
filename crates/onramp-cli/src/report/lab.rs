//! Reports of the laboratory's experiments. A report is made only from the JSON that an experiment
//! writes, so a page that is made later from that JSON is the same as the page of the run.
//!
//! The designs, figures and axes in a report are those in the rows of the JSON. Built into the
//! program are only the titles of the experiments and the figures that matter most for each of them
//! ([`Story`]).

mod aqm;
mod chart;
mod charts;
mod data;
mod reading;
mod tables;
mod words;

#[cfg(test)]
mod tests;

use maud::{Markup, html};
use serde_json::Value;

use self::data::Row;
use super::chart::Scene;
use super::page;
pub(crate) use data::Document;

/// What the program knows about an experiment without reading its results.
#[derive(Debug)]
struct Story {
    kind: &'static str,
    title: &'static str,
    /// The name of the design that is compared with the others. Designs whose names begin with this
    /// name are highlighted.
    ours: &'static str,
    /// The keys of the figures that matter most. Each of these figures gets charts.
    figures: &'static [&'static str],
}

const STORIES: [Story; 10] = [
    Story {
        kind: "contention",
        title: "Contention: many threads, one queue",
        ours: "onramp",
        figures: &["cpu_ns_per_packet", "packets_per_second", "send_ns.p999"],
    },
    Story {
        kind: "loopback",
        title: "Loopback: one lock for all, or a queue for each (2004)",
        ours: "per-queue",
        figures: &["packets_per_second", "cpu_ns_per_packet", "context_switches_per_second"],
    },
    Story {
        kind: "softirq",
        title: "Softirq: waking a helper, or working in place (2001)",
        ours: "onramp",
        figures: &[
            "context_switches_per_transaction",
            "transactions_per_second",
            "cpu_ns_per_request",
            "latency_ns.p99",
        ],
    },
    Story {
        kind: "instances",
        title: "Instances: rates as senders are added (2009)",
        ours: "onramp",
        figures: &["packets_per_second", "scaling", "cpu_ns_per_packet"],
    },
    Story {
        kind: "kernel",
        title: "Kernel: its transmit path beside Onramp's, qdisc by qdisc",
        ours: "onramp",
        figures: &["packets_per_second", "above_floor_ns", "scaling", "cpu_ns_per_packet"],
    },
    Story {
        kind: "qdisc",
        title: "Qdiscs: what an enqueue and a dequeue cost",
        ours: "fq",
        figures: &["ns_per_packet"],
    },
    Story {
        kind: "control",
        title: "Control: qdiscs that are read or changed while a thread sends",
        ours: "queues-read",
        figures: &["packets_per_second", "operation_ns.p99", "stall_max_ns"],
    },
    Story {
        kind: "full",
        title: "Full: what a refused try_send costs",
        ours: "try-send",
        figures: &["own_ns.p50", "own_ns.p999", "own_max_ns"],
    },
    Story {
        kind: aqm::KIND,
        title: "Queue management: rates of flows, and delays of packets (RFC 7928)",
        ours: "fq_codel",
        figures: &["goodput_bits_per_second", "sojourn_ns.p50", "sojourn_ns.p99"],
    },
    Story {
        kind: "layout",
        title: "Layout: fields grouped by writer, or side by side (2009)",
        ours: "grouped",
        figures: &["cpu_ns_per_packet", "packets_per_second", "retries_per_packet"],
    },
];

/// Returns one HTML page with all experiments. If there are several, the page begins with a table
/// of contents.
pub(crate) fn page(documents: &[Document]) -> String {
    let title = match documents {
        [document] => format!("Onramp: {}", document.title()),
        _ => "Onramp: the laboratory".to_owned(),
    };
    let names = names(documents);
    let body = html! {
        @if documents.len() > 1 {
            nav { ol {
                @for (document, name) in documents.iter().zip(&names) {
                    li { a href={ "#" (name) } { (document.title()) } " " (document.summary()) }
                }
            } }
        }
        @for (document, name) in documents.iter().zip(&names) {
            section id=(name) {
                @if documents.len() > 1 { h2 { (document.title()) } }
                (section(document))
            }
        }
    };
    page::page(&title, &body)
}

/// Returns the charts of all experiments, each with a name for its file.
pub(crate) fn charts(documents: &[Document]) -> Vec<(String, Scene)> {
    let named = documents.iter().zip(names(documents));
    let charts = named.flat_map(|(document, name)| {
        let charts = charts::all(document).into_iter();
        charts.map(move |chart| (format!("{name}-{}", chart.name), chart.scene))
    });
    charts.collect()
}

/// Returns a name for each experiment. If the same experiment ran several times, the names of the
/// second and later runs end with a number.
fn names(documents: &[Document]) -> Vec<String> {
    let name = |(at, document): (usize, &Document)| {
        let same = documents[..at].iter().filter(|other| other.kind() == document.kind()).count();
        match same {
            0 => document.kind().to_owned(),
            _ => format!("{}-{}", document.kind(), same + 1),
        }
    };
    documents.iter().enumerate().map(name).collect()
}

fn section(document: &Document) -> Markup {
    let charts = charts::all(document);
    let machine = document.part("machine");
    html! {
        p class="soft" { (document.machine_summary()) }
        "\n"
        @for sentence in reading::sentences(document) { p class="meaning" { (sentence) } "\n" }
        @for sentence in document.missing() { p class="failed" { (sentence) } "\n" }
        @if let Some(warning) = document.was_busy() { p { (warning) } "\n" }
        @for (heading, group) in charts::grouped(&charts) {
            h3 { (heading) }
            (page::charts(group.iter().map(|chart| &chart.scene)))
        }
        p class="soft" { (how(document)) }
        "\n"
        (tables::all(document))
        h3 { "How it was measured" }
        p { code { (document.command()) } }
        (page::list(&words::entries(document.part("parameters"))))
        @if !machine.is_empty() {
            h3 { "Machine" }
            (page::list(&words::entries(machine)))
        }
    }
}

/// Returns a text that says what the charts show.
fn how(document: &Document) -> String {
    if document.kind() == aqm::KIND {
        return aqm::HOW.to_owned();
    }
    let base = document.base().map_or_else(String::new, |base| {
        let divided = |key: &&str| document.rows().iter().any(|r| document.ratio(r, key).is_some());
        let keys: Vec<_> = document.figures().into_iter().filter(divided).collect();
        let how = tables::how_compared(document, &keys);
        format!(" × is the figure divided by that of {}, {how}.", base.called)
    });
    format!(
        "Figures are medians over the rounds; whiskers reach from the least to the greatest \
         round.{base} Percentiles are those of all rounds together and have no whiskers. The \
         tables contain all figures."
    )
}

/// Returns the built-in facts about the experiment `kind`; `None` if the program does not know that
/// experiment.
fn story(kind: &str) -> Option<&'static Story> {
    STORIES.iter().find(|story| story.kind == kind)
}

/// Returns the value at `path`, whose parts are separated by dots; `None` if there is no value or
/// it is `null`.
fn at<'a>(row: &'a Row, path: &str) -> Option<&'a Value> {
    let mut parts = path.split('.');
    let first = row.values.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part)).filter(|value| !value.is_null())
}
