//! Compares what Onramp did with the packets of a case with what the kernel did.

use std::collections::BTreeMap;

use super::{Case, Change, Event, Outcome, Reason, Totals, machine};

/// How exactly Onramp's run must agree with the kernel's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The packets must leave in the same order at the same times, and the same packets must be
    /// marked and dropped.
    Exact,
    /// Only totals and distributions must be similar, because the kernel drew random numbers, or a
    /// random seed for hashes.
    Distribution,
}

/// Largest allowed difference between the totals of the two runs, as a share of the kernel's total.
const TOTAL_OFF: f64 = 0.05;
/// Largest allowed difference between the medians of the sojourn time, as a share of the kernel's
/// median.
const MEDIAN_OFF: f64 = 0.10;
/// Largest allowed difference between the 95th percentiles of the sojourn time, as a share of the
/// kernel's percentile.
const P95_OFF: f64 = 0.20;
/// Number of packets by which totals may differ in any case: if only few packets were counted, a
/// difference of a few packets means nothing.
const PACKETS_OFF: f64 = 3.0;

/// Number of seeds with which Onramp plays a case whose outcome is random. The mean over these runs
/// is compared.
const SEEDS: u64 = 16;

/// The result of comparing Onramp's run of a case with the kernel's run.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Number of packets that came to the tree of qdiscs.
    pub packets: usize,
    /// How exactly the runs had to agree.
    pub mode: Mode,
    /// Whether the runs agreed as exactly as `mode` demands.
    pub pass: bool,
    /// Whether the same packets left in the same order in the two runs.
    pub order: bool,
    /// Whether the same packets were dropped in the two runs, at the same times and for the same
    /// reasons.
    pub drops: bool,
    /// Whether the same packets were marked in the two runs.
    pub marks: bool,
    /// The greatest difference between the times at which the same packet left in the two runs, in
    /// nanoseconds; `None` if no packet left in both runs.
    pub worst_time_difference_ns: Option<u64>,
    /// Number of packets that were sent, and number that were dropped, in Onramp's run.
    pub ours: (usize, usize),
    /// Number of packets that were sent, and number that were dropped, in the kernel's run.
    pub theirs: (usize, usize),
    /// What differs, as text for people: the first differences, or all differing totals if the runs
    /// are compared by distributions.
    pub differences: Vec<String>,
}

pub(super) fn mode(case: &Case) -> Mode {
    if is_random(case) { Mode::Distribution } else { Mode::Exact }
}

pub(super) fn compare(case: &Case) -> Comparison {
    let theirs = &case.recorded;
    let differs = |guess: &Vec<u64>| {
        let ours = machine::replay(case, 1, guess).outcome;
        let differences = first_differences(case, &ours, theirs);
        (ours, differences)
    };
    let mut tries: Vec<_> = machine::guesses(case).iter().map(differs).collect();
    let best = tries.iter().position(|(_, differences)| differences.is_empty()).unwrap_or(0);
    let (ours, differences) = tries.swap_remove(best);
    let order = ours.dequeues.iter().map(|e| e.packet).eq(theirs.dequeues.iter().map(|e| e.packet));
    let drops = same_drops(case, &ours, theirs);
    let left: BTreeMap<_, _> = numbered(&ours.dequeues).into_iter().collect();
    let there = numbered(&theirs.dequeues);
    let both = || there.iter().filter_map(|(key, event)| Some((*left.get(key)?, *event)));
    let marks = both().all(|(ours, theirs)| ours.ecn == theirs.ecn);
    let worst = both().map(|(ours, theirs)| ours.time_ns.abs_diff(theirs.time_ns)).max();
    let mode = mode(case);
    let differences = match mode {
        Mode::Distribution if !differences.is_empty() => distributions(case, theirs),
        _ => differences,
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

fn same_drops(case: &Case, ours: &Outcome, theirs: &Outcome) -> bool {
    let (ours, theirs) = (without_changes(case, ours), without_changes(case, theirs));
    ours.len() == theirs.len()
        && ours.iter().zip(&theirs).all(|(ours, theirs)| same_drop(ours, theirs))
}

/// Returns each event with a key: the number of its packet, and a count that tells the packet from
/// its duplicates.
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

/// Whether a qdisc in the tree draws random numbers, or a random seed for its hashes.
fn is_random(case: &Case) -> bool {
    case.setup.specs().any(|spec| match spec.kind().id {
        "pie" | "fq_pie" | "red" | "choke" | "cake" | "dualpi2" => true,
        // `sfq` draws random numbers if it runs RED on each flow, or if it changes its hash from
        // time to time.
        "sfq" => ["redflowlimit", "perturb"].iter().any(|key| spec.values(0).number(key) > 0),
        "netem" => {
            let values = spec.values(0);
            let chance = ["loss", "duplicate", "corrupt", "reorder", "slot"];
            // A `netem` to which the user gave a seed always draws the same numbers, so its outcome
            // is not random.
            !values.is_given("seed")
                && (values.list("delay").len() > 1 || chance.iter().any(|key| values.is_given(key)))
        }
        _ => false,
    })
}

/// Returns the first difference in the packets sent and the first difference in the packets
/// dropped. Returns nothing if the two runs are the same.
pub(super) fn first_differences(case: &Case, ours: &Outcome, theirs: &Outcome) -> Vec<String> {
    let mut told = Vec::new();
    let (our_drops, their_drops) = (without_changes(case, ours), without_changes(case, theirs));
    let same = |a: &Event, b: &Event| if a.reason.is_none() { a == b } else { same_drop(a, b) };
    for (what, ours, theirs) in
        [("dequeue", &ours.dequeues, &theirs.dequeues), ("drop", &our_drops, &their_drops)]
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
    told
}

/// Returns the drops of an outcome, in order. A drop that happened while `tc` made a change gets
/// the time at which the change began and the reason `Unsaid`, because the kernel frees a packet
/// that a change has dropped only some time later, and the recording does not show the reason.
fn without_changes(case: &Case, outcome: &Outcome) -> Vec<Event> {
    let mut drops = outcome.drops.clone();
    for drop in &mut drops {
        let during = |change: &&Change| (change.from_ns..=change.to_ns).contains(&drop.time_ns);
        if let Some(change) = case.changes.iter().find(during) {
            (drop.time_ns, drop.reason) = (change.from_ns, Some(Reason::Unsaid));
        }
    }
    drops.sort();
    drops
}

fn words(event: Option<&Event>) -> String {
    let Some(event) = event else { return "none".into() };
    let reason = event.reason.map(|reason| format!(" {reason:?}")).unwrap_or_default();
    let time_ns = event.time_ns - super::START_NS;
    format!("packet {} at {time_ns} ns, ecn {}{reason}", event.packet, event.ecn)
}

/// Returns what differs between the totals of the kernel's run and those of Onramp's runs with
/// several seeds.
fn distributions(case: &Case, theirs: &Outcome) -> Vec<String> {
    let runs: Vec<Totals> = (1..=SEEDS).map(|seed| case.totals(&case.play(seed))).collect();
    judge(&runs, &case.totals(theirs))
}

/// Returns all totals and percentiles in which the kernel's run differs too much from Onramp's
/// runs. A difference from the mean of Onramp's runs is too much if it exceeds each of these
/// limits: the tolerance, two standard deviations of Onramp's values and, for counts,
/// [`PACKETS_OFF`].
fn judge(runs: &[Totals], theirs: &Totals) -> Vec<String> {
    let mut told = Vec::new();
    let mut compare = |what: &str, of: &dyn Fn(&Totals) -> f64, off: f64, least: f64| {
        let (mean, deviation) = spread(runs.iter().map(of));
        let theirs = of(theirs);
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

/// Returns the mean and the standard deviation of the values.
#[expect(clippy::cast_precision_loss, reason = "a few values")]
fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(drops: f64, marks: f64, bytes: [f64; 2], median_ns: f64, p95_ns: f64) -> Totals {
        let flow_bytes = bytes.into_iter().enumerate().map(|(flow, bytes)| (flow as u64, bytes));
        let flow_bytes = flow_bytes.collect();
        Totals { drops, marks, flow_bytes, median_ns, p95_ns, ..Totals::default() }
    }

    fn plain() -> Totals {
        run(1000.0, 500.0, [1e6, 2e6], 1e6, 4e6)
    }

    /// Returns the totals of 16 runs of Onramp, which differ from each other by less than any
    /// tolerance.
    fn ours() -> Vec<Totals> {
        let off = |n: u64| (n as f64 - 7.5) / 1000.0;
        let scaled =
            |by: f64| run(1000.0 * by, 500.0 * by, [1e6 * by, 2e6 * by], 1e6 * by, 4e6 * by);
        (0..SEEDS).map(|n| scaled(1.0 + off(n))).collect()
    }

    #[track_caller]
    fn told(theirs: &Totals, names: &[&str]) {
        let told = judge(&ours(), theirs);
        let heads: Vec<_> = told.iter().filter_map(|text| text.split(':').next()).collect();
        assert_eq!(heads, names, "{told:?}");
    }

    /// For each tolerance, a kernel run whose difference is just within the tolerance passes, and a
    /// run whose difference is just beyond it is reported.
    #[test]
    fn each_tolerance_has_an_end() {
        told(&plain(), &[]);
        let (median, p95) = ("median sojourn, ns", "95th percentile of sojourn, ns");
        for (what, within, beyond) in [
            ("drops", run(1050.0, 500.0, [1e6, 2e6], 1e6, 4e6), 1056.0),
            ("marks", run(1000.0, 525.0, [1e6, 2e6], 1e6, 4e6), 528.0),
            ("bytes of flow 0", run(1000.0, 500.0, [1.05e6, 2e6], 1e6, 4e6), 1.06e6),
            ("bytes of flow 1", run(1000.0, 500.0, [1e6, 2.1e6], 1e6, 4e6), 2.12e6),
            (median, run(1000.0, 500.0, [1e6, 2e6], 1.1e6, 4e6), 1.12e6),
            (p95, run(1000.0, 500.0, [1e6, 2e6], 1e6, 4.9e6), 5.1e6),
        ] {
            told(&within, &[]);
            let mut theirs = plain();
            match what {
                "drops" => theirs.drops = beyond,
                "marks" => theirs.marks = beyond,
                "bytes of flow 0" => drop(theirs.flow_bytes.insert(0, beyond)),
                "bytes of flow 1" => drop(theirs.flow_bytes.insert(1, beyond)),
                what if what == median => theirs.median_ns = beyond,
                _ => theirs.p95_ns = beyond,
            }
            told(&theirs, &[what]);
        }
        told(
            &run(940.0, 470.0, [0.94e6, 1.88e6], 0.88e6, 3.2e6),
            &["drops", "marks", "bytes of flow 0", "bytes of flow 1", median, p95],
        );
    }

    /// If the values of Onramp's own runs vary, a kernel run may differ from their mean by two
    /// standard deviations, and by no more.
    #[test]
    fn the_spread_of_our_runs_is_allowed() {
        let runs: Vec<_> = (0..SEEDS)
            .map(|n| run(if n % 2 == 0 { 900.0 } else { 1100.0 }, 0.0, [0.0; 2], 0.0, 0.0))
            .collect();
        let theirs = |drops| run(drops, 0.0, [0.0; 2], 0.0, 0.0);
        let (mean, deviation) = spread(runs.iter().map(|run| run.drops));
        assert_eq!(mean, 1000.0);
        assert!((deviation - 103.28).abs() < 0.01, "{deviation}");
        assert!(judge(&runs, &theirs(1206.0)).is_empty());
        assert!(!judge(&runs, &theirs(1207.0)).is_empty());
        assert!(!judge(&runs, &theirs(793.0)).is_empty());
    }

    /// If all sojourn times in Onramp's runs are zero, sojourn times of one nanosecond in the
    /// kernel's run are reported. If the median in Onramp's runs is 100 ns, a median of 110 ns in
    /// the kernel's run passes.
    #[test]
    fn sojourns_are_compared_to_the_nanosecond() {
        let waits = |median_ns, p95_ns| run(0.0, 0.0, [0.0; 2], median_ns, p95_ns);
        let runs = vec![waits(0.0, 0.0); 16];
        assert!(judge(&runs, &waits(0.0, 0.0)).is_empty());
        let told = judge(&runs, &waits(1.0, 1.0));
        let expected = [
            "median sojourn, ns: ours 0 (+-0), Linux 1",
            "95th percentile of sojourn, ns: ours 0 (+-0), Linux 1",
        ];
        assert_eq!(told, expected);
        let runs = vec![waits(100.0, 100.0); 16];
        assert!(judge(&runs, &waits(110.0, 120.0)).is_empty());
        assert_eq!(judge(&runs, &waits(112.0, 126.0)).len(), 2);
    }

    /// A difference of up to three packets is not reported, however small the totals are.
    #[test]
    fn few_packets_are_few() {
        let runs = vec![run(10.0, 0.0, [5000.0; 2], 0.0, 0.0); 16];
        assert!(judge(&runs, &run(13.0, 3.0, [5000.0 + 3.0 * 1514.0; 2], 0.0, 0.0)).is_empty());
        assert_eq!(judge(&runs, &run(14.0, 4.0, [9600.0, 5000.0], 0.0, 0.0)).len(), 3);
    }
}
