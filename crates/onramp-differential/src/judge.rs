//! Compares runs of a real kernel with runs of our qdiscs on the same plan.

use std::fmt::Write as _;

use onramp_core::Setup;
use onramp_sim::recording::{Case, Outcome, Totals};

use crate::oracle::{Answer, Kernel, Said, Silent, remark};
use crate::plan::{Compared, Plan};
use crate::statistic::{mean, rank_sum, two_sided};

/// The number of kernel runs to try for a case in which flows may share a hash bucket. The runs
/// differ in the secret key of the hash. The case agrees if one of the runs gives the same result
/// as our run; otherwise the case is compared by distribution.
pub const HASH_DRAWS: u64 = 3;

/// Number of kernel runs and of our runs in the first comparison by distribution. The first
/// comparison is cheap and only shows whether a second one is worthwhile.
const FIRST: (u64, u64) = (5, 20);
/// Number of kernel runs and of our runs in the second comparison. It uses new runs, and it alone
/// decides whether there is a difference.
const SECOND: (u64, u64) = (16, 64);
/// The first comparison is followed by a second one if a number differs so much that chance alone
/// would cause this with less than this probability.
pub const WORTH: f64 = 0.02;
/// The accepted probability that one execution of this program, over all its cases, reports a
/// difference where there is none.
pub const FALSE_ALARM: f64 = 0.01;
/// The number of comparisons assumed for one execution of this program: for each of a thousand
/// cases, the six figures of all packets and the bytes of three flows.
pub const COMPARISONS: f64 = 9_000.0;
/// Two means that differ by less than this fraction count as equal, however certain the difference
/// is.
pub const MARGIN: f64 = 0.02;
/// Number of flows whose bytes are compared: those of which the kernel sent the most bytes.
const FLOWS: usize = 3;

/// How a verdict was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By the refusals: the kernel and Onramp both refuse the tree, or only one of them does, which
    /// is a difference.
    Refused,
    /// Not compared, for one of two reasons. A packet left while the kernel's machine ran `tc` to
    /// change the tree, which delays the packet by some microseconds. Or the kernel's `choke` lost
    /// packets, because its table was full of the slots of dropped packets.
    Disturbed,
    /// Compared exactly, to the nanosecond.
    Exactly,
    /// Compared by distribution, over several runs of the kernel and of ours.
    Distribution,
}

/// The result of judging one case.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// How the verdict was reached.
    pub how: How,
    /// Descriptions of the differences. Empty if the kernel and Onramp agree.
    pub differences: Vec<String>,
    /// In a comparison by distribution: how far apart the first runs are, for each number compared.
    pub scores: Vec<Score>,
    /// The case and the kernel's answer as one text, in the form of a test file.
    pub text: String,
}

/// The distance between the kernel's runs and ours, for one number that is compared.
#[derive(Clone, Debug)]
pub struct Score {
    /// The name of the number that is compared.
    pub what: String,
    /// How far the values of our runs lie above those of the kernel's runs, in standard deviations:
    /// see [`rank_sum`].
    pub z: f64,
    /// The mean of the number over our runs.
    pub ours: f64,
    /// The mean of the number over the kernel's runs.
    pub theirs: f64,
    /// If the means differ by at most this much, in the number's own unit, they count as equal.
    pub least: f64,
}

impl Score {
    /// Whether the means differ enough to matter.
    #[must_use]
    pub fn matters(&self) -> bool {
        (self.ours - self.theirs).abs() > self.least.max(MARGIN * self.theirs)
    }
}

/// Runs `plan` on the kernel and on our qdiscs, and compares the results.
///
/// # Errors
///
/// Fails with [`Silent`] if the kernel could not be asked.
pub fn judge(plan: &Plan, oracle: &dyn Kernel) -> Result<Verdict, Silent> {
    let first = oracle.ask(plan, 0)?;
    let (mut text, refusals) = file(plan, &first);
    let told = |how, differences, text| Ok(Verdict { how, differences, scores: Vec::new(), text });
    if !refusals.is_empty() {
        return told(How::Refused, refusals, text);
    }
    if first.lines.first().is_none_or(|root| root.status != 0) {
        return told(How::Refused, Vec::new(), text);
    }
    let case = |text: &str| Case::parse("generated", text);
    let played = match case(&text) {
        Ok(played) => played,
        Err(error) => {
            return told(How::Exactly, vec![format!("cannot read the case: {error}")], text);
        }
    };
    let differences = played.exact(1);
    let draws = match plan.compared() {
        Compared::Exact => 1,
        Compared::Hash => HASH_DRAWS,
        Compared::Chance => 1,
    };
    if !differences.is_empty() && disturbed(&played, &first) {
        let exact = plan.compared() == Compared::Exact;
        let differences = if exact { before_changes(&played, &first) } else { Vec::new() };
        return told(How::Disturbed, differences, text);
    }
    if differences.is_empty() || plan.compared() == Compared::Exact {
        return told(How::Exactly, differences, text);
    }
    for draw in 1..draws {
        let (other, _) = file(plan, &oracle.ask(plan, draw)?);
        if case(&other).is_ok_and(|case| case.exact(1).is_empty()) {
            return told(How::Exactly, Vec::new(), text);
        }
    }
    let (theirs, ours) = runs(plan, oracle, &played, (0, FIRST.0), (1, FIRST.1))?;
    if loses(plan, &theirs) {
        return told(How::Disturbed, Vec::new(), text);
    }
    let same = |runs: &[Outcome]| runs.windows(2).all(|pair| pair[0] == pair[1]);
    if same(&theirs) && same(&ours) {
        // No random choice affects which packets leave and when, so the comparison is exact. Random
        // choices may still affect the counters, so it is enough that one run of the kernel equals
        // one of our runs.
        let agrees = counts_as_any(plan, oracle, (FIRST.0, FIRST.1))?;
        return told(How::Exactly, if agrees { Vec::new() } else { differences }, text);
    }
    let scores = scores(&played, &theirs, &ours);
    let mut differences = Vec::new();
    if scores.iter().any(|score| two_sided(score.z) < WORTH && score.matters()) {
        let from = (FIRST.0, FIRST.1 + 1);
        let (theirs, ours) = runs(plan, oracle, &played, (from.0, SECOND.0), (from.1, SECOND.1))?;
        if loses(plan, &theirs) {
            return told(How::Disturbed, Vec::new(), text);
        }
        let likely = FALSE_ALARM / COMPARISONS;
        let again = self::scores(&played, &theirs, &ours).into_iter();
        let again = again.filter(|score| two_sided(score.z) < likely && score.matters());
        differences.extend(again.map(|Score { what, z, ours, theirs, .. }| {
            format!("{what}: ours {ours:.0}, Linux {theirs:.0} ({z:+.1} deviations)")
        }));
        if !differences.is_empty() && same(&theirs) {
            differences
                .push("all runs of Linux gave one result: did they draw different numbers?".into());
        }
    }
    let _ = writeln!(text, "== scores");
    for score in &scores {
        let Score { what, z, ours, theirs, .. } = score;
        let _ = writeln!(text, "{what}: ours {ours:.1}, Linux {theirs:.1}, {z:+.2} deviations");
    }
    Ok(Verdict { how: How::Distribution, differences, scores, text })
}

/// The result of comparing a case that has to agree exactly.
#[derive(Clone, Debug)]
pub enum Exactly {
    /// One of the kernel's answers equals our result. Holds the case with that answer, as one text.
    Same(String),
    /// No answer of the kernel equals our result, or Linux and Onramp do not refuse the same `tc`
    /// lines. Holds the differences of one answer, and the case with that answer as one text.
    Differs(Vec<String>, String),
    /// No result: the kernel refuses the root qdisc, or packets left while `tc` changed the tree,
    /// which may have delayed the packets.
    Nothing,
}

/// Asks the kernel up to `draws` times, until one answer equals our result.
///
/// # Errors
///
/// Fails with [`Silent`] if the kernel could not be asked.
pub fn exactly(plan: &Plan, oracle: &dyn Kernel, draws: u64) -> Result<Exactly, Silent> {
    let mut told = Exactly::Nothing;
    for draw in 0..draws {
        let answer = oracle.ask(plan, draw)?;
        let (text, refusals) = file(plan, &answer);
        if !refusals.is_empty() {
            return Ok(Exactly::Differs(refusals, text));
        }
        if answer.lines.first().is_none_or(|root| root.status != 0) {
            return Ok(Exactly::Nothing);
        }
        let case = Case::parse("generated", &text).map_err(|error| Silent(error.to_string()))?;
        let differences = case.exact(1);
        if differences.is_empty() {
            return Ok(Exactly::Same(text));
        }
        if draw == 0 && !disturbed(&case, &answer) {
            told = Exactly::Differs(differences, text);
        }
    }
    Ok(told)
}

/// A packet that leaves at most this many nanoseconds before or after a run of `tc` counts as
/// leaving during that run.
const TURMOIL_NS: u64 = 2_000;

/// Whether packets left the kernel's qdisc while `tc` ran, so that `tc` may have delayed them. If
/// the tree has a `plug`, packets that all left at the same instant do not count: a change of the
/// `plug` releases its packets at one instant, so `tc` did not delay them.
fn disturbed(played: &Case, answer: &Answer) -> bool {
    let during = |at: u64| {
        let mut changes = answer.changes.iter();
        changes.any(|(from_ns, to_ns, _)| {
            (from_ns.saturating_sub(TURMOIL_NS)..to_ns + TURMOIL_NS).contains(&at)
        })
    };
    let mut times: Vec<u64> = played.recorded().departures().filter(|at| during(*at)).collect();
    times.dedup();
    let plug = played.kinds().any(|kind| kind == "plug");
    times.len() > usize::from(plug)
}

/// Compares a run of the kernel with ours, if `tc` may have delayed packets while it changed the
/// tree: only the packets that left before the first change. Returns the differences.
fn before_changes(played: &Case, answer: &Answer) -> Vec<String> {
    let first = answer.changes.iter().map(|(from_ns, ..)| from_ns.saturating_sub(TURMOIL_NS)).min();
    first.map_or_else(Vec::new, |end_ns| played.exact_before(1, end_ns))
}

/// Whether a `choke` of the kernel lost packets in one of the kernel's runs. Linux's `choke` keeps
/// packets in a ring of slots, and leaves the slots of packets that it dropped empty. If so many
/// slots are empty that the ring's end reaches its start, the ring looks empty. The packets in it
/// are never sent. Our `choke` does not do this, so there is nothing to compare.
fn loses(plan: &Plan, runs: &[Outcome]) -> bool {
    plan.kinds().contains(&"choke") && runs.iter().any(|run| run.gone() < plan.rows.len())
}

/// Returns the kernel's answers of the runs that the first comparison uses, each together with the
/// case as one text.
///
/// # Errors
///
/// Fails with [`Silent`] if the kernel could not be asked.
pub fn answers(plan: &Plan, oracle: &dyn Kernel) -> Result<Vec<String>, Silent> {
    (0..FIRST.0).map(|draw| Ok(file(plan, &oracle.ask(plan, draw)?).0)).collect()
}

/// Plays the case `draws` times on the kernel, from run number `draw` on, and `seeds` times on our
/// qdiscs, from seed `seed` on. Returns the results.
fn runs(
    plan: &Plan,
    oracle: &dyn Kernel,
    played: &Case,
    (draw, draws): (u64, u64),
    (seed, seeds): (u64, u64),
) -> Result<(Vec<Outcome>, Vec<Outcome>), Silent> {
    let mut theirs = Vec::new();
    for draw in draw..draw + draws {
        let (text, _) = file(plan, &oracle.ask(plan, draw)?);
        let case = Case::parse("generated", &text).map_err(|error| Silent(error.to_string()))?;
        theirs.push(case.recorded().clone());
    }
    let mut ours: Vec<Outcome> = (seed..seed + seeds).map(|seed| played.play(seed)).collect();
    // If packets are duplicated, the program that records the kernel's packets stops before the
    // last packet has left. So compare only up to the end of the shortest recording.
    let end_ns = theirs.iter().filter_map(Outcome::end).min().filter(|_| duplicates(plan));
    if let Some(end_ns) = end_ns {
        for run in theirs.iter_mut().chain(&mut ours) {
            *run = run.until(end_ns);
        }
    }
    Ok((theirs, ours))
}

/// Whether one of the kernel's runs (up to `most.0` of them) equals, in packets and counters, one
/// of Onramp's runs (with the seeds 1 to `most.1`).
fn counts_as_any(plan: &Plan, oracle: &dyn Kernel, most: (u64, u64)) -> Result<bool, Silent> {
    for draw in 0..most.0 {
        let (text, _) = file(plan, &oracle.ask(plan, draw)?);
        let case = Case::parse("generated", &text).map_err(|error| Silent(error.to_string()))?;
        if (1..=most.1).any(|seed| case.exact(seed).is_empty()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a `tc` line of the plan makes `netem` duplicate packets.
fn duplicates(plan: &Plan) -> bool {
    let lines = plan.lines.iter().chain(plan.changes.iter().map(|(_, line)| line));
    let mut options = lines.flat_map(|line| &line.options);
    options.any(|option| option.text.starts_with("duplicate"))
}

/// Returns the distance between the kernel's runs and ours, for each number that is compared.
#[must_use]
pub fn scores(case: &Case, theirs: &[Outcome], ours: &[Outcome]) -> Vec<Score> {
    let totals = |runs: &[Outcome]| runs.iter().map(|run| case.totals(run)).collect::<Vec<_>>();
    compare(&totals(theirs), &totals(ours))
}

/// Does the same as [`scores`], for runs of which only the totals are known.
#[must_use]
pub fn compare(theirs: &[Totals], ours: &[Totals]) -> Vec<Score> {
    let mut scores = Vec::new();
    let mut score = |what: &str, of: &dyn Fn(&Totals) -> f64, least: f64| {
        let values = |runs: &[Totals]| runs.iter().map(of).collect::<Vec<f64>>();
        let (ours, theirs) = (values(ours), values(theirs));
        let z = rank_sum(&ours, &theirs);
        let (ours, theirs) = (mean(&ours), mean(&theirs));
        scores.push(Score { what: what.to_owned(), z, ours, theirs, least });
    };
    score("drops", &|run| run.drops, 1.0);
    score("marks", &|run| run.marks, 1.0);
    score("packets overtaken", &|run| run.overtaken, 1.0);
    score("mean sojourn, ns", &|run| run.mean_ns, 1_000.0);
    score("median sojourn, ns", &|run| run.median_ns, 1_000.0);
    score("95th percentile of sojourn, ns", &|run| run.p95_ns, 1_000.0);
    for flow in largest(theirs) {
        score(&format!("bytes of flow {flow}"), &|run| run.bytes(flow), 1_514.0);
    }
    scores
}

/// Returns the flows of which the kernel sent the most bytes.
fn largest(runs: &[Totals]) -> Vec<u64> {
    let Some(run) = runs.first() else { return Vec::new() };
    let mut flows: Vec<(&u64, &f64)> = run.flow_bytes.iter().collect();
    flows.sort_by(|one, other| other.1.total_cmp(one.1));
    flows.into_iter().take(FLOWS).map(|(flow, _)| *flow).collect()
}

/// Returns the case with the kernel's answer as one text, without the `tc` lines that both Linux
/// and Onramp refuse, and a description of each line that only one of them refuses.
fn file(plan: &Plan, answer: &Answer) -> (String, Vec<String>) {
    let (mut setup, mut refusals) = (Setup::default(), Vec::new());
    let mut apply = |line: &str, said: &Said| match (setup.apply(line), said.status) {
        (Ok(()), 0) | (Err(_), 1..) => {}
        (Ok(()), status) => {
            let why = &said.text;
            refusals
                .push(format!("`{line}`: Linux refuses it ({status}): {why}; Onramp accepts it"));
        }
        (Err(error), _) => {
            refusals.push(format!("`{line}`: Linux accepts it; Onramp refuses it: {error}"));
        }
    };
    let mut tc = String::new();
    for (line, said) in plan.lines.iter().zip(&answer.lines) {
        apply(&line.to_string(), said);
        let _ = writeln!(tc, "{}", remark(line, said));
    }
    let mut made = Plan { changes: Vec::new(), ..plan.clone() };
    let mut times = Vec::new();
    for (change, (from_ns, to_ns, said)) in plan.changes.iter().zip(&answer.changes) {
        apply(&change.1.to_string(), said);
        if said.status == 0 {
            made.changes.push(change.clone());
            times.push((*from_ns, *to_ns));
        }
    }
    let mut text = made.text(&tc, &times, &answer.kernel);
    if !answer.stats.is_empty() {
        let _ = write!(text, "== stats.txt\n{}", answer.stats);
    }
    (text, refusals)
}
