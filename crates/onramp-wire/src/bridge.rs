//! The thread that carries frames between interfaces, each direction through a tree of qdiscs.

use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, iter};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use onramp_core::{Clock, HeadStart, Instant};
use onramp_dev::MonotonicClock;

use crate::change::Change;
use crate::edit::EditError;
use crate::way::{Direction, Watch, Way};

/// What the thread of a bridge does: it carries packets in one or more directions.
pub(crate) trait Carrier: Send {
    /// Moves all packets that may move. Returns whether more may wait to be received.
    fn run(&mut self) -> io::Result<bool>;

    /// Returns the time at which there is something to do, if none of the descriptors is readable
    /// before.
    fn next(&mut self) -> Option<Instant>;

    /// Returns the descriptors, of which one is readable while packets wait to be received.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Makes the changes of a direction, or none of them if one is wrong.
    fn change(&mut self, way: usize, changes: &[Change]) -> io::Result<Result<(), EditError>>;

    /// Begins the clocks of the traces.
    fn begin(&mut self) -> io::Result<()>;

    /// Tells `watches` of all packets from now on, one for each direction.
    fn watch(&mut self, watches: Vec<Box<dyn Watch>>);

    /// Returns the lines of `tc` that describe the qdiscs of each direction.
    fn lines(&self) -> Vec<Vec<String>>;

    /// Returns what each direction has carried.
    fn carried(&self) -> Vec<Direction>;
}

impl Carrier for Vec<Way> {
    fn run(&mut self) -> io::Result<bool> {
        let mut more = false;
        for way in self {
            more |= way.run()?;
        }
        Ok(more)
    }

    fn next(&mut self) -> Option<Instant> {
        self.iter_mut().filter_map(Way::next).min()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.iter().flat_map(Way::fds).collect()
    }

    fn change(&mut self, way: usize, changes: &[Change]) -> io::Result<Result<(), EditError>> {
        self[way].change(changes)
    }

    fn begin(&mut self) -> io::Result<()> {
        self.iter_mut().try_for_each(Way::begin)
    }

    fn watch(&mut self, watches: Vec<Box<dyn Watch>>) {
        self.iter_mut().zip(watches).for_each(|(way, watch)| way.watch(watch));
    }

    fn lines(&self) -> Vec<Vec<String>> {
        self.iter().map(Way::lines).collect()
    }

    fn carried(&self) -> Vec<Direction> {
        self.iter().map(Way::carried).collect()
    }
}

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
///
/// A child of `fork` has a copy of the bridge, but not its thread: there, [`change`](Self::change)
/// and [`lines`](Self::lines) fail, [`carried`](Self::carried) returns `None`, and a drop leaves
/// the parent's bridge as it is.
#[derive(Debug)]
pub struct Bridge {
    thread: Option<JoinHandle<Vec<Direction>>>,
    directions: usize,
    /// The commands for the thread; it ends when nobody can send one any more.
    commands: Option<Sender<Command>>,
    wake: Arc<EventFd>,
    error: Arc<Mutex<Option<String>>>,
    /// The number of forks when the thread was started.
    forks: u32,
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
        Self::of(ways, directions)
    }

    /// Starts the thread of a carrier that has so many directions.
    pub(crate) fn of(carrier: impl Carrier + 'static, directions: usize) -> io::Result<Self> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let error = Arc::<Mutex<Option<String>>>::default();
        let (wakes, fails) = (wake.clone(), error.clone());
        let (commands, asked) = mpsc::channel();
        let forks = onramp_dev::watch_forks();
        let body = move || {
            onramp_dev::exact_timers();
            let mut carrier = carrier;
            // A panic must not leave the others waiting for a thread that is gone.
            let run = || carry(&mut carrier, &asked, &wakes);
            let ended = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
                let texts = (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>());
                let text = texts.0.copied().or_else(|| texts.1.map(String::as_str));
                let text = text.unwrap_or("no text");
                Err(io::Error::other(format!("its thread panicked ({text}); please report this")))
            });
            if let Err(error) = ended {
                *fails.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            carrier.carried()
        };
        let thread = thread::Builder::new().name("bridge".to_owned()).spawn(body)?;
        Ok(Self { thread: Some(thread), directions, commands: Some(commands), wake, error, forks })
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

    /// Makes the changes of two directions, first those of the first.
    pub(crate) fn change_both(&self, both: [Vec<Change>; 2]) -> Result<(), EditError> {
        for (way, changes) in both.into_iter().enumerate() {
            if !changes.is_empty() {
                self.change(way, changes)?;
            }
        }
        Ok(())
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

    /// Whether this is a copy in a child of `fork`, which has no thread.
    fn is_copy(&self) -> bool {
        onramp_dev::forks() != self.forks
    }

    fn ask(&self, command: Command) {
        // A command that is not sent is dropped, and the channel for its answer with it.
        if let Some(commands) = self.commands.as_ref().filter(|_| !self.is_copy()) {
            // If the thread has ended, nobody answers, which the caller notices.
            let _ = commands.send(command);
            self.wake();
        }
    }

    fn ended(&self) -> EditError {
        if self.is_copy() {
            return EditError("the wire belongs to the parent of this process".to_owned());
        }
        broken(&self.error().unwrap_or_else(|| "its thread is gone".to_owned()))
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
    /// Panics if the counters of the directions cannot be read, and in a child of `fork`.
    #[must_use]
    pub fn stop(mut self) -> Vec<Direction> {
        assert!(!self.is_copy(), "the wire belongs to the parent of this process");
        self.tell();
        let thread = self.thread.take().expect("it is taken only here and in drop");
        thread.join().expect("what the thread carries is caught when it panics")
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
        if self.is_copy() {
            // The parent's thread may have held a lock of the channel when the process was copied,
            // and nobody here ends for whom one could wait.
            std::mem::forget((self.commands.take(), self.thread.take()));
            return;
        }
        self.tell();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Carries frames, and carries out commands, until the bridge is stopped.
fn carry(carrier: &mut dyn Carrier, asked: &Receiver<Command>, wake: &EventFd) -> io::Result<()> {
    let mut head_start = HeadStart::default();
    loop {
        let next = if carrier.run()? { Some(Instant(0)) } else { carrier.next() };
        // Within the head start, this does not wait, but comes again and again.
        let mut until = |at| Duration::from_nanos(head_start.sleep_ns(at, MonotonicClock.now()));
        let wait = next.map_or(LOOK, |at| until(at).min(LOOK));
        let fds = iter::once(wake.as_fd()).chain(carrier.fds());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::from(wait)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !wait.is_zero() {
            head_start.woke(MonotonicClock.now());
        }
        if fds[0].any().unwrap_or_default() {
            // The number that was read says only that there is something; zero cannot be read.
            let _ = wake.read();
            if !obey(carrier, asked)? {
                return Ok(());
            }
        }
    }
}

/// The error of a change that came to a bridge that has broken.
fn broken(why: &impl std::fmt::Display) -> EditError {
    EditError(format!("the wire has broken: {why}"))
}

/// Carries out the commands that wait. Returns false if the bridge is stopped.
fn obey(carrier: &mut dyn Carrier, asked: &Receiver<Command>) -> io::Result<bool> {
    loop {
        // An answer that nobody waits for any more is not missed.
        match asked.try_recv() {
            Ok(Command::Change(way, changes, tell)) => match carrier.change(way, &changes) {
                Ok(made) => drop(tell.send(made)),
                Err(error) => {
                    drop(tell.send(Err(broken(&error))));
                    return Err(error);
                }
            },
            Ok(Command::Begin) => carrier.begin()?,
            Ok(Command::Watch(watches)) => carrier.watch(watches),
            Ok(Command::Describe(tell)) => {
                let _ = tell.send(carrier.lines());
            }
            Ok(Command::Count(tell)) => {
                let _ = tell.send(carrier.carried());
            }
            Err(TryRecvError::Empty) => return Ok(true),
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A carrier that breaks when a change is made.
    #[derive(Debug)]
    struct Brittle;

    impl Carrier for Brittle {
        fn run(&mut self) -> io::Result<bool> {
            Ok(false)
        }
        fn next(&mut self) -> Option<Instant> {
            None
        }
        fn fds(&self) -> Vec<BorrowedFd<'_>> {
            Vec::new()
        }
        fn change(&mut self, _: usize, _: &[Change]) -> io::Result<Result<(), EditError>> {
            Err(io::Error::other("why it broke"))
        }
        fn begin(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn watch(&mut self, _: Vec<Box<dyn Watch>>) {}
        fn lines(&self) -> Vec<Vec<String>> {
            Vec::new()
        }
        fn carried(&self) -> Vec<Direction> {
            Vec::new()
        }
    }

    /// A caller whose change breaks the bridge learns why, before the thread has ended.
    #[test]
    fn a_change_that_breaks_the_bridge_says_why() {
        let (commands, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        commands.send(Command::Change(0, Vec::new(), tell)).expect("it is received below");
        obey(&mut Brittle, &asked).expect_err("it broke");
        let error = told.recv().expect("an answer").expect_err("it broke");
        assert_eq!(error.to_string(), "the wire has broken: why it broke");
    }
}
