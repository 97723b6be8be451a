//! The copy of the project in which the mutants are built into the code.
//!
//! A file is written only if it changes, so that cargo builds no more than necessary. The files in
//! a crate's folder `tests` become one program, which is linked once and started once for each
//! mutant.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::plan::unable;
use crate::Failure;

const SWITCH: &str = include_str!("switch.rs");
const SWITCH_MANIFEST: &str = "[package]\nname = \"mutant-switch\"\nversion = \"0.0.0\"\n\
                               edition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n";

/// The name of the program into which the tests of a crate are merged.
pub(super) const MERGED: &str = "merged_tests";

/// The folder that holds the copy.
#[derive(Debug)]
pub(super) struct Tree {
    pub root: PathBuf,
    /// Test programs that cannot be merged with the others, each as `crates/NAME/tests/PROGRAM`.
    pub apart: BTreeSet<PathBuf>,
}

/// Returns the files below `dir`, without cargo's output and git's own files, as sorted paths
/// relative to `dir`.
pub(super) fn files(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut out = Vec::new();
    walk(dir, Path::new(""), &mut out).map_err(|err| unable(dir, &err))?;
    out.sort();
    Ok(out)
}

fn walk(root: &Path, below: &Path, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if kind.is_dir() {
            if name != "target" && name != ".git" {
                walk(root, &below.join(name), out)?;
            }
        } else if kind.is_file() && name != ".git" {
            out.push(below.join(name));
        }
    }
    Ok(())
}

impl Tree {
    /// Copies the project. For each file, `mutated` returns the new text, or `None` if the file is
    /// copied as it is.
    pub(super) fn write(
        &self,
        from: &Path,
        mutated: &dyn Fn(&Path) -> Option<String>,
        crates: &[&str],
    ) -> Result<(), Failure> {
        let mut wanted = files(from)?;
        for path in &wanted {
            let whole = from.join(path);
            // Do not copy the lock file over a newer one in the copy of the project: cargo has
            // added the crate `mutant-switch` to the copy's lock file.
            if path == Path::new("Cargo.lock") && is_newer(&self.root.join(path), &whole) {
                continue;
            }
            let bytes = match mutated(path) {
                Some(text) => text.into_bytes(),
                None => fs::read(&whole).map_err(|err| unable(&whole, &err))?,
            };
            let bytes = match in_crate(path, crates) {
                Some((name, rest)) if rest == Path::new("Cargo.toml") => {
                    manifest(&bytes, &self.apart_in(from, name)).into_bytes()
                }
                Some(_) if self.is_apart(path) => bytes,
                Some((_, rest)) => within_merged(&whole, rest, bytes),
                None => bytes,
            };
            self.put(path, &bytes)?;
        }
        self.put(Path::new("crates/mutant-switch/Cargo.toml"), SWITCH_MANIFEST.as_bytes())?;
        self.put(Path::new("crates/mutant-switch/lib.rs"), SWITCH.as_bytes())?;
        wanted.push("crates/mutant-switch/Cargo.toml".into());
        wanted.push("crates/mutant-switch/lib.rs".into());
        for name in crates {
            let tests = Path::new("crates").join(name).join("tests");
            if from.join(&tests).is_dir() {
                let path = tests.join(format!("{MERGED}.rs"));
                self.put(
                    &path,
                    merged(&from.join(&tests), &self.apart_in(from, name))?.as_bytes(),
                )?;
                wanted.push(path);
            }
        }
        for path in files(&self.root)? {
            if !wanted.contains(&path) && path != Path::new("Cargo.lock") {
                let path = self.root.join(path);
                fs::remove_file(&path).map_err(|err| unable(&path, &err))?;
            }
        }
        Ok(())
    }

    /// Excludes the test program that a file belongs to from the merged program, because it does
    /// not compile there. Returns false if the program was excluded before, or if the file belongs
    /// to no test program.
    pub(super) fn take_apart(&mut self, path: &Path) -> bool {
        let program: PathBuf = path.iter().take(4).collect();
        let is_test = path.iter().nth(2).is_some_and(|name| name == "tests");
        is_test && self.apart.insert(program.with_extension(""))
    }

    fn is_apart(&self, path: &Path) -> bool {
        let program: PathBuf = path.iter().take(4).collect();
        self.apart.contains(&program.with_extension(""))
    }

    /// Returns the names and files (relative to the crate) of those test programs of a crate that
    /// are not merged.
    fn apart_in(&self, from: &Path, name: &str) -> Vec<(String, String)> {
        let tests = Path::new("crates").join(name).join("tests");
        let own = self.apart.iter().filter_map(|program| program.strip_prefix(&tests).ok());
        let with_file = |program: &Path| {
            let program = program.display().to_string();
            let folder = from.join(&tests).join(&program).join("main.rs").is_file();
            let file = if folder { format!("{program}/main.rs") } else { format!("{program}.rs") };
            (program, format!("tests/{file}"))
        };
        own.map(with_file).collect()
    }

    /// Writes a file if the content on disk is different.
    pub(super) fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.root.join(path);
        if fs::read(&path).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        let parent = path.parent().expect("a file lies in a folder");
        fs::create_dir_all(parent).map_err(|err| unable(parent, &err))?;
        fs::write(&path, bytes).map_err(|err| unable(&path, &err))
    }
}

fn is_newer(copy: &Path, original: &Path) -> bool {
    let written = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    written(copy) > written(original)
}

/// Returns the name of the crate that the file `path` belongs to, and the path within the crate, or
/// `None` if the file belongs to none of `crates`.
fn in_crate<'a>(path: &'a Path, crates: &[&'a str]) -> Option<(&'a str, &'a Path)> {
    let rest = path.strip_prefix("crates").ok()?;
    crates.iter().find_map(|name| Some((*name, rest.strip_prefix(name).ok()?)))
}

/// Returns the manifest (`Cargo.toml`) of a crate, with a dependency on `mutant-switch` added, and
/// with one program for all tests that can be merged.
fn manifest(bytes: &[u8], apart: &[(String, String)]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.replacen("[package]\n", "[package]\nautotests = false\n", 1);
    let mut text = format!("{text}\n[dependencies.mutant-switch]\npath = \"../mutant-switch\"\n");
    let merged = (MERGED.to_owned(), format!("tests/{MERGED}.rs"));
    for (name, file) in [&merged].into_iter().chain(apart) {
        text += &format!("\n[[test]]\nname = \"{name}\"\npath = \"{file}\"\n");
    }
    text
}

/// Returns the source of the merged test program of a crate: a module for each test program, except
/// for those that the crate's manifest declares by `[[test]]` and those in `apart`.
fn merged(tests: &Path, apart: &[(String, String)]) -> Result<String, Failure> {
    let manifest = tests.parent().expect("a crate's folder").join("Cargo.toml");
    let manifest = fs::read_to_string(&manifest).map_err(|err| unable(&manifest, &err))?;
    let mut out = String::from("//! The tests of this crate.\n");
    let mut entries: Vec<_> = fs::read_dir(tests)
        .map_err(|err| unable(tests, &err))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    entries.sort();
    for path in entries {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let own = manifest.contains(&format!("[[test]]\nname = \"{stem}\""))
            || apart.iter().any(|(name, _)| *name == stem);
        let file = match path.is_dir() {
            true => path.join("main.rs"),
            false => path,
        };
        if own || !file.is_file() || file.extension().is_none_or(|ext| ext != "rs") {
            continue;
        }
        let file = file.strip_prefix(tests).expect("it lies there").display().to_string();
        out += &format!("#[path = \"{file}\"]\nmod {stem};\n");
    }
    Ok(out)
}

/// Rewrites a file of a test program that becomes a module of the merged program: a path `crate::x`
/// becomes `crate::PROGRAM::x`.
fn within_merged(whole: &Path, rest: &Path, bytes: Vec<u8>) -> Vec<u8> {
    let Ok(below) = rest.strip_prefix("tests") else { return bytes };
    let Some(first) = below.iter().next() else { return bytes };
    let program = Path::new(first).file_stem().unwrap_or_default().to_string_lossy();
    let depth = below.iter().count();
    let folder = whole.ancestors().nth(depth - 1).unwrap_or(whole);
    let is_program = match depth {
        1 => whole.extension().is_some_and(|ext| ext == "rs"),
        _ => folder.join("main.rs").is_file() || folder.with_extension("rs").is_file(),
    };
    match String::from_utf8(bytes) {
        Ok(text) if is_program => {
            text.replace("crate::", &format!("crate::{program}::")).into_bytes()
        }
        Ok(text) => text.into_bytes(),
        Err(err) => err.into_bytes(),
    }
}
