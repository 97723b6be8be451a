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
    /// What was measured, for readers who do not know the subject.
    about: &'static str,
    /// The name of the design that is compared with the others. Designs whose names begin with this
    /// name are highlighted.
    ours: &'static str,
    /// The keys of the figures that matter most. Each of these figures gets charts.
    figures: &'static [&'static str],
}

const STORIES: [Story; 12] = [
    Story {
        kind: "contention",
        title: "Contention: many threads, one queue",
        about: "Many threads put packets into one queue at the same time, as in a network stack. \
                This page shows what that costs with older designs and with Onramp's: processor \
                time for each packet, packets that get through, and how long a call keeps its \
                thread.",
        ours: "onramp",
        figures: &["cpu_ns_per_packet", "packets_per_second", "send_ns.p999"],
    },
    Story {
        kind: "loopback",
        title: "Loopback: one lock for all, or a queue for each (2004)",
        about: "Pairs of threads send packets to each other inside one machine, as in an \
                experiment of 2004: either all senders share one locked queue, or each has a queue \
                of its own.",
        ours: "per-queue",
        figures: &["packets_per_second", "cpu_ns_per_packet", "context_switches_per_second"],
    },
    Story {
        kind: "softirq",
        title: "Softirq: waking a helper, or working in place (2001)",
        about: "Each packet that is handed over either wakes a helper thread that sends it, or the \
                work is done in place, as in an experiment of 2001. To wake a thread costs time in \
                the operating system.",
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
        about: "This page shows how many packets each design sends as more threads send at once, \
                as in an experiment of 2009. At best, twice the threads send twice as many.",
        ours: "onramp",
        figures: &["packets_per_second", "scaling", "cpu_ns_per_packet"],
    },
    Story {
        kind: "kernel",
        title: "Kernel: its transmit path beside Onramp's, qdisc by qdisc",
        about: "The same senders send packets through this machine's Linux kernel and through \
                Onramp, with each queueing discipline (qdisc: it decides which packet leaves next) \
                in turn. No network card takes part, so the figures are those of the software \
                alone.",
        ours: "onramp",
        figures: &["packets_per_second", "above_floor_ns", "scaling", "cpu_ns_per_packet"],
    },
    Story {
        kind: "qdisc",
        title: "Qdiscs: what an enqueue and a dequeue cost",
        about: "A queueing discipline (qdisc) decides which packet leaves next. This page shows \
                what each costs by itself: the processor time to put one packet in and to take one \
                out, with one thread and no device.",
        ours: "fq",
        figures: &["ns_per_packet"],
    },
    Story {
        kind: "pacing",
        title: "Pacing: how exactly packets leave a shaper, and what that costs",
        about: "A shaper releases one packet after the other at a rate. This page shows how long \
                after its instant each packet left, and the processor time for a packet, with \
                several slacks (how late the thread may come on purpose, so that one wake-up \
                serves several packets) and spin budgets (how long it spins to come on time).",
        ours: "onramp",
        figures: &["error_ns.p99", "cpu_ns_per_packet", "error_ns.p50"],
    },
    Story {
        kind: "wire",
        title: "Wire: frames from one interface to another, beside the kernel's bridge",
        about: "Two hosts are joined by a pair of devices alone, by the kernel's bridge, or by \
                Onramp's (`onramp shape`), also with shapers. This page shows how many packets \
                pass, the processor time of the whole machine for each, and how long a single \
                packet takes.",
        ours: "onramp",
        figures: &["packets_per_second", "cpu_ns_per_packet", "idle_ns.p50"],
    },
    Story {
        kind: "control",
        title: "Control: qdiscs that are read or changed while a thread sends",
        about: "One thread sends while another reads the counters of the queues or changes the \
                queues. This page shows how much the sender suffers.",
        ours: "queues-read",
        figures: &["packets_per_second", "operation_ns.p99", "stall_max_ns"],
    },
    Story {
        kind: "full",
        title: "Full: what a refused try_send costs",
        about: "A link that has no room refuses a packet. This page shows how long such a refused \
                call keeps its thread.",
        ours: "try-send",
        figures: &["own_ns.p50", "own_ns.p999", "own_max_ns"],
    },
    Story {
        kind: aqm::KIND,
        title: "Queue management: rates of flows, and delays of packets (RFC 7928)",
        about: "Flows share a link that is too slow for all of them, and a queueing discipline \
                (qdisc) decides which packets wait and which are dropped. This page shows how long \
                packets wait and how much each flow gets.",
        ours: "fq_codel",
        figures: &["sojourn_ns.p50", "goodput_bits_per_second", "sojourn_ns.p99"],
    },
    Story {
        kind: "layout",
        title: "Layout: fields grouped by writer, or side by side (2009)",
        about: "One object that several threads use lies in memory in two ways: its fields grouped \
                by the thread that writes them, or side by side, as in an experiment of 2009. This \
                page shows what a packet costs with each.",
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
            p class="meaning" {
                "This page shows " (documents.len()) " experiments. Each begins with what was "
                "measured, what came out, and one chart."
            }
            "\n"
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
    let (first, charts) = charts::first_and_rest(document);
    let machine = document.part("machine");
    html! {
        p class="meaning" {
            @if let Some(story) = document.story() { (story.about) " " }
            (reading::headline(document))
        }
        "\n"
        @for sentence in document.missing() { p class="failed" { (sentence) } "\n" }
        (page::charts(first.as_ref().map(|chart| &chart.scene)))
        @if let Some(first) = first.as_ref().filter(|_| document.kind() == aqm::KIND) {
            p class="soft" { "Scenario: " (first.heading) } "\n"
        }
        @for warning in document.warnings() { p { (warning) } "\n" }
        p class="soft" { (document.machine_summary()) }
        "\n"
        @for (heading, group) in charts::grouped(&charts) {
            h3 { (heading) }
            (page::charts(group.iter().map(|chart| &chart.scene)))
        }
        p class="soft" { (how(document)) }
        "\n"
        h3 { "In words" }
        ul { @for sentence in reading::sentences(document) { li { (sentence) } "\n" } }
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
        if keys.is_empty() {
            return String::new();
        }
        let how = tables::how_compared(document, &keys);
        format!(" × is the figure divided by that of {}, {how}.", base.called)
    });
    format!(
        "Figures are medians over the rounds; whiskers reach from the least to the greatest \
         round.{base} Percentiles are those of all rounds together and have no whiskers. A bar \
         marked \"cut\" is longer than the chart: beside it the others could not be compared. The \
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
