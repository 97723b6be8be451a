//! When a child qdisc drops packets because it is changed, replaced or removed, each parent knows
//! how many packets and bytes its child still holds.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(20_000_000_000);

/// Parent qdiscs, each with one class or queue to which all packets go.
const PARENTS: &[&[&str]] = &[
    &["root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"],
    &["root handle 1: ets bands 1"],
    &["root handle 1: multiq bands 1"],
    &["root handle 1: mq queues 1"],
    &["root handle 1: tbf rate 8mbit burst 90kb limit 90kb"],
    &["root handle 1: cbs idleslope 8000 sendslope -2000 hicredit 459 locredit -1071"],
    &["root handle 1: red limit 1mb min 80kb max 90kb avpkt 1000 burst 90 bandwidth 10mbit"],
    &["root handle 1: drr", "parent 1: classid 1:1 drr"],
    &["root handle 1: qfq", "parent 1: classid 1:1 qfq weight 1"],
    &["root handle 1: htb default 1", "parent 1: classid 1:1 htb rate 1gbit burst 90kb"],
    &["root handle 1: hfsc default 1", "parent 1: classid 1:1 hfsc sc rate 1gbit"],
];

fn tree(parent: &[&str]) -> Tree {
    let mut setup = Setup::default();
    for (at, line) in parent.iter().enumerate() {
        let what = if at == 0 { "qdisc" } else { "class" };
        setup.apply(&format!("{what} add dev e {line}")).expect(line);
    }
    let child = "qdisc add dev e parent 1:1 handle 10: codel limit 10";
    setup.apply(child).expect(child);
    Tree::of(&setup, 1_514, 7).expect("a root")
}

fn push(tree: &mut Tree, packets: u64) {
    for cookie in 0..packets {
        let mut pkt = Packet::new(500);
        (pkt.cookie, pkt.priority, pkt.enqueued_ns) = (cookie, 0x1_0001, NOW.0);
        let _ = tree.enqueue(NOW, pkt);
    }
}

fn apply(tree: &mut Tree, line: &str) {
    tree.apply(NOW, line).expect(line);
}

/// Returns the packets and bytes that the root holds, and the packets and bytes that the listing
/// shows for the child, qdisc 10:.
fn held(tree: &mut Tree) -> [(u32, u64); 2] {
    let root = tree.backlog();
    let views = tree.views();
    let shown = views.iter().find(|view| view.handle.major == 0x10).map(|view| view.backlog);
    let shown = shown.unwrap_or_default();
    [(root.packets, root.bytes), (shown.packets, shown.bytes)]
}

/// Returns the cookies of all packets that leave within ten seconds.
fn rest(tree: &mut Tree) -> Vec<u64> {
    let (mut now, mut sent) = (NOW, Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => sent.push(pkt.cookie),
            Dequeue::NotBefore(then) => {
                assert!(now < then && then < NOW.after(10_000_000_000));
                now = then;
            }
            Dequeue::Empty => return sent,
        }
    }
}

fn lost(tree: &mut Tree, reason: DropReason) -> usize {
    tree.drops().filter(|pkt| pkt.drop_reason == Some(reason)).count()
}

#[test]
fn a_child_with_a_lower_limit() {
    for parent in PARENTS {
        let mut tree = tree(parent);
        push(&mut tree, 5);
        assert_eq!(held(&mut tree), [(5, 2_500); 2], "{parent:?}");
        apply(&mut tree, "qdisc change dev e parent 1:1 handle 10: codel limit 2");
        assert_eq!(held(&mut tree), [(2, 1_000); 2], "{parent:?}");
        assert_eq!(lost(&mut tree, DropReason::Overlimit), 3, "{parent:?}");
        assert_eq!(rest(&mut tree), [3, 4], "{parent:?}");
        assert_eq!(held(&mut tree), [(0, 0); 2], "{parent:?}");
    }
}

#[test]
fn another_child() {
    for parent in PARENTS {
        let mut tree = tree(parent);
        push(&mut tree, 5);
        apply(&mut tree, "qdisc replace dev e parent 1:1 handle 11: pfifo limit 3");
        assert_eq!(held(&mut tree), [(0, 0); 2], "{parent:?}");
        assert_eq!(lost(&mut tree, DropReason::Purged), 5, "{parent:?}");
        assert!(matches!(tree.dequeue(NOW), Dequeue::Empty), "{parent:?}");
        push(&mut tree, 5);
        assert_eq!(held(&mut tree)[0], (3, 1_500), "{parent:?}");
        assert_eq!(lost(&mut tree, DropReason::Overlimit), 2, "{parent:?}");
        assert_eq!(rest(&mut tree), [0, 1, 2], "{parent:?}");
    }
}

#[test]
fn a_child_that_goes() {
    for parent in PARENTS {
        let mut tree = tree(parent);
        push(&mut tree, 5);
        apply(&mut tree, "qdisc del dev e parent 1:1");
        assert_eq!(held(&mut tree), [(0, 0); 2], "{parent:?}");
        assert_eq!(lost(&mut tree, DropReason::Purged), 5, "{parent:?}");
        assert!(rest(&mut tree).is_empty(), "{parent:?}");
    }
}

/// After a command has deleted the child, the tree holds as many packets as one that is built from
/// the description of the tree, where the class has its default qdisc.
#[test]
fn the_default_child_takes_the_place_of_one_that_goes() {
    let more: &[&[&str]] = &[
        &["root handle 1: tbf rate 8kbit burst 2000 limit 3000"],
        &["root handle 1: red limit 20kb min 15kb max 18kb avpkt 1000 burst 17 bandwidth 10mbit"],
        &["root handle 1: netem limit 3000"],
        &["root handle 1: series stages 1"],
    ];
    for parent in PARENTS.iter().chain(more) {
        let mut changed = tree(parent);
        apply(&mut changed, "qdisc del dev e parent 1:1");
        let mut built = Tree::of(changed.setup(), 1_514, 7).expect("a root");
        let held = [&mut changed, &mut built].map(|tree| {
            push(tree, 2_000);
            let left = matches!(tree.dequeue(NOW), Dequeue::Ready(_));
            (left, tree.backlog().packets, tree.backlog().bytes)
        });
        assert_eq!(held[0], held[1], "{parent:?}");
    }
}

/// A `codel` stands below a `tbf` below a `netem`, and holds packets because of the `tbf`'s low
/// rate. When a command lowers the limit of the `codel`, the `codel` drops packets, and the `netem`
/// at the root knows how many packets are left.
#[test]
fn below_netem() {
    let mut tree = tree(&["root handle 1: netem"]);
    apply(
        &mut tree,
        "qdisc replace dev e parent 1:1 handle 11: tbf rate 8kbit burst 600 limit 9kb",
    );
    apply(&mut tree, "qdisc add dev e parent 11:1 handle 10: codel limit 10");
    push(&mut tree, 6);
    assert!(matches!(tree.dequeue(NOW), Dequeue::Ready(pkt) if pkt.cookie == 0));
    assert!(matches!(tree.dequeue(NOW), Dequeue::NotBefore(_)));
    assert_eq!(held(&mut tree), [(5, 2_500); 2]);
    apply(&mut tree, "qdisc change dev e parent 11:1 handle 10: codel limit 2");
    assert_eq!(held(&mut tree)[0], (2, 1_000));
    assert_eq!(lost(&mut tree, DropReason::Overlimit), 3);
    assert_eq!(rest(&mut tree), [4, 5]);
    assert_eq!(held(&mut tree), [(0, 0); 2]);
}
