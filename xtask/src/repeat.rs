//! The command `cargo xtask repeat`: runs all test programs many times beside busy loops, to find
//! tests that pass only on an idle machine.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::shell::{cargo, output, timed};
use crate::{Failure, Outcome, suite};

const HELP: &str = "\
usage: cargo xtask repeat [--rounds N] [--busy N] [--jobs N] [WORD...]

Compiles all tests, and runs every test program N rounds (default 20) beside N busy loops (default
4), N programs at a time (default 2). WORD: only programs whose name contains a WORD. Prints each
failure, and the time that each program took; keeps the output of programs that failed in
target/repeat. The tests in documentation are not run.
";

/// Sets its flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A test program that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(1_800);
/// How often to look whether a program has ended.
const LOOK: Duration = Duration::from_millis(100);

struct Request {
    rounds: usize,
    busy: usize,
    jobs: usize,
    words: Vec<String>,
}

/// A program of tests, and the folder in which cargo runs it.
struct Program {
    name: String,
    path: PathBuf,
    folder: PathBuf,
}

/// What one run of a program showed.
struct Ran {
    name: String,
    took: Duration,
    failure: Option<String>,
}

pub(crate) fn run(args: &[String]) -> Outcome {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let wrong = |why: String| Failure::Failed(format!("repeat: {why}\n\n{HELP}"));
    let request = request(args).map_err(wrong)?;
    for lacks in suite::set_up() {
        eprintln!("xtask: SKIP: {lacks}");
    }
    let compile = ["test", "--workspace", "--no-run", "--message-format=json"];
    let mut programs = programs(&output(&mut cargo(&compile))?);
    programs.retain(|of| {
        request.words.is_empty() || request.words.iter().any(|word| of.name.contains(&**word))
    });
    if programs.is_empty() {
        return Err(wrong("no program has a name that contains WORD".into()));
    }
    let kept = crate::shell::root().join("target/repeat");
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
            let failed = ran.iter().filter(|ran| ran.failure.is_some()).count();
            println!(
                "round {round}: {} programs passed, {failed} failed, {} s",
                ran.len() - failed,
                took.as_secs()
            );
            // The next round begins with the programs that took longest, so that none runs alone
            // at the end.
            let took: BTreeMap<_, _> = ran.iter().map(|ran| (&ran.name, ran.took)).collect();
            programs.sort_by_key(|of| Reverse(took.get(&of.name).copied()));
            all.extend(ran);
        }
        all
    });
    report(&all)
}

fn request(args: &[String]) -> Result<Request, String> {
    let mut request = Request { rounds: 20, busy: 4, jobs: 2, words: Vec::new() };
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
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => request.words.push(arg.clone()),
        }
    }
    Ok(request)
}

/// Returns the test programs that cargo has compiled; `messages` is its JSON, one object per line.
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
        Some(Program { name, path, folder })
    };
    messages.lines().filter_map(program).collect()
}

/// Runs each program once, `jobs` at a time.
fn one_round(programs: &[Program], jobs: usize, round: usize, kept: &std::path::Path) -> Vec<Ran> {
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
                    let failure = result.err();
                    match &failure {
                        None => drop(fs::remove_file(&file)),
                        Some(why) => println!("{}: {why}: {}", program.name, file.display()),
                    }
                    let name = program.name.clone();
                    ran.lock().expect("no thread panics").push(Ran { name, took, failure });
                }
            });
        }
    });
    ran.into_inner().expect("no thread panics")
}

/// Runs a program, whose output goes to `file`.
fn one(program: &Program, file: &std::path::Path) -> Result<(), String> {
    let said = File::create(file).map_err(|err| err.to_string())?;
    let copy = said.try_clone().map_err(|err| err.to_string())?;
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).stdin(Stdio::null()).stdout(said).stderr(copy);
    let mut child = command.spawn().map_err(|err| err.to_string())?;
    let mut waited = Duration::ZERO;
    loop {
        match child.try_wait().map_err(|err| err.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(status.to_string()),
            None if waited >= LIMIT => {
                drop(child.kill());
                drop(child.wait());
                return Err(format!("did not end within {} s", LIMIT.as_secs()));
            }
            None => thread::sleep(LOOK),
        }
        waited += LOOK;
    }
}

fn report(all: &[Ran]) -> Outcome {
    let mut times: BTreeMap<&str, (usize, usize, Duration)> = BTreeMap::new();
    for ran in all {
        let (count, failed, longest) = times.entry(&ran.name).or_default();
        *count += 1;
        *failed += usize::from(ran.failure.is_some());
        *longest = ran.took.max(*longest);
    }
    println!("runs  failed  longest  program");
    for (name, (count, failed, longest)) in &times {
        println!("{count:4}  {failed:6}  {:5} s  {name}", longest.as_secs());
    }
    match all.iter().filter(|ran| ran.failure.is_some()).count() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} of {} runs failed", all.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_the_messages() {
        let messages = r#"
            {"profile":{"test":true},"executable":"/t/a","manifest_path":"M","target":{"name":"a"}}
            {"profile":{"test":false},"executable":"/t/b","manifest_path":"M","target":{"name":"b"}}
            {"profile":{"test":true},"executable":null,"manifest_path":"M","target":{"name":"c"}}
            {"reason":"build-finished","success":true}"#;
        let found = programs(&messages.replace("\"M\"", "\"/w/onramp/Cargo.toml\""));
        let found: Vec<_> =
            found.iter().map(|of| (&*of.name, of.folder.display().to_string())).collect();
        assert_eq!(found, [("onramp:a", "/w/onramp".to_owned())]);
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_a_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = |path: &str| {
            let (name, folder) = (path.to_owned(), folder.path().to_owned());
            Program { name, path: path.into(), folder }
        };
        let all = [program("true"), program("false"), program("/no/such/program")];
        let ran = one_round(&all, 2, 1, folder.path());
        let failures: BTreeMap<_, _> =
            ran.iter().map(|ran| (&*ran.name, ran.failure.is_some())).collect();
        let expected = [("true", false), ("false", true), ("/no/such/program", true)];
        assert_eq!(failures, BTreeMap::from(expected));
        report(&ran).expect_err("two of three failed");
        report(&[]).expect("none failed");
    }

    #[test]
    fn what_is_wrong_with_a_request_is_said() {
        let request = |line: &str| {
            request(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).map(|of| of.rounds)
        };
        assert_eq!(request("--rounds 3 --busy 0 daemon"), Ok(3));
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
