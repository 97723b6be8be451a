//! Finds out which crates are in compiled code, for the statement of licences and the bill of
//! materials.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::unable;
use crate::Failure;
use crate::shell::{cargo, output, root};

/// What is compiled.
pub(crate) struct Compiled {
    /// The folder of the workspace, in the repository. Empty: the repository itself.
    pub(crate) workspace: &'static str,
    /// The crates of the workspace whose products are packed.
    pub(crate) crates: &'static [&'static str],
}

/// A crate with its version.
pub(crate) type Name = (String, String);

/// A crate that is linked into the compiled code.
#[derive(Debug)]
pub(crate) struct Part {
    /// The crate's licence as an SPDX expression.
    pub(crate) licence: String,
    pub(crate) authors: Vec<String>,
    pub(crate) description: String,
    /// The folder with the crate's package, which has the texts of its licences.
    pub(crate) folder: PathBuf,
    /// The SHA-256 of the crate's package on crates.io, or `None` for Onramp's own crates.
    pub(crate) checksum: Option<String>,
    /// The linked crates that the crate uses itself.
    pub(crate) uses: BTreeSet<Name>,
}

/// What `cargo metadata` prints, as far as it is used here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    authors: Vec<String>,
    description: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// Returns the crates that the compiled code contains on this machine.
///
/// # Errors
///
/// Names a crate that states no licence.
pub(crate) fn parts(compiled: &Compiled) -> Result<BTreeMap<Name, Part>, Failure> {
    let workspace = root().join(compiled.workspace);
    let linked = linked(&workspace, compiled.crates)?;
    let mut metadata = cargo(&["metadata", "--format-version", "1", "--locked"]);
    let metadata = output(metadata.current_dir(&workspace))?;
    let metadata: Metadata = serde_json::from_str(&metadata)
        .map_err(|error| Failure::Failed(format!("cargo metadata: {error}")))?;
    let name = |package: &Package| (package.name.clone(), package.version.clone());
    let names: BTreeMap<&str, Name> =
        metadata.packages.iter().map(|package| (package.id.as_str(), name(package))).collect();
    let mut uses: BTreeMap<&str, BTreeSet<Name>> = BTreeMap::new();
    for node in &metadata.resolve.nodes {
        let used = node.dependencies.iter().filter_map(|id| names.get(id.as_str()));
        let used = used.filter(|name| linked.contains(*name)).cloned();
        uses.insert(&node.id, used.collect());
    }
    let lock = workspace.join("Cargo.lock");
    let lock = fs::read_to_string(&lock).map_err(|error| unable(&lock, &error))?;
    let checksums = checksums(&lock);
    let mut parts = BTreeMap::new();
    for package in &metadata.packages {
        let name = name(package);
        if !linked.contains(&name) {
            continue;
        }
        let Some(licence) = &package.license else {
            let why = format!("the crate {} {} states no licence", name.0, name.1);
            return Err(Failure::Failed(why));
        };
        let part = Part {
            licence: spdx(licence),
            authors: package.authors.clone(),
            description: package.description.clone().unwrap_or_default().trim().to_owned(),
            folder: package.manifest_path.with_file_name(""),
            checksum: checksums.get(&name).cloned(),
            uses: uses.remove(package.id.as_str()).unwrap_or_default(),
        };
        parts.insert(name, part);
    }
    Ok(parts)
}

/// Returns the names of the linked crates. `cargo tree` knows better than `cargo metadata` which
/// crates a build without other packages and without tests contains.
fn linked(workspace: &Path, crates: &[&str]) -> Result<BTreeSet<Name>, Failure> {
    let mut tree = cargo(&["tree", "--locked", "-e", "normal,no-proc-macro", "--prefix", "none"]);
    tree.args(["--format", "{p}"]).args(crates.iter().flat_map(|name| ["-p", name]));
    Ok(output(tree.current_dir(workspace))?.lines().filter_map(named).collect())
}

/// Reads a line of `cargo tree`: `NAME vVERSION`, and the folder of a crate that is Onramp's own.
fn named(line: &str) -> Option<Name> {
    let mut words = line.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((name.to_owned(), version.to_owned()))
}

/// Returns a licence as an SPDX expression. Old packages have `/` for `OR`.
fn spdx(licence: &str) -> String {
    licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

/// Reads the checksums of packages from a lock file.
fn checksums(lock: &str) -> BTreeMap<Name, String> {
    let packages = lock.split("[[package]]").skip(1);
    let read = |package: &str| {
        let value = |key: &str| {
            let start = format!("{key} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(start.as_str()))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    packages.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_licences_and_checksums_are_read() {
        let name = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(named("nix v0.31.3"), Some(name("nix", "0.31.3")));
        assert_eq!(named("onramp v0.1.0 (/x/onramp)"), Some(name("onramp", "0.1.0")));
        assert_eq!(named(""), None, "an empty line parts the trees of two packages");
        assert_eq!(spdx("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(spdx("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n[[package]]\n\
            name = \"b\"\nversion = \"2.0.0\"\nchecksum = \"e3b0\"\ndependencies = [\n \"a\",\n]\n";
        assert_eq!(checksums(lock), BTreeMap::from([(name("b", "2.0.0"), "e3b0".to_owned())]));
    }
}
