//! Each field of a snapshot holds the value of the right counter. All counters have different
//! values in these tests, so that a mix-up is found.

use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, KINDS};
use onramp_core::stats::{BUCKETS, PortSnapshot};
use onramp_core::view::{ClassView, Counters, Extra, QdiscView};
use onramp_core::{Handle, Port};
use onramp_host::Host;

use super::*;

/// Makes a histogram with all of its `count` values in one bucket, and returns the counts of the
/// buckets.
fn histogram(bucket: usize, count: u64) -> [u64; BUCKETS] {
    let mut counts = [0; BUCKETS];
    counts[bucket] = count;
    counts
}

fn port() -> PortSnapshot {
    let spec: Spec = "pfifo".parse().expect("a qdisc");
    let port = Port::new(spec.build(1_514), onramp::dev::Null::default(), 9);
    let mut port = port.snapshot();
    (port.enqueued, port.made, port.sent, port.sent_bytes) = (101, 102, 103, 104);
    port.dropped = vec![(DropReason::Overlimit, 105), (DropReason::Congested, 106)];
    (port.held, port.runs, port.helped, port.busy, port.bursts) = (107, 108, 109, 110, 111);
    port.burst_packets = histogram(1, 112);
    port.staging_ns = histogram(2, 113);
    port.sojourn_ns = histogram(3, 114);
    port.late_ns = histogram(4, 115);
    port.lost_ns = 116;
    port
}

fn counters(first: u64) -> Counters {
    Counters {
        bytes: first,
        packets: first + 1,
        drops: first + 2,
        overlimits: first + 3,
        requeues: first + 4,
    }
}

fn traffic(first: u64) -> Traffic {
    Traffic {
        sent_bytes: first,
        sent_packets: first + 1,
        dropped_packets: first + 2,
        overlimits: first + 3,
        requeues: first + 4,
        backlog_bytes: first + 5,
        backlog_packets: first + 6,
    }
}

fn qdisc() -> QdiscView {
    let mut class = ClassView::new(Handle::new(1, 0x10));
    class.parent = Some(Handle::new(1, 2));
    class.leaf = Some(0x20);
    class.counters = counters(301);
    class.backlog = Backlog { packets: 307, bytes: 306 };
    class.extra = Extra(vec![("tokens", -8), ("level", 309)]);
    let kind = KINDS.iter().find(|kind| kind.id == "htb").expect("a kind");
    let mut qdisc = QdiscView::new(Handle::new(1, 0), kind);
    qdisc.parent = Some(Handle::new(3, 4));
    qdisc.counters = counters(201);
    qdisc.backlog = Backlog { packets: 207, bytes: 206 };
    qdisc.drops = vec![(DropReason::Unclassified, 208)];
    qdisc.sojourn_ns = Some(Box::new(histogram(4, 209)));
    qdisc.extra = Extra(vec![("direct_packets_stat", 210)]);
    qdisc.classes = vec![class];
    qdisc
}

#[test]
fn every_field_of_a_queue_has_its_count() {
    let drops = [("overlimit".into(), 105), ("congested".into(), 106)];
    let expected = Queue {
        queue: 0,
        enqueued_packets: 101,
        made_packets: 102,
        sent_packets: 103,
        sent_bytes: 104,
        drops: drops.into(),
        held_packets: 107,
        runs: 108,
        helped: 109,
        busy: 110,
        bursts: 111,
        burst_packets: Histogram::new(&[0, 112]),
        staging_ns: Histogram::new(&[0, 0, 113]),
        sojourn_ns: Histogram::new(&[0, 0, 0, 114]),
        late_ns: Histogram::new(&[0, 0, 0, 0, 115]),
        lost_ns: 116,
        qdiscs: Vec::new(),
    };
    assert_eq!(Queue::from(&port()), expected);
}

#[test]
fn every_field_of_a_qdisc_and_of_a_class_has_its_count() {
    let class = Class {
        handle: "1:10".to_owned(),
        parent: Some("1:2".to_owned()),
        leaf: Some("20:".to_owned()),
        traffic: traffic(301),
        statistics: [("tokens".into(), -8), ("level".into(), 309)].into(),
    };
    let expected = Qdisc {
        handle: "1:".to_owned(),
        parent: Some("3:4".to_owned()),
        kind: "htb".into(),
        traffic: traffic(201),
        drops: [("unclassified".into(), 208)].into(),
        sojourn_ns: Some(Histogram::new(&[0, 0, 0, 0, 209])),
        statistics: [("direct_packets_stat".into(), 210)].into(),
        classes: vec![class],
    };
    assert_eq!(Qdisc::from(&qdisc()), expected);
    // In a snapshot, a root qdisc has no parent, and a qdisc that measures no sojourn times has no
    // histogram.
    let mut plain = qdisc();
    (plain.parent, plain.sojourn_ns) = (None, None);
    assert_eq!(Qdisc::from(&plain), Qdisc { parent: None, sojourn_ns: None, ..expected });
}

/// A snapshot lists each qdisc under its transmit queue. If the host reports a qdisc of a queue,
/// but no counters of this queue, the snapshot shows the queue with counters of zero.
#[test]
fn every_field_of_a_device_is_what_it_was_told() {
    let mut host = Host::new();
    assert_eq!(host.exec_alone(&["ip", "link", "add", "veth1", "type", "veth"]).code, 0);
    let mut view = host.devices().swap_remove(0);
    view.name = "veth1".to_owned();
    (view.index, view.kind, view.up) = (401, "veth", true);
    (view.mtu, view.txqueuelen) = (402, 403);
    view.peer = Some("veth0".to_owned());
    view.queues = vec![port(), port()];
    view.qdiscs = vec![(1, qdisc()), (3, qdisc()), (1, qdisc())];
    let snapshot = Snapshot::new(&[view], 405, 404);
    assert_eq!((snapshot.schema.as_ref(), snapshot.version), ("onramp.snapshot", 1));
    assert_eq!((snapshot.onramp.as_ref(), snapshot.unix_ms), (env!("CARGO_PKG_VERSION"), 404));
    assert_eq!((snapshot.at_ns, snapshot.devices.len()), (405, 1));
    let device = &snapshot.devices[0];
    assert_eq!((device.name.as_str(), device.index, device.kind.as_ref()), ("veth1", 401, "veth"));
    assert_eq!((device.up, device.mtu, device.txqueuelen), (true, 402, 403));
    assert_eq!(device.peer.as_deref(), Some("veth0"));
    let queues = device.queues.iter().map(|queue| (queue.queue, queue.runs, queue.qdiscs.len()));
    assert_eq!(queues.collect::<Vec<_>>(), [(0, 108, 0), (1, 108, 2), (2, 0, 0), (3, 0, 1)]);
    assert_eq!(device.relay, None);
    // The host reports counters of the queues 0 and 1, and qdiscs of the queues 2 and 1. The
    // snapshot also shows queue 2, with counters of zero.
    let mut next = host.devices().swap_remove(0);
    (next.queues, next.qdiscs) = (vec![port(), port()], vec![(2, qdisc()), (1, qdisc())]);
    let queues = Device::from(&next).queues;
    let queues = queues.iter().map(|queue| (queue.queue, queue.runs, queue.qdiscs.len()));
    assert_eq!(queues.collect::<Vec<_>>(), [(0, 108, 0), (1, 108, 1), (2, 0, 1)]);
}

#[test]
fn every_field_of_a_relay_has_its_count() {
    let mut host = Host::new();
    let add = "ip link add u0 type udp local 127.0.0.1 remote 127.0.0.1:9 listen 127.0.0.1:0";
    assert_eq!(host.exec_alone(&add.split(' ').collect::<Vec<_>>()).code, 0);
    let mut view = host.devices().swap_remove(0);
    let relay = view.relay.as_mut().expect("it listens");
    (relay.clients, relay.clients_max, relay.forgotten, relay.errors) = (501, 502, 503, 504);
    (relay.answers, relay.answer_bytes) = (505, 506);
    (relay.refused, relay.answers_refused) = (vec![("full", 507)], vec![("late", 508)]);
    assert_eq!(Device::from(&view).relay, Some(tests::relay()));
}
