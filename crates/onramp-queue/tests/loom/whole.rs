//! The pieces together, as a link has them: a port, its runner, a thread that stands in, and jobs.
//!
//! A thread sleeps at a `Notify` of its own, which passes on what happened before only as the
//! sleep ends. (loom's `unpark` does so at once, also to a thread that is awake: that would hide
//! what the alarm has to order.)

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread::yield_now;
use onramp_queue::{Alarm, Due, Intake, Marks, NEVER, Owner, Packet, PacketList, Post, Pushed};

use crate::{check, join, spawn};

/// The time of everything here: it has come.
pub(crate) const NOW: u64 = 5;
/// The runner's thread, and the one that watches it.
pub(crate) const HOME: u16 = 0;
pub(crate) const WATCH: u16 = 1;

const JOBS: u8 = 2;

/// A port, its runner, and the beds of the two threads that may have that role.
pub(crate) struct World {
    /// Behind it: packets that were taken in, and wait to be sent.
    pub(crate) port: Intake<u32>,
    wants: AtomicU8,
    jobs: Mutex<u32>,
    /// Somebody waits until the port takes packets.
    wanted: AtomicBool,
    pub(crate) due: Due,
    pub(crate) marks: Marks,
    pub(crate) alarm: Alarm,
    pub(crate) post: Post,
    /// Rounds, as the holder of the role counts them: a load and a store.
    pub(crate) rounds: AtomicU32,
    pub(crate) beds: [Notify; 2],
    /// Packets that were sent and jobs that were done, and how many there are.
    pub(crate) done: AtomicU32,
    all: u32,
}

fn packet() -> PacketList {
    [Packet::new(1)].into_iter().collect()
}

impl World {
    pub(crate) fn new(all: u32) -> Arc<Self> {
        Arc::new(Self {
            port: Intake::new(0, 8, 8),
            wants: AtomicU8::new(0),
            jobs: Mutex::new(0),
            wanted: AtomicBool::new(false),
            due: Due::default(),
            marks: Marks::new(1),
            alarm: Alarm::default(),
            post: Post::new(HOME),
            rounds: AtomicU32::new(0),
            beds: [Notify::new(), Notify::new()],
            done: AtomicU32::new(0),
            all,
        })
    }

    /// `SlotWaker::visit_by`: anybody asks the runner for a visit.
    pub(crate) fn keep(&self) {
        if NOW < self.due.note(NOW) {
            self.marks.set(0);
            self.wake();
        }
    }

    /// `SlotWaker::wake_by`.
    fn wake(&self) {
        if self.alarm.set(NOW) {
            self.beds[usize::from(self.post.holder())].notify();
        }
    }

    /// `OwnWaker::visit_by`: the runner asks itself, for it is awake.
    pub(crate) fn note(&self) {
        self.due.note(NOW);
    }

    /// The thread that does the last thing ends the sleep of all.
    fn did(&self, count: u32) {
        if count > 0 && self.done.fetch_add(count, Relaxed) + count == self.all {
            self.beds.iter().for_each(Notify::notify);
        }
    }

    /// `Port::run` of a port that leaves nothing behind.
    pub(crate) fn run(&self, mut owner: Owner<'_, u32>, mut fresh: PacketList, keep: impl Fn()) {
        loop {
            fresh.append(&mut owner.take());
            self.did(std::mem::take(&mut *owner) + std::mem::take(&mut fresh).len());
            if self.is_wanted() {
                self.obey();
            }
            if self.is_wanted() {
                keep();
            }
            match owner.leave_idle() {
                Ok(()) => return,
                Err(still) => owner = still,
            }
        }
    }

    fn is_wanted(&self) -> bool {
        self.wants.load(Relaxed) & JOBS != 0
    }

    /// `Port::obey`: an owner waits for no lock.
    fn obey(&self) {
        if let Ok(mut jobs) = self.jobs.try_lock() {
            self.did(std::mem::take(&mut *jobs));
            self.wants.fetch_and(!JOBS, Relaxed);
        }
    }

    /// `Port::with` and `Port::attend`: a job for the owner of the port.
    pub(crate) fn with(&self) {
        *self.jobs.lock().unwrap() += 1;
        self.wants.fetch_or(JOBS, Relaxed);
        let Some(owner) = self.port.own() else { return self.waker() };
        let was_busy = owner.was_busy();
        if self.is_wanted() {
            self.obey();
        }
        if self.is_wanted() || *owner > 0 || owner.waiting() > 0 {
            self.waker();
        }
        if was_busy {
            owner.leave_busy();
        } else if let Err(owner) = owner.leave_idle() {
            self.waker();
            owner.leave_busy();
        }
    }

    /// A sender, whose packet has to wait: as owner it leaves the port busy.
    pub(crate) fn send_later(&self) {
        match self.port.push(packet()) {
            Ok(Pushed::Staged { .. }) => {}
            Ok(Pushed::Owner { mut owner, fresh }) => {
                *owner += fresh.len();
                self.waker();
                owner.leave_busy();
            }
            Err(_) => panic!("the model stays below the cap"),
        }
    }

    /// A sender that sends, as owner.
    fn send(&self) {
        match self.port.push(packet()) {
            Ok(Pushed::Staged { .. }) => {}
            Ok(Pushed::Owner { owner, fresh }) => self.run(owner, fresh, || self.waker()),
            Err(_) => panic!("the model stays below the cap"),
        }
    }

    /// `Port::visit`, and what asks for the next one.
    pub(crate) fn work(&self, keep: impl Fn()) {
        match self.port.own() {
            Some(owner) => self.run(owner, PacketList::new(), keep),
            None => keep(),
        }
    }

    fn visit(&self, keep: impl Fn()) {
        self.work(keep);
        self.grant();
    }

    /// `Slot::want_room`, and a visit for that.
    pub(crate) fn want_room(&self) {
        self.wanted.store(true, Release);
        self.waker();
    }

    /// `Slot::take_wish`, of a port that has room: rings, which ends the wait.
    fn grant(&self) {
        // Acquire: as there. Relaxed: the note of the visit orders it.
        if self.wanted.load(Relaxed) && self.wanted.swap(false, Acquire) {
            self.did(1);
        }
    }

    /// `run` and `round`: the thread `me` serves as runner until everything is done.
    pub(crate) fn serve(&self, me: u16) {
        loop {
            self.alarm.rise();
            self.rounds.store(self.rounds.load(Relaxed) + 1, Relaxed);
            let mut next = NEVER;
            for place in self.marks.iter() {
                self.marks.clear(place);
                if self.due.take(NOW) {
                    self.visit(|| self.note());
                }
                next = self.look_again(place);
            }
            if !self.rest(me, next) {
                return;
            }
        }
    }

    /// The end of a visit by the holder of the role. Gives the time of the next one.
    fn look_again(&self, place: usize) -> u64 {
        let due = self.due.at();
        if due != NEVER {
            self.marks.set(place);
        }
        due
    }

    /// False: everything is done.
    fn rest(&self, me: u16, next: u64) -> bool {
        if self.done.load(Relaxed) == self.all {
            return false;
        }
        if self.alarm.rest(next) == NEVER {
            self.beds[usize::from(me)].wait();
        } else {
            yield_now();
        }
        true
    }

    /// The watch looks once, and serves if it may. True: it did.
    pub(crate) fn watch(&self) -> bool {
        let relieved = self.post.is_out().is_some_and(|out| self.post.relieve(out, WATCH));
        if relieved {
            self.serve(WATCH);
        }
        relieved
    }

    /// The holder is back from a visit, and serves on if it may. True: it does.
    pub(crate) fn back(&self) -> bool {
        let back = self.post.come_back(HOME, NOW);
        self.grant();
        if back {
            self.look_again(0);
            self.serve(HOME);
        } else if self.due.at() != NEVER {
            // It was noted for a holder that is awake.
            self.marks.set(0);
            self.wake();
        }
        back
    }

    pub(crate) fn at_rest(&self) {
        assert_eq!(self.done.load(Relaxed), self.all);
        assert_eq!((self.port.waiting(), *self.port.own().expect("nobody owns it")), (0, 0));
    }
}

/// Two senders leave packets in a busy port, each after it has told the runner, or on top of what
/// the other one left: the runner sends both.
///
/// Broken by: intake-leave-busy-empty, intake-leave-idle-unchecked, mark-set-release,
/// mark-clear-acquire.
#[test]
fn the_runner_empties_a_busy_port() {
    check(3, || {
        let world = World::new(2);
        let (theirs, others) = (world.clone(), world.clone());
        let runner = spawn(move || theirs.serve(HOME));
        let other = spawn(move || others.send_later());
        world.send_later();
        join([runner, other]);
        world.at_rest();
    });
}

/// A runner that is late: another comes by, takes the note, and sends, or asks for another visit.
///
/// Broken by: alarm-set-release, alarm-rise-acquire, intake-leave-idle-release,
/// intake-take-acquire.
#[test]
fn another_runner_comes_by() {
    check(2, || {
        let world = World::new(2);
        let (theirs, others) = (world.clone(), world.clone());
        let runner = spawn(move || theirs.serve(HOME));
        let other = spawn(move || {
            // It leaves the marks: they are the home runner's.
            if others.marks.iter().count() > 0 && others.due.at() <= NOW && others.due.take(NOW) {
                others.visit(|| others.keep());
            }
        });
        world.send_later();
        world.send_later();
        join([runner, other]);
        world.at_rest();
    });
}

/// A job comes while a sender sends: the sender, the runner or the thread that brings it does it.
///
/// Broken by: intake-own-acquire, intake-leave-busy-empty, intake-leave-idle-unchecked,
/// mark-clear-acquire.
#[test]
fn a_job_is_done() {
    check(3, || {
        let world = World::new(2);
        let (theirs, others) = (world.clone(), world.clone());
        let runner = spawn(move || theirs.serve(HOME));
        let sender = spawn(move || others.send());
        world.with();
        join([runner, sender]);
        world.at_rest();
    });
}
