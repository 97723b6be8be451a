//! Recordings of a real kernel. They lie outside the project, in `../shared/golden` beside the
//! repository or in `$ONRAMP_SHARED/golden`.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Where the recordings are; without them says so. It fails if somebody said where they are, and
/// they are not there.
pub(crate) fn golden() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let told = std::env::var_os("ONRAMP_SHARED");
    let golden = told.as_ref().map_or_else(beside, PathBuf::from).join("golden");
    if golden.is_dir() {
        return Some(golden);
    }
    let why = format!("no recordings at {} (set ONRAMP_SHARED)", golden.display());
    assert!(told.is_none(), "{why}");
    // Past the test harness, which hides what passing tests print.
    writeln!(std::io::stderr(), "SKIP: reference: {why}").expect("it is open");
    None
}
