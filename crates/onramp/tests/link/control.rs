//! Trees that are changed and listed while other threads send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::Transmitted;
use onramp::dev::Null;
use onramp::view::{QdiscView, whole};
use onramp::{
    Change, Device, DeviceInfo, DropReason, Facts, Instant, Link, Mapping, PacketList, PortError,
    Setup,
};

use super::common::{Gate, LONG, balanced, credits, gated, in_time, until};

/// A link whose tree of qdiscs the test changes.
struct Control {
    link: Link,
}

impl Control {
    fn of(link: Link, _: Setup) -> Self {
        Self { link }
    }

    fn apply(&mut self, line: &str) -> Result<(), PortError> {
        match self.link.change(line) {
            Ok(_) => Ok(()),
            Err(PortError::Config(error)) => panic!("{line}: {error}"),
            Err(error) => Err(error),
        }
    }
}

fn setup(lines: &[&str]) -> Setup {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    setup
}

fn null(ports: usize, setup: &Setup) -> Link {
    let devices = (0..ports).map(|_| Box::new(Null::default()) as Box<dyn Device>);
    Link::devices(devices).tree(setup).build().expect("a link")
}

fn names(views: &[QdiscView]) -> Vec<String> {
    let name = |view: &QdiscView| {
        let parent = view.parent.map_or_else(|| "root".into(), |parent| parent.to_string());
        format!("{} {:x}: {parent}", view.kind.id, view.handle.major)
    };
    views.iter().map(name).collect()
}

/// A `pfifo_fast` in front of a transmit queue takes over a new `txqueuelen` at once; a `pfifo`
/// keeps the limit that it has.
#[test]
fn a_new_txqueuelen_reaches_a_pfifo_fast() {
    in_time(|| {
        // The port keeps one packet, which the device refused, outside of the bands.
        for (qdisc, held) in [("pfifo_fast", [40, 31]), ("pfifo", [40, 40])] {
            let device = Box::new(Null::default().with_ring(1, Duration::MAX)) as Box<dyn Device>;
            let link = Link::devices([device]).qdisc(qdisc).credits(credits(1_000)).build();
            let link = link.expect("a link");
            let set = |txqueuelen| {
                let facts = Facts { mtu: 1_514, txqueuelen, ..link.setup().facts().clone() };
                link.describe_device("d0", facts);
            };
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(0));
            set(1_000);
            (0..41).for_each(|_| sender.try_send(&flow, b"x").expect("room"));
            until(qdisc, || link.stats().held == held[0]);
            set(30);
            until(qdisc, || link.stats().held == held[1]);
        }
    });
}

/// The facts about a device with `queues` queues and the default qdisc that Linux gives to a new
/// device with this `txqueuelen`.
fn described(queues: usize, txqueuelen: u32, dormant: bool) -> Facts {
    let fallback = match (txqueuelen, queues) {
        (0, _) => "noqueue",
        (_, 1) => "pfifo_fast",
        _ => "mq",
    };
    Facts {
        fallback: fallback.parse().ok(),
        queues: queues.try_into().expect("few"),
        txqueuelen,
        mtu: 1_514,
        dormant,
        ports: true,
    }
}

/// The device has a full ring that never empties, so that packets wait in its default qdisc.
fn stuck(queues: usize, txqueuelen: u32) -> Link {
    let device = || Box::new(Null::default().with_ring(1, Duration::MAX)) as Box<dyn Device>;
    let mut tree = Setup::default();
    tree.of_device("d0", described(queues, txqueuelen, false));
    let link = Link::devices((0..queues).map(|_| device())).tree(&tree);
    link.credits(credits(1_000)).build().expect("a link")
}

/// As in Linux, the default qdisc that a device got when it was set up stays at the root, whatever
/// `txqueuelen` follows, and a default qdisc that is attached later is the one of that time.
#[test]
fn a_default_qdisc_stays_as_the_txqueuelen_changes() {
    in_time(|| {
        for queues in [1, 2] {
            let link = stuck(queues, 0);
            let describe = |txqueuelen| {
                link.describe_device("d0", described(queues, txqueuelen, false));
                (0..queues).for_each(|port| assert!(link.views(port).is_ok(), "{port} is alive"));
            };
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(queues - 1));
            let mut send = || sender.try_send(&flow, b"x").expect("the port is alive");
            (0..4).for_each(|_| send());
            for txqueuelen in [0, 500, 0, 500] {
                describe(txqueuelen);
                assert_eq!(names(&link.tree_views()), ["noqueue 0: root"], "{txqueuelen}");
            }
            link.change("qdisc add dev d0 root handle 1: fq").expect("there is no root");
            link.change("qdisc del dev d0 root").expect("there is a root");
            let attached = match queues {
                1 => vec!["pfifo_fast 0: root"],
                _ => vec!["mq 0: root", "pfifo_fast 0: 0:1", "pfifo_fast 0: 0:2"],
            };
            describe(500);
            let before = link.stats().held;
            (0..40).for_each(|_| send());
            until("all wait", || link.stats().held == before + 40);
            for txqueuelen in [500, 0, 500, 0] {
                describe(txqueuelen);
                assert_eq!(names(&link.tree_views()), attached, "{txqueuelen}");
                // While an owner moves packets, the count may be short of them for a moment.
                until("all wait still", || link.stats().held == before + 40);
            }
            describe(30);
            until("the pfifo_fast is shorter", || link.stats().held < before + 40);
        }
    });
}

/// The default qdisc of a device that has never been up is not attached yet: it follows the device.
#[test]
fn a_default_qdisc_follows_until_the_device_is_up() {
    in_time(|| {
        for queues in [1, 2] {
            let link = stuck(queues, 0);
            for (txqueuelen, dormant) in [(0, true), (500, true), (500, false)] {
                link.describe_device("d0", described(queues, txqueuelen, dormant));
            }
            let mut sender = link.sender();
            let flow = sender.flow_with(None, Mapping::Port(queues - 1));
            (0..40).for_each(|_| sender.try_send(&flow, b"x").expect("the port is alive"));
            until("a pfifo_fast holds them", || link.stats().held == 40 - 1);
        }
    });
}

#[test]
fn a_class_of_mq_is_changed_alone() {
    in_time(|| {
        let tree = setup(&["qdisc add dev d root handle 1: mq"]);
        let mut control = Control::of(null(3, &tree), tree);
        let before = control.link.all_views();
        assert_eq!(before.len(), 3);
        for (port, views) in &before {
            let parent = format!("pfifo_fast 0: 1:{}", port + 1);
            assert_eq!(names(views.as_ref().unwrap()), [parent]);
        }
        control.apply("qdisc add dev d parent 1:2 handle 20: htb default 1").unwrap();
        control.apply("class add dev d parent 20: classid 20:1 htb rate 1gbit").unwrap();
        control.apply("qdisc add dev d parent 20:1 handle 21: fq").unwrap();
        let tree =
            ["mq 1: root", "pfifo_fast 0: 1:1", "htb 20: 1:2", "fq 21: 20:1", "pfifo_fast 0: 1:3"];
        let views = control.link.tree_views();
        assert_eq!(names(&views), tree);
        assert_eq!(views[0].classes.len(), 3);
        assert_eq!(views[0].classes[1].leaf, Some(0x20));
        control.apply("class change dev d classid 20:1 htb rate 2gbit").unwrap();
        control.apply("qdisc del dev d parent 1:2").unwrap();
        assert_eq!(names(&control.link.views(1).unwrap()), ["pfifo_fast 0: 1:2"]);
        control.apply("qdisc replace dev d root handle 3: prio").unwrap();
        assert_eq!(names(&control.link.tree_views()), ["prio 3: root"]);
        assert!(matches!(control.link.views(3), Err(PortError::Unknown(3))));
    });
}

/// Changing a qdisc keeps the packets that it holds; replacing the qdisc drops them. The device's
/// gate is shut, so all packets are in the qdisc or in the burst that the port offers to the
/// device.
#[test]
fn a_change_keeps_packets_and_a_replacement_drops_them() {
    in_time(|| {
        let gate = Gate::new(false);
        let tree = setup(&["qdisc add dev d root handle 1: pfifo limit 500"]);
        let link = gated(&gate, "pfifo").credits(credits(400)).tree(&tree).build().unwrap();
        let mut control = Control::of(link, tree);
        let mut sender = control.link.sender();
        let flow = sender.flow(None);
        (0..300).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        until("all is in the qdisc or with the device", || {
            let held = control.link.views(0).unwrap()[0].backlog.packets;
            u64::from(held) == control.link.stats().held - 64
        });
        control.apply("qdisc change dev d root pfifo limit 400").unwrap();
        let view = control.link.views(0).unwrap().remove(0);
        assert_eq!((view.backlog.packets, view.counters.drops), (236, 0));
        assert!(view.counters.requeues > 0);
        control.apply("qdisc replace dev d root handle 2: fq").unwrap();
        let view = control.link.views(0).unwrap().remove(0);
        assert_eq!((view.kind.id, view.backlog.packets, view.counters.drops), ("fq", 0, 0));
        assert_eq!(control.link.stats().dropped[&DropReason::Purged], 236);
        gate.open();
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 64);
        balanced(&control.link.stats());
    });
}

/// Two threads send as fast as they can, a third one changes the tree, and a fourth one lists it.
/// No packet is lost.
#[test]
fn nothing_is_lost_under_changes() {
    in_time(|| {
        for lines in [
            &[
                "qdisc add dev d root handle 1: htb default 10",
                "class add dev d parent 1: classid 1:10 htb rate 10gbit",
            ][..],
            &["qdisc add dev d root handle 1: mq"],
            &["qdisc add dev d root handle 1: drr", "class add dev d classid 1:10 drr"],
        ] {
            let tree = setup(lines);
            let link = null(2, &tree);
            let mut control = Control::of(link.clone(), tree);
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                let senders: Vec<_> = (0..2)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut sender = link.sender();
                            let flow = sender.flow(None).with_priority(0x1_0010);
                            while !stop.load(Ordering::Relaxed) {
                                sender.send(&flow, b"x").expect("the link is open");
                            }
                            assert!(sender.flush(LONG));
                        })
                    })
                    .collect();
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let views = link.all_views();
                        // A port is late if its owner, a sender, gets no processor for a second.
                        let wrong = views.iter().filter_map(|(_, views)| views.as_ref().err());
                        assert!(wrong.clone().all(|error| matches!(error, PortError::Late(_))));
                        let views: Vec<_> =
                            views.into_iter().filter_map(|(_, views)| views.ok()).collect();
                        assert!(views.is_empty() || !whole(views).is_empty());
                    }
                });
                let class = if lines[0].ends_with("mq") { "1:1" } else { "1:10" };
                // At least 300 rounds, and until packets were sent beside them.
                for round in (0..).take_while(|round| *round < 300 || link.stats().sent == 0) {
                    let limit = 50 + round;
                    let kind = ["pfifo", "fq", "fq_codel"][round % 3];
                    for line in [
                        format!("replace dev d parent {class} handle 2: {kind} limit {limit}"),
                        format!("change dev d parent {class} {kind} limit 40"),
                        format!("del dev d parent {class}"),
                    ] {
                        let done = control.apply(&format!("qdisc {line}"));
                        assert!(matches!(done, Ok(_) | Err(PortError::Late(_))), "{done:?}");
                    }
                }
                stop.store(true, Ordering::Relaxed);
                senders.into_iter().for_each(|sender| sender.join().unwrap());
            });
            assert!(link.flush(LONG));
            let stats = link.stats();
            balanced(&stats);
            assert!(stats.sent > 0);
        }
    });
}

/// A device that blocks its caller until the test lets the caller return.
struct Blocks {
    info: DeviceInfo,
    gate: Arc<(AtomicBool, AtomicBool)>,
}

impl Device for Blocks {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        self.gate.0.store(true, Ordering::SeqCst);
        while !self.gate.1.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

/// A thread changes a link of which one port's device blocks. The thread gets an error that says
/// so, and the port makes the change when its device returns.
#[test]
fn a_device_that_blocks_holds_up_nobody() {
    in_time(|| {
        let gate = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let info = DeviceInfo::new("blocks".to_owned(), 1_514);
        let device: Box<dyn Device> = Box::new(Blocks { info, gate: gate.clone() });
        let devices = [device, Box::new(Null::default())];
        let tree = setup(&["qdisc add dev d root handle 1: pfifo"]);
        let link = Link::devices(devices).tree(&tree).build().unwrap();
        let mut control = Control::of(link.clone(), tree);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = link.sender();
                let flow = sender.flow_with(None, Mapping::Port(0));
                sender.send(&flow, b"x").unwrap();
                assert!(sender.flush(LONG));
            });
            until("the device has it", || gate.0.load(Ordering::SeqCst));
            let late = control.apply("qdisc change dev d root pfifo limit 7");
            assert!(matches!(late, Err(PortError::Late(0))), "{late:?}");
            let all = control.link.all_views();
            assert!(matches!(all[0].1, Err(PortError::Late(0))));
            assert!(all[1].1.is_ok());
            let late = link.change("qdisc change dev d root pfifo limit 8");
            assert!(matches!(late, Err(PortError::Late(0))), "{late:?}");
            let mut blocked = 0;
            for _ in 0..3_000 {
                // A call of `set_tree` does not wait for the port.
                blocked += u32::from(control.link.set_tree(&control.link.setup()).is_err());
            }
            assert!(blocked > 1_900, "what waits is bounded: {blocked}");
            let missed = control.apply("qdisc replace dev d root handle 7: prio");
            assert!(matches!(missed, Err(PortError::Blocked(0))), "{missed:?}");
            gate.1.store(true, Ordering::SeqCst);
        });
        until("it answers", || control.link.views(0).is_ok());
        // The port has missed a change, so it gets the whole tree with the next change.
        control.apply("qdisc add dev d parent 7:2 handle 8: fq").unwrap();
        let views = |port| names(&control.link.views(port).unwrap());
        assert_eq!(views(0).len(), 2);
        assert_eq!(views(0), views(1));
        balanced(&control.link.stats());
    });
}

/// A change begins although a device blocks, and the port makes it when its device returns.
#[test]
fn a_change_begins_while_a_device_blocks() {
    in_time(|| {
        let gate = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let info = DeviceInfo::new("blocks".to_owned(), 1_514);
        let device: Box<dyn Device> = Box::new(Blocks { info, gate: gate.clone() });
        let tree = setup(&["qdisc add dev d root handle 1: pfifo"]);
        let link = Link::devices([device]).tree(&tree).build().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = link.sender();
                let flow = sender.flow(None);
                sender.send(&flow, b"x").unwrap();
                assert!(sender.flush(LONG));
            });
            until("the device has it", || gate.0.load(Ordering::SeqCst));
            let (change, changing) =
                link.begin_change("qdisc change dev d root pfifo limit 7").unwrap();
            assert!(matches!(change, Change::Parameters(1)), "{change:?}");
            assert!(link.setup().lines()[0].ends_with("limit 7"), "{:?}", link.setup().lines());
            gate.1.store(true, Ordering::SeqCst);
            // A call that had waited for the device would know that the port is late.
            assert!(matches!(changing.wait(), Ok(())));
        });
        assert!(link.begin_change("qdisc").is_err());
    });
}

#[test]
fn how_long_packets_stay_is_measured_if_asked_for() {
    in_time(|| {
        let tree = setup(&[
            "qdisc add dev d root handle 1: prio",
            "qdisc add dev d parent 1:1 handle 11: pfifo",
        ]);
        for measures in [false, true] {
            let devices = [Box::new(Null::default()) as Box<dyn Device>];
            let link = Link::devices(devices).tree(&tree).measure(measures).build().unwrap();
            let mut sender = link.sender();
            let flow = sender.flow(None).with_priority(0x1_0001);
            (0..100).for_each(|_| sender.send(&flow, b"x").unwrap());
            assert!(sender.flush(LONG));
            for view in link.views(0).unwrap() {
                assert_eq!(view.counters.packets, 100);
                let counted = view.sojourn_ns.map(|counts| counts.iter().sum::<u64>());
                assert_eq!(counted, measures.then_some(100));
            }
        }
    });
}

/// A thread that removes a port waits until the port has sent its packets. Meanwhile, other threads
/// can use the link: their calls do not wait for the removal.
#[test]
fn a_port_that_goes_holds_up_nobody() {
    in_time(|| {
        let gate = Gate::new(false);
        let devices = [gate.device(), Box::new(Null::default())];
        let tree = setup(&["qdisc add dev d root handle 1: pfifo"]);
        let link = Link::devices(devices).tree(&tree).ports_max(3).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        sender.send(&flow, b"x").unwrap();
        thread::scope(|scope| {
            let gone = scope.spawn(|| link.remove_port(0, LONG));
            thread::sleep(Duration::from_millis(50));
            assert!(link.views(1).is_ok());
            link.measure(true);
            link.change("qdisc replace dev d root handle 2: fq").unwrap();
            link.set_qdisc("pfifo").unwrap();
            assert!(!gone.is_finished(), "it waits, and nobody waited for it");
            gate.open();
            assert!(gone.join().unwrap().unwrap().flushed);
        });
        let added = link.add_port(Null::default()).unwrap();
        assert_eq!(names(&link.views(added).unwrap()), names(&link.views(1).unwrap()));
    });
}
