//! Builds the tests with all mutants (changes of the source in one place) in them, and leaves out
//! the mutants that do not compile.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::find::{Found, find};
use super::plan::{Mutant, Plan, Program, count_alike, unable};
use super::render::{Numbered, Rendered, render};
use super::tree::{self, Tree};
use crate::Failure;
use crate::shell::show;

/// The largest number of times that the tests are built. An error in one crate hides the errors of
/// the crates that use it, so several rounds are needed.
const ROUNDS: usize = 40;

/// Where the sources are, which crates are built, and where the results go.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub project: &'a Path,
    /// The folder for the copy of the project, cargo's output, and the list of mutants that do not
    /// compile.
    pub work: PathBuf,
    /// The crates whose sources are mutated.
    pub crates: Vec<&'a str>,
    /// The crates whose tests judge the mutants.
    pub judges: Vec<&'a str>,
}

/// A source file, with the places in it that mutants change.
struct File {
    path: PathBuf,
    source: String,
    functions: Vec<Range<usize>>,
    sites: Vec<Numbered>,
    rendered: Rendered,
}

/// All mutants of a project, before it is known which of them compile.
pub(super) struct Mutants {
    files: Vec<File>,
    pub all: Vec<Mutant>,
}

impl Mutants {
    /// Reads the sources of the crates and finds their mutants.
    pub(super) fn of(project: &Path, crates: &[&str]) -> Result<Self, Failure> {
        let mut files = Vec::new();
        for name in crates {
            files.extend(sources(project, &Path::new("crates").join(name).join("src"))?);
        }
        let (mut all, mut next) = (Vec::new(), 0);
        for file in &mut files {
            for site in &mut file.sites {
                site.base = next;
                for change in &site.site.changes {
                    all.push(Mutant {
                        id: next,
                        base: site.base,
                        path: file.path.display().to_string(),
                        line: change.at.line,
                        column: change.at.column + 1,
                        function: site.site.function.clone(),
                        what: change.what.clone(),
                        nth: 1,
                    });
                    next += 1;
                }
            }
        }
        count_alike(&mut all);
        Ok(Self { files, all })
    }

    /// Leaves out the mutants for which `keep` returns false.
    pub(super) fn retain(&mut self, keep: &dyn Fn(&Mutant) -> bool) {
        for site in self.files.iter_mut().flat_map(|file| &mut file.sites) {
            for id in site.ids() {
                let kept = keep(&self.all[id as usize]);
                site.viable[(id - site.base) as usize] &= kept;
            }
        }
    }

    fn viable(&self) -> HashSet<u32> {
        let sites = self.files.iter().flat_map(|file| &file.sites);
        let alive = sites.flat_map(|site| site.ids().zip(&site.viable));
        alive.filter(|(_, viable)| **viable).map(|(id, _)| id).collect()
    }

    /// Leaves out these mutants. Returns how many of them had not been left out before.
    fn drop(&mut self, guilty: &HashSet<u32>) -> usize {
        let mut count = 0;
        for site in self.files.iter_mut().flat_map(|file| &mut file.sites) {
            for id in site.ids().filter(|id| guilty.contains(id)) {
                let viable = &mut site.viable[(id - site.base) as usize];
                count += usize::from(*viable);
                *viable = false;
            }
        }
        count
    }
}

fn sources(project: &Path, below: &Path) -> Result<Vec<File>, Failure> {
    let mut found: Vec<(PathBuf, String, Found)> = Vec::new();
    for path in tree::files(&project.join(below))? {
        if path.extension().is_none_or(|ext| ext != "rs") {
            continue;
        }
        let whole = project.join(below).join(&path);
        let source = fs::read_to_string(&whole).map_err(|err| unable(&whole, &err))?;
        let sites = find(&source).map_err(|err| unable(&whole, &err))?;
        found.push((below.join(path), source, sites));
    }
    let mut left_out = Vec::new();
    for (path, _, found) in &found {
        let parent = path.parent().unwrap_or_else(|| Path::new(""));
        let root = ["lib", "main", "mod"].iter().any(|stem| path.ends_with(format!("{stem}.rs")));
        let dir = if root { parent.to_path_buf() } else { path.with_extension("") };
        left_out.extend(found.only_tests.iter().map(|name| dir.join(name)));
    }
    let is_test = |path: &Path| {
        left_out.iter().any(|dir| path.starts_with(dir) || path == dir.with_extension("rs"))
    };
    let file = |(path, source, found): (PathBuf, String, Found)| {
        let number = |site: super::find::Site| {
            let viable = vec![true; site.changes.len()];
            Numbered { site, base: 0, viable }
        };
        let sites = found.sites.into_iter().map(number).collect();
        File { path, source, functions: found.functions, sites, rendered: Rendered::default() }
    };
    Ok(found.into_iter().filter(|(path, ..)| !is_test(path)).map(file).collect())
}

/// Builds the test programs. The plan that it returns has the mutants that compile.
pub(super) fn build(place: &Place<'_>, mut mutants: Mutants) -> Result<Plan, Failure> {
    let mut tree = Tree { root: place.work.join("tree"), apart: BTreeSet::new() };
    let chosen = mutants.viable();
    forget(place, &mut mutants)?;
    let mut complaint = String::new();
    for round in 1..=ROUNDS {
        write(place, &tree, &mut mutants)?;
        eprintln!(
            "mutants: round {round}: checking which of {} mutants compile",
            mutants.viable().len()
        );
        let errors = check(place, &tree)?;
        let (mut guilty, mut moved) = (HashSet::new(), false);
        complaint.clear();
        for error in &errors {
            let ids = error.spans.iter().find_map(|(path, bytes)| {
                let file = mutants.files.iter().find(|file| file.path == *path)?;
                file.rendered.guilty(bytes)
            });
            match ids {
                Some(ids) => guilty.extend(ids),
                None => {
                    complaint += &error.text;
                    let mut files = error.spans.iter().map(|(path, _)| path);
                    moved |= files.any(|path| tree.take_apart(path));
                }
            }
        }
        if errors.is_empty() {
            return plan(place, &tree, mutants, &chosen);
        }
        if mutants.drop(&guilty) == 0 && !moved {
            break;
        }
        remember(place, &mutants, &chosen)?;
    }
    Err(Failure::Failed(format!("the copy with the mutants does not compile:\n{complaint}")))
}

fn write(place: &Place<'_>, tree: &Tree, mutants: &mut Mutants) -> Result<(), Failure> {
    for file in &mut mutants.files {
        file.rendered = render(&file.source, &file.sites, &file.functions);
    }
    let texts: HashMap<&Path, &str> =
        mutants.files.iter().map(|file| (&*file.path, &*file.rendered.text)).collect();
    let mutated = |path: &Path| texts.get(path).map(|text| (*text).to_owned());
    let mut crates = place.crates.clone();
    crates.extend(&place.judges);
    tree.write(place.project, &mutated, &crates)
}

/// A compiler error with the places that it names. The place at fault comes first.
struct Complaint {
    spans: Vec<(PathBuf, Range<usize>)>,
    text: String,
}

/// A way to compile the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As the project's tests are normally compiled.
    Plain,
    /// The models of `onramp-queue`, under the model checker loom.
    Loom,
}

/// The crate that has models for the model checker.
const MODELLED: &str = "onramp-queue";

fn ways(place: &Place<'_>) -> &'static [Way] {
    match place.crates.contains(&MODELLED) {
        true => &[Way::Plain, Way::Loom],
        false => &[Way::Plain],
    }
}

fn cargo(place: &Place<'_>, tree: &Tree, way: Way, verb: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(verb).args(["--message-format", "json", "--quiet"]).current_dir(&tree.root);
    let target_dir = match way {
        Way::Plain => {
            for name in &place.judges {
                command.args(["--package", name]);
            }
            command.arg("--tests").env("RUSTFLAGS", "--cap-lints=allow");
            // Optimise the build a little, because the tests run thousands of times.
            command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
            "build"
        }
        Way::Loom => {
            command.args(["--package", MODELLED, "--test", tree::MERGED, "--features", "loom"]);
            command.env("RUSTFLAGS", "--cfg loom --cap-lints=allow");
            command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "3");
            "build-loom"
        }
    };
    command.arg("--target-dir").arg(place.work.join(target_dir));
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "true");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Runs a cargo command. Returns its messages, and whether it succeeded.
fn messages(mut command: Command) -> Result<(Vec<Value>, bool), Failure> {
    eprintln!("$ {}", show(&command));
    let failed = |err: std::io::Error| Failure::Unable(format!("`cargo`: {err}"));
    let mut child = command.spawn().map_err(failed)?;
    let mut text = String::new();
    let mut stdout = child.stdout.take().expect("it is piped");
    stdout.read_to_string(&mut text).map_err(failed)?;
    let ok = child.wait().map_err(failed)?.success();
    Ok((text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(), ok))
}

fn check(place: &Place<'_>, tree: &Tree) -> Result<Vec<Complaint>, Failure> {
    let mut errors = Vec::new();
    for way in ways(place) {
        let (messages, ok) = messages(cargo(place, tree, *way, &["check", "--keep-going"]))?;
        let before = errors.len();
        errors.extend(messages.iter().filter_map(complaint));
        if !ok && errors.len() == before {
            return Err(Failure::Failed("cargo fails without an error of the compiler".into()));
        }
    }
    Ok(errors)
}

fn complaint(message: &Value) -> Option<Complaint> {
    let message = message.get("message")?;
    if message.get("level")? != "error" {
        return None;
    }
    let mut spans: Vec<&Value> = message.get("spans")?.as_array()?.iter().collect();
    if spans.is_empty() {
        return None;
    }
    spans.sort_by_key(|span| span["is_primary"] != true);
    let range = |span: &&Value| {
        let byte = |name: &str| usize::try_from(span[name].as_u64()?).ok();
        Some((PathBuf::from(span["file_name"].as_str()?), byte("byte_start")?..byte("byte_end")?))
    };
    let text = message["rendered"].as_str().unwrap_or("").to_owned();
    Some(Complaint { spans: spans.iter().filter_map(range).collect(), text })
}

fn plan(
    place: &Place<'_>,
    tree: &Tree,
    mutants: Mutants,
    chosen: &HashSet<u32>,
) -> Result<Plan, Failure> {
    let viable = mutants.viable();
    eprintln!("mutants: building the tests with {} mutants in them", viable.len());
    let mut programs = Vec::new();
    for way in ways(place) {
        let (messages, ok) = messages(cargo(place, tree, *way, &["test", "--no-run"]))?;
        if !ok {
            let errors = messages.iter().filter_map(complaint);
            let text: String = errors.map(|error| error.text).collect();
            return Err(Failure::Failed(format!("the tests do not build:\n{text}")));
        }
        programs.extend(messages.iter().filter_map(|message| program(message, *way)));
    }
    // Sort the programs, because cargo reports them in the order in which they are ready, and
    // recordings of earlier runs refer to them by index.
    programs.sort_by_key(|it| (it.package.clone(), it.target.clone(), it.models, it.path.clone()));
    let mut unviable: BTreeMap<String, usize> = BTreeMap::new();
    for mutant in mutants.all.iter().filter(|it| chosen.contains(&it.id)) {
        if !viable.contains(&mutant.id) {
            *unviable.entry(mutant.path.clone()).or_default() += 1;
        }
    }
    let mut hasher = DefaultHasher::new();
    for path in tree::files(&tree.root)? {
        if path.extension().is_some_and(|ext| ext == "rs" || ext == "toml" || ext == "txt") {
            path.hash(&mut hasher);
            fs::read(tree.root.join(&path)).map_err(|err| unable(&path, &err))?.hash(&mut hasher);
        }
    }
    Ok(Plan {
        fingerprint: hasher.finish(),
        mutants: mutants.all.into_iter().filter(|it| viable.contains(&it.id)).collect(),
        unviable: unviable.into_iter().collect(),
        programs,
        tree: tree.root.clone(),
        equivalent: BTreeMap::new(),
    })
}

fn program(message: &Value, way: Way) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let own = format!("name = {}\nharness = false", target["name"]);
    Some(Program {
        path: PathBuf::from(message["executable"].as_str()?),
        folder: manifest.parent()?.to_path_buf(),
        package: manifest.parent()?.file_name()?.to_string_lossy().into_owned(),
        target: target["name"].as_str()?.to_owned(),
        harness: !fs::read_to_string(manifest).unwrap_or_default().contains(&own),
        models: way == Way::Loom,
    })
}

/// Mutants that do not compile, by the path and the content of their file. The next run uses this
/// list, so that it need not compile them again.
type Memory = BTreeMap<String, Vec<String>>;

fn path_of_memory(place: &Place<'_>) -> PathBuf {
    place.work.join("unviable.json")
}

fn known(file: &File) -> String {
    let mut hasher = DefaultHasher::new();
    file.source.hash(&mut hasher);
    format!("{} {:016x}", file.path.display(), hasher.finish())
}

fn recall(place: &Place<'_>) -> Memory {
    let text = fs::read_to_string(path_of_memory(place)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn forget(place: &Place<'_>, mutants: &mut Mutants) -> Result<(), Failure> {
    fs::create_dir_all(&place.work).map_err(|err| unable(&place.work, &err))?;
    let memory = recall(place);
    let mut guilty = HashSet::new();
    for file in &mutants.files {
        let Some(keys) = memory.get(&known(file)) else { continue };
        let keys: HashSet<&String> = keys.iter().collect();
        let ids = file.sites.iter().flat_map(Numbered::ids);
        guilty.extend(ids.filter(|id| keys.contains(&mutants.all[*id as usize].key())));
    }
    mutants.drop(&guilty);
    Ok(())
}

fn remember(place: &Place<'_>, mutants: &Mutants, chosen: &HashSet<u32>) -> Result<(), Failure> {
    let mut memory = recall(place);
    for file in &mutants.files {
        let keys = memory.entry(known(file)).or_default();
        for site in &file.sites {
            for (id, viable) in site.ids().zip(&site.viable) {
                let key = mutants.all[id as usize].key();
                if chosen.contains(&id) && !viable && !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
    }
    let text = serde_json::to_string(&memory).expect("a memory is plain data");
    fs::write(path_of_memory(place), text).map_err(|err| unable(&place.work, &err))
}
