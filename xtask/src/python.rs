//! The check of the Python package in `python/`: builds its wheel, installs it, and runs its tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::licences::parts::{Compiled, parts};
use crate::licences::{Package, statement};
use crate::readme::program;
use crate::shell::{cargo, output, root, run, succeeds};
use crate::{Failure, Outcome, programs};

/// What the check needs from the Python Package Index.
const TOOLS: [&str; 4] = ["maturin>=1.7,<2", "numpy", "pytest", "mypy"];

/// What the wheel contains.
const COMPILED: Compiled = Compiled { workspace: "python", crates: &["onramp-python"] };

const PACKAGE: Package = Package {
    holder: "The compiled files of this package",
    apache: "the file LICENSE-APACHE beside this one",
};

/// The file in `python/` that states the licences of the crates in the wheel. Its name begins such
/// that maturin puts it into the wheel.
const LICENCES: &str = "LICENSES-OF-CRATES";

/// Builds the Python package and checks it. Without Python, prints that the check is skipped: the
/// project's other parts need none. Without the network, the check cannot run. With `--write`,
/// brings the statement of licences up to date instead.
pub(crate) fn run_python(args: &[String]) -> Outcome {
    match args {
        [] => {}
        [option] if option == "--write" => return licences(true),
        _ => return Err(Failure::Failed("usage: cargo xtask python [--write]".to_owned())),
    }
    if !succeeds(Command::new("python3").arg("--version")) {
        eprintln!("SKIP: python: there is no python3");
        return Ok(());
    }
    licences(false)?;
    let manifest = ["--manifest-path", "python/Cargo.toml"];
    run(cargo(&["fmt", "--check"]).args(manifest))?;
    let folder = root().join("target/python");
    let venv = folder.join("venv");
    let python = environment(&venv)?;
    // The wheel is built without optimisation across crates: only the tests use it.
    let wheels = folder.join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    let mut maturin = Command::new(venv.join("bin/maturin"));
    maturin.args(["build", "--quiet", "--locked"]).args(manifest).current_dir(root());
    maturin.arg("--out").arg(&wheels).arg("--target-dir").arg(&folder);
    run(maturin.arg("--interpreter").arg(&python))?;
    let wheel = wheel(&wheels)?;
    states_licences(&python, &wheel)?;
    run(pip(&python).args(["--no-deps", "--force-reinstall"]).arg(&wheel))?;
    let mut clippy = cargo(&["clippy", "--locked", "--target-dir"]);
    clippy.arg(&folder).args(manifest).env("PYO3_PYTHON", &python);
    run(clippy.args(["--", "-D", "warnings"]))?;
    // The tests compare the package with the program.
    programs::make_program()?;
    let inside = root().join("python");
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "-q"]).current_dir(&inside);
    let unable = |err| Failure::Unable(format!("python: {err}"));
    run(tests.env("ONRAMP", program().map_err(unable)?))?;
    // The stubs have to agree with the module, and the package with its own types.
    let mut stubs = Command::new(&python);
    stubs.args(["-m", "mypy.stubtest", "--ignore-disjoint-bases", "onramp"]);
    run(stubs.current_dir(&folder))?;
    let mut types = Command::new(&python);
    run(types.args(["-m", "mypy", "--strict", "package/onramp"]).current_dir(&inside))?;
    stranger(&wheel, &folder)
}

/// Compares the statement of the licences of the crates in the wheel with the crates, or writes it.
fn licences(writes: bool) -> Outcome {
    let file = root().join("python").join(LICENCES);
    let text = statement(&PACKAGE, &parts(&COMPILED)?)?;
    if fs::read_to_string(&file).ok().as_ref() == Some(&text) {
        return Ok(());
    }
    if writes {
        return fs::write(&file, text)
            .map_err(|error| Failure::Failed(format!("{}: {error}", file.display())));
    }
    Err(Failure::Failed(format!(
        "python/{LICENCES} does not state the licences of the crates in python/Cargo.lock: run \
         `cargo xtask python --write`"
    )))
}

/// Fails if the wheel does not contain the licences of Onramp and of its crates.
fn states_licences(python: &Path, wheel: &Path) -> Outcome {
    let mut list = Command::new(python);
    let list = output(list.args(["-m", "zipfile", "--list"]).arg(wheel))?;
    for name in [LICENCES, "LICENSE-APACHE", "LICENSE-MIT"] {
        if !list.contains(&format!("/{name} ")) {
            return Err(Failure::Failed(format!("python: the wheel lacks {name}:\n{list}")));
        }
    }
    Ok(())
}

/// Installs the wheel as a user does, into an environment without the tools, and runs the example
/// away from the source: the wheel has to name and contain all that it needs.
fn stranger(wheel: &Path, folder: &Path) -> Outcome {
    let venv = folder.join("fresh");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let python = venv.join("bin/python");
    run(pip(&python).arg(wheel)).map_err(|_| Failure::Failed("python: pip install".into()))?;
    let away = tempfile::tempdir().map_err(|error| Failure::Unable(format!("python: {error}")))?;
    let example = away.path().join("sojourn.py");
    fs::copy(root().join("python/examples/sojourn.py"), &example)
        .map_err(|error| Failure::Failed(format!("python: the example: {error}")))?;
    let mut shows = Command::new(&python);
    run(shows.arg(&example).arg("--text").env_remove("PYTHONPATH").current_dir(away.path()))
}

/// Makes a virtual environment with the tools, and returns its Python.
fn environment(venv: &Path) -> Result<PathBuf, Failure> {
    let python = venv.join("bin/python");
    let unable = |what: &str| Failure::Unable(format!("python: {what}"));
    if !succeeds(Command::new(&python).args(["-m", "pip", "--version"])) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))
            .map_err(|_| unable("no virtual environment; on Debian, install python3-venv"))?;
    }
    run(pip(&python).args(TOOLS))
        .map_err(|_| unable("pip cannot install the tools; is there a network?"))?;
    Ok(python)
}

/// Makes the command that installs packages.
fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip
}

/// Returns the only file in a folder.
fn wheel(folder: &Path) -> Result<PathBuf, Failure> {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    match (entries.next(), entries.next()) {
        (Some(wheel), None) => Ok(wheel.path()),
        _ => Err(Failure::Failed(format!("{}: expected one wheel", folder.display()))),
    }
}
