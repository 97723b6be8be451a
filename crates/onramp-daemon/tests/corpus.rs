//! Executes again the inputs that fuzzing of the protocol found to be interesting.

#[path = "ops/protocol.rs"]
mod ops;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[test]
fn the_corpus_is_answered() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/protocol");
    let mut count = 0;
    for entry in fs::read_dir(&corpus).expect("the corpus is in the repository") {
        ops::run(&fs::read(entry.expect("an entry").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", corpus.display());
}

/// Generates commands: `tc` or `ip`, and then up to eight words that these programs know, in any
/// order.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "qdisc", "class", "filter", "link", "add", "del", "replace", "change", "show", "set",
        "dev", "d0", "v0", "v1", "root", "parent", "handle", "1:", "1:1", "1:2", "classid", "htb",
        "fq", "pfifo", "tbf", "prio", "netem", "rate", "1mbit", "limit", "10", "burst", "3k", "-s",
        "-j", "type", "dummy", "veth", "peer", "name", "x", "up", "down", "mtu", "100", "default",
        "-1",
    ]);
    let line = prop::collection::vec(word, 0..9).prop_map(|words| words.join(" "));
    (prop::sample::select(vec!["tc", "ip"]), line)
        .prop_map(|(program, line)| format!("{program} {line}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_words_are_answered(lines in prop::collection::vec(words(), 1..12)) {
        ops::run(lines.join("\n").as_bytes());
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        ops::run(&bytes);
    }
}
