//! Makes a Debian package of the program `onramp`: the program, its manual pages, completions for
//! three shells, a systemd unit for the daemon, an empty configuration, the licences of all crates
//! that are linked into the program, and a list of these crates (bill of materials, SBOM).
//!
//! The package has no scripts that run at its installation: it starts no daemon. The files that are
//! no product of the program lie in `packaging/debian`.

mod materials;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::licences::parts::{self, Compiled};
use crate::licences::{self, Package};
use crate::shell::{cargo, output, root, run as shell, show, status};
use crate::{Failure, Outcome, programs, suite};

const HELP: &str = "\
usage: cargo xtask deb [--debug] [--check] [--clean]

Makes target/deb/onramp_VERSION_ARCHITECTURE.deb, and beside it the list of its crates in the format
CycloneDX (onramp_VERSION_ARCHITECTURE.cdx.json), which is in the package, too.

  --debug   pack the program that the tests use: slow and large, but made quickly
  --check   unpack the package again, and use what is in it; then, as root, install it into a copy
            of this machine, and use and purge it there: see packaging/try-deb.sh
  --clean   install it into a fresh Debian, run the demo there, and purge it. debootstrap fetches
            the Debian, once, into target/deb/bookworm. Needs root and the network
";

/// Shells with the place of their completions.
const SHELLS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/onramp"),
    ("zsh", "usr/share/zsh/vendor-completions/_onramp"),
    ("fish", "usr/share/fish/vendor_completions.d/onramp.fish"),
];

/// Files of `packaging/debian` with their places.
const FILES: &[(&str, &str)] = &[
    ("onramp.service", "usr/lib/systemd/system/onramp.service"),
    ("devices.conf", "etc/onramp/devices.conf"),
];

/// Files that the package's user may change, and that an update leaves as they are.
const CONFIGURATION: &str = "/etc/onramp/devices.conf\n";

/// The packages whose products are in the Debian package.
const COMPILED: Compiled = Compiled { workspace: "", crates: &["onramp-cli", "onramp-preload"] };

const PACKAGE: Package = Package {
    holder: "The program and its library",
    apache: "/usr/share/common-licenses/Apache-2.0",
};

pub(crate) fn run(args: &[String]) -> Outcome {
    let (mut debug, mut check, mut clean) = (false, false, false);
    for arg in args {
        match arg.as_str() {
            "--debug" => debug = true,
            "--check" => check = true,
            "--clean" => clean = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            _ => return Err(Failure::Failed(format!("deb: unknown option {arg}\n\n{HELP}"))),
        }
    }
    let tools = [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils")];
    suite::install_missing(&tools)?;
    let package = pack(debug)?;
    if check {
        unpack(&package)?;
        install(&package, None)?;
    }
    if clean {
        install(&package, Some(&package.with_file_name("bookworm")))?;
    }
    eprintln!("{}", package.display());
    Ok(())
}

/// Makes the package, and returns its path.
fn pack(debug: bool) -> Result<PathBuf, Failure> {
    if debug {
        programs::make_program()?;
    } else {
        shell(&mut cargo(&["build", "-p", "onramp-cli", "--bin", "onramp", "--release"]))?;
        shell(&mut cargo(&["build", "-p", "onramp-preload", "--release"]))?;
    }
    let profile = if debug { "debug" } else { "release" };
    let built = root().join("target").join(profile);
    let program = built.join("onramp");
    let library = "libonramp_preload.so";
    let folder = root().join("target/deb");
    let tree = folder.join("tree");
    remove(&tree)?;
    let (bin, lib) = (tree.join("usr/bin/onramp"), tree.join("usr/lib/onramp").join(library));
    put(&bin, &read(&program)?, 0o755)?;
    put(&lib, &read(&built.join(library))?, 0o644)?;
    shell(Command::new("strip").args([&bin, &lib]))?;
    pages(&program, &tree)?;
    for (name, place) in SHELLS {
        let script = output(Command::new(&program).args(["completions", name]))?;
        put(&tree.join(place), script.as_bytes(), 0o644)?;
    }
    for (name, place) in FILES {
        put(&tree.join(place), &read(&root().join("packaging/debian").join(name))?, 0o644)?;
    }
    let documents = tree.join("usr/share/doc/onramp");
    let version = version(&program)?;
    let parts = parts::parts(&COMPILED)?;
    let statement = licences::statement(&PACKAGE, &parts)?;
    put(&documents.join("copyright"), statement.as_bytes(), 0o644)?;
    let rust = self::version(Path::new("rustc"))?;
    let materials = materials::materials(&parts, &version, &rust);
    put(&documents.join("onramp.cdx.json"), materials.as_bytes(), 0o644)?;
    put(&documents.join("changelog"), &read(&root().join("CHANGELOG.md"))?, 0o644)?;
    shell(Command::new("gzip").args(["-9n"]).arg(documents.join("changelog")))?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    control(&tree, &folder, &version, architecture)?;
    let package = folder.join(format!("onramp_{version}_{architecture}.deb"));
    put(&package.with_extension("cdx.json"), materials.as_bytes(), 0o644)?;
    let mut build = Command::new("dpkg-deb");
    build.args(debug.then_some(["-Zgzip", "-z1"]).into_iter().flatten());
    shell(build.args(["--build", "--root-owner-group"]).arg(&tree).arg(&package))?;
    Ok(package)
}

/// Writes the manual pages, compressed, each into the folder of its section.
fn pages(program: &Path, tree: &Path) -> Outcome {
    let folder = tree.with_file_name("pages");
    remove(&folder)?;
    shell(Command::new(program).arg("man").arg(&folder))?;
    for page in fs::read_dir(&folder).map_err(|error| unable(&folder, &error))?.flatten() {
        let name = page.file_name().to_string_lossy().into_owned();
        let section = name.rsplit('.').next().unwrap_or("1");
        let place = tree.join(format!("usr/share/man/man{section}")).join(&name);
        put(&place, &read(&page.path())?, 0o644)?;
        shell(Command::new("gzip").arg("-9n").arg(place))?;
    }
    Ok(())
}

/// Writes the files that describe the package.
fn control(tree: &Path, folder: &Path, version: &str, architecture: &str) -> Outcome {
    let source = format!("Source: onramp\n\nPackage: onramp\nArchitecture: {architecture}\n");
    put(&folder.join("debian/control"), source.as_bytes(), 0o644)?;
    let mut depends = Command::new("dpkg-shlibdeps");
    depends.current_dir(folder).arg("-O").arg(tree.join("usr/bin/onramp"));
    let depends = output(&mut depends)?;
    let depends = depends.trim().trim_start_matches("shlibs:Depends=");
    let text = format!(
        "Package: onramp\nVersion: {version}\nArchitecture: {architecture}\n\
         Maintainer: Onramp maintainers <onramp@localhost>\nSection: net\nPriority: optional\n\
         Depends: {depends}\nSuggests: iproute2, iperf3, tcpdump\n\
         Description: Linux traffic control in user space\n \
         Queueing disciplines that behave as those of Linux do, for packets that never\n \
         enter a kernel's queue: a program with the syntax of tc and ip, a daemon with\n \
         devices, replay of captures, emulation of links, and a laboratory.\n"
    );
    put(&tree.join("DEBIAN/control"), text.as_bytes(), 0o644)?;
    put(&tree.join("DEBIAN/conffiles"), CONFIGURATION.as_bytes(), 0o644)
}

fn version(program: &Path) -> Result<String, Failure> {
    let text = output(Command::new(program).arg("--version"))?;
    let version = text.split_whitespace().nth(1);
    Ok(version.unwrap_or("0").to_owned())
}

/// Unpacks the package, and fails if a part is missing or does not work.
fn unpack(package: &Path) -> Outcome {
    let folder = package.with_file_name("unpacked");
    remove(&folder)?;
    shell(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&folder))?;
    let program = folder.join("usr/bin/onramp");
    shell(Command::new(&program).arg("--version"))?;
    shell(Command::new(&program).args(["exec", "--", "true"]))?;
    for (shell_name, place) in SHELLS {
        let script = read(&folder.join(place))?;
        if !String::from_utf8_lossy(&script).contains("onramp") {
            return Err(Failure::Failed(format!("deb: no completion for {shell_name}")));
        }
    }
    for page in ["man1/onramp.1.gz", "man8/onramp-daemon.8.gz", "man8/onramp-tc.8.gz"] {
        let page = folder.join("usr/share/man").join(page);
        let text = output(Command::new("gzip").args(["-dc"]).arg(&page))?;
        if !text.contains(".TH onramp") {
            return Err(Failure::Failed(format!("deb: {} is no manual page", page.display())));
        }
    }
    let fields = output(Command::new("dpkg-deb").arg("--field").arg(package))?;
    if !fields.contains("Depends: libc6 (>= ") {
        return Err(Failure::Failed(format!("deb: the package names no libc6:\n{fields}")));
    }
    Ok(())
}

/// Installs the package, uses and purges it: in a copy of this machine, or in the Debian in a
/// folder.
fn install(package: &Path, debian: Option<&Path>) -> Outcome {
    let mut trial = Command::new(root().join("packaging/try-deb.sh"));
    let status = status(trial.arg(package).args(debian))?;
    match status.code() {
        Some(0) => Ok(()),
        // The script has said what is missing.
        Some(3) => {
            Err(Failure::Unable("deb: the package could not be installed: see above".into()))
        }
        _ => Err(Failure::Failed(format!("`{}`: {status}", show(&trial)))),
    }
}

/// Writes a file with these permissions, and the folders above it.
fn put(path: &Path, content: &[u8], mode: u32) -> Outcome {
    let written = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, content)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    written().map_err(|error: std::io::Error| unable(path, &error))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| unable(path, &error))
}

fn remove(folder: &Path) -> Outcome {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(unable(folder, &error)),
        _ => Ok(()),
    }
}

fn unable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Unable(format!("{}: {error}", path.display()))
}
