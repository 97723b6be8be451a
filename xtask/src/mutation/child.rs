//! Runs tests in a process that may hang, loop for ever, crash or use up memory.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit, waitid,
};

use super::plan::Program;
use crate::Failure;

/// Bytes of memory that a test process may use. A test that needs more probably collects data
/// without end, because of a mutant.
const MEMORY: u64 = 4 << 30;

/// The running time that is recorded for a test is its elapsed time, but at most twice its
/// processor time plus this duration. The elapsed time is too long on a busy machine, so the
/// processor time bounds the recorded time. This duration allows for tests that sleep or wait.
const WAITS: Duration = Duration::from_millis(500);

/// How a test process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Passed,
    /// The test with this name reported a failure.
    Failed(String),
    /// The process ended without the report that the test harness prints at its end.
    Crashed,
    /// The process exceeded its time limit.
    Hung,
}

/// How much time a test process may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub wall: Duration,
    /// The largest processor time of all threads together, in whole seconds.
    pub cpu: Duration,
}

impl Limits {
    /// Returns limits for tests that take `time` on the original code. The limits are much longer
    /// than `time`, because the machine may be busy.
    pub(super) fn for_tests(time: Duration) -> Self {
        Self { wall: Duration::from_secs(10) + time * 12, cpu: Duration::from_secs(2) + time * 8 }
    }
}

/// Makes the command that runs a test program in its folder. Removes or overrides environment
/// variables that could change the results: the test gets `empty` as the folder of shared files, a
/// fixed seed, and no active mutant.
pub(super) fn command(program: &Program, empty: &Path) -> Command {
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).process_group(0);
    command.env("ONRAMP_SHARED", empty).env("RUST_BACKTRACE", "0");
    command.env("PROPTEST_RNG_SEED", "1").env("CARGO_MANIFEST_DIR", &program.folder);
    command.env_remove("MUTANT").env_remove("MUTANT_RECORD").env_remove("CI");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Runs these tests of the program one after the other, until the first failure. Returns how the
/// process ended, and the tests' running time.
pub(super) fn run(
    mut command: Command,
    program: &Program,
    tests: &[&str],
    limits: Limits,
) -> Result<(End, Duration), Failure> {
    if program.harness {
        command.args(["--exact", "--test-threads", "1"]).args(tests);
    }
    let failed =
        |err: std::io::Error| Failure::Unable(format!("{}: {err}", program.path.display()));
    let start = now();
    let mut child = command.spawn().map_err(failed)?;
    let pid = Pid::from_child(&child);
    let limit = |what, value: u64| {
        // Setting a limit fails if the process has already ended. Then no limit is needed.
        let limit = Rlimit { current: Some(value), maximum: Some(value + 1) };
        let _ = prlimit(Some(pid), what, limit);
    };
    limit(Resource::Cpu, limits.cpu.as_secs() + 1);
    limit(Resource::As, MEMORY);
    let stdout = child.stdout.take().expect("it is piped");
    let end = read(stdout, program, tests.len(), start + limits.wall);
    let end = end.and_then(|end| settle(&mut child, pid, end, program, start + limits.wall));
    let (end, cpu) = end.map_err(failed)?;
    Ok((end, start.elapsed().min(cpu * 2 + WAITS)))
}

/// Returns the processor time of all threads of a process that has ended and was not waited for
/// yet.
fn processor_time(pid: Pid) -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    // In `/proc/PID/stat`, the program's name in parentheses may contain spaces, so count the words
    // from the last parenthesis: the 12th and 13th are the user time and the system time in ticks.
    let words = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11).take(2);
    let ticks: u64 = words.filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// Reads the output until a test reports a failure, the process closes its output, or the time is
/// up.
fn read(
    mut from: ChildStdout,
    program: &Program,
    tests: usize,
    late: Instant,
) -> std::io::Result<Option<End>> {
    let mut said = String::new();
    let mut bytes = [0; 4096];
    loop {
        let left = late.saturating_duration_since(now());
        if left.is_zero() {
            return Ok(Some(End::Hung));
        }
        let timeout = Timespec::try_from(left).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(err) => return Err(err.into()),
        }
        let count = from.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        if program.harness {
            said += &String::from_utf8_lossy(&bytes[..count]);
            if let Some(test) = failed_test(&said) {
                return Ok(Some(End::Failed(test)));
            }
        }
    }
    let all = format!("test result: ok. {tests} passed");
    let whole = !program.harness || said.contains(&all);
    Ok(if whole { None } else { Some(End::Crashed) })
}

fn failed_test(said: &str) -> Option<String> {
    let line = said.lines().find(|line| line.ends_with("... FAILED"))?;
    Some(
        line.strip_prefix("test ")?
            .split(" ... ")
            .next()?
            .trim_end_matches(" - should panic")
            .into(),
    )
}

/// Kills the test process, if it still runs, and all processes that it has started. Returns how the
/// test process ended, and its processor time.
fn settle(
    child: &mut Child,
    pid: Pid,
    end: Option<End>,
    program: &Program,
    late: Instant,
) -> std::io::Result<(End, Duration)> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let has_ended = || waitid(WaitId::Pid(pid), look).is_ok_and(|status| status.is_some());
    if end.is_none() || end == Some(End::Crashed) {
        // The process has closed its output, so it probably ends soon. Wait for its end, but not
        // beyond the time limit, because it may hang.
        while !has_ended() && now() < late {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let ended = has_ended();
    let cpu = processor_time(pid);
    // The kill cannot hit a foreign process group: a process that has ended keeps its number until
    // `wait` is called for it.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = child.wait()?;
    let spun = status.signal() == Some(Signal::XCPU.as_raw());
    let end = match end {
        Some(End::Crashed) if spun => End::Hung,
        Some(end) => end,
        None if !ended => End::Hung,
        None if status.success() => End::Passed,
        None if program.harness => End::Crashed,
        None => End::Failed(program.target.clone()),
    };
    Ok((end, cpu))
}

#[expect(clippy::disallowed_methods, reason = "it ends processes that are late")]
fn now() -> Instant {
    Instant::now()
}
