//! The checkers that run besides the tests: loom, shuttle, miri, ThreadSanitizer, fuzzing, soak and
//! chaos runs, comparisons with Linux, and a type check for another processor.

use std::fs;
use std::process::Command;

use crate::shell::{
    cargo, cargo_nightly, cargo_of, output, root, run, run_together, show, status, succeeds,
};
use crate::{Failure, Outcome, suite, toolchain};

const QUEUE: &str = "onramp-queue";
const LAB: &str = "onramp-lab";
/// The target for which ThreadSanitizer builds.
const TSAN_TARGET: &str = "x86_64-unknown-linux-gnu";

/// For each crate, combinations of features that users may want. The other checks build the crates
/// with their default features, which are all features.
const FEATURES: &[(&str, &[&str])] = &[
    ("onramp-core", &["", "tc", "ebpf"]),
    ("onramp-dev", &["", "udp", "tap", "packet", "xdp"]),
    ("onramp", &["", "tc", "ebpf", "link", "link,ebpf", "udp", "tap", "packet", "xdp"]),
];

/// Checks that every combination of features compiles without a warning, that all kinds of qdiscs
/// work without features, that `onramp` without features depends on nothing but Onramp's own
/// crates, and that programs which link a library have nothing of a fleet's engine.
pub(crate) fn features() -> Outcome {
    // Lint with clippy, as the other checks do, so that cargo makes the dependencies only once.
    let lint = |package: &str, what: &[&str]| {
        let mut lint = cargo(&["clippy", "-p", package, "--no-default-features"]);
        run(lint.args(what).args(["--", "-D", "warnings"]))
    };
    for (package, combinations) in FEATURES {
        for features in *combinations {
            lint(package, &["--features", features])?;
        }
    }
    // One qdisc alone: its contract for every kind, and a program that embeds one.
    let (contract, embeds) = (["--test", "conformance"], ["--example", "embedded_qdisc"]);
    let alone =
        |command: &str, package: &str| cargo(&[command, "-p", package, "--no-default-features"]);
    run(alone("test", "onramp-core").args(contract))?;
    run(alone("run", "onramp").args(embeds))?;
    let tree = |package: &str, more: &[&str]| {
        let mut tree = cargo(&["tree", "-p", package, "-e", "normal,build", "--target", "all"]);
        output(tree.args(["--prefix", "none", "--format", "{p}"]).args(more))
    };
    let names = tree("onramp", &["--no-default-features"])?;
    if let Some(line) = names.lines().find(|line| !line.starts_with("onramp")) {
        return Err(Failure::Failed(format!("`onramp` without features depends on {line}")));
    }
    // The lock file of a program has the crates for all targets and configurations. It has no
    // checkers, and nothing of the engine of a fleet.
    let foreign = ["loom ", "shuttle ", "redis ", "tokio "];
    for package in ["onramp-host", "onramp-wire", "onramp-capi"] {
        let names = tree(package, &[])?;
        let is_foreign = |line: &&str| foreign.iter().any(|name| line.starts_with(name));
        if let Some(line) = names.lines().find(is_foreign) {
            return Err(Failure::Failed(format!("programs with {package} would have {line}")));
        }
    }
    Ok(())
}

/// The crates that users' programs link.
pub(crate) const LINKED: &[&str] = &[
    "onramp-queue",
    "onramp-core",
    "onramp-dev",
    "onramp",
    "onramp-host",
    "onramp-wire",
    "onramp-limiter",
    "onramp-fleet",
    "onramp-redis",
    "onramp-smoltcp",
    "onramp-quinn",
    "onramp-tokio",
];

/// The libraries for programs in other languages.
const FOR_OTHERS: [&str; 2] = ["onramp-capi", "onramp-preload"];

/// Packs every published crate with `cargo package`. Also unpacks the packages of the libraries
/// that users' programs link, and type-checks them there, each with the packages of the others:
/// this finds a file that a package lacks.
pub(crate) fn package() -> Outcome {
    licensed()?;
    let unable = |err: std::io::Error| Failure::Unable(format!("a folder for packages: {err}"));
    // Cargo makes no package anew if the folder already has one of the same version, even if the
    // content has changed. So each run has a folder of its own.
    let folder = tempfile::tempdir().map_err(unable)?;
    let mut pack = cargo(&["package", "--allow-dirty", "--quiet", "--no-verify", "--workspace"]);
    // `xtask` and `onramp-differential` are not published, because they are only of use inside the
    // project.
    pack.args(["--exclude", "xtask", "--exclude", "onramp-differential"]);
    run(pack.arg("--target-dir").arg(folder.path()))?;
    let packed = folder.path().join("package");
    // Each crate is a member of the workspace, and stands in for the published crate of its name.
    let (mut members, mut stands_in) = (String::new(), String::new());
    for name in LINKED.iter().chain(&FOR_OTHERS) {
        let version = env!("CARGO_PKG_VERSION");
        let unpacked = format!("{name}-{version}");
        run(Command::new("tar").args(["-xzf", &format!("{unpacked}.crate")]).current_dir(&packed))?;
        members += &format!("{unpacked:?}, ");
        stands_in += &format!("{name} = {{ path = {unpacked:?} }}\n");
    }
    // The profile is that of the workspace, so that what cargo keeps serves here too.
    let manifest = format!(
        "workspace.resolver = \"3\"\nworkspace.members = [{members}]\n\
         profile.dev.debug = \"line-tables-only\"\n[patch.crates-io]\n{stands_in}"
    );
    fs::write(packed.join("Cargo.toml"), manifest).map_err(unable)?;
    fs::copy(root().join("Cargo.lock"), packed.join("Cargo.lock")).map_err(unable)?;
    // The folder `target/api` has the dependencies of these crates as a type check needs them.
    let mut check = cargo(&["check", "--workspace", "--offline", "--target-dir"]);
    run(check.arg(root().join("target/api")).current_dir(&packed))
}

/// Fails if a crate that is published does not have the texts of the licences: its package would
/// not have them either.
fn licensed() -> Outcome {
    let unable = |err| Failure::Unable(format!("crates: {err}"));
    for entry in fs::read_dir(root().join("crates")).map_err(unable)? {
        let folder = entry.map_err(unable)?.path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).map_err(unable)?;
        if manifest.contains("publish = false") {
            continue;
        }
        for text in ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| folder.join(name)) {
            if !text.exists() {
                let why = format!("{} is missing: add a link", text.display());
                return Err(Failure::Failed(why));
            }
        }
    }
    Ok(())
}

/// Runs the models of `onramp-queue` under the loom model checker.
pub(crate) fn loom(args: &[String]) -> Outcome {
    run(loom_tests().arg("--").args(args))
}

pub(crate) fn loom_tests() -> Command {
    checker("loom", QUEUE)
}

/// Runs senders, a port, its runner and credits together under random schedules, with the checker
/// shuttle.
pub(crate) fn shuttle(args: &[String]) -> Outcome {
    run(checker("shuttle", "onramp-core").arg("--").args(args))
}

/// Makes the `cargo test` command for the models of a checker.
fn checker(name: &str, package: &str) -> Command {
    let mut command = cargo(&["test", "--profile", "checker", "-p", package, "--test", name]);
    command
        .args(["--features", name, "--target-dir", &format!("target/{name}")])
        .env("RUSTFLAGS", format!("--cfg {name}"));
    command
}

/// Runs the tests of `onramp-queue` in miri, an interpreter that finds undefined behaviour. The
/// stress tests run with several schedules.
pub(crate) fn miri(args: &[String]) -> Outcome {
    toolchain::nightly(&["miri", "rust-src"])?;
    let tests =
        ["--lib", "--test", "list", "--test", "pool", "--test", "intake", "--test", "mailbox"];
    let stress = ["--test", "stress"];
    // Miri accepts casts of addresses to pointers only with this option. The crate makes such a
    // cast on purpose, in `PacketList::from_newest_first`.
    let flags = "-Zmiri-permissive-provenance";
    let seeds = format!("{flags} -Zmiri-many-seeds=0..2");
    // Of the crate `onramp-lab`, only the tests of `cell` run in miri. The rest of the crate needs
    // the kernel.
    let cells = ["--lib", "cell::"];
    let runs = [(QUEUE, tests.as_slice(), flags), (QUEUE, &stress, &seeds), (LAB, &cells, flags)];
    let mut commands = runs.map(|(package, what, flags)| {
        let mut command = cargo_nightly(&["miri", "test", "-p", package]);
        command.args(["--target-dir", "target/miri"]).args(what).arg("--").args(args);
        command.env("MIRIFLAGS", flags);
        command
    });
    // Miri runs all tests of a program in one thread, so run the programs at the same time. First
    // make what all of them need.
    run(&mut cargo_nightly(&["miri", "setup"]))?;
    run_together(&mut commands)
}

/// Runs the stress tests of every crate under ThreadSanitizer, with an instrumented standard
/// library.
pub(crate) fn tsan(args: &[String]) -> Outcome {
    toolchain::nightly(&["rust-src"])?;
    let mut command = cargo_nightly(&["test", "-Zbuild-std", "--target", TSAN_TARGET]);
    command.args(with_stress_tests()?.iter().flat_map(|package| ["-p", package]));
    command.args(["--target-dir", "target/tsan", "--test", "stress", "--"]).args(args);
    // A race is reported with the lines that make it.
    command.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    command.env("RUSTFLAGS", "-Zsanitizer=thread").env("TSAN_OPTIONS", "halt_on_error=1");
    run(&mut command)
}

/// Returns the names of the crates that have a file `tests/stress.rs`.
fn with_stress_tests() -> Result<Vec<String>, Failure> {
    let unable = |err| Failure::Unable(format!("crates: {err}"));
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("crates")).map_err(unable)? {
        let path = entry.map_err(unable)?.path();
        if path.join("tests/stress.rs").exists() || path.join("tests/stress/main.rs").exists() {
            names.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Runs the soak example, which runs links under random faults. The arguments after `soak` go to
/// the example.
pub(crate) fn soak(args: &[String]) -> Outcome {
    run_example(example("soak")?.args(args))
}

/// Runs the chaos example: many threads send, wait, fail and close links at the same time, and a
/// watchdog reports threads that hang. First runs the example's self-test, which checks that the
/// watchdog finds deliberate errors. The arguments after `chaos` go to the example.
pub(crate) fn chaos(args: &[String]) -> Outcome {
    let has = |option: &str| args.iter().any(|arg| arg == option);
    let sanitized = has("--tsan") && !has("--help");
    if sanitized {
        toolchain::nightly(&["rust-src"])?;
        eprintln!(
            "chaos: without forks: ThreadSanitizer cannot follow the child of a threaded process"
        );
    }
    let program = || if sanitized { Ok(sanitized_example("chaos")) } else { example("chaos") };
    // Pass the arguments to the self-test too, so that the example reports wrong arguments before
    // its self-test runs.
    run_example(program()?.arg("--self-test").args(args))?;
    if has("--help") || has("--self-test") {
        return Ok(());
    }
    run_example(program()?.args(args))
}

/// Runs an example program. If its exit status is 2, it has reported wrong arguments: then xtask
/// also ends with status 2 and adds no message.
fn run_example(command: &mut Command) -> Outcome {
    let status = status(command)?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => std::process::exit(2),
        _ => Err(Failure::Failed(format!("`{}`: {status}", show(command)))),
    }
}

/// Measures the profiles of `onramp wire` with real programs and sockets. The arguments are names
/// of profiles; without one, all are measured.
pub(crate) fn profiles(args: &[String]) -> Outcome {
    let program = example("profiles")?;
    // A program with a low priority would measure how long it waits for a processor.
    let mut command = Command::new("nice");
    command.args(["-n", "-15"]).arg(program.get_program()).current_dir(root());
    run_example(command.args(args))
}

/// Runs fifty daemons in one limit, with an optimised program, and checks how fast they follow
/// demands and faults. The arguments are names of scenarios; without one, all run.
pub(crate) fn fleet(args: &[String]) -> Outcome {
    run(&mut cargo(&["build", "--release", "-p", "onramp-cli"]))?;
    let script = root().join("crates/onramp-cli/tests/cli/fleet/fleet.py");
    // A host that gets no processor for a second loses its share, as it should.
    let mut command = Command::new("nice");
    command.args(["-n", "-15", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "python3"]).arg(script).args(["200", "50"]).args(args);
    run(command.env("ONRAMP", root().join("target/release/onramp")).env("TRIES", "3"))
}

/// Builds the examples that run for minutes, and makes the command that runs one of them. All are
/// built at once, because cargo would build what they depend on anew for each package alone, with
/// the features of that package.
fn example(name: &str) -> Result<Command, Failure> {
    let mut build = cargo(&["build", "--profile", "example", "-p", "onramp", "-p", "onramp-wire"]);
    run(build.args(["--example", "soak", "--example", "chaos", "--example", "profiles"]))?;
    let mut command = Command::new(root().join("target/example/examples").join(name));
    command.current_dir(root());
    Ok(command)
}

/// Makes the `cargo run` command for an example, built with ThreadSanitizer and an instrumented
/// standard library; the arguments of the example may follow.
fn sanitized_example(name: &str) -> Command {
    let mut command = cargo_nightly(&["run", "--release", "-Zbuild-std", "--target", TSAN_TARGET]);
    command.args(["--target-dir", "target/tsan", "-p", "onramp", "--example", name, "--"]);
    command
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("TSAN_OPTIONS", "halt_on_error=1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    command
}

/// The fuzzing targets in `fuzz/`, with the longest useful input of each in bytes.
const FUZZED: &[(&str, u32)] = &[
    ("qdisc", 400),
    ("setup", 400),
    ("dissect", 256),
    ("frame", 1024),
    ("capture", 1024),
    ("play", 1024),
    ("bytecode", 512),
    ("protocol", 1024),
];

/// Runs the fuzzing targets in `fuzz/` on random bytes: all targets or one, for `--seconds N` each
/// (default 60).
pub(crate) fn fuzz(args: &[String]) -> Outcome {
    toolchain::nightly(&[])?;
    let usage = || {
        let names: Vec<&str> = FUZZED.iter().map(|(name, _)| *name).collect();
        let names = names.join("|");
        Failure::Unable(format!("usage: cargo xtask fuzz [{names}] [--seconds N]"))
    };
    let (only, args) = match args.split_first() {
        Some((name, rest)) if !name.starts_with('-') => (Some(name), rest),
        _ => (None, args),
    };
    // libFuzzer takes 0 to mean "run without end", and takes text that is not a number for 0. So
    // check the number here.
    let seconds: u32 = match args {
        [] => 60,
        [key, seconds] if key == "--seconds" => match seconds.parse() {
            Ok(seconds @ 1..) => seconds,
            _ => return Err(usage()),
        },
        _ => return Err(usage()),
    };
    let wanted = |(name, _): &&(&str, u32)| only.is_none_or(|only| only == name);
    let targets: Vec<_> = FUZZED.iter().filter(wanted).collect();
    if targets.is_empty() {
        return Err(usage());
    }
    if !succeeds(Command::new("cargo").args(["fuzz", "--version"])) {
        let why = "cargo-fuzz is missing; install it with `cargo install cargo-fuzz`";
        return Err(Failure::Unable(why.into()));
    }
    for (target, length) in targets {
        // Build without a sanitizer, because the fuzzed crates have no unsafe code of their own.
        let mut command = cargo_nightly(&["fuzz", "run", "-s", "none", target, "--"]);
        command.args([format!("-max_total_time={seconds}"), format!("-max_len={length}")]);
        command.arg("-verbosity=0");
        run(&mut command)?;
    }
    Ok(())
}

/// Compares our qdiscs with recordings of a real kernel.
pub(crate) fn conformance(args: &[String]) -> Outcome {
    let mut command = cargo(&["run", "--quiet", "-p", "onramp-sim", "--example", "conformance"]);
    run(command.arg("--").args(args))
}

/// Runs random cases on a real kernel and on our qdiscs, and compares the results. The kernel runs
/// in a program that lies outside the project.
pub(crate) fn differential(args: &[String]) -> Outcome {
    let package = "onramp-differential";
    let mut command = cargo(&["run", "--quiet", "--release", "-p", package, "--bin", package]);
    // `--keep` decides by the code that a case reaches whether to keep the case as a regression
    // test. So build with the compiler's coverage counters.
    let counts = args.iter().any(|arg| arg.starts_with("--keep"));
    let folder = if counts { "target/differential/reach" } else { "target/differential/build" };
    if counts {
        command.env("RUSTFLAGS", "-C instrument-coverage --cfg reach");
        command.env("LLVM_PROFILE_FILE", "/dev/null");
    }
    command
        .args(["--target-dir", folder, "--"])
        .args(args)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let status = status(&mut command)?;
    match status.code() {
        Some(0) => Ok(()),
        Some(2) => std::process::exit(2),
        // `onramp-differential` ends with status 3 after it has reported what is missing.
        Some(3) => Err(Failure::Unable("cannot ask the kernel: see above".into())),
        _ => Err(Failure::Failed(format!("`{}`: {status}", show(&command)))),
    }
}

/// Type-checks the workspace for AArch64, whose memory model is weaker than that of x86-64, with
/// the oldest version of Rust that the workspace promises to work with.
pub(crate) fn aarch64() -> Outcome {
    let file = root().join("Cargo.toml");
    let manifest = fs::read_to_string(&file)
        .map_err(|err| Failure::Unable(format!("{}: {err}", file.display())))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version =
        version.ok_or_else(|| Failure::Failed("Cargo.toml has no rust-version".into()))?;
    let toolchain = format!("{}.0", version.trim_matches('"'));
    let target = "aarch64-unknown-linux-gnu";
    // A dependency of TLS has parts in C.
    let packages = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross";
    suite::install_missing(&[("aarch64-linux-gnu-gcc", packages)])?;
    toolchain::bring(&toolchain)?;
    toolchain::target(&toolchain, target)?;
    let check = ["check", "--workspace", "--locked", "--target", target];
    let mut check = cargo_of(&toolchain, &check);
    run(check.args(["--target-dir", "target/oldest"]).env("RUSTFLAGS", "-D warnings"))
}
