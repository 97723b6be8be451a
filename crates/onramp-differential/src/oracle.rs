//! Runs a plan on a real kernel, in virtual time, and caches the kernel's answers.
//!
//! The oracle is a program outside the project (`../shared/oracle/run CASE OUT`). It runs the lines
//! of `tc.txt` in a shell, sends the workload, and writes the packets that left and the packets
//! that were dropped to `kernel.csv`.

use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::plan::{Line, Plan};

/// The time on the kernel's clock at which the workload begins, in nanoseconds.
const START_NS: u64 = 20_000_000_000;
/// The first word of each line in which the kernel's machine reports how a `tc` line ended.
const MARK: &str = "onramp-said";
/// Before it starts, run number `n` reads `n` times this many bytes from `/dev/urandom`. Each run
/// then gets other random numbers from the kernel, until the kernel seeds its generator anew. The
/// qdiscs draw numbers when they are created, which is before that.
const SKIP_BYTES: u64 = 262_144;

/// Shell lines that make the kernel's clock tick on an idle machine, by timers that are due at each
/// tick. A `pie` has a timer at every second tick. So there are two `pie` qdiscs, of which the
/// second is created one tick after the first.
const TICKING: &str = "for n in 0 1; do ip link add tick$n type dummy; ip link set tick$n up; \
     tc qdisc add dev tick$n root pie tupdate 1ms; sleep 0.01; done >/dev/null 2>&1\n";

/// How many random numbers of 32 bits to use up, so that the kernel must generate new ones: a
/// little more than it generates at a time.
const STOCK: u32 = 40;

/// A real kernel, and a cache of its answers.
#[derive(Debug)]
pub struct Oracle {
    /// The folder that holds the oracle program.
    folder: PathBuf,
    /// The folder in which answers are cached.
    cache: PathBuf,
    /// Identifies the kernel, so that the cache is not used for another kernel.
    identity: String,
    asked: AtomicU64,
    remembered: AtomicU64,
}

/// How a `tc` line ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The exit status of `tc`. 0 means that the kernel accepted the line.
    pub status: i32,
    /// What `tc` printed.
    pub text: String,
}

/// What the kernel did with a plan (a case).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// How each `tc` line that builds the tree ended.
    pub lines: Vec<Said>,
    /// For each line that changes the tree during the run: when `tc` started and ended, in
    /// nanoseconds of the workload, and how the line ended.
    pub changes: Vec<(u64, u64, Said)>,
    /// The packets that left and the packets that were dropped, in the format of `kernel.csv`.
    pub kernel: String,
    /// What `tc -s -d` printed at the end.
    pub stats: String,
}

/// A source of the kernel's answers: the real kernel, or a substitute in tests.
pub trait Kernel: Sync + std::fmt::Debug {
    /// Runs `plan`, and returns what the kernel did. The random numbers of the kernel are those of
    /// run number `draw`.
    ///
    /// # Errors
    ///
    /// Fails with [`Silent`] if the kernel could not be asked, or did not answer.
    fn ask(&self, plan: &Plan, draw: u64) -> Result<Answer, Silent>;
}

/// The reason why the kernel gave no answer.
#[derive(Debug)]
pub struct Silent(pub String);

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Silent {}

/// Returns the shell script that the kernel's machine runs before the workload. `draw` selects one
/// of the kernel's sequences of random numbers.
#[must_use]
pub fn script(plan: &Plan, draw: u64) -> String {
    // For each change, a background process sleeps until its time and then runs `tc`. The process
    // turns off timer slack to wake up on time, and reports when `tc` started and ended.
    let mut script = String::from(
        "now() { awk '/^now/{print $3; exit}' /proc/timer_list; }\n\
         line() { n=$1; shift; \"$@\" 2>&1; echo; echo \"onramp-said line $n $?\"; }\n\
         later() { ( echo 1 > /proc/self/timerslack_ns; n=$1; w=$(($2-$(now))); shift 2; \
         sleep $((w/1000000000)).$(printf %09d $((w%1000000000))); a=$(now); \
         t=$(\"$@\" 2>&1); s=$?; b=$(now); echo; echo \"$t\"; \
         echo \"onramp-said change $n $s $a $b\" ) & }\n",
    );
    // Save the exit status of the `tc` line first, because `$?` after `echo` would be the status of
    // `echo`.
    script = script.replace(
        "2>&1; echo; echo \"onramp-said line $n $?\"",
        "2>&1; s=$?; echo; echo \"onramp-said line $n $s\"",
    );
    if draw > 0 {
        // The kernel seeds its generator anew some seconds after its start, from the entropy pool.
        // Reading from `/dev/urandom` does not change the pool, but writing does. Without the
        // write, all runs would use the same random numbers during the workload.
        let _ = writeln!(script, "echo draw {draw} >/dev/urandom");
        let _ = writeln!(script, "head -c {} /dev/urandom >/dev/null", draw * SKIP_BYTES);
        // The kernel takes small random numbers, such as the hashes of sockets, from a stock that
        // it generated earlier. Creating a file on tmpfs uses up one number of the stock.
        let _ = writeln!(
            script,
            "mkdir /draw; mount -t tmpfs none /draw; n=0; \
             while [ $n -lt {STOCK} ]; do : >/draw/$n; n=$((n+1)); done"
        );
    }
    if plan.ticks() {
        script += TICKING;
    }
    for (at, line) in plan.lines.iter().enumerate() {
        let _ = writeln!(script, "line {at} {line}");
    }
    for (at, (time_ns, line)) in plan.changes.iter().enumerate() {
        let _ = writeln!(script, "later {at} {} {line}", START_NS + time_ns);
    }
    script
}

impl Oracle {
    /// Opens the oracle in `folder`, with a cache of its answers in `cache`.
    ///
    /// # Errors
    ///
    /// Fails with [`Silent`] if `folder` has no oracle, or if `cache` cannot be created.
    pub fn new(folder: PathBuf, cache: PathBuf) -> Result<Self, Silent> {
        if !folder.join("run").exists() {
            return Err(Silent(format!(
                "there is no program `run` that asks the kernel in {}",
                folder.display()
            )));
        }
        fs::create_dir_all(&cache)
            .map_err(|error| Silent(format!("{}: {error}", cache.display())))?;
        let identity = identity(&folder);
        let (asked, remembered) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { folder, cache, identity, asked, remembered })
    }

    /// Returns how many plans the kernel was asked about, and how many the cache answered.
    #[must_use]
    pub fn asked(&self) -> (u64, u64) {
        // Relaxed: these numbers are only printed; no other memory depends on them.
        (self.asked.load(Ordering::Relaxed), self.remembered.load(Ordering::Relaxed))
    }
}

impl Kernel for Oracle {
    fn ask(&self, plan: &Plan, draw: u64) -> Result<Answer, Silent> {
        let files = [
            ("tc.txt", script(plan, draw)),
            ("opts", plan.opts()),
            ("workload.csv", plan.workload()),
            ("flows.csv", plan.flows()),
        ];
        let kept = self.cache.join(name(&self.identity, &files));
        if let Some(answer) = fs::read_to_string(&kept).ok().and_then(|text| read(plan, &text)) {
            // Relaxed: this number is only printed.
            self.remembered.fetch_add(1, Ordering::Relaxed);
            return Ok(answer);
        }
        let text = self.run(&files)?;
        let answer = read(plan, &text)
            .ok_or_else(|| Silent(format!("the kernel's shell stopped: {}", tail(&text))))?;
        let part = kept.with_extension(format!("{:?}", std::thread::current().id()));
        let written = fs::write(&part, &text).and_then(|()| fs::rename(&part, &kept));
        written.map_err(|error| Silent(format!("{}: {error}", kept.display())))?;
        Ok(answer)
    }
}

impl Oracle {
    /// Runs the oracle program. Returns what the kernel printed and did.
    fn run(&self, files: &[(&str, String)]) -> Result<String, Silent> {
        // Relaxed: this number is only printed.
        self.asked.fetch_add(1, Ordering::Relaxed);
        let silent =
            |error: std::io::Error| Silent(format!("the program that asks the kernel: {error}"));
        let place = tempfile::tempdir().map_err(silent)?;
        let (case, out) = (place.path().join("case"), place.path().join("out"));
        fs::create_dir(&case).map_err(silent)?;
        for (name, text) in files.iter().filter(|(_, text)| !text.is_empty()) {
            fs::write(case.join(name), text).map_err(silent)?;
        }
        let mut command = Command::new(self.folder.join("run"));
        let output = command.args([&case, &out]).stdin(Stdio::null()).output().map_err(silent)?;
        let read = |name: &str| fs::read(out.join(name));
        let stats = read("stats.txt").unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\r', "");
        match (read("console.log"), read("kernel.csv")) {
            (Ok(console), Ok(kernel)) if output.status.success() => {
                // Skip what the kernel prints while it boots.
                let console = text(console);
                let said = console.split_once("as init process").map_or("", |(_, said)| said);
                let (kernel, stats) = (text(kernel), text(stats));
                Ok(format!("{said}\n== kernel.csv\n{kernel}\n== stats.txt\n{stats}"))
            }
            _ => Err(Silent(format!(
                "the program that asks the kernel: {}",
                tail(&text(output.stderr))
            ))),
        }
    }
}

/// Returns the last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join("; ")
}

/// Returns the names, sizes and modification times of the oracle's files, as one text.
fn identity(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let about = entry.metadata().ok()?;
        let since = about.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(format!("{:?} {} {}", entry.file_name(), about.len(), since.as_secs()))
    };
    let mut files: Vec<String> = entries.filter_map(of).collect();
    files.sort();
    files.join("\n")
}

/// Returns the name of the cache file for a question: a hash of the oracle's identity and the case.
fn name(identity: &str, files: &[(&str, String)]) -> String {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, identity, files).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", hash(0), hash(1))
}

/// Reads an answer. Returns `None` if the text is incomplete.
fn read(plan: &Plan, text: &str) -> Option<Answer> {
    let (said, rest) = text.split_once("\n== kernel.csv\n")?;
    let (kernel, stats) = rest.split_once("\n== stats.txt\n")?;
    let (kernel, stats) = (kernel.to_owned(), stats.to_owned());
    let mut answer = Answer { kernel, stats, ..Answer::default() };
    let mut changes = vec![None; plan.changes.len()];
    let mut before = Vec::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            [MARK, "line", at, status] if *at == answer.lines.len().to_string() => {
                let text = std::mem::take(&mut before).join("; ");
                answer.lines.push(Said { status: status.parse().ok()?, text });
            }
            [MARK, "change", at, status, from, to] => {
                let time = |word: &str| Some(word.parse::<u64>().ok()?.saturating_sub(START_NS));
                let text = std::mem::take(&mut before).join("; ");
                let said = Said { status: status.parse().ok()?, text };
                *changes.get_mut(at.parse::<usize>().ok()?)? = Some((time(from)?, time(to)?, said));
            }
            [] => {}
            [first, ..] if first.starts_with('[') => {}
            _ => before.push(line),
        }
    }
    answer.changes = changes.into_iter().collect::<Option<_>>()?;
    (answer.lines.len() == plan.lines.len()).then_some(answer)
}

/// Returns the line if the kernel accepted it, or else a comment that says how the kernel refused
/// it.
#[must_use]
pub fn remark(line: &Line, said: &Said) -> String {
    match said.status {
        0 => line.to_string(),
        status => format!("# {line}: refused ({status}): {}", said.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::kinds::kind;

    const SAID: &str = "\n\nonramp-said line 0 0\n[   1.0] a word of the kernel's\nError: no.\n\n\
        onramp-said line 1 2\n\nwrong\nonramp-said change 0 2 20000000100 20000030200\n";

    fn plan() -> Plan {
        let mut plan = generate::still(1, kind("pfifo").expect("a kind"));
        plan.lines.push(plan.lines[0].clone());
        plan.changes.push((50, plan.lines[0].clone()));
        plan
    }

    #[test]
    fn answers_are_read() {
        let answer = read(&plan(), &format!("{SAID}\n== kernel.csv\nrows\n== stats.txt\nlines"))
            .expect("whole");
        let said = |status, text: &str| Said { status, text: text.into() };
        assert_eq!(answer.lines, [said(0, ""), said(2, "Error: no.")]);
        assert_eq!(answer.changes, [(100, 30_200, said(2, "wrong"))]);
        assert_eq!((&*answer.kernel, &*answer.stats), ("rows", "lines"));
        assert_eq!(remark(&plan().lines[0], &answer.lines[0]), plan().lines[0].to_string());
        assert!(remark(&plan().lines[0], &answer.lines[1]).ends_with("refused (2): Error: no."));
    }

    #[test]
    fn half_an_answer_is_none() {
        for less in ["onramp-said line 0 0", "onramp-said line 1 2", "20000030200"] {
            let half = SAID.replace(less, "");
            let half = format!("{half}\n== kernel.csv\nrows\n== stats.txt\nlines");
            assert_eq!(read(&plan(), &half), None, "{less}");
        }
        assert_eq!(read(&plan(), &format!("{SAID}\n== kernel.csv\nrows")), None, "no statistics");
        assert_eq!(read(&plan(), SAID), None, "nothing left or died");
    }

    /// Different run numbers and different options have different names of cache files.
    #[test]
    fn questions_have_names_of_their_own() {
        let mut other = plan();
        let file = |plan: &Plan, draw| [("tc.txt", script(plan, draw)), ("opts", plan.opts())];
        assert_ne!(name("a", &file(&plan(), 0)), name("a", &file(&plan(), 1)));
        assert_eq!(name("a", &file(&plan(), 1)), name("a", &file(&other, 1)));
        assert_ne!(name("a", &file(&plan(), 1)), name("b", &file(&plan(), 1)), "another kernel");
        other.link_bps += 1;
        assert_ne!(name("a", &file(&plan(), 1)), name("a", &file(&other, 1)));
        assert!(!script(&other, 0).contains("urandom"));
        assert!(
            script(&other, 2).contains("echo draw 2 >/dev/urandom\nhead -c 524288 /dev/urandom")
        );
    }
}
