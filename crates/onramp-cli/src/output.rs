//! Writes results. A file gets its complete new content at once, or it stays as it was.

use std::fs::{self, FileType, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow};
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile};

use crate::error::{Several, Stalled, StdoutError, usage};
use crate::signals::{Signals, Unread};

/// Largest number of symbolic links that are followed, as in Linux (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Number of bytes that are written to find out whether a file can be: as many as a block of most
/// file systems.
const PROBE: usize = 4_096;

/// Number of bytes that a pipe takes at once when `poll` says that it has room (`PIPE_BUF`).
const PIECE: usize = 4_096;

/// How long to wait before looking again whether a pipe has a reader.
const PAUSE: Duration = Duration::from_millis(50);

/// Paths that mean standard output.
const STDOUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// Where a report is written. An `Output` is made before the work starts, so that a wrong path is
/// reported at once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Standard output, written `-`.
    Stdout,
    /// A file. Its content is replaced as a whole at the end, or stays as it was.
    File(PathBuf),
    /// A device or a pipe. The program writes into it, because renaming a file over it would not
    /// write to it.
    Special(PathBuf),
}

impl Output {
    /// Creates an output for `path`, and checks that it can be written. Leaves no file there.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        if STDOUT.iter().any(|name| path == Path::new(name)) {
            return Ok(Self::Stdout);
        }
        Self::at(path).map_err(|why| anyhow!("cannot write {}: {why}", path.display()))
    }

    fn at(path: &Path) -> Result<Self, String> {
        // Find out whether the file is special before its path is made canonical: a link under
        // /dev/fd may lead to a pipe, which has no path, so `canonicalize` would fail.
        if fs::metadata(path).is_ok_and(|metadata| special(metadata.file_type())) {
            return Ok(Self::Special(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())));
        }
        let path = target(path)?;
        match fs::metadata(&path).map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_dir() => Err("it is a directory; name a file".to_owned()),
            Ok(kind) if kind.is_socket() || kind.is_block_device() => {
                Err("it is a socket or a disk; name a file".to_owned())
            }
            Ok(_) => {
                let opened = fs::OpenOptions::new().write(true).open(&path);
                opened.map_err(|error| format!("{}; name another file", said(&error)))?;
                Self::file(path)
            }
            // If the file's name is too long, the check with a temporary file would not find that,
            // because the temporary file has a short name.
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                Err(told(&path, &error))
            }
            Err(_) => Self::file(path),
        }
    }

    fn file(path: PathBuf) -> Result<Self, String> {
        // A full disk may still have room for a file without content, so the check writes some.
        let written = temporary(&path).and_then(|file| file.as_file().write_all(&[0; PROBE]));
        match written {
            Ok(()) => Ok(Self::File(path)),
            Err(error) => Err(told(&path, &error)),
        }
    }

    /// Whether the output is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Whether nobody may read what is written, so that writing never ends.
    pub(crate) fn may_stall(&self) -> bool {
        !matches!(self, Self::File(_))
    }

    /// Whether the output is the file at `path`.
    pub(crate) fn is_file(&self, path: &Path) -> bool {
        matches!(self, Self::File(file) if fs::canonicalize(path).is_ok_and(|path| path == *file))
    }

    /// Whether the output is a file whose path equals that of `folder` or of one of its parents, so
    /// that the folder cannot be made.
    pub(crate) fn is_on_the_way_to(&self, folder: &Path) -> bool {
        let Self::File(file) = self else { return false };
        let Ok(folder) = std::path::absolute(folder) else { return false };
        // The part of `folder` that exists is resolved through its symbolic links. The rest does
        // not exist yet.
        let there = folder.ancestors().find_map(|part| {
            let rest = folder.strip_prefix(part).ok()?;
            Some(fs::canonicalize(part).ok()?.join(rest))
        });
        there.unwrap_or(folder).starts_with(file)
    }

    /// Writes `text` as the whole output.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        self.write_bytes(text.as_bytes())
    }

    /// Writes `bytes` as the whole output.
    fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        let (path, written) = match self {
            Self::Stdout => return print_bytes(bytes),
            Self::Special(path) => {
                let file = fs::OpenOptions::new().write(true).open(path);
                (path, file.and_then(|mut file| file.write_all(bytes)))
            }
            Self::File(path) => (path, replace(path, bytes)),
        };
        written.map_err(|error| cannot_write(path, &error))
    }
}

impl Output {
    /// Opens the output, which can then be written piece by piece.
    ///
    /// If there are `signals`, one of them ends the wait for somebody who reads a pipe, while this
    /// opens it and while the stream writes into it. Without them, the wait does not end, so they
    /// must not be blocked.
    pub(crate) fn stream<'s>(&self, signals: Option<&'s Signals>) -> Result<Stream<'s>> {
        let to = match self {
            Self::Stdout => Ok(To::Stdout),
            Self::Special(path) => open(path, signals).map(To::Special),
            Self::File(path) => temporary(path).map(To::File),
        };
        let path = match self {
            Self::Stdout => PathBuf::new(),
            Self::Special(path) | Self::File(path) => path.clone(),
        };
        let to = to.map_err(|error| cannot_write(&path, &error))?;
        Ok(Stream { path, to, signals })
    }
}

/// An open output that is written piece by piece. A file gets its new content only when the output
/// is finished; otherwise it stays as it was.
#[derive(Debug)]
pub(crate) struct Stream<'s> {
    path: PathBuf,
    to: To,
    signals: Option<&'s Signals>,
}

#[derive(Debug)]
enum To {
    Stdout,
    Special(fs::File),
    File(NamedTempFile),
}

impl Stream<'_> {
    /// Returns the message for `error`, which happened while this stream was written.
    pub(crate) fn failed(&self, error: &io::Error) -> anyhow::Error {
        match self.to {
            To::Stdout if Unread::is(error) => {
                Stalled(format!("cannot write to standard output: {error}")).into()
            }
            To::Stdout => StdoutError(io::Error::new(error.kind(), error.to_string())).into(),
            _ => cannot_write(&self.path, error),
        }
    }

    /// Finishes the output. If it is a file, the file gets its new content now.
    pub(crate) fn finish(mut self) -> Result<()> {
        if let Err(error) = self.flush() {
            return Err(self.failed(&error));
        }
        let To::File(file) = self.to else { return Ok(()) };
        let done = undisturbed(|| {
            file.as_file().sync_all()?;
            file.persist(&self.path).map(drop).map_err(|failed| failed.error)
        });
        done.map_err(|error| cannot_write(&self.path, &error))
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Stdout => write_heedful(io::stdout(), bytes, self.signals),
            To::Special(file) => write_heedful(file, bytes, self.signals),
            To::File(file) => file.as_file().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            // `write` leaves nothing in a buffer.
            To::Stdout => Ok(()),
            To::Special(file) => file.flush(),
            To::File(file) => file.flush(),
        }
    }
}

/// Opens a device or a pipe to write. Waits for a reader of a pipe, until a signal comes.
fn open(path: &Path, signals: Option<&Signals>) -> io::Result<fs::File> {
    let Some(signals) = signals else { return fs::OpenOptions::new().write(true).open(path) };
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let is_pipe = fs::metadata(path)?.file_type().is_fifo();
    loop {
        match fs::OpenOptions::new().write(true).custom_flags(flags).open(path) {
            // So the kernel says that no program has opened the pipe to read.
            Err(error) if is_pipe && error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                signals.rest(PAUSE)?;
            }
            opened => return opened,
        }
    }
}

/// Writes a part of `bytes` that a pipe takes without making the program wait, as soon as the pipe
/// has room. Returns an error if a signal comes while the pipe has none.
fn write_heedful(to: impl AsFd, bytes: &[u8], signals: Option<&Signals>) -> io::Result<usize> {
    let Some(signals) = signals else { return Ok(rustix::io::write(to, bytes)?) };
    loop {
        signals.wait_to_write(&to)?;
        match rustix::io::write(&to, &bytes[..bytes.len().min(PIECE)]) {
            // Another program that writes into the same pipe was faster.
            Err(Errno::AGAIN | Errno::INTR) => {}
            written => return Ok(written?),
        }
    }
}

/// A folder for several report files. It is made before the work starts, so that a wrong path is
/// reported at once. If no file is written into it, it is removed again.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// The folders that did not exist before, the innermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Makes the folder at `path` if it does not exist yet, and checks that files can be made in
    /// it.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let shown = path.display();
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let made = path.ancestors().take_while(missing).map(Path::to_owned).collect();
        let folder = Self { path: path.to_owned(), made };
        fs::create_dir_all(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                anyhow!("cannot make folder {shown}: a file is in its place; name another")
            }
            _ => anyhow!("cannot make folder {shown}: {}; name another", said(&error)),
        })?;
        // No file with this name is left in the folder. `Output::new` only checks that one could be
        // made.
        Output::new(&path.join(".onramp"))?;
        Ok(folder)
    }

    /// Writes the file `name` in the folder.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        Output::new(&self.path.join(name))?.write_bytes(bytes)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `remove_dir` fails, and so ends the loop, at the first folder that is not empty.
        let _ = self.made.iter().try_for_each(fs::remove_dir);
    }
}

/// Returns an error if two options name the same file, because the later output would silently
/// replace the earlier one.
pub(crate) fn distinct(outputs: &[(&str, Option<&Output>)]) -> Result<()> {
    for (place, (first, one)) in outputs.iter().enumerate() {
        let same = |(_, other): &&(&str, Option<&Output>)| one.is_some() && other == one;
        if let Some((second, _)) = outputs[place + 1..].iter().find(same) {
            return Err(usage(format!("{first} and {second} name the same file: name two files")));
        }
    }
    Ok(())
}

/// Returns the first error in `done`. The messages of further errors are added to its message; the
/// first decides the exit code.
pub(crate) fn all(done: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut failures = done.into_iter().filter_map(Result::err);
    let Some(first) = failures.next() else { return Ok(()) };
    let more: Vec<_> = failures.collect();
    if more.is_empty() { Err(first) } else { Err(Several { first, more }.into()) }
}

/// Writes `text` to standard output. If the reader has closed standard output, this is not an
/// error, and the results of the run still decide the exit code.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes `text` to standard output. If the reader has closed standard output, this is an error
/// that ends the command, without a message and with the exit code 0.
pub(crate) fn show(text: &str) -> Result<()> {
    Ok(written(text.as_bytes())?)
}

fn print_bytes(bytes: &[u8]) -> Result<()> {
    match written(bytes) {
        Err(StdoutError(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn written(bytes: &[u8]) -> Result<(), StdoutError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(StdoutError)
}

fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or name a file elsewhere"
        }
        _ if Unread::is(error) => "start a program that reads it, or name a file",
        _ => "name another file",
    };
    let text = format!("cannot write {}: {}; {advice}", path.display(), said(error));
    if Unread::is(error) { Stalled(text).into() } else { anyhow!(text) }
}

/// Replaces the content of the file at `path`, or leaves the file as it is. Signals that would end
/// the program are blocked during that time, so that Ctrl-C leaves no temporary file behind.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    undisturbed(|| {
        let file = temporary(path)?;
        // The error of `File` has no path in its message; the path of the temporary file means
        // nothing to the user.
        file.as_file().write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|failed| failed.error)
    })
}

/// Calls `done` while all signals are blocked.
fn undisturbed(done: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let done = done();
    before.thread_set_mask()?;
    done
}

/// Whether a file of this type is a character device, such as a terminal, or a pipe.
fn special(kind: FileType) -> bool {
    kind.is_char_device() || kind.is_fifo()
}

/// Returns the path of the file that `path` leads to, without symbolic links, so that all paths to
/// one file give the same result. If `path` is a symbolic link, the link stays and the file that it
/// points to is replaced, even if that file does not exist yet.
fn target(path: &Path) -> Result<PathBuf, String> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        if let Ok(there) = fs::canonicalize(&path) {
            return Ok(there);
        }
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err("it names a directory; name a file".to_owned());
        }
        match fs::read_link(&path) {
            Ok(to) => path = folder(&path).join(to),
            // If the folder does not exist, that is reported later, when a file is made in it.
            Err(_) => {
                return Ok(match (fs::canonicalize(folder(&path)), path.file_name()) {
                    (Ok(folder), Some(name)) => folder.join(name),
                    _ => path,
                });
            }
        }
    }
    Err("its symbolic links go round in a circle; name a file".to_owned())
}

fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    // Users who may not read the file that is replaced may not read the new one at any time. The
    // system removes the bits of the user's umask from the mode of a file that is made.
    let there = fs::metadata(path).ok().map(|there| there.permissions());
    let mode = there.clone().unwrap_or_else(|| Permissions::from_mode(0o666));
    let file = Builder::new().prefix(".onramp-").permissions(mode).tempfile_in(folder(path))?;
    // A file that is replaced keeps its mode, whatever the umask is.
    if let Some(there) = there {
        file.as_file().set_permissions(there)?;
    }
    Ok(file)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns an error message that speaks of the folder of `path`, with advice. The error happened to
/// a temporary file in that folder, of which the user knows nothing.
fn told(path: &Path, error: &io::Error) -> String {
    let folder = folder(path);
    let name = folder.display();
    match error.kind() {
        io::ErrorKind::NotFound if folder.is_dir() => {
            format!("no file can be made in folder {name}; name a file in another")
        }
        io::ErrorKind::NotFound => format!("there is no folder {name}; make it, or name another"),
        io::ErrorKind::NotADirectory => format!("{name} is not a folder; name a file in a folder"),
        io::ErrorKind::PermissionDenied => {
            format!("no permission to write in folder {name}; name a file in another")
        }
        io::ErrorKind::InvalidFilename => "the name is too long; give a shorter one".to_owned(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("{} in folder {name}; free some space, or name a file in another", said(error))
        }
        _ => format!("{} in folder {name}; name a file in another", said(error)),
    }
}

/// Returns the system's message for `error`. Errors of temporary files would add the path of the
/// temporary file.
fn said(error: &io::Error) -> String {
    let source = error.get_ref().and_then(|inner| inner.source());
    let source = source.and_then(|source| source.downcast_ref::<io::Error>()).unwrap_or(error);
    source.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_a_file_are_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| Output::new(&folder.path().join(name)).expect("it can be written");
        std::os::unix::fs::symlink("plain", folder.path().join("link")).expect("a link");
        std::os::unix::fs::symlink(".", folder.path().join("here")).expect("a link");
        let plain = at("plain");
        for way in ["./plain", "link", "here/plain", "here/here/link"] {
            assert_eq!(at(way), plain, "{way}");
            assert!(distinct(&[("--a", Some(&plain)), ("--b", Some(&at(way)))]).is_err(), "{way}");
        }
        assert!(distinct(&[("--a", Some(&plain)), ("--b", Some(&at("other")))]).is_ok());
        assert!(distinct(&[("--a", Some(&plain)), ("--b", None)]).is_ok());

        at("link").write("text").expect("it can be written");
        assert_eq!(fs::read(folder.path().join("plain")).expect("behind the link"), b"text");
        assert!(folder.path().join("link").is_symlink());
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report");
        fs::write(&path, "old").expect("ours");
        fs::set_permissions(&path, Permissions::from_mode(0o602)).expect("ours");
        Output::new(&path).expect("it can be written").write("new").expect("it can be written");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!((fs::read(&path).expect("ours"), mode & 0o777), (b"new".to_vec(), 0o602));
    }

    #[test]
    fn links_in_a_circle() {
        let folder = tempfile::tempdir().expect("a folder");
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink("circle", &circle).expect("a link");
        let error = Output::new(&circle).expect_err("it leads nowhere").to_string();
        assert!(error.contains("circle") && error.contains("name a file"), "{error}");
    }

    #[test]
    fn every_failure_is_told() {
        all([Ok(()), Ok(())]).expect("nothing failed");
        let failed = all([Err(anyhow!("one")), Ok(()), Err(anyhow!("two"))]);
        assert_eq!(failed.expect_err("two failed").to_string(), "one; also: two");
    }
}
