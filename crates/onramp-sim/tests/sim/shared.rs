//! Finds the recordings of a real kernel. They are not part of this repository: they are in
//! `../shared/golden` beside it or in `$ONRAMP_SHARED/golden`.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Returns the folder of the recordings. If there is none, prints that the tests are skipped and
/// returns `None`. Panics if `$ONRAMP_SHARED` is set but that folder has no recordings.
pub(crate) fn golden() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let told = std::env::var_os("ONRAMP_SHARED");
    let golden = told.as_ref().map_or_else(beside, PathBuf::from).join("golden");
    if golden.is_dir() {
        return Some(golden);
    }
    let why = format!("no recordings at {} (set ONRAMP_SHARED)", golden.display());
    assert!(told.is_none(), "{why}");
    // The message goes directly to standard error, because the test harness hides what passing
    // tests print.
    writeln!(std::io::stderr(), "SKIP: reference: {why}").expect("it is open");
    None
}
