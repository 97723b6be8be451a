//! Measures how many bytes the parts of a link cost, as the allocator counts them. The result is
//! the table "Memory" of `docs/performance.md`.
//!
//! ```text
//! cargo run --release -p onramp --example memory [-- --json FILE]
//! ```

use std::alloc::System;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use clap::Parser;
use onramp::dev::Null;
use onramp::{Instant, Link, Packet, Setup, Tree};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Prints how many bytes of memory packets, flows, classes and ports take.
#[derive(Parser)]
#[command(name = "memory")]
struct Args {
    /// Write the result to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Number of objects of a kind that are made for one measurement; their total cost is divided by
/// this number.
const COUNT: usize = 10_000;

/// Returns the number of bytes that the process has allocated at present.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Returns the result of `make`, and the number of bytes that this result keeps allocated.
fn cost<T>(make: impl FnOnce() -> T) -> (usize, T) {
    let before = live();
    let made = make();
    (live() - before, made)
}

fn tree(lines: &[String]) -> Tree {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    Tree::of(&setup, 1_514, 1).expect("the lines make a root")
}

fn root(qdisc: &str) -> Vec<String> {
    vec![format!("qdisc add dev x root handle 1: {qdisc}")]
}

/// Returns the cost, in bytes, of a packet with room for `payload` bytes of payload.
fn packet(payload: usize) -> usize {
    let link = null("pfifo");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    // With its first packet, a sender allocates more than that packet, so measure the second
    // packet.
    let first = sender.packet(&flow, &vec![0; payload]).expect("there are credits");
    let bytes = vec![0; payload];
    let (cost, second) = cost(|| sender.packet(&flow, &bytes).expect("there are credits"));
    drop((first, second));
    cost
}

fn null(qdisc: &str) -> Link {
    let link = Link::devices([Box::new(Null::default()) as Box<_>]).qdisc(qdisc).build();
    link.expect("the link is in order")
}

/// Returns the cost of a sender that has sent a packet of 120 bytes, which has come home to the
/// sender's pool.
fn idle_sender() -> usize {
    let link = null("fq");
    let used = || {
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, &[0; 120]).expect("the link is open");
        assert!(sender.flush(Duration::from_secs(50)), "the packet comes back");
        sender
    };
    let first = used();
    let count = COUNT / 10;
    let (bytes, senders) = cost(|| (0..count).map(|_| used()).collect::<Vec<_>>());
    drop((first, senders));
    bytes / count
}

/// Returns the cost of a flow in the qdisc `qdisc` that holds a packet. The cost of the packet
/// itself is not included.
fn backlogged_flow(qdisc: &str) -> usize {
    let mut tree = tree(&root(qdisc));
    let packets: Vec<_> = (1..).take(COUNT).map(flow_packet).collect();
    let (bytes, ()) = cost(|| {
        for packet in packets {
            let _ = tree.enqueue(Instant(1), packet);
        }
    });
    // The list that held the packets was freed during the measurement, which made the cost seem
    // smaller, so add the size of the list.
    (bytes + COUNT * size_of::<Packet>()) / COUNT
}

/// Returns the cost of an empty flow of the qdisc `fq`, which remembers the flow in order to pace
/// its next packet.
fn remembered_flow() -> usize {
    let mut tree = tree(&root("fq maxrate 1gbit"));
    let (bytes, ()) = cost(|| {
        for packet in (1..).take(COUNT).map(flow_packet) {
            let _ = tree.enqueue(Instant(1), packet);
            drop(tree.dequeue(Instant(1)));
        }
    });
    bytes / COUNT
}

fn flow_packet(flow: u64) -> Packet {
    let mut packet = Packet::new(162);
    packet.flow = flow;
    packet
}

/// Returns the cost of one flow in a qdisc that allocates all of its flows at the start; it is
/// computed from trees with two different numbers of flows.
fn flow_of_table(qdisc: &str, flows: [usize; 2]) -> usize {
    let [few, many] = flows.map(|flows| cost(|| tree(&root(&format!("{qdisc} flows {flows}")))).0);
    (many - few) / (flows[1] - flows[0])
}

/// Returns the cost of a class of a qdisc, together with the class's own `pfifo`.
fn class(kind: &str, options: &str) -> usize {
    let root = root(kind);
    let class = |minor| format!("class add dev x parent 1: classid 1:{minor:x} {kind} {options}");
    let lines: Vec<_> = root.iter().cloned().chain((1..=COUNT).map(class)).collect();
    let (empty, _tree) = cost(|| tree(&root));
    let (full, _tree) = cost(|| tree(&lines));
    (full - empty) / COUNT
}

/// Returns the cost of a port that was never used, together with its `pfifo_fast`.
fn port() -> usize {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev x root handle 1: mq").expect("a root");
    let devices: Vec<_> = (0..COUNT).map(|_| Box::new(Null::default()) as Box<_>).collect();
    let (bytes, _link) = cost(|| Link::devices(devices).tree(&setup).build().expect("a link"));
    bytes / COUNT
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let rows = [
        ("a packet of up to 128 bytes of payload", packet(120)),
        ("of up to 512 bytes", packet(512)),
        ("of up to 2,048 bytes", packet(2_048)),
        ("of up to 65,507 bytes", packet(65_000)),
        ("an idle sender, with one such packet", idle_sender()),
        ("a flow of `fq` that is idle, paced, and remembered", remembered_flow()),
        ("a flow of `fq` with a packet, without the packet", backlogged_flow("fq limit 100000")),
        (
            "a flow of `sfq` with a packet, without the packet",
            backlogged_flow("sfq divisor 65536 flows 65408 limit 100000"),
        ),
        ("each of the `flows` of `fq_codel`", flow_of_table("fq_codel", [1_024, 65_536])),
        ("each of the `flows` of `fq_pie`", flow_of_table("fq_pie", [1_024, 65_536])),
        ("a `cake` with its three tins", cost(|| tree(&root("cake"))).0),
        ("a class of `drr`, with its own `pfifo`", class("drr", "")),
        ("of `qfq`", class("qfq", "")),
        ("of `htb`", class("htb", "rate 1gbit")),
        ("of `hfsc`", class("hfsc", "ls rate 1gbit")),
        ("a port that rests, with its `pfifo_fast`", port()),
    ];
    for (what, bytes) in &rows {
        println!("{bytes:>8} bytes: {what}");
    }
    if let Some(path) = args.json {
        let rows: Vec<_> = rows.iter().map(|(what, bytes)| row(what, *bytes)).collect();
        let text = format!("{{\"format\": 1, \"rows\": [\n{}\n]}}\n", rows.join(",\n"));
        fs::write(path, text)?;
    }
    Ok(())
}

/// Returns a row of the table in JSON. The text `what` contains no characters that JSON would have
/// to escape.
fn row(what: &str, bytes: usize) -> String {
    format!("  {{\"what\": \"{what}\", \"bytes\": {bytes}}}")
}
