//! Tests random trees that are three levels deep and mix all kinds of qdiscs, with and without
//! classes.

use onramp_core::Spec;
use onramp_core::qdisc::{Backlog, ClassKind, KINDS, Kind};
use onramp_core::{Setup, Tree};
use proptest::prelude::*;

use crate::{Books, MTU, Op, conserves_work, must_be_given, ops};

/// Packets in these tests have flows, marks and priorities below this number.
const MARKS: u32 = 8;

/// A node of a tree. The number selects the kind of the node's qdisc.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Leaf(usize),
    Inner(usize, Vec<Self>),
}

pub(crate) fn places() -> impl Strategy<Value = Place> {
    let leaf = any::<usize>().prop_map(Place::Leaf);
    leaf.prop_recursive(3, 24, 4, |below| {
        (any::<usize>(), prop::collection::vec(below, 1..5))
            .prop_map(|(kind, below)| Place::Inner(kind, below))
    })
}

/// Returns the `tc` options of all qdiscs without classes that a tree may have as leaves.
fn leaves() -> Vec<String> {
    let kinds = KINDS.iter().filter(|kind| matches!(kind.classes, ClassKind::None));
    let bare = |kind: &Kind| match kind.id {
        "etf" => "etf clockid TAI".to_owned(),
        id => id.to_owned(),
    };
    let mut lines: Vec<String> = kinds.map(bare).collect();
    lines.retain(|line| line.parse::<Spec>().is_ok());
    for line in ["pfifo limit 3", "bfifo limit 4kb", "pfifo_head_drop limit 3", "skbprio limit 3"] {
        lines.push(line.to_owned());
    }
    // Add kinds that the list above lacks: `choke`, which has required options, and `plug`, which
    // would otherwise never release a packet.
    lines.push(format!("choke{}", must_be_given("choke")));
    lines.push("plug limit 9kb release_indefinite".to_owned());
    // Add a qdisc that makes packets wait and keeps the packets of a flow in order.
    lines.push("fq maxrate 20mbit limit 40".to_owned());
    lines
}

/// Returns the kinds with classes that may stand at this level of a tree.
fn inner_kinds(level: u32) -> Vec<&'static Kind> {
    let has_classes = |kind: &&Kind| !matches!(kind.classes, ClassKind::None);
    KINDS
        .iter()
        .filter(has_classes)
        .filter(|kind| level == 0 || !kind.quirks.stands_at_root)
        .collect()
}

/// Returns the kind and options of a qdisc that has this number of classes.
fn with_classes(kind: &Kind, classes: usize) -> String {
    match kind.params.iter().find(|param| param.key == "bands") {
        Some(bands) if matches!(kind.classes, ClassKind::Fixed(_)) => {
            // The default `priomap` of `prio` needs three bands.
            format!("{} bands {}", kind.id, bands.min.max(classes as u64).max(3))
        }
        _ => format!("{}{}", kind.id, must_be_given(kind.id)),
    }
}

/// Returns the options of the `n`-th class of a qdisc. Returns an empty string if the kind's
/// defaults will do.
fn class_options(kind: &Kind, n: usize) -> String {
    match kind.id {
        "drr" => format!("quantum {}", 300 << n),
        "htb" => format!("rate {}mbit ceil 20mbit burst 3kb cburst 3kb quantum 1514", 1 + n),
        "hfsc" => match n % 4 {
            0 => "sc umax 1500 dmax 10ms rate 1mbit".into(),
            1 => "ls rate 5mbit ul rate 8mbit".into(),
            2 => "rt m1 2mbit d 10ms m2 500kbit".into(),
            _ => "ls m1 1mbit d 20ms m2 3mbit ul rate 4mbit".into(),
        },
        "qfq" => format!("weight {} maxpkt {}", 1 + n * n, 600 << (n % 2)),
        _ => String::new(),
    }
}

/// Writes a tree as `tc` lines.
pub(crate) struct Scribe {
    pub(crate) lines: Vec<String>,
    pub(crate) handle: u16,
}

impl Scribe {
    pub(crate) fn qdisc(&mut self, parent: &str, level: u32, place: &Place) {
        self.handle += 1;
        let handle = self.handle;
        let mut say = |line: String| self.lines.push(format!("tc {line}"));
        match place {
            Place::Leaf(number) => {
                let leaves = leaves();
                let leaf = &leaves[number % leaves.len()];
                say(format!("qdisc add dev e {parent} handle {handle:x}: {leaf}"));
            }
            Place::Inner(number, below) => {
                let kinds = inner_kinds(level);
                let kind = kinds[number % kinds.len()];
                // Whether the qdisc needs filters that choose a class for each packet. A qdisc with
                // a single class needs none, and filters do not choose between transmit queues.
                let chooses = kind.params.iter().any(|param| param.key == "bands")
                    || matches!(kind.classes, ClassKind::Added { .. });
                let several = chooses || kind.quirks.stands_at_root;
                let below = if several { &below[..] } else { &below[..1] };
                let spec = with_classes(kind, below.len());
                say(format!("qdisc add dev e {parent} handle {handle:x}: {spec}"));
                for n in 0..below.len() {
                    let class = format!("{handle:x}:{:x}", n + 1);
                    if matches!(kind.classes, ClassKind::Added { .. }) {
                        let options = class_options(kind, n);
                        say(format!(
                            "class add dev e parent {handle:x}: classid {class} {} {options}",
                            kind.id
                        ));
                    }
                    // The first and the last mark get no filter, so that some packets match no
                    // filter.
                    for mark in
                        (1..MARKS - 1).filter(|mark| chooses && mark_goes(*mark, level, below) == n)
                    {
                        say(format!(
                            "filter add dev e parent {handle:x}: handle {mark} fw classid {class}"
                        ));
                    }
                }
                for (n, place) in below.iter().enumerate() {
                    let parent = format!("parent {handle:x}:{:x}", n + 1);
                    self.qdisc(&parent, level + 1, place);
                }
            }
        }
    }
}

/// Returns the index of the child to which packets with this mark go.
fn mark_goes(mark: u32, level: u32, below: &[Place]) -> usize {
    (mark as usize >> level) % below.len()
}

impl Books {
    fn of(lines: &[String]) -> Self {
        let mut setup = Setup::default();
        for line in lines {
            setup.apply(line).unwrap_or_else(|error| panic!("`{line}`: {error}"));
        }
        let most = Backlog { packets: u32::MAX, bytes: u64::MAX };
        let tree = Tree::of(&setup, MTU, 1).expect("there is a root");
        let false_hopes = 2 * u32::try_from(setup.specs().count()).expect("few");
        let plugged = setup.specs().any(|spec| spec.kind().id == "plug");
        let plain = Self::new(&Spec::new(&KINDS[0]));
        let conserves_work = setup.specs().all(conserves_work);
        Self { tree, most, timed: false, false_hopes, plugged, conserves_work, ..plain }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_tree_keeps_the_contract(place in places(), ops in ops()) {
        let mut scribe = Scribe { lines: Vec::new(), handle: 0 };
        scribe.qdisc("root", 0, &place);
        let run = || -> Result<_, TestCaseError> {
            let mut books = Books::of(&scribe.lines);
            for op in &ops {
                books.run(op)?;
            }
            books.drain()?;
            books.run(&Op::Reset)?;
            prop_assert_eq!(books.tree.backlog(), Backlog::default());
            Ok(books.log)
        };
        let fail = |e| TestCaseError::fail(format!("{:#?}: {e}", scribe.lines));
        let log = run().map_err(fail)?;
        prop_assert_eq!(log, run().map_err(fail)?, "{:?}: same calls, other packets", scribe.lines);
    }
}
