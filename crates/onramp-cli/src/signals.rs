//! Signals that end the program. They are blocked, and the program asks for them at places where it
//! can end without leaving temporary files.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;

use anyhow::{Result, anyhow};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Blocks SIGINT, SIGTERM and SIGHUP as long as this value lives. The program uses
/// [`check`](Self::check) to ask whether one has come. Only the calling thread is affected, so the
/// program must have no other thread.
#[derive(Debug)]
pub(crate) struct Signals {
    ending: SigSet,
    heard: SignalFd,
}

/// The error with which a run fails that was ended by a signal.
#[derive(Debug)]
struct Interrupted(Signal);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

impl Signals {
    /// Begins to block the signals and to listen for them.
    pub(crate) fn listen() -> Result<Self> {
        let ending: SigSet = ENDING.into_iter().collect();
        ending.thread_block()?;
        let heard = SignalFd::with_flags(&ending, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { ending, heard })
    }

    /// Returns an error if one of the signals has come.
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
        // Failing to unblock the signals does no harm, because the program is about to end.
        let _ = self.ending.thread_unblock();
    }
}
