//! Models of a runner's role: the duty to visit the runner's ports, which one thread holds at a
//! time. Another thread, the watch, takes over the role if its holder is blocked in a device. No
//! work is missed when the role changes hands.

use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::{Arc, Notify};
use onramp_queue::{Alarm, NEVER, PacketList, Post};

use crate::whole::{HOME, NOW, WATCH, World};
use crate::{check, join, spawn};

/// The holder of a runner's role calls a device. Meanwhile a sender leaves a packet in a port with
/// another device, and the watch (a thread that supervises the runner) takes over the role, unless
/// the holder has already come back. The thread that then has the role sends the packet.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-set-acquire, alarm-rise-acquire,
/// alarm-rise-release, alarm-rise-left-out, post-out-release, post-relieve-acquire,
/// post-back-unchecked.
#[test]
fn a_role_changes_hands_and_nothing_is_missed() {
    check(3, || {
        let world = World::new(1);
        world.rounds.store(1, Relaxed);
        let (theirs, others) = (world.clone(), world.clone());
        let holder = spawn(move || {
            theirs.rounds.store(2, Relaxed);
            theirs.post.go_out(HOME, NOW);
            let back = theirs.post.come_back(HOME, NOW);
            if back {
                theirs.serve(HOME);
            }
            back
        });
        let watch = spawn(move || {
            let relieved = others.watch();
            if relieved {
                assert!(others.rounds.load(Relaxed) > 2, "it counts on");
            }
            relieved
        });
        world.send_later();
        let (back, relieved) = (holder.join().unwrap(), watch.join().unwrap());
        assert!(back ^ relieved, "one of them has the role");
        world.at_rest();
    });
}

/// The holder of the role is in a call of a device, and then requests another visit of that
/// device's port, because a packet is left. The watch may have taken over the role meanwhile. The
/// thread that then has the role makes the visit.
///
/// Must fail with each of these mutants: post-back-unchecked, mark-set-release, mark-clear-acquire.
#[test]
fn a_role_is_lost_and_a_note_passed_on() {
    check(3, || {
        let world = World::new(1);
        let theirs = world.clone();
        let watch = spawn(move || theirs.watch());
        world.visit_now();
        world.alarm.rise();
        world.marks.clear(0);
        assert!(world.due.take(NOW), "it is due");
        world.post.go_out(HOME, NOW);
        let mut owner = world.port.own().expect("nobody else wants it");
        *owner += 1;
        world.note();
        owner.leave_busy();
        let back = world.back();
        assert!(back ^ watch.join().unwrap(), "one of them has the role");
        world.at_rest();
    });
}

/// A job arrives for a port while a device call for this port blocks the holder of the role. The
/// job is done by the holder or by the watch, whichever has the role then.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-set-acquire, alarm-rise-acquire,
/// alarm-rise-release, alarm-rise-left-out, due-note-release, due-take-acquire,
/// post-back-unchecked.
#[test]
fn a_job_waits_for_a_device() {
    check(3, || {
        let world = World::new(1);
        let (theirs, others) = (world.clone(), world.clone());
        let owner = world.port.own().expect("nobody else wants it");
        world.post.go_out(HOME, NOW);
        let watch = spawn(move || theirs.watch());
        let job = spawn(move || others.with());
        world.run(owner, PacketList::new(), || world.note());
        let back = world.back();
        job.join().unwrap();
        assert!(back ^ watch.join().unwrap(), "one of them has the role");
        world.at_rest();
    });
}

/// The holder of a runner's role calls the device of a port. Before or during the call, a sender
/// that waits for room in this port requests a visit, and the watch (a thread that supervises the
/// runner) may take over the role. The thread that then has the role ends the sender's wait.
///
/// Must fail with each of these mutants: post-back-unchecked, alarm-set-acquire,
/// alarm-rise-release, due-note-release, due-take-acquire.
#[test]
fn a_wish_is_heard() {
    check(3, || {
        let world = World::new(1);
        let (theirs, others) = (world.clone(), world.clone());
        world.visit_now();
        let watch = spawn(move || theirs.watch());
        let sender = spawn(move || others.want_room());
        world.alarm.rise();
        world.marks.clear(0);
        assert!(world.due.take(NOW), "it is due");
        world.post.go_out(HOME, NOW);
        world.work(|| world.note());
        let back = world.back();
        sender.join().unwrap();
        assert!(back ^ watch.join().unwrap(), "one of them has the role");
        world.at_rest();
    });
}

/// The watch (the thread that supervises runners) hands its role to an idle thread, while a runner
/// calls a device that may block. The new watch finds that the runner is in that call.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-set-acquire, alarm-rise-acquire,
/// alarm-rise-release, alarm-rise-left-out.
#[test]
fn a_spare_thread_watches() {
    check(3, || watch_is_handed_over(true));
}

/// The watch (the thread that supervises runners) hands its role to a new thread, which begins to
/// watch before it has the role. Meanwhile a runner calls a device that may block. The new watch
/// finds that the runner is in that call.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-set-acquire, alarm-rise-acquire,
/// alarm-rise-release, alarm-rise-left-out.
#[test]
fn a_new_thread_watches() {
    check(3, || watch_is_handed_over(false));
}

fn watch_is_handed_over(waits_for_role: bool) {
    const OLD: u16 = 0;
    const NEW: u16 = 1;
    const RUNNER: u16 = 7;
    let (runner, watch) = (Arc::new(Post::new(RUNNER)), Arc::new(Post::new(OLD)));
    let alarm = Arc::new(Alarm::default());
    let beds = Arc::new([Notify::new(), Notify::new()]);
    let new = spawn({
        let (runner, watch) = (runner.clone(), watch.clone());
        let (alarm, beds) = (alarm.clone(), beds.clone());
        move || {
            while waits_for_role && watch.holder() != NEW {
                beds[usize::from(NEW)].wait();
            }
            loop {
                alarm.rise();
                if let Some(out) = runner.is_out() {
                    assert!(runner.relieve(out, NEW), "it stays out");
                    return;
                }
                if alarm.rest(NEVER) == NEVER {
                    beds[usize::from(NEW)].wait();
                }
            }
        }
    });
    let old = spawn({
        let (watch, beds) = (watch.clone(), beds.clone());
        move || {
            // From now on, this thread has the role of a runner and not of the watch.
            watch.hand_over(NEW);
            beds[usize::from(NEW)].notify();
        }
    });
    runner.go_out(RUNNER, NOW);
    if alarm.set(NOW) {
        beds[usize::from(watch.holder())].notify();
    }
    join([new, old]);
}

/// The link stops a runner while its role changes hands. The thread that has the role then notices
/// the stop.
///
/// Must fail with each of these mutants: alarm-set-release, alarm-set-acquire, alarm-rise-acquire,
/// alarm-rise-release, alarm-rise-left-out, post-back-unchecked.
#[test]
fn a_role_that_changes_hands_is_stopped() {
    check(3, || {
        let world = World::new(1);
        let (theirs, others) = (world.clone(), world.clone());
        let stop = |world: &World, me: u16| {
            // Models the runner's `run` function without any port to visit.
            loop {
                world.alarm.rise();
                if world.done.load(Relaxed) == 1 {
                    return;
                }
                if world.alarm.rest(NEVER) == NEVER {
                    world.beds[usize::from(me)].wait();
                }
            }
        };
        let holder = spawn(move || {
            theirs.post.go_out(HOME, NOW);
            if theirs.post.come_back(HOME, NOW) {
                stop(&theirs, HOME);
            }
        });
        let watch = spawn(move || {
            if others.post.is_out().is_some_and(|out| others.post.relieve(out, WATCH)) {
                stop(&others, WATCH);
            }
        });
        // Models `Runner::stop` and `Runner::call`. Relaxed: the alarm orders the store.
        world.done.store(1, Relaxed);
        world.alarm.set(0);
        world.beds[usize::from(world.post.holder())].notify();
        join([holder, watch]);
    });
}
