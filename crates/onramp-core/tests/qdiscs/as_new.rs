//! A qdisc that was reset behaves like a new one, and an idle qdisc whose options were changed
//! behaves like a new one with the new options.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const START: Instant = Instant(20_000_000_000);

fn tree(line: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: {line}")).expect(line);
    Tree::of(&setup, 1_514, 7).expect("a root")
}

/// Pseudo-random numbers that are the same in each run (Steele, Lea, Flood 2014: `SplitMix64`).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (word ^ (word >> 27)) % most
    }
}

fn packet(numbers: &mut Numbers, now: Instant, cookie: u64) -> Packet {
    let mut pkt = Packet::new(100 + u32::try_from(numbers.below(1_400)).unwrap());
    (pkt.cookie, pkt.flow, pkt.enqueued_ns) = (cookie, numbers.below(6), now.0);
    pkt.ecn = u8::try_from(numbers.below(4)).unwrap();
    pkt.priority = u32::try_from(numbers.below(16)).unwrap();
    pkt
}

/// Assigns a packet to one of the two classes 1:1 and 1:2.
fn of_two_classes(mut pkt: Packet) -> Packet {
    pkt.priority = 0x1_0001 + pkt.priority % 2;
    pkt
}

/// Enqueues 600 packets, about one per millisecond, and dequeues after two in three of them.
/// Returns a line for each event (a verdict, a result of a dequeue, a drop), and if `stats` is set
/// also the qdisc's counters.
fn run(tree: &mut Tree, begin: Instant, stats: bool) -> Vec<String> {
    run_with(tree, begin, stats, |pkt| pkt)
}

fn run_with(
    tree: &mut Tree,
    begin: Instant,
    stats: bool,
    made: impl Fn(Packet) -> Packet,
) -> Vec<String> {
    let (mut numbers, mut now) = (Numbers(3), begin);
    let mut told = Vec::new();
    for cookie in 0..600 {
        now = now.after(numbers.below(2_000_000));
        let verdict = tree.enqueue(now, made(packet(&mut numbers, now, cookie)));
        told.push(format!("{cookie} {verdict:?}"));
        if numbers.below(3) > 0 {
            told.push(match tree.dequeue(now) {
                Dequeue::Ready(pkt) => format!("out {} {}", pkt.cookie, pkt.ecn),
                other => format!("{other:?}"),
            });
        }
        told.extend(tree.drops().map(|pkt| format!("lost {} {:?}", pkt.cookie, pkt.drop_reason)));
        if stats && cookie % 20 == 0 {
            tree.stats(&mut |name, value| told.push(format!("{name} {value}")));
        }
    }
    told
}

fn same(what: &str, ours: &[String], new: &[String]) {
    let differs = ours.iter().zip(new).position(|(ours, new)| ours != new);
    if let Some(at) = differs {
        panic!("{what}: {:#?} a new one: {}", &ours[at.saturating_sub(3)..=at], new[at]);
    }
    assert_eq!(ours.len(), new.len(), "{what}");
}

/// For each kind, two sets of options. Every option that a change of the qdisc may change differs
/// between the two sets.
const KINDS: &[[&str; 2]] = &[
    ["pfifo limit 60", "pfifo limit 40"],
    ["bfifo limit 60kb", "bfifo limit 40kb"],
    ["pfifo_head_drop limit 60", "pfifo_head_drop limit 40"],
    ["pfifo_fast txqueuelen 50", "pfifo_fast txqueuelen 20"],
    ["prio bands 3", "prio bands 5 priomap 4 3 2 1 0 0 0 0 0 0 0 0 0 0 0 1"],
    ["multiq bands 4", "multiq bands 7"],
    ["mq queues 4", "mq queues 3"],
    ["tbf rate 8mbit burst 9kb limit 99kb", "tbf rate 5mbit burst 8kb limit 50kb"],
    [
        "cbs idleslope 8000 sendslope -2000 hicredit 459 locredit -1071",
        "cbs idleslope 5000 sendslope -5000 hicredit 900 locredit -2000",
    ],
    ["netem delay 20ms limit 100", "netem delay 10ms limit 40 rate 5mbit"],
    ["ets bands 4 strict 2", "ets bands 4 quanta 1000 2000 3000 4000"],
    ["ets bands 4 quanta 1000 2000 3000 4000", "ets bands 3 strict 1 quanta 3000 600"],
    [
        "choke limit 100 min 60 max 90 bandwidth 10mbit",
        "choke limit 70 min 10 max 40 bandwidth 5mbit probability 0.1 ecn",
    ],
    [
        "red limit 100kb min 50kb max 90kb avpkt 1000 burst 60 bandwidth 10mbit",
        "red limit 80kb min 10kb max 40kb avpkt 1000 burst 15 bandwidth 5mbit probability 0.1 ecn",
    ],
    ["codel target 1ms interval 20ms", "codel target 5ms interval 50ms ecn limit 60"],
    [
        "fq_codel target 1ms interval 20ms quantum 1000",
        "fq_codel target 5ms interval 50ms quantum 300 limit 60 memory_limit 40kb ce_threshold 9ms",
    ],
    ["fq limit 100", "fq limit 60 quantum 700 initial_quantum 900 flow_limit 20 maxrate 1mbit"],
    ["pie limit 100", "pie limit 60 target 5ms tupdate 8ms alpha 8 beta 30 ecn bytemode"],
    ["fq_pie limit 100", "fq_pie limit 60 target 5ms tupdate 8ms alpha 8 beta 30 ecn quantum 700"],
    ["skbprio limit 90", "skbprio limit 40"],
    [
        "dualpi2 limit 90",
        "dualpi2 limit 60 target 5ms alpha 1 beta 9 coupling_factor 3 \
         step_thresh 2ms classic_protection 30% any_ect drop_enqueue overflow",
    ],
    ["cake besteffort rtt 100ms", "cake besteffort rtt 10ms bandwidth 5mbit memlimit 40kb"],
    ["cake diffserv4 bandwidth 3mbit", "cake diffserv3 bandwidth 4mbit overhead 30 mpu 200"],
    ["sfq limit 60 quantum 1500", "sfq limit 40 quantum 2000 depth 20 headdrop"],
];

#[test]
fn an_idle_qdisc_that_changes_is_as_new() {
    // The options of `sfq` cannot change after its creation.
    for [before, after] in KINDS.iter().filter(|kind| !kind[0].starts_with("sfq")) {
        let mut changed = tree(before);
        changed.apply(START, &format!("qdisc change dev e root handle 1: {after}")).expect(after);
        // `cake` starts its estimate of the capacity from the first rate that it was given, so its
        // counters differ from those of a new `cake`.
        let stats = !after.starts_with("cake");
        same(after, &run(&mut changed, START, stats), &run(&mut tree(after), START, stats));
    }
}

#[test]
fn a_qdisc_that_is_reset_is_as_new() {
    // Skip `cake`, because its flows keep their positions in the round robin when it is reset.
    for line in KINDS.as_flattened().iter().filter(|line| !line.starts_with("cake")) {
        let mut reset = tree(line);
        let mut numbers = Numbers(5);
        for cookie in 0..9 {
            let _ = reset.enqueue(START, packet(&mut numbers, START, cookie));
        }
        let _ = reset.dequeue(START);
        reset.reset(START);
        drop(reset.drops());
        assert_eq!((reset.backlog().packets, reset.backlog().bytes), (0, 0), "{line}");
        let begin = START.after(1_000_000);
        // Do not compare counters: as in Linux, most kinds go on counting after a reset.
        same(line, &run(&mut reset, begin, false), &run(&mut tree(line), begin, false));
    }
}

/// Each entry has a root qdisc, the first options of its class 1:1, the options to which class 1:1
/// is changed, and the options of class 1:2, which does not change.
const CLASSES: &[[&str; 4]] = &[
    ["drr", "drr quantum 500", "drr quantum 3000", "drr quantum 1000"],
    ["qfq", "qfq weight 1 maxpkt 1600", "qfq weight 9 maxpkt 2000", "qfq weight 2"],
    [
        "htb r2q 10",
        "htb rate 1mbit ceil 2mbit burst 4000 cburst 5000 prio 0 quantum 1600",
        "htb rate 2mbit ceil 5mbit burst 9000 cburst 3000 prio 3 quantum 4000",
        "htb rate 1mbit ceil 4mbit burst 4000 cburst 4000 prio 2 quantum 1600",
    ],
    [
        "hfsc",
        "hfsc sc rate 1mbit ul rate 2mbit",
        "hfsc sc m1 4mbit d 20ms m2 2mbit ul rate 3mbit",
        "hfsc sc rate 1mbit",
    ],
    ["ets bands 2 quanta 600 900", "ets quantum 600", "ets quantum 3000", ""],
];

#[test]
fn a_class_that_changes_is_as_new() {
    for [root, before, after, other] in CLASSES {
        let make = |first: &str| {
            let mut setup = Setup::default();
            let mut apply = |line: &str| setup.apply(line).expect(line);
            apply(&format!("qdisc add dev e root handle 1: {root}"));
            if other.is_empty() {
                apply(&format!("class change dev e classid 1:1 {first}"));
            } else {
                apply(&format!("class add dev e parent 1: classid 1:1 {first}"));
                apply(&format!("class add dev e parent 1: classid 1:2 {other}"));
            }
            Tree::of(&setup, 1_514, 7).expect("a root")
        };
        let mut changed = make(before);
        changed.apply(START, &format!("class change dev e classid 1:1 {after}")).expect(after);
        let ours = run_with(&mut changed, START, true, of_two_classes);
        let never = run_with(&mut make(before), START, true, of_two_classes);
        assert_ne!(ours, never, "{after}");
        same(after, &ours, &run_with(&mut make(after), START, true, of_two_classes));
    }
}

/// Packets that a reset drops no longer count towards the limit on memory.
#[test]
fn a_reset_gives_memory_back() {
    for line in [
        "cake besteffort flows memlimit 20kb",
        "fq_codel memory_limit 20kb",
        "fq_pie memory_limit 20kb",
        "dualpi2 memlimit 20000",
        "bfifo limit 20kb",
        "sfq limit 20",
        "fq limit 20",
    ] {
        let mut tree = tree(line);
        let mut fill = || {
            let taken = (0..100).take_while(|cookie| {
                let mut pkt = Packet::new(1_000);
                (pkt.cookie, pkt.flow, pkt.enqueued_ns) = (*cookie, *cookie, START.0);
                let _ = tree.enqueue(START, pkt);
                tree.drops().is_empty()
            });
            let taken = taken.count();
            tree.reset(START);
            drop(tree.drops());
            taken
        };
        let first = fill();
        assert!((5..=30).contains(&first), "{line}: {first}");
        assert_eq!(fill(), first, "{line}");
    }
}
