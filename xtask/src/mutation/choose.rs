//! Selects the mutants that a run tries: by crate, by file, by changed lines, or as a random
//! sample.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::process::Command;

use super::plan::Mutant;
use crate::Failure;
use crate::shell::root;

/// Ranges of line numbers, by the path of their file.
pub(super) type Lines = HashMap<String, Vec<RangeInclusive<usize>>>;

/// Returns the lines that differ from the commit `base`. Without `base`, compares with the commit
/// where the branch left `main`, or, on `main` itself, with the previous commit.
pub(super) fn changed(base: Option<&str>) -> Result<Lines, Failure> {
    let base = match base {
        Some(base) => base.to_owned(),
        None => {
            let head = git(&["rev-parse", "HEAD"])?;
            let fork = git(&["merge-base", "HEAD", "main"])
                .or_else(|_| git(&["merge-base", "HEAD", "origin/main"]))
                .unwrap_or_default();
            if fork.is_empty() || fork == head { "HEAD~1".to_owned() } else { fork }
        }
    };
    eprintln!("mutants: lines that differ from {base}");
    Ok(lines_of(&git(&["diff", "--unified=0", "--no-color", "--no-ext-diff", &base, "--"])?))
}

fn git(args: &[&str]) -> Result<String, Failure> {
    let output = Command::new("git").args(args).current_dir(root()).output();
    let output = output.map_err(|err| Failure::Unable(format!("`git`: {err}")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(Failure::Unable(format!("`git {}`: {}", args.join(" "), text(&output.stderr))))
}

/// Returns the lines that a diff adds. The diff must have no context lines.
fn lines_of(diff: &str) -> Lines {
    let (mut out, mut file) = (Lines::new(), String::new());
    for line in diff.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            path.clone_into(&mut file);
        } else if let Some(rest) = line.strip_prefix("@@ ") {
            let new = rest.split(' ').find_map(|word| word.strip_prefix('+')).unwrap_or("");
            let (start, count) = new.split_once(',').unwrap_or((new, "1"));
            if let (Ok(start), Ok(count @ 1..)) = (start.parse::<usize>(), count.parse::<usize>()) {
                out.entry(file.clone()).or_default().push(start..=start + count - 1);
            }
        }
    }
    out
}

/// Whether `mutant` changes one of the lines in `lines`.
pub(super) fn stands_on(lines: &Lines, mutant: &Mutant) -> bool {
    let ranges = lines.get(&mutant.path);
    ranges.is_some_and(|ranges| ranges.iter().any(|range| range.contains(&mutant.line)))
}

/// Draws `count` of the mutants at random and returns their numbers. The same seed draws the same
/// mutants.
pub(super) fn sample(mutants: &[&Mutant], count: usize, seed: u64) -> HashSet<u32> {
    let mut rng = fastrand::Rng::with_seed(seed);
    rng.choose_multiple(mutants.iter(), count).into_iter().map(|mutant| mutant.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_lines_of_a_difference() {
        let diff = "diff --git a/x.rs b/x.rs\n--- a/x.rs\n+++ b/x.rs\n@@ -3 +3,2 @@ fn a\n-a\n\
                    +b\n+c\n@@ -9,2 +10,0 @@\n-d\n-e\n@@ -20 +19 @@\n-f\n+g\n";
        let lines = lines_of(diff);
        assert_eq!(lines["x.rs"], [3..=4, 19..=19], "what only went has no line to stand on");
    }
}
