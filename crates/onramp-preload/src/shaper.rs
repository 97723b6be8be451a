//! The tree of the process between the threads of the program, and the thread that sends what has
//! waited.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use libc::c_int;
use nix::sys::signal::{SigSet, SigmaskHow};
use onramp_core::{Clock as _, Instant, Setup, Tree};
use onramp_dev::MonotonicClock;
use onramp_dev::exec::{Order, Tally, VARIABLE};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::joined::Outcome;
use crate::message::Message;
use crate::sending::Sending;
use crate::sockets::Table;
use crate::state::{Pushed, State};
use crate::sys;

/// Largest frame of most networks, bytes: the qdiscs choose some of their defaults by it.
const MTU: u32 = 1_514;

/// How long a program that asks again and again, although its socket has no room, is held up.
const PAUSE: Duration = Duration::from_millis(1);

/// How often the end of a process looks whether all datagrams have left.
const LOOK: Duration = Duration::from_millis(1);

/// No message has more payload, bytes: the length in the header of UDP has 16 bits.
pub(crate) const DATA_MAX: usize = 65_535;

/// How long the thread stays when nothing waits. A process whose other threads have all ended ends
/// only with this one.
const IDLE: Duration = Duration::from_secs(1);

/// Most sockets of which is known that they were told to wait.
const TOLD_MAX: usize = 4_096;

/// The tree of the process.
#[derive(Debug)]
pub(crate) struct Shaper {
    inner: Mutex<Inner>,
    /// Whether there was ever a datagram of several messages: few programs have some.
    has_joined: AtomicBool,
    /// Wakes the thread, because something has become due earlier than it knows.
    bell: Condvar,
    /// Changes when a socket has got room: waiting threads sleep on it.
    rooms: AtomicU32,
    tally: Tally,
    drain: Duration,
}

#[derive(Debug)]
struct Inner {
    state: State,
    table: Table,
    /// The sockets whose program has been told to come again (`EAGAIN`).
    told: HashSet<u64>,
    /// Number of threads that wait for room.
    waiting: u32,
    /// Whether the thread has been started, and until when it sleeps.
    has_thread: bool,
    sleeps_until: Instant,
}

type Held<'s> = MutexGuard<'s, Inner>;

impl Shaper {
    /// Makes the tree that the order asks for, in the folder that the environment names.
    pub(crate) fn new() -> Result<Self, String> {
        let folder = std::env::var_os(VARIABLE).map(PathBuf::from);
        let folder = folder.ok_or_else(|| format!("{VARIABLE} is not set; use `onramp exec`"))?;
        let cannot = |what, error| format!("cannot {what} {}: {error}", folder.display());
        let order = Order::read(&folder).map_err(|error| cannot("read the order in", error))?;
        let mut setup = Setup::default();
        for line in &order.lines {
            setup.change(line).map_err(|error| format!("{line}: {error}"))?;
        }
        let tree = Tree::of(&setup, MTU, order.seed).ok_or("the tree has no root")?;
        // As in Linux, a datagram that netem delays is not its socket's any more. The tree does not
        // say in which qdisc a datagram waits: a netem anywhere stands for all of them.
        let charges = setup.specs().all(|spec| spec.kind().id != "netem");
        let tally = Tally::create(&folder).map_err(|error| cannot("make a file in", error))?;
        Ok(Self {
            inner: Mutex::new(Inner {
                state: State::new(tree, charges, tally),
                table: Table::default(),
                told: HashSet::new(),
                waiting: 0,
                has_thread: false,
                sleeps_until: Instant(0),
            }),
            has_joined: AtomicBool::new(false),
            bell: Condvar::new(),
            rooms: AtomicU32::new(0),
            tally,
            drain: order.drain,
        })
    }

    /// Counts a message that the next library sends, past the qdiscs.
    pub(crate) fn goes_around(&self) {
        self.tally.around();
    }

    /// Returns whether a message of the socket with this number belongs to a datagram that several
    /// messages make: one that began earlier, one that this message begins (`MSG_MORE`), or one of
    /// a corked socket. Then the message goes around: the kernel puts the datagram together, and
    /// would send what it holds if it were asked to check the message. When the call for the
    /// message has returned, [`returned`](Self::returned) has to follow.
    ///
    /// What leaves the tree leaves under the lock, under which this is noted: so it leaves before
    /// the datagram begins, or sees the note and stays, and is never glued to the datagram.
    pub(crate) fn joins(&self, fd: c_int, socket: u64, flags: c_int, is_corked: bool) -> bool {
        let begins = flags & libc::MSG_MORE != 0;
        // Relaxed: a program that sends parts of one datagram in several threads orders them.
        if !begins && !is_corked && !self.has_joined.load(Relaxed) {
            return false;
        }
        self.has_joined.store(true, Relaxed); // Relaxed: as above.
        let Ok(mut inner) = self.inner.lock() else { return false };
        inner.table.joined.call(socket, begins, is_corked, || sys::holds(fd))
    }

    /// Notes that the call for a message returned of which [`joins`](Self::joins) has said that it
    /// belongs to a datagram of several messages.
    pub(crate) fn returned(&self, fd: c_int, socket: u64, outcome: Outcome) {
        if let Ok(mut inner) = self.inner.lock() {
            inner.table.joined.returned(socket, outcome, || sys::holds(fd));
        }
    }

    /// Sends a message out of the socket with this number. Returns the number of bytes that were
    /// taken, or the error that the program is to get; `None` if the message cannot wait.
    pub(crate) fn send(
        &'static self,
        fd: c_int,
        socket: u64,
        message: &Message<'_>,
        flags: c_int,
    ) -> Option<Result<usize, Errno>> {
        // The kernel checks this late if a message goes to an IPv6 address.
        if message.len() > DATA_MAX {
            return Some(Err(Errno::MSGSIZE));
        }
        let Some(mut sending) = Sending::new(fd, socket, message, flags) else {
            self.goes_around();
            return None;
        };
        // After a panic, the lock is poisoned, and all datagrams go around.
        let done = catch_unwind(AssertUnwindSafe(|| self.pass(&mut sending)));
        if done.is_err() {
            self.wake_all();
        }
        let done = done.ok().flatten();
        if done.is_none() {
            self.goes_around();
        }
        done
    }

    fn pass(&'static self, sending: &mut Sending) -> Option<Result<usize, Errno>> {
        let mut inner = match self.with_room(sending)? {
            Ok(inner) => inner,
            Err(error) => return Some(Err(error)),
        };
        if sending.datagrams(None).any(|datagram| datagram.payload.len() > sending.largest()) {
            return Some(Err(Errno::MSGSIZE));
        }
        if !sending.is_cut() {
            return Some(Err(Errno::INVAL));
        }
        let local = match inner.state.knows_flow(&sending.route) {
            true => None,
            false => sending.local(),
        };
        let mut result = Ok(sending.payload.len());
        for datagram in sending.datagrams(local) {
            let now = MonotonicClock.now();
            let Inner { state, table, .. } = &mut *inner;
            table.at_hand = Some((sending.route.socket, sending.fd));
            let pushed = state.push(now, &datagram, table);
            table.at_hand = None;
            result = match pushed {
                // The kernel says so of datagrams that a qdisc drops, if the program asks for it.
                Ok(Pushed::Dropped) if sys::reports_errors(sending.fd) => Err(Errno::NOBUFS),
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            break;
        }
        self.tell(&mut inner);
        Some(self.start(&mut inner).and(result))
    }

    /// Waits until the socket has room, as its kind asks for, and then returns the lock; or the
    /// error that the program is to get.
    fn with_room(&'static self, sending: &mut Sending) -> Option<Result<Held<'static>, Errno>> {
        let socket = sending.route.socket;
        let mut inner = self.inner.lock().ok()?;
        if let Some(error) = inner.state.take_error(socket) {
            return Some(Err(error));
        }
        let mut until = None;
        // Most sockets have nothing that waits, and their limit need not be asked for.
        while inner.state.charged(socket) > 0
            && inner.state.charged(socket) >= sending.send_buffer()
        {
            let now = MonotonicClock.now();
            inner.drain(now);
            self.tell(&mut inner);
            if inner.state.charged(socket) < sending.send_buffer() {
                break;
            }
            let nonblocking = sys::is_nonblocking(sending.fd, sending.flags);
            let patience = match nonblocking {
                // A program that was told to come again, and comes at once, is made to pause.
                true if !inner.tell_to_wait(socket) => return Some(Err(Errno::AGAIN)),
                true => Some(PAUSE),
                false => sys::send_timeout(sending.fd),
            };
            let until = *until.get_or_insert_with(|| patience.map(|time| now + time));
            if until.is_some_and(|until| until <= now) {
                return Some(Err(Errno::AGAIN));
            }
            if let Err(error) = self.start(&mut inner) {
                return Some(Err(error));
            }
            // A call of the kernel holds its file. This one holds a number, under which the program
            // may have another file when the wait is over.
            if sending.kept.is_none() {
                sending.kept = inner.table.duplicate(sending.fd, socket);
            }
            let left = until.map(|until| Duration::from_nanos(until.since(now)));
            inner = match self.wait(inner, left)? {
                Ok(inner) => inner,
                // A signal interrupts no call that does not wait.
                Err(_) if nonblocking => return Some(Err(Errno::AGAIN)),
                Err(error) => return Some(Err(error)),
            };
            if !sending.is_open() {
                return Some(Err(Errno::BADF));
            }
        }
        inner.told.remove(&socket);
        Some(Ok(inner))
    }

    /// Sleeps until a socket has got room, for at most this time. A signal ends the sleep if its
    /// handler was set up to interrupt system calls.
    fn wait<'s>(
        &'s self,
        mut inner: Held<'s>,
        time: Option<Duration>,
    ) -> Option<Result<Held<'s>, Errno>> {
        inner.waiting += 1;
        let seen = self.rooms.load(Relaxed); // Relaxed: only changed under the lock.
        drop(inner);
        let time = time.and_then(|time| time.try_into().ok());
        let woken = futex::wait(&self.rooms, futex::Flags::PRIVATE, seen, time.as_ref());
        let mut inner = self.inner.lock().ok()?;
        inner.waiting -= 1;
        match woken {
            Err(Errno::INTR) => Some(Err(Errno::INTR)),
            _ => Some(Ok(inner)),
        }
    }

    /// Wakes the threads that wait for room, and the thread that sends, if there is a reason.
    fn tell(&self, inner: &mut Inner) {
        if inner.state.take_freed() && inner.waiting > 0 {
            self.wake_all();
        }
        if inner.state.next().is_some_and(|next| next < inner.sleeps_until) {
            self.bell.notify_one();
        }
    }

    /// Wakes all threads that wait for room.
    fn wake_all(&self) {
        // Relaxed: changed under the lock, or when the lock is poisoned, and the kernel compares it
        // with what a thread has read under the lock before it lets the thread sleep.
        self.rooms.fetch_add(1, Relaxed);
        // It fails if the kernel has no futexes.
        let _ = futex::wake(&self.rooms, futex::Flags::PRIVATE, u32::MAX >> 1);
    }

    /// Starts the thread if something waits and there is none.
    fn start(&'static self, inner: &mut Inner) -> Result<(), Errno> {
        if inner.has_thread || inner.state.next().is_none() {
            return Ok(());
        }
        // The program's signal handlers do not run in the thread.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let body = || {
            let ran = catch_unwind(AssertUnwindSafe(|| self.run()));
            if ran.is_err() {
                self.wake_all();
            }
        };
        let started = thread::Builder::new().name("onramp-exec".to_owned()).spawn(body);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        inner.has_thread = started.is_ok();
        // The datagrams wait until the program sends again; it learns that something is wrong.
        started.map(drop).map_err(|_| Errno::NOBUFS)
    }

    /// Sends what becomes due, until nothing has waited for the time [`IDLE`].
    fn run(&self) {
        onramp_dev::exact_timers();
        let Ok(mut inner) = self.inner.lock() else { return };
        loop {
            let now = MonotonicClock.now();
            inner.drain(now);
            inner.sleeps_until = Instant(0);
            self.tell(&mut inner);
            let next = inner.state.next();
            inner.sleeps_until = next.unwrap_or(Instant(u64::MAX));
            let time = next.map_or(IDLE, |next| Duration::from_nanos(next.since(now)));
            let Ok((woken, waited)) = self.bell.wait_timeout(inner, time) else { return };
            inner = woken;
            if next.is_none() && waited.timed_out() && inner.state.next().is_none() {
                inner.has_thread = false;
                return;
            }
        }
    }

    /// Waits until all datagrams have left, as long as the order allows. It takes no lock: the
    /// process may end in a signal handler, while its thread holds the lock.
    pub(crate) fn drain_at_end(&self) {
        let end = MonotonicClock.now() + self.drain;
        while self.tally.held() > 0 && MonotonicClock.now() < end {
            thread::sleep(LOOK);
        }
    }
}

impl Inner {
    /// Sends what is due.
    fn drain(&mut self, now: Instant) {
        // Errors of datagrams that have waited are counted, and told by the state.
        let _ = self.state.drain(now, &mut self.table, None);
    }

    /// Notes that the socket's program is told to come again. Returns whether it was told before.
    fn tell_to_wait(&mut self, socket: u64) -> bool {
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        !self.told.insert(socket)
    }
}
