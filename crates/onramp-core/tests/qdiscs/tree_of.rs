//! Trees whose packets carry values: which value leaves with which packet.

use std::rc::Rc;

use onramp_core::params::Values;
use onramp_core::qdisc::{Backlog, Changes, Cx, Dequeue, Kind, Peek, Qdisc, Verdict};
use onramp_core::{Instant, Kinds, Setup, Tree, TreeOf};
use onramp_queue::{DropReason, Packet, PacketList};

const NOW: Instant = Instant(20_000_000_000);
const MTU: u32 = 1_514;

fn tree<T: Clone>(line: &str) -> TreeOf<T> {
    TreeOf::new(Tree::new(&line.parse().expect(line), MTU))
}

/// Dequeues the packets that may leave now. Returns their flows and values.
fn leaving<T>(tree: &mut TreeOf<T>) -> Vec<(u64, T)> {
    let next = || match tree.dequeue(NOW) {
        Dequeue::Ready((packet, value)) => Some((packet.flow, value)),
        Dequeue::NotBefore(_) | Dequeue::Empty => None,
    };
    std::iter::from_fn(next).collect()
}

fn packet(flow: u64) -> Packet {
    let mut packet = Packet::new(100);
    (packet.flow, packet.cookie) = (flow, flow + 70);
    packet
}

/// Values may be of any type, and each packet has its own cookie when it leaves.
#[test]
fn a_value_leaves_with_its_packet() {
    let mut tree = tree::<Box<str>>("skbprio limit 3");
    for (flow, name) in (0..4).zip(["low", "high", "mid", "higher"]) {
        let mut packet = packet(flow);
        packet.priority = [1, 7, 4, 9][usize::try_from(flow).expect("few")];
        let _ = tree.enqueue(NOW, packet, name.into());
    }
    let drops: Vec<_> = tree.drops().collect();
    let [(packet, name)] = &drops[..] else { panic!("one too many: {drops:?}") };
    assert_eq!((packet.flow, packet.cookie, &**name), (0, 70, "low"));
    assert_eq!(packet.drop_reason, Some(DropReason::Overlimit));
    assert_eq!(tree.tree_mut().next_at(NOW), Some(NOW));
    let Dequeue::Ready((packet, name)) = tree.dequeue(NOW) else { panic!("three are there") };
    assert_eq!((packet.flow, packet.cookie, &*name), (3, 73, "higher"));
    assert_eq!(leaving(&mut tree), [(1, "high".into()), (2, "mid".into())]);
    assert_eq!((tree.tree_mut().next_at(NOW), tree.tree().totals().sent_packets), (None, 3));
}

/// The packet that bypasses the tree brings its value, and the one that the device did not take is
/// the first that leaves.
#[test]
fn a_value_bypasses_the_tree_with_its_packet() {
    let mut tree = tree::<&str>("pfifo_fast txqueuelen 1");
    let passed = tree.pass_or_enqueue(NOW, packet(1), "passes").expect("the tree is empty");
    assert_eq!((passed.0.flow, passed.0.cookie, passed.1), (1, 71, "passes"));
    assert_eq!(tree.keep_or_enqueue(NOW, packet(2), "kept"), Verdict::Queued);
    let verdicts = [(3, "waits"), (4, "drops")].map(|(flow, name)| {
        tree.pass_or_enqueue(NOW, packet(flow), name).expect_err("one is kept")
    });
    assert_eq!(verdicts, [Verdict::Queued, Verdict::Dropped]);
    assert_eq!(tree.drops().map(|(_, name)| name).collect::<Vec<_>>(), ["drops"]);
    assert_eq!(leaving(&mut tree), [(2, "kept"), (3, "waits")]);
    assert_eq!(tree.tree().totals().sent_packets, 3);
    assert_eq!(tree.tree_mut().views()[0].counters.requeues, 1);
}

#[test]
fn drops_that_are_not_taken_stay() {
    let alive = Rc::new(());
    let mut tree = tree::<Rc<()>>("pfifo limit 1");
    for flow in 0..5 {
        let _ = tree.enqueue(NOW, packet(flow), Rc::clone(&alive));
    }
    let _ = tree.drops();
    assert_eq!(Rc::strong_count(&alive), 6);
    let flows = |tree: &mut TreeOf<Rc<()>>, most: usize| -> Vec<u64> {
        tree.drops().take(most).map(|(packet, _)| packet.flow).collect()
    };
    assert_eq!(flows(&mut tree, 2), [1, 2]);
    assert_eq!(Rc::strong_count(&alive), 4);
    assert_eq!(flows(&mut tree, 9), [3, 4]);
    drop(tree);
    assert_eq!(Rc::strong_count(&alive), 1, "the tree drops the value that it holds");
}

/// Of a packet and its copy, the one that leaves last has the value itself.
#[test]
fn the_last_packet_has_the_value_itself() {
    let line = "netem duplicate 100%";
    let line = Tree::new(&line.parse().expect(line), MTU);
    let mut tree = TreeOf::with_copy(line, |(name, copies): &(char, u32)| (*name, copies + 1));
    for (flow, name) in (0..2).zip("ab".chars()) {
        let _ = tree.enqueue(NOW, packet(flow), (name, 0));
    }
    let left = leaving(&mut tree);
    assert_eq!(left, [(0, ('a', 1)), (0, ('a', 0)), (1, ('b', 1)), (1, ('b', 0))]);
    // The same holds if the packet that leaves last is dropped.
    let _ = tree.enqueue(NOW, packet(2), ('c', 0));
    let Dequeue::Ready((_, ('c', 1))) = tree.dequeue(NOW) else { panic!("two are there") };
    tree.tree_mut().reset(NOW);
    let drops: Vec<_> = tree.drops().map(|(packet, value)| (packet.flow, value)).collect();
    assert_eq!(drops, [(2, ('c', 0))]);
}

/// Returns a packet of three datagrams.
fn several() -> Packet {
    let mut packet = Packet::with_payload(&[0; 6_000]);
    packet.gso_size = 2_000;
    packet
}

/// A packet of several datagrams that a qdisc splits has the value in each part.
#[test]
fn the_parts_of_a_packet_have_its_value() {
    let mut whole = tree::<&str>("tbf rate 1gbit burst 20kb limit 90kb");
    let _ = whole.enqueue(NOW, several(), "three");
    assert_eq!(leaving(&mut whole), [(0, "three")], "a packet that fits the burst stays whole");
    let mut tree = tree::<&str>("tbf rate 1gbit burst 2500b limit 90kb");
    let _ = tree.enqueue(NOW, several(), "three");
    assert_eq!(tree.tree().totals().made_packets, 2);
    tree.tree_mut().reset(NOW);
    let parts: Vec<_> = tree.drops().map(|(part, value)| (part.len, value)).collect();
    assert_eq!(parts, [(2_000, "three"); 3]);
}

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

/// Packets keep their values when a change moves them, although the old qdiscs split them and the
/// new one copies them, and when a line of `tc` replaces the qdisc that has them.
#[test]
fn values_stay_with_packets_that_move() {
    let splits = setup(&[
        "qdisc add dev d root handle 1: netem delay 5ms",
        "qdisc add dev d parent 1:1 handle 2: tbf rate 1gbit burst 2500b limit 90kb",
    ]);
    let copies = setup(&["qdisc add dev d root handle 3: netem duplicate 100%"]);
    let mut tree = TreeOf::new(Tree::of(&splits, MTU, 1).expect("a root"));
    for name in "ab".chars() {
        let _ = tree.enqueue(NOW, several(), name);
    }
    // The old `tbf` splits the packets in two times three, which the new `netem` doubles.
    tree.tree_mut().set(NOW, &copies).expect("a root");
    assert_eq!((tree.tree().totals().made_packets, tree.tree().backlog().packets), (10, 12));
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready((_, 'a'))));
    tree.tree_mut().apply(NOW, "qdisc replace dev d root handle 4: pfifo").expect("a line");
    let drops: Vec<_> = tree.drops().map(|(packet, name)| (packet.drop_reason, name)).collect();
    let purged = |name, count| vec![(Some(DropReason::Purged), name); count];
    assert_eq!(drops, [purged('a', 5), purged('b', 6)].concat());
}

/// How a qdisc of the program's own copies packets.
#[derive(Debug)]
struct Twice {
    right: bool,
    list: PacketList,
}

static RIGHT: Kind =
    Kind { changes: Changes::Yes, ..Kind::new("right", "sends each packet twice", &[], right) };
static WRONG: Kind = Kind::new("wrong", "sends each packet twice, secretly", &[], wrong);

fn right(_: &Values<'_>) -> Box<dyn Qdisc> {
    Box::new(Twice { right: true, list: PacketList::new() })
}

fn wrong(_: &Values<'_>) -> Box<dyn Qdisc> {
    Box::new(Twice { right: false, list: PacketList::new() })
}

impl Qdisc for Twice {
    fn enqueue(&mut self, packet: Packet, cx: &mut Cx<'_>) -> Verdict {
        let copy = if self.right { cx.duplicate(&packet) } else { packet.duplicate() };
        self.list.push_back(packet);
        self.list.push_back(copy);
        Verdict::Queued
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        self.list.front().map_or(Peek::Empty, |packet| Peek::Ready(packet.len))
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    /// A change copies each packet once more.
    fn change(&mut self, _: &Values<'_>, cx: &mut Cx<'_>) -> bool {
        for packet in std::mem::take(&mut self.list) {
            self.list.push_back(cx.duplicate(&packet));
            self.list.push_back(packet);
        }
        true
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.list.by_ref().for_each(|packet| cx.drop(packet, DropReason::Purged));
    }
}

fn own(kind: &'static Kind) -> TreeOf<&'static str> {
    let spec = Kinds::new([kind]).expect("a good name").spec(kind.id).expect("a kind");
    TreeOf::new(Tree::new(&spec, MTU))
}

#[test]
fn a_kind_of_the_programs_own_copies_by_its_context() {
    let mut tree = own(&RIGHT);
    let _ = tree.enqueue(NOW, packet(3), "mine");
    assert_eq!(leaving(&mut tree), [(3, "mine"); 2]);
    assert_eq!(tree.tree().totals().made_packets, 1);
    let _ = tree.enqueue(NOW, packet(4), "yours");
    let line = tree.tree().setup().lines()[0].replace(" add ", " change ");
    tree.tree_mut().apply(NOW, &line).expect(&line);
    assert_eq!(leaving(&mut tree), [(4, "yours"); 4]);
    assert_eq!(tree.tree().totals().made_packets, 4);
}

/// A copy that the tree was not told of never gets the value of another packet, although the place
/// of its own value is used again.
#[test]
#[should_panic(expected = "made it without `Cx::duplicate`")]
fn a_secret_copy_has_no_value() {
    let mut tree = own(&WRONG);
    let _ = tree.enqueue(NOW, packet(3), "first");
    let Dequeue::Ready((_, "first")) = tree.dequeue(NOW) else { panic!("two are there") };
    let _ = tree.enqueue(NOW, packet(4), "second");
    let _ = tree.dequeue(NOW);
}

#[test]
#[should_panic(expected = "was not enqueued by `TreeOf::enqueue`")]
fn a_packet_that_went_around_has_no_value() {
    let mut tree = tree::<&str>("pfifo");
    let _ = tree.tree_mut().enqueue(NOW, packet(3));
    let _ = tree.dequeue(NOW);
}

#[test]
fn only_an_empty_tree_can_carry_values() {
    let full = || {
        let mut tree = Tree::new(&"pfifo limit 1".parse().expect("a qdisc"), MTU);
        let _ = tree.enqueue(NOW, packet(0));
        tree
    };
    let with_drops = || {
        let mut tree = full();
        tree.reset(NOW);
        tree
    };
    for tree in [full(), with_drops()] {
        let make = std::panic::AssertUnwindSafe(|| TreeOf::<u8>::new(tree));
        assert!(std::panic::catch_unwind(make).is_err());
    }
    let mut tree = with_drops();
    drop(tree.drops());
    let _ = TreeOf::<u8>::new(tree);
}

/// `next_at` says when a packet may leave, and leaves it in the tree.
#[test]
fn the_next_packet_is_told_and_stays() {
    let ms = |ms: u64| NOW.after(ms * 1_000_000);
    let mut tree = Tree::new(&"netem delay 7ms".parse().expect("a qdisc"), MTU);
    assert_eq!(tree.next_at(ms(0)), None);
    let _ = tree.enqueue(ms(0), packet(1));
    let _ = tree.enqueue(ms(2), packet(2));
    for (at, next) in [(2, 7), (6, 7), (7, 7), (8, 8)] {
        assert_eq!(tree.next_at(ms(at)), Some(ms(next)), "{at} ms");
        assert_eq!((tree.backlog().packets, tree.totals().sent_packets), (2, 0));
    }
    assert!(matches!(tree.dequeue(ms(8)), Dequeue::Ready(packet) if packet.flow == 1));
    assert_eq!(tree.next_at(ms(8)), Some(ms(9)));
    // CoDel drops packets to find the next one, and the drops are counted.
    let mut tree = Tree::new(&"codel target 1ms interval 1ms".parse().expect("a qdisc"), MTU);
    for flow in 0..100 {
        let mut packet = packet(flow);
        (packet.len, packet.enqueued_ns) = (1_000, NOW.0);
        let _ = tree.enqueue(NOW, packet);
    }
    for at in 0..50 {
        let at = ms(10 + 10 * at);
        if tree.next_at(at).is_some() {
            let _ = tree.dequeue(at);
        }
    }
    let totals = tree.totals();
    assert!(totals.dropped(DropReason::Congested) > 10, "{totals:?}");
    let gone = totals.sent_packets + totals.dropped_packets();
    assert_eq!(totals.enqueued_packets, gone + u64::from(tree.backlog().packets));
    assert_eq!(u64::from(tree.drops().len()), totals.dropped_packets());
}
