//! Programs that cannot be run, or not through a qdisc, and exit codes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{exec, has, library, received, receiver, told};
use crate::{assert_fails, install, onramp, root, skip, stderr, wait_until};

fn run(program: &[&str]) -> std::process::Output {
    exec(&[], program).output().expect("it runs")
}

/// Compiles a program in C. Returns its path, or `None` without a compiler.
pub(super) fn compile(folder: &Path, name: &str, text: &str, options: &[&str]) -> Option<String> {
    if !has("gcc") {
        return None;
    }
    let source = folder.join(format!("{name}.c"));
    fs::write(&source, text).expect("room");
    let path = folder.join(name);
    let mut gcc = Command::new("gcc");
    let output = gcc.args(options).arg("-o").arg(&path).arg(&source).output().expect("it runs");
    if !output.status.success() {
        skip(&format!("exec: gcc {options:?}: {}", stderr(&output)));
        return None;
    }
    Some(path.to_str().expect("UTF-8").to_owned())
}

#[test]
fn exit_codes_are_the_programs() {
    for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("exit 0", 0)] {
        let (document, output) = told(&[], &["sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(
            (&document["exit_code"], &document["processes"]),
            (&code.into(), &Value::Array(Vec::new()))
        );
        assert!(stderr(&output).contains("no UDP datagram"), "{}", stderr(&output));
    }
}

/// A command that is killed leaves its folder; the next one removes it, and not that of a command
/// that runs.
#[test]
fn folders_of_killed_commands_are_removed() {
    let temporary = tempfile::tempdir().expect("a folder");
    let start = || {
        let mut command = exec(&["--quiet"], &["sh", "-c", "echo ready; exec sleep 60"]);
        command.env("TMPDIR", temporary.path()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("it is open");
        assert_eq!(line, "ready\n");
        child
    };
    let folders = || {
        let entries = fs::read_dir(temporary.path()).expect("a folder");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("it").file_name()).collect();
        names.sort();
        names
    };
    let mut killed = start();
    let left = folders();
    let mut running = start();
    let both = folders();
    assert_eq!((left.len(), both.len()), (1, 2));
    killed.kill().expect("it runs");
    killed.wait().expect("it was started");
    assert_eq!(folders(), both);
    let others = temporary.path().join("onramp-counts-of-others");
    symlink("/tmp", &others).expect("room");
    let mut command = exec(&[], &["true"]);
    let output = command.env("TMPDIR", temporary.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    fs::remove_file(&others).expect("what is no folder stays");
    let rest = folders();
    assert!(rest.len() == 1 && rest != left && both.contains(&rest[0]), "{rest:?} of {both:?}");
    running.kill().expect("it runs");
    running.wait().expect("it was started");
}

/// Of two commands, one within the other, only the inner one's qdisc is passed, which it says.
#[test]
fn a_command_within_another_says_so() {
    if !has("python3") {
        return;
    }
    let (socket, port) = receiver();
    let script = "import socket, sys
socket.socket(type=socket.SOCK_DGRAM).sendto(b'word', ('127.0.0.1', int(sys.argv[1])))";
    let program = env!("CARGO_BIN_EXE_onramp");
    let inner = [program, "exec", "--quiet", "--", "python3", "-c", script, &port];
    let (document, output) = told(&["--qdisc", "netem loss 100%"], &inner);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!((received(&socket).len(), &document["datagrams"]), (1, &0.into()));
    assert_eq!(stderr(&output).matches("--then").count(), 1, "{}", stderr(&output));
    // What is left in an environment is no command.
    let mut command = exec(&["--quiet"], &["true"]);
    let output = command.env("ONRAMP_EXEC", "/no/such/folder").output().expect("it runs");
    assert_eq!(stderr(&output), "");
}

/// A signal for the command is one for the program.
#[test]
fn signals_go_on_to_the_program() {
    let mut command = exec(&["--quiet"], &["sh", "-c", "echo ready; exec sleep 60"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("it is open");
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert_eq!(child.wait().expect("it was started").code(), Some(143));
}

/// Nobody may ever read the FIFO into which a report is to go. Then a signal ends the command, when
/// its program has ended.
#[test]
fn a_signal_ends_a_report_that_nobody_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fifo, done) = (folder.path().join("fifo"), folder.path().join("done"));
    mkfifoat(CWD, &fifo, 0o777.into()).expect("room");
    let json = fifo.to_str().expect("UTF-8");
    let relay = ["wire", "--relay", "127.0.0.1:0=127.0.0.1:9"];
    for command in [&["exec"][..], &relay] {
        let touch = ["--quiet", "--json", json, "--", "touch", done.to_str().expect("UTF-8")];
        let mut child = onramp([command, &touch].concat()).spawn().expect("it runs");
        wait_until("the program has run", || done.exists());
        // The first signals may still be for the program.
        let mut status = None;
        wait_until("a signal ends it", || {
            status = child.try_wait().expect("it is ours");
            if status.is_none() {
                kill_process(Pid::from_child(&child), Signal::TERM).expect("it is ours");
            }
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.signal()), Some(15), "{command:?}");
        fs::remove_file(&done).expect("it is ours");
    }
}

/// A user whose mask lets nobody read new folders is told so, and only one is made.
#[test]
fn a_folder_that_cannot_be_read_is_named() {
    const NOBODY: u32 = 65_534;
    if !root() {
        return skip("to become another user needs root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        install(from, &to);
        to
    };
    let program = copy(Path::new(env!("CARGO_BIN_EXE_onramp")), "onramp");
    let library = copy(library(), "library.so");
    let mut command = Command::new("sh");
    command.args(["-c", "umask 777; exec timeout 60 \"$0\" exec -- true"]).arg(program).uid(NOBODY);
    command.env("ONRAMP_PRELOAD", library).env("TMPDIR", folder.path());
    let output = command.output().expect("it runs");
    assert_fails(&output, 1, &["cannot open", "onramp-counts-", "Permission denied"]);
}

#[test]
fn what_cannot_be_run_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("room");
    let plain = plain.to_str().expect("UTF-8");
    assert_fails(&run(&["no-such-program"]), 127, &["no-such-program", "PATH"]);
    assert_fails(&run(&["./no/such"]), 127, &["./no/such"]);
    assert_fails(&run(&[plain]), 126, &[plain, "chmod"]);
    assert_fails(&run(&["/tmp"]), 126, &["/tmp", "directory"]);
    assert_fails(&run(&["/dev/null"]), 126, &["/dev/null", "device"]);
    assert_fails(&run(&[""]), 127, &["program is empty", "--"]);
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let fifo = path("fifo");
    mkfifoat(CWD, &fifo, 0o777.into()).expect("room");
    assert_fails(&run(&[&fifo]), 126, &[&fifo, "FIFO"]);
    for (name, line, code, words) in [
        ("gone", "/no/such/shell -x", 127, ["/no/such/shell", "install"]),
        ("nowhere", "/usr/bin/env no-such-shell", 127, ["no-such-shell", "PATH"]),
        ("windows", "/bin/sh\r", 127, ["/bin/sh", "carriage return"]),
        ("folder", "/tmp", 126, ["/tmp", "directory"]),
    ] {
        let script = path(name);
        fs::write(&script, format!("#!{line}\n")).expect("room");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let named = format!("the first line of {script}");
        assert_fails(&run(&[&script]), code, &[&[&*named][..], &words].concat());
    }
    let words = ["exec", "--setup", "-", "--", "true"];
    assert_fails(&onramp(words).output().expect("it runs"), 1, &["read -", "/dev/stdin"]);
    let words = ["exec", "--qdisc", "fq nonsense 1", "--", "true"];
    assert_fails(&onramp(words).output().expect("it runs"), 2, &["--qdisc", "nonsense"]);
    assert_fails(&onramp(["exec"]).output().expect("it runs"), 2, &["COMMAND"]);
    let words = ["exec", "--drain", "4000", "--", "true"];
    assert_fails(&onramp(words).output().expect("it runs"), 2, &["--drain"]);
}

#[test]
fn programs_that_load_no_library_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let main = "int main(void) { return 0; }";
    let Some(linked) = compile(folder, "linked", main, &[]) else { return };
    assert_eq!(run(&[&linked]).status.code(), Some(0));
    let linker = "-Wl,--dynamic-linker=/no/such/linker.so";
    if let Some(odd) = compile(folder, "odd", main, &[linker]) {
        assert_fails(&run(&[&odd]), 127, &[&odd, "/no/such/linker.so", "install"]);
    }
    let of_go = "__attribute__((section(\".go.buildinfo\"))) int info = 1;\n".to_owned() + main;
    if let Some(go) = compile(folder, "of-go", &of_go, &[]) {
        assert_fails(&run(&[&go]), 1, &[&go, "Go", "onramp wire"]);
    }
    let Some(fixed) = compile(folder, "static", main, &["-static"]) else { return };
    assert_fails(&run(&[&fixed]), 1, &[&fixed, "statically", "onramp wire"]);
    // The interpreter of a script is looked at, also if `env` finds it.
    for (name, line) in [("direct", fixed.clone()), ("by-env", "/usr/bin/env -S A=1 static".into())]
    {
        let script = folder.join(name);
        fs::write(&script, format!("#!{line} x\n")).expect("room");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = exec(&[], &[script.to_str().expect("UTF-8")]);
        let output = command.env("PATH", format!("{}:{path}", folder.display())).output();
        assert_fails(&output.expect("it runs"), 1, &[&fixed, "statically"]);
    }
}

/// What the Go compiler makes: alone, without the names of its symbols, and linked with the C
/// library, as programs are that use cgo.
#[test]
fn programs_of_the_go_compiler_are_refused() {
    // No failure in CI: the compiler is too large to be installed for this test alone, and the test
    // above makes something like a program in Go.
    let tell = |why: &str| writeln!(std::io::stderr(), "NOTE: exec: {why}").expect("it is open");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("main.go");
    fs::write(&source, "package main\n\nfunc main() {}\n").expect("room");
    for flags in ["", "-s -w", "-linkmode=external"] {
        let program = folder.path().join("program");
        let mut go = Command::new("go");
        go.args(["build", "-ldflags", flags, "-o"]).args([&program, &source]);
        // Compiled packages are kept for the next run of the test; nothing is downloaded.
        go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
        go.envs([("GOFLAGS", ""), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local")]);
        match go.current_dir(folder.path()).output() {
            Ok(output) if output.status.success() => {
                let program = program.to_str().expect("UTF-8");
                assert_fails(&run(&[program]), 1, &[program, "programs in Go", "onramp wire"]);
            }
            Ok(output) => tell(&format!("go {flags}: {}", stderr(&output))),
            Err(error) => return tell(&format!("no go: {error}")),
        }
    }
}

#[test]
fn other_machines_and_rights_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = |name: &str, bytes: &[u8], mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("room");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path.to_str().expect("UTF-8").to_owned()
    };
    // The head of a 32-bit program: class, byte order, version; type, machine (x86), version.
    let mut head = vec![0; 52];
    head[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    (head[16], head[18], head[20], head[40]) = (2, 3, 1, 52);
    let old = program("old", &head, 0o755);
    assert_fails(&run(&[&old]), 1, &[&old, "32-bit", "onramp wire"]);
    let own = fs::read("/bin/true").expect("it is there");
    let mut other = own.clone();
    other[18] = 2;
    let other = program("other", &other, 0o755);
    assert_fails(&run(&[&other]), 1, &[&other, "processor"]);
    if !rustix::process::geteuid().is_root() {
        return skip("exec: setuid programs need root");
    }
    let owned = program("owned", &own, 0o755);
    chown(&owned, Some(65_534), Some(65_534)).expect("root may");
    for (mode, word) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        fs::set_permissions(&owned, fs::Permissions::from_mode(mode)).expect("root may");
        assert_fails(&run(&[&owned]), 1, &[&owned, word, "onramp wire"]);
    }
}

#[test]
fn the_library_must_be_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("onramp");
    install(Path::new(env!("CARGO_BIN_EXE_onramp")), &copy);
    let run = |library: Option<&Path>| {
        let mut command = Command::new(&copy);
        command.args(["exec", "--quiet", "--", "true"]).env_remove("ONRAMP_PRELOAD");
        command.envs(library.map(|path| ("ONRAMP_PRELOAD", path))).output().expect("it runs")
    };
    assert_fails(&run(None), 1, &["libonramp_preload.so", "cargo build", "ONRAMP_PRELOAD"]);
    assert_fails(&run(Some(Path::new("/no/such.so"))), 1, &["ONRAMP_PRELOAD", "/no/such.so"]);
    assert_fails(&run(Some(Path::new(""))), 1, &["ONRAMP_PRELOAD is empty", "unset"]);
    let text = folder.path().join("text.so");
    fs::write(&text, "no library").expect("room");
    for other in [&text, &copy, folder.path()] {
        assert_fails(&run(Some(other)), 1, &["is not the library", "ONRAMP_PRELOAD"]);
    }
    assert_eq!(run(Some(library())).status.code(), Some(0));
    let wide = folder.path().join("two words.so");
    fs::copy(library(), &wide).expect("room");
    assert_fails(&run(Some(&wide)), 1, &["space"]);
    fs::copy(library(), folder.path().join("libonramp_preload.so")).expect("room");
    assert_eq!(run(None).status.code(), Some(0));
}

/// A program whose environment has the library, but not the folder, sends as without a qdisc, and
/// says so.
#[test]
fn without_an_order_datagrams_pass_no_qdisc() {
    if !has("python3") {
        return;
    }
    let script = "import socket; s = socket.socket(type=socket.SOCK_DGRAM)
for i in range(2): print(s.sendto(b'abc', ('127.0.0.1', 9)))";
    let mut command = Command::new("python3");
    command.args(["-c", script]).env("LD_PRELOAD", library()).env_remove("ONRAMP_EXEC");
    let output = command.output().expect("it runs");
    assert_eq!(output.stdout, b"3\n3\n", "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("pass no qdisc").count(), 1, "{}", stderr(&output));
}
