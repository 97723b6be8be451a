//! Signals that end the program. They are blocked, and the program asks for them at places where it
//! can end without leaving temporary files ([`Signals`]); or a thread waits for them and lets the
//! measurements in progress end ([`Interrupt`]).

use std::fmt;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use onramp_lab::measure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Interrupted, tell};

/// The code of a signal that the kernel has sent, and no program (`SI_KERNEL`): so it sends the
/// signals of a terminal.
const FROM_TERMINAL: i32 = 0x80;

const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Blocks SIGINT, SIGTERM and SIGHUP as long as this value lives. The program uses
/// [`check`](Self::check) to ask whether one has come. Only the calling thread is affected, so the
/// program must have no other thread.
#[derive(Debug)]
pub(crate) struct Signals {
    ending: SigSet,
    heard: SignalFd,
    /// The first signal that [`check`](Self::check) found.
    came: OnceLock<Signal>,
}

/// The error of an output that nobody read until a signal came.
#[derive(Debug)]
pub(crate) struct Unread;

impl Unread {
    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads what is written there")
    }
}

impl std::error::Error for Unread {}

/// Lets measurements end early when SIGINT or SIGTERM comes; a second signal ends the program at
/// once.
#[derive(Debug)]
pub(crate) struct Interrupt(Arc<OnceLock<Signal>>);

impl Interrupt {
    /// Begins to listen, until the program ends. The signals are blocked in the calling thread and
    /// in all threads that it starts later, so the program must have no other thread.
    pub(crate) fn listen() -> Result<Self> {
        let ending = not_ignored(&[Signal::SIGINT, Signal::SIGTERM]);
        ending.thread_block()?;
        let heard = Arc::new(OnceLock::new());
        let first = heard.clone();
        let body = move || {
            let Ok(signal) = ending.wait() else { return };
            let _ = first.set(signal);
            measure::stop();
            // On a terminal, the message takes the place of the progress line.
            let clear = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            let _ = write!(io::stderr(), "{clear}");
            tell(&format!("{signal}: ends with what was measured; a second signal ends at once"));
            if let Ok(second) = ending.wait() {
                let _ = ending.thread_unblock();
                let _ = raise(second);
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(body)?;
        Ok(Self(heard))
    }

    /// Returns the first signal that came.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.0.get().copied()
    }
}

/// Returns the exit code with which a shell reports how a program ended.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let signal = || 128 + status.signal().unwrap_or_default();
    u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(u8::MAX)
}

/// Returns those of the signals that the program was not started to ignore. `nohup` and a shell
/// that starts a job in the background have signals ignored, and a signal that is waited for would
/// come all the same.
fn not_ignored(signals: &[Signal]) -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = |signal: &Signal| ignored >> (*signal as u32 - 1) & 1 == 1;
    signals.iter().filter(|signal| !is_ignored(signal)).copied().collect()
}

impl Signals {
    /// Begins to block the signals and to listen for them.
    pub(crate) fn listen() -> Result<Self> {
        let ending = not_ignored(&ENDING);
        ending.thread_block()?;
        let heard = SignalFd::with_flags(&ending, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { ending, heard, came: OnceLock::new() })
    }

    /// Returns an error if one of the signals has come.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(signal) = self.came.get() {
            return Err(anyhow!(Interrupted(*signal)));
        }
        match self.heard.read_signal() {
            Ok(Some(told)) => {
                let number = i32::try_from(told.ssi_signo).unwrap_or_default();
                let signal = Signal::try_from(number).unwrap_or(Signal::SIGTERM);
                Err(anyhow!(Interrupted(*self.came.get_or_init(|| signal))))
            }
            Ok(None) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until `output` takes at least a page (4 KiB), or something at all if it is no pipe.
    /// Returns the error [`Unread`] if one of the signals comes, or has come before.
    pub(crate) fn wait_to_write(&self, output: impl AsFd) -> io::Result<()> {
        loop {
            let mut both =
                [PollFd::new(&output, PollFlags::OUT), PollFd::new(&self.heard, PollFlags::IN)];
            if self.came.get().is_some() {
                return Err(io::Error::other(Unread));
            }
            match poll(&mut both, None) {
                Ok(_) if !both[1].revents().is_empty() => {
                    return Err(io::Error::other(Unread));
                }
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Rests for `time` until an output may have a reader. Returns the error [`Unread`] if one of
    /// the signals comes.
    pub(crate) fn rest(&self, time: Duration) -> io::Result<()> {
        let mut heard = [PollFd::new(&self.heard, PollFlags::IN)];
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut heard, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => Err(io::Error::other(Unread)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for one of the signals, for at most `time`, and takes it. Returns whether one came.
    pub(crate) fn within(&self, time: Duration) -> Result<bool> {
        let mut heard = [PollFd::new(&self.heard, PollFlags::IN)];
        let time = Timespec::try_from(time)?;
        match poll(&mut heard, Some(&time)) {
            Ok(_) => Ok(self.heard.read_signal()?.is_some()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until `child` ends, and returns how. A signal that a program has sent goes on to the
    /// child. A terminal sends its signals to the child, too, so these are not passed on.
    pub(crate) fn wait(&self, child: &mut Child) -> Result<ExitStatus> {
        let pid = Pid::from_child(child);
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        loop {
            let mut both =
                [PollFd::new(&ended, PollFlags::IN), PollFd::new(&self.heard, PollFlags::IN)];
            match poll(&mut both, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !both[0].revents().is_empty() {
                return Ok(child.wait()?);
            }
            let told = self.heard.read_signal().ok().flatten();
            let told = told.filter(|told| told.ssi_code != FROM_TERMINAL);
            let number = told.and_then(|told| i32::try_from(told.ssi_signo).ok());
            if let Some(signal) = number.and_then(|number| Signal::try_from(number).ok()) {
                // The child may just have ended.
                let _ = kill(nix::unistd::Pid::from_raw(pid.as_raw_nonzero().get()), signal);
            }
        }
    }

    /// Ends the listening: from now on, a signal ends this program. Signals that have come until
    /// now have no effect on it: the program has passed them on, or has acted on them.
    pub(crate) fn end(self) {
        while self.within(Duration::ZERO).unwrap_or(false) {}
    }

    /// If `error` says that a signal came, ends the program as the signal would have done.
    pub(crate) fn obey(self, error: &anyhow::Error) {
        let signal = error.downcast_ref::<Interrupted>().map(|interrupted| interrupted.0);
        drop(self);
        if let Some(signal) = signal {
            // If the signal does not end the program, the program ends with the error.
            let _ = raise(signal);
        }
    }
}

/// An input that can be interrupted: a read returns an error when a signal comes, even while it
/// waits for data.
#[derive(Debug)]
pub(crate) struct Heedful<'s, R> {
    pub(crate) input: R,
    pub(crate) signals: &'s Signals,
}

impl<R: Read + AsFd> Read for Heedful<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut both = [
                PollFd::new(&self.input, PollFlags::IN),
                PollFd::new(&self.signals.heard, PollFlags::IN),
            ];
            poll(&mut both, None)?;
            if !both[1].revents().is_empty() {
                return Err(io::Error::other("interrupted by a signal"));
            }
            match self.input.read(buffer) {
                // Another program that reads the same pipe was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Failing to unblock the signals does no harm, because the program is about to end.
        let _ = self.ending.thread_unblock();
    }
}
