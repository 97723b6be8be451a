//! A watchdog. Before each call, every thread notes which call it makes and how long the call may
//! take. One thread checks all notes, and reports a thread whose call takes longer.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock, Link};
use rustix::time::ClockId;

use crate::plan::Fault;

/// Interval between checks of the watchdog.
const LOOK: Duration = Duration::from_millis(10);
/// A call may last longer by this factor times the time for which the watchdog's sleeps were too
/// long during the call: a call may need a processor several times until it returns. A thread that
/// hangs is found all the same, because on processors that have time, the watchdog is hardly late.
const LATE: u64 = 4;
/// Waits that are shorter than this are not checked for the processor time that they used,
/// nanoseconds.
const BURN_MIN_NS: u64 = 200_000_000;
/// Processor time, in nanoseconds, that a waiting thread may use for each packet that it moved
/// during the wait: a thread that waits may send packets of other threads.
const HELP_NS: u64 = 20_000;
/// Greatest number of times per second that a task may wake itself.
const SELF_WAKES: u64 = 2_000;

macro_rules! doings {
    ($($name:ident),*) => {
        /// The kinds of calls that a thread notes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Doing {
            $($name),*
        }

        /// All kinds of calls, each at the index that is its number.
        const ALL: &[Doing] = &[$(Doing::$name),*];
    };
}

doings! {
    World, TrySend, Send, TrySendBatch, SendBatch, Submit, Uncork, WaitRoom, WaitRoomTimeout,
    Poll, Ready, Flush, Reclaim, NewSender, DropSender, DropPacket, LinkFlush, Close, DropLink,
    AddPort, RemovePort, SetQdisc, Change, SetRate, Look, Receive, DropReceiver, ThreadEnd,
    Fork, Rest, Cancel, WakePort
}

thread_local! {
    /// Number of packets that this thread gave to a device, or whose completion was reported in
    /// this thread. A thread that moves packets has a reason to use the processor.
    static MOVED: Cell<u64> = const { Cell::new(0) };
}

/// Records that the calling thread has moved `count` packets: given them to a device, or had their
/// completion reported.
pub(crate) fn note_moved(count: u64) {
    MOVED.set(MOVED.get() + count);
}

/// Returns the number of packets that the calling thread has moved so far.
pub(crate) fn moved() -> u64 {
    MOVED.get()
}

/// The note of one thread: the call that it is making at present.
pub(crate) struct Slot {
    name: String,
    tid: i32,
    watch: Arc<Watch>,
    doing: AtomicU64,
    /// Time at which the present call began, nanoseconds. 0: the thread is in no call.
    since: AtomicU64,
    bound: AtomicU64,
    /// What [`Watch::late`] was when the present call began.
    late: AtomicU64,
    arg: AtomicU64,
    reported: AtomicU64,
}

/// The notes of all threads of a world (the test run of one link), and the failures that were
/// found.
pub(crate) struct Watch {
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Description of the present world, and its link.
    world: Mutex<(String, Option<Link>)>,
    /// Whether a thread has closed the link of this world, or has begun to close it.
    closed: AtomicBool,
    slack: AtomicU64,
    /// By how much the watchdog's own sleeps have been too long so far, all together, nanoseconds.
    /// The watchdog sleeps on the processors of the world, so this says how long these had no time
    /// for the world, or stood still.
    late: AtomicU64,
    /// Factor by which everything is expected to be slower than usual.
    slower: u64,
    end: AtomicBool,
    reporting: AtomicBool,
    /// The failures found so far, if failures are collected for a test. `None`: the first failure
    /// ends the process.
    caught: Option<Mutex<Vec<String>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn now() -> u64 {
    MonotonicClock.now().0
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the processor time that the calling thread has used, nanoseconds.
pub(crate) fn cpu() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Returns how long the calling thread has been ready to run without having a processor, in
/// nanoseconds, as far as the kernel says. This time must be considered because, among many
/// threads, a thread that spins gets little processor time, too.
fn queued() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

impl Watch {
    /// Makes a watch. If `ends` is true, the first failure ends the process; otherwise failures are
    /// collected.
    pub(crate) fn new(slower: u64, ends: bool) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::default(),
            world: Mutex::default(),
            closed: AtomicBool::new(false),
            slack: AtomicU64::new(0),
            late: AtomicU64::new(0),
            slower,
            end: AtomicBool::new(false),
            reporting: AtomicBool::new(false),
            caught: (!ends).then(Mutex::default),
        })
    }

    /// Begins to watch a world, which reports of failures describe by the text `world`. Each call
    /// in this world may take longer than its allowed time by `slack`.
    pub(crate) fn begin(&self, world: String, slack: Duration) {
        *lock(&self.world) = (world, None);
        self.closed.store(false, SeqCst);
        self.end.store(false, SeqCst);
        self.slack.store(nanos(slack), SeqCst);
    }

    /// Sets the link whose counters a report of a failure shows. The watchdog keeps a handle of
    /// that link until the next call of this function.
    pub(crate) fn set_link(&self, link: Option<Link>) {
        let old = std::mem::replace(&mut lock(&self.world).1, link);
        drop(old);
    }

    /// Makes the note of the calling thread, which is called `name` in reports.
    pub(crate) fn register(self: &Arc<Self>, name: String) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            name,
            tid: rustix::thread::gettid().as_raw_pid(),
            watch: self.clone(),
            doing: AtomicU64::new(0),
            since: AtomicU64::new(0),
            bound: AtomicU64::new(0),
            late: AtomicU64::new(0),
            arg: AtomicU64::new(0),
            reported: AtomicU64::new(0),
        });
        lock(&self.slots).push(slot.clone());
        slot
    }

    /// Records that the link of this world is closed from now on, or is being closed.
    pub(crate) fn closes(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Returns the number of threads that are waiting for room or for packets to leave at present.
    pub(crate) fn waiting(&self) -> usize {
        let waits = [Doing::Send, Doing::SendBatch, Doing::WaitRoom, Doing::Ready, Doing::Flush];
        let waits = |slot: &&Arc<Slot>| {
            let (since, doing) = (slot.since.load(SeqCst), slot.doing.load(SeqCst));
            // Count only calls that have lasted for more than a millisecond: a shorter call may not
            // be waiting, and may be about to return.
            since > 0
                && now().saturating_sub(since) > 1_000_000
                && waits.iter().any(|wait| *wait as u64 == doing)
        };
        lock(&self.slots).iter().filter(waits).count()
    }

    /// Returns the failures found so far, if failures are collected.
    pub(crate) fn caught(&self) -> Vec<String> {
        self.caught.as_ref().map(|caught| lock(caught).clone()).unwrap_or_default()
    }

    /// Whether a failure was found that the fault `fault` causes.
    pub(crate) fn found(&self, fault: Option<Fault>) -> bool {
        fault.is_some_and(|fault| self.caught().iter().any(|what| what.contains(fault.word())))
    }

    /// Runs `world` while another thread, on the same processors, checks the notes of all threads
    /// again and again.
    pub(crate) fn over<T>(&self, world: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            scope.spawn(|| self.guard());
            // Ends the other thread also if the world panics.
            let _end = Ends(&self.end);
            world()
        })
    }

    fn guard(&self) {
        while !self.end.load(SeqCst) {
            let before = now();
            thread::sleep(LOOK);
            self.late.fetch_add((now() - before).saturating_sub(nanos(LOOK)), SeqCst);
            let slots = {
                let mut slots = lock(&self.slots);
                slots.retain(|slot| Arc::strong_count(slot) > 1);
                slots.clone()
            };
            slots.iter().for_each(|slot| self.look_at(slot));
        }
    }

    fn look_at(&self, slot: &Slot) {
        let (since, bound) = (slot.since.load(SeqCst), slot.bound.load(SeqCst));
        let (doing, arg) = (slot.doing.load(SeqCst), slot.arg.load(SeqCst));
        let here = now();
        let late = self.late.load(SeqCst).saturating_sub(slot.late.load(SeqCst));
        let most = bound.saturating_add(self.slack.load(SeqCst)).saturating_add(LATE * late);
        let stays = slot.since.load(SeqCst) == since && slot.reported.load(SeqCst) != since;
        if since == 0 || !stays || here.saturating_sub(since) <= most {
            return;
        }
        slot.reported.store(since, SeqCst);
        let what = format!(
            "thread {} HANGS in {} ({arg}): for {} ms, {} ms were allowed\n{}",
            slot.name,
            name(doing),
            (here - since) / 1_000_000,
            most / 1_000_000,
            kernel(slot.tid)
        );
        self.failed(&what);
    }

    /// Reports a failure with all that is known about the world, and ends the process. If failures
    /// are collected, only adds the failure.
    pub(crate) fn failed(&self, what: &str) {
        if let Some(caught) = &self.caught {
            lock(caught).push(what.to_owned());
            return;
        }
        while self.reporting.swap(true, SeqCst) {
            thread::sleep(Duration::from_secs(60));
        }
        let (world, link) = lock(&self.world).clone();
        eprintln!("chaos: FAILED: {world}\n{what}");
        let here = now();
        let mut waits = String::new();
        for slot in lock(&self.slots).iter() {
            let since = slot.since.load(SeqCst);
            let took = here.saturating_sub(since) / 1_000_000;
            if since > 0 && took > 300 {
                let (doing, arg) = (name(slot.doing.load(SeqCst)), slot.arg.load(SeqCst));
                let bound = slot.bound.load(SeqCst) / 1_000_000;
                let _ = writeln!(waits, "  {}: {doing} ({arg}) {took} ms of {bound}", slot.name);
            }
        }
        eprintln!("threads in calls for more than 300 ms:\n{waits}");
        // The thread that hangs may hold a lock that reading the link's counters needs. So read the
        // counters in another thread, which may then block forever.
        thread::scope(|scope| {
            scope.spawn(|| {
                if let Some(link) = link {
                    eprintln!("{:?}\ndeaths: {:?}", link.stats(), link.deaths());
                    let closed = self.closed.load(SeqCst);
                    eprintln!("ports {}, closed: {closed}", link.ports());
                }
                std::process::exit(1)
            });
            thread::sleep(Duration::from_secs(3));
            eprintln!("the link does not answer");
            std::process::exit(1)
        });
    }
}

fn name(doing: u64) -> String {
    let doing = usize::try_from(doing).ok().and_then(|index| ALL.get(index));
    doing.map_or_else(String::new, |doing| format!("{doing:?}"))
}

/// Returns what the kernel knows about a thread of this process: its state and where it waits.
fn kernel(tid: i32) -> String {
    let of = |what: &str| {
        let text = fs::read_to_string(format!("/proc/self/task/{tid}/{what}"));
        text.unwrap_or_default().trim().to_owned()
    };
    let status = of("status");
    let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("State: ?");
    let switches = status.lines().filter(|line| line.contains("ctxt_switches")).collect::<Vec<_>>();
    format!(
        "kernel: {state}; wchan {}; syscall {}; schedstat {}; {switches:?}",
        of("wchan"),
        of("syscall"),
        of("schedstat")
    )
}

impl Slot {
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Makes a call that must end by itself within `bound`, while the watchdog observes it.
    pub(crate) fn call<T>(
        &self,
        doing: Doing,
        bound: Duration,
        arg: u64,
        f: impl FnOnce() -> T,
    ) -> T {
        let _noted = Noted::new(self, doing, bound, arg);
        f()
    }

    /// Makes a call that may wait for at most `bound`, while the watchdog observes it, and checks
    /// that the thread slept instead of using a processor.
    pub(crate) fn wait<T>(
        &self,
        doing: Doing,
        bound: Duration,
        arg: u64,
        f: impl FnOnce() -> T,
    ) -> T {
        let watch = &self.watch;
        let (start, burnt, before, queue) = (now(), cpu(), moved(), queued());
        let out = self.call(doing, bound, arg, f);
        let wall = now() - start;
        if wall > BURN_MIN_NS {
            let wall = wall.saturating_sub(queued() - queue);
            let (burnt, moved) = (cpu() - burnt, moved() - before);
            if burnt.saturating_sub(moved * HELP_NS * watch.slower) > wall.max(BURN_MIN_NS) / 2 {
                watch.failed(&format!(
                    "thread {} USED {} of {} ms of CPU time in {doing:?} ({arg}), while it moved \
                     {moved} packets",
                    self.name,
                    burnt / 1_000_000,
                    wall / 1_000_000
                ));
            }
        }
        out
    }

    /// Checks that a task did not wake itself too often. The task waited for `wall` nanoseconds,
    /// woke itself `wakes` times, and its thread moved `moved` packets meanwhile.
    pub(crate) fn woke_itself(&self, wakes: u64, wall: u64, moved: u64) {
        let most = (SELF_WAKES * wall / 1_000_000_000).max(400);
        if wakes.saturating_sub(moved) > most {
            self.watch.failed(&format!(
                "thread {}: a task WOKE ITSELF {wakes} times in {} ms, while it \
                 moved {moved} packets",
                self.name,
                wall / 1_000_000
            ));
        }
    }
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Keeps the note of a call while the call lasts. The note is cleared when this value is dropped,
/// also by a panic.
struct Noted<'a>(&'a Slot);

impl<'a> Noted<'a> {
    fn new(slot: &'a Slot, doing: Doing, bound: Duration, arg: u64) -> Self {
        slot.doing.store(doing as u64, SeqCst);
        slot.bound.store(nanos(bound), SeqCst);
        slot.late.store(slot.watch.late.load(SeqCst), SeqCst);
        slot.arg.store(arg, SeqCst);
        slot.since.store(now(), SeqCst);
        Self(slot)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, SeqCst);
    }
}
