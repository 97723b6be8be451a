//! Counts results of tests, and messages of skipped tests, in the output of test programs.

/// The beginning of the line that a test writes to standard error if it skips itself because
/// something is missing.
pub(crate) const SKIP: &str = "SKIP:";

/// The beginning of the line of a test that skips itself because the machine's kernel lacks
/// something, which no installation can provide.
const KERNEL: &str = "SKIP: kernel:";

/// The beginning of the line of a test that skips itself because a recording of Linux's behaviour
/// is missing. Tests that need no recording cover the same code.
const REFERENCE: &str = "SKIP: reference:";

/// Results that were read from the output of a test run: numbers of tests, and the messages about
/// skipped tests.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub passed: u64,
    pub failed: u64,
    /// Number of test programs that reported their results.
    pub results: u64,
    /// Each message about a skipped test once.
    pub skipped: Vec<String>,
}

impl Tally {
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result:") {
            self.results += 1;
            self.passed += number_before(result, " passed");
            self.failed += number_before(result, " failed");
        }
        // A program that runs its tests in one thread prints a test's name before it runs the test,
        // and the message follows on the same line.
        let line = match line.split_once(" ... ") {
            Some((test, message)) if test.starts_with("test ") => message.trim(),
            _ => line.trim(),
        };
        if line.starts_with(SKIP) {
            self.skip(line.to_owned());
        }
    }

    pub(crate) fn skip(&mut self, why: String) {
        if !self.skipped.contains(&why) {
            self.skipped.push(why);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.results += other.results;
        self.passed += other.passed;
        self.failed += other.failed;
        other.skipped.into_iter().for_each(|why| self.skip(why));
    }
}

/// Whether a line is the result of a program that left out some of its tests. A program that runs
/// all its tests may start itself with one of them, in a namespace, and show what that one says.
pub(crate) fn is_partial(line: &str) -> bool {
    line.starts_with("test result:") && number_before(line, " filtered out") > 0
}

fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or("");
    before.rsplit(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Counts the messages of tests that were skipped because something is missing that could be
/// installed. Any such message makes the command fail in CI, and makes `cargo xtask repeat` fail.
pub(crate) fn mendable(skipped: &[String]) -> usize {
    let mends = |why: &&String| !why.starts_with(KERNEL) && !why.starts_with(REFERENCE);
    skipped.iter().filter(mends).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let mut tally = Tally::default();
        tally.read("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured");
        tally.read("test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured");
        tally.read("SKIP: no root");
        tally.read("  SKIP: no root");
        tally.read("test skips ... ok");
        tally.read("test skips ... SKIP: no root");
        assert_eq!((tally.passed, tally.failed, tally.results), (19, 3, 2));
        tally.read("SKIP: kernel: no IPv6");
        tally.read("SKIP: reference: no folder");
        tally.read("test reads a file ... SKIP: reference: no file");
        let all = ["SKIP: no root", "SKIP: kernel: no IPv6", "SKIP: reference: no folder"];
        assert_eq!(tally.skipped[..3], all);
        assert_eq!(tally.skipped[3..], ["SKIP: reference: no file"]);
        let whole = "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; f";
        assert!(!is_partial(whole) && is_partial(&whole.replace("0 filtered", "126 filtered")));
        assert_eq!(mendable(&tally.skipped), 1);
        assert_eq!(mendable(&tally.skipped[1..]), 0, "nobody can install a kernel's module here");
    }
}
