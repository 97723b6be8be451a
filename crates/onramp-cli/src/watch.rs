//! A run of measurements, as the laboratory and the benchmarks make it: how long it will take, how
//! far it has come, which of its cells failed, and whether a signal has ended it early.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, anyhow};
use nix::sys::signal::Signal;
use onramp_lab::measure::{Failure, Steps};
use serde_json::{Map, Value, json};

use crate::error::Interrupted;
use crate::output;
use crate::progress::Progress;
use crate::signals::Interrupt;

/// What kept a run from measuring everything. A cell is one combination of settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Number of cells of which a measurement began.
    cells: usize,
    failures: Vec<Failure>,
    interrupted: Option<Signal>,
}

/// Makes a run of `steps` steps, which are expected to take as long as `expected`. Returns what
/// `work` has measured, even if steps failed or a signal came. The program must have no thread yet.
pub(crate) fn measure<T>(
    steps: usize,
    expected: Duration,
    work: impl FnOnce(&mut Steps<'_>) -> T,
) -> Result<(T, Outcome)> {
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::begin(steps, expected);
    let mut steps = Steps::new(|text| progress.step(text));
    let found = work(&mut steps);
    let (cells, failures) = steps.finish();
    Ok((found, Outcome { cells, failures, interrupted: interrupt.signal() }))
}

impl Outcome {
    /// Inserts into the document of a run which cells failed, and whether the run was interrupted.
    pub(crate) fn insert(&self, document: &mut Map<String, Value>) {
        let failure = |failure: &Failure| json!({"cell": failure.cell, "why": failure.why});
        document.insert("failures".into(), self.failures.iter().map(failure).collect());
        document.insert("interrupted".into(), self.interrupted.is_some().into());
    }

    /// Returns what stands below the table of a run; empty if everything was measured.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Failure { cell, why } in &self.failures {
            let _ = write!(text, "\nfailed: {cell}: {why}");
        }
        if let Some(signal) = self.interrupted {
            let _ = write!(text, "\ninterrupted by {signal}: only finished measurements are shown");
        }
        if text.is_empty() { text } else { format!("{text}\n") }
    }

    /// Returns what an HTML page says about cells that failed and about an interruption.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut document = Map::new();
        self.insert(&mut document);
        missing(&document)
    }

    /// Returns an error if the run was interrupted before it had measured anything: if `rows`, the
    /// number of its results, is 0. Then it writes no report, because that would replace the report
    /// of an earlier run.
    pub(crate) fn has_results(&self, rows: usize) -> Result<()> {
        if self.interrupted.is_none() || rows > 0 {
            return Ok(());
        }
        let why = "nothing was measured to its end, so no report was written";
        output::all([self.verdict(), Err(anyhow!(why))])
    }

    /// Returns an error if a cell failed or the run was interrupted.
    pub(crate) fn verdict(&self) -> Result<()> {
        let interrupted = self.interrupted.map_or(Ok(()), |signal| Err(Interrupted(signal).into()));
        let failed = self.failures.first().map_or(Ok(()), |Failure { cell, why }| {
            let (failed, cells) = (self.failures.len(), self.cells);
            let more = if failed > 1 { "; the others are below the table" } else { "" };
            Err(anyhow!("{failed} of {cells} cells failed: {cell}: {why}{more}"))
        });
        output::all([interrupted, failed])
    }
}

/// Returns what `document`, the JSON of a run, says about cells that failed and about an
/// interruption, a sentence each.
pub(crate) fn missing(document: &Map<String, Value>) -> Vec<String> {
    let failures = document.get("failures").and_then(Value::as_array).into_iter().flatten();
    let sentence = |failure: &Value| {
        let text = |key: &str| failure.get(key).and_then(Value::as_str).unwrap_or_default();
        format!("Failed: {}: {}", text("cell"), text("why"))
    };
    let mut sentences: Vec<_> = failures.map(sentence).collect();
    if document.get("interrupted") == Some(&Value::Bool(true)) {
        sentences.push("The run was interrupted: only finished measurements are shown.".to_owned());
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_signals_are_told_in_every_form() {
        let failure = Failure { cell: "red, 7 flows".to_owned(), why: "no room".to_owned() };
        let outcome =
            Outcome { cells: 3, failures: vec![failure], interrupted: Some(Signal::SIGINT) };
        let mut document = Map::new();
        outcome.insert(&mut document);
        let want = json!({
            "failures": [{"cell": "red, 7 flows", "why": "no room"}], "interrupted": true,
        });
        assert_eq!(Value::Object(document.clone()), want);
        assert_eq!(missing(&document)[0], "Failed: red, 7 flows: no room");
        assert_eq!(missing(&document).len(), 2);
        let text = "\nfailed: red, 7 flows: no room\n\
                    interrupted by SIGINT: only finished measurements are shown\n";
        assert_eq!(outcome.text(), text);
        let error = outcome.verdict().expect_err("it is not whole");
        let told = "interrupted by SIGINT; also: 1 of 3 cells failed: red, 7 flows: no room";
        assert_eq!(error.to_string(), told);
        assert_eq!(crate::error::report(&error), std::process::ExitCode::from(130));
    }

    #[test]
    fn an_interrupted_run_without_results_has_none_to_write() {
        let outcome =
            Outcome { cells: 1, interrupted: Some(Signal::SIGTERM), ..Outcome::default() };
        assert!(outcome.has_results(1).is_ok());
        let error = outcome.has_results(0).expect_err("nothing was measured");
        let told = "interrupted by SIGTERM; also: nothing was measured to its end, so no report \
                    was written";
        assert_eq!(error.to_string(), told);
        assert_eq!(crate::error::report(&error), std::process::ExitCode::from(143));
    }

    #[test]
    fn a_whole_run_tells_nothing() {
        let outcome = Outcome { cells: 3, ..Outcome::default() };
        assert!(outcome.has_results(0).is_ok(), "a run that came to its end");
        assert!(outcome.text().is_empty() && outcome.verdict().is_ok());
        let mut document = Map::new();
        outcome.insert(&mut document);
        assert_eq!(missing(&document), [""; 0]);
    }
}
