//! Builds a tree of qdiscs from arbitrary bytes and runs operations on it. Used for fuzzing, and to
//! replay the corpus that fuzzing produced.

use std::collections::BTreeMap;

use onramp_core::qdisc::{ClassKind, Dequeue, KINDS, Kind};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{Packet, PacketList};

const MTU: u32 = 1514;
/// The largest depth of the tree: how many qdiscs may be one below the other.
const DEPTH: u32 = 3;
/// How often in a row, while the tree is emptied, a dequeue at the time that the tree announced may
/// find that no packet may leave yet. More often is an error.
const PATIENCE: u32 = 10_000;

/// The bytes of the input that were not read yet. After the last byte, reads return zeros.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }
}

/// Builds the tree that the bytes describe, and runs the operations that they describe.
///
/// # Panics
///
/// Panics if a qdisc breaks its contract.
pub(crate) fn run(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut lines = Vec::new();
    plant(&mut bytes, "root", 1, &mut lines);
    let mut setup = Setup::default();
    for line in &lines {
        setup.apply(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let tree = Tree::of(&setup, MTU, 7).expect("a root");
    let mut books = Books { tree, now: Instant(1_000_000_000), held: BTreeMap::new(), next: 0 };
    while !bytes.0.is_empty() {
        books.step(&mut bytes);
        books.check(&lines);
    }
    books.drain(&lines);
}

/// Reads any text as lines of `tc`. Lines may be refused, but the tree that the accepted lines
/// describe must be buildable.
pub(crate) fn set_up(text: &str) {
    let mut setup = Setup::default();
    for line in text.lines() {
        let _ = setup.apply(line);
    }
    drop(setup.build(MTU, 1));
}

/// Adds the line for a qdisc at `place`, and the lines of the qdiscs below it.
fn plant(bytes: &mut Bytes<'_>, place: &str, depth: u32, lines: &mut Vec<String>) {
    let kinds: Vec<_> =
        KINDS.iter().filter(|kind| depth == 1 || !kind.quirks.stands_at_root).collect();
    let kind = kinds[bytes.below(kinds.len())];
    let major = lines.len() + 1;
    let options = required(kind);
    lines.push(format!("qdisc add dev fuzz {place} handle {major:x}: {} {options}", kind.id));
    let classes = match kind.classes {
        ClassKind::None => 0,
        ClassKind::Fixed(_) => 1,
        ClassKind::Added { .. } => {
            let classes = 1 + bytes.below(3);
            for minor in 1..=classes {
                let options = class_options(kind);
                lines.push(format!(
                    "class add dev fuzz parent {major:x}: classid {major:x}:{minor} {} {options}",
                    kind.id
                ));
            }
            classes
        }
    };
    for minor in 1..=classes {
        if depth < DEPTH && bytes.byte().is_multiple_of(2) {
            plant(bytes, &format!("parent {major:x}:{minor}"), depth + 1, lines);
        }
    }
}

/// Returns the options that must be given for a kind.
fn required(kind: &Kind) -> &'static str {
    match kind.id {
        "tbf" => "rate 1mbit burst 3kb limit 20kb",
        "red" => "limit 60kb min 5kb max 15kb avpkt 1000 burst 10 bandwidth 10mbit",
        "choke" => "limit 40 min 5 max 15 avpkt 1000 bandwidth 10mbit",
        "ets" => "bands 3",
        "etf" => "clockid CLOCK_TAI delta 100000",
        // With these slopes, earning a credit takes a whole number of nanoseconds. Otherwise `cbs`
        // would announce times at which credits are still missing: see `cbs_reference`.
        "cbs" => "idleslope 8000 sendslope -2000 hicredit 459 locredit -1071",
        "mqprio" => "num_tc 2 map 0 1 queues 1@0 2@1 hw 0",
        _ => "",
    }
}

fn class_options(kind: &Kind) -> &'static str {
    match kind.id {
        "htb" => "rate 1mbit ceil 2mbit burst 3kb cburst 3kb quantum 1514",
        "hfsc" => "sc rate 1mbit",
        "qfq" => "weight 2 maxpkt 1514",
        _ => "",
    }
}

struct Books {
    tree: Tree,
    now: Instant,
    /// Lengths in bytes of the packets that the tree holds, by cookie.
    held: BTreeMap<u64, u32>,
    next: u64,
}

impl Books {
    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.byte() % 8 {
            0..=3 => {
                let (flow, len, class) = (bytes.byte(), bytes.byte(), bytes.byte());
                let mut pkt = Packet::new(60 + u32::from(len) * 5);
                (pkt.cookie, pkt.flow, pkt.ecn) = (self.next, u64::from(flow % 5), flow & 3);
                (pkt.priority, pkt.enqueued_ns) = (u32::from(class % 16), self.now.0);
                if class >= 128 {
                    pkt.priority |= 1 << 16;
                }
                if flow >= 240 {
                    pkt.txtime_ns = self.now.0 + u64::from(len) * 100_000;
                }
                self.held.insert(self.next, pkt.len);
                self.next += 1;
                let _ = self.tree.enqueue(self.now, pkt);
            }
            4 | 5 => {
                self.dequeue();
            }
            6 => self.now = self.now.after(u64::from(bytes.byte()) * 200_000),
            _ if bytes.byte() < 16 => self.tree.reset(self.now),
            _ => {
                let mut out = PacketList::new();
                let _ = self.tree.dequeue_list(self.now, 8, &mut out);
                out.for_each(|pkt| self.gone(&pkt));
            }
        }
    }

    /// Dequeues one packet. If no packet may leave now, returns the time at which to try again.
    fn dequeue(&mut self) -> Option<Instant> {
        match self.tree.dequeue(self.now) {
            Dequeue::Ready(pkt) => self.gone(&pkt),
            Dequeue::NotBefore(then) => {
                assert!(then > self.now, "asks to be asked at once");
                return Some(then);
            }
            Dequeue::Empty => assert_eq!(self.tree.backlog().packets, 0, "says it is empty"),
        }
        None
    }

    fn gone(&mut self, pkt: &Packet) {
        let len = self.held.remove(&pkt.cookie);
        assert_eq!(len, Some(pkt.len), "packet {} was not held", pkt.cookie);
    }

    /// Checks that no packet is lost or invented, and that the backlog equals the packets held.
    fn check(&mut self, lines: &[String]) {
        for pkt in self.tree.drops() {
            assert!(pkt.drop_reason.is_some(), "a drop has a reason");
            self.gone(&pkt);
        }
        let (backlog, bytes) = (self.tree.backlog(), self.held.values().copied().map(u64::from));
        assert_eq!(
            (backlog.packets as usize, backlog.bytes),
            (self.held.len(), bytes.sum()),
            "{lines:?}"
        );
    }

    /// Dequeues until the tree is empty, or holds only packets that wait for a command.
    fn drain(&mut self, lines: &[String]) {
        let (mut waits, stubborn) = (0, lines.iter().any(|line| line.contains(": plug")));
        while self.tree.backlog().packets > 0 {
            waits = match self.dequeue() {
                Some(then) => {
                    self.now = then;
                    waits + 1
                }
                None => 0,
            };
            self.check(lines);
            if stubborn && waits > 0 {
                break;
            }
            assert!(waits < PATIENCE, "nothing leaves: {lines:?}");
        }
        self.tree.reset(self.now);
        self.check(lines);
        assert_eq!(self.tree.backlog().packets, 0, "a reset leaves nothing");
    }
}
