//! Tests of qdiscs whose parameters change while they hold packets. The tables list how many
//! packets the same qdiscs held in Linux 7.2 after the same changes.

use std::collections::BTreeMap;

use onramp_core::qdisc::{Changes, Dequeue, KINDS, Verdict};
use onramp_core::view::QdiscView;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};

const NOW: Instant = Instant(20_000_000_000);

fn tree(lines: &[&str]) -> Tree {
    let mut setup = Setup::default();
    lines.iter().for_each(|line| setup.apply(line).expect(line));
    Tree::of(&setup, 1_514, 0).expect("a root")
}

/// Enqueues forty packets of four flows with four priorities. Then dequeues up to six packets and
/// returns them.
fn fill(tree: &mut Tree) -> Vec<Packet> {
    for n in 0..40_u32 {
        let mut pkt = Packet::new(1_000);
        (pkt.flow, pkt.priority, pkt.cookie) = ((n % 4).into(), n % 4, n.into());
        // The verdict does not matter here: the qdisc itself counts the packets that it drops.
        let _ = tree.enqueue(NOW, pkt);
    }
    (0..6).filter_map(|_| out(tree, NOW)).collect()
}

fn out(tree: &mut Tree, mut now: Instant) -> Option<Packet> {
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => return Some(pkt),
            Dequeue::NotBefore(then) if then > now && then.0 < u64::MAX / 2 => now = then,
            Dequeue::NotBefore(_) | Dequeue::Empty => return None,
        }
    }
}

fn change(tree: &mut Tree, options: &str) {
    let line = format!("qdisc change dev x root handle 1: {options}");
    tree.apply(NOW, &line).unwrap_or_else(|why| panic!("{line}: {why}"));
}

fn check_sums(tree: &Tree, line: &str) {
    let totals = tree.totals();
    let gone = totals.sent_packets + totals.dropped_packets();
    let came = totals.enqueued_packets + totals.made_packets;
    assert_eq!(came, gone + u64::from(tree.backlog().packets), "{line}");
}

/// Returns two sets of options for a kind: the qdisc is created with the first and changed to the
/// second, with which it can keep all its packets.
fn near(id: &str) -> [&str; 2] {
    match id {
        "pfifo" | "pfifo_head_drop" | "codel" | "fq_codel" | "pie" | "skbprio" | "fq_pie"
        | "dualpi2" => ["limit 100", "limit 99"],
        "fq" => ["limit 100", "limit 99 quantum 2000 flow_limit 90 buckets 64"],
        "bfifo" => ["limit 100kb", "limit 99kb"],
        "pfifo_fast" => ["txqueuelen 100", "txqueuelen 99"],
        "prio" => ["bands 4", "bands 3 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 2"],
        "multiq" => ["bands 4", "bands 5"],
        "mq" => ["queues 4", "queues 5"],
        "tbf" => ["rate 8mbit burst 9kb limit 99kb", "rate 9mbit burst 8kb limit 98kb"],
        // With other values of `idleslope` and `sendslope`, `cbs` would announce times at which
        // credits are still missing: see `cbs_reference`.
        "cbs" => ["idleslope 8000 sendslope -2000 hicredit 459 locredit -1071"; 2],
        "netem" => ["delay 20ms", "delay 10ms limit 100"],
        "ets" => ["bands 4 strict 2", "bands 4 strict 1"],
        "choke" => ["limit 100 min 60 max 90 bandwidth 10mbit"; 2],
        "plug" => ["limit 100kb", "release_indefinite"],
        "hfsc" => ["default 1", "default 2"],
        "cake" => ["rtt 1s", "rtt 2s bandwidth 8mbit"],
        "red" => ["limit 100kb min 50kb max 90kb avpkt 1000 burst 60"; 2],
        "drr" | "qfq" | "sfq" | "noqueue" | "blackhole" | "noop" => ["", ""],
        // A kind that is not listed changes its `limit`, in packets, if it has one.
        id => {
            let kind = KINDS.iter().find(|kind| kind.id == id).expect("a kind");
            match kind.params.iter().any(|param| param.key == "limit") {
                true => ["limit 100", "limit 99"],
                false => ["", ""],
            }
        }
    }
}

/// Returns, for each qdisc, a text with the statistics that a change of options must not affect.
/// Waiting times and the state of the AQM are left out, because a change may affect them.
fn known(views: Vec<QdiscView>) -> Vec<String> {
    let one = |view: QdiscView| {
        let counts = ["new_flow_count", "pkts_in", "packets_in_c", "flows", "gc", "maxpacket"];
        let extra = counts.map(|name| view.extra.find(name));
        let used = |class: &&onramp_core::view::ClassView| class.backlog.packets > 0;
        let classes: Vec<_> = view.classes.iter().filter(used).collect();
        let classes = format!("{classes:?}");
        // Leave out the classes' own statistics, because quanta are among them and the change may
        // change quanta.
        let classes = classes.split("extra").next().unwrap_or_default().to_owned();
        format!("{} {:?} {:?} {extra:?} {classes}", view.handle, view.counters, view.backlog)
    };
    views.into_iter().map(one).collect()
}

#[test]
fn every_kind_keeps_what_it_holds() {
    for kind in KINDS.iter().filter(|kind| kind.changes != Changes::No) {
        let [before, after] = near(kind.id).map(|options| format!("{} {options}", kind.id));
        let mut tree = tree(&[&format!("qdisc add dev x root handle 1: {before}")]);
        let left = fill(&mut tree);
        drop(tree.drops());
        let (views, held) = (known(tree.views()), tree.backlog());
        change(&mut tree, &after);
        check_sums(&tree, &after);
        if kind.id == "red" {
            assert_eq!((held.packets, tree.drops().len(), tree.backlog().packets), (34, 34, 0));
            assert_eq!(tree.totals().dropped(DropReason::Purged), 34);
            assert_eq!(tree.views()[0].counters.packets, 6);
            continue;
        }
        assert_eq!(tree.drops().len(), 0, "{after}");
        // If a change adds transmit queues, their views come after those of the old queues.
        assert_eq!(known(tree.views())[..views.len()], views, "{after}");
        let rest = std::iter::from_fn(|| out(&mut tree, NOW)).collect::<Vec<_>>();
        assert_eq!(rest.len(), held.packets as usize, "{after}");
        let mut last = BTreeMap::new();
        for pkt in left.iter().chain(&rest) {
            let before = last.insert(pkt.flow, pkt.cookie);
            assert!(before.is_none_or(|before| before < pkt.cookie), "{after}: flow {}", pkt.flow);
        }
        check_sums(&tree, &after);
    }
}

/// If a change lowers the limit below the 34 packets that a qdisc holds, the qdisc drops as many
/// packets as in Linux.
#[test]
fn a_lower_limit_drops_the_excess() {
    for (before, after, held) in [
        ("fq_codel target 10s interval 20s", "fq_codel limit 10", 10),
        ("fq", "fq limit 10", 10),
        ("codel target 10s interval 20s", "codel limit 10", 10),
        ("pie", "pie limit 10", 10),
        ("fq_pie", "fq_pie limit 10", 10),
        ("skbprio limit 90", "skbprio limit 10", 34),
        ("pfifo limit 100", "pfifo limit 10", 34),
        ("cake rtt 1000s", "cake rtt 1000s besteffort memlimit 3000", 34),
        (
            "choke limit 100 min 60 max 90 bandwidth 10mbit",
            "choke limit 10 min 6 max 9 bandwidth 10mbit",
            15,
        ),
        (
            "prio bands 4 priomap 0 1 2 3 0 0 0 0 0 0 0 0 0 0 0 0",
            "prio bands 3 priomap 0 1 2 0 0 0 0 0 0 0 0 0 0 0 0 0",
            24,
        ),
        ("netem", "netem limit 10", 34),
    ] {
        let mut tree = tree(&[&format!("qdisc add dev x root handle 1: {before}")]);
        assert_eq!(fill(&mut tree).len(), 6, "{before}");
        change(&mut tree, after);
        assert_eq!(tree.backlog().packets, held, "{after}");
        let dropped = u64::from(34 - held);
        assert_eq!(tree.drops().len(), 34 - held, "{after}");
        let counters = tree.views()[0].counters;
        assert_eq!((counters.packets, counters.drops), (6, dropped), "{after}");
        let reason =
            if after.starts_with("prio") { DropReason::Purged } else { DropReason::Overlimit };
        assert_eq!(tree.totals().dropped(reason), dropped, "{after}");
        check_sums(&tree, after);
        assert_eq!(std::iter::from_fn(|| out(&mut tree, NOW)).count(), held as usize, "{after}");
    }
}

#[test]
fn children_outlive_a_change_unless_their_band_goes() {
    let mut tree = tree(&[
        "qdisc add dev x root handle 1: prio bands 4",
        "qdisc add dev x parent 1:2 handle 2: fq",
        "qdisc add dev x parent 1:4 handle 4: prio",
        "qdisc add dev x parent 4:1 handle 5: pfifo",
    ]);
    for class in [0x1_0002, 0x1_0004] {
        let mut pkt = Packet::new(100);
        (pkt.priority, pkt.flow) = (class, 1);
        let _ = tree.enqueue(NOW, pkt);
    }
    change(&mut tree, "prio bands 5");
    assert_eq!(tree.views().iter().map(|view| view.handle.major).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert_eq!(tree.backlog().packets, 2);
    change(&mut tree, "prio bands 3");
    assert_eq!(tree.views().iter().map(|view| view.handle.major).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((tree.backlog().packets, tree.totals().dropped(DropReason::Purged)), (1, 1));
    tree.apply(NOW, "qdisc add dev x parent 1:3 handle 4: pfifo").expect("the handle is free");
    change(&mut tree, "prio bands 4");
    let classes = tree.views()[0].classes.len();
    assert_eq!((classes, tree.backlog().packets), (4, 1));
}

/// When a change replaces the priority map, `fq` counts the packets that it holds anew, each for
/// the band to which the new map assigns its priority. When all packets have left, each band's
/// count is zero.
#[test]
fn fq_counts_its_bands_anew() {
    let mut tree = tree(&["qdisc add dev x root handle 1: fq"]);
    let _ = fill(&mut tree);
    change(&mut tree, "fq priomap 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2 2");
    let held = |tree: &mut Tree| {
        let extra = &tree.views()[0].extra;
        ["band0_pkts", "band1_pkts", "band2_pkts"].map(|name| extra.get(name))
    };
    let [first, second, third] = held(&mut tree);
    assert_eq!([first, second], [0, 0]);
    assert!(third > 20, "{third}; the rest took the fast path");
    assert_eq!(std::iter::from_fn(|| out(&mut tree, NOW)).count(), 34);
    assert_eq!(held(&mut tree), [0; 3]);
}

/// When a change gives an AQM another update period, the next update is due one new period after
/// the last update.
#[test]
fn pie_learns_no_faster_than_its_new_period() {
    for kind in ["pie", "fq_pie"] {
        let mut tree = tree(&[&format!("qdisc add dev x root handle 1: {kind} tupdate 100ms")]);
        let _ = fill(&mut tree);
        for (ms, tupdate) in [(60_000, 1), (60_030, 1_000), (60_060, 1)] {
            let now = Instant(NOW.0 + ms * 1_000_000);
            let line = format!("qdisc change dev x root {kind} tupdate {tupdate}ms");
            tree.apply(now, &line).expect("a line");
            assert_eq!(tree.backlog().packets, 34);
        }
    }
}

/// `cake` fixes the size that a packet has on the link when the packet arrives. A change of the
/// link's overhead does not affect packets that `cake` already holds.
#[test]
fn cake_keeps_the_sizes_of_what_it_holds() {
    const MS: u64 = 1_000_000;
    let line = |more: &str| format!("cake bandwidth 8mbit besteffort flowblind {more}");
    let mut tree = tree(&[&format!("qdisc add dev x root handle 1: {}", line("raw"))]);
    let come = |tree: &mut Tree, packets: usize| {
        for _ in 0..packets {
            assert_eq!(tree.enqueue(NOW, Packet::new(1_000)), Verdict::Queued);
        }
    };
    come(&mut tree, 3);
    change(&mut tree, &line("raw overhead 50"));
    come(&mut tree, 2);
    change(&mut tree, &line("raw overhead 100"));
    come(&mut tree, 2);
    let mut now = NOW;
    let mut left = Vec::new();
    while tree.backlog().packets > 0 {
        match tree.dequeue(now) {
            Dequeue::Ready(_) => left.push((now.0 - NOW.0) / (MS / 100)),
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => break,
        }
    }
    // The times at which packets leave, in hundredths of a millisecond. A byte takes a microsecond.
    assert_eq!(left, [0, 100, 200, 300, 405, 510, 620]);
}

/// As in Linux, a change of `red` replaces its child by a new `bfifo` and removes the old child.
#[test]
fn red_loses_what_stands_below_it() {
    let red = "red limit 100000 min 20000 max 60000 avpkt 1000 burst 40 bandwidth 10mbit";
    let mut tree = tree(&[
        &format!("qdisc add dev x root handle 1: {red}"),
        "qdisc add dev x parent 1:1 handle 2: prio",
        "qdisc add dev x parent 2:1 handle 3: codel limit 660",
    ]);
    assert_eq!(fill(&mut tree).len(), 6);
    change(&mut tree, red);
    let handles = |tree: &mut Tree| -> Vec<u16> {
        tree.views().iter().map(|view| view.handle.major).filter(|major| *major > 0).collect()
    };
    assert_eq!(handles(&mut tree), [1]);
    assert_eq!((tree.backlog().packets, tree.totals().dropped(DropReason::Purged)), (0, 34));
    for line in ["change dev x parent 1:1 handle 2: prio", "del dev x parent 2:1"] {
        assert!(tree.apply(NOW, &format!("qdisc {line}")).is_err(), "{line}");
    }
    tree.apply(NOW, "qdisc add dev x parent 1:1 handle 2: pfifo limit 2").expect("there is room");
    assert_eq!(handles(&mut tree), [1, 2]);
    let _ = fill(&mut tree);
    check_sums(&tree, "red");
    assert_eq!(tree.totals().dropped(DropReason::Overlimit), 38);
}

#[test]
fn a_plug_that_was_reset_releases_nothing_of_before() {
    let mut tree = tree(&["qdisc add dev x root handle 1: plug limit 100kb"]);
    for _ in 0..3 {
        let _ = tree.enqueue(NOW, Packet::new(100));
    }
    change(&mut tree, "plug block");
    tree.reset(NOW);
    change(&mut tree, "plug release");
    let _ = tree.enqueue(NOW, Packet::new(100));
    assert!(out(&mut tree, NOW).is_none());
    change(&mut tree, "plug release_indefinite");
    assert!(out(&mut tree, NOW).is_some());
}
