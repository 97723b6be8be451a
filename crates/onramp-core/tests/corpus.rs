//! What fuzzing found worth keeping, again.

mod ops;

use std::fs;
use std::path::Path;

#[test]
fn the_corpus_breaks_no_qdisc() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/qdisc");
    let entries = fs::read_dir(&corpus).expect("the corpus is in the repository");
    let mut count = 0;
    for entry in entries {
        ops::run(&fs::read(entry.expect("readable").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", corpus.display());
}
