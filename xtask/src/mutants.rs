//! Weakens the crate `onramp-queue` in one place at a time, which makes a mutant. Each loom model
//! that claims to fail with this mutant must then fail.
//!
//! The source marks the places (`mutant::or("NAME", ...)`, `mutant::is("NAME")`), and the comment
//! of each model lists the mutants that break it (`Must fail with each of these mutants: NAME,
//! NAME.`). Both lists must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::checks::loom_tests;
use crate::shell::{root, show};
use crate::{Failure, Outcome};

const SOURCE: &str = "crates/onramp-queue/src";
const MODELS: &str = "crates/onramp-queue/tests/loom";
/// The words in a model's comment that stand before the names of its mutants.
const LIST: &str = "Must fail with each of these mutants:";

/// How long a model may run with a mutant. If a model runs longer, it is caught in an endless loop,
/// which counts as a failure of the model.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long all models together may run without a mutant.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(1_200);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// For each mutant's name, the models that must fail with it.
type Table = BTreeMap<String, Vec<String>>;

/// Checks that the models pass without a mutant. Then tries all mutants, or only those whose name
/// contains one of the arguments.
pub(crate) fn run(only: &[String]) -> Outcome {
    let exe = build()?;
    if verdict(&exe, "", "")? != SURVIVED {
        return Err(Failure::Failed(
            "a model fails without any mutant: run `cargo xtask loom`".into(),
        ));
    }
    try_out(&exe, only)
}

/// Tries all mutants. Only after `cargo xtask loom` has passed: a model that fails without a mutant
/// finds every mutant.
pub(crate) fn run_after_loom() -> Outcome {
    try_out(&build()?, &[])
}

fn try_out(exe: &Path, only: &[String]) -> Outcome {
    let marked = marked(&read(SOURCE)?);
    let mut table = Table::new();
    for (file, text) in read(MODELS)? {
        listed(&file, &text, &mut table);
    }
    let mut wrong = disagreements(&marked, &table);
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part));
    let wanted = table.iter().filter(|(name, _)| wanted(name));
    let pairs: Vec<_> =
        wanted.flat_map(|(name, models)| models.iter().map(move |m| (name, m))).collect();
    eprintln!("{:<32} {:<52} verdict", "mutant", "model");
    wrong.extend(survivors(exe, &pairs)?);
    eprintln!("{} mutants, {} of them wrong", table.len(), wrong.len());
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Failed(wrong.join("; "))) }
}

/// Runs each pair of a mutant and a model, as many at a time as there are processors. Returns a
/// line for each mutant that survives its model.
fn survivors(exe: &Path, pairs: &[(&String, &String)]) -> Result<Vec<String>, Failure> {
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || -> Result<(), Failure> {
        // Relaxed: a counter that orders no other memory.
        while let Some((mutant, model)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = verdict(exe, mutant, model)?;
            eprintln!("{mutant:<32} {model:<52} {verdict}");
            if verdict == SURVIVED {
                let mut survivors = survivors.lock().expect("no worker panics");
                survivors.push(format!("{mutant} survives {model}"));
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let jobs = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    Ok(survivors.into_inner().expect("no worker panics"))
}

/// Returns the names and contents of the Rust files in a folder and in the folders below it.
fn read(folder: &str) -> Result<Vec<(String, String)>, Failure> {
    let unable = |err| Failure::Unable(format!("{folder}: {err}"));
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(folder)).map_err(unable)? {
        let path = entry.map_err(unable)?.path();
        if path.is_dir() {
            files.extend(read(&path.to_string_lossy())?);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.push((stem, fs::read_to_string(&path).map_err(unable)?));
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the names of the mutants that the source marks.
fn marked(files: &[(String, String)]) -> BTreeSet<String> {
    let calls = ["mutant::or(", "mutant::is("];
    let names = files.iter().flat_map(|(_, text)| {
        calls.iter().flat_map(move |call| text.split(call).skip(1)).filter_map(|rest| {
            let name = rest.trim_start().strip_prefix('"')?.split('"').next()?;
            Some(name.to_owned())
        })
    });
    names.collect()
}

/// For each mutant, adds the models in a file that must fail with it.
fn listed(file: &str, text: &str, table: &mut Table) {
    let mut names: Option<String> = None;
    for line in text.lines().map(str::trim) {
        let doc = line.strip_prefix("///").map(str::trim);
        if let Some((_, rest)) = doc.and_then(|doc| doc.split_once(LIST)) {
            names = Some(rest.to_owned());
        } else if let (Some(doc), Some(names)) = (doc, &mut names) {
            *names += doc;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            let model = format!("{file}::{}", rest.split('(').next().unwrap_or(rest));
            for name in names.take().iter().flat_map(|names| names.split([',', '.'])) {
                if !name.trim().is_empty() {
                    table.entry(name.trim().to_owned()).or_default().push(model.clone());
                }
            }
        }
    }
}

fn disagreements(marked: &BTreeSet<String>, table: &Table) -> Vec<String> {
    let unlisted = marked.iter().filter(|name| !table.contains_key(*name));
    let unmarked = table.keys().filter(|name| !marked.contains(*name));
    let mut wrong: Vec<String> =
        unlisted.map(|name| format!("{name} is in no model's list of mutants")).collect();
    wrong.extend(unmarked.map(|name| format!("{name} is marked nowhere in {SOURCE}")));
    for line in &wrong {
        eprintln!("{line}");
    }
    wrong
}

/// Builds the models once. Each run then selects its mutant by an environment variable.
fn build() -> Result<PathBuf, Failure> {
    let mut command = loom_tests();
    command.arg("--no-run");
    eprintln!("$ {}", show(&command));
    let unable = |why: String| Failure::Unable(format!("`{}`: {why}", show(&command)));
    let output = loom_tests().arg("--no-run").output().map_err(|err| unable(err.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let exe = said
        .lines()
        .filter(|line| line.contains("Executable"))
        .find_map(|line| line.rsplit_once('(')?.1.strip_suffix(')'));
    match exe {
        Some(exe) if output.status.success() => Ok(root().join(exe)),
        _ => Err(Failure::Failed(format!("the models do not build:\n{said}"))),
    }
}

const SURVIVED: &str = "SURVIVED";

/// Runs one model, or all models if `model` is empty. The run uses a separate process, because a
/// mutant may corrupt memory.
fn verdict(exe: &Path, mutant: &str, model: &str) -> Result<&'static str, Failure> {
    let unable = |err| Failure::Unable(format!("{}: {err}", exe.display()));
    let mut command = Command::new(exe);
    command.env("ONRAMP_MUTANT", mutant);
    let patience = if model.is_empty() { PATIENCE_FOR_ALL } else { PATIENCE };
    if !model.is_empty() {
        command.args([model, "--exact"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.current_dir(root()).spawn().map_err(unable)?;
    let mut waited = Duration::ZERO;
    while waited < patience {
        if let Some(status) = child.try_wait().map_err(unable)? {
            return Ok(match status.code() {
                Some(0) => SURVIVED,
                Some(_) => "found",
                None => "found (crashed)",
            });
        }
        sleep(LOOK_EVERY);
        waited += LOOK_EVERY;
    }
    child.kill().map_err(unable)?;
    child.wait().map_err(unable)?;
    Ok("found (hung)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_source_and_models() {
        let source = "mutant::or(\"a-b\", X, Y); mutant::is(\n    \"c\") mutant::or(name, X, Y)";
        let marked = marked(&[("intake".into(), source.into())]);
        assert_eq!(marked.iter().collect::<Vec<_>>(), ["a-b", "c"]);
        let models = format!(
            "/// One.\n///\n/// {LIST} a-b,\n/// d.\n#[test]\nfn one() {{}}\n/// Two.\n#[test]\n\
             fn two() {{}}\n/// {LIST} a-b.\nfn three() {{"
        );
        let mut table = Table::new();
        listed("intake", &models, &mut table);
        assert_eq!(table["a-b"], ["intake::one", "intake::three"]);
        assert_eq!(table["d"], ["intake::one"]);
        let wrong = disagreements(&marked, &table);
        assert_eq!(wrong.len(), 2, "c is in no model, d is not in the source");
    }
}
