//! Values that packets carry come back exactly once, through every kind of qdisc, alone and in
//! trees, while lines of `tc` change the tree.

use std::rc::Rc;

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Spec, Tree, TreeOf};
use onramp_queue::Packet;
use proptest::prelude::*;

use crate::trees::{Place, Scribe, places};
use crate::{MTU, START_NS, specs};

/// A value, which is alive as long as it holds a reference to `alive`.
struct Value {
    number: usize,
    is_copy: bool,
    alive: Rc<()>,
}

impl Value {
    fn copied(&self) -> Self {
        Self { number: self.number, is_copy: true, alive: Rc::clone(&self.alive) }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Enqueue a packet of some datagrams, which may leave only after `wait_us` microseconds.
    Enqueue {
        flow: u64,
        len: usize,
        parts: usize,
        wait_us: u64,
    },
    Dequeue(u8),
    Wait {
        us: u64,
    },
    /// Take this many of the drops, at most.
    Drops(usize),
    /// Change the tree by a line of `tc` that is made from one of the lines that describe the tree.
    Line {
        verb: usize,
        line: usize,
        spec: usize,
    },
    /// Move the packets into another tree.
    Set(Place),
    Reset,
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let wait_us = prop_oneof![4 => Just(0), 1 => 0_u64..20_000];
    let op = prop_oneof![
        10 => (0_u64..8, 60_usize..1_514, 1_usize..4, wait_us)
            .prop_map(|(flow, len, parts, wait_us)| Op::Enqueue { flow, len, parts, wait_us }),
        5 => (1_u8..6).prop_map(Op::Dequeue),
        3 => (0_u64..30_000).prop_map(|us| Op::Wait { us }),
        2 => (0_usize..5).prop_map(Op::Drops),
        3 => (0_usize..4, any::<usize>(), any::<usize>())
            .prop_map(|(verb, line, spec)| Op::Line { verb, line, spec }),
        1 => places().prop_map(Op::Set),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 0..most)
}

/// A tree whose packets carry values, and a record of the values that have come back.
struct Books {
    tree: TreeOf<Value>,
    now: Instant,
    /// Each value has a reference to it.
    alive: Rc<()>,
    /// Of each value that was enqueued, by number: whether it has come back.
    back: Vec<bool>,
    copies: u64,
    sent: u64,
    dropped: u64,
    /// Number of lines of `tc` that have changed the tree.
    changes: u32,
}

impl Books {
    fn new(tree: Tree) -> Self {
        Self {
            tree: TreeOf::with_copy(tree, Value::copied),
            now: Instant(START_NS),
            alive: Rc::new(()),
            back: Vec::new(),
            copies: 0,
            sent: 0,
            dropped: 0,
            changes: 0,
        }
    }

    fn enqueue(&mut self, flow: u64, len: usize, parts: usize, wait_us: u64) {
        let mut packet = Packet::with_payload(&vec![0; len]);
        if parts > 1 {
            packet.gso_size = u16::try_from(len.div_ceil(parts)).expect("at most 1,514");
        }
        packet.len += 42 * u32::try_from(parts).expect("few");
        packet.flow = flow;
        packet.priority = u32::try_from(flow).expect("few");
        (packet.mark, packet.ecn) = (packet.priority, 1);
        packet.txtime_ns = if wait_us > 0 { self.now.0 + wait_us * 1_000 } else { 0 };
        let number = self.back.len();
        packet.cookie = cookie(number);
        self.back.push(false);
        let value = Value { number, is_copy: false, alive: Rc::clone(&self.alive) };
        let _ = self.tree.enqueue(self.now, packet, value);
    }

    /// Notes that a packet has left with its value.
    fn left(&mut self, packet: &Packet, value: &Value) -> Result<(), TestCaseError> {
        prop_assert_eq!(packet.cookie, cookie(value.number), "the value of another packet");
        if value.is_copy {
            prop_assert!(!self.back[value.number], "a copy of what has gone");
            self.copies += 1;
        } else {
            let back = &mut self.back[value.number];
            prop_assert!(!std::mem::replace(back, true), "{} came twice", value.number);
        }
        Ok(())
    }

    fn dequeue(&mut self) -> Result<(), TestCaseError> {
        // Half of the time, the tree is not asked: to find the answer, qdiscs may choose a packet.
        let asks = self.now.0.is_multiple_of(2_000);
        let drops = |books: &Self| books.tree.tree().totals().dropped_packets();
        let before = drops(self);
        let next = asks.then(|| self.tree.tree_mut().next_at(self.now));
        // An `etf` that finds late packets drops these, and lets others leave in the next call.
        let next = next.filter(|_| drops(self) == before);
        let answer = self.tree.dequeue(self.now);
        if let Some(next) = next {
            match &answer {
                Dequeue::Ready(_) => prop_assert_eq!(next, Some(self.now)),
                Dequeue::NotBefore(_) => prop_assert!(next > Some(self.now), "{next:?}"),
                Dequeue::Empty => prop_assert_eq!(next, None),
            }
        }
        if let Dequeue::Ready((packet, value)) = answer {
            prop_assert_eq!(packet.drop_reason, None);
            self.sent += 1;
            self.left(&packet, &value)?;
        }
        Ok(())
    }

    fn take_drops(&mut self, most: usize) -> Result<(), TestCaseError> {
        let drops: Vec<_> = self.tree.drops().take(most).collect();
        for (packet, value) in drops {
            prop_assert!(packet.drop_reason.is_some(), "a drop has a reason");
            self.dropped += 1;
            self.left(&packet, &value)?;
        }
        Ok(())
    }

    /// Deletes, changes or replaces the qdisc, class or filter that one of the tree's lines has
    /// added, or puts a qdisc below it. The tree may refuse that.
    fn change(&mut self, verb: usize, line: usize, spec: usize) {
        let (lines, specs) = (self.tree.tree().setup().lines(), specs());
        let (line, spec) = (&lines[line % lines.len()], &specs[spec % specs.len()]);
        let words: Vec<&str> = line.split(' ').collect();
        let line = match words.iter().position(|word| *word == "handle") {
            // `qdisc add dev e root handle 1: pfifo`, or `parent 1:1` in place of `root`.
            Some(at) if words[0] == "qdisc" => {
                let (place, handle, kind) = (words[2..at].join(" "), words[at + 1], words[at + 2]);
                let new = 0x100 + self.changes;
                match verb {
                    0 => format!("qdisc del {place} handle {handle}"),
                    1 => {
                        let same = specs.iter().filter(|spec| spec.kind().id == kind);
                        let spec = same.cycle().nth(new as usize % 7).unwrap_or(spec);
                        format!("qdisc change {place} handle {handle} {spec}")
                    }
                    2 => format!("qdisc replace {place} handle {new:x}: {spec}"),
                    _ => {
                        let device = words[3];
                        format!(
                            "qdisc replace dev {device} parent {handle}1 handle {new:x}: {spec}"
                        )
                    }
                }
            }
            // `filter del dev e parent 1:` deletes all filters there.
            _ if words[0] == "filter" && verb == 0 => {
                format!("filter del {}", words[2..6].join(" "))
            }
            _ if verb == 0 => line.replacen(" add ", " del ", 1),
            _ => line.replacen(" add ", " change ", 1),
        };
        if self.tree.tree_mut().apply(self.now, &line).is_ok() {
            self.changes += 1;
        }
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Enqueue { flow, len, parts, wait_us } => self.enqueue(flow, len, parts, wait_us),
            Op::Dequeue(count) => (0..count).try_for_each(|_| self.dequeue())?,
            Op::Wait { us } => self.now = self.now.after(us * 1_000),
            Op::Drops(most) => self.take_drops(most)?,
            Op::Line { verb, line, spec } => self.change(verb, line, spec),
            Op::Set(ref place) => {
                let setup = setup(place);
                self.tree.tree_mut().set(self.now, &setup).expect("it has a root");
            }
            Op::Reset => self.tree.tree_mut().reset(self.now),
        }
        self.check()
    }

    /// Checks that exactly the values are alive that have not come back.
    fn check(&self) -> Result<(), TestCaseError> {
        let inside = self.back.iter().filter(|back| !**back).count();
        prop_assert_eq!(Rc::strong_count(&self.alive) - 1, inside, "values are alive");
        let totals = self.tree.tree().totals();
        prop_assert_eq!(totals.enqueued_packets, self.back.len() as u64 + totals.made_packets);
        prop_assert_eq!(totals.sent_packets, self.sent);
        prop_assert!(self.dropped <= totals.dropped_packets());
        Ok(())
    }

    /// Takes back the values that are in the tree.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        self.tree.tree_mut().reset(self.now);
        self.take_drops(usize::MAX)?;
        self.check()?;
        prop_assert!(self.back.iter().all(|back| *back), "some have not come back");
        let totals = self.tree.tree().totals();
        prop_assert_eq!(self.dropped, totals.dropped_packets());
        prop_assert_eq!(self.copies, totals.made_packets);
        Ok(())
    }
}

/// Returns the cookie of the packet with the value of this number.
fn cookie(number: usize) -> u64 {
    1_000_000 - number as u64
}

fn setup(place: &Place) -> Setup {
    let mut scribe = Scribe { lines: Vec::new(), handle: 0 };
    scribe.qdisc("root", 0, place);
    let mut setup = Setup::default();
    scribe.lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

/// Runs the operations. Then takes back the values that are left, or drops the tree with them.
fn conserves(tree: Tree, ops: &[Op], drains: bool) -> Result<(), TestCaseError> {
    let mut books = Books::new(tree);
    let begun = format!("{:#?}", books.tree.tree().setup().lines());
    let run = |books: &mut Books| {
        ops.iter().try_for_each(|op| books.run(op))?;
        if drains { books.drain() } else { Ok(()) }
    };
    run(&mut books).map_err(|error| TestCaseError::fail(format!("{begun}: {error}")))?;
    let alive = Rc::clone(&books.alive);
    drop(books);
    prop_assert_eq!(Rc::strong_count(&alive), 1, "{}: the tree has gone", begun);
    Ok(())
}

/// The operations of these tests copy and split packets, and change the tree.
#[test]
fn the_operations_do_something() {
    let spec: Spec = "netem delay 1ms duplicate 50% corrupt 50%".parse().expect("a qdisc");
    let mut books = Books::new(Tree::new(&spec, MTU));
    for number in 0..40 {
        books.enqueue(number % 8, 900, 3, 0);
    }
    assert!(books.tree.tree().totals().made_packets > 40);
    let prio = specs().iter().position(|spec| spec.kind().id == "prio").expect("a kind");
    let below = Op::Line { verb: 3, line: 0, spec: 0 };
    let replace = |spec| Op::Line { verb: 2, line: 0, spec };
    let lines = [1, 0].map(|verb| Op::Line { verb, line: 1, spec: 0 });
    for op in [&lines[0], &replace(prio), &below, &lines[0], &lines[1], &below] {
        books.run(op).expect("nothing is lost");
    }
    assert_eq!(books.changes, 6);
    books.drain().expect("all come back");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_kind_gives_values_back(ops in ops(60), drains: bool) {
        for spec in specs() {
            conserves(Tree::new(&spec, MTU), &ops, drains)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_tree_gives_values_back(place in places(), ops in ops(120), drains: bool) {
        conserves(Tree::of(&setup(&place), MTU, 1).expect("a root"), &ops, drains)?;
    }
}
