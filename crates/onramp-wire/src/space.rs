//! Namespaces: a user namespace for the whole program, and a thread in a network namespace of its
//! own.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

/// Moves the whole program into a user namespace of its own, in which it is root and may make
/// network namespaces, unless it may do that already. Programs that it starts are in that
/// namespace, too, and are root there; outside of it they are still the user that they were.
///
/// Call this before the program has other threads.
///
/// # Errors
///
/// [`SpaceError`] if the kernel refuses: some distributions forbid it to ordinary users. The text
/// of the error says how to allow it.
pub fn enter() -> Result<(), SpaceError> {
    if may_make_namespaces() {
        return Ok(());
    }
    let (user, group) = (Uid::effective(), Gid::effective());
    let mut entered = unshare(CloneFlags::CLONE_NEWUSER);
    // The kernel refuses a program that has other threads with EINVAL, and the thread that has just
    // ended may count for a moment.
    for _ in 0..200 {
        if entered != Err(Errno::EINVAL) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
        entered = unshare(CloneFlags::CLONE_NEWUSER);
    }
    entered.map_err(SpaceError::user)?;
    let map = |file: &str, text: &str| {
        fs::write(format!("/proc/self/{file}"), text).map_err(|error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            SpaceError::user(errno)
        })
    };
    map("setgroups", "deny")?;
    map("uid_map", &format!("0 {user} 1"))?;
    map("gid_map", &format!("0 {group} 1"))
}

/// Whether the program may make network namespaces as it is.
pub(crate) fn may_make_namespaces() -> bool {
    // A thread, because the calling thread must keep its network namespace.
    thread::scope(|scope| {
        let tried = scope.spawn(|| unshare(CloneFlags::CLONE_NEWNET)).join();
        tried.is_ok_and(|unshared| unshared.is_ok())
    })
}

/// A job for the thread of a [`Space`].
type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, with a thread in it that does what it is given. Programs that the thread
/// starts are in the namespace.
///
/// A child of `fork` has a copy of the space, but not its thread: there, [`run`](Self::run) panics,
/// and a drop leaves the parent's namespace as it is.
#[derive(Debug)]
pub struct Space {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The number of forks when the thread was started.
    forks: u32,
}

impl Space {
    /// Makes a network namespace whose loopback interface is up.
    ///
    /// # Errors
    ///
    /// [`SpaceError`] if the kernel refuses: see [`enter`].
    pub fn new() -> Result<Self, SpaceError> {
        let (give, jobs) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        let forks = onramp_dev::watch_forks();
        let body = move || {
            let made = unshare(CloneFlags::CLONE_NEWNET)
                .map_err(SpaceError::net)
                .and_then(|()| onramp_dev::set_interface_up("lo").map_err(SpaceError::loopback));
            let goes_on = made.is_ok();
            if tell.send(made).is_err() || !goes_on {
                return;
            }
            jobs.into_iter().for_each(|job| job());
        };
        let thread = thread::Builder::new().name("space".to_owned()).spawn(body);
        let thread = Some(thread.map_err(SpaceError::thread)?);
        told.recv().map_err(|_| SpaceError::thread(io::Error::other("it ended at once")))??;
        Ok(Self { jobs: Some(give), thread, forks })
    }

    /// Whether this is a copy in a child of `fork`, which has no thread.
    fn is_copy(&self) -> bool {
        onramp_dev::forks() != self.forks
    }

    /// Runs `act` on the thread in the namespace, and returns what it returns.
    ///
    /// # Panics
    ///
    /// Panics if `act` panics; the space does nothing more then. Panics in a child of `fork`.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        assert!(!self.is_copy(), "the namespace's thread belongs to the parent of this process");
        let (give, taken) = mpsc::channel();
        let job: Job = Box::new(move || drop(give.send(act())));
        let jobs = self.jobs.as_ref().expect("there until dropped");
        jobs.send(job).expect("the thread of the space works: no job has panicked");
        taken.recv().expect("the job does not panic")
    }

    /// Starts a program in the namespace. The kernel kills it when the space is dropped, if it
    /// still runs then, and also if this program is killed.
    ///
    /// # Errors
    ///
    /// The kernel's error, for example if there is no such program.
    ///
    /// # Panics
    ///
    /// As for [`run`](Self::run).
    pub fn spawn(&self, mut command: Command) -> io::Result<Child> {
        onramp_dev::tie_child(&mut command);
        self.run(move || command.spawn())
    }

    /// Whether a program in the namespace listens for TCP connections or has a UDP port.
    #[must_use]
    pub fn has_listener(&self) -> bool {
        self.run(|| {
            let lines = |file: &str| {
                let text = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
                text.unwrap_or_default().lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
            };
            // The fourth word is the state of the socket; `0A` is "listening".
            let listens = |line: &String| line.split_whitespace().nth(3) == Some("0A");
            ["tcp", "tcp6"].iter().any(|file| lines(file).iter().any(listens))
                || ["udp", "udp6"].iter().any(|file| !lines(file).is_empty())
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if self.is_copy() {
            // The parent's thread may have held a lock of the channel when the process was copied.
            std::mem::forget((self.jobs.take(), self.thread.take()));
            return;
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // If a job panicked, its panic was reported.
            drop(thread.join());
        }
    }
}

/// Error: a namespace or its interface could not be made.
#[derive(Debug)]
pub struct SpaceError {
    what: What,
    source: io::Error,
    /// Why something else was tried in vain before.
    before: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    User,
    Net,
    Loopback,
    Tap,
    Pair,
    Thread,
    Tree,
}

impl SpaceError {
    const fn new(what: What, source: io::Error) -> Self {
        Self { what, source, before: None }
    }

    /// Adds why something else was tried in vain before.
    pub(crate) fn after(self, before: String) -> Self {
        Self { before: Some(before), ..self }
    }

    fn user(errno: Errno) -> Self {
        Self::new(What::User, errno.into())
    }

    /// The error of a program that was to begin in a user namespace of its own.
    pub(crate) fn child(source: io::Error) -> Self {
        Self::new(What::User, source)
    }

    fn net(errno: Errno) -> Self {
        Self::new(What::Net, errno.into())
    }

    pub(crate) const fn tap(source: io::Error) -> Self {
        Self::new(What::Tap, source)
    }

    pub(crate) const fn pair(source: io::Error) -> Self {
        Self::new(What::Pair, source)
    }

    const fn loopback(source: io::Error) -> Self {
        Self::new(What::Loopback, source)
    }

    pub(crate) fn no_root() -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "a direction has no root qdisc");
        Self::new(What::Tree, source)
    }

    pub(crate) fn tree(why: impl fmt::Display) -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidInput, why.to_string());
        Self::new(What::Tree, source)
    }

    pub(crate) const fn thread(source: io::Error) -> Self {
        Self::new(What::Thread, source)
    }

    /// Returns advice on how to avoid the error.
    fn advice(&self) -> Option<&'static str> {
        let errno = Errno::from_raw(self.source.raw_os_error().unwrap_or(0));
        match (self.what, errno) {
            (What::User, Errno::EINVAL) => {
                Some("the program already has other threads; enter the namespace before")
            }
            (What::User, Errno::EPERM | Errno::EACCES | Errno::ENOSPC) => Some(
                "the system does not let ordinary users make namespaces. As root, allow it with \
                 `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), \
                 `sysctl -w kernel.unprivileged_userns_clone=1` (Debian before 11) or \
                 `sysctl -w user.max_user_namespaces=10000`; or run this as root",
            ),
            (What::Net, Errno::EPERM) => Some("call `enter` before, or run this as root"),
            (What::Net, Errno::ENOSPC) => {
                Some("as root, allow more with `sysctl -w user.max_net_namespaces=10000`")
            }
            (What::Tap, Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Some(
                "there is no /dev/net/tun: load the module with `modprobe tun`, or give the \
                 container the device",
            ),
            (What::Tap, Errno::EACCES) => Some(
                "/dev/net/tun is closed to ordinary users here: as root, open it with `chmod 666 \
                 /dev/net/tun`, or run this as root",
            ),
            (What::Tap, Errno::EPERM) => {
                Some("the container forbids the device /dev/net/tun, or CAP_NET_ADMIN is missing")
            }
            (What::Pair, Errno::EOPNOTSUPP) => {
                Some("the kernel has no veth: load the module with `modprobe veth`")
            }
            _ => None,
        }
    }
}

/// Returns the further advice, where AppArmor decides who may make user namespaces (`setting` is
/// that of the kernel): a profile that allows it to this program alone.
fn apparmor(setting: &str, program: &Path) -> Option<String> {
    let program = program.display();
    (setting.trim() == "1").then(|| {
        format!(
            "; or allow it to this program alone: as root, write `abi <abi/4.0>, profile onramp \
             \"{program}\" flags=(unconfined) {{ userns, }}` into /etc/apparmor.d/onramp and run \
             `apparmor_parser -r /etc/apparmor.d/onramp`"
        )
    })
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::User => "make a user namespace",
            What::Net => "make a network namespace",
            What::Tap => "make the network interface of an end of the wire",
            What::Pair => "make the veth pair of an end of the wire",
            What::Loopback => "set the loopback interface up",
            What::Thread => "start a thread",
            What::Tree => "make the qdiscs",
        };
        write!(f, "cannot {what}: {}", self.source)?;
        if let Some(advice) = self.advice() {
            write!(f, "; {advice}")?;
        }
        let errno = Errno::from_raw(self.source.raw_os_error().unwrap_or(0));
        if self.what == What::User && matches!(errno, Errno::EPERM | Errno::EACCES) {
            let setting = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
            let setting = fs::read_to_string(setting).unwrap_or_default();
            let profile = std::env::current_exe().ok().and_then(|exe| apparmor(&setting, &exe));
            f.write_str(&profile.unwrap_or_default())?;
        }
        match &self.before {
            Some(before) => write!(f, "; a TAP is not possible either: {before}"),
            None => Ok(()),
        }
    }
}

// `Error::source` is not overridden, because the text of `Display` already includes it.
impl std::error::Error for SpaceError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ubuntu 24.04 has the setting with 1; other systems lack it, or have 0.
    #[test]
    fn a_profile_of_apparmor_is_named_where_it_decides() {
        let program = Path::new("/usr/bin/onramp");
        let text = apparmor("1\n", program).expect("it decides");
        for words in
            ["profile onramp \"/usr/bin/onramp\" flags=(unconfined) { userns, }", "apparmor_parser"]
        {
            assert!(text.contains(words), "{text}");
        }
        assert_eq!(["0\n", ""].map(|setting| apparmor(setting, program)), [None, None]);
    }
}
