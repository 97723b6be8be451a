//! Replays the inputs that fuzzing found and that are kept in the repository.

#[path = "../ops/bytecode.rs"]
mod bytecode;
#[path = "../ops/dissect.rs"]
pub(crate) mod dissect;
#[path = "../ops/frame.rs"]
mod frame;
#[path = "../ops/mod.rs"]
mod ops;

use std::fs;
use std::path::Path;

/// Calls `run` with the content of each file of a corpus (a folder of stored inputs).
fn replay(name: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = fs::read_dir(&corpus).expect("the corpus is in the repository");
    let mut count = 0;
    for entry in entries {
        run(&fs::read(entry.expect("readable").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", corpus.display());
}

#[test]
fn the_corpus_breaks_no_qdisc() {
    replay("qdisc", ops::run);
}

#[test]
fn the_corpus_is_taken_apart() {
    replay("dissect", dissect::run);
}

#[test]
fn the_corpus_of_frames_is_cut_and_marked() {
    replay("frame", frame::run);
}

#[test]
fn the_corpus_runs_as_programs() {
    replay("bytecode", bytecode::run);
}

#[test]
fn the_corpus_makes_trees_or_errors() {
    replay("setup", |text| ops::set_up(&String::from_utf8_lossy(text)));
}
