//! Executes lines of bytes as a client may send them, for fuzzing and for the corpus that fuzzing
//! produced.

use std::path::Path;

use onramp_daemon::{dispatch, wire};
use onramp_host::Host;
use serde_json::{Value, json};

/// Lines that contain one of these words are skipped, because they would use up the machine's
/// memory or ports.
const LEFT_OUT: [&str; 3] = ["numtxqueues", "udp", "/"];

/// Executes each line as a request, or, if the line begins with `tc` or `ip`, as a command of words
/// separated by spaces.
pub(crate) fn run(bytes: &[u8]) {
    let mut host = Host::new();
    for line in ["ip link add d0 up type dummy", "ip link add v0 up type veth peer name v1"] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(host.exec(&words, Path::new("/")).code, 0, "{line}");
    }
    for line in bytes.split(|byte| *byte == b'\n').take(40) {
        let wrapped = wrapped(line);
        let request = wrapped.as_deref().unwrap_or(line);
        let costs = |word: &&str| line.windows(word.len()).any(|at| at == word.as_bytes());
        if !LEFT_OUT.iter().any(costs) {
            check(request, &dispatch::answer(&mut host, request));
        }
    }
    // This command must succeed, whatever the lines before it did.
    let listing = wrapped(b"tc -s -d -j qdisc show").expect("a command");
    check(&listing, &dispatch::answer(&mut host, &listing));
}

/// Turns a line that is a command into a request of the protocol; `None` if the line is not a
/// command.
fn wrapped(line: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let known = words.first().is_some_and(|first| wire::PROGRAMS.contains(first));
    known.then(|| json!({ "v": 1, "id": 1, "argv": words }).to_string().into_bytes())
}

/// Checks that a reply is one line of JSON with the keys of a reply, and that a failed command has
/// an error message.
fn check(request: &[u8], reply: &[u8]) {
    let told = || String::from_utf8_lossy(request).into_owned();
    let (end, line) = reply.split_last().expect("there is a reply");
    assert!(*end == b'\n' && !line.contains(&b'\n'), "one line: {}", told());
    let reply: Value = serde_json::from_slice(line).expect("a reply is JSON");
    assert_eq!(reply["v"], 1, "{}", told());
    let code = reply["code"].as_u64().expect("a code");
    assert!([0, 1, 2, 255].contains(&code), "{code}: {}", told());
    if reply.get("tried").is_none() {
        let silent = reply["err"].as_str().expect("what went wrong").is_empty();
        assert!(code == 0 || !silent, "it says why: {}: {reply}", told());
    }
}
