//! Tests of a runner that spins before the time at which it is to wake, with clocks whose steps the
//! test counts.

use super::*;

/// Time by which the clock of a test advances each time that it is read, nanoseconds.
const STEP: u64 = 1_000;

/// A clock that begins at [`NOW`], counts how often it is read, and does something each time.
struct Counted<F> {
    reads: Cell<u64>,
    at_read: F,
}

impl<F: Fn(u64)> Counted<F> {
    fn new(at_read: F) -> Self {
        Self { reads: Cell::new(0), at_read }
    }
}

impl<F: Fn(u64)> Clock for Counted<F> {
    fn now(&self) -> Instant {
        let reads = self.reads.get();
        self.reads.set(reads + 1);
        (self.at_read)(reads);
        NOW.after(reads * STEP)
    }
}

#[test]
fn a_runner_spins_until_it_is_to_wake() {
    let (alarm, clock) = (Alarm::default(), Counted::new(|_| {}));
    // The time is within the budget, so the thread never sleeps.
    sleep(&alarm, NOW.after(100 * STEP).0, 100 * STEP, &mut Sleeps::default(), &clock);
    assert_eq!(clock.reads.get(), 101, "the last of these was the time");
}

/// Without a budget, a runner reads the clock before and after it sleeps.
#[test]
fn a_runner_without_a_budget_only_sleeps() {
    let (alarm, clock) = (Alarm::default(), Counted::new(|_| {}));
    sleep(&alarm, NOW.after(STEP).0, 0, &mut Sleeps::default(), &clock);
    assert_eq!(clock.reads.get(), 2);
    alarm.rise();
    sleep(&alarm, 0, 100 * STEP, &mut Sleeps::default(), &clock);
    assert_eq!(clock.reads.get(), 3, "a time that is over is not waited for");
}

/// A runner whose sleeps end late ends them earlier, and spins for the rest.
#[test]
fn a_runner_spins_for_the_rest_of_its_head_start() {
    let mut head_start = HeadStart::default();
    for _ in 0..100 {
        let asleep = head_start.sleep_ns(NOW.after(100 * STEP), NOW);
        head_start.woke(NOW.after(asleep + 20 * STEP));
    }
    assert!((19 * STEP..21 * STEP).contains(&head_start.ns()), "{}", head_start.ns());
    let mut sleeps = Sleeps { head_start, ..Sleeps::default() };
    let (alarm, clock) = (Alarm::default(), Counted::new(|_| {}));
    sleep(&alarm, NOW.after(15 * STEP).0, 0, &mut sleeps, &clock);
    assert_eq!(clock.reads.get(), 16, "the thread never sleeps");
    alarm.rise();
    let clock = Counted::new(|_| {});
    sleep(&alarm, NOW.after(115 * STEP).0, 100 * STEP, &mut sleeps, &clock);
    assert_eq!(clock.reads.get(), 116, "the budget comes on top");
}

/// A request for an earlier visit ends the spin. A request for a later one does not.
#[test]
fn a_runner_that_spins_notices_an_earlier_wish() {
    let alarm = Alarm::default();
    let wake_at = NOW.after(100 * STEP).0;
    let clock = Counted::new(|read| match read {
        10 => assert!(!alarm.set(wake_at + 1), "that is later"),
        30 => assert!(alarm.set(wake_at - 1), "the thread that asks has to wake the runner"),
        _ => {}
    });
    sleep(&alarm, wake_at, 100 * STEP, &mut Sleeps::default(), &clock);
    assert_eq!(clock.reads.get(), 31);
    assert_eq!(alarm.at(), wake_at - 1, "the next round clears it");
}

/// A runner that another thread woke long before its time makes its round at once.
#[test]
fn a_runner_that_was_woken_does_not_spin() {
    let (alarm, clock) = (Alarm::default(), Counted::new(|_| {}));
    thread::current().unpark();
    // A second of real time, if the thread slept.
    sleep(&alarm, NOW.after(1_000_000_000).0, 100 * STEP, &mut Sleeps::default(), &clock);
    assert_eq!(clock.reads.get(), 2);
}

/// A runner that is stopped while it spins ends, and visits no port before its time.
#[test]
fn a_runner_that_is_stopped_while_it_spins_ends() {
    let ports = Ports::spinning(1_000_000 * STEP, "fq timer_slack 0");
    ports.rig.threads.seat(0, thread::current());
    ports.push(0, 1, NOW.after(100_000 * STEP));
    let clock = Counted::new(|read| {
        if read == 1_000 {
            ports.rig.runners[0].stop(&ports.rig.threads);
        }
    });
    run(&ports, Seat { me: 0, number: 0 }, &clock);
    assert_eq!(ports.sent(), [0]);
    assert!(clock.reads.get() < 1_010, "{}", clock.reads.get());
    assert_eq!(ports.rig.runners[0].stats.wakeups.get(), 1, "it spun all the time");
}

/// A runner that spins visits the port at the instant that was asked for, and not before.
#[test]
fn a_runner_that_spins_comes_at_the_instant() {
    let ports = Ports::spinning(1_000_000 * STEP, "fq timer_slack 0");
    ports.rig.threads.seat(0, thread::current());
    let due = 5_000;
    ports.push(0, 1, NOW.after(due * STEP));
    let sent_at = Cell::new(0);
    let clock = Counted::new(|read| {
        if sent_at.get() == 0 && ports.sent() == [1] {
            sent_at.set(read);
            ports.rig.runners[0].stop(&ports.rig.threads);
        }
    });
    run(&ports, Seat { me: 0, number: 0 }, &clock);
    assert!((due..due + 10).contains(&sent_at.get()), "{}", sent_at.get());
}
