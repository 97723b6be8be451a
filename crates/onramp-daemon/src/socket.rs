//! The control socket: where it is, that nobody else has it, and who may use it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Where the socket is if nobody says, and there is no `$XDG_RUNTIME_DIR`.
const SYSTEM: &str = "/run/onramp";
/// Clients that may wait to be let in.
const BACKLOG: i32 = 4_096;

/// The socket of a daemon. Its drop removes it.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    lock: Lock,
}

/// What keeps a second daemon from the same path. Its drop lets go.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    file: File,
}

/// Where the socket is: `$ONRAMP_SOCKET`, or [`default_path`].
#[must_use]
pub fn find_path() -> PathBuf {
    let named = env::var_os("ONRAMP_SOCKET").filter(|path| !path.is_empty());
    named.map_or_else(default_path, PathBuf::from)
}

/// Where the socket is if nobody says: `$XDG_RUNTIME_DIR/onramp.sock`, or, without one,
/// `/run/onramp/onramp.sock`.
#[must_use]
pub fn default_path() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute());
    runtime.unwrap_or_else(|| PathBuf::from(SYSTEM)).join("onramp.sock")
}

impl Socket {
    /// Takes the place at `path`, also that of a daemon that died.
    ///
    /// # Errors
    ///
    /// What is in the way: a live daemon, by its number; a file that is no socket; the system.
    pub(crate) fn open(path: &Path) -> Result<(Self, UnixListener), String> {
        let name = path.display();
        if path == Path::new(SYSTEM).join("onramp.sock") {
            // The only folder that is ours to make.
            let made = DirBuilder::new().recursive(true).mode(0o755).create(SYSTEM);
            made.map_err(|error| format!("cannot make {SYSTEM}: {error}; try --socket PATH"))?;
        }
        let lock = Lock::take(path)?;
        clear(path)?;
        let listener = listen(path).map_err(|error| format!("cannot listen at {name}: {error}"))?;
        Ok((Self { path: path.to_owned(), lock }, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // While we have the lock, it is ours. Nothing more can be done where it fails.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock.path);
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
                    format!("this user may not make {}; give another --socket", path.display())
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
            // Who ended meanwhile has removed the file that we locked.
            let ours = file.metadata().map_err(failed)?;
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours.ino()) {
                return Ok(Self { path, file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
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

/// Removes what a daemon left that died.
fn clear(path: &Path) -> Result<(), String> {
    let name = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("cannot look at {name}: {error}")),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(format!("{name} is no socket; give another --socket"));
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

/// Listens for the user alone. A socket has its mode before it has its name, so that nobody can
/// come in between.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
