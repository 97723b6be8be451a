//! The command `cargo xtask repeat`: runs all tests many times beside busy loops, to find tests
//! that pass only on an idle machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::shell::{cargo, output, root, timed};
use crate::suite::{self, Tally};
use crate::{Failure, Outcome};

const HELP: &str = "\
usage: cargo xtask repeat [--rounds N] [--busy N] [--jobs N] [--may-skip] [WORD...]

Compiles all tests, and runs every test program N rounds (default 20) beside N busy loops (default
4), N programs at a time (default 2). The tests in documentation count as one more program,
`workspace:documentation`. WORD: only programs whose name contains a WORD.

Prints for each round how many tests passed, failed and were skipped, each failure, and the time
that each program took. Keeps the output of programs that failed in target/repeat. Fails if a test
failed, or if a WORD stands for no test. Also fails if a test was skipped for want of something that
could be installed, unless --may-skip is given.
";

/// Sets its flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The program that stands for the tests in documentation, which cargo compiles each time anew.
const DOCUMENTATION: (&str, &[&str]) =
    ("workspace:documentation", &["test", "--workspace", "--doc", "--no-fail-fast"]);

/// A test program that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(1_800);
/// How often to look whether a program has ended.
const LOOK: Duration = Duration::from_millis(100);

struct Request {
    rounds: usize,
    busy: usize,
    jobs: usize,
    may_skip: bool,
    words: Vec<String>,
}

/// A program of tests, its arguments, and the folder in which it runs.
#[derive(Debug)]
struct Program {
    name: String,
    path: PathBuf,
    args: &'static [&'static str],
    folder: PathBuf,
}

/// What one run of a program showed.
struct Ran {
    name: String,
    took: Duration,
    tally: Tally,
    failure: Option<String>,
}

pub(crate) fn run(args: &[String]) -> Outcome {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let wrong = |why: String| Failure::Failed(format!("repeat: {why}\n\n{HELP}"));
    let request = request(args).map_err(wrong)?;
    let lacks = suite::set_up();
    for why in &lacks {
        eprintln!("xtask: SKIP: {why}");
    }
    let compile = ["test", "--workspace", "--no-run", "--message-format=json"];
    let programs = programs(&output(&mut cargo(&compile))?);
    let mut programs = chosen(programs, &request.words).map_err(wrong)?;
    let kept = root().join("target/repeat");
    fs::create_dir_all(&kept).map_err(|err| Failure::Unable(format!("target/repeat: {err}")))?;
    let end = AtomicBool::new(false);
    let all = thread::scope(|scope| {
        for _ in 0..request.busy {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Also if a round panics, the busy loops end.
        let _guard = Ends(&end);
        let mut all = Vec::new();
        for round in 1..=request.rounds {
            let (ran, took) = timed(|| one_round(&programs, request.jobs, round, &kept));
            println!("round {round}: {}, {} s", sum(&ran), took.as_secs());
            // The next round begins with the programs that took longest, so that none runs alone
            // at the end.
            let took: BTreeMap<_, _> = ran.iter().map(|ran| (&ran.name, ran.took)).collect();
            programs.sort_by_key(|of| Reverse(took.get(&of.name).copied()));
            all.extend(ran);
        }
        all
    });
    report(&all, &lacks, &request)
}

fn request(args: &[String]) -> Result<Request, String> {
    let mut request = Request { rounds: 20, busy: 4, jobs: 2, may_skip: false, words: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = |least: usize| {
            let value = args.next().ok_or_else(|| format!("{arg} has no value"))?;
            let number = value.parse().map_err(|err| format!("{arg} {value}: {err}"))?;
            if number < least { Err(format!("{arg}: at least {least}")) } else { Ok(number) }
        };
        match arg.as_str() {
            "--rounds" => request.rounds = number(1)?,
            "--busy" => request.busy = number(0)?,
            "--jobs" => request.jobs = number(1)?,
            "--may-skip" => request.may_skip = true,
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => request.words.push(arg.clone()),
        }
    }
    Ok(request)
}

/// Returns the test programs that cargo has compiled, and the program that stands for the tests in
/// documentation. `messages` is cargo's JSON, one object per line.
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
    let (name, args) = DOCUMENTATION;
    let documentation =
        Program { name: name.to_owned(), path: "cargo".into(), args, folder: root() };
    messages.lines().filter_map(program).chain([documentation]).collect()
}

/// Returns the programs whose name contains one of the words, or all if there is no word.
///
/// # Errors
///
/// Names a word that no program's name contains.
fn chosen(mut programs: Vec<Program>, words: &[String]) -> Result<Vec<Program>, String> {
    let unknown = |word: &&String| !programs.iter().any(|of| of.name.contains(&***word));
    if let Some(word) = words.iter().find(unknown) {
        return Err(format!("no program has a name that contains {word}"));
    }
    programs.retain(|of| words.is_empty() || words.iter().any(|word| of.name.contains(&**word)));
    Ok(programs)
}

/// Runs each program once, `jobs` at a time.
fn one_round(programs: &[Program], jobs: usize, round: usize, kept: &Path) -> Vec<Ran> {
    let (left, ran) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = left.lock().expect("no thread panics").next();
                    let Some(program) = next else { return };
                    let own = program.path.file_name().unwrap_or_default().display();
                    let file = kept.join(format!("{own}-{round}"));
                    let (result, took) = timed(|| one(program, &file));
                    let (tally, failure) = result.unwrap_or_else(|err| {
                        (Tally::default(), Some(format!("it could not run: {err}")))
                    });
                    match &failure {
                        None => drop(fs::remove_file(&file)),
                        Some(why) => println!("{}: {why}: {}", program.name, file.display()),
                    }
                    let name = program.name.clone();
                    ran.lock().expect("no thread panics").push(Ran { name, took, tally, failure });
                }
            });
        }
    });
    ran.into_inner().expect("no thread panics")
}

/// Runs a program, whose output goes to `file`. Returns the results in the output, and why the run
/// was a failure.
fn one(program: &Program, file: &Path) -> std::io::Result<(Tally, Option<String>)> {
    let said = File::create(file)?;
    let mut command = Command::new(&program.path);
    command.args(program.args).current_dir(&program.folder).stdin(Stdio::null());
    let mut child = start(command.stdout(said.try_clone()?).stderr(said))?;
    let status = wait(&mut child, |took| took >= LIMIT)?;
    let mut tally = Tally::default();
    for line in BufReader::new(File::open(file)?).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if !suite::is_partial(&line) {
            tally.read(&line);
        }
    }
    let failure = match status {
        None => Some(format!("did not end within {} s", LIMIT.as_secs())),
        Some(status) if !status.success() => Some(status.to_string()),
        Some(_) if tally.failed > 0 => Some(format!("{} tests failed", tally.failed)),
        Some(_) if tally.results == 0 => Some("it reported no result of tests".to_owned()),
        Some(_) => None,
    };
    Ok((tally, failure))
}

/// Starts a program in a process group of its own, which [`wait`] can kill as a whole.
fn start(command: &mut Command) -> std::io::Result<Child> {
    command.process_group(0).spawn()
}

/// Waits until the program ends. If it still runs when `is_late` says so of the time that has
/// passed, kills it with all processes of its group, and returns `None`.
fn wait(
    child: &mut Child,
    is_late: impl Fn(Duration) -> bool,
) -> std::io::Result<Option<ExitStatus>> {
    let start = now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if is_late(now().duration_since(start)) {
            // The kill cannot hit a foreign group: the child keeps its number until it is waited
            // for. It fails if all processes of the group have ended meanwhile, as they should.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

#[expect(clippy::disallowed_methods, reason = "it ends programs that are late")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the sum of some runs as a text for people.
fn sum(all: &[Ran]) -> String {
    let failed = all.iter().filter(|ran| ran.failure.is_some()).count();
    let tests = |of: fn(&Tally) -> u64| all.iter().map(|ran| of(&ran.tally)).sum::<u64>();
    format!(
        "{} programs passed, {failed} failed; {} tests passed, {} failed, {} skipped",
        all.len() - failed,
        tests(|of| of.passed),
        tests(|of| of.failed),
        tests(|of| of.skipped.len() as u64),
    )
}

/// The sum of all runs of one program.
#[derive(Default)]
struct Line {
    runs: usize,
    failed: usize,
    longest: Duration,
    /// The number of tests that passed in the run in which fewest passed.
    tests: Option<u64>,
}

/// Prints the runs of each program, and why tests were skipped. `lacks` says what the machine
/// lacks.
///
/// # Errors
///
/// Says why the runs do not show that all tests pass.
fn report(all: &[Ran], lacks: &[String], request: &Request) -> Outcome {
    let mut lines: BTreeMap<&str, Line> = BTreeMap::new();
    let mut skipped: BTreeSet<String> =
        lacks.iter().map(|why| format!("{} {why}", suite::SKIP)).collect();
    for ran in all {
        let line = lines.entry(&ran.name).or_default();
        line.runs += 1;
        line.failed += usize::from(ran.failure.is_some());
        line.longest = line.longest.max(ran.took);
        line.tests = Some(line.tests.map_or(ran.tally.passed, |least| least.min(ran.tally.passed)));
        skipped.extend(ran.tally.skipped.iter().cloned());
    }
    println!("runs  failed  longest  tests  program");
    for (name, Line { runs, failed, longest, tests }) in &lines {
        let (longest, tests) = (longest.as_secs(), tests.unwrap_or(0));
        println!("{runs:4}  {failed:6}  {longest:5} s  {tests:5}  {name}");
    }
    println!("all rounds: {}", sum(all));
    for why in &skipped {
        println!("  {why}");
    }
    let fails = |why| Err(Failure::Failed(why));
    let failed = all.iter().filter(|ran| ran.failure.is_some()).count();
    if failed > 0 {
        return fails(format!("{failed} of {} runs failed", all.len()));
    }
    let passed = |word: &str| -> u64 {
        let some = lines.iter().filter(|(name, _)| name.contains(word));
        some.filter_map(|(_, line)| line.tests).sum()
    };
    if passed("") == 0 {
        return fails("no test ran".to_owned());
    }
    if let Some(word) = request.words.iter().find(|word| passed(word) == 0) {
        return fails(format!("no program whose name contains {word} has a test"));
    }
    let skipped: Vec<String> = skipped.into_iter().collect();
    match suite::mendable(&skipped) {
        count @ 1.. if !request.may_skip => {
            let why = "tests were skipped for reasons above that could be mended: --may-skip";
            Err(Failure::Unable(format!("{count} {why}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

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

    fn program(name: &str, path: &str, args: &'static [&'static str]) -> Program {
        Program { name: name.to_owned(), path: path.into(), args, folder: "/".into() }
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_word_chooses_programs() {
        let chosen = |line: &str| {
            let programs = ["onramp:link", "onramp-cli:cli", "onramp-cli:shape"];
            let programs = programs.map(|name| program(name, "true", &[])).into();
            let chosen = chosen(programs, &words(line))?;
            Ok(chosen.into_iter().map(|of| of.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen("").map(|names| names.len()), Ok(3));
        assert_eq!(chosen("link shape"), Ok(words("onramp:link onramp-cli:shape")));
        let why = "no program has a name that contains lonk".to_owned();
        assert_eq!(chosen("link lonk"), Err(why), "the other word stands for a program");
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_a_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        let shell = |name, args| program(name, "sh", args);
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
            program("is not there", "/no/such/program", &[]),
        ];
        // The programs share the name of the file for their output, so they run one by one.
        let ran = one_round(&all, 1, 1, folder.path());
        let failures: Vec<_> = ran.iter().map(|ran| ran.failure.as_deref()).collect();
        assert_eq!(failures[..2], [None, None]);
        let unreported = Some("it reported no result of tests");
        assert_eq!(failures[2], unreported, "only a part of it did");
        assert_eq!(failures[3], Some("exit status: 101"));
        assert_eq!(failures[4], Some("1 tests failed"));
        assert_eq!(failures[5], unreported);
        assert!(failures[6].is_some_and(|why| why.contains("could not run")), "{failures:?}");
        let said = "2 programs passed, 5 failed; 4 tests passed, 4 failed, 0 skipped";
        assert_eq!(sum(&ran), said);
    }

    /// Programs that passed: the name, the number of tests, and the reason of a skipped one.
    fn passed(programs: &[(&str, u64, &str)]) -> Vec<Ran> {
        let ran = |&(name, passed, skips): &(&str, u64, &str)| {
            let mut tally = Tally::default();
            tally.read(&format!("test result: ok. {passed} passed; 0 failed"));
            tally.read(skips);
            Ran { name: name.to_owned(), took: Duration::ZERO, tally, failure: None }
        };
        programs.iter().map(ran).collect()
    }

    /// Returns the verdict over some runs as a text that is empty if all is well.
    fn verdict(all: &[Ran], lacks: &[String], line: &str) -> String {
        let request = request(&words(line)).expect("a correct line");
        match report(all, lacks, &request) {
            Ok(()) => String::new(),
            Err(Failure::Failed(why) | Failure::Unable(why)) => why,
        }
    }

    #[test]
    fn a_report_without_a_test_is_no_success() {
        assert_eq!(verdict(&[], &[], ""), "no test ran");
        assert_eq!(verdict(&passed(&[("a", 0, "")]), &[], ""), "no test ran");
        let all = passed(&[("link", 3, ""), ("lib", 0, "")]);
        assert_eq!(verdict(&all, &[], ""), "", "a program may be without tests");
        assert_eq!(verdict(&all, &[], "link"), "");
        assert!(verdict(&all, &[], "link lib").contains("contains lib has a test"));
    }

    #[test]
    fn a_failed_run_is_a_failure_whatever_the_others_say() {
        let mut all = passed(&[("a", 3, ""), ("a", 3, "")]);
        all[0].failure = Some("exit status: 101".to_owned());
        assert_eq!(verdict(&all, &[], "--may-skip"), "1 of 2 runs failed");
    }

    #[test]
    fn a_skipped_test_is_a_failure_unless_nobody_could_mend_it() {
        let (kernel, reference) = ("SKIP: kernel: no IPv6", "SKIP: reference: no folder");
        let all = passed(&[("a", 3, kernel), ("b", 3, reference)]);
        assert_eq!(verdict(&all, &[], ""), "");
        let all = passed(&[("a", 3, ""), ("a", 3, "SKIP: no promtool"), ("b", 3, kernel)]);
        assert!(verdict(&all, &[], "").starts_with("1 tests were skipped"));
        assert_eq!(verdict(&all, &[], "--may-skip"), "");
        let (all, lacks) = (passed(&[("a", 3, "")]), ["no program `zsh`".to_owned()]);
        assert!(verdict(&all, &lacks, "").starts_with("1 tests were skipped"));
        assert_eq!(verdict(&all, &lacks, "--may-skip"), "");
    }

    /// A program that is late ends together with the processes that it has started. If one of them
    /// survived, the test would read what it prints a minute later.
    #[test]
    fn a_late_program_ends_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let started = folder.path().join("started");
        let script = "(touch started; sleep 60; echo survived) & wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder.path()).stdout(Stdio::piped());
        let mut child = start(&mut command).expect("there is a shell");
        let status = wait(&mut child, |_| started.exists()).expect("it can be waited for");
        assert_eq!(status, None);
        let mut said = String::new();
        child.stdout.take().expect("piped").read_to_string(&mut said).expect("it is text");
        assert_eq!(said, "");
    }

    #[test]
    fn a_program_that_ends_in_time_is_not_late() {
        let mut child = start(Command::new("sh").args(["-c", "exit 3"])).expect("a shell");
        let status = wait(&mut child, |took| took >= LIMIT).expect("it can be waited for");
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    }

    #[test]
    fn what_is_wrong_with_a_request_is_said() {
        let request = |line: &str| request(&words(line)).map(|of| (of.rounds, of.may_skip));
        assert_eq!(request("--rounds 3 --busy 0 daemon"), Ok((3, false)));
        assert_eq!(request("--may-skip"), Ok((20, true)));
        for (line, why) in [
            ("--rounds 0", "at least 1"),
            ("--rounds", "no value"),
            ("--jobs many", "many"),
            ("--often", "unknown option"),
        ] {
            assert!(request(line).is_err_and(|err| err.contains(why)), "{line}");
        }
    }
}
