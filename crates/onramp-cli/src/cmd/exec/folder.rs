//! The folder in which the processes of a command count.

use std::env;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::process::geteuid;
use tempfile::TempDir;

/// What the names of all these folders begin with.
const PREFIX: &str = "onramp-counts-";

/// A folder of its own for a command, which is removed with this value.
pub(super) struct Folder {
    dir: TempDir,
    /// Holds the lock that shows other commands that the folder is in use: the kernel gives it back
    /// however the command ends.
    _lock: File,
}

impl Folder {
    /// Makes the folder, and removes those that commands have left which were killed.
    pub(super) fn new() -> Result<Self> {
        remove_left();
        loop {
            let dir = tempfile::Builder::new().prefix(PREFIX).tempdir();
            let dir = dir.with_context(|| {
                let temporary = env::temp_dir();
                format!(
                    "cannot make a folder in {} for what the processes count; name another one in \
                     TMPDIR, in which this user may make folders",
                    temporary.display()
                )
            })?;
            // Another command removes the folder if it comes before the lock.
            let lock = match File::open(dir.path()) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => {
                    opened.with_context(|| format!("cannot open {}", dir.path().display()))?
                }
            };
            // A file system without locks lets nobody remove the folder.
            let _ = lock.lock();
            if dir.path().is_dir() {
                return Ok(Self { dir, _lock: lock });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the folders of this user of which no command holds the lock. What cannot be removed
/// stays, because this command can do without.
fn remove_left() {
    let Ok(entries) = fs::read_dir(env::temp_dir()) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let is_ours = |about: fs::Metadata| about.is_dir() && about.uid() == geteuid().as_raw();
        if !entry.metadata().is_ok_and(is_ours) {
            continue;
        }
        let Ok(folder) = File::open(entry.path()) else { continue };
        if folder.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
