//! For each mutant, runs the tests that reach it until one of them fails. Tests of the mutant's own
//! crate come first, and cheap tests before expensive ones.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::child::{self, End, Limits};
use super::plan::{Mutant, Plan, unable};
use super::record::{Test, label};
use crate::Failure;

/// The tests for a mutant are started in portions, because a process for each test would cost too
/// much, and a cheap test often finds the mutant. The tests of the first portion take at most this
/// long together; each further portion may take four times as long as the portion before.
const PORTION: Duration = Duration::from_millis(50);

/// The result for a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fate {
    /// The test with this name failed, so it has found the mutant.
    Found(String),
    /// The test with this name did not end in time. This result is less certain than a failure,
    /// because a busy machine also slows tests down.
    Hung(String),
    /// The process that ran the tests ended in an abnormal way.
    Crashed(String),
    /// `reach` tests reach the mutant. `ran` of them were run, and none failed.
    Survived { ran: usize, reach: usize },
    /// No test reaches the mutant.
    Unreached,
}

impl Fate {
    pub(super) fn is_found(&self) -> bool {
        matches!(self, Self::Found(_) | Self::Hung(_) | Self::Crashed(_))
    }
}

/// A line of the file `results.jsonl`: a mutant and its result. Only the first line of the file is
/// different: it holds a number (the fingerprint) that says which sources and tests the results are
/// for.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    key: String,
    fate: Fate,
    /// Whether the result comes from a test of an earlier build and was taken over with `--trust`.
    #[serde(default)]
    trusted: bool,
}

/// Settings from the command line: how many tests run at a time, for how long, and which old
/// results count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub jobs: usize,
    /// For each mutant, no more tests are started once the running times of those that ran (as
    /// measured without a mutant) add up to more than this time.
    pub budget: Duration,
    /// Whether a mutant counts as found if a test of an earlier build found it.
    pub trust: bool,
}

/// Runs the tests for these mutants of the plan. Skips mutants whose results are already in the
/// file of results.
pub(super) fn judge(
    plan: &Plan,
    tests: &[Test],
    work: &Path,
    bounds: Bounds,
) -> Result<HashMap<String, Fate>, Failure> {
    let path = work.join("results.jsonl");
    let (known, file) = resume(&path, plan.fingerprint, bounds.trust)?;
    let judge = Judge::new(plan, tests, work, bounds.budget);
    let todo: Vec<&Mutant> =
        plan.mutants.iter().filter(|it| !known.contains_key(&it.key())).collect();
    eprintln!("mutants: judging {} mutants; the fate of {} is known", todo.len(), known.len());
    let (next, results) = (AtomicUsize::new(0), Mutex::new((known, file)));
    let worker = || -> Result<(), Failure> {
        loop {
            // Relaxed: a counter that orders no other memory.
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = todo.get(index) else { return Ok(()) };
            let fate = judge.one(mutant)?;
            let entry = Entry { key: mutant.key(), fate, trusted: false };
            let line = serde_json::to_string(&entry).expect("an entry is plain data");
            let mut results = results.lock().expect("no worker panics");
            writeln!(results.1, "{line}").map_err(|err| unable(&path, &err))?;
            results.0.insert(entry.key, entry.fate);
            if (index + 1).is_multiple_of(200) {
                let found = results.0.values().filter(|fate| fate.is_found()).count();
                eprintln!("mutants: {} of {}; {found} found", index + 1, todo.len());
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..bounds.jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    Ok(results.into_inner().expect("no worker panics").0)
}

/// Returns the results of an earlier run with the same sources and tests (the same `fingerprint`),
/// and the file to which new results are appended. If the earlier run had other sources or tests,
/// returns no results, or with `trust` only those of mutants that were found.
fn resume(
    path: &Path,
    fingerprint: u64,
    trust: bool,
) -> Result<(HashMap<String, Fate>, File), Failure> {
    let head = format!("{fingerprint:016x}");
    let old = fs::read_to_string(path).unwrap_or_default();
    let same = old.lines().next() == Some(&head);
    let mut known = HashMap::new();
    if same || trust {
        let entries = old.lines().skip(1).map_while(|line| serde_json::from_str(line).ok());
        // If the file has several entries for a mutant, the last entry counts.
        let counts = |entry: &Entry| match trust {
            true => same || entry.fate.is_found(),
            false => !entry.trusted,
        };
        known.extend(entries.filter(counts).map(|entry| (entry.key, entry.fate)));
    }
    if !same {
        eprintln!("mutants: {} are taken over from an earlier build", known.len());
        let mut text = head + "\n";
        for (key, fate) in &known {
            let entry = Entry { key: key.clone(), fate: fate.clone(), trusted: true };
            text += &serde_json::to_string(&entry).expect("an entry is plain data");
            text.push('\n');
        }
        fs::write(path, text).map_err(|err| unable(path, &err))?;
    }
    let file = OpenOptions::new().append(true).open(path).map_err(|err| unable(path, &err))?;
    Ok((known, file))
}

struct Judge<'a> {
    plan: &'a Plan,
    tests: &'a [Test],
    empty: std::path::PathBuf,
    budget: Duration,
    /// For each place (by the number of its first mutant), the indices of the tests that reach it,
    /// cheapest first.
    reach: HashMap<u32, Vec<usize>>,
    /// For each function, the indices of up to three tests that found earlier mutants of the
    /// function. They probably find its next mutant too, so they run first.
    lucky: Mutex<HashMap<String, Vec<usize>>>,
}

impl<'a> Judge<'a> {
    fn new(plan: &'a Plan, tests: &'a [Test], work: &Path, budget: Duration) -> Self {
        let mut order: Vec<usize> = (0..tests.len()).collect();
        order.sort_by_key(|&index| tests[index].time);
        let mut reach: HashMap<u32, Vec<usize>> = HashMap::new();
        for index in order {
            for &base in &tests[index].reached {
                reach.entry(base).or_default().push(index);
            }
        }
        let lucky = Mutex::default();
        Self { plan, tests, empty: work.join("empty"), budget, reach, lucky }
    }

    fn one(&self, mutant: &Mutant) -> Result<Fate, Failure> {
        let Some(reach) = self.reach.get(&mutant.base) else { return Ok(Fate::Unreached) };
        let own = |index: &&usize| {
            let package = &self.plan.programs[self.tests[**index].program].package;
            mutant.path.starts_with(&format!("crates/{package}/"))
        };
        let place = format!("{} {}", mutant.path, mutant.function);
        let lucky = self.lucky.lock().expect("no worker panics");
        let mut first = lucky.get(&place).cloned().unwrap_or_default();
        drop(lucky);
        first.retain(|index| reach.contains(index));
        let (ours, others): (Vec<_>, Vec<_>) =
            reach.iter().filter(|index| !first.contains(index)).partition(own);
        let mut portions: Vec<Vec<usize>> = first.into_iter().map(|index| vec![index]).collect();
        for tests in [ours, others] {
            portions.extend(self.portions(&tests));
        }
        let (mut spent, mut ran) = (Duration::ZERO, HashSet::new());
        for portion in portions {
            if spent > self.budget {
                break;
            }
            if let Some((fate, test)) = self.run(mutant, &portion)? {
                let mut lucky = self.lucky.lock().expect("no worker panics");
                let tests = lucky.entry(place).or_default();
                tests.retain(|index| Some(*index) != test);
                if let Some(test) = test {
                    tests.insert(0, test);
                }
                tests.truncate(3);
                return Ok(fate);
            }
            spent += portion.iter().map(|&index| self.tests[index].time).sum::<Duration>();
            ran.extend(portion);
        }
        Ok(Fate::Survived { ran: ran.len(), reach: reach.len() })
    }

    /// Splits tests into portions. The tests of a portion belong to one program, and run in one
    /// process.
    fn portions(&self, tests: &[&usize]) -> Vec<Vec<usize>> {
        let mut portions = Vec::new();
        let (mut rest, mut size) = (tests, PORTION);
        while !rest.is_empty() {
            let mut time = Duration::ZERO;
            let fits = |index: &&&usize| {
                time += self.tests[***index].time;
                time <= size
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let mut by_program: HashMap<usize, Vec<usize>> = HashMap::new();
            let mut programs = Vec::new();
            for &&index in &rest[..count] {
                let program = self.tests[index].program;
                by_program.entry(program).or_default().push(index);
                if !programs.contains(&program) {
                    programs.push(program);
                }
            }
            portions.extend(programs.iter().filter_map(|program| by_program.remove(program)));
            rest = &rest[count..];
            size *= 4;
        }
        portions
    }

    /// Runs the tests of a portion, which belong to one program. If one of them finds the mutant,
    /// returns the result and that test.
    fn run(
        &self,
        mutant: &Mutant,
        portion: &[usize],
    ) -> Result<Option<(Fate, Option<usize>)>, Failure> {
        let program = &self.plan.programs[self.tests[portion[0]].program];
        let end = match self.start(mutant, portion)? {
            End::Failed(_) => match self.again(mutant, portion)? {
                Some(end) => end,
                None => return Ok(None),
            },
            end => end,
        };
        let by_name = |name: &str| {
            portion.iter().copied().find(|&index| self.tests[index].name == name || name.is_empty())
        };
        // A process that hangs or crashes does not say which of its tests was the cause. So name
        // the first test, and say how many others ran.
        let some = || {
            let first = label(program, &self.tests[portion[0]].name);
            match portion.len() {
                1 => first,
                count => format!("{first} or one of {} more", count - 1),
            }
        };
        let single = || (portion.len() == 1).then(|| portion[0]);
        Ok(match end {
            End::Passed => None,
            End::Failed(name) => Some((Fate::Found(label(program, &name)), by_name(&name))),
            End::Crashed => Some((Fate::Crashed(some()), single())),
            End::Hung => Some((Fate::Hung(some()), single())),
        })
    }

    /// Repeats the tests after a failure, up to two times. Returns how the first repetition with a
    /// failure ended, or `None` if both pass: then the test fails only now and then, and has not
    /// found the mutant.
    fn again(&self, mutant: &Mutant, portion: &[usize]) -> Result<Option<End>, Failure> {
        for _ in 0..2 {
            let end = self.start(mutant, portion)?;
            if !matches!(end, End::Passed) {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn start(&self, mutant: &Mutant, portion: &[usize]) -> Result<End, Failure> {
        let program = &self.plan.programs[self.tests[portion[0]].program];
        let names: Vec<&str> = portion.iter().map(|&index| &*self.tests[index].name).collect();
        let time = portion.iter().map(|&index| self.tests[index].time).sum();
        let mut command = child::command(program, &self.empty);
        command.env("MUTANT", mutant.id.to_string());
        Ok(child::run(command, program, &names, Limits::for_tests(time))?.0)
    }
}
