//! Runs each test alone on the original code. Records how long the test takes, and which of the
//! places that mutants change it reaches.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::child::{self, End, Limits};
use super::plan::{Plan, Program, unable};
use crate::Failure;

/// A test that takes longer than this is not used to find mutants.
const LONGEST: Duration = Duration::from_secs(3);
/// A loom model that takes longer than this is not used to find mutants.
const LONGEST_MODEL: Duration = Duration::from_secs(20);

/// Tests that are not used to find mutants, because they need more than the source tree: network
/// namespaces, a browser or programs of other projects. Each entry has a package and the beginning
/// of the names of such tests.
const LEFT_OUT: &[(&str, &str)] = &[
    ("onramp", "host_kernel::"),
    ("onramp", "devices::kernel::"),
    ("onramp-dev", "device::namespace::"),
    ("onramp-daemon", "watch::chromium::"),
    ("onramp-daemon", "watch::prometheus::"),
];

/// A test, its running time, and the places that it reaches of those that mutants change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Test {
    /// Index of the test's program in the plan.
    pub program: usize,
    /// Name of the test. Empty if the program is a single test without a harness.
    pub name: String,
    pub time: Duration,
    /// The places of mutants that the test reaches, each by the number of its first mutant.
    pub reached: Vec<u32>,
}

/// The tests that can be used to find mutants, and the tests that cannot, with the reasons.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Recorded {
    /// The fingerprint of the plan whose tests were recorded.
    fingerprint: u64,
    pub tests: Vec<Test>,
    pub left_out: Vec<String>,
}

/// Runs all tests of the plan and records what they reach, `jobs` tests at a time. Uses the folder
/// `work` for files.
pub(super) fn record(plan: &Plan, work: &Path, jobs: usize) -> Result<Recorded, Failure> {
    let empty = work.join("empty");
    fs::create_dir_all(&empty).map_err(|err| unable(&empty, &err))?;
    let memory = work.join("recorded.json");
    let known = fs::read_to_string(&memory).ok();
    let known = known.and_then(|text| serde_json::from_str::<Recorded>(&text).ok());
    if let Some(known) = known.filter(|known| known.fingerprint == plan.fingerprint) {
        return Ok(known);
    }
    let mut all = Vec::new();
    for (index, program) in plan.programs.iter().enumerate() {
        for name in list(program, &empty)? {
            all.push((index, name));
        }
    }
    eprintln!(
        "mutants: recording which code {} tests of {} programs reach",
        all.len(),
        plan.programs.len()
    );
    let (next, out) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = |job: usize| -> Result<(), Failure> {
        let file = work.join(format!("reached.{job}"));
        // Relaxed: a counter that orders no other memory.
        while let Some((program, name)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = one(plan, *program, name, &file, &empty)?;
            out.lock().expect("no worker panics").push(one);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|job| scope.spawn(move || worker(job))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    let fingerprint = plan.fingerprint;
    let mut recorded = Recorded { fingerprint, ..Recorded::default() };
    for result in out.into_inner().expect("no worker panics") {
        match result {
            Ok(test) => recorded.tests.push(test),
            Err(why) => recorded.left_out.push(why),
        }
    }
    recorded.left_out.sort();
    let text = serde_json::to_string(&recorded).expect("a record is plain data");
    fs::write(&memory, text).map_err(|err| unable(&memory, &err))?;
    Ok(recorded)
}

/// Returns the names of a program's tests.
fn list(program: &Program, empty: &Path) -> Result<Vec<String>, Failure> {
    if !program.harness {
        return Ok(vec![String::new()]);
    }
    let mut command = child::command(program, empty);
    let output = command.args(["--list", "--format", "terse"]).output();
    let output = output.map_err(|err| unable(&program.path, &err))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // In a build for the model checker loom, run only the crate's models: its other tests do not
    // run under loom.
    let wanted = |name: &&str| !program.models || name.starts_with("loom::");
    let names = text.lines().filter_map(|line| line.strip_suffix(": test")).filter(wanted);
    Ok(names.map(str::to_owned).collect())
}

/// Runs one test. Returns its recording, or the reason why the test cannot be used.
fn one(
    plan: &Plan,
    index: usize,
    name: &str,
    file: &Path,
    empty: &Path,
) -> Result<Result<Test, String>, Failure> {
    let program = &plan.programs[index];
    let label = label(program, name);
    let other =
        |(package, start): &(&str, &str)| *package == program.package && name.starts_with(start);
    if LEFT_OUT.iter().any(other) {
        return Ok(Err(format!("{label}: needs files outside the source tree")));
    }
    fs::write(file, []).map_err(|err| unable(file, &err))?;
    let mut command = child::command(program, empty);
    command.env("MUTANT_RECORD", file);
    let longest = if program.models { LONGEST_MODEL } else { LONGEST };
    let limits = Limits { wall: longest * 10, cpu: longest * 2 };
    let (end, time) = child::run(command, program, &[name], limits)?;
    match end {
        End::Passed if time <= longest => {}
        End::Passed | End::Hung => return Ok(Err(format!("{label}: takes more than {longest:?}"))),
        End::Failed(_) | End::Crashed => {
            return Ok(Err(format!("{label}: fails without any mutant")));
        }
    }
    let bytes = fs::read(file).map_err(|err| unable(file, &err))?;
    let marked = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
    let reached = marked.filter_map(|(id, _)| u32::try_from(id).ok()).collect();
    Ok(Ok(Test { program: index, name: name.to_owned(), time, reached }))
}

/// Returns the name of a test for reports: the package and the test.
pub(super) fn label(program: &Program, name: &str) -> String {
    let Program { package, target, .. } = program;
    let name = if name.is_empty() { target.as_str() } else { name };
    format!("{package} {name}")
}
