//! Replays what a real Linux 7.2 recorded, in virtual time, and compares packet by packet.
//!
//! The traces lie outside the project, in `../shared/golden` beside the repository or in
//! `$ONRAMP_SHARED/golden`; without them the test says so and passes. A case is replayed if its
//! `tc.txt` has one line, for the root, of a kind in [`KINDS`]; the rest is listed as skipped.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use onramp_core::qdisc::{Dequeue, KINDS, Spec};
use onramp_core::{Instant, Tree};
use onramp_queue::{DropReason, Packet};

/// The recordings begin at 20 s.
const START_NS: u64 = 20_000_000_000;
/// Largest packet of the recorded device.
const MTU: u32 = 1514;
/// The recording machine's clock tick.
const TICK_NS: u64 = 10_000_000;
/// How often the recorder looks whether the last packet has left.
const POLL_NS: u64 = 100_000_000;

/// A row of `kernel.csv` without what follows from the packet's index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    time_ns: u64,
    packet: usize,
    ecn: u8,
    reason: Option<DropReason>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    dequeues: Vec<Event>,
    /// Sorted: the order of drops at one time means nothing.
    drops: Vec<Event>,
}

#[derive(Clone, Debug)]
struct Arrival {
    time_ns: u64,
    flow: u64,
    len: u32,
    priority: u32,
    ecn: u8,
    txtime_ns: u64,
    pacing_rate: u64,
}

fn shared() -> PathBuf {
    std::env::var_os("ONRAMP_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    )
}

/// The fields of each line of a CSV file, by the names in its first.
fn rows(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let names: Vec<_> = lines.next().expect("a CSV file has a head").collect();
    lines.map(|fields| names.iter().cloned().zip(fields).collect()).collect()
}

fn number(text: &str) -> u64 {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

fn narrow<T: TryFrom<u64>>(text: &str) -> T {
    T::try_from(number(text)).ok().expect("the field fits its type")
}

fn workload(case: &Path) -> Vec<Arrival> {
    let mut rates = BTreeMap::new();
    let flows = fs::read_to_string(case.join("flows.csv")).unwrap_or_default();
    for (flow, rate) in flows.lines().filter_map(|line| line.split_once(',')) {
        if let (Ok(flow), Ok(rate)) = (flow.parse::<u64>(), rate.trim().parse::<u64>()) {
            rates.insert(flow, rate);
        }
    }
    let arrival = |row: BTreeMap<String, String>| {
        let flow = number(&row["flow_id"]);
        let txtime = row.get("txtime_ns").and_then(|text| text.parse::<u64>().ok());
        Arrival {
            time_ns: START_NS + number(&row["time_ns"]),
            flow,
            len: narrow(&row["size_bytes"]),
            priority: narrow(&row["priority"]),
            ecn: narrow(&row["ecn"]),
            txtime_ns: txtime.map_or(0, |ns| START_NS + ns),
            pacing_rate: rates.get(&flow).copied().unwrap_or(0),
        }
    };
    rows(&case.join("workload.csv")).into_iter().map(arrival).collect()
}

fn recorded(case: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    for row in rows(&case.join("kernel.csv")) {
        let reason = match row["reason"].as_str() {
            "" => None,
            "GENERIC" | "OVERLIMIT" => Some(DropReason::Overlimit),
            "BAND_LIMIT" => Some(DropReason::FqBandLimit),
            "FLOW_LIMIT" => Some(DropReason::FqFlowLimit),
            "HORIZON_LIMIT" => Some(DropReason::FqHorizonLimit),
            other => panic!("{}: unknown drop reason {other}", case.display()),
        };
        let event = Event {
            time_ns: START_NS + number(&row["time_ns"]),
            packet: narrow::<usize>(&row["idx"]),
            ecn: narrow(&row["ecn"]),
            reason,
        };
        let list = if row["event"] == "deq" { &mut outcome.dequeues } else { &mut outcome.drops };
        list.push(event);
    }
    outcome.drops.sort();
    outcome
}

/// The machine of the recording: a wire that takes one packet at a time, and timers.
///
/// A timer with slack ends when its slack does, but runs along with any interrupt before, unless
/// another timer that ends before it keeps it back. Such others are the recorder's own sleep and
/// the clock tick, which comes once after each time the recorder was awake, and twice after every
/// eleventh tick for the machine's own sake.
struct Wire {
    tree: Tree,
    /// Bits per second; 0 = infinitely fast.
    rate: u64,
    /// When the packet on it has left.
    free_at_ns: u64,
    /// What the qdisc wants to be asked at, at the latest.
    timer_ns: Option<u64>,
    /// How much earlier than that the timer may run.
    slack_ns: u64,
    /// The next clock tick.
    tick_ns: u64,
    outcome: Outcome,
}

impl Wire {
    /// Runs the qdisc while the wire is free.
    fn run(&mut self, now_ns: u64) {
        while self.free_at_ns <= now_ns {
            match self.tree.dequeue(Instant(now_ns)) {
                Dequeue::Ready(pkt) => {
                    if self.rate > 0 {
                        let bits = u64::from(pkt.len) * 8;
                        self.free_at_ns = now_ns + (bits * 1_000_000_000).div_ceil(self.rate);
                    }
                    self.outcome.dequeues.push(event(now_ns, &pkt));
                }
                Dequeue::NotBefore(then) => return self.timer_ns = Some(then.0),
                Dequeue::Empty => return,
            }
        }
    }

    /// Runs wire and timers up to `until_ns`, when the recorder wakes up.
    fn advance(&mut self, until_ns: u64) {
        loop {
            let wire = Some(self.free_at_ns).filter(|at| *at > 0);
            let first = [wire, self.timer_ns, Some(self.tick_ns)].into_iter().flatten().min();
            let Some(now_ns) = first.filter(|at| *at <= until_ns) else { break };
            if self.tick_ns == now_ns {
                self.tick_ns = idle_tick_after(now_ns);
            }
            if wire == Some(now_ns) {
                self.free_at_ns = 0;
            }
            self.run_timer(now_ns, until_ns);
            if wire == Some(now_ns) {
                self.run(now_ns);
            }
        }
        self.run_timer(until_ns, u64::MAX);
        self.tick_ns = (until_ns + 1).next_multiple_of(TICK_NS);
    }

    /// Runs the timer if it may run now; the recorder sleeps until `awake_ns`.
    fn run_timer(&mut self, now_ns: u64, awake_ns: u64) {
        let Some(end_ns) = self.timer_ns else { return };
        let kept_back = self.tick_ns.min(awake_ns) < end_ns;
        if end_ns <= now_ns || (end_ns - self.slack_ns <= now_ns && !kept_back) {
            self.timer_ns = None;
            self.run(now_ns);
        }
    }

    fn collect_drops(&mut self, now_ns: u64) {
        let drops = self.tree.drops();
        self.outcome.drops.extend(drops.map(|pkt| event(now_ns, &pkt)));
    }
}

/// The next clock tick of a machine where nothing goes on.
fn idle_tick_after(now_ns: u64) -> u64 {
    let mut tick = (now_ns - START_NS) / TICK_NS + 1;
    while !matches!(tick % 11, 2 | 3) {
        tick += 1;
    }
    START_NS + tick * TICK_NS
}

fn event(time_ns: u64, pkt: &Packet) -> Event {
    let packet = usize::try_from(pkt.cookie).expect("the cookie is an index");
    Event { time_ns, packet, ecn: pkt.ecn, reason: pkt.drop_reason }
}

fn replay(spec: &Spec, rate: u64, arrivals: &[Arrival]) -> Outcome {
    let has_slack = spec.kind().params.iter().any(|param| param.key == "timer_slack");
    let mut wire = Wire {
        tree: Tree::new(spec, MTU),
        rate,
        free_at_ns: 0,
        timer_ns: None,
        slack_ns: if has_slack { spec.values(MTU).number("timer_slack") } else { 0 },
        tick_ns: START_NS,
        outcome: Outcome::default(),
    };
    for (index, arrival) in arrivals.iter().enumerate() {
        wire.advance(arrival.time_ns);
        let mut pkt = Packet::new(arrival.len);
        pkt.cookie = index as u64;
        pkt.flow = arrival.flow;
        pkt.priority = arrival.priority;
        pkt.ecn = arrival.ecn;
        pkt.txtime_ns = arrival.txtime_ns;
        pkt.pacing_rate = arrival.pacing_rate;
        let _ = wire.tree.enqueue(Instant(arrival.time_ns), pkt);
        wire.collect_drops(arrival.time_ns);
        wire.run(arrival.time_ns);
    }
    let mut now_ns = arrivals.last().map_or(START_NS, |last| last.time_ns);
    while wire.tree.backlog().packets > 0 {
        now_ns += POLL_NS;
        wire.advance(now_ns);
    }
    wire.outcome.drops.sort();
    wire.outcome
}

/// The qdisc of a case: what stands behind `root` and its handle, if there is one line only.
fn qdisc_of(case: &Path) -> Option<Spec> {
    let text = fs::read_to_string(case.join("tc.txt")).expect("a case has a tc.txt");
    let mut lines = text.lines().filter(|line| line.starts_with("tc "));
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let mut words = words.split(|word| *word == "root").nth(1)?;
    if let ["handle", _, rest @ ..] = words {
        words = rest;
    }
    KINDS.iter().find(|kind| Some(&kind.id) == words.first())?;
    let line = words.join(" ");
    Some(line.parse().unwrap_or_else(|e| panic!("{}: {e}", case.display())))
}

/// Says where two lists first differ.
fn difference(what: &str, ours: &[Event], theirs: &[Event]) -> Option<String> {
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    if at == ours.len() && at == theirs.len() {
        return None;
    }
    let mut text = format!("{what}s differ from {at} on, {} and {}", ours.len(), theirs.len());
    let _ = write!(text, "\n    ours  {:?}\n    Linux {:?}", ours.get(at), theirs.get(at));
    Some(text)
}

#[test]
fn as_linux_did() {
    let golden = shared().join("golden");
    let Ok(entries) = fs::read_dir(&golden) else {
        eprintln!("SKIPPED: no recordings at {} (set ONRAMP_SHARED)", golden.display());
        return;
    };
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    cases.retain(|path| path.join("tc.txt").exists());
    cases.sort();
    let (mut replayed, mut failures) = (0, Vec::new());
    for case in &cases {
        let name = case.file_name().expect("a case has a name").to_string_lossy();
        let Some(spec) = qdisc_of(case) else {
            eprintln!("skipped {name}: not a single qdisc of a kind we have");
            continue;
        };
        let opts = fs::read_to_string(case.join("opts")).unwrap_or_default();
        let rate = opts.lines().find_map(|line| line.strip_prefix("LINK=")).map_or(0, number);
        let ours = replay(&spec, rate, &workload(case));
        let theirs = recorded(case);
        replayed += 1;
        eprintln!("{name}: {} dequeues, {} drops", ours.dequeues.len(), ours.drops.len());
        let dequeues = difference("dequeue", &ours.dequeues, &theirs.dequeues);
        let drops = difference("drop", &ours.drops, &theirs.drops);
        failures.extend([dequeues, drops].into_iter().flatten().map(|d| format!("{name}: {d}")));
    }
    assert!(replayed > 0, "{} has cases, but none of a kind we have", golden.display());
    assert!(failures.is_empty(), "{replayed} replayed\n  {}", failures.join("\n  "));
}
