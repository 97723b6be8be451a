//! Compares what we did with what the kernel did.

use std::collections::BTreeMap;

use super::{Case, Event, Outcome, machine};

/// How much has to be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sequence, times, marks and drops.
    Exact,
    /// Totals and distributions: the kernel drew random numbers, or a seed for hashes.
    Distribution,
}

/// Part of a total by which distributions may differ.
const TOTAL_OFF: f64 = 0.05;
/// The same of the median sojourn, and of the 95th percentile.
const MEDIAN_OFF: f64 = 0.10;
const P95_OFF: f64 = 0.20;
/// Packets by which totals may differ in any case: a few of few mean nothing.
const PACKETS_OFF: f64 = 3.0;

/// Seeds over which a mean is taken, where chance has a part in what happens.
const SEEDS: u64 = 16;

/// A verdict on a case.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Packets of the workload.
    pub packets: usize,
    /// What had to be equal.
    pub mode: Mode,
    /// Whether it was.
    pub pass: bool,
    /// The same packets left, in the same order.
    pub order: bool,
    /// The same packets died at the same times, for the same reasons.
    pub drops: bool,
    /// The same packets were marked.
    pub marks: bool,
    /// Nanoseconds; none, if no packet left here and there.
    pub worst_time_difference_ns: Option<u64>,
    /// Packets that left and died here.
    pub ours: (usize, usize),
    /// Packets that left and died there.
    pub theirs: (usize, usize),
    /// Where it first differs, for people; of distributions, all that differs.
    pub differences: Vec<String>,
}

pub(super) fn mode(case: &Case) -> Mode {
    if is_random(case) { Mode::Distribution } else { Mode::Exact }
}

pub(super) fn compare(case: &Case) -> Comparison {
    let (ours, theirs) = (&machine::replay(case, 1).0, &case.recorded);
    let order = ours.dequeues.iter().map(|e| e.packet).eq(theirs.dequeues.iter().map(|e| e.packet));
    let drops = ours.drops.len() == theirs.drops.len()
        && ours.drops.iter().zip(&theirs.drops).all(|(ours, theirs)| same_drop(ours, theirs));
    let left: BTreeMap<_, _> = numbered(&ours.dequeues).into_iter().collect();
    let there = numbered(&theirs.dequeues);
    let both = || there.iter().filter_map(|(key, event)| Some((*left.get(key)?, *event)));
    let marks = both().all(|(ours, theirs)| ours.ecn == theirs.ecn);
    let worst = both().map(|(ours, theirs)| ours.time_ns.abs_diff(theirs.time_ns)).max();
    let exact = order && drops && marks && worst.unwrap_or(0) == 0;
    let mode = mode(case);
    let differences = match mode {
        _ if exact => Vec::new(),
        Mode::Exact => first_differences(ours, theirs),
        Mode::Distribution => distributions(case, theirs),
    };
    Comparison {
        packets: case.arrivals.len(),
        mode,
        pass: differences.is_empty(),
        order,
        drops,
        marks,
        worst_time_difference_ns: worst,
        ours: (ours.dequeues.len(), ours.drops.len()),
        theirs: (theirs.dequeues.len(), theirs.drops.len()),
        differences,
    }
}

/// With the number of its packet, and of its duplicate.
fn numbered(events: &[Event]) -> Vec<((usize, u32), &Event)> {
    let mut seen = BTreeMap::new();
    let mut number = |packet| {
        let next = seen.entry(packet).or_insert(0);
        *next += 1;
        *next
    };
    events.iter().map(|event| ((event.packet, number(event.packet)), event)).collect()
}

fn same_drop(ours: &Event, theirs: &Event) -> bool {
    let reasons = match (ours.reason, theirs.reason) {
        (Some(ours), Some(theirs)) => ours.is_like(theirs),
        (ours, theirs) => ours == theirs,
    };
    (ours.time_ns, ours.packet) == (theirs.time_ns, theirs.packet) && reasons
}

/// Whether the tree draws random numbers, or a seed for its hashes.
fn is_random(case: &Case) -> bool {
    case.setup.specs().any(|spec| match spec.kind().id {
        "pie" | "fq_pie" | "red" | "choke" | "cake" | "dualpi2" => true,
        // RED on each flow, and hashing anew.
        "sfq" => ["redflowlimit", "perturb"].iter().any(|key| spec.values(0).number(key) > 0),
        "netem" => {
            let values = spec.values(0);
            let chance = ["loss", "duplicate", "corrupt", "reorder", "slot"];
            // The same seed draws the same numbers.
            !values.is_given("seed")
                && (values.list("delay").len() > 1 || chance.iter().any(|key| values.is_given(key)))
        }
        _ => false,
    })
}

fn first_differences(ours: &Outcome, theirs: &Outcome) -> Vec<String> {
    let mut told = Vec::new();
    let same = |a: &Event, b: &Event| a.reason.is_none() && a == b || same_drop(a, b);
    for (what, ours, theirs) in
        [("dequeue", &ours.dequeues, &theirs.dequeues), ("drop", &ours.drops, &theirs.drops)]
    {
        let at = ours.iter().zip(theirs).take_while(|(a, b)| same(a, b)).count();
        if at < ours.len().max(theirs.len()) {
            told.push(format!(
                "{what} {at} of {} and {}: ours {}, Linux {}",
                ours.len(),
                theirs.len(),
                words(ours.get(at)),
                words(theirs.get(at)),
            ));
        }
    }
    if told.is_empty() {
        told.push("packets are marked differently".into());
    }
    told
}

fn words(event: Option<&Event>) -> String {
    let Some(event) = event else { return "none".into() };
    let reason = event.reason.map(|reason| format!(" {reason:?}")).unwrap_or_default();
    let time_ns = event.time_ns - super::START_NS;
    format!("packet {} at {time_ns} ns, ecn {}{reason}", event.packet, event.ecn)
}

/// All totals and percentiles in which the kernel's run is none that ours might have been: it lies
/// further from the mean over our seeds than it may, and than two of their standard deviations.
fn distributions(case: &Case, theirs: &Outcome) -> Vec<String> {
    let runs: Vec<Totals> =
        (1..=SEEDS).map(|seed| Totals::of(case, &machine::replay(case, seed).0)).collect();
    let theirs = Totals::of(case, theirs);
    let mut told = Vec::new();
    let mut compare = |what: &str, of: &dyn Fn(&Totals) -> f64, off: f64, least: f64| {
        let (mean, deviation) = spread(runs.iter().map(of));
        let theirs = of(&theirs);
        if (mean - theirs).abs() > (theirs * off).max(2.0 * deviation).max(least) {
            told.push(format!("{what}: ours {mean:.0} (+-{deviation:.0}), Linux {theirs:.0}"));
        }
    };
    compare("drops", &|totals| totals.drops, TOTAL_OFF, PACKETS_OFF);
    compare("marks", &|totals| totals.marks, TOTAL_OFF, PACKETS_OFF);
    for flow in theirs.flow_bytes.keys().copied() {
        let what = format!("bytes of flow {flow}");
        compare(&what, &|totals| totals.bytes(flow), TOTAL_OFF, PACKETS_OFF * 1514.0);
    }
    compare("median sojourn, ns", &|totals| totals.median_ns, MEDIAN_OFF, 0.0);
    compare("95th percentile of sojourn, ns", &|totals| totals.p95_ns, P95_OFF, 0.0);
    told
}

/// Mean and standard deviation.
#[expect(clippy::cast_precision_loss, reason = "a few values")]
fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

#[derive(Default)]
struct Totals {
    drops: f64,
    marks: f64,
    flow_bytes: BTreeMap<u64, f64>,
    median_ns: f64,
    p95_ns: f64,
}

impl Totals {
    /// The bytes of a flow.
    fn bytes(&self, flow: u64) -> f64 {
        self.flow_bytes.get(&flow).copied().unwrap_or(0.0)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a short run")]
    fn of(case: &Case, outcome: &Outcome) -> Self {
        let mut totals = Self { drops: outcome.drops.len() as f64, ..Self::default() };
        let mut sojourns = Vec::with_capacity(outcome.dequeues.len());
        for event in &outcome.dequeues {
            let Some(arrival) = case.arrivals.get(event.packet) else { continue };
            totals.marks += f64::from(u8::from(event.ecn != arrival.ecn & 3));
            *totals.flow_bytes.entry(arrival.flow).or_default() += f64::from(arrival.len);
            sojourns.push(event.time_ns.saturating_sub(arrival.time_ns));
        }
        sojourns.sort_unstable();
        let at =
            |part: usize| sojourns.get(sojourns.len() * part / 100).map_or(0.0, |ns| *ns as f64);
        (totals.median_ns, totals.p95_ns) = (at(50), at(95));
        totals
    }
}
