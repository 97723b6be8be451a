//! Checks the contract between a qdisc and its caller after every operation, for every kind of
//! qdisc in the table [`KINDS`], alone and in trees.

// Trees of several qdiscs need lines of tc. Without them, each kind is tested alone.
#[cfg(feature = "tc")]
#[path = "conformance/trees.rs"]
mod trees;
#[cfg(feature = "tc")]
#[path = "conformance/values.rs"]
mod values;

use std::collections::BTreeMap;

use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, Dequeue, KINDS, Qdisc, Verdict};
use onramp_core::{Instant, Stopped, Tree};
use onramp_queue::{Packet, PacketList};
use proptest::prelude::*;

const MTU: u32 = 1514;
const START_NS: u64 = 5_000_000_000;
const NEVER: Instant = Instant(u64::MAX);

/// Returns the qdiscs to test: each kind with default options (unless some options are required),
/// and with low limits.
fn specs() -> Vec<Spec> {
    let mut lines = Vec::new();
    for kind in KINDS {
        let bare = format!("{}{}", kind.id, must_be_given(kind.id));
        if bare.parse::<Spec>().is_err() {
            continue;
        }
        for param in kind.params {
            if bare.contains(&format!(" {} ", param.key)) {
                continue;
            }
            if matches!(param.key, "limit" | "txqueuelen") {
                lines.push(format!("{bare} {} {}", param.key, param.min.max(7)));
            }
            if param.key == "maxrate" {
                lines.push(format!("{bare} maxrate 20mbit limit 40"));
            }
        }
        lines.push(bare);
    }
    for line in [
        "bfifo limit 9kb",
        "etf clockid TAI delta 3000000",
        "etf clockid TAI delta 1000000 deadline_mode",
        "ets strict 2",
        "ets bands 5 strict 2 quanta 300 3000 priomap 4 3 2 1 0 1 2 3",
        "multiq bands 4",
        "mq queues 4",
        "mqprio num_tc 3 map 0 1 2 0 1 2 queues 2@0 1@2 2@3 hw 0",
        "plug limit 9kb release_indefinite",
        "cake bandwidth 20mbit diffserv8 overhead 30 memlimit 20kb",
        "cake diffserv4 flowblind lan memlimit 9kb",
        "cake bandwidth 1mbit besteffort dual-dsthost ethernet datacentre",
        "dualpi2 target 1ms tupdate 500us alpha 40 beta 800 limit 30 any_ect overflow",
        "dualpi2 max_rtt 2ms memlimit 20000 drop_enqueue classic_protection 40",
        "netem delay 3ms 2ms distribution pareto loss gemodel 2% 20% duplicate 9% corrupt 5%",
        "netem delay 2ms rate 20mbit reorder 30% gap 3 loss state 3%",
        "netem delay 1ms loss 10% ecn duplicate 20% slot 3ms 5ms packets 9",
    ] {
        lines.push(line.into());
    }
    lines.iter().map(|line| line.parse().expect("a correct line")).collect()
}

/// Returns the options that must be given for a kind.
fn must_be_given(id: &str) -> &'static str {
    match id {
        // With these slopes, earning a credit takes a whole number of nanoseconds. Otherwise `cbs`
        // would announce times at which credits are still missing: see `cbs_reference`.
        "cbs" => " idleslope 8000 sendslope -2000 hicredit 459 locredit -1071",
        "tbf" => " rate 20mbit burst 3kb limit 9kb",
        "red" => " limit 30000 min 3000 avpkt 1000 ecn",
        "mqprio" => " queues 1@0 1@1 1@2 1@3 1@4 1@5 1@6 1@7 hw 0",
        "choke" => " limit 12 min 2 max 9 bandwidth 10mbit ecn",
        _ => "",
    }
}

/// Returns the most packets and bytes that a qdisc may hold.
fn most(spec: &Spec) -> Backlog {
    let values = spec.values(MTU);
    let (packets, bytes) = match spec.kind().id {
        "pfifo" | "pfifo_head_drop" | "skbprio" => (values.number("limit"), u64::MAX),
        "bfifo" | "plug" | "tbf" => (u64::MAX, values.number("limit")),
        "pfifo_fast" => (3 * values.number("txqueuelen"), u64::MAX),
        // Each queue of `mq` has a `pfifo_fast`.
        "mq" => (3000 * values.number("queues").max(1), u64::MAX),
        "mqprio" => (3000 * 8, u64::MAX),
        // Each band of these kinds has a `pfifo`.
        "prio" | "multiq" => (1000 * values.number("bands"), u64::MAX),
        "ets" => (1000 * values.number("bands").max(2), u64::MAX),
        // A qdisc of these kinds without classes holds no packets.
        "drr" | "qfq" | "blackhole" | "noop" => (0, 0),
        "noqueue" => (1, u64::MAX),
        // When `netem` duplicates a packet, the duplicate may exceed the limit.
        "netem" => (values.number("limit") + 1, u64::MAX),
        // While it has no classes, `hfsc` acts as a `pfifo`.
        "hfsc" => (1000, u64::MAX),
        "etf" => (u64::MAX, u64::MAX),
        // This `htb` has no classes, so all packets go to its direct queue.
        "htb" => (values.number("direct_qlen"), u64::MAX),
        // The child of `cbs` is a `pfifo`.
        "cbs" => (1000, u64::MAX),
        // The limit holds for each band of `fq` separately, and `fq`'s fast path holds eight more
        // packets.
        "fq" => (3 * values.number("limit") + 8, u64::MAX),
        "red" => (u64::MAX, values.number("limit")),
        "codel" | "fq_codel" | "sfq" | "choke" | "pie" | "fq_pie" | "dualpi2" => {
            (values.number("limit"), u64::MAX)
        }
        // `cake`'s limit counts memory, and every packet takes more memory than its bytes. After a
        // peek, `cake` may hold one more packet.
        "cake" => match values.number("memlimit") {
            0 => (u64::MAX, (10_240 + 1) * u64::from(MTU)),
            limit => (u64::MAX, limit + u64::from(MTU)),
        },
        // A kind that is not listed holds at most its `limit`, in packets, if it has one.
        _ => match spec.kind().params.iter().any(|param| param.key == "limit") {
            true => (values.number("limit"), u64::MAX),
            false => (u64::MAX, u64::MAX),
        },
    };
    Backlog { packets: u32::try_from(packets).unwrap_or(u32::MAX), bytes }
}

/// Checks that every parent knows what its children hold, and holds at least that much itself. A
/// parent may hold more: a packet that it has peeked at, or a queue of its own.
fn agree(qdisc: &mut dyn Qdisc) -> Result<(), TestCaseError> {
    let held = qdisc.backlog();
    let Some(classes) = qdisc.classes() else { return Ok(()) };
    let mut sum = Backlog::default();
    for minor in 1..16 {
        let Some(child) = classes.child(minor) else { continue };
        let known = child.held();
        prop_assert_eq!(known, child.qdisc().backlog(), "class {:x}", minor);
        sum.packets += known.packets;
        sum.bytes += known.bytes;
        agree(child.qdisc())?;
    }
    let fits = held.packets >= sum.packets && held.bytes >= sum.bytes;
    prop_assert!(fits, "holds {held:?}, and its children {sum:?}");
    Ok(())
}

/// Whether the qdisc itself never makes packets wait (its children may).
fn conserves_work(spec: &Spec) -> bool {
    match spec.kind().id {
        "cbs" | "etf" | "fq" | "hfsc" | "htb" | "netem" | "plug" | "tbf" => false,
        "cake" => spec.values(MTU).number("bandwidth") == 0,
        _ => true,
    }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue {
        flow: u64,
        len: u32,
    },
    /// Enqueue a packet that may leave only after `wait_us` microseconds.
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

/// What a test knows about one packet. The packet's cookie is its index.
struct Known {
    flow: u64,
    len: u32,
    not_before_ns: u64,
}

/// The tree that is tested, and a record of the packets that the tree should hold.
struct Books {
    tree: Tree,
    most: Backlog,
    /// Whether the tree respects the departure times of packets. `early_ns` is how many nanoseconds
    /// before its departure time a packet may leave.
    timed: bool,
    early_ns: u64,
    /// How often in a row a dequeue may come at the time that the tree announced, and still get no
    /// packet.
    false_hopes: u32,
    /// Whether the tree has a `plug`. A `plug` holds its packets until a command releases them,
    /// while its parents may ask for dequeues again and again.
    plugged: bool,
    /// Whether the tree never waits while it holds packets.
    conserves_work: bool,
    now: Instant,
    known: Vec<Known>,
    /// The packets that the tree should hold, by cookie, with the number of copies of each (a qdisc
    /// may duplicate packets).
    held: BTreeMap<u64, u64>,
    /// Whether packets may leave in another order than they arrived.
    reorders: bool,
    duplicates: bool,
    dropped: u64,
    /// For each flow, the cookie of its packet that left last.
    last: BTreeMap<u64, u64>,
    /// Each drop and departure in order, so that two runs can be compared.
    log: Vec<(u64, u64, bool)>,
}

impl Books {
    fn new(spec: &Spec) -> Self {
        Self {
            tree: Tree::new(spec, MTU),
            most: most(spec),
            timed: matches!(spec.kind().id, "fq" | "etf"),
            early_ns: match spec.kind().id {
                "etf" if spec.values(MTU).is_given("deadline_mode") => START_NS,
                "etf" => spec.values(MTU).number("delta"),
                _ => 0,
            },
            // `cbs` first announces the time at which the link has sent the last packet. Only then
            // does `cbs` know how many credits are missing, and announces another time.
            false_hopes: u32::from(spec.kind().id == "cbs"),
            plugged: false,
            conserves_work: conserves_work(spec),
            now: Instant(START_NS),
            known: Vec::new(),
            held: BTreeMap::new(),
            reorders: spec.kind().id == "netem",
            duplicates: spec.to_string().contains(" duplicate "),
            dropped: 0,
            last: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn packet(&mut self, flow: u64, len: u32, wait_us: u64) -> Packet {
        let mut pkt = Packet::new(len);
        pkt.cookie = self.known.len() as u64;
        pkt.flow = flow;
        // All packets of a flow have the same priority and so stay in one band, because otherwise
        // they could overtake each other.
        pkt.priority = u32::try_from(flow).expect("small");
        pkt.mark = pkt.priority;
        pkt.ecn = 1;
        if wait_us > 0 {
            pkt.txtime_ns = self.now.0 + wait_us * 1000;
        }
        self.known.push(Known { flow, len, not_before_ns: pkt.txtime_ns });
        self.held.insert(pkt.cookie, 1);
        pkt
    }

    fn enqueue(&mut self, flow: u64, len: u32, wait_us: u64) -> Result<(), TestCaseError> {
        let pkt = self.packet(flow, len, wait_us);
        let (before, cookie) = (self.dropped, pkt.cookie);
        let made_before = self.tree.totals().made_packets;
        let verdict = self.tree.enqueue(self.now, pkt);
        self.settle_made(made_before);
        self.settle_drops()?;
        let held = self.held.contains_key(&cookie);
        match verdict {
            // Although the verdict is `Queued`, the packet may have been dropped: when a parent
            // peeks at the child to see what it holds, the child may drop packets.
            Verdict::Queued => prop_assert!(held || self.dropped > before, "queued, but gone"),
            Verdict::Congested => prop_assert!(self.dropped > before, "nothing died"),
            Verdict::Dropped => prop_assert!(!held, "dropped, but held"),
        }
        Ok(())
    }

    /// If the tree duplicated the packet that was enqueued last, records the duplicate.
    fn settle_made(&mut self, made_before: u64) {
        let made = self.tree.totals().made_packets - made_before;
        if let Some(last) = self.known.len().checked_sub(1) {
            *self.held.entry(last as u64).or_default() += made;
        }
    }

    /// Removes one copy of a packet from the record. Returns whether the record had the packet.
    fn gone(&mut self, cookie: u64) -> bool {
        let there = self.held.get_mut(&cookie).filter(|number| **number > 0);
        let was_there = there.map(|number| *number -= 1).is_some();
        self.held.retain(|_, number| *number > 0);
        was_there
    }

    /// Takes the packets that the tree has dropped, and removes them from the record.
    fn settle_drops(&mut self) -> Result<(), TestCaseError> {
        for pkt in self.tree.drops() {
            prop_assert!(pkt.drop_reason.is_some(), "a drop has a reason");
            prop_assert!(self.gone(pkt.cookie), "{} dropped twice", pkt.cookie);
            self.dropped += 1;
            self.log.push((self.now.0, pkt.cookie, false));
        }
        Ok(())
    }

    fn sent(&mut self, pkt: &Packet) -> Result<(), TestCaseError> {
        prop_assert!(self.gone(pkt.cookie), "{} left, but was not held", pkt.cookie);
        let known = &self.known[usize::try_from(pkt.cookie).expect("an index")];
        prop_assert_eq!((pkt.flow, pkt.len), (known.flow, known.len));
        let early_ns = known.not_before_ns.saturating_sub(self.now.0);
        prop_assert!(!self.timed || early_ns <= self.early_ns, "left early");
        if known.not_before_ns == 0 && !self.reorders {
            let last = self.last.insert(pkt.flow, pkt.cookie);
            prop_assert!(last < Some(pkt.cookie), "flow {} overtook itself", pkt.flow);
        }
        self.log.push((self.now.0, pkt.cookie, true));
        Ok(())
    }

    /// Dequeues one packet. If no packet may leave now, returns the time at which to try again.
    fn dequeue(&mut self) -> Result<Option<Instant>, TestCaseError> {
        let answer = self.tree.dequeue(self.now);
        self.settle_drops()?;
        match answer {
            Dequeue::Ready(pkt) => self.sent(&pkt)?,
            Dequeue::NotBefore(then) => {
                prop_assert!(then > self.now, "asks to be asked at once");
                prop_assert!(!self.held.is_empty(), "waits with nothing");
                prop_assert!(!self.conserves_work, "waits, and has something to send");
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
        let waits = matches!(stopped, Stopped::NotBefore(_));
        prop_assert!(!waits || !self.conserves_work, "waits, and has something to send");
        Ok(())
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Enqueue { flow, len } => self.enqueue(flow, len, 0)?,
            Op::EnqueueLater { flow, len, wait_us } => self.enqueue(flow, len, wait_us)?,
            // Enqueue the packets one by one, because after enqueueing a list, this test could not
            // tell which packets were duplicated.
            Op::EnqueueList { flow, len, count } if self.duplicates => {
                for _ in 0..count {
                    self.enqueue(flow, len, 0)?;
                }
            }
            Op::EnqueueList { flow, len, count } => {
                let list: PacketList = (0..count).map(|_| self.packet(flow, len, 0)).collect();
                let before = self.dropped;
                let dropped = self.tree.enqueue_list(self.now, list);
                self.settle_drops()?;
                // The tree may have dropped other packets to make room for the new ones, so more
                // packets may be dropped than the call returns.
                prop_assert!(u64::from(dropped) <= self.dropped - before);
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

    /// Checks that no packet is lost or invented, that the backlog equals the packets held, and
    /// that parents and children agree.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let backlog = self.tree.backlog();
        let len =
            |cookie: &u64| u64::from(self.known[usize::try_from(*cookie).expect("index")].len);
        let held: u64 = self.held.values().sum();
        let bytes: u64 = self.held.iter().map(|(cookie, number)| number * len(cookie)).sum();
        prop_assert_eq!((u64::from(backlog.packets), backlog.bytes), (held, bytes));
        prop_assert!(backlog.packets <= self.most.packets && backlog.bytes <= self.most.bytes);
        agree(self.tree.root())?;
        let totals = self.tree.totals();
        prop_assert_eq!(totals.enqueued_packets, self.known.len() as u64 + totals.made_packets);
        prop_assert_eq!(totals.dropped_packets(), self.dropped);
        let accounted = totals.sent_packets + self.dropped + held;
        prop_assert_eq!(totals.enqueued_packets, accounted);
        Ok(())
    }

    /// Dequeues until the tree is empty. Whenever the tree announces a time, a packet must leave or
    /// be dropped at that time.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        let mut waits = 0;
        while !self.held.is_empty() {
            let dropped = self.dropped;
            let answer = self.dequeue()?;
            if self.dropped > dropped {
                waits = 0;
            }
            match answer {
                // The announced time never comes, because the tree waits for a command (as `plug`
                // does). A reset drops its packets.
                Some(NEVER) => return self.run(&Op::Reset),
                Some(_) if self.plugged && waits > self.false_hopes => {
                    return self.run(&Op::Reset);
                }
                Some(then) => {
                    prop_assert!(waits <= self.false_hopes, "the wait was over, and nothing left");
                    self.now = then;
                    waits += 1;
                }
                None => waits = 0,
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
