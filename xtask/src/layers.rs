//! Checks how the modules of a crate use each other: no cycles, and no import from a higher layer.
//! The modules of examples and of fuzzing's targets must have no cycles either.
//!
//! Only sibling modules are compared: if `a/x.rs` uses `b/y.rs`, then `a` uses `b`. A module is a
//! part of its parent, so a use between a module and its parent does not count. Tests are exempt.
//!
//! The check follows names as the compiler does: through imports, renamed imports, globs and
//! re-exports, and in the arguments of macros.

mod module;
mod modules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use modules::Modules;

/// The layers of a crate, lowest first. Each layer may use the layers before it in the list.
pub(crate) const LAYERS: &[(&str, &[&str])] =
    &[("crates/onramp-core", &["base", "law", "filter", "sched", "qdisc", "tc", "tree", "port"])];

/// A file of code that is data for its crate: mutation testing writes it into the crates it tests.
const DATA: &str = "xtask/src/mutation/switch.rs";

/// An import that is not allowed, or code that this check cannot follow: its file and line, and the
/// reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

/// A function that reads a file. Returns `None` if the file does not exist or is no text.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// For each pair of sibling modules of which the first uses the second: the file and line of the
/// first such use.
type Uses = BTreeMap<(usize, usize), (PathBuf, usize)>;

/// Checks all crates. `layers` has the layers of some of them, `files` are all files of the
/// project.
pub(crate) fn check_all(
    crates: &[PathBuf],
    layers: &[(&str, &[&str])],
    files: &[PathBuf],
    read: Read<'_>,
) -> Vec<Wrong> {
    let table = |krate: &Path| layers.iter().find(|(name, _)| krate == Path::new(name));
    let of = |krate: &PathBuf| check(krate, table(krate).map(|(_, table)| *table), files, read);
    let mut wrong: Vec<_> = crates.iter().flat_map(of).collect();
    for (name, _) in layers {
        if !crates.iter().any(|krate| krate == Path::new(name)) {
            let what = format!("`LAYERS` names `{name}`, which is no crate");
            wrong.push(Wrong { file: "xtask/src/layers.rs".into(), line: 1, what });
        }
    }
    wrong.extend(check_programs(files, read));
    wrong
}

/// Checks the modules of the programs that stand in no crate's `src`.
fn check_programs(files: &[PathBuf], read: Read<'_>) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    for root in files.iter().filter(|file| in_programs(file).is_some_and(is_root)) {
        let modules = Modules::read(root, read, &mut wrong);
        wrong.extend(circles(&modules, &uses(&modules)));
        found.push(modules);
    }
    wrong.extend(unread(files.iter().filter(|file| in_programs(file).is_some()), &found));
    wrong
}

/// Returns the path of a file of code below the folder of programs that it stands in: the examples
/// of a crate, or the targets of fuzzing. Returns `None` for other files.
fn in_programs(file: &Path) -> Option<&Path> {
    let krate = || file.ancestors().find(|dir| dir.parent() == Some(Path::new("crates")));
    let examples = || file.strip_prefix(krate()?.join("examples")).ok();
    let below = file.strip_prefix("fuzz/fuzz_targets").ok().or_else(examples);
    below.filter(|file| is_code(file))
}

/// Whether cargo builds a program from this file, whose path begins in a folder of programs.
fn is_root(file: &Path) -> bool {
    match file.components().count() {
        1 => true,
        2 => file.ends_with("main.rs"),
        _ => false,
    }
}

fn is_code(file: &Path) -> bool {
    file.extension().is_some_and(|kind| kind == "rs")
}

/// Returns each of `files` that belongs to none of the crates and programs `found`.
fn unread<'f>(files: impl Iterator<Item = &'f PathBuf>, found: &[Modules]) -> Vec<Wrong> {
    let lost = files.filter(|file| !found.iter().any(|modules| modules.knows(file)));
    let wrong = lost.map(|file| {
        let what = "no `mod` that this check can read leads to this file".to_owned();
        Wrong { file: file.clone(), line: 1, what }
    });
    wrong.collect()
}

/// Checks the modules of the crate in folder `krate`. If `layers` is given, also checks the imports
/// between its layers.
fn check(krate: &Path, layers: Option<&[&str]>, files: &[PathBuf], read: Read<'_>) -> Vec<Wrong> {
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| krate.join(root));
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    for root in roots.into_iter().filter(|root| read(root).is_some()) {
        let modules = Modules::read(&root, read, &mut wrong);
        let uses = uses(&modules);
        wrong.extend(circles(&modules, &uses));
        wrong.extend(layers.map(|layers| upward(&modules, &uses, layers)).unwrap_or_default());
        found.push(modules);
    }
    let code = files.iter().filter(|file| {
        is_code(file) && file.starts_with(krate.join("src")) && *file != Path::new(DATA)
    });
    wrong.extend(unread(code, &found));
    if found.is_empty() {
        let what = "there is neither `src/lib.rs` nor `src/main.rs`".to_owned();
        wrong.push(Wrong { file: krate.to_owned(), line: 1, what });
    }
    wrong
}

/// Returns the pairs of sibling modules of which the first uses the second, with the place of the
/// use.
fn uses(modules: &Modules) -> Uses {
    let mut uses = Uses::new();
    for (from, module) in modules.iter() {
        for name in &module.used {
            for to in modules.resolve(from, &name.path) {
                let (from, to) = (modules.way(from), modules.way(to));
                let apart = from.iter().zip(&to).find(|(from, to)| from != to);
                if let Some((from, to)) = apart {
                    let place = || (name.file.clone(), name.line);
                    uses.entry((*from, *to)).or_insert_with(place);
                }
            }
        }
    }
    uses
}

/// Returns each import that is part of a cycle of sibling modules.
fn circles(modules: &Modules, uses: &Uses) -> Vec<Wrong> {
    let reaches = |from: usize, to: usize| {
        let (mut seen, mut next) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = next.pop() {
            let used = uses.range((at, 0)..=(at, usize::MAX)).map(|((_, used), _)| *used);
            next.extend(used.filter(|used| seen.insert(*used)));
        }
        seen.contains(&to)
    };
    let circular = uses.iter().filter(|((from, to), _)| reaches(*to, *from));
    let wrong = circular.map(|((from, to), (file, line))| {
        let (from, to) = (&modules[*from].name, &modules[*to].name);
        let what = format!("`{from}` uses `{to}`, which uses `{from}`, directly or through others");
        Wrong { file: file.clone(), line: *line, what }
    });
    wrong.collect()
}

/// Returns each import from a higher layer, each module that belongs to no layer, and each layer
/// that is no module.
fn upward(modules: &Modules, uses: &Uses, layers: &[&str]) -> Vec<Wrong> {
    let rank = |module: usize| layers.iter().position(|layer| *layer == modules[module].name);
    let root = &modules[0];
    let mut wrong = Vec::new();
    for (name, module) in &root.children {
        if rank(*module).is_none() && modules[*module].file != root.file {
            let what = format!("`{name}` is in none of the layers {}", layers.join(", "));
            wrong.push(Wrong { file: modules[*module].file.clone(), line: 1, what });
        }
    }
    // What the root itself holds would belong to no layer.
    let of_root = modules.iter().filter(|(_, module)| module.file == root.file);
    for line in of_root.filter_map(|(_, module)| module.own_code) {
        let what = "a crate with layers has only modules and `use` in its root".to_owned();
        wrong.push(Wrong { file: root.file.clone(), line, what });
    }
    for layer in layers.iter().filter(|layer| !root.children.contains_key(**layer)) {
        let what = format!("`LAYERS` names `{layer}`, which is no module here");
        wrong.push(Wrong { file: root.file.clone(), line: 1, what });
    }
    for ((from, to), (file, line)) in uses {
        if let (Some(below), Some(above)) = (rank(*from), rank(*to))
            && below < above
        {
            let what = format!("`{}` is below `{}` and uses it", layers[below], layers[above]);
            wrong.push(Wrong { file: file.clone(), line: *line, what });
        }
    }
    wrong
}
