//! The thread that carries frames between interfaces, each direction through a tree of qdiscs.

use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, iter};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;

use crate::change::Change;
use crate::edit::EditError;
use crate::way::{Direction, Watch, Way};

/// How often the thread looks at its interfaces even if nothing happens: the kernel wakes nobody if
/// an interface is removed that was set down a moment before.
const LOOK: Duration = Duration::from_secs(1);

/// What another thread asks of the bridge's thread.
#[derive(Debug)]
enum Command {
    /// Change the direction of this number.
    Change(usize, Vec<Change>, Sender<Result<(), EditError>>),
    Begin,
    Watch(Vec<Box<dyn Watch>>),
    Describe(Sender<Vec<Vec<String>>>),
    Count(Sender<Vec<Direction>>),
}

/// A thread that carries frames between interfaces in one or more directions, until it is
/// [stopped](Self::stop) or dropped.
///
/// While no frame waits and no qdisc has one to release, the thread sleeps, and looks once a second
/// whether its interfaces are still there.
#[derive(Debug)]
pub struct Bridge {
    thread: Option<JoinHandle<Vec<Direction>>>,
    directions: usize,
    /// The commands for the thread; it ends when nobody can send one any more.
    commands: Option<Sender<Command>>,
    wake: Arc<EventFd>,
    error: Arc<Mutex<Option<String>>>,
}

impl Bridge {
    /// Starts the thread. Directions are known by their place in `ways`, from 0.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it has no descriptors or threads left.
    pub fn start(ways: impl Into<Vec<Way>>) -> io::Result<Self> {
        let ways = ways.into();
        let directions = ways.len();
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let error = Arc::<Mutex<Option<String>>>::default();
        let (wakes, fails) = (wake.clone(), error.clone());
        let (commands, asked) = mpsc::channel();
        let body = move || {
            onramp_dev::exact_timers();
            let mut ways = ways;
            if let Err(error) = carry(&mut ways, &asked, &wakes) {
                *fails.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            ways.iter().map(Way::carried).collect()
        };
        let thread = thread::Builder::new().name("bridge".to_owned()).spawn(body)?;
        Ok(Self { thread: Some(thread), directions, commands: Some(commands), wake, error })
    }

    /// Makes these changes of the direction `way`, all at the same instant, between two frames.
    /// Returns when they are made. [`Change`] says what becomes of the frames that wait.
    ///
    /// # Errors
    ///
    /// [`EditError`] if one of the changes cannot be made, and none is made then; or if the bridge
    /// has ended because of an [error](Self::error).
    ///
    /// # Panics
    ///
    /// Panics if there is no such direction.
    pub fn change(&self, way: usize, changes: Vec<Change>) -> Result<(), EditError> {
        assert!(way < self.directions, "there is no direction {way}");
        let (tell, told) = mpsc::channel();
        self.ask(Command::Change(way, changes, tell));
        told.recv().unwrap_or_else(|_| Err(self.ended()))
    }

    /// Begins the clocks of the traces that the directions [follow](Way::follow), or begins them
    /// anew. Before, steps are not made, and nothing passes a schedule.
    pub fn begin(&self) {
        self.ask(Command::Begin);
    }

    /// Tells `watches` of all frames from now on, one for each direction. They are dropped when the
    /// bridge has [stopped](Self::stop).
    pub fn watch(&self, watches: impl Into<Vec<Box<dyn Watch>>>) {
        self.ask(Command::Watch(watches.into()));
    }

    /// Returns the lines of `tc` that describe the qdiscs of each direction at present.
    ///
    /// # Errors
    ///
    /// [`EditError`] if the bridge has ended because of an [error](Self::error).
    pub fn lines(&self) -> Result<Vec<Vec<String>>, EditError> {
        let (tell, told) = mpsc::channel();
        self.ask(Command::Describe(tell));
        told.recv().map_err(|_| self.ended())
    }

    /// Returns what each direction has carried up to now, or `None` if the bridge has ended because
    /// of an [error](Self::error).
    #[must_use]
    pub fn carried(&self) -> Option<Vec<Direction>> {
        let (tell, told) = mpsc::channel();
        self.ask(Command::Count(tell));
        told.recv().ok()
    }

    fn ask(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // If the thread has ended, nobody answers, which the caller notices.
            let _ = commands.send(command);
            self.wake();
        }
    }

    fn ended(&self) -> EditError {
        let why = self.error().unwrap_or_else(|| "its thread is gone".to_owned());
        EditError(format!("the wire has broken: {why}"))
    }

    /// Returns the error that ended the thread, if there was one: for example because an interface
    /// is gone.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the thread. Frames that wait are dropped. Returns what each direction has carried.
    ///
    /// # Panics
    ///
    /// Panics if the thread has panicked.
    #[must_use]
    pub fn stop(mut self) -> Vec<Direction> {
        self.tell();
        let thread = self.thread.take().expect("it is taken only here and in drop");
        thread.join().expect("the thread of the bridge does not panic")
    }

    /// Tells the thread to end.
    fn tell(&mut self) {
        drop(self.commands.take());
        self.wake();
    }

    fn wake(&self) {
        // An error would mean that the number has overflowed, and then the thread has been told.
        let _ = self.wake.write(1);
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.tell();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Carries frames, and carries out commands, until the bridge is stopped.
fn carry(ways: &mut [Way], asked: &Receiver<Command>, wake: &EventFd) -> io::Result<()> {
    loop {
        let mut more = false;
        for way in &mut *ways {
            more |= way.run()?;
        }
        let due = ways.iter_mut().filter_map(Way::next).min();
        let next = if more { Some(Instant(0)) } else { due };
        let until = |at: Instant| Duration::from_nanos(at.since(MonotonicClock.now()));
        let wait = next.map_or(LOOK, |at| until(at).min(LOOK));
        let fds = iter::once(wake.as_fd()).chain(ways.iter().flat_map(Way::fds));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::from(wait)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if fds[0].any().unwrap_or_default() {
            // The number that was read says only that there is something; zero cannot be read.
            let _ = wake.read();
            if !obey(ways, asked)? {
                return Ok(());
            }
        }
    }
}

/// Carries out the commands that wait. Returns false if the bridge is stopped.
fn obey(ways: &mut [Way], asked: &Receiver<Command>) -> io::Result<bool> {
    loop {
        // An answer that nobody waits for any more is not missed.
        match asked.try_recv() {
            Ok(Command::Change(way, changes, tell)) => {
                let _ = tell.send(ways[way].change(&changes)?);
            }
            Ok(Command::Begin) => ways.iter_mut().try_for_each(Way::begin)?,
            Ok(Command::Watch(watches)) => {
                ways.iter_mut().zip(watches).for_each(|(way, watch)| way.watch(watch));
            }
            Ok(Command::Describe(tell)) => {
                let _ = tell.send(ways.iter().map(Way::lines).collect());
            }
            Ok(Command::Count(tell)) => {
                let _ = tell.send(ways.iter().map(Way::carried).collect());
            }
            Err(TryRecvError::Empty) => return Ok(true),
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
    }
}
