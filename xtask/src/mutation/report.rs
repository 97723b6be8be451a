//! Reports how many mutants were found in each area of the project, and which mutants survived (no
//! test failed with them).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use serde_json::{Value, json};

use super::judge::Fate;
use super::plan::{Mutant, Plan, area};

/// For the mutants of one area: how many of them had which result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Number of mutants that compile.
    pub viable: usize,
    pub found: usize,
    /// Number of mutants whose code tests reach, but with which no test fails.
    pub survived: usize,
    /// Number of mutants whose code no test reaches.
    pub unreached: usize,
    pub equivalent: usize,
}

impl Tally {
    /// Returns the percentage of mutants that were found. Equivalent mutants, which no test can
    /// find, do not count. Returns 100 if there are no other mutants.
    pub(super) fn score(&self) -> f64 {
        let of = self.found + self.survived + self.unreached;
        if of == 0 { 100.0 } else { 100.0 * share(self.found, of) }
    }

    /// Returns an error message if less than `percent` of the mutants were found.
    pub(super) fn lacks(&self, percent: f64) -> Option<String> {
        let score = self.score();
        (score < percent).then(|| format!("mutants: {score:.1} % found, but {percent} % required"))
    }

    fn add(&mut self, other: &Self) {
        self.viable += other.viable;
        self.found += other.found;
        self.survived += other.survived;
        self.unreached += other.unreached;
        self.equivalent += other.equivalent;
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn share(part: usize, of: usize) -> f64 {
    part as f64 / of as f64
}

/// The mutants of a plan, with their results.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub plan: &'a Plan,
    pub fates: &'a HashMap<String, Fate>,
    pub left_out: &'a [String],
}

impl Report<'_> {
    fn fate(&self, mutant: &Mutant) -> Option<&Fate> {
        self.fates.get(&mutant.key())
    }

    fn is_equivalent(&self, mutant: &Mutant) -> bool {
        self.plan.equivalent.contains_key(&mutant.key())
    }

    /// Returns the counts of results for each area.
    pub(super) fn tallies(&self) -> BTreeMap<String, Tally> {
        let mut out: BTreeMap<String, Tally> = BTreeMap::new();
        for mutant in &self.plan.mutants {
            let fate = self.fate(mutant);
            let equivalent = self.is_equivalent(mutant);
            if fate.is_none() && !equivalent {
                continue;
            }
            let tally = out.entry(area(&mutant.path)).or_default();
            tally.viable += 1;
            match fate {
                Some(fate) if fate.is_found() => tally.found += 1,
                _ if equivalent => tally.equivalent += 1,
                Some(Fate::Unreached) => tally.unreached += 1,
                _ => tally.survived += 1,
            }
        }
        // Add the mutants that were not tried because they are listed as equivalent.
        let tried: HashSet<String> = self.plan.mutants.iter().map(Mutant::key).collect();
        for key in self.plan.equivalent.keys().filter(|key| !tried.contains(*key)) {
            let path = key.split(' ').next().unwrap_or("");
            if let Some(tally) = out.get_mut(&area(path)) {
                tally.viable += 1;
                tally.equivalent += 1;
            }
        }
        out
    }

    /// Returns a message for each mutant that is listed as equivalent to the original, although a
    /// test finds it.
    pub(super) fn wrongly_listed(&self) -> Vec<String> {
        let found = self.plan.mutants.iter().filter(|it| self.is_equivalent(it)).filter_map(|it| {
            let fate = self.fate(it).filter(|fate| fate.is_found())?;
            Some(format!("listed as equivalent, but found: {} ({})", it.key(), words(fate)))
        });
        found.collect()
    }

    /// Returns a line of text for each mutant that survived and is not listed as equivalent.
    pub(super) fn survivors(&self) -> Vec<String> {
        let line = |mutant: &Mutant| {
            let fate = self.fate(mutant).filter(|fate| !fate.is_found())?;
            let listed = self.is_equivalent(mutant);
            (!listed).then(|| format!("{mutant} … {}", words(fate)))
        };
        self.plan.mutants.iter().filter_map(line).collect()
    }

    /// Returns the counts of results of all areas together.
    pub(super) fn all(&self) -> Tally {
        let mut all = Tally::default();
        self.tallies().values().for_each(|tally| all.add(tally));
        all
    }

    /// Returns the table of results by area, as text.
    pub(super) fn table(&self) -> String {
        let tallies = self.tallies();
        let mut groups: BTreeMap<String, Tally> = BTreeMap::new();
        for (area, tally) in &tallies {
            let parts: Vec<&str> = area.split('/').collect();
            for depth in 1..parts.len() {
                groups.entry(parts[..depth].join("/") + "/*").or_default().add(tally);
            }
            groups.entry("all".into()).or_default().add(tally);
        }
        let head = ["area", "viable", "found", "survived", "unreached", "equivalent", "score"];
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{:<24} {:>7} {:>7} {:>9} {:>10} {:>11} {:>7}",
            head[0], head[1], head[2], head[3], head[4], head[5], head[6]
        );
        for (area, it) in tallies.iter().chain(&groups) {
            let _ = writeln!(
                out,
                "{area:<24} {:>7} {:>7} {:>9} {:>10} {:>11} {:>6.1}%",
                it.viable,
                it.found,
                it.survived,
                it.unreached,
                it.equivalent,
                it.score()
            );
        }
        out
    }

    /// Returns the results by area as JSON, for programs.
    pub(super) fn json(&self) -> Value {
        let areas: Vec<Value> = self
            .tallies()
            .iter()
            .map(|(area, it)| {
                json!({
                    "area": area, "viable": it.viable, "found": it.found, "survived": it.survived,
                    "unreached": it.unreached, "equivalent": it.equivalent, "score": it.score(),
                })
            })
            .collect();
        let mutants: Vec<Value> = self
            .plan
            .mutants
            .iter()
            .filter_map(|it| {
                let fate = self.fate(it).map(|fate| serde_json::to_value(fate).ok())?;
                Some(json!({
                    "key": it.key(), "path": it.path, "line": it.line, "column": it.column,
                    "function": it.function, "what": it.what, "fate": fate,
                    "equivalent": self.plan.equivalent.get(&it.key()),
                }))
            })
            .collect();
        json!({ "areas": areas, "unviable": self.plan.unviable, "left_out": self.left_out,
                "mutants": mutants })
    }
}

fn words(fate: &Fate) -> String {
    match fate {
        Fate::Found(test) => format!("found by {test}"),
        Fate::Hung(test) => format!("found (hung) by {test}"),
        Fate::Crashed(test) => format!("found (crashed) by {test}"),
        Fate::Survived { ran, reach } if ran == reach => format!("SURVIVED {ran} tests"),
        Fate::Survived { ran, reach } => format!("SURVIVED {ran} tests of {reach} that reach it"),
        Fate::Unreached => "SURVIVED: no test reaches it".to_owned(),
    }
}
