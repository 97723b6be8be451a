//! The default methods of the trait `Qdisc`, and the table of kinds.

use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, ClassKind, Cx, Dequeue, KINDS, Kind, Peek, Qdisc, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{Packet, PacketList};

const NOW: Instant = Instant(20_000_000_000);

/// A qdisc that implements only the required methods.
#[derive(Debug, Default)]
struct Least(PacketList);

impl Qdisc for Least {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.0.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        self.0.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        self.0.front().map_or(Peek::Empty, |pkt| Peek::Ready(pkt.len))
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.0.len(), bytes: self.0.bytes() }
    }

    fn reset(&mut self, _cx: &mut Cx<'_>) {
        self.0.by_ref().for_each(drop);
    }
}

#[test]
fn a_qdisc_that_says_nothing_of_itself() {
    let mut qdisc = Least::default();
    assert!(qdisc.accepts(&Packet::new(60)), "it takes all");
    assert!(!qdisc.can_bypass(), "nothing passes it by");
    assert_eq!((qdisc.overlimits(), qdisc.uncounted()), (0, 0));
    assert!(qdisc.classes().is_none() && qdisc.filters(0).is_none());
    let (mut stats, mut flows) = (0, 0);
    qdisc.stats(&mut |_, _| stats += 1);
    qdisc.flows(&mut |_| flows += 1);
    assert_eq!((stats, flows), (0, 0));
    let mut drops = PacketList::new();
    let mut cx = Cx::new(NOW, &mut drops);
    assert_eq!(qdisc.keep_passing(Packet::new(60), &mut cx), Verdict::Queued);
    assert_eq!(qdisc.backlog().packets, 1);
    // This qdisc has no parameters, so `change` refuses any that are given, and accepts a change
    // without parameters.
    let with: Spec = "pfifo limit 9".parse().expect("a qdisc");
    let without: Spec = "blackhole".parse().expect("a qdisc");
    assert!(!qdisc.change(&with.values(1_514), &mut cx));
    assert!(qdisc.change(&without.values(1_514), &mut cx));
}

/// The help text of a kind has a line for the kind and a line for each option. The lines of options
/// are indented by two spaces.
#[test]
fn help_names_every_option() {
    for kind in KINDS {
        let help = kind.help();
        let mut lines = help.lines();
        assert_eq!(lines.next(), Some(&*format!("{}: {}", kind.id, kind.about)));
        assert!(help.ends_with('\n'), "{}", kind.id);
        is_a_table(kind, lines, kind.params.iter().map(|param| param.key));
        let help = kind.class_help();
        assert!(help.ends_with('\n'), "{}", kind.id);
        if let ClassKind::Added { params, .. } = kind.classes {
            let mut lines = help.lines();
            assert_eq!(lines.next(), Some(&*format!("classes of {}:", kind.id)));
            is_a_table(kind, lines, params.iter().map(|param| param.key));
        } else {
            assert_eq!(help, format!("Qdisc \"{}\" is classless.\n", kind.id));
        }
    }
}

fn is_a_table<'a>(
    kind: &Kind,
    lines: impl Iterator<Item = &'a str>,
    keys: impl Iterator<Item = &'a str>,
) {
    let lines: Vec<_> = lines.collect();
    let keys: Vec<_> = keys.collect();
    assert_eq!(lines.len(), keys.len(), "{}", kind.id);
    for line in lines {
        let text = line.strip_prefix("  ").unwrap_or_else(|| panic!("`{line}` is not set in"));
        assert!(!text.starts_with(' ') && text.ends_with(')'), "{line}");
    }
}

/// If packets wait in several bands of a `prio`, it announces the earliest of the bands' times,
/// both when it is dequeued and when its parent peeks at it.
#[test]
fn the_earliest_of_several_says_when() {
    for (first, second) in [(5, 3), (3, 5)] {
        let below = |parent: &str| {
            [
                format!("qdisc add dev x {parent} handle 2: prio"),
                format!("qdisc add dev x parent 2:1 handle 3: netem delay {first}ms"),
                format!("qdisc add dev x parent 2:2 handle 4: netem delay {second}ms"),
            ]
        };
        let tbf = "qdisc add dev x root handle 1: tbf rate 1gbit burst 9kb limit 90kb".to_owned();
        let asked = below("root").to_vec();
        let looked_at = [vec![tbf], below("parent 1:1").to_vec()].concat();
        for lines in [asked, looked_at] {
            let mut setup = Setup::default();
            lines.iter().for_each(|line| setup.apply(line).expect(line));
            let mut tree = Tree::of(&setup, 1_514, 0).expect("a root");
            // Priority 6 goes to the first band, priority 0 to the second.
            for priority in [6, 0] {
                let mut pkt = Packet::new(100);
                pkt.priority = priority;
                assert_eq!(tree.enqueue(NOW, pkt), Verdict::Queued);
            }
            let Dequeue::NotBefore(then) = tree.dequeue(NOW) else { panic!("both wait") };
            assert_eq!(then, NOW.after(3_000_000), "{lines:?}");
        }
    }
}
