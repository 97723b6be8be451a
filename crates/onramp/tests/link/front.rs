//! The filters of a link's `ingress` and `clsact`.

use std::net::SocketAddr;

use onramp::dev::Null;
use onramp::view::QdiscView;
use onramp::{Device, DropReason, Handle, Instant, Link, Mapping, Packet, PortError, Setup};

use crate::common::{LONG, in_time, until};
use crate::trap::Trap;

const INGRESS: Handle = Handle::new(0xffff, 0xfff2);
const EGRESS: Handle = Handle::new(0xffff, 0xfff3);
const DROP: &str = "filter add dev link egress protocol ip u32 match ip dport 5 0xffff action drop";

fn null() -> Box<dyn Device> {
    Box::new(Null::default())
}

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

/// Sends a packet to port 5 and one to port 6 through a port of the link. Returns how many of them
/// its filters dropped.
fn dropped(link: &Link, port: usize) -> u64 {
    let count = || link.stats().dropped.get(&DropReason::Filter).copied().unwrap_or(0);
    let before = count();
    let mut sender = link.sender();
    for to in [5, 6] {
        let dest: SocketAddr = ([10, 0, 0, 1], to).into();
        let flow = sender.flow_with(dest, Mapping::Port(port));
        sender.send(&flow, b"hello").expect("the link is open");
    }
    assert!(link.flush(LONG));
    count() - before
}

/// Returns what the `ingress` or `clsact` has counted: packets, and drops.
fn counted(views: &[QdiscView]) -> Option<(u64, u64)> {
    let mut views = views.iter().filter(|view| view.parent == Some(Handle::new(0xffff, 0xfff1)));
    let view = views.next()?;
    assert!(views.next().is_none(), "it is viewed once");
    Some((view.counters.packets, view.counters.drops))
}

/// Each port has the filters in front of its root: those with which the link was built, those that
/// lines add, also in ports that come later, and those of another tree.
#[test]
fn each_port_has_the_egress_filters() {
    in_time(|| {
        for root in ["pfifo", "mq"] {
            let root = format!("qdisc add dev link root handle 1: {root}");
            let tree = setup(&[&root, "qdisc add dev link clsact", DROP]);
            let link = Link::devices([null(), null()]).ports_max(3).tree(&tree).build().unwrap();
            assert_eq!(link.add_port(null()).unwrap(), 2);
            let all = |link: &Link| [0, 1, 2].map(|port| dropped(link, port));
            assert_eq!(all(&link), [1, 1, 1], "{root}");
            assert_eq!(counted(&link.tree_views()), Some((6, 3)));
            assert_eq!(counted(&link.views(2).unwrap()), Some((2, 1)));
            assert_eq!(link.filters(EGRESS).len(), 2, "a table and its node");
            // Another tree with the same filters keeps what they have counted.
            link.set_tree(&setup(&[&root, "qdisc add dev link clsact", DROP])).unwrap();
            assert_eq!(counted(&link.tree_views()), Some((6, 3)));
            link.change("filter del dev link egress").unwrap();
            assert_eq!(all(&link), [0, 0, 0]);
            assert_eq!(counted(&link.tree_views()), Some((6, 3)), "no packet met a filter");
            link.set_tree(&tree).unwrap();
            assert_eq!(all(&link), [1, 1, 1]);
            link.set_tree(&setup(&[&root])).unwrap();
            assert_eq!(all(&link), [0, 0, 0]);
            assert_eq!(counted(&link.tree_views()), None);
        }
    });
}

/// If a port could not be told of a change of its filters, the next change brings them.
#[test]
fn a_port_that_missed_filters_gets_them_with_the_next_change() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).qdisc("pfifo").build().unwrap();
        let caught = trap.catch(&link, 0);
        let tree = link.setup();
        (0..onramp_core::JOBS_MAX).for_each(|_| link.set_tree(&tree).unwrap());
        for line in ["qdisc add dev link clsact", DROP] {
            assert!(matches!(link.change(line), Err(PortError::Blocked(0))));
        }
        trap.open();
        caught.join().unwrap();
        until("it answers", || link.views(0).is_ok());
        link.change("qdisc replace dev link root fq").unwrap();
        assert_eq!(dropped(&link, 0), 1);
    });
}

/// Each receiving thread has a copy of the ingress filters. Lines change all copies, and listings
/// show the sums.
#[test]
fn each_receiver_has_the_ingress_filters() {
    let link = Link::devices([null(), null()]).qdisc("pfifo").build().unwrap();
    let first = link.ingress();
    let passes = |ingress: &onramp::LinkIngress| {
        let mut held = ingress.hold();
        [5, 6].map(|to| {
            let mut packet = Packet::with_payload(b"hello");
            packet.set_dest(Some(([10, 0, 0, 1], to).into()));
            held.passes(Instant(1), &mut packet)
        })
    };
    assert!(!first.is_met());
    link.change("qdisc add clsact").unwrap();
    assert_eq!(passes(&first), [true; 2]);
    link.change(DROP.replace("egress", "ingress")).unwrap();
    let second = link.ingress();
    assert!(first.is_met() && second.is_met());
    assert_eq!([passes(&first), passes(&second), passes(&first.clone())], [[false, true]; 3]);
    let known = |link: &Link| link.filters(INGRESS).len();
    assert_eq!((known(&link), counted(&link.tree_views())), (2, Some((6, 3))));
    assert_eq!(counted(&link.views(0).unwrap()), Some((6, 3)), "listed with the first port");
    assert_eq!(counted(&link.views(1).unwrap()), Some((0, 0)));
    // Packets that leave count in the same `clsact`.
    link.change(DROP).unwrap();
    assert_eq!(dropped(&link, 1), 1);
    assert_eq!(counted(&link.tree_views()), Some((8, 4)));
    // While another thread has the filters, a device need not wait.
    let held = first.hold();
    assert!(first.try_hold().is_none() && second.try_hold().is_some());
    drop(held);
    assert!(first.try_hold().is_some());
    link.set_tree(&setup(&["qdisc add dev link root pfifo", "qdisc add dev link ingress"]))
        .unwrap();
    assert!(!first.is_met() && !second.is_met());
    assert_eq!(passes(&first), [true; 2]);
    assert_eq!(counted(&link.tree_views()), Some((0, 0)));
}
