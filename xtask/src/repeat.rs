//! The command `cargo xtask repeat`: runs all tests many times beside busy loops, to find tests
//! that pass only on an idle machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::programs::{self, Program, Ran};
use crate::shell::{root, timed};
use crate::tally::{SKIP, Tally, mendable};
use crate::{Failure, Outcome, suite};

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

struct Request {
    rounds: usize,
    busy: usize,
    jobs: usize,
    may_skip: bool,
    words: Vec<String>,
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
    let mut programs = chosen(programs::compile()?, &request.words).map_err(wrong)?;
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
        let Request { rounds, busy, jobs, .. } = &request;
        println!("{rounds} rounds beside {busy} busy loops, {jobs} programs at a time");
        for round in 1..=request.rounds {
            let file = |of: &Program| kept.join(format!("{}-{round}", of.name));
            let (ran, took) = timed(|| programs::run(&programs, request.jobs, file, keep));
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

/// Removes the output of a program that passed. Tells where the output of one that failed is.
fn keep(ran: &Ran, file: &Path) {
    match &ran.failure {
        None => drop(fs::remove_file(file)),
        Some(why) => println!("{}: {why}: {}", ran.name, file.display()),
    }
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
    // In how many runs of a program a test was skipped for a reason.
    let mut times: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut skipped: BTreeSet<String> = lacks.iter().map(|why| format!("{} {why}", SKIP)).collect();
    for ran in all {
        let line = lines.entry(&ran.name).or_default();
        line.runs += 1;
        line.failed += usize::from(ran.failure.is_some());
        line.longest = line.longest.max(ran.took);
        line.tests = Some(line.tests.map_or(ran.tally.passed, |least| least.min(ran.tally.passed)));
        for why in ran.tally.skipped.iter().collect::<BTreeSet<_>>() {
            *times.entry((&ran.name, why)).or_default() += 1;
        }
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
    // What a machine lacks, it lacks in each round.
    for ((name, why), count) in &times {
        let runs = lines[name].runs;
        if *count < runs {
            return fails(format!("{name}: in {count} of {runs} runs: {why}"));
        }
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
    match mendable(&skipped) {
        count @ 1.. if !request.may_skip => {
            let why = "tests were skipped for reasons above that could be mended: --may-skip";
            Err(Failure::Unable(format!("{count} {why}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_word_chooses_programs() {
        let chosen = |line: &str| {
            let programs = ["onramp:link", "onramp-cli:cli", "onramp-cli:shape"];
            let programs = programs.map(|name| Program::new(name, "true", &[])).into();
            let chosen = chosen(programs, &words(line))?;
            Ok(chosen.into_iter().map(|of| of.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen("").map(|names| names.len()), Ok(3));
        assert_eq!(chosen("link shape"), Ok(words("onramp:link onramp-cli:shape")));
        let why = "no program has a name that contains lonk".to_owned();
        assert_eq!(chosen("link lonk"), Err(why), "the other word stands for a program");
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
        let all = passed(&[("a", 3, ""), ("a", 3, kernel)]);
        assert_eq!(verdict(&all, &[], "--may-skip"), "a: in 1 of 2 runs: SKIP: kernel: no IPv6");
        let all = passed(&[("a", 3, "SKIP: no promtool"), ("b", 3, kernel)]);
        assert!(verdict(&all, &[], "").starts_with("1 tests were skipped"));
        assert_eq!(verdict(&all, &[], "--may-skip"), "");
        let (all, lacks) = (passed(&[("a", 3, "")]), ["no program `zsh`".to_owned()]);
        assert!(verdict(&all, &lacks, "").starts_with("1 tests were skipped"));
        assert_eq!(verdict(&all, &lacks, "--may-skip"), "");
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
