//! Writing results: whole or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::signal::SigSet;
use tempfile::{Builder, NamedTempFile};

use crate::error::StdoutError;

/// Where a report goes. Made before the work starts, so that a wrong path is told at once.
#[derive(Debug)]
pub(crate) enum Output {
    /// `-`.
    Stdout,
    /// A file that appears whole, or stays as it was.
    File(PathBuf),
    /// A device or a pipe: nothing to rename onto.
    Special(PathBuf),
}

impl Output {
    /// Checks that `path` can be written, without leaving anything there.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        // A link stays a link: what it points to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if path.is_dir() {
            bail!("cannot write {}: it is a directory; name a file", path.display());
        }
        if path.exists() && !path.is_file() {
            return Ok(Self::Special(path));
        }
        match temporary(&path) {
            Ok(_) => Ok(Self::File(path)),
            Err(error) => bail!("{}: {}", cannot_write(&path), told(&path, &error)),
        }
    }

    /// Whether this is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Writes `text`.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        match self {
            Self::Stdout => print(text),
            Self::Special(path) => {
                let file = fs::OpenOptions::new().write(true).open(path);
                let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
                written.with_context(|| cannot_write(path))
            }
            Self::File(path) => replace(path, text).with_context(|| cannot_write(path)),
        }
    }
}

/// Writes `text` to standard output. That nobody reads it any more is no failure, and hides none:
/// what the run found still decides how the program ends.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| StdoutError(error).into()),
    }
}

/// Replaces the content of `path`, or leaves it as it is. The signals that end a program wait
/// meanwhile, so that Ctrl-C leaves no temporary file behind.
fn replace(path: &Path, text: &str) -> Result<()> {
    let signals = SigSet::all();
    signals.thread_block()?;
    let written = (|| {
        let mut file = temporary(path)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    })();
    signals.thread_unblock()?;
    Ok(written?)
}

fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let folder = folder(path);
    // 0666 is what the user's umask expects to trim.
    Builder::new().prefix(".onramp-").permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What is wrong with the folder, rather than with a temporary file that nobody knows of.
fn told(path: &Path, error: &io::Error) -> String {
    let folder = folder(path).display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no folder {folder}"),
        io::ErrorKind::PermissionDenied => format!("no permission to write in folder {folder}"),
        _ => error.to_string(),
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
