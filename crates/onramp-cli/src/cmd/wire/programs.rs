//! The programs at the two ends of a wire.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;
use onramp_wire::{CLIENT, CLIENT6, SERVER, SERVER6, Space};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};

use super::control::VARIABLE;
use crate::error::{self, NotRun, usage};
use crate::signals::Signals;

/// How long the client waits for the server to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// The shortest pause before the command looks again whether something has happened.
const LOOK: Duration = Duration::from_millis(5);
/// How long a program has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Client { "the client" } else { "the server" })
    }
}

/// A program at an end of the wire. Dropping the value ends the program: it has some time after a
/// SIGTERM, and is killed then. The programs that a server has started end with it.
pub(super) struct Running {
    pub(super) child: Child,
    end: End,
}

impl Running {
    /// Whether the program has ended. An error would mean that it was waited for.
    fn has_ended(&self) -> bool {
        !matches!(self.look(), Ok(None))
    }

    /// Returns how the program has ended, if it has. It stays a zombie until the value is dropped:
    /// so its number, which is also that of a server's group, belongs to no other program when
    /// signals are sent.
    fn look(&self) -> rustix::io::Result<Option<WaitIdStatus>> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), how)
    }

    /// Sends a signal to the program. An error would mean that the program has just ended.
    fn tell(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let _ = match self.end {
            End::Client => kill_process(pid, signal),
            End::Server => kill_process_group(pid, signal),
        };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.tell(Signal::TERM);
            let mut waited = Duration::ZERO;
            while waited < GRACE && !self.has_ended() {
                thread::sleep(LOOK);
                waited += LOOK;
            }
        }
        if self.end == End::Server || !self.has_ended() {
            self.tell(Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Starts a command at one end of the wire, which `socket` changes.
pub(super) fn start(
    space: &Space,
    words: &[OsString],
    end: End,
    socket: Option<&Path>,
) -> Result<Running> {
    let mut command = command(words, socket)?;
    let peer = match end {
        End::Client => (SERVER, SERVER6),
        End::Server => (CLIENT, CLIENT6),
    };
    command.env("ONRAMP_PEER", peer.0.to_string()).env("ONRAMP_PEER6", peer.1.to_string());
    if end == End::Server {
        // The terminal belongs to the client: its input, and Ctrl-C.
        command.stdin(Stdio::null()).process_group(0);
    }
    running(space.spawn(command), words, end)
}

/// Starts the client of a relay, which listens at `addresses`, in the network of this program.
pub(super) fn start_here(
    words: &[OsString],
    addresses: &str,
    socket: Option<&Path>,
) -> Result<Running> {
    let mut command = command(words, socket)?;
    command.env("ONRAMP_RELAY", addresses);
    onramp_dev::tie_child(&mut command);
    running(command.spawn(), words, End::Client)
}

/// Makes the command of these words for an end of the wire that `socket` changes.
fn command(words: &[OsString], socket: Option<&Path>) -> Result<Command> {
    let [first, rest @ ..] = words else { return Err(usage("a command is missing")) };
    let mut command = Command::new(first);
    command.args(rest);
    match socket {
        Some(path) => command.env(VARIABLE, path),
        None => command.env_remove(VARIABLE),
    };
    Ok(command)
}

fn running(spawned: io::Result<Child>, words: &[OsString], end: End) -> Result<Running> {
    let spawned = spawned.map(|child| Running { child, end });
    let not_run = |error| anyhow!(NotRun::because(&error, words[0].display())).context(end);
    spawned.map_err(not_run)
}

/// Waits until the server listens, at most [`PATIENCE`], and says so if it does not.
///
/// The kernel takes milliseconds to list all sockets, so the pauses grow. Each is an eighth of the
/// time waited so far: the client starts only a little later than if the command looked all the
/// time.
pub(super) fn await_listener(space: &Space, server: &Running, signals: &Signals) -> Result<()> {
    let began = MonotonicClock.now();
    while !space.has_listener() {
        if let Some(status) = server.look()? {
            let signal = || 128 + status.terminating_signal().unwrap_or_default();
            let code = status.exit_status().unwrap_or_else(signal);
            if code != 0 {
                error::tell(&format!(
                    "the server ended with exit code {code} before the client started"
                ));
            }
            return Ok(());
        }
        let waited = Duration::from_nanos(MonotonicClock.now().since(began));
        if waited > PATIENCE {
            let seconds = PATIENCE.as_secs();
            error::tell(&format!(
                "the server does not listen after {seconds} s; the client starts all the same"
            ));
            return Ok(());
        }
        signals.check()?;
        thread::sleep(LOOK.max(waited / 8));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has ended keeps its number until the value is dropped.
    #[test]
    fn a_number_is_kept_until_the_end() {
        let child = Command::new("true").process_group(0).spawn().expect("a program");
        let entry = format!("/proc/{}", child.id());
        let server = Running { child, end: End::Server };
        while !server.has_ended() {
            thread::yield_now();
        }
        assert!(server.has_ended() && Path::new(&entry).exists());
        drop(server);
        assert!(!Path::new(&entry).exists());
    }
}
