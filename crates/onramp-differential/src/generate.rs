//! Generates random test cases, each from a number (its seed).

mod filters;
mod load;
mod tree;

use crate::draw::Draw;
use crate::kinds::Kind;
use crate::plan::{Line, Opt, Plan};

/// Limits on the size of a generated case.
#[derive(Debug)]
pub struct Size {
    /// The smallest and the largest rate of the bottleneck link, in bits per second.
    rates: (u64, u64),
    /// The smallest and the largest number of packets for which the generator plans a case.
    packets: (u64, u64),
    /// The largest number of packets in a case. A case may have more packets than planned, because
    /// of bursts or many flows.
    rows_max: usize,
    /// The largest number of flows.
    flows_max: u64,
}

impl Size {
    /// The limits for cases that run on a real kernel and on Onramp, to compare the results.
    pub const WHOLE: Self = Self {
        rates: (1_000_000, 60_000_000),
        packets: (300, 2_500),
        rows_max: 5_000,
        flows_max: 600,
    };
    /// The limits for cases that are kept as regression tests. Their rates are low, so that a few
    /// packets are enough to reach the limits of the qdiscs.
    pub const SMALL: Self =
        Self { rates: (300_000, 4_000_000), packets: (60, 220), rows_max: 250, flows_max: 90 };
}

/// Makes the case number `seed`, whose root qdisc is of kind `root`.
#[must_use]
pub fn plan(seed: u64, root: &'static Kind) -> Plan {
    sized(seed, root, &Size::WHOLE)
}

/// Makes the case number `seed` within the bounds of `size`. The same seed gives a different case
/// for a different size.
#[must_use]
pub fn sized(seed: u64, root: &'static Kind, size: &Size) -> Plan {
    let Begun { mut plan, mut draw, rate, changing } = begun(seed, root, size);
    if changing {
        tree::changes(&mut plan, &mut draw, rate);
    }
    plan
}

/// Makes the same case as [`plan`], but without the `tc` lines that change the tree during the run.
/// This function is faster than [`plan`], because choosing the times of those changes means
/// simulating our own qdiscs.
#[must_use]
pub fn still(seed: u64, root: &'static Kind) -> Plan {
    begun(seed, root, &Size::WHOLE).plan
}

/// A generated case, before the changes that are made during the run are added.
struct Begun {
    plan: Plan,
    /// The random generator, after the choices made so far.
    draw: Draw,
    /// The rate of the bottleneck link in bits per second.
    rate: u64,
    /// Whether `tc` lines are to change the tree during the run.
    changing: bool,
}

fn begun(seed: u64, root: &'static Kind, size: &Size) -> Begun {
    let mut draw = Draw::new(seed);
    let (least, most) = size.rates;
    let rate = if root.id == "cbs" { 10_000_000 } else { draw.spread(least, most) };
    // A case with `plug` always has changes during the run, because only a change releases its
    // packets. Of the cases of other kinds, a quarter has changes.
    let changing = root.id == "plug" || (root.changes && draw.likely(25));
    let mut tree = tree::Tree::new(&mut draw, rate, changing);
    tree.root(root);
    let tree::Tree { lines, classes, majors, .. } = tree;
    let shaped = ["tbf", "htb", "hfsc", "cake", "netem", "fq"].contains(&root.id);
    let link_bps = match (root.id, draw.between(0, 9)) {
        ("cbs", _) => rate,
        (_, 0..=3) if shaped => 0,
        (_, 4..=5) if shaped => rate * draw.between(2, 10),
        (_, 0) => 0,
        _ => rate,
    };
    let mut plan = Plan {
        seed,
        link_bps,
        bypass: draw.likely(25),
        tai: root.id == "etf",
        lines,
        changes: Vec::new(),
        rows: Vec::new(),
        pacing: Default::default(),
    };
    load::load(&mut plan, &mut draw, size, rate, &classes);
    filters::filters(&mut plan, &mut draw, &majors);
    // With random choices of its own, so that everything else of a case follows from its number as
    // it does in a case without a `clsact`.
    filters::front(&mut plan, &mut Draw::new(!seed));
    Begun { plan, draw, rate, changing }
}

/// Makes a `tc` line for the device `dut0`, the device of the kernel under test.
fn line(object: &str, verb: &str, place: &str, kind: &'static Kind, options: Vec<Opt>) -> Line {
    let head = format!("tc {object} {verb} dev dut0 {place} {}", kind.id);
    Line { head, kind: kind.id, compared: kind.compared, options }
}
