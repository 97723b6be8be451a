//! What the counters of processes take from a file system.

use std::process::Command;

use super::{assert_conserved, exec, has, received, receiver, told};
use crate::{root, skip, stderr};

/// A process that sends one datagram.
const ONE: &str = "
import socket, sys
socket.socket(type=socket.SOCK_DGRAM).sendto(b'word', ('127.0.0.1', int(sys.argv[1])))
";

/// Each process takes room for the flows that it has, and not for all that it may have: a page of
/// memory, or a block of a disk, which are at most 64 KiB large.
#[test]
fn a_process_takes_room_for_its_own_flows() {
    const LINES: &str = r#"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    python3 -c "$0" "$1" || exit
done
du -k "$ONRAMP_EXEC" | cut -f1
"#;
    if !has("python3") || !has("du") {
        return;
    }
    let (socket, port) = receiver();
    let (document, output) = told(&[], &["sh", "-c", LINES, ONE, &port]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let kibibytes = String::from_utf8_lossy(&output.stdout).trim().parse();
    assert!(kibibytes.is_ok_and(|kibibytes: u32| kibibytes < 20 * 128), "{output:?}");
    assert_eq!(received(&socket).len(), 20);
    assert_conserved(&document);
    let processes = document["processes"].as_array().expect("a list");
    let flows: Vec<_> = processes.iter().filter_map(|one| one["flows"].as_array()).collect();
    assert_eq!(flows.iter().map(|flows| flows.len()).collect::<Vec<_>>(), [1; 20]);
    assert!(flows.iter().all(|flows| flows[0]["sent"] == 1), "{document}");
}

/// When the file system is full, flows without room are counted together, and a process without any
/// passes no qdisc and says so. Nothing ends a program (SIGBUS).
#[test]
fn a_full_file_system_ends_no_program() {
    const SCRIPT: &str = "
import errno, os, socket, subprocess, sys
to = ('127.0.0.1', int(sys.argv[1]))
all = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(200)]
all[0].sendto(b'word', to)
try:
    with open(os.environ['ONRAMP_EXEC'] + '/fill', 'wb', buffering=0) as file:
        while True:
            file.write(bytes(1024))
except OSError as error:
    assert error.errno == errno.ENOSPC
for s in all[1:]:
    assert s.sendto(b'word', to) == 4
subprocess.run([sys.executable, '-c', sys.argv[2], sys.argv[1]], check=True)
";
    const MOUNTED: &str = r#"
mount -t tmpfs -o nr_blocks=16 tmpfs "$TMPDIR" || exit 9
exec "$@"
"#;
    if !has("python3") || !root() {
        skip("exec: a full file system needs root");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).expect("a folder");
    let file = folder.path().join("told.json");
    let (socket, port) = receiver();
    let options = ["--json", file.to_str().expect("UTF-8")];
    let inner = exec(&options, &["python3", "-c", SCRIPT, &port, ONE]);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNTED, "sh"]).arg(inner.get_program());
    command.args(inner.get_args()).env("TMPDIR", &temporary);
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(received(&socket).len(), 201);
    let document = crate::read_json(&file);
    assert_conserved(&document);
    assert_eq!((&document["sent"], &document["around"]), (&200.into(), &0.into()));
    let flows = document["processes"][0]["flows"].as_array().expect("a list");
    let (rest, apart) = flows.split_last().expect("there are flows");
    assert!(apart.iter().all(|flow| flow["local"].is_string() && flow["sent"] == 1), "{document}");
    assert_eq!((&rest["local"], &rest["sent"]), (&().into(), &(200 - apart.len()).into()));
    let said = stderr(&output);
    let lines = said.lines().filter(|line| line.contains("pass no qdisc"));
    assert_eq!(lines.count(), 1, "{said}");
}
