//! Models of threads that request visits and of a thread that sleeps and makes the visits: no
//! wake-up is lost.

use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::{Arc, Mutex};
use loom::thread::{self, Thread};
use onramp_queue::{Alarm, Due, Marks, NEVER, Turn};

use crate::{check, join, spawn};

/// Two places with work to do, and the thread that visits them.
struct Rounds {
    todo: [AtomicBool; 2],
    due: [Due; 2],
    alarm: Alarm,
}

impl Rounds {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            todo: [AtomicBool::new(false), AtomicBool::new(false)],
            due: [Due::default(), Due::default()],
            alarm: Alarm::default(),
        })
    }

    /// Leaves work at a place, to be done at the time `at`, and wakes the thread that makes visits
    /// if necessary.
    fn ask(&self, place: usize, at: u64, sleeper: &Thread) {
        // Relaxed: the note of the due time orders this write.
        self.todo[place].store(true, Relaxed);
        if at < self.due[place].note(at) && self.alarm.set(at) {
            sleeper.unpark();
        }
    }

    /// Makes one round of visits at `now`. Returns how many pieces of work were done, and when to
    /// make the next round.
    fn round(&self, now: u64) -> (u32, u64) {
        self.alarm.rise();
        self.look(now)
    }

    fn look(&self, now: u64) -> (u32, u64) {
        let (mut done, mut next) = (0, NEVER);
        for (due, todo) in self.due.iter().zip(&self.todo) {
            if due.take(now) {
                // Read `todo` (whether a place has work) by a load, which may return an old value.
                // A swap would always return the newest, and the model would not notice a missing
                // ordering.
                done += u32::from(todo.load(Relaxed));
                todo.store(false, Relaxed);
            }
            next = next.min(due.at());
        }
        (done, next)
    }
}

/// Two threads request visits for the same time. The thread that makes visits does both pieces of
/// work. If a wake-up is lost, it sleeps for ever, which the checker reports as a deadlock.
///
/// Must fail with each of these mutants: due-note-release, due-take-acquire, alarm-rise-left-out.
#[test]
fn the_sleeper_comes() {
    check(3, || {
        let rounds = Rounds::new();
        let theirs = rounds.clone();
        let sleeper = spawn(move || {
            let mut done = 0;
            loop {
                let (did, next) = theirs.round(5);
                done += did;
                if done == 2 {
                    return;
                }
                if theirs.alarm.rest(next) == NEVER {
                    thread::park();
                }
            }
        });
        let (theirs, thread) = (rounds.clone(), sleeper.thread().clone());
        let other = spawn(move || theirs.ask(0, 5, &thread));
        rounds.ask(1, 5, sleeper.thread());
        join([sleeper, other]);
    });
}

/// A thread goes to sleep until an early time, for which a visit was requested. Another thread then
/// requests a visit at a later time. The round of visits at the early time must find the later
/// request, or the requesting thread must wake the visiting thread.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-rise-acquire.
#[test]
fn a_later_time_is_not_forgotten() {
    check(3, || {
        let rounds = Rounds::new();
        let sleeper = thread::current();
        let woken = Arc::new(AtomicBool::new(false));
        rounds.ask(0, 5, &sleeper);
        // The visiting thread sleeps until time 5.
        assert_eq!(rounds.alarm.rest(5), 5);
        let late = {
            let (rounds, woken) = (rounds.clone(), woken.clone());
            spawn(move || {
                rounds.todo[1].store(true, Relaxed);
                assert_eq!(rounds.due[1].note(9), NEVER, "the first");
                if rounds.alarm.set(9) {
                    woken.store(true, SeqCst);
                }
            })
        };
        let (done, next) = rounds.round(5);
        assert_eq!(done, 1, "the early one");
        if rounds.alarm.rest(next) == NEVER {
            late.join().unwrap();
            assert!(woken.load(SeqCst), "it sleeps for ever, and work is left");
        } else {
            assert_eq!(rounds.alarm.at(), 9);
            late.join().unwrap();
        }
    });
}

/// A program waits for a timer in place of a sleeping thread. Another thread requests a visit, and
/// sets the timer for now if necessary, while the program ends a round by setting the timer. Either
/// the round has done the work, or the timer is due in time.
///
/// Must fail with each of these mutants: alarm-rest-by-unchecked.
#[test]
fn a_ring_outlives_the_end_of_a_round() {
    check(3, || {
        let rounds = Rounds::new();
        let timer = Arc::new(Mutex::new(NEVER));
        let (theirs, bell) = (rounds.clone(), timer.clone());
        let other = spawn(move || {
            // Relaxed: the note of the due time orders this write.
            theirs.todo[0].store(true, Relaxed);
            if 5 < theirs.due[0].note(5) && theirs.alarm.set(5) {
                *bell.lock().unwrap() = 0;
            }
        });
        let (done, next) = rounds.round(5);
        rounds.alarm.rest_by(next, |at| *timer.lock().unwrap() = at);
        other.join().unwrap();
        assert!(done == 1 || *timer.lock().unwrap() <= 5, "the program waits for ever");
    });
}

/// Two threads of a program make rounds in turn. Another request comes, and sets the timer, while
/// one thread ends its round; the second thread is woken for it, which uses the setting up, but
/// finds the turn taken. Either one of them has done the work, or the timer is due again.
///
/// Must fail with each of these mutants: turn-take-unfenced, turn-give-unfenced.
#[test]
fn a_ring_outlives_a_turn() {
    check(3, || {
        let rounds = Rounds::new();
        let timer = Arc::new(Mutex::new(NEVER));
        let turn = Arc::new(Turn::default());
        let make_round = |rounds: &Rounds, turn: &Turn, timer: &Mutex<u64>| {
            let set_timer = |at| *timer.lock().unwrap() = at;
            let Some(mine) = turn.take() else { return 0 };
            let (done, next) = rounds.round(5);
            let next = rounds.alarm.rest_by(next, set_timer);
            drop(mine);
            if rounds.alarm.at() < next || next <= 5 {
                set_timer(0);
            }
            done
        };
        let other = spawn({
            let (rounds, timer, turn) = (rounds.clone(), timer.clone(), turn.clone());
            move || {
                // Relaxed: the note of the due time orders this write.
                rounds.todo[0].store(true, Relaxed);
                if 5 < rounds.due[0].note(5) && rounds.alarm.set(5) {
                    *timer.lock().unwrap() = 0;
                }
                let is_due = std::mem::replace(&mut *timer.lock().unwrap(), NEVER) <= 5;
                if is_due { make_round(&rounds, &turn, &timer) } else { 0 }
            }
        });
        let done = make_round(&rounds, &turn, &timer);
        let done = done + other.join().unwrap();
        assert!(done == 1 || *timer.lock().unwrap() <= 5, "the program waits for ever");
    });
}

/// Two threads visit the same place: exactly one of them takes the note (the request for a visit).
#[test]
fn one_of_two_takes_a_note() {
    check(3, || {
        let due = Arc::new(Due::default());
        assert_eq!(due.note(3), NEVER);
        let other = due.clone();
        let thread = spawn(move || other.take(5));
        let mine = due.take(5);
        let theirs = thread.join().unwrap();
        assert!(mine ^ theirs, "one of them");
        assert_eq!(due.at(), NEVER);
    });
}

/// A complete runner (the thread that makes visits) is told to stop while another thread requests a
/// visit. The runner ends, whichever of the two wakes it, and does not sleep although it was told
/// to stop.
#[test]
fn it_stops_and_misses_nothing() {
    check(3, || {
        let rounds = Rounds::new();
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stops) = (rounds.clone(), stop.clone());
        let runner = spawn(move || {
            let mut done = 0;
            while !stops.load(Acquire) {
                theirs.alarm.rise();
                if stops.load(Acquire) {
                    break;
                }
                let (did, next) = theirs.look(5);
                done += did;
                if theirs.alarm.rest(next) == NEVER {
                    thread::park();
                } else {
                    thread::yield_now();
                }
            }
            done
        });
        let (theirs, thread) = (rounds.clone(), runner.thread().clone());
        let other = spawn(move || theirs.ask(0, 5, &thread));
        stop.store(true, Release);
        rounds.alarm.set(0);
        runner.thread().unpark();
        join([other]);
        assert!(runner.join().unwrap() <= 1);
    });
}

/// Two threads make visits: the home thread, and a stand-in that helps when a visit is overdue. The
/// stand-in takes the request for a visit, but finds the place owned, and so requests another visit
/// from the home thread, which must still do the work.
#[test]
fn a_stand_in_gives_back_what_it_took() {
    check(3, || {
        let rounds = Rounds::new();
        rounds.todo[0].store(true, Relaxed);
        assert_eq!(rounds.due[0].note(1), NEVER);
        rounds.alarm.set(1);
        let theirs = rounds.clone();
        let home = spawn(move || {
            loop {
                let (did, next) = theirs.round(5);
                if did > 0 {
                    return;
                }
                if theirs.alarm.rest(next) == NEVER {
                    thread::park();
                }
            }
        });
        if rounds.due[0].take(5) {
            // A visit of a port that has an owner does nothing. The stand-in then requests another
            // visit.
            let before = rounds.due[0].note(4);
            if 4 < before && rounds.alarm.set(4) {
                home.thread().unpark();
            }
        }
        join([home]);
    });
}

/// Two threads request visits, and each round looks only at marked places (places for which a visit
/// was requested). Both pieces of work are done. The marks provide the ordering that the due times
/// provide in the other models.
///
/// Must fail with each of these mutants: mark-set-release, mark-clear-acquire.
#[test]
fn a_marked_place_is_seen_to() {
    check(3, || {
        let rounds = Rounds::new();
        let marks = Arc::new(Marks::new(2));
        let ask = |rounds: &Rounds, marks: &Marks, place: usize, sleeper: &Thread| {
            // Relaxed: the note of the due time orders this write.
            rounds.todo[place].store(true, Relaxed);
            if 5 < rounds.due[place].note(5) {
                marks.set(place);
                if rounds.alarm.set(5) {
                    sleeper.unpark();
                }
            }
        };
        let (theirs, their_marks) = (rounds.clone(), marks.clone());
        let sleeper = spawn(move || {
            let mut done = 0;
            loop {
                theirs.alarm.rise();
                let mut next = NEVER;
                for place in their_marks.iter() {
                    their_marks.clear(place);
                    let due = &theirs.due[place];
                    if due.take(5) {
                        done += u32::from(theirs.todo[place].load(Relaxed));
                        theirs.todo[place].store(false, Relaxed);
                    }
                    if due.at() != NEVER {
                        their_marks.set(place);
                        next = next.min(due.at());
                    }
                }
                if done == 2 {
                    return;
                }
                if theirs.alarm.rest(next) == NEVER {
                    thread::park();
                }
            }
        });
        let (theirs, their_marks, thread) =
            (rounds.clone(), marks.clone(), sleeper.thread().clone());
        let other = spawn(move || ask(&theirs, &their_marks, 0, &thread));
        ask(&rounds, &marks, 1, sleeper.thread());
        join([sleeper, other]);
    });
}
