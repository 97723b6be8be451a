//! Makes plans of cases, each from a number.

mod filters;
mod load;
mod tree;

use crate::draw::Draw;
use crate::kinds::Kind;
use crate::plan::{Line, Opt, Plan};

/// How large cases are.
#[derive(Debug)]
pub struct Size {
    /// Bits per second of bottlenecks, at least and at most.
    rates: (u64, u64),
    /// Packets, at least and at most.
    packets: (u64, u64),
    /// Packets at most, where flows do not keep to it.
    rows_max: usize,
    /// Flows at most.
    flows_max: u64,
}

impl Size {
    /// Cases that are compared.
    pub const WHOLE: Self = Self {
        rates: (1_000_000, 60_000_000),
        packets: (300, 2_500),
        rows_max: 5_000,
        flows_max: 600,
    };
    /// Cases that are kept: slow enough for so few packets to meet limits.
    pub const SMALL: Self =
        Self { rates: (300_000, 4_000_000), packets: (60, 220), rows_max: 250, flows_max: 90 };
}

/// Makes the case of `seed`, with a root of this kind.
#[must_use]
pub fn plan(seed: u64, root: &'static Kind) -> Plan {
    sized(seed, root, &Size::WHOLE)
}

/// Another of `seed`, of this size.
#[must_use]
pub fn sized(seed: u64, root: &'static Kind, size: &Size) -> Plan {
    let Begun { mut plan, mut draw, rate, changing } = begun(seed, root, size);
    if changing {
        tree::changes(&mut plan, &mut draw, rate);
    }
    plan
}

/// The same without changes under way, for whose sake our qdiscs are played.
#[must_use]
pub fn still(seed: u64, root: &'static Kind) -> Plan {
    begun(seed, root, &Size::WHOLE).plan
}

/// A case up to its changes.
struct Begun {
    plan: Plan,
    /// The chance that is left.
    draw: Draw,
    /// Bits per second of the bottleneck.
    rate: u64,
    /// Whether lines are to change it.
    changing: bool,
}

fn begun(seed: u64, root: &'static Kind, size: &Size) -> Begun {
    let mut draw = Draw::new(seed);
    let (least, most) = size.rates;
    let rate = if root.id == "cbs" { 10_000_000 } else { draw.spread(least, most) };
    // At one instant, plug is let go; others may change.
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
    Begun { plan, draw, rate, changing }
}

/// A line of tc for the kernel's device.
fn line(object: &str, verb: &str, place: &str, kind: &'static Kind, options: Vec<Opt>) -> Line {
    let head = format!("tc {object} {verb} dev dut0 {place} {}", kind.id);
    Line { head, kind: kind.id, compared: kind.compared, options }
}
