//! Signals that end the program. The program asks for them at places where it can clean up.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;

use anyhow::{Result, anyhow};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Blocks the signals that end a program as long as this value lives; the program asks for them
/// with `check`. Only for programs with one thread.
#[derive(Debug)]
pub(crate) struct Signals {
    ending: SigSet,
    heard: SignalFd,
}

/// The error of a run that a signal ended.
#[derive(Debug)]
struct Interrupted(Signal);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

impl Signals {
    /// Begins to block the signals.
    pub(crate) fn listen() -> Result<Self> {
        let ending: SigSet = ENDING.into_iter().collect();
        ending.thread_block()?;
        let heard = SignalFd::with_flags(&ending, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { ending, heard })
    }

    /// Returns an error if a signal has come.
    pub(crate) fn check(&self) -> Result<()> {
        match self.heard.read_signal() {
            Ok(Some(told)) => {
                let number = i32::try_from(told.ssi_signo).unwrap_or_default();
                let signal = Signal::try_from(number).unwrap_or(Signal::SIGTERM);
                Err(anyhow!(Interrupted(signal)))
            }
            Ok(None) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the program as the signal would have done, if `error` says that a signal came.
    pub(crate) fn obey(self, error: &anyhow::Error) {
        let signal = error.downcast_ref::<Interrupted>().map(|interrupted| interrupted.0);
        drop(self);
        if let Some(signal) = signal {
            // If the signal does not end the program, the error does.
            let _ = raise(signal);
        }
    }
}

/// An input whose reads end with an error when a signal comes.
#[derive(Debug)]
pub(crate) struct Heedful<'s, R> {
    pub(crate) input: R,
    pub(crate) signals: &'s Signals,
}

impl<R: Read + AsFd> Read for Heedful<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut both = [
            PollFd::new(&self.input, PollFlags::IN),
            PollFd::new(&self.signals.heard, PollFlags::IN),
        ];
        poll(&mut both, None)?;
        if !both[1].revents().is_empty() {
            return Err(io::Error::other("interrupted by a signal"));
        }
        self.input.read(buffer)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // An error does no harm here, because the program is about to end.
        let _ = self.ending.thread_unblock();
    }
}
