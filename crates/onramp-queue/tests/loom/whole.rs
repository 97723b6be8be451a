//! Models of the parts together, as a link uses them: a port, its runner, the watch (a thread that
//! takes over if a device blocks the runner), and jobs.
//!
//! In these models, each thread sleeps on its own `Notify`. The writes that came before a call of
//! `notify` become visible to the sleeping thread when its sleep ends. (With loom's `unpark`, they
//! become visible at once, even to a thread that is awake. That would hide the ordering that the
//! alarm must provide.)

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread::yield_now;
use onramp_queue::{Alarm, Due, Intake, Marks, NEVER, Owner, Packet, PacketList, Post, Pushed};

use crate::{check, join, spawn};

/// The only time in these models. All work and all visits are due at this time.
pub(crate) const NOW: u64 = 5;
/// The numbers of the two threads: the runner, and the watch (a thread that supervises the runner
/// and takes over its role).
pub(crate) const HOME: u16 = 0;
pub(crate) const WATCH: u16 = 1;

const JOBS: u8 = 2;

/// A port, the role of its runner (the duty to make visits, which one thread holds at a time), and
/// a bed (a `Notify` on which a thread sleeps) for each of the two threads that may hold that role.
pub(crate) struct World {
    /// The port. The value behind its intake is the number of packets that were taken from the
    /// intake and wait to be sent.
    pub(crate) port: Intake<u32>,
    wants: AtomicU8,
    jobs: Mutex<u32>,
    /// Whether a sender waits until the port accepts packets.
    wanted: AtomicBool,
    pub(crate) due: Due,
    pub(crate) marks: Marks,
    pub(crate) alarm: Alarm,
    pub(crate) post: Post,
    /// Number of rounds of visits. The thread that serves as the runner counts them with a separate
    /// load and store, so the count is wrong if a thread that takes over does not see what the
    /// previous one wrote.
    pub(crate) rounds: AtomicU32,
    pub(crate) beds: [Notify; 2],
    /// Number of finished pieces of work: packets that were sent, jobs that were done, and waits
    /// for room that have ended. When this number reaches `all`, all threads stop.
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

    /// Models `SlotWaker::visit_by`: any thread requests a visit from the runner.
    pub(crate) fn visit_now(&self) {
        if NOW < self.due.note(NOW) {
            self.marks.set(0);
            self.wake();
        }
    }

    /// Models `SlotWaker::wake_by`: sets the alarm and, if necessary, wakes the thread that serves
    /// as the runner.
    fn wake(&self) {
        if self.alarm.set(NOW) {
            self.beds[usize::from(self.post.holder())].notify();
        }
    }

    /// Models `OwnWaker::visit_by`: the runner requests a visit from itself and needs no wake-up,
    /// because it is awake.
    pub(crate) fn note(&self) {
        self.due.note(NOW);
    }

    /// Counts finished pieces of work. The thread that finishes the last piece wakes all threads.
    fn did(&self, count: u32) {
        if count > 0 && self.done.fetch_add(count, Relaxed) + count == self.all {
            self.beds.iter().for_each(Notify::notify);
        }
    }

    /// Models `Port::run` for a port without a quota whose device accepts every packet: the owner
    /// sends all packets and does the jobs.
    pub(crate) fn run(
        &self,
        mut owner: Owner<'_, u32>,
        mut fresh: PacketList,
        visit_now: impl Fn(),
    ) {
        loop {
            fresh.append(&mut owner.take());
            self.did(std::mem::take(&mut *owner) + std::mem::take(&mut fresh).len());
            if self.is_wanted() {
                self.take_requests();
            }
            if self.is_wanted() {
                visit_now();
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

    /// Models `Port::take_requests`: the owner does the jobs, unless another thread holds their
    /// lock, for which an owner never waits.
    fn take_requests(&self) {
        if let Ok(mut jobs) = self.jobs.try_lock() {
            self.did(std::mem::take(&mut *jobs));
            self.wants.fetch_and(!JOBS, Relaxed);
        }
    }

    /// Models `Port::with` and `Port::attend`: submits a job, and does it if this thread can own
    /// the port.
    pub(crate) fn with(&self) {
        *self.jobs.lock().unwrap() += 1;
        self.wants.fetch_or(JOBS, Relaxed);
        let Some(owner) = self.port.own() else { return self.visit_now() };
        let was_busy = owner.was_busy();
        if self.is_wanted() {
            self.take_requests();
        }
        if self.is_wanted() || *owner > 0 || owner.waiting() > 0 {
            self.visit_now();
        }
        if was_busy {
            owner.leave_busy();
        } else if let Err(owner) = owner.leave_idle() {
            self.visit_now();
            owner.leave_busy();
        }
    }

    /// Models a sender that becomes the owner but cannot send now: it leaves the packet in the port
    /// and the port busy.
    pub(crate) fn send_later(&self) {
        match self.port.push(packet()) {
            Ok(Pushed::Staged { .. }) => {}
            Ok(Pushed::Owner { mut owner, fresh }) => {
                *owner += fresh.len();
                self.visit_now();
                owner.leave_busy();
            }
            Err(_) => panic!("the model stays below the cap"),
        }
    }

    /// Models a sender that becomes the owner and sends.
    fn send(&self) {
        match self.port.push(packet()) {
            Ok(Pushed::Staged { .. }) => {}
            Ok(Pushed::Owner { owner, fresh }) => self.run(owner, fresh, || self.visit_now()),
            Err(_) => panic!("the model stays below the cap"),
        }
    }

    /// Models `Port::visit`. If another thread owns the port, requests another visit.
    pub(crate) fn work(&self, visit_now: impl Fn()) {
        match self.port.own() {
            Some(owner) => self.run(owner, PacketList::new(), visit_now),
            None => visit_now(),
        }
    }

    fn visit(&self, visit_now: impl Fn()) {
        self.work(visit_now);
        self.grant();
    }

    /// Models `Slot::want_room`: a sender that waits for room in the port sets the flag `wanted`
    /// and requests a visit.
    pub(crate) fn want_room(&self) {
        self.wanted.store(true, Release);
        self.visit_now();
    }

    /// Models `Slot::take_wish` for a port that has room: ends the wait of the sender, if one
    /// waits.
    fn grant(&self) {
        // The swap acquires: pairs with the release in `want_room`. The load is relaxed: the
        // request for the visit orders it after the store in `want_room`.
        if self.wanted.load(Relaxed) && self.wanted.swap(false, Acquire) {
            self.did(1);
        }
    }

    /// Models the runner's `run` and `round`: the thread `me` serves as runner until all work is
    /// done.
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

    /// If a further visit to the port with the number `place` was requested while the runner
    /// visited this port, marks the port again, so that the runner looks at it in the next round.
    /// Returns the time of the requested visit, `NEVER` if there is none.
    fn look_again(&self, place: usize) -> u64 {
        let due = self.due.at();
        if due != NEVER {
            self.marks.set(place);
        }
        due
    }

    /// Sleeps until the next round. Returns false if all work is done.
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

    /// As the watch (the thread that supervises the runner), looks once whether the runner's thread
    /// is in a call of a device. If so, tries to take over the role of the runner (the duty to make
    /// visits), and serves as the runner. Returns whether it took over the role.
    pub(crate) fn watch(&self) -> bool {
        let relieved = self.post.is_out().is_some_and(|out| self.post.relieve(out, WATCH));
        if relieved {
            self.serve(WATCH);
        }
        relieved
    }

    /// As the thread `HOME`, returns from a call of a device. Continues to serve as the runner,
    /// unless the watch has taken over this role (the duty to make visits) meanwhile. Returns
    /// whether the thread still has the role.
    pub(crate) fn back(&self) -> bool {
        let back = self.post.come_back(HOME, NOW);
        self.grant();
        if back {
            self.look_again(0);
            self.serve(HOME);
        } else if self.due.at() != NEVER {
            // This thread had requested another visit from itself, without a wake-up because it was
            // awake. Now another thread serves as the runner and must make this visit, so wake that
            // thread.
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

/// Two senders push one packet each. A sender that becomes the owner leaves its packet in the port,
/// requests a visit from the runner and leaves the port busy; otherwise the sender only stages its
/// packet. The runner sends both packets.
///
/// Must fail with each of these mutants: intake-leave-busy-empty, intake-leave-idle-unchecked,
/// mark-set-release, mark-clear-acquire.
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

/// Another runner may answer the request for a visit before the port's own runner does. The other
/// runner then sends the port's packets or, if another thread owns the port, requests a new visit
/// from the port's own runner. All packets are sent.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-rise-acquire,
/// intake-leave-idle-release, intake-take-acquire.
#[test]
fn another_runner_comes_by() {
    check(2, || {
        let world = World::new(2);
        let (theirs, others) = (world.clone(), world.clone());
        let runner = spawn(move || theirs.serve(HOME));
        let other = spawn(move || {
            // The other runner does not clear the port's mark (the bit that says that a visit is
            // requested), because only the port's own runner clears marks.
            if others.marks.iter().count() > 0 && others.due.at() <= NOW && others.due.take(NOW) {
                others.visit(|| others.visit_now());
            }
        });
        world.send_later();
        world.send_later();
        join([runner, other]);
        world.at_rest();
    });
}

/// A job arrives while a sender sends. The job is done, by the sender, by the runner or by the
/// thread that submitted it.
///
/// Must fail with each of these mutants: intake-own-acquire, intake-leave-busy-empty,
/// intake-leave-idle-unchecked, mark-clear-acquire.
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
