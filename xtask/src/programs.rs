//! The test programs of the workspace: compiles all, and runs several at a time.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::shell::{cargo, forget_xtask, output, root, run as run_cargo, timed};
use crate::tally::{self, Tally};
use crate::{Failure, Outcome};

/// The name of the program that stands for the tests in documentation, which cargo compiles each
/// time anew.
const DOCUMENTATION: &str = "workspace:documentation";
// With `--doc`, cargo would also test the documentation of crates that leave this out.
const DOC_TESTS: &[&str] =
    &["test", "--workspace", "--exclude", "*-simulated", "--doc", "--no-fail-fast"];

/// The program that takes longest, which starts first, so that it does not run alone at the end.
const LONGEST: &str = "onramp-cli:cli";

/// A test program that takes more seconds than this hangs.
const LIMIT: u32 = 1_800;

/// A program of tests, its arguments, and the folder in which it runs.
#[derive(Debug)]
pub(crate) struct Program {
    pub name: String,
    path: PathBuf,
    args: &'static [&'static str],
    folder: PathBuf,
}

impl Program {
    /// Makes a program that runs in the root of the repository.
    pub(crate) fn new(name: &str, path: &str, args: &'static [&'static str]) -> Self {
        Self { name: name.to_owned(), path: path.into(), args, folder: root() }
    }
}

/// What one run of a program showed.
pub(crate) struct Ran {
    pub name: String,
    pub took: Duration,
    pub tally: Tally,
    /// Why the run was a failure, if it was one.
    pub failure: Option<String>,
}

/// Builds the program `onramp` and the library of `onramp exec` in the folder `target/debug` with
/// the same features of all crates as the tests, so that CI compiles these crates once.
pub(crate) fn make_program() -> Outcome {
    // Cargo builds the program for the test. If no test were named, the crates would have other
    // features: those without their tests.
    run_cargo(&mut cargo(&["build", "--workspace", "--lib", "--test", "cli"]))
}

/// Compiles all tests, and returns their programs, with the one that stands for the tests in
/// documentation.
pub(crate) fn compile() -> Result<Vec<Program>, Failure> {
    make_program()?;
    let compile = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let mut programs = programs(&output(&mut cargo(&compile))?);
    programs.sort_by_key(|of| of.name != LONGEST);
    Ok(programs)
}

/// Returns the test programs in `messages`, cargo's JSON with one object per line, and the program
/// that stands for the tests in documentation.
fn programs(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let path = PathBuf::from(message["executable"].as_str()?);
        let manifest = PathBuf::from(message["manifest_path"].as_str()?);
        let folder = manifest.parent()?.to_owned();
        let package = folder.file_name()?.to_string_lossy().into_owned();
        let name = format!("{package}:{}", message["target"]["name"].as_str()?);
        Some(Program { name, path, args: &[], folder })
    };
    let documentation = Program::new(DOCUMENTATION, "cargo", DOC_TESTS);
    messages.lines().filter_map(program).chain([documentation]).collect()
}

/// Runs each program once, `jobs` at a time. The output of a program goes to `file` of it. When a
/// program has ended, calls `ended` with what it showed, for one program at a time.
pub(crate) fn run(
    programs: &[Program],
    jobs: usize,
    file: impl Fn(&Program) -> PathBuf + Sync,
    ended: impl Fn(&Ran, &Path) + Sync,
) -> Vec<Ran> {
    let (left, all) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = left.lock().expect("no thread panics").next();
                    let Some(program) = next else { return };
                    let file = file(program);
                    let (result, took) = timed(|| one(program, LIMIT, &file));
                    let (tally, failure) = result.unwrap_or_else(|err| {
                        (Tally::default(), Some(format!("it could not run: {err}")))
                    });
                    let ran = Ran { name: program.name.clone(), took, tally, failure };
                    let mut all = all.lock().expect("no thread panics");
                    ended(&ran, &file);
                    all.push(ran);
                }
            });
        }
    });
    all.into_inner().expect("no thread panics")
}

/// Runs a program, whose output goes to `file`. Returns the results in the output, and why the run
/// was a failure.
fn one(program: &Program, limit: u32, file: &Path) -> std::io::Result<(Tally, Option<String>)> {
    let said = File::create(file)?;
    // After `limit` seconds `timeout` kills the program with all processes that the program has
    // started, and so with itself. If a user ends xtask, the kernel tells `timeout`, which ends the
    // same processes.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "timeout", "--signal=KILL", &limit.to_string()]);
    command.arg(&program.path).args(program.args).current_dir(&program.folder);
    command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
    // The library of `onramp exec`. Cargo has put it beside this program, xtask.
    let library = std::env::current_exe()?.with_file_name("libonramp_preload.so");
    command.env("ONRAMP_TEST_PRELOAD", library);
    // One of the programs is cargo.
    forget_xtask(&mut command);
    let status = command.status()?;
    let mut tally = Tally::default();
    for line in BufReader::new(File::open(file)?).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if !tally::is_partial(&line) {
            tally.read(&line);
        }
    }
    let failure = match status.code() {
        None => Some(format!("{status}, which it gets after {limit} s")),
        Some(0) if tally.failed > 0 => Some(format!("{} tests failed", tally.failed)),
        Some(0) if tally.results == 0 => Some("it reported no result of tests".to_owned()),
        Some(0) => None,
        _ => Some(status.to_string()),
    };
    Ok((tally, failure))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn test_programs_are_found_among_the_messages() {
        let messages = r#"
            {"profile":{"test":true},"executable":"/t/a","manifest_path":"M","target":{"name":"a"}}
            {"profile":{"test":false},"executable":"/t/b","manifest_path":"M","target":{"name":"b"}}
            {"profile":{"test":true},"executable":null,"manifest_path":"M","target":{"name":"c"}}
            {"reason":"build-finished","success":true}"#;
        let found = programs(&messages.replace("\"M\"", "\"/w/onramp/Cargo.toml\""));
        let found: Vec<_> = found.iter().map(|of| (&*of.name, &*of.folder)).collect();
        let documentation = ("workspace:documentation", &*root());
        assert_eq!(found, [("onramp:a", Path::new("/w/onramp")), documentation]);
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_a_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        let shell = |name, args| Program::new(name, "sh", args);
        let all = [
            shell("passes", &["-c", "echo 'test result: ok. 2 passed; 0 failed'"]),
            shell("is empty", &["-c", "echo 'test result: ok. 0 passed; 0 failed'"]),
            shell(
                "stops within",
                &["-c", "echo 'test result: ok. 1 passed; 0 failed; 126 filtered out'"],
            ),
            shell("fails", &["-c", "echo 'test result: FAILED. 1 passed; 3 failed'; exit 101"]),
            shell("fails unseen", &["-c", "echo 'test result: FAILED. 1 passed; 1 failed'"]),
            shell("stops", &["-c", "echo running 5 tests"]),
            Program::new("is not there", "/no/such/program", &[]),
        ];
        let ended = Mutex::new(Vec::new());
        let file = |program: &Program| folder.path().join(&program.name);
        let seen = |ran: &Ran, file: &Path| {
            assert_eq!(file, folder.path().join(&ran.name));
            ended.lock().expect("no test panics").push(ran.name.clone());
        };
        // One at a time, so that they end in this order.
        let ran = run(&all, 1, file, seen);
        let names: Vec<_> = all.iter().map(|of| of.name.clone()).collect();
        assert_eq!(ended.into_inner().expect("no test panics"), names);
        let failures: Vec<_> = ran.iter().map(|ran| ran.failure.as_deref()).collect();
        assert_eq!(failures[..2], [None, None]);
        let unreported = Some("it reported no result of tests");
        assert_eq!(failures[2], unreported, "only a part of it did");
        assert_eq!(failures[3], Some("exit status: 101"));
        assert_eq!(failures[4], Some("1 tests failed"));
        assert_eq!(failures[5], unreported);
        assert_eq!(failures[6], Some("exit status: 127"));
        let why = std::fs::read_to_string(file(&all[6])).expect("it says why");
        assert!(why.contains("/no/such/program"), "{why}");
    }

    /// A program that is late ends together with the processes that it has started: all of them
    /// have the other end of this pipe, so the test reads to its end.
    #[test]
    fn a_late_program_ends_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut ours, theirs) = std::io::pipe().expect("a pipe");
        let path = format!("/proc/{}/fd/{}", std::process::id(), theirs.as_raw_fd());
        std::os::unix::fs::symlink(path, folder.path().join("pipe")).expect("a link");
        let script =
            &["-c", "exec 3> pipe; (sleep 1000; echo survived >&3) & echo began >&3; wait"];
        let mut late = Program::new("late", "sh", script);
        late.folder = folder.path().to_owned();
        let (tally, failure) = one(&late, 1, &folder.path().join("said")).expect("it runs");
        drop(theirs);
        assert_eq!(tally.results, 0);
        assert_eq!(failure.as_deref(), Some("signal: 9 (SIGKILL), which it gets after 1 s"));
        let mut said = String::new();
        ours.read_to_string(&mut said).expect("it is text");
        assert_eq!(said, "began\n");
    }
}
