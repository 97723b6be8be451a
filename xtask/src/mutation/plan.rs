//! The plan of a run of mutation testing: the mutants, and the programs that contain the tests.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Failure;

/// A mutant: one change of one place in the source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mutant {
    /// The number that selects this mutant when a test program runs.
    pub id: u32,
    /// The number of the first mutant of the same place. When a test reaches the place, it records
    /// this number.
    pub base: u32,
    /// The source file, as a path relative to the root of the project.
    pub path: String,
    pub line: usize,
    /// The column at which the change begins, counted from 1.
    pub column: usize,
    pub function: String,
    pub what: String,
    /// Numbers the mutants of a function that have the same description: 1, 2, and so on.
    pub nth: usize,
}

impl Mutant {
    /// Returns the name by which the list of equivalent mutants calls this mutant. The name stays
    /// the same when lines move.
    pub(super) fn key(&self) -> String {
        let Self { path, function, what, nth, .. } = self;
        let nth = if *nth == 1 { String::new() } else { format!(" #{nth}") };
        format!("{path} {function}: {what}{nth}")
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, column, function, what, .. } = self;
        write!(f, "{path}:{line}:{column}: {function}: {what}")
    }
}

/// Sets the field [`Mutant::nth`] of each mutant.
pub(super) fn count_alike(mutants: &mut [Mutant]) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for mutant in mutants {
        mutant.nth = 1;
        let count = seen.entry(mutant.key()).or_default();
        *count += 1;
        mutant.nth = *count;
    }
}

/// A program that contains tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Program {
    pub path: PathBuf,
    /// The folder in which the program runs.
    pub folder: PathBuf,
    /// The package whose tests this program runs.
    pub package: String,
    /// The cargo target that the program is built from: the library, or one of the files in
    /// `tests`.
    pub target: String,
    /// Whether the program understands the arguments of Rust's test harness.
    pub harness: bool,
    /// Whether the tests are loom models, which try all interleavings and may take longer.
    pub models: bool,
}

/// Everything that is needed to try mutants without the sources and without cargo.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// A number that changes when the sources or the tests change. Results of an earlier run are
    /// reused only if they have the same number.
    pub fingerprint: u64,
    pub mutants: Vec<Mutant>,
    /// For each source file, how many of its mutants were left out because they do not compile.
    pub unviable: Vec<(String, usize)>,
    pub programs: Vec<Program>,
    /// The folder with the copy of the project, whose files some tests read.
    pub tree: PathBuf,
    /// Mutants that no test can find because they are equivalent to the original, with the reason
    /// for each.
    pub equivalent: BTreeMap<String, String>,
}

impl Plan {
    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string(self).expect("a plan is plain data");
        fs::write(path, text).map_err(|err| unable(path, &err))
    }

    /// Leaves out the tests of crates in which the plan has no mutants. Changes the fingerprint, so
    /// that results found with fewer tests are not mixed with results found with all tests.
    pub(super) fn only_own_tests(&mut self) {
        let (mutants, before) = (&self.mutants, self.programs.len());
        self.programs.retain(|program| {
            let folder = format!("crates/{}/", program.package);
            mutants.iter().any(|mutant| mutant.path.starts_with(&folder))
        });
        let fewer = u64::try_from(before - self.programs.len()).unwrap_or_default();
        self.fingerprint = self.fingerprint.wrapping_add(fewer);
    }

    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|err| unable(path, &err))?;
        serde_json::from_str(&text)
            .map_err(|err| Failure::Unable(format!("{}: {err}", path.display())))
    }
}

pub(super) fn unable(path: &Path, err: &dyn fmt::Display) -> Failure {
    Failure::Unable(format!("{}: {err}", path.display()))
}

/// Returns the area of the report that a file belongs to: a kind of qdisc, the filters, or a crate.
pub(super) fn area(path: &str) -> String {
    let mut parts = path.trim_start_matches("crates/").splitn(2, "/src/");
    let (package, file) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let package = package.strip_prefix("onramp-").unwrap_or(package);
    if package != "core" {
        return package.to_owned();
    }
    let mut names = file.trim_end_matches(".rs").split('/');
    let first = names.next().unwrap_or("");
    match (first, names.next()) {
        ("qdisc", Some(kind)) => format!("core/qdisc/{kind}"),
        _ => format!("core/{first}"),
    }
}
