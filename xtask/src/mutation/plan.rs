//! What is to be done: the mutants, and the programs that have the tests.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Failure;

/// One change of one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mutant {
    /// Its number, which chooses it.
    pub id: u32,
    /// The number of the first mutant of its place, by which tests say that they were there.
    pub base: u32,
    /// The file, from the root.
    pub path: String,
    pub line: usize,
    /// From 1.
    pub column: usize,
    pub function: String,
    pub what: String,
    /// Tells apart those of a function that are described alike: 1, 2, and so on.
    pub nth: usize,
}

impl Mutant {
    /// What names it in the list of the equivalent: stays when lines move.
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

/// Sets [`Mutant::nth`] of each.
pub(super) fn count_alike(mutants: &mut [Mutant]) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for mutant in mutants {
        mutant.nth = 1;
        let count = seen.entry(mutant.key()).or_default();
        *count += 1;
        mutant.nth = *count;
    }
}

/// A program with tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Program {
    pub path: PathBuf,
    /// The folder in which it runs.
    pub folder: PathBuf,
    /// The package.
    pub package: String,
    /// The target: the library, or one of the files in `tests`.
    pub target: String,
    /// Whether it knows the arguments of Rust's test harness.
    pub harness: bool,
    /// Whether its tests are models, which try all interleavings and may take longer.
    pub models: bool,
}

/// All that is needed to judge, without sources and without cargo.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Changes when the sources or the tests do.
    pub fingerprint: u64,
    pub mutants: Vec<Mutant>,
    /// How many were left out since they do not compile, by file.
    pub unviable: Vec<(String, usize)>,
    pub programs: Vec<Program>,
    /// The copy of the project, whose files some tests read.
    pub tree: PathBuf,
    /// Mutants that no test can find, and why.
    pub equivalent: BTreeMap<String, String>,
}

impl Plan {
    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string(self).expect("a plan is plain data");
        fs::write(path, text).map_err(|err| unable(path, &err))
    }

    /// Leaves out the tests of crates that have none of the mutants. Results of the one kind of
    /// run are not those of the other.
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

/// The part of the project that a file belongs to: a qdisc's kind, the filters, a crate.
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
