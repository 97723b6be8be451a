//! The control socket: its path, its protection against a second daemon, and its access rights.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Directory of the socket if the user names no path and `$XDG_RUNTIME_DIR` is not set.
const SYSTEM: &str = "/run/onramp";
/// Maximum number of clients that have connected and wait until the daemon accepts them.
const BACKLOG: i32 = 4_096;

/// The socket file of a daemon. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Dropped after the socket file is removed.
    _lock: Lock,
}

/// The lock that prevents a second daemon from using the same path. Dropping it removes the lock
/// file and releases the lock.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

/// Returns the path of the socket: `$ONRAMP_SOCKET`, or [`default_path`].
#[must_use]
pub fn find_path() -> PathBuf {
    let named = env::var_os("ONRAMP_SOCKET").filter(|path| !path.is_empty());
    named.map_or_else(default_path, PathBuf::from)
}

/// Returns the path that the socket has if the user names none: `$XDG_RUNTIME_DIR/onramp.sock`, or
/// `/run/onramp/onramp.sock` if that variable is not set to an absolute path.
#[must_use]
pub fn default_path() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute());
    runtime.unwrap_or_else(|| PathBuf::from(SYSTEM)).join("onramp.sock")
}

/// Advice for a user who may not use a daemon.
pub(crate) const OWN_DAEMON: &str =
    "start one of your own: `onramp daemon --socket PATH`, and set ONRAMP_SOCKET=PATH";

/// Returns a message for a user whose program could not connect to the daemon at `path`.
pub(crate) fn absent(path: &Path, error: &io::Error) -> String {
    let name = path.display();
    let start = "start one with `onramp daemon`, or say where it is: ONRAMP_SOCKET=PATH";
    match error.kind() {
        io::ErrorKind::NotFound => format!("no daemon runs at {name}: {start}"),
        // The kernel gives the same error for a folder and for a file that is not a socket.
        io::ErrorKind::ConnectionRefused if is_other(path) => {
            format!("{name} is not a socket, so no daemon is there: {start}")
        }
        io::ErrorKind::ConnectionRefused => format!("the daemon at {name} has ended: {start}"),
        io::ErrorKind::PermissionDenied => format!(
            "this user may not use the daemon at {name}: only the user who started it may (and \
             root); or {OWN_DAEMON}"
        ),
        _ => format!("no daemon at {name}: {error}; {start}"),
    }
}

/// Whether there is a folder or a file at `path` that is not a socket.
fn is_other(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.file_type().is_socket())
}

impl Socket {
    /// Opens the socket at `path`, replacing the socket that a dead daemon left there.
    ///
    /// # Errors
    ///
    /// Returns what prevents the socket from opening: a running daemon, named by its process ID; a
    /// file that is not a socket; or an error of the system.
    pub(crate) fn open(path: &Path) -> Result<(Self, UnixListener), String> {
        let name = path.display();
        if path == Path::new(SYSTEM).join("onramp.sock") {
            // The system's default directory is the only directory that the daemon creates; any
            // other directory must exist.
            let made = DirBuilder::new().recursive(true).mode(0o755).create(SYSTEM);
            made.map_err(|error| format!("cannot make {SYSTEM}: {error}; try --socket PATH"))?;
        }
        let lock = Lock::take(path)?;
        clear(path)?;
        let listener = listen(path).map_err(|error| format!("cannot listen at {name}: {error}"))?;
        Ok((Self { path: path.to_owned(), _lock: lock }, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // This daemon still holds the lock, so the socket file is its own, and it may remove the
        // file. If that fails, nothing more can be done.
        let _ = fs::remove_file(&self.path);
    }
}

impl Lock {
    fn take(socket: &Path) -> Result<Self, String> {
        let mut path = OsString::from(socket);
        path.push(OsStr::new(".lock"));
        let path = PathBuf::from(path);
        let failed = |error: io::Error| {
            let folder = path.parent().unwrap_or(&path).display();
            match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "there is no folder {folder} for the socket; make it, or give another --socket"
                ),
                io::ErrorKind::PermissionDenied => {
                    format!("this user may not create {}; give another --socket", path.display())
                }
                _ => format!("cannot lock {}: {error}", path.display()),
            }
        };
        loop {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(busy(socket)),
                Err(error) => return Err(failed(error.into())),
            }
            // Another daemon that ended in the meantime may have removed the lock file that this
            // daemon has just locked. Then try again with a new file.
            let ours = file.metadata().map_err(failed)?;
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours.ino()) {
                return Ok(Self { path, file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While this daemon holds the lock, the lock file is its own. A daemon that waits for the
        // lock of the removed file finds that out, and makes a new file.
        let _ = fs::remove_file(&self.path);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn busy(socket: &Path) -> String {
    let listener = UnixStream::connect(socket).ok();
    let peer = listener.and_then(|stream| rustix::net::sockopt::socket_peercred(&stream).ok());
    let who =
        peer.map_or_else(String::new, |peer| format!(" (process {})", peer.pid.as_raw_nonzero()));
    let name = socket.display();
    format!("a daemon{who} serves {name} already; end it, or give another --socket")
}

/// Removes the socket file that a dead daemon left.
fn clear(path: &Path) -> Result<(), String> {
    let name = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot look at {name}: {error}")),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(format!("{name} is not a socket; give another --socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(busy(path)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| format!("cannot remove the stale {name}: {error}")),
        Err(error) => Err(format!("cannot tell whether {name} is stale: {error}")),
    }
}

/// Opens the socket so that only the daemon's own user can connect. The socket gets its access
/// rights before it gets its path, so that no other user can connect in between.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
