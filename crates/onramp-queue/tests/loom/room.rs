//! Models of a full device that gets room again: the owner of its port offers the packets again.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::{self, Thread};
use onramp_queue::{Alarm, Due, NEVER, Room};

use crate::{check, join, spawn};

/// A device that is full until another thread makes room, with the port's notes for its runner.
struct Full {
    is_full: AtomicBool,
    room: Room,
    due: Due,
    alarm: Alarm,
}

impl Full {
    fn new() -> Arc<Self> {
        let (room, due, alarm) = (Room::default(), Due::default(), Alarm::default());
        Arc::new(Self { is_full: AtomicBool::new(true), room, due, alarm })
    }

    /// Makes room and says so, as the thread that empties the device does. Returns true if the
    /// runner is to be asked for a visit.
    fn empty(&self) -> bool {
        // Relaxed: only `room` orders this write. A device's own lock would hide a missing
        // ordering.
        self.is_full.store(false, Relaxed);
        self.room.announce()
    }

    fn ask(&self, runner: &Thread) {
        if 0 < self.due.note(0) && self.alarm.set(0) {
            runner.unpark();
        }
    }

    /// Offers a packet to the device. Returns true if the device took it.
    fn offer(&self) -> bool {
        let taken = !self.is_full.load(Relaxed);
        if !taken && self.room.want() {
            self.due.note(0);
        }
        taken
    }
}

/// A runner finds the device full and sleeps without a timer, while another thread makes room. The
/// runner comes again. If the announcement is lost, it sleeps for ever, which the checker reports
/// as a deadlock.
///
/// Must fail with each of these mutants: room-announce-release, room-want-acquire, room-want-deaf.
#[test]
fn the_packets_are_offered_again() {
    check(3, || {
        let full = Full::new();
        let theirs = full.clone();
        let runner = spawn(move || {
            let mut waits = false;
            theirs.due.note(0);
            loop {
                theirs.alarm.rise();
                if theirs.due.take(0) && (!waits || theirs.room.take()) {
                    if theirs.offer() {
                        return;
                    }
                    waits = theirs.due.at() == NEVER;
                }
                if theirs.alarm.rest(theirs.due.at()) == NEVER {
                    thread::park();
                }
            }
        });
        if full.empty() {
            full.ask(runner.thread());
        }
        join([runner]);
    });
}

/// A sender becomes the owner of a port whose device was full, for another reason than that there
/// is room. If it finds that room was announced, the device has room.
///
/// Must fail with each of these mutants: room-take-acquire.
#[test]
fn an_owner_that_comes_by_sees_the_room() {
    check(3, || {
        let full = Full::new();
        assert!(!full.offer(), "nobody has emptied it yet");
        let theirs = full.clone();
        let other = spawn(move || assert!(theirs.empty(), "the owner has left packets"));
        if full.room.take() {
            assert!(full.offer(), "it said so");
        }
        join([other]);
    });
}

/// An owner names its runner, then finds the device full. The thread that makes room and is told
/// that an owner wants it also sees the runner.
///
/// Must fail with each of these mutants: room-announce-acquire, room-want-release.
#[test]
fn who_is_to_be_asked_is_known() {
    check(3, || {
        let (room, runner) = (Arc::new(Room::default()), Arc::new(AtomicBool::new(false)));
        let (their_room, their_runner) = (room.clone(), runner.clone());
        let owner = spawn(move || {
            // Relaxed: only `room` orders this write.
            their_runner.store(true, Relaxed);
            let _ = their_room.want();
        });
        assert!(!room.announce() || runner.load(Relaxed), "it is asked for a visit to nobody");
        join([owner]);
    });
}
