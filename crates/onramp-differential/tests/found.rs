//! Replays cases on which Onramp once differed from Linux, and compares the results with the
//! kernel's recorded answers.

use std::fs;
use std::path::Path;

use onramp_sim::recording::Case;

#[test]
fn what_was_mended_stays_mended() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found");
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a text");
        let name = path.display().to_string();
        let case = Case::parse(&name, &text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let told = case.exact(1);
        assert!(told.is_empty(), "{name}: {told:#?}");
        assert!(case.recorded().departures().count() > 0, "{name}: nothing left");
        seen += 1;
    }
    assert!(seen >= 3, "{seen} cases");
}
