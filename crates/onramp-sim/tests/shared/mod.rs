//! Recordings of a real kernel. They lie outside the project, in `../shared/golden` beside the
//! repository or in `$ONRAMP_SHARED/golden`.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Where the recordings are; without them says so, and in CI fails.
pub(crate) fn golden() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let golden =
        std::env::var_os("ONRAMP_SHARED").map_or_else(beside, PathBuf::from).join("golden");
    if golden.is_dir() {
        return Some(golden);
    }
    let why = format!("no recordings at {} (set ONRAMP_SHARED)", golden.display());
    assert!(std::env::var_os("CI").is_none(), "{why}");
    // Past the test harness, which hides what passing tests print.
    writeln!(std::io::stderr(), "SKIP: {why}").expect("it is open");
    None
}
