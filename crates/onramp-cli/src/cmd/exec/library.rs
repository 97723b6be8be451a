//! Finds the library that is loaded into programs.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use elf::ElfStream;
use elf::endian::AnyEndian;

/// The library's file, and the environment variable that names another one.
const FILE: &str = "libonramp_preload.so";
const VARIABLE: &str = "ONRAMP_PRELOAD";
/// The name of a symbol that only the library has.
const SYMBOL: &str = "onramp_preload";

/// Returns the path of the library: the one that the environment names, or one beside this program
/// or in `../lib/onramp`.
pub(super) fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).map(PathBuf::from) {
        if path.as_os_str().is_empty() {
            return Err(anyhow!("{VARIABLE} is empty: name the library in it, or unset it"));
        }
        let found = path.canonicalize();
        let found = found.map_err(|error| {
            anyhow!("{VARIABLE}: cannot find the library {}: {error}", path.display())
        })?;
        return loadable(found);
    }
    let program = env::current_exe().and_then(|path| path.canonicalize());
    let folder = program.ok().and_then(|path| path.parent().map(Path::to_owned));
    let places = folder.iter().flat_map(|folder| [folder.join(FILE), in_prefix(folder)]);
    let places: Vec<_> = places.collect();
    match places.iter().find_map(|place| place.canonicalize().ok()) {
        Some(found) => loadable(found),
        None => {
            let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            Err(anyhow!(
                "there is no library {FILE} at {}: build it with `cargo build --release -p \
                 onramp-preload`, and copy it there or name its path in {VARIABLE}",
                places.join(" or ")
            ))
        }
    }
}

/// Returns where an installed program's library is.
fn in_prefix(folder: &Path) -> PathBuf {
    folder.parent().unwrap_or(folder).join("lib/onramp").join(FILE)
}

/// Whether a file is the library: the dynamic linker would load any other, or none, and the program
/// would send without qdiscs.
fn is_library(path: &Path) -> bool {
    let opened = File::open(path).ok();
    let file = opened.and_then(|file| ElfStream::<AnyEndian, _>::open_stream(file).ok());
    file.is_some_and(|mut file| {
        let Ok(Some((symbols, names))) = file.dynamic_symbol_table() else { return false };
        symbols
            .iter()
            .any(|symbol| names.get(symbol.st_name as usize).is_ok_and(|name| name == SYMBOL))
    })
}

/// Refuses a file that is not the library, and a path that the dynamic linker would take for
/// several.
fn loadable(path: PathBuf) -> Result<PathBuf> {
    if !is_library(&path) {
        return Err(anyhow!(
            "{} is not the library {FILE}: name that of this version in {VARIABLE}, or leave the \
             variable out",
            path.display()
        ));
    }
    if path.to_string_lossy().contains([':', ' ']) {
        return Err(anyhow!(
            "the dynamic linker cannot load {}, because its path has a space or a colon: copy it \
             elsewhere, and name its path in {VARIABLE}",
            path.display()
        ));
    }
    Ok(path)
}
