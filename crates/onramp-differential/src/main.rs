//! `cargo xtask differential`: runs random cases on a real kernel and on our qdiscs, and compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use onramp_differential::generate;
use onramp_differential::judge::{self, How, Verdict};
use onramp_differential::keep::Keeper;
use onramp_differential::kinds::{KINDS, Kind};
use onramp_differential::oracle::{Oracle, Silent};
use onramp_differential::plan::Plan;
use onramp_differential::pool::Pool;
use onramp_differential::shrink;

/// Exit status of this program if the kernel cannot be asked.
const COULD_NOT_RUN: u8 = 3;

/// Makes random cases, runs them on a real kernel and on our qdiscs, and compares the results: to
/// the nanosecond, or, where random choices affect the result, by distribution. Ends with 1 if they
/// differ, with 3 if the kernel cannot be asked.
#[derive(Parser)]
#[command(name = "cargo xtask differential")]
struct Args {
    /// How many cases to make.
    #[arg(long, default_value_t = 100)]
    cases: u64,
    /// The number of the first case; the other cases have the numbers after it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kinds of the root qdisc, used in turn; all kinds if none is named.
    #[arg(long, value_delimiter = ',', value_name = "KIND,..")]
    kinds: Vec<String>,
    /// Runs only the cases that are compared in this way: exactly (exact), exactly for one of
    /// several hash keys (hash), or by distribution (chance).
    #[arg(long, value_name = "exact|hash|chance")]
    compared: Option<String>,
    /// Cases to run at the same time [default: the number of processors].
    #[arg(long)]
    jobs: Option<usize>,
    /// The folder with the program that asks the kernel.
    #[arg(long, value_name = "DIR")]
    oracle: Option<PathBuf>,
    /// The folder for cases that differ.
    #[arg(long, value_name = "DIR", default_value = "target/differential/found")]
    found: PathBuf,
    /// How many times a case that differs is made smaller and judged again.
    #[arg(long, default_value_t = 40)]
    shrink: u32,
    /// Keeps cases instead of only comparing: writes small cases on which the kernel and Onramp
    /// agree to this folder, with the kernel's answers. Makes `--cases` cases of each kind, and
    /// prefers those that reach the most code that no kept case reaches.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// With --keep: the largest number of cases to keep for each kind.
    #[arg(long, default_value_t = 10)]
    each: usize,
    /// With --keep: keeps cases in which random choices affect the result, each with statistics of
    /// five runs of the kernel and a recording of our own run.
    #[arg(long, requires = "keep")]
    chance: bool,
    /// Judges again the cases that --keep --chance has written to this folder, and replaces the
    /// recordings of our runs. Does not change the file of a case on which Onramp differs from the
    /// kernel.
    #[arg(long, value_name = "DIR", conflicts_with = "keep")]
    renew: Option<PathBuf>,
    /// Prints the cases, and does not run them.
    #[arg(long)]
    print: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let kinds = match chosen(&args.kinds) {
        Ok(kinds) => kinds,
        Err(why) => {
            eprintln!("differential: {why}");
            return ExitCode::from(2);
        }
    };
    if args.print {
        (args.seed..args.seed + args.cases).for_each(|seed| print(&plan(seed, &kinds)));
        return ExitCode::SUCCESS;
    }
    match run(&args, &kinds) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("differential: {why}");
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Kind>, String> {
    if names.is_empty() {
        return Ok(KINDS.iter().collect());
    }
    let find = |name: &String| {
        let all = || KINDS.iter().map(|kind| kind.id).collect::<Vec<_>>().join(", ");
        let kind = KINDS.iter().find(|kind| kind.id == name);
        kind.ok_or_else(|| format!("unknown kind {name}; expected one of {}", all()))
    };
    names.iter().map(find).collect()
}

/// Makes the case with this number.
fn plan(seed: u64, kinds: &[&'static Kind]) -> Plan {
    let at = usize::try_from(seed % kinds.len() as u64).unwrap_or(0);
    generate::plan(seed, kinds[at])
}

fn print(plan: &Plan) {
    println!("# seed {}\n{}", plan.seed, plan.opts().replace('\n', " "));
    plan.lines.iter().for_each(|line| println!("{line}"));
    plan.changes.iter().for_each(|(at, line)| println!("at {at} {line}"));
    println!("# {} packets, {} of them paced", plan.rows.len(), plan.pacing.len());
}

/// Numbers of cases of a kind, by how they were compared, how many differ, and for how many the
/// kernel gave no answer.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    exactly: u64,
    distribution: u64,
    refused: u64,
    disturbed: u64,
    differ: u64,
    silent: u64,
}

/// Opens the oracle (the program that asks the kernel).
fn oracle(args: &Args) -> Result<Oracle, Silent> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared =
        std::env::var_os("ONRAMP_SHARED").map_or_else(|| root.join("../shared"), PathBuf::from);
    let folder = args.oracle.clone().unwrap_or_else(|| shared.join("oracle"));
    Oracle::new(folder, root.join("target/differential/cache"))
}

fn keeper<'a>(args: &'a Args, oracle: &'a Oracle, folder: &'a Path) -> Keeper<'a> {
    Keeper { oracle, folder, found: &args.found, each: args.each, chance: args.chance }
}

fn run(args: &Args, kinds: &[&'static Kind]) -> Result<bool, Silent> {
    let oracle = oracle(args)?;
    if let Some(folder) = &args.keep {
        let keeper = keeper(args, &oracle, folder);
        return keeper.keep(kinds, args.seed..args.seed + args.cases);
    }
    if let Some(folder) = &args.renew {
        return keeper(args, &oracle, folder).renew();
    }
    let (next, end) = (AtomicU64::new(args.seed), args.seed + args.cases);
    let state = Mutex::new((BTreeMap::<&str, Tally>::new(), Pool::default()));
    let jobs = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    // Relaxed: the counter only gives each thread another number, and no other
                    // memory depends on it.
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let plan = plan(seed, kinds);
                    let word = plan.compared().word();
                    if args.compared.as_ref().is_some_and(|wanted| wanted != word) {
                        continue;
                    }
                    let verdict = judge::judge(&plan, &oracle);
                    let told = tell(args, &oracle, plan, verdict);
                    let mut state = state.lock().unwrap_or_else(|broken| broken.into_inner());
                    let (tallies, pool) = &mut *state;
                    note(tallies.entry(told.kind).or_default(), &told, pool);
                }
            });
        }
    });
    let (tallies, pool) = state.into_inner().unwrap_or_else(|broken| broken.into_inner());
    Ok(summary(&tallies, &pool, &oracle))
}

/// The result of a case.
struct Told {
    kind: &'static str,
    verdict: Option<Verdict>,
}

/// Reports the differences of a case, and writes a smaller case with the same differences to a
/// file.
fn tell(args: &Args, oracle: &Oracle, plan: Plan, verdict: Result<Verdict, Silent>) -> Told {
    let kind = plan.lines.first().map_or("", |line| line.kind);
    let again = format!("--cases 1 --seed {} --kinds {kind}", plan.seed);
    let verdict = match verdict {
        Ok(verdict) => verdict,
        Err(why) => {
            eprintln!("{kind}: no answer from the kernel: {why}; to repeat: {again}");
            return Told { kind, verdict: None };
        }
    };
    if !verdict.differences.is_empty() {
        let name = format!("{kind}-{}", plan.seed);
        // In a comparison by distribution, a case with fewer packets shows a difference less
        // clearly. So make only the tree smaller.
        let by_chance = verdict.how == How::Distribution;
        let tries = if by_chance { args.shrink / 8 } else { args.shrink };
        let packets = plan.rows.len();
        let small = shrink::shrink(plan, tries, |plan| {
            let less = by_chance && plan.rows.len() < packets;
            !less
                && judge::judge(plan, oracle)
                    .is_ok_and(|small| small.how == verdict.how && !small.differences.is_empty())
        });
        let small = judge::judge(&small, oracle).unwrap_or_else(|_| verdict.clone());
        let at = args.found.join(format!("{name}.txt"));
        let remarks: String =
            small.differences.iter().map(|difference| format!("{difference}\n")).collect();
        let text = format!("{remarks}to repeat: cargo xtask differential {again}\n{}", small.text);
        let kept = fs::create_dir_all(&args.found).and_then(|()| fs::write(&at, text));
        let kept = kept.map_or_else(|error| error.to_string(), |()| at.display().to_string());
        println!(
            "{kind}: DIFFERS: {}; to repeat: {again}; case: {kept}",
            verdict.differences.join("; ")
        );
    }
    Told { kind, verdict: Some(verdict) }
}

fn note(tally: &mut Tally, told: &Told, pool: &mut Pool) {
    let Some(verdict) = &told.verdict else {
        tally.silent += 1;
        return;
    };
    pool.add(told.kind, &verdict.scores);
    match verdict.how {
        _ if !verdict.differences.is_empty() => tally.differ += 1,
        How::Refused => tally.refused += 1,
        How::Disturbed => tally.disturbed += 1,
        How::Exactly => tally.exactly += 1,
        How::Distribution => tally.distribution += 1,
    }
}

/// Whether enough cases were compared for a verdict: at least one case, and nine of ten in a run of
/// 20 cases or more.
fn tells(cases: u64, idle: u64) -> bool {
    cases > 0 && (cases < 20 || idle * 10 <= cases)
}

/// Prints how many cases of each kind agree. Returns true if nothing differs and enough cases were
/// compared.
fn summary(tallies: &BTreeMap<&str, Tally>, pool: &Pool, oracle: &Oracle) -> bool {
    println!(
        "{:16} {:>8} {:>8} {:>12} {:>8} {:>9} {:>8} {:>8}",
        "root", "compared", "exactly", "distribution", "refused", "disturbed", "differ", "silent"
    );
    let (mut differ, mut silent, mut cases, mut idle) = (0, 0, 0, 0);
    for (kind, tally) in tallies {
        let row = KINDS.iter().find(|row| row.id == *kind);
        let compared = row.map_or("", |row| row.compared.word());
        let Tally { exactly, distribution, refused, disturbed, differ: other, silent: no } = tally;
        println!(
            "{kind:16} {compared:>8} {exactly:>8} {distribution:>12} {refused:>8} {disturbed:>9} \
             {other:>8} {no:>8}"
        );
        differ += other;
        silent += no;
        idle += refused + disturbed;
        cases += exactly + distribution + refused + disturbed + other + no;
    }
    let pooled = pool.differences();
    for difference in &pooled {
        println!("{difference}");
    }
    let (asked, remembered) = oracle.asked();
    println!(
        "{cases} cases: {differ} differ, {} figures differ over all cases of a kind, {silent} \
         without an answer; the kernel ran {asked} times, {remembered} answers came from the cache",
        pooled.len()
    );
    let tells = tells(cases, idle);
    if !tells {
        println!(
            "{idle} of {cases} cases were refused or disturbed: too few were compared for a verdict"
        );
    }
    differ == 0 && pooled.is_empty() && silent == 0 && tells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_compared_little_tells_of_nothing() {
        for (cases, idle, told) in [
            (0, 0, false),
            (1, 0, true),
            (1, 1, true),
            (19, 19, true),
            (20, 2, true),
            (20, 3, false),
        ] {
            assert_eq!(tells(cases, idle), told, "{idle} of {cases}");
        }
    }
}
