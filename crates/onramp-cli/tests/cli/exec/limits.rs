//! What the command says and leaves where it may not write.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{exec, has};
use crate::{assert_fails, root, skip, stderr};

/// Runs `onramp exec -- true` behind a line of the shell, with this temporary folder.
fn run_behind(line: &str, temporary: &Path) -> std::process::Output {
    let inner = exec(&[], &["true"]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{line} && exec \"$@\""), "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).env("TMPDIR", temporary);
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.output().expect("it runs")
}

/// The text says what to do.
#[test]
fn a_temporary_folder_without_room_is_named() {
    let absent = exec(&[], &["true"]).env("TMPDIR", "/nonexistent").output().expect("it runs");
    assert_fails(&absent, 1, &["cannot make a folder in /nonexistent", "another one in TMPDIR"]);
    if !root() {
        return skip("exec: a file system that is full or read-only needs root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let read_only = "mount -t tmpfs -o ro tmpfs \"$TMPDIR\"";
    let output = run_behind(read_only, folder.path());
    assert_fails(&output, 1, &["cannot make a folder in", "in TMPDIR", "Read-only"]);
    let full = "mount -t tmpfs -o nr_blocks=1 tmpfs \"$TMPDIR\" && echo > \"$TMPDIR/fill\"";
    let output = run_behind(full, folder.path());
    assert_fails(&output, 1, &["cannot write into", "room in TMPDIR", "No space left"]);
}

/// The command itself gets an error instead of the signal (SIGXFSZ), and removes its folder.
#[test]
fn a_limit_on_files_is_told_and_leaves_nothing() {
    let temporary = tempfile::tempdir().expect("a folder");
    let inner = exec(&[], &["true"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$@\"", "sh"]).arg(inner.get_program());
    command.args(inner.get_args()).env("TMPDIR", temporary.path());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let output = command.output().expect("it runs");
    assert_fails(&output, 1, &["cannot write into", "`ulimit -f`", "2 MiB", "File too large"]);
    assert_eq!(fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}

/// The program has the signal as it would have it without the command.
#[test]
fn a_program_gets_the_signal_of_the_limit() {
    const SCRIPT: &str = "
import signal
lines = [line.split() for line in open('/proc/self/status')]
print([int(line[1], 16) >> signal.SIGXFSZ - 1 & 1 for line in lines if line[0] == 'SigBlk:'])
";
    if !has("python3") {
        return;
    }
    let output = exec(&["--quiet"], &["python3", "-c", SCRIPT]).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "[0]\n", "{}", stderr(&output));
}
