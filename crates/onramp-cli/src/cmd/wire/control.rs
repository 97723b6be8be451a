//! How other commands reach a wire that runs: a socket that only the wire's user may use.
//!
//! A request is a line of JSON, and so is the answer: `{"change": {"up": [WORDS...], "down": []}}`
//! with lists of words as [`Change::read`] reads them, or `{"show": {}}`. An answer with `error`
//! says why nothing was done; any other has the command line of the wire's client as `client`.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::mem::take;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, process, thread};

use anyhow::{Result, anyhow, bail};
use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;
use onramp_wire::{Change, EditError, Relay, Wire};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::geteuid;
use serde_json::{Value, json};

use super::talk::Talk;
use crate::error::tell;

/// The variable that tells the client's scripts how to reach their wire.
pub(super) const VARIABLE: &str = "ONRAMP_WIRE";

/// Longest request and longest answer, bytes.
const LINE_MAX: u64 = 1 << 20;
/// How long a request and its answer may take together.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all wires together may take to answer a request of `onramp wire list`. A program that
/// was stopped by a signal never answers.
const LIST_PATIENCE: Duration = Duration::from_secs(2);
/// Shortest time in which an answer that is there is read.
const READ_TIME: Duration = Duration::from_millis(10);
/// Most names that a wire tries for its socket.
const NAMES: u32 = 100;

/// Returns the folders in which wires of this user may have their sockets, best first. Call it
/// before the program enters a user namespace, in which the user has another number. In a client,
/// which is in such a namespace, the last one is the folder of its own wire.
pub(super) fn folders() -> Vec<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|folder| folder.is_absolute());
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let user = outside(&map, geteuid().as_raw());
    let temporary = env::temp_dir().join(format!("onramp-wire-{user}"));
    let own = env::var_os(VARIABLE).map(PathBuf::from);
    let own = own.and_then(|path| path.parent().map(Path::to_owned));
    let own = own.filter(|folder| folder.is_absolute());
    let mut folders = Vec::new();
    let runtime = runtime.map(|folder| folder.join("onramp-wire"));
    for folder in runtime.into_iter().chain([temporary]).chain(own) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Returns the number that a user has outside of the user namespace with this map: there, `root` of
/// the namespace is an ordinary user, and a folder with the number 0 is another user's.
fn outside(map: &str, user: u32) -> u32 {
    let lines = map.lines().filter_map(|line| {
        let numbers = line.split_ascii_whitespace().map(str::parse);
        let numbers = numbers.collect::<Result<Vec<u32>, _>>().ok()?;
        <[u32; 3]>::try_from(numbers).ok()
    });
    let mut found = lines.filter_map(|[inside, outside, count]| {
        let at = user.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    });
    found.next().unwrap_or(user)
}

/// Makes the folder if it is not there. Fails if another user could use it.
fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made?,
    }
    check(folder)
}

/// Fails if another user could have put something into the folder.
fn check(folder: &Path) -> io::Result<()> {
    let there = fs::symlink_metadata(folder)?;
    if there.is_dir() && there.uid() == geteuid().as_raw() && there.mode() & 0o077 == 0 {
        return Ok(());
    }
    let why = "it is not a folder of this user alone: remove it, or name another place in \
               XDG_RUNTIME_DIR";
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// A wire or a relay that runs, and that requests may change.
pub(super) trait Changes: Sync {
    fn change(&self, up: Vec<Change>, down: Vec<Change>) -> Result<(), EditError>;

    /// The lines of `tc` of the two directions.
    fn lines(&self) -> Result<[Vec<String>; 2], EditError>;
}

impl Changes for Wire {
    fn change(&self, up: Vec<Change>, down: Vec<Change>) -> Result<(), EditError> {
        Self::change(self, up, down)
    }

    fn lines(&self) -> Result<[Vec<String>; 2], EditError> {
        Self::lines(self)
    }
}

impl Changes for Relay {
    fn change(&self, up: Vec<Change>, down: Vec<Change>) -> Result<(), EditError> {
        Self::change(self, up, down)
    }

    fn lines(&self) -> Result<[Vec<String>; 2], EditError> {
        Self::lines(self)
    }
}

/// The socket of a wire. Dropping the value removes its file.
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Opens a socket in the first of the folders in which it is possible.
    fn open(folders: &[PathBuf]) -> Result<Self> {
        let mut failed = String::new();
        for folder in folders {
            match make(folder).and_then(|()| Self::bind(folder, process::id())) {
                Ok(socket) => return Ok(socket),
                Err(error) => failed = format!("{}: {error}", folder.display()),
            }
        }
        bail!(failed)
    }

    /// Opens a socket, or says why the wire cannot be changed.
    pub(super) fn open_or_tell(folders: &[PathBuf]) -> Option<Self> {
        let opened = Self::open(folders);
        opened
            .map_err(|error| tell(&format!("`onramp wire set` cannot change this wire: {error}")))
            .ok()
    }

    /// Opens the socket of the process `pid` in this folder. The file of a wire that was killed is
    /// replaced. A wire that answers keeps its file: it runs in another container, in which it has
    /// the same number, and which has the folder in common with this one.
    ///
    /// The socket gets its name when it listens already: another command removes a socket of this
    /// name that refuses connections.
    fn bind(folder: &Path, pid: u32) -> io::Result<Self> {
        let make = |path: &Path| UnixListener::bind(path);
        let made = tempfile::Builder::new().prefix(".").make_in(folder, make)?;
        made.as_file().set_nonblocking(true)?;
        for number in 1..=NAMES {
            let name = match number {
                1 => format!("{pid}.sock"),
                _ => format!("{pid}-{number}.sock"),
            };
            let path = folder.join(name);
            match fs::hard_link(made.path(), &path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    if !is_left_behind(&path) {
                        continue;
                    }
                    fs::remove_file(&path)?;
                    fs::hard_link(made.path(), &path)?;
                }
                linked => linked?,
            }
            let (listener, _) = made.into_parts();
            return Ok(Self { listener, path });
        }
        Err(io::Error::new(ErrorKind::AddrInUse, format!("{NAMES} wires have the number {pid}")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers requests until the other end of `stop` is closed.
    pub(super) fn serve(&self, wire: &dyn Changes, client: &str, stop: &UnixStream) {
        loop {
            let mut both =
                [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let polled = poll(&mut both, None);
            if !both[1].revents().is_empty() {
                return;
            }
            match polled.map_err(io::Error::from).and_then(|_| self.listener.accept()) {
                // If the other command is gone, it does not miss the answer.
                Ok((stream, _)) => drop(answer(&stream, wire, client, stop)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The program has no descriptors left; they may come back.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The folder may be gone, with everything in it.
        drop(fs::remove_file(&self.path));
    }
}

/// Whether the file is a socket to which nobody listens any more.
fn is_left_behind(path: &Path) -> bool {
    let tried = UnixStream::connect(path);
    tried.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Reads a request, does what it says, and answers, within [`PATIENCE`].
fn answer(
    stream: &UnixStream,
    wire: &dyn Changes,
    client: &str,
    stop: &UnixStream,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let end = MonotonicClock.now() + PATIENCE;
    let mut talk = Talk { stream, stop, end };
    let mut line = String::new();
    BufReader::new((&mut talk).take(LINE_MAX)).read_line(&mut line)?;
    let done = obey(&line, wire, client).unwrap_or_else(|why| json!({ "error": why }));
    talk.write_all(format!("{done}\n").as_bytes())
}

/// Does what a request says, and returns the answer.
fn obey(line: &str, wire: &dyn Changes, client: &str) -> Result<Value, String> {
    let request: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if request.get("show").is_some() {
        let [up, down] = wire.lines().map_err(|error| error.to_string())?;
        return Ok(json!({ "client": client, "up": up, "down": down }));
    }
    let Some(change) = request.get("change") else {
        return Err("the request is of another version of onramp".to_owned());
    };
    let read = |way: &str| -> Result<Vec<Change>, String> {
        let lists = change.get(way).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut changes = Vec::new();
        for list in lists {
            let words = list.as_array().map_or(&[][..], Vec::as_slice);
            let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
            changes.extend(Change::read(&words).map_err(|error| error.to_string())?);
        }
        Ok(changes)
    };
    wire.change(read("up")?, read("down")?).map_err(|error| error.to_string())?;
    Ok(json!({ "client": client }))
}

/// Sends a request to the wire at `path`. Returns the stream on which the answer comes.
fn send(path: &Path, request: &Value) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    writeln!(stream, "{request}")?;
    Ok(stream)
}

/// Reads an answer. Fails if the wire is silent for longer than `patience`.
fn receive(stream: UnixStream, patience: Duration) -> io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    Ok(line)
}

/// Whether the wire did not answer in time.
fn is_silent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Asks the wire at `path`, and returns its answer.
pub(super) fn ask(path: &Path, request: &Value) -> Result<Value> {
    let told = send(path, request).and_then(|stream| receive(stream, 2 * PATIENCE));
    let name = path.display();
    let line = told.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            anyhow!("no wire runs at {name}; `onramp wire list` lists those that run")
        }
        _ if is_silent(&error) => anyhow!(
            "the wire at {name} does not answer: its process may be stopped, and may still do what \
             it was asked when it continues"
        ),
        _ => anyhow!("cannot ask the wire at {name}: {error}"),
    })?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|_| anyhow!("the wire at {name} has ended before it answered"))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(why) => bail!("{why}"),
        None => Ok(answer),
    }
}

/// Asks these wires for their clients and lines, all at the same time. Returns each wire with its
/// answer, or with `None` if it does not answer. A wire that has just ended is left out.
pub(super) fn show(wires: Vec<Found>) -> Vec<(Found, Option<Value>)> {
    let end = MonotonicClock.now() + LIST_PATIENCE;
    let request = json!({ "show": {} });
    let asked =
        wires.into_iter().filter_map(|found| Some((send(&found.path, &request).ok()?, found)));
    let asked: Vec<_> = asked.collect();
    let answers = asked.into_iter().filter_map(|(stream, found)| {
        let left = Duration::from_nanos(end.since(MonotonicClock.now()));
        match receive(stream, left.max(READ_TIME)) {
            Ok(line) => {
                let answer: Value = serde_json::from_str(&line).ok()?;
                answer.get("error").is_none().then_some((found, Some(answer)))
            }
            Err(error) => is_silent(&error).then_some((found, None)),
        }
    });
    answers.collect()
}

/// A wire that runs.
pub(super) struct Found {
    /// Number of the process of `onramp wire`, such as `4711`, or `4711-2` if another wire has the
    /// same number in another container.
    pub(super) pid: String,
    pub(super) path: PathBuf,
}

/// Finds the wires of this user that run. Removes the sockets of wires that were killed.
pub(super) fn running() -> Vec<Found> {
    running_in(&folders())
}

/// Finds the wires in these folders. A folder that another user could write is left out.
fn running_in(folders: &[PathBuf]) -> Vec<Found> {
    let mut found = Vec::new();
    for folder in folders {
        match check(folder) {
            Ok(()) => {}
            Err(error) => {
                if error.kind() == ErrorKind::PermissionDenied {
                    let folder = folder.display();
                    tell(&format!("wires in {folder} are left out: {error}"));
                }
                continue;
            }
        }
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let pid = entry.file_name().to_string_lossy().strip_suffix(".sock").map(str::to_owned);
            let Some(pid) = pid else { continue };
            match UnixStream::connect(&path) {
                Ok(_) => found.push(Found { pid, path }),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    drop(fs::remove_file(&path));
                }
                Err(_) => {}
            }
        }
    }
    found
}

/// Finds the wire that the user means: by its number or the path of its socket, or the one of
/// which this program is a part, or the only one that runs. Returns the path of its socket, and its
/// number if it was chosen only because no other wire runs.
pub(super) fn find(named: Option<&str>) -> Result<(PathBuf, Option<String>)> {
    let own = env::var(VARIABLE).ok().filter(|own| !own.is_empty());
    if let Some(name) = named.or(own.as_deref()) {
        if name.contains('/') {
            return Ok((PathBuf::from(name), None));
        }
        let found = running().into_iter().find(|found| found.pid == name);
        let found = found.map(|found| (found.path, None));
        return found.ok_or_else(|| {
            anyhow!("no wire {name} runs; `onramp wire list` lists those that run")
        });
    }
    match &mut running()[..] {
        [] => bail!("no wire runs: start one, such as `onramp wire --profile lte -- sh`"),
        [only] => Ok((take(&mut only.path), Some(take(&mut only.pid)))),
        several => {
            let pids: Vec<_> = several.iter().map(|found| &*found.pid).collect();
            bail!("several wires run: choose one with --wire {}", pids.join(" or --wire "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// `root` of a user namespace has the number of the user who made it.
    #[test]
    fn a_user_has_its_number_outside_of_the_namespace() {
        let identity = "         0          0 4294967295\n";
        assert_eq!([0, 7].map(|user| outside(identity, user)), [0, 7]);
        assert_eq!(outside("0 1000 1\n", 0), 1_000);
        assert_eq!(outside("0 1000 1\n1 100000 65536\n", 3), 100_002);
        assert_eq!(outside("", 5), 5, "nothing is known");
    }

    /// Returns a folder, and another in it that is its user's alone.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().expect("a folder");
        let own = outer.path().join("onramp-wire");
        make(&own).expect("it can be made");
        (outer, own)
    }

    /// A wire that was killed gives way, and one that answers does not.
    #[test]
    fn a_wire_that_answers_keeps_its_name() {
        let (_outer, folder) = folder();
        let names = |socket: &Socket| socket.path.file_name().map(ToOwned::to_owned);
        let first = Socket::bind(&folder, 7).expect("a socket");
        let second = Socket::bind(&folder, 7).expect("another socket");
        assert_eq!(names(&first), Some("7.sock".into()));
        assert_eq!(names(&second), Some("7-2.sock".into()));
        let pids = || {
            let found = running_in(std::slice::from_ref(&folder)).into_iter();
            let mut pids: Vec<_> = found.map(|found| found.pid).collect();
            pids.sort();
            pids
        };
        assert_eq!(pids(), ["7", "7-2"]);
        drop(first);
        // A socket whose program was killed.
        drop(UnixListener::bind(folder.join("7.sock")).expect("the name is free"));
        let third = Socket::bind(&folder, 7).expect("a socket");
        assert_eq!(names(&third), Some("7.sock".into()));
        assert_eq!(pids(), ["7", "7-2"]);
        // A plain file refuses connections, too.
        fs::write(folder.join("8.sock"), "").expect("it is ours");
        let _eighth = Socket::bind(&folder, 8).expect("a socket");
        assert_eq!(pids(), ["7", "7-2", "8"]);
    }

    /// A command that looks for wires while one begins does not take its socket for one that was
    /// left behind.
    #[test]
    fn a_socket_that_begins_is_not_removed() {
        let (_outer, folder) = folder();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: nothing depends on what happens before.
                while !done.load(Ordering::Relaxed) {
                    running_in(std::slice::from_ref(&folder));
                }
            });
            let sockets: Vec<_> = (1..=500).map(|pid| Socket::bind(&folder, pid)).collect();
            done.store(true, Ordering::Relaxed); // Relaxed: as above.
            for socket in sockets {
                assert!(socket.expect("a socket").path.exists());
            }
        });
    }

    /// Nothing is read, asked or removed in a folder that others can write.
    #[test]
    fn a_folder_of_others_is_left_alone() {
        let (outer, folder) = folder();
        drop(UnixListener::bind(folder.join("1.sock")).expect("a socket"));
        let _second = Socket::bind(&folder, 2).expect("a socket");
        let link = outer.path().join("link");
        symlink(&folder, &link).expect("a link");
        assert!(running_in(&[link]).is_empty());
        let mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode));
        mode(0o770).expect("it is ours");
        assert!(running_in(std::slice::from_ref(&folder)).is_empty());
        assert!(folder.join("1.sock").exists());
        mode(0o700).expect("it is ours");
        assert_eq!(running_in(std::slice::from_ref(&folder)).len(), 1);
        assert!(!folder.join("1.sock").exists());
    }
}
