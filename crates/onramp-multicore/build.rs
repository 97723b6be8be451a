//! Collects the sources that the simulated machine runs into one text, `sources.txt`, so that a
//! simulation can name the field of each place in the source that waited for memory
//! (`src/field.rs`).
//!
//! Comments and tests are left out.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The folders and files, from the root of the repository, whose code simulated threads run.
const PATHS: [&str; 27] = [
    "crates/onramp-multicore/src/card.rs",
    "crates/onramp-multicore/src/charged.rs",
    "twins/core/src/base",
    "twins/core/src/law",
    "twins/core/src/port",
    "twins/core/src/port.rs",
    "twins/core/src/qdisc/fifo.rs",
    "twins/core/src/qdisc/fq",
    "twins/core/src/qdisc/fq.rs",
    "twins/core/src/qdisc/fq_codel.rs",
    "twins/core/src/sched",
    "twins/core/src/tree",
    "twins/dev/src/null.rs",
    "twins/lab/src/cell",
    "twins/lab/src/cell.rs",
    "twins/lab/src/contention",
    "twins/lab/src/lock",
    "twins/lab/src/lock.rs",
    "twins/lab/src/measure",
    "twins/lab/src/path",
    "twins/lab/src/path.rs",
    "twins/lab/src/peer",
    "twins/lab/src/peer.rs",
    "twins/lab/src/sync",
    "twins/lab/src/sync.rs",
    "twins/link/src",
    "twins/queue/src",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    // The tests are those of `onramp-queue` and `onramp-core`. They run in simulations here.
    println!("cargo::rustc-cfg=sim");
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let mut text = String::new();
    for path in PATHS {
        // A twin's folder of sources is a link.
        println!("cargo::rerun-if-changed={}", fs::canonicalize(root.join(path))?.display());
        for file in files(&root, Path::new(path))? {
            let source = fs::read_to_string(root.join(&file))?;
            text.push_str(&format!("\u{1}{}\n", file.display()));
            text.push_str(&code(&source));
        }
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("sources.txt"), text)?;
    Ok(())
}

/// Returns a file, or the source files of a folder and of all folders in it, in the order of their
/// names.
fn files(root: &Path, path: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let is_source =
        path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs");
    if !root.join(path).is_dir() {
        return Ok(is_source.then(|| path.to_owned()).into_iter().collect());
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(root.join(path))? {
        all.extend(files(root, &path.join(entry?.file_name()))?);
    }
    all.sort();
    Ok(all)
}

/// Returns a source without comments and tests, each line at its place.
fn code(source: &str) -> String {
    let lines = source.lines().take_while(|line| *line != "mod tests {");
    let lines = lines.map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.fold(String::new(), |text, line| text + line + "\n")
}
