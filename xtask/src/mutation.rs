//! Mutation testing: changes the libraries in one place at a time. With each such change (a
//! mutant), some test must fail.
//!
//! All mutants are built into one set of test programs, which makes thousands of mutants
//! affordable: see `docs/decisions/0015-mutants-in-one-build.md`.

mod build;
mod bundle;
mod child;
mod choose;
mod equivalent;
mod find;
mod judge;
mod node;
mod plan;
mod record;
mod render;
mod report;
mod swap;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

use self::build::{Mutants, Place};
use self::judge::Bounds;
use self::plan::{Mutant, Plan, area, unable};
use self::report::Report;
use crate::shell::root;
use crate::{Failure, Outcome};

/// The file that lists the mutants that survive because they are equivalent to the original.
const EQUIVALENT: &str = "xtask/equivalent-mutants.txt";

/// The libraries, each with the other crates whose tests use it.
const LIBRARIES: &[(&str, &[&str])] = &[
    (
        "onramp-queue",
        &["onramp-core", "onramp-dev", "onramp-sim", "onramp", "onramp-host", "onramp-daemon"],
    ),
    ("onramp-core", &["onramp-dev", "onramp-sim", "onramp", "onramp-host", "onramp-daemon"]),
    ("onramp-dev", &["onramp", "onramp-host", "onramp-daemon"]),
    ("onramp-sim", &[]),
    ("onramp", &["onramp-host", "onramp-daemon"]),
    ("onramp-host", &["onramp-daemon"]),
    ("onramp-daemon", &[]),
];

/// Changes the libraries in one place at a time; some test must fail for each change.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask mutants", no_binary_name = true)]
struct Args {
    /// Only mutants on lines that differ from BASE
    #[arg(long)]
    changed: bool,
    /// With --changed: the commit to compare with [default: the commit where the branch left main;
    /// on main itself, the previous commit]
    #[arg(long, requires = "changed")]
    base: Option<String>,
    /// Only this crate; may be given several times [default: all libraries]
    #[arg(long = "crate", value_name = "NAME")]
    crates: Vec<String>,
    /// Only files whose path contains PART; may be given several times
    #[arg(long = "file", value_name = "PART")]
    files: Vec<String>,
    /// Only N mutants, drawn at random
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// With --sample: the seed of the random selection
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only the mutants that are listed as equivalent: no test may find one of them
    #[arg(long)]
    equivalent: bool,
    /// Run only the tests of the crates that contain the mutants, not those of the crates that use
    /// them
    #[arg(long)]
    own_tests: bool,
    /// Print the mutants, and build nothing
    #[arg(long)]
    list: bool,
    /// Print the mutants in the form that the list of equivalent mutants uses
    #[arg(long)]
    keys: bool,
    /// Number of processes at a time [default: the number of processors]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// For each mutant, start no more tests once those that ran take more than this many seconds
    /// together
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    budget: u64,
    /// A mutant that a test of an earlier build found counts as found: run tests only on the others
    #[arg(long)]
    trust: bool,
    /// Fail if less than this percentage of the mutants is found
    #[arg(long, value_name = "PERCENT")]
    at_least: Option<f64>,
    /// Write the result to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Build the mutants, and put everything into DIR that another machine needs to run tests on
    /// them
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Run tests on the mutants that --bundle put into DIR
    #[arg(long, value_name = "DIR", conflicts_with_all = ["bundle", "list", "keys"])]
    plan: Option<PathBuf>,
}

/// Runs `cargo xtask mutants` with these arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(err) if err.use_stderr() => return Err(Failure::Unable(err.to_string())),
        Err(help) => {
            print!("{help}");
            return Ok(());
        }
    };
    if let Some(dir) = &args.plan {
        let mut plan = bundle::open(dir)?;
        let chosen = choose(&plan.mutants, &plan.equivalent, &args)?;
        plan.mutants.retain(|mutant| chosen.contains(&mutant.id));
        if args.own_tests {
            plan.only_own_tests();
        }
        return judge(&plan, dir, &args);
    }
    let project = root();
    let known = libraries();
    if let Some(other) = args.crates.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(Failure::Unable(format!("unknown library {other}; expected one of {known}")));
    }
    let mut mutants = Mutants::of(&project, &known)?;
    let list = read_list(&project, &mutants.all)?;
    let chosen = choose(&mutants.all, &list, &args)?;
    mutants.retain(&|mutant| chosen.contains(&mutant.id));
    let mut wanted = mutants.all.iter().filter(|it| chosen.contains(&it.id)).peekable();
    if wanted.peek().is_none() {
        eprintln!("mutants: there are no mutants to try");
        return Ok(());
    }
    if args.list || args.keys {
        print(wanted, args.keys);
        return Ok(());
    }
    let place = place(&project, wanted, args.own_tests);
    let mut plan = build::build(&place, mutants)?;
    plan.equivalent = list;
    match &args.bundle {
        Some(dir) => bundle::write(&plan, dir),
        None => judge(&plan, &place.work, &args),
    }
}

/// Returns the names of all libraries that mutation testing changes.
fn libraries() -> Vec<&'static str> {
    LIBRARIES.iter().map(|(name, _)| *name).collect()
}

/// Returns the crates that contain one of these mutants, and the crates whose tests are run to find
/// them.
fn place<'a, 'b>(
    project: &'a Path,
    mutants: impl Iterator<Item = &'b Mutant>,
    own_tests: bool,
) -> Place<'a> {
    let paths: HashSet<&str> = mutants.map(|mutant| mutant.path.as_str()).collect();
    let mut place =
        Place { project, work: project.join("target/mutants"), crates: vec![], judges: vec![] };
    for (name, users) in LIBRARIES {
        let folder = format!("crates/{name}/");
        if !paths.iter().any(|path| path.starts_with(&folder)) {
            continue;
        }
        place.crates.push(name);
        let users = if own_tests { &[] } else { *users };
        for judge in std::iter::once(name).chain(users) {
            if !place.judges.contains(judge) {
                place.judges.push(judge);
            }
        }
    }
    place
}

/// Reads the list of mutants that are equivalent to the original. Fails if an entry of the list
/// names no mutant.
fn read_list(project: &Path, all: &[Mutant]) -> Result<BTreeMap<String, String>, Failure> {
    let path = project.join(EQUIVALENT);
    let text = fs::read_to_string(&path).map_err(|err| unable(&path, &err))?;
    let failed =
        |wrong: Vec<String>| Failure::Failed(format!("{EQUIVALENT}: {}", wrong.join("\n")));
    let list = equivalent::parse(&text).map_err(failed)?;
    match equivalent::stale(&list, all) {
        stale if stale.is_empty() => Ok(list),
        stale => Err(failed(stale)),
    }
}

/// Returns the numbers of the mutants that the arguments select.
fn choose(
    all: &[Mutant],
    list: &BTreeMap<String, String>,
    args: &Args,
) -> Result<HashSet<u32>, Failure> {
    let lines = args.changed.then(|| choose::changed(args.base.as_deref())).transpose()?;
    let wanted = |mutant: &&Mutant| {
        let within = |name: &String| mutant.path.starts_with(&format!("crates/{name}/"));
        let here = (args.files.is_empty() || args.files.iter().any(|it| mutant.path.contains(it)))
            && (args.crates.is_empty() || args.crates.iter().any(within));
        let new = lines.as_ref().is_none_or(|lines| choose::stands_on(lines, mutant));
        here && new && list.contains_key(&mutant.key()) == args.equivalent
    };
    let chosen: Vec<&Mutant> = all.iter().filter(wanted).collect();
    Ok(match args.sample {
        Some(count) => choose::sample(&chosen, count, args.seed),
        None => chosen.iter().map(|mutant| mutant.id).collect(),
    })
}

fn print<'a>(mutants: impl Iterator<Item = &'a Mutant>, keys: bool) {
    let mut areas: BTreeMap<String, usize> = BTreeMap::new();
    for mutant in mutants {
        *areas.entry(area(&mutant.path)).or_default() += 1;
        match keys {
            true => println!("{}", mutant.key()),
            false => println!("{mutant}"),
        }
    }
    for (area, count) in &areas {
        eprintln!("{area:<24} {count:>7}");
    }
    eprintln!(
        "{:<24} {:>7}, including those that may not compile",
        "all",
        areas.values().sum::<usize>()
    );
}

/// Runs tests for the mutants of a plan, and reports which mutants were found.
fn judge(plan: &Plan, work: &Path, args: &Args) -> Outcome {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(processors).max(1);
    let recorded = record::record(plan, work, jobs)?;
    for why in &recorded.left_out {
        eprintln!("mutants: left out: {why}");
    }
    let bounds = Bounds { jobs, budget: Duration::from_secs(args.budget), trust: args.trust };
    let fates = judge::judge(plan, &recorded.tests, work, bounds)?;
    let report = Report { plan, fates: &fates, left_out: &recorded.left_out };
    let survivors = report.survivors();
    let path = work.join("survivors.txt");
    fs::write(&path, survivors.join("\n") + "\n").map_err(|err| unable(&path, &err))?;
    for line in &survivors {
        println!("{line}");
    }
    println!("\n{}", report.table());
    let unviable: usize = plan.unviable.iter().map(|(_, count)| count).sum();
    println!("{unviable} more do not compile; {} tests were left out", recorded.left_out.len());
    eprintln!("mutants: the survivors are also in {}", path.display());
    if let Some(path) = &args.json {
        fs::write(path, format!("{:#}\n", report.json())).map_err(|err| unable(path, &err))?;
    }
    let mut wrong = report.wrongly_listed();
    wrong.extend(args.at_least.and_then(|percent| report.all().lacks(percent)));
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Failed(wrong.join("\n"))) }
}
