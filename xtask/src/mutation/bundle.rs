//! Packs all that another machine needs to try mutants: the test programs without symbols, the
//! plan, and the program `xtask`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::plan::{Plan, unable};
use crate::shell::run;
use crate::{Failure, Outcome};

/// Folders in the copy of the project that contains the mutants. The tests read files of these
/// folders when they run.
const DATA: &[&str] = &[
    "fuzz/corpus",
    "docs",
    "crates/onramp-sim/tests/kernel_cases",
    "crates/onramp-sim/tests/kernel_draws",
];

/// Copies everything into the folder `dir`. When `dir` has been moved to another machine,
/// `DIR/xtask mutants --plan DIR` tries the mutants there.
pub(super) fn write(plan: &Plan, dir: &Path) -> Outcome {
    let programs = dir.join("programs");
    fs::create_dir_all(&programs).map_err(|err| unable(dir, &err))?;
    let mut plan = plan.clone();
    for (index, program) in plan.programs.iter_mut().enumerate() {
        let path = PathBuf::from("programs").join(index.to_string());
        strip(&program.path, &dir.join(&path))?;
        program.path = path;
        let folder = program.folder.strip_prefix(&plan.tree).unwrap_or(&program.folder);
        program.folder = Path::new("tree").join(folder);
        let folder = dir.join(&program.folder);
        fs::create_dir_all(&folder).map_err(|err| unable(&folder, &err))?;
    }
    for data in DATA {
        let from = plan.tree.join(data);
        for file in super::tree::files(&from)? {
            let to = dir.join("tree").join(data).join(&file);
            let parent = to.parent().expect("a file lies in a folder");
            fs::create_dir_all(parent).map_err(|err| unable(parent, &err))?;
            fs::copy(from.join(&file), &to).map_err(|err| unable(&to, &err))?;
        }
    }
    plan.write(&dir.join("plan.json"))?;
    // Copy this program through `/proc/self/exe`, because its file may have been built anew since
    // it was started.
    let program = dir.join("xtask");
    fs::copy("/proc/self/exe", &program).map_err(|err| unable(&program, &err))?;
    eprintln!("mutants: judge there with `{0}/xtask mutants --plan {0}`", dir.display());
    Ok(())
}

fn strip(from: &Path, to: &Path) -> Outcome {
    run(Command::new("strip").arg(from).arg("-o").arg(to))
}

/// Reads the folder that [`write`](fn@write) filled. Makes the copied files available at the path
/// that they had when the tests were built, because the tests look for them there.
pub(super) fn open(dir: &Path) -> Result<Plan, Failure> {
    let dir = dir.canonicalize().map_err(|err| unable(dir, &err))?;
    let mut plan = Plan::read(&dir.join("plan.json"))?;
    for program in &mut plan.programs {
        program.path = dir.join(&program.path);
        program.folder = dir.join(&program.folder);
    }
    if !plan.tree.exists() {
        let there = || {
            fs::create_dir_all(plan.tree.parent()?).ok()?;
            std::os::unix::fs::symlink(dir.join("tree"), &plan.tree).ok()
        };
        if there().is_none() {
            eprintln!("mutants: cannot create {}, so some tests will fail", plan.tree.display());
        }
    }
    Ok(plan)
}
