//! The threads of a link: threads that serve as runners, one thread that watches the runners (the
//! watch), and spare threads.
//!
//! A device may block the thread that visits its port. To keep the timers of other ports on time,
//! the watch sleeps beside the runners. Before a runner visits a port whose device may block, it
//! records that it is out (with such a device) and tells the watch. The watch looks [`WATCH_NS`]
//! later, and takes over the role of a runner that is still out. Another thread then becomes the
//! watch: a spare thread, or a new one. The blocked thread becomes a spare thread when the device
//! returns.
//!
//! ```text
//! a runner that is out:  back in time ──▶ remains the runner
//!                        out too long ──▶ loses its role to the watch; spare when it is back
//! the watch:             takes a role ──▶ is the runner; a spare or new thread is the watch
//! ```
//!
//! A link needs no watch while it has only one port, or if none of its devices [may
//! block](onramp_core::DeviceInfo::may_block).

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{OnceLock, PoisonError};

use onramp_core::{Clock, Device, Instant};
use onramp_dev::{Priority, Timer};
use onramp_queue::{Alarm, NEVER, Post};

use super::by_hand::ByHand;
use super::{Seat, Serves, Sleeps, run, sleep};
use crate::nap::Nap;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::thread::{self, JoinHandle, Thread};
use crate::sync::{Mutex, MutexGuard, mpsc};

/// How long a runner may be out (with a device that may block) before another thread takes over its
/// role, nanoseconds.
const WATCH_NS: u64 = 2_000_000;
/// Greatest number of threads of a link besides those that serve as its runners: threads that
/// devices block at the same time, and the watch.
const STAND_INS: usize = 64;
/// The number that means that no thread is the watch; no thread has this number.
const NOBODY: u16 = u16::MAX;

pub(crate) struct ThreadGroup {
    /// The link's threads by number. The first numbers belong to the threads that are the runners
    /// at first.
    threads: Box<[OnceLock<Thread>]>,
    watch: Watch,
    stopped: AtomicBool,
    hands: Mutex<Hands>,
    /// The priority of all threads of the group; `None` leaves them as they are.
    pub(super) priority: Option<Priority>,
    /// In a link without threads, what the program waits for.
    by_hand: Option<ByHand>,
}

/// State that the watch (the thread that watches the runners) shares with the runners.
#[repr(align(128))]
struct Watch {
    alarm: Alarm,
    post: Post,
    on: AtomicBool,
}

struct Hands {
    handles: Vec<JoinHandle<()>>,
    /// Numbers of the spare threads, which have nothing to do at present.
    spare: Vec<u16>,
    /// Number of threads that were started, which is also the number of the next thread.
    started: usize,
}

/// What a thread of the link does at present.
#[derive(Clone, Copy, Debug)]
enum Duty {
    /// Serves as the runner with this number.
    Run(usize),
    /// Is the watch: watches the runners, and takes over the role of a runner that a device blocks.
    Watch,
    /// Sleeps until another thread makes it the watch (the thread that watches the runners).
    Spare,
}

#[derive(Debug)]
pub(crate) enum StartError {
    Spawn(std::io::Error),
    Pin(usize, std::io::Error),
    Rank(Priority, std::io::Error),
}

impl ThreadGroup {
    /// Makes a group for a link with `runners` runners; no thread is started yet. All threads will
    /// have this priority.
    pub(crate) fn new(runners: usize, priority: Option<Priority>) -> Self {
        Self {
            threads: (0..runners + STAND_INS).map(|_| OnceLock::new()).collect(),
            watch: Watch {
                alarm: Alarm::default(),
                post: Post::new(NOBODY),
                on: AtomicBool::new(false),
            },
            stopped: AtomicBool::new(false),
            hands: Mutex::new(Hands { handles: Vec::new(), spare: Vec::new(), started: runners }),
            priority,
            by_hand: None,
        }
    }

    /// Makes the group of a link without threads: no thread is ever started.
    pub(super) fn by_hand(timer: Timer) -> Self {
        Self { by_hand: Some(ByHand::new(timer)), ..Self::new(0, None) }
    }

    /// In a link without threads, returns what the program waits for.
    pub(super) fn program(&self) -> Option<&ByHand> {
        self.by_hand.as_ref()
    }

    /// Returns the descriptor that the program of a link without threads waits for.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.by_hand.as_ref().map(ByHand::descriptor)
    }

    /// Starts the thread of the runner `me`, pinned to the processor `cpu` if one is given.
    pub(crate) fn start<S, D, C>(
        shared: &S,
        me: usize,
        cpu: Option<usize>,
        clock: C,
    ) -> Result<(), StartError>
    where
        S: Serves<D> + Send + Sync + Clone + 'static,
        D: Device + 'static,
        C: Clock + Send + Clone + 'static,
    {
        let number = u16::try_from(me).unwrap_or(u16::MAX);
        shared.rig().threads.hands().spawn(shared, number, Duty::Run(me), cpu, clock)
    }

    /// Starts the watch (the thread that watches the runners), unless the link has one already, or
    /// is one without threads.
    pub(crate) fn start_watch<S, D, C>(shared: &S, clock: C) -> Result<(), StartError>
    where
        S: Serves<D> + Send + Sync + Clone + 'static,
        D: Device + 'static,
        C: Clock + Send + Clone + 'static,
    {
        let threads = &shared.rig().threads;
        let mut hands = threads.hands();
        if threads.watches() || threads.by_hand.is_some() {
            return Ok(());
        }
        hands.hire(shared, clock)?;
        threads.watch.on.store(true, Ordering::Relaxed); // Relaxed: the fence orders the store.
        // SeqCst: pairs with the fence in `look_after`. Either a runner that begins to visit a port
        // whose device may block sees that there is a watch, and sets its alarm; or the watch,
        // which looks at the runners after this fence, sees that the runner has begun its visit.
        fence(Ordering::SeqCst);
        threads.wake(threads.watch.post.holder());
        Ok(())
    }

    /// Whether the link has a watch (a thread that watches the runners).
    fn watches(&self) -> bool {
        // Relaxed: in `look_after`, a fence orders this load; callers that start or become the
        // watch hold the lock on `hands`, as the thread that sets `on` does.
        self.watch.on.load(Ordering::Relaxed)
    }

    /// For a runner that, at `now`, begins to visit a port whose device may block: makes sure that
    /// the watch (the thread that watches the runners) checks [`WATCH_NS`] later whether the visit
    /// is over.
    #[inline]
    pub(super) fn look_after(&self, now: Instant) {
        // SeqCst: pairs with the fence in `start_watch`. Either the watch, when it starts, sees
        // that this runner has begun its visit, or this thread sees that there is a watch, and sets
        // its alarm.
        fence(Ordering::SeqCst);
        if self.watches() && self.watch.alarm.set(now.after(WATCH_NS).0) {
            self.wake(self.watch.post.holder());
        }
    }

    /// Wakes the thread `number`, if it has been started. A thread that has not been started yet
    /// needs no wake-up, because it looks for work when it starts. In a link without threads, tells
    /// the program.
    pub(super) fn wake(&self, number: u16) {
        if let Some(by_hand) = &self.by_hand {
            by_hand.ring();
        } else if let Some(thread) = self.threads.get(usize::from(number)).and_then(OnceLock::get) {
            thread.unpark();
        }
    }

    /// Ends all threads as soon as they are back from their devices. Threads that serve as runners
    /// end only if their runners are also told to [stop](super::Runner::stop).
    pub(crate) fn stop(&self) {
        let hands = self.hands();
        // Release: publishes what this thread did before it stops the threads; pairs with the
        // acquire in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
        drop(hands);
        self.threads.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) // Acquire: pairs with the release in `stop`.
    }

    /// Blocks until all threads have ended, but at most until `deadline`; destructors of
    /// thread-local values may take longer. The calling thread, if it is one of them, is not waited
    /// for. A thread that a device blocks ends when the device returns, which may be later.
    pub(crate) fn join(&self, clock: &impl Clock, deadline: Instant) {
        let me = thread::current().id();
        let is_ours = self.threads.iter().filter_map(OnceLock::get).any(|ours| ours.id() == me);
        let mut nap = Nap::default();
        loop {
            // Do not hold the lock while waiting or joining: a waker that runs in one of these
            // threads may call this function as well, and so may the destructor of a thread-local
            // value in a thread that is ending.
            let mut hands = self.hands();
            let mut ended = Vec::new();
            if !is_ours {
                ended.extend(hands.handles.extract_if(.., |handle| handle.is_finished()));
            }
            // If such a waker or destructor makes this call, this thread joins no other thread,
            // because that thread may be about to join this one.
            let all = hands
                .handles
                .iter()
                .all(|handle| is_ours && (handle.is_finished() || handle.thread().id() == me));
            drop(hands);
            // An error of `join` means that the thread panicked; the panic hook has already printed
            // the panic.
            ended.into_iter().for_each(|handle| drop(handle.join()));
            let left = deadline.since(clock.now());
            if all || left == 0 {
                return;
            }
            thread::sleep(nap.next(left));
        }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hands {
    /// Makes a spare thread the watch (the thread that watches the runners) or, if no thread is
    /// spare, a new thread.
    fn hire<S, D, C>(&mut self, shared: &S, clock: C) -> Result<(), StartError>
    where
        S: Serves<D> + Send + Sync + Clone + 'static,
        D: Device + 'static,
        C: Clock + Send + Clone + 'static,
    {
        let threads = &shared.rig().threads;
        if let Some(number) = self.spare.pop() {
            threads.watch.post.hand_over(number);
            threads.wake(number);
            return Ok(());
        }
        let number = u16::try_from(self.started).unwrap_or(u16::MAX);
        if self.started >= threads.threads.len() || threads.is_stopped() {
            let why = "too many devices of this link block at the same time";
            return Err(StartError::Spawn(std::io::Error::other(why)));
        }
        self.spawn(shared, number, Duty::Watch, None, clock)?;
        self.started += 1;
        threads.watch.post.hand_over(number);
        // The new thread may have looked before this hand-over, found that it is not the watch yet,
        // and gone to sleep. So wake the new thread.
        threads.wake(number);
        Ok(())
    }

    fn spawn<S, D, C>(
        &mut self,
        shared: &S,
        number: u16,
        duty: Duty,
        cpu: Option<usize>,
        clock: C,
    ) -> Result<(), StartError>
    where
        S: Serves<D> + Send + Sync + Clone + 'static,
        D: Device + 'static,
        C: Clock + Send + Clone + 'static,
    {
        let theirs = shared.clone();
        let priority = shared.rig().threads.priority;
        let (ready, is_ready) = mpsc::sync_channel(1);
        let handle = thread::Builder::new()
            .name(format!("onramp-run-{number}"))
            .spawn(move || {
                let outcome = prepare(cpu, priority);
                let failed = outcome.is_err();
                // If there is anything to prepare, the thread that started this one waits for the
                // result.
                let _ = ready.send(outcome);
                if !failed {
                    live(&theirs, number, duty, &clock);
                }
            })
            .map_err(StartError::Spawn)?;
        if (cpu.is_some() || priority.is_some())
            && let Ok(Err(error)) = is_ready.recv()
        {
            return Err(error);
        }
        let thread = handle.thread().clone();
        // If another thread called `wake` before the new thread was stored in `threads`, that call
        // woke no thread, so wake the new thread now.
        let _ = shared.rig().threads.threads[usize::from(number)].set(thread.clone());
        thread.unpark();
        self.handles.push(handle);
        Ok(())
    }
}

/// Pins the calling thread to a processor, and gives it a priority.
fn prepare(cpu: Option<usize>, priority: Option<Priority>) -> Result<(), StartError> {
    if let Some(cpu) = cpu {
        onramp_dev::pin_thread(cpu).map_err(|error| StartError::Pin(cpu, error))?;
    }
    if let Some(priority) = priority {
        onramp_dev::set_thread_priority(priority)
            .map_err(|error| StartError::Rank(priority, error))?;
    }
    Ok(())
}

/// The main function of each thread: does one duty after another until the link closes.
fn live<S, D, C>(shared: &S, number: u16, mut duty: Duty, clock: &C)
where
    S: Serves<D> + Send + Sync + Clone + 'static,
    D: Device + 'static,
    C: Clock + Send + Clone + 'static,
{
    onramp_dev::exact_timers();
    loop {
        let next = match duty {
            // `run` also returns when the link closes. Then the thread becomes spare, and a spare
            // thread ends when the link is closed.
            Duty::Run(me) => {
                run(shared, Seat { me, number }, clock);
                Some(Duty::Spare)
            }
            Duty::Watch => watch(shared, number, clock).map(Duty::Run),
            Duty::Spare => wait_to_watch(&shared.rig().threads, number).then_some(Duty::Watch),
        };
        match next {
            Some(next) => duty = next,
            None => return,
        }
    }
}

/// Sleeps as a spare thread. Returns true if this thread becomes the watch (the thread that watches
/// the runners), and false if this thread shall end.
fn wait_to_watch(threads: &ThreadGroup, number: u16) -> bool {
    let is_watch = || threads.watch.post.holder() == number;
    let mut hands = threads.hands();
    if threads.watches() && threads.watch.post.holder() == NOBODY {
        threads.watch.post.hand_over(number);
        return true;
    }
    hands.spare.push(number);
    drop(hands);
    while !is_watch() {
        if threads.is_stopped() {
            return false;
        }
        thread::park();
    }
    true
}

/// Watches the runners until a device has blocked one of them for longer than [`WATCH_NS`]. Then
/// takes over the role of that runner and returns the runner's number. Returns `None` if the thread
/// shall end.
fn watch<S, D, C>(shared: &S, number: u16, clock: &C) -> Option<usize>
where
    S: Serves<D> + Send + Sync + Clone + 'static,
    D: Device + 'static,
    C: Clock + Send + Clone + 'static,
{
    let threads = &shared.rig().threads;
    let mut before = 0;
    loop {
        threads.watch.alarm.rise();
        if threads.is_stopped() {
            return None;
        }
        let (now, mut next) = (clock.now(), NEVER);
        for (me, runner) in shared.rig().runners.iter().enumerate() {
            let Some(out) = runner.post.is_out() else { continue };
            let late = Instant(out.since()).after(WATCH_NS);
            if now < late {
                next = next.min(late.0);
            } else if runner.post.relieve(out, number) {
                runner.stats.stand_ins.add(1);
                let mut hands = threads.hands();
                if hands.hire(shared, clock.clone()).is_err() {
                    // No other thread could be made the watch. The next thread that returns from a
                    // device and has lost its role becomes the watch.
                    threads.watch.post.hand_over(NOBODY);
                    runner.stats.unwatched.add(1);
                }
                return Some(me);
            }
        }
        // If runners made visits since the last check, check again after a fixed time, even if no
        // runner visits a port now whose device may block: while runners make many such visits, one
        // check for all runners costs less than a wake-up for each visit.
        let visits = shared.rig().runners.iter().map(|runner| runner.stats.visits.get()).sum();
        if visits != before {
            next = next.min(now.after(WATCH_NS).0);
        }
        before = visits;
        // The watch need not be there at an instant, so it learns nothing of its sleeps.
        sleep(&threads.watch.alarm, next, 0, &mut Sleeps::default(), clock);
    }
}

impl fmt::Debug for ThreadGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadGroup").field("watches", &self.watches()).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl ThreadGroup {
    /// Returns the greatest number of threads that the link may have.
    pub(super) fn places(&self) -> usize {
        self.threads.len()
    }

    /// Makes `thread` the thread with the number `number`.
    pub(super) fn seat(&self, number: u16, thread: Thread) {
        assert!(self.threads[usize::from(number)].set(thread).is_ok(), "nobody is {number}");
    }
}
