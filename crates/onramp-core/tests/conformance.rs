//! What every qdisc owes its caller, checked for every entry of [`KINDS`] after every operation.

use std::collections::{BTreeMap, BTreeSet};

use onramp_core::qdisc::{Backlog, Dequeue, KINDS, Spec, Verdict};
use onramp_core::{Instant, Stopped, Tree};
use onramp_queue::{Packet, PacketList};
use proptest::prelude::*;

const MTU: u32 = 1514;
const START_NS: u64 = 5_000_000_000;

/// What a kind cannot do without.
fn required(id: &str) -> &'static str {
    match id {
        "red" => "limit 30000 min 3000 avpkt 1000 ecn",
        _ => "",
    }
}

/// What to try: each kind as it is by default, and with room for little.
fn specs() -> Vec<Spec> {
    let mut lines = Vec::new();
    for kind in KINDS {
        let required = required(kind.id);
        if !required.is_empty() {
            lines.push(format!("{} {required}", kind.id));
            continue;
        }
        lines.push(kind.id.to_owned());
        for param in kind.params {
            if matches!(param.key, "limit" | "txqueuelen") {
                lines.push(format!("{} {} {}", kind.id, param.key, param.min.max(7)));
            }
            if param.key == "maxrate" {
                lines.push(format!("{} maxrate 20mbit limit 40", kind.id));
            }
        }
    }
    lines.push("bfifo limit 9kb".into());
    for line in [
        "cake bandwidth 20mbit diffserv8 overhead 30 memlimit 20kb",
        "cake diffserv4 flowblind lan memlimit 9kb",
        "cake bandwidth 1mbit besteffort dual-dsthost ethernet datacentre",
    ] {
        lines.push(line.into());
    }
    lines.iter().map(|line| line.parse().expect("a correct line")).collect()
}

/// The most a qdisc may hold.
fn most(spec: &Spec) -> Backlog {
    let values = spec.values(MTU);
    let (packets, bytes) = match spec.kind().id {
        "pfifo" => (values.number("limit"), u64::MAX),
        "bfifo" => (u64::MAX, values.number("limit")),
        "pfifo_fast" => (3 * values.number("txqueuelen"), u64::MAX),
        // A pfifo in each band.
        "prio" => (1000 * values.number("bands"), u64::MAX),
        // Each band, and the fast path.
        "fq" => (3 * values.number("limit") + 8, u64::MAX),
        "red" => (u64::MAX, values.number("limit")),
        "codel" | "fq_codel" | "sfq" | "pie" | "fq_pie" => (values.number("limit"), u64::MAX),
        // Every packet is charged for more than its bytes; one may have been looked at.
        "cake" => match values.number("memlimit") {
            0 => (u64::MAX, (10_240 + 1) * u64::from(MTU)),
            limit => (u64::MAX, limit + u64::from(MTU)),
        },
        id => panic!("say here how much {id} may hold"),
    };
    Backlog { packets: u32::try_from(packets).unwrap_or(u32::MAX), bytes }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue {
        flow: u64,
        len: u32,
    },
    /// A packet that may not leave before so many microseconds.
    EnqueueLater {
        flow: u64,
        len: u32,
        wait_us: u64,
    },
    EnqueueList {
        flow: u64,
        len: u32,
        count: u8,
    },
    Dequeue,
    DequeueList(u8),
    Wait {
        us: u64,
    },
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = || prop_oneof![60_u32..1515, Just(1514)];
    let op = prop_oneof![
        8 => (0_u64..5, len()).prop_map(|(flow, len)| Op::Enqueue { flow, len }),
        2 => (5_u64..8, len(), 0_u64..20_000)
            .prop_map(|(flow, len, wait_us)| Op::EnqueueLater { flow, len, wait_us }),
        2 => (0_u64..5, len(), 0_u8..20)
            .prop_map(|(flow, len, count)| Op::EnqueueList { flow, len, count }),
        6 => Just(Op::Dequeue),
        2 => (0_u8..20).prop_map(Op::DequeueList),
        3 => (0_u64..30_000).prop_map(|us| Op::Wait { us }),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 0..150)
}

/// What a test knows of a packet by its cookie.
struct Known {
    flow: u64,
    len: u32,
    not_before_ns: u64,
}

/// A tree, and the books kept about it.
struct Books {
    tree: Tree,
    most: Backlog,
    /// Keeps departure times.
    timed: bool,
    now: Instant,
    known: Vec<Known>,
    held: BTreeSet<u64>,
    dropped: u64,
    /// The last packet that left, for each flow.
    last: BTreeMap<u64, u64>,
    /// Everything that happened, to compare runs.
    log: Vec<(u64, u64, bool)>,
}

impl Books {
    fn new(spec: &Spec) -> Self {
        Self {
            tree: Tree::new(spec, MTU),
            most: most(spec),
            timed: spec.kind().params.iter().any(|param| param.key == "horizon"),
            now: Instant(START_NS),
            known: Vec::new(),
            held: BTreeSet::new(),
            dropped: 0,
            last: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn packet(&mut self, flow: u64, len: u32, wait_us: u64) -> Packet {
        let mut pkt = Packet::new(len);
        pkt.cookie = self.known.len() as u64;
        pkt.flow = flow;
        // A flow stays in its band, or it could overtake itself.
        pkt.priority = u32::try_from(flow).expect("small");
        pkt.ecn = 1;
        if wait_us > 0 {
            pkt.txtime_ns = self.now.0 + wait_us * 1000;
        }
        let not_before_ns = if self.timed { pkt.txtime_ns } else { 0 };
        self.known.push(Known { flow, len, not_before_ns });
        self.held.insert(pkt.cookie);
        pkt
    }

    fn enqueue(&mut self, flow: u64, len: u32, wait_us: u64) -> Result<(), TestCaseError> {
        let pkt = self.packet(flow, len, wait_us);
        let before = self.dropped;
        let verdict = self.tree.enqueue(self.now, pkt);
        self.settle_drops()?;
        prop_assert_eq!(verdict == Verdict::Queued, self.dropped == before);
        Ok(())
    }

    /// Takes the packets the tree dropped off the books.
    fn settle_drops(&mut self) -> Result<(), TestCaseError> {
        for pkt in self.tree.drops() {
            prop_assert!(pkt.drop_reason.is_some(), "a drop has a reason");
            prop_assert!(self.held.remove(&pkt.cookie), "{} dropped twice", pkt.cookie);
            self.dropped += 1;
            self.log.push((self.now.0, pkt.cookie, false));
        }
        Ok(())
    }

    fn sent(&mut self, pkt: &Packet) -> Result<(), TestCaseError> {
        prop_assert!(self.held.remove(&pkt.cookie), "{} left, but was not held", pkt.cookie);
        let known = &self.known[usize::try_from(pkt.cookie).expect("an index")];
        prop_assert_eq!((pkt.flow, pkt.len), (known.flow, known.len));
        prop_assert!(known.not_before_ns <= self.now.0, "left early");
        if known.not_before_ns == 0 {
            let last = self.last.insert(pkt.flow, pkt.cookie);
            prop_assert!(last < Some(pkt.cookie), "flow {} overtook itself", pkt.flow);
        }
        self.log.push((self.now.0, pkt.cookie, true));
        Ok(())
    }

    /// Says when to ask again, if nothing may leave now.
    fn dequeue(&mut self) -> Result<Option<Instant>, TestCaseError> {
        let answer = self.tree.dequeue(self.now);
        self.settle_drops()?;
        match answer {
            Dequeue::Ready(pkt) => self.sent(&pkt)?,
            Dequeue::NotBefore(then) => {
                prop_assert!(then > self.now, "asks to be asked at once");
                prop_assert!(!self.held.is_empty(), "waits with nothing");
                return Ok(Some(then));
            }
            Dequeue::Empty => prop_assert!(self.held.is_empty(), "holds, and says it is empty"),
        }
        Ok(None)
    }

    fn dequeue_list(&mut self, most: u32) -> Result<(), TestCaseError> {
        let mut out = PacketList::new();
        let stopped = self.tree.dequeue_list(self.now, most, &mut out);
        prop_assert!(out.len() <= most);
        prop_assert_eq!(stopped == Stopped::Full, out.len() == most);
        for pkt in out {
            self.sent(&pkt)?;
        }
        self.settle_drops()?;
        prop_assert!(stopped != Stopped::Empty || self.held.is_empty());
        Ok(())
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Enqueue { flow, len } => self.enqueue(flow, len, 0)?,
            Op::EnqueueLater { flow, len, wait_us } => self.enqueue(flow, len, wait_us)?,
            Op::EnqueueList { flow, len, count } => {
                let list: PacketList = (0..count).map(|_| self.packet(flow, len, 0)).collect();
                let before = self.dropped;
                let dropped = self.tree.enqueue_list(self.now, list);
                self.settle_drops()?;
                prop_assert_eq!(u64::from(dropped), self.dropped - before);
            }
            Op::Dequeue => {
                self.dequeue()?;
            }
            Op::DequeueList(most) => self.dequeue_list(u32::from(most))?,
            Op::Wait { us } => self.now = self.now.after(us * 1000),
            Op::Reset => {
                self.tree.reset(self.now);
                self.settle_drops()?;
                prop_assert!(self.held.is_empty(), "a reset leaves nothing");
            }
        }
        self.settle_drops()?;
        self.check()
    }

    /// Conservation, and the backlog is the contents.
    fn check(&self) -> Result<(), TestCaseError> {
        let backlog = self.tree.backlog();
        let len =
            |cookie: &u64| u64::from(self.known[usize::try_from(*cookie).expect("index")].len);
        let bytes: u64 = self.held.iter().map(len).sum();
        prop_assert_eq!((backlog.packets as usize, backlog.bytes), (self.held.len(), bytes));
        prop_assert!(backlog.packets <= self.most.packets && backlog.bytes <= self.most.bytes);
        let totals = self.tree.totals();
        prop_assert_eq!(totals.enqueued_packets, self.known.len() as u64);
        prop_assert_eq!(totals.dropped_packets(), self.dropped);
        let accounted = totals.sent_packets + self.dropped + self.held.len() as u64;
        prop_assert_eq!(totals.enqueued_packets, accounted);
        Ok(())
    }

    /// Lets everything out; every wait ends with a packet.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        let mut waited = false;
        while !self.held.is_empty() {
            if let Some(then) = self.dequeue()? {
                prop_assert!(!waited, "the wait was over, and nothing left");
                self.now = then;
                waited = true;
            } else {
                waited = false;
            }
            self.check()?;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_kind_keeps_the_contract(ops in ops()) {
        for spec in specs() {
            let run = || -> Result<_, TestCaseError> {
                let mut books = Books::new(&spec);
                for op in &ops {
                    books.run(op)?;
                }
                books.drain()?;
                Ok(books.log)
            };
            let fail = |e| TestCaseError::fail(format!("{spec}: {e}"));
            let log = run().map_err(fail)?;
            prop_assert_eq!(log, run().map_err(fail)?, "{}: same calls, other packets", spec);
        }
    }
}
