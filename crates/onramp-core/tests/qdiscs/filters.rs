//! Filters in a running tree: lines of `tc` add, change and delete filters, and packets go where
//! the filters say.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(1_000_000_000);

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    for line in lines {
        setup.apply(line).expect(line);
    }
    Tree::of(&setup, 1514, 0).expect("a root")
}

/// Makes a datagram to UDP port `port`.
fn to(port: u16) -> Packet {
    let mut pkt = Packet::with_payload(&[0; 1000]);
    pkt.set_dest(Some(([10, 0, 0, 1], port).into()));
    pkt.cookie = port.into();
    pkt
}

/// Enqueues a packet to each of these UDP ports. Returns the ports of the packets in order of
/// departure.
fn order(tree: &mut Tree, ports: &[u16]) -> Vec<u64> {
    for port in ports {
        let _ = tree.enqueue(NOW, to(*port));
    }
    std::iter::from_fn(|| match tree.dequeue(NOW) {
        Dequeue::Ready(pkt) => Some(pkt.cookie),
        _ => None,
    })
    .collect()
}

const PRIO: &str = "qdisc add dev eth0 root handle 1: prio";

#[test]
fn filters_come_change_and_go() {
    let mut tree = tree(&[PRIO]);
    let apply = |tree: &mut Tree, line: &str| {
        tree.apply(NOW, &format!("filter {line}")).map_err(|error| error.to_string())
    };
    assert_eq!(order(&mut tree, &[1, 2, 3]), [1, 2, 3]);
    let add = "dev eth0 protocol ip parent 1: prio 1 u32 match ip dport 3 0xffff flowid";
    apply(&mut tree, &format!("add {add} 1:1")).expect("a filter");
    assert_eq!(order(&mut tree, &[1, 2, 3]), [3, 1, 2]);
    // Add a second filter with the same preference. Both filters apply.
    let other = add.replace("dport 3", "dport 2");
    apply(&mut tree, &format!("add {other} 1:1")).expect("a filter");
    assert_eq!(order(&mut tree, &[1, 2, 3]), [2, 3, 1]);
    // A line that names the handle of the first filter replaces that filter: packets to port 3 now
    // go to the last class and leave last.
    let first = add.replace("u32", "handle 800::800 u32");
    let again = tree.apply(NOW, &format!("filter add {first} 1:3")).unwrap_err();
    assert_eq!(again.fault.kernel_text().as_deref(), Some("Error: Filter already exists."));
    apply(&mut tree, &format!("replace {first} 1:3")).expect("a change");
    assert_eq!(order(&mut tree, &[3, 1, 2]), [2, 1, 3]);
    // Delete one filter by its handle, and the rest by their preference.
    apply(&mut tree, "del dev eth0 parent 1: prio 1 handle 800::801 u32").expect("gone");
    assert_eq!(order(&mut tree, &[3, 1, 2]), [1, 2, 3]);
    let none = tree.apply(NOW, "filter del dev eth0 parent 1: prio 2").unwrap_err();
    let said = "Error: Filter with specified priority/protocol not found.";
    assert_eq!((none.fault.code(), none.fault.kernel_text().as_deref()), (2, Some(said)));
    assert_eq!(order(&mut tree, &[3, 1]), [1, 3]);
    apply(&mut tree, "del dev eth0 parent 1: prio 1").expect("gone");
    assert_eq!(order(&mut tree, &[3, 1]), [3, 1]);
    let change = apply(&mut tree, &format!("change {first} 1:3")).unwrap_err();
    assert!(change.contains("no such filter"), "{change}");
}

/// A policer keeps its token bucket when other filters change.
#[test]
fn a_policer_keeps_its_bucket() {
    let mut tree = tree(&[
        PRIO,
        "filter add dev eth0 parent 1: prio 9 basic action police rate 1mbit burst 2500 drop",
    ]);
    assert_eq!(order(&mut tree, &[1, 2, 3]), [1, 2]);
    tree.apply(NOW, "filter add dev eth0 parent 1: prio 1 handle 7 fw action drop").expect("new");
    assert_eq!(order(&mut tree, &[1]), [0; 0]);
    let later = NOW.after(8_000_000);
    assert_eq!(tree.enqueue(later, to(1)), Verdict::Queued);
    let reasons: Vec<_> = tree.drops().map(|pkt| pkt.drop_reason).collect();
    assert_eq!(reasons, [Some(DropReason::Filter); 2]);
    // A policer that is replaced starts with a full bucket.
    let line = "filter replace dev eth0 parent 1: prio 9 handle 1 basic \
                action police rate 2mbit burst 2500 drop";
    tree.apply(NOW, line).expect("another");
    assert_eq!(tree.enqueue(later, to(1)), Verdict::Queued);
}

#[test]
fn filters_stand_where_they_are_asked() {
    let mut setup = Setup::default();
    for line in [
        PRIO,
        "qdisc add dev eth0 parent 1:1 handle 2: pfifo",
        "qdisc add dev eth0 parent 1:2 handle 3: htb default 1",
        "class add dev eth0 parent 3: classid 3:1 htb rate 1mbit",
        "filter add dev eth0 parent 3:1 matchall classid 3:1",
        "filter add dev eth0 prio 1 protocol ip matchall classid 1:1",
    ] {
        setup.apply(line).expect(line);
    }
    for (place, why) in [
        ("2:", "pfifo does not use filters"),
        ("ffff:ffff", "there is no qdisc ffff:"),
        ("1:1", "prio uses only the filters of 1:"),
        ("3:2", "there is no such class"),
        ("4:", "there is no qdisc 4:"),
    ] {
        let error =
            setup.apply(&format!("filter add dev eth0 parent {place} matchall classid 1:1"));
        let error = error.unwrap_err();
        assert_eq!((&*error.key, &*error.value, &*error.why), ("parent", place, why));
    }
    // Without a parent, the filter is for the root, of whose handle the line says nothing.
    let mut setup = Setup::default();
    setup.apply("qdisc add dev eth0 root handle 1: fq").expect("a qdisc");
    let error = setup.apply("filter add dev eth0 matchall classid 1:1").unwrap_err();
    assert_eq!(error.to_string(), "filter: unexpected \"matchall\": fq does not use filters");
}
