//! Compares the kernel's runs of a plan with ours.

use std::fmt::Write as _;

use onramp_core::Setup;
use onramp_sim::recording::{Case, Outcome, Totals};

use crate::oracle::{Answer, Kernel, Said, Silent, remark};
use crate::plan::{Compared, Plan};
use crate::statistic::{mean, rank_sum, two_sided};

/// Answers that are asked for until one is ours, where flows may share a bucket.
pub const HASH_DRAWS: u64 = 3;

/// Runs of the kernel and of ours: the first are cheap, and say whether it is worth to have more.
const FIRST: (u64, u64) = (5, 20);
/// The next are others; they alone decide.
const SECOND: (u64, u64) = (16, 64);
/// First runs that are less likely than this are worth more.
pub const WORTH: f64 = 0.02;
/// The share of runs of the whole tester that may tell of a difference where there is none.
pub const FALSE_ALARM: f64 = 0.01;
/// As many comparisons are made in such a run: of a thousand cases, nine each.
pub const COMPARISONS: f64 = 9_000.0;
/// Means that are this close are as good as equal, however sure it is that they are not.
pub const MARGIN: f64 = 0.02;
/// Flows whose bytes are compared, those with the most packets.
const FLOWS: usize = 3;

/// How a verdict was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Both refuse the tree.
    Refused,
    /// Not at all: a packet left while a line changed the tree. Which takes the machine of the
    /// kernel some microseconds, by which that packet was late. Or a `choke` of the kernel lost
    /// packets.
    Disturbed,
    /// To the nanosecond.
    Exactly,
    /// By distribution.
    Distribution,
}

/// A verdict.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// How it was reached.
    pub how: How,
    /// What differs; nothing: they agree.
    pub differences: Vec<String>,
    /// Of a comparison by distribution: how far apart the first runs are.
    pub scores: Vec<Score>,
    /// The case with the kernel's answer, in one text.
    pub text: String,
}

/// How far apart the kernel and ours are in one number.
#[derive(Clone, Debug)]
pub struct Score {
    /// Of what.
    pub what: String,
    /// Ours above the kernel's, in standard deviations: see [`rank_sum`].
    pub z: f64,
    /// The mean of ours.
    pub ours: f64,
    /// The mean of the kernel's.
    pub theirs: f64,
    /// What is no difference, in any case.
    pub least: f64,
}

impl Score {
    /// Whether the means differ enough to matter.
    #[must_use]
    pub fn matters(&self) -> bool {
        (self.ours - self.theirs).abs() > self.least.max(MARGIN * self.theirs)
    }
}

/// Judges a plan.
///
/// # Errors
///
/// [`Silent`]: the kernel could not be asked.
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
        Err(error) => return told(How::Exactly, vec![format!("not read: {error}")], text),
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
        // Chance has no part in what leaves, but perhaps in what is counted.
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
        for score in self::scores(&played, &theirs, &ours) {
            if two_sided(score.z) < likely && score.matters() {
                let Score { what, z, ours, theirs, .. } = score;
                differences.push(format!(
                    "{what}: ours {ours:.0}, Linux {theirs:.0} ({z:+.1} deviations)"
                ));
            }
        }
        if !differences.is_empty() && same(&theirs) {
            differences.push("Linux does the same in all draws: are they draws?".into());
        }
    }
    let _ = writeln!(text, "== scores");
    for score in &scores {
        let Score { what, z, ours, theirs, .. } = score;
        let _ = writeln!(text, "{what}: ours {ours:.1}, Linux {theirs:.1}, {z:+.2} deviations");
    }
    Ok(Verdict { how: How::Distribution, differences, scores, text })
}

/// What became of a case that has to be exact.
#[derive(Clone, Debug)]
pub enum Exactly {
    /// One of the kernel's answers is ours: the case with it, in one text.
    Same(String),
    /// It differs in this, with the kernel's first answer.
    Differs(Vec<String>, String),
    /// It says nothing: the kernel refuses the root, or was disturbed.
    Nothing,
}

/// Asks for up to `draws` answers, until one is ours.
///
/// # Errors
///
/// [`Silent`]: the kernel could not be asked.
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

/// How long before and after `tc` a packet that leaves is taken for one that left while it ran.
const TURMOIL_NS: u64 = 2_000;

/// Whether the kernel sent packets while `tc` ran, and those were not let go by it, at one time.
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

/// Where a disturbed run and ours differ before the first change.
fn before_changes(played: &Case, answer: &Answer) -> Vec<String> {
    let first = answer.changes.iter().map(|(from_ns, ..)| from_ns.saturating_sub(TURMOIL_NS)).min();
    first.map_or_else(Vec::new, |end_ns| played.exact_before(1, end_ns))
}

/// Whether a `choke` lost packets of a run. Places of packets that it has dropped fill its table,
/// in Linux, until the end meets the beginning: then all packets in it seem to be gone, are never
/// sent, and count as held ever after. Ours does not, so there is nothing to compare.
fn loses(plan: &Plan, runs: &[Outcome]) -> bool {
    plan.kinds().contains(&"choke") && runs.iter().any(|run| run.gone() < plan.rows.len())
}

/// The first answers of the kernel, each with the case in one text.
///
/// # Errors
///
/// [`Silent`]: the kernel could not be asked.
pub fn answers(plan: &Plan, oracle: &dyn Kernel) -> Result<Vec<String>, Silent> {
    (0..FIRST.0).map(|draw| Ok(file(plan, &oracle.ask(plan, draw)?).0)).collect()
}

/// So many runs of the kernel, from one draw on, and of ours, from one seed on.
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
    // With duplicates, the recorder of the kernel stops before the last packet has left.
    let end_ns = theirs.iter().filter_map(Outcome::end).min().filter(|_| duplicates(plan));
    if let Some(end_ns) = end_ns {
        for run in theirs.iter_mut().chain(&mut ours) {
            *run = run.until(end_ns);
        }
    }
    Ok((theirs, ours))
}

/// Whether one of these draws of the kernel and a run of ours of one of these seeds are the same,
/// with all that they show.
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

/// Whether a line duplicates packets.
fn duplicates(plan: &Plan) -> bool {
    let lines = plan.lines.iter().chain(plan.changes.iter().map(|(_, line)| line));
    let mut options = lines.flat_map(|line| &line.options);
    options.any(|option| option.text.starts_with("duplicate"))
}

/// How far apart runs of the kernel and of ours are.
#[must_use]
pub fn scores(case: &Case, theirs: &[Outcome], ours: &[Outcome]) -> Vec<Score> {
    let totals = |runs: &[Outcome]| runs.iter().map(|run| case.totals(run)).collect::<Vec<_>>();
    compare(&totals(theirs), &totals(ours))
}

/// The same, of what runs came to.
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

/// The flows of which the kernel sent most.
fn largest(runs: &[Totals]) -> Vec<u64> {
    let Some(run) = runs.first() else { return Vec::new() };
    let mut flows: Vec<(&u64, &f64)> = run.flow_bytes.iter().collect();
    flows.sort_by(|one, other| other.1.total_cmp(one.1));
    flows.into_iter().take(FLOWS).map(|(flow, _)| *flow).collect()
}

/// The case with the kernel's answer as one text, without the lines that both refuse; and what
/// only one refuses.
fn file(plan: &Plan, answer: &Answer) -> (String, Vec<String>) {
    let (mut setup, mut refusals) = (Setup::default(), Vec::new());
    let mut apply = |line: &str, said: &Said| match (setup.apply(line), said.status) {
        (Ok(()), 0) | (Err(_), 1..) => {}
        (Ok(()), status) => {
            let why = &said.text;
            refusals.push(format!("`{line}`: Linux refuses ({status}): {why}; here it is taken"));
        }
        (Err(error), _) => {
            refusals.push(format!("`{line}`: Linux takes it; refused here: {error}"));
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
