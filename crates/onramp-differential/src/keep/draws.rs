//! Keeps cases whose result depends on random choices. A file holds statistics of the kernel's runs
//! and a recording of one run of our own.

use std::fs;
use std::path::{Path, PathBuf};

use onramp_sim::recording::{Case, Figures, ours};

use super::{Candidate, Keeper};
use crate::generate::{Size, sized};
use crate::judge::{How, judge};
use crate::kinds::{self, Kind};
use crate::oracle::Silent;
use crate::plan::Plan;

/// The seed of our run that is recorded.
const SEED: u64 = 1;

impl Keeper<'_> {
    /// Keeps the best cases of a kind whose result depends on random choices. Returns the number of
    /// cases that differ.
    pub(super) fn choose_draws(&self, kind: &Kind, candidates: Vec<Candidate>) -> usize {
        self.best(kind, candidates, |plan| {
            let Some(text) = self.draws(plan)? else { return Ok(None) };
            self.put(plan, &text)?;
            Ok(Some(text.len()))
        })
    }

    /// Compares the cases in the folder with the kernel's statistics again, and replaces the
    /// recordings of our runs. Files of cases that differ from the kernel stay as they are. Returns
    /// true if no case differs.
    ///
    /// # Errors
    ///
    /// Fails with [`Silent`] if the folder cannot be read.
    pub fn renew(&self) -> Result<bool, Silent> {
        let silent = |error: std::io::Error| Silent(format!("{}: {error}", self.folder.display()));
        let entries = fs::read_dir(self.folder).map_err(silent)?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
        paths.sort();
        let mut agree = true;
        for path in paths {
            let told = match planned(&path) {
                None => Err(format!("{}: no case of ours", path.display())),
                Some(plan) => match self.draws(&plan) {
                    Ok(Some(text)) => self.renewed(&path, &plan, &text),
                    Ok(None) => Err(format!("{}: chance has no part in it", path.display())),
                    Err(why) => Err(why),
                },
            };
            agree &= told.is_ok();
            println!("{}", told.unwrap_or_else(|why| format!("NOT RENEWED: {why}")));
        }
        Ok(agree)
    }

    fn renewed(&self, path: &Path, plan: &Plan, text: &str) -> Result<String, String> {
        let same = fs::read_to_string(path).is_ok_and(|old| old == text);
        self.put(plan, text)?;
        Ok(format!("{}: {}", path.display(), if same { "as before" } else { "renewed" }))
    }

    /// Returns the case with a recording of our run and the statistics of the kernel's runs, if the
    /// judge finds no difference. Returns `None` if no random choice affects the result.
    fn draws(&self, plan: &Plan) -> Result<Option<String>, String> {
        let name = super::name(plan);
        let silent = |why: Silent| format!("{name}: no answer: {why}");
        let verdict = judge(plan, self.oracle).map_err(silent)?;
        if !verdict.differences.is_empty() {
            return Err(format!("{name}: DIFFERS: {}", verdict.differences.join("; ")));
        }
        if verdict.how != How::Distribution {
            return Ok(None);
        }
        let broken = |error: onramp_sim::recording::CaseError| error.to_string();
        let mut figures = Figures::default();
        for answer in crate::judge::answers(plan, self.oracle).map_err(silent)? {
            figures.join(Case::parse(&name, &answer).map_err(broken)?.recorded_figures());
        }
        let text = ours(&name, &verdict.text, SEED).map_err(broken)? + &figures.text();
        let unlike = Case::parse(&name, &text).map_err(broken)?.unlike(SEED..SEED + 8);
        match unlike.is_empty() {
            true => Ok(Some(text)),
            false => Err(format!("{name}: DIFFERS: {}", unlike.join("; "))),
        }
    }
}

/// Generates the plan that belongs to a file named `KIND-NUMBER.txt`.
fn planned(path: &Path) -> Option<Plan> {
    let stem = path.file_stem()?.to_str()?;
    let (kind, seed) = stem.rsplit_once('-')?;
    Some(sized(seed.parse().ok()?, kinds::kind(kind)?, &Size::SMALL))
}
