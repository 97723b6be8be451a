//! What a port tells its runner: which visits it requests, and when it asks the runner to check for
//! a visit that is overdue.

use std::cell::{Cell, RefCell};

use onramp_core::{Instant, Mode, Port, PortWaker, QUOTA_NS, Ran};
use onramp_queue::{DropReason, Full};

use crate::busy::make_busy;
use crate::world::{Script, World};

/// A thread that sends asks the runner to check whether a visit is overdue. A visit of the runner
/// itself does not ask for that.
#[test]
fn who_sends_reminds_the_keeper() {
    let mut world = World::new("pfifo", 1_000);
    let _ = world.push(1);
    assert_eq!(world.waker.checked(), Some(world.now));
    world.pass(7);
    let _ = world.help();
    assert_eq!(world.waker.checked(), Some(world.now));
    world.pass(7);
    let _ = world.visit();
    assert_eq!(world.waker.checked(), None);
    let _ = make_busy(&mut world);
    let _ = world.waker.checked();
    assert_eq!(world.push(1), None);
    assert_eq!(world.waker.checked(), None, "who only stages has no time for that");
}

/// In dedicated mode, a thread that stages packets wakes the runner if no packets were waiting.
/// Otherwise the thread asks the runner to check whether its visit is overdue.
#[test]
fn who_stages_for_a_dedicated_keeper_calls_or_reminds_it() {
    let mut world = World::with("pfifo", 1_000, Mode::Dedicated, None);
    for round in 0..3 {
        assert_eq!(world.push(1), None);
        assert_eq!((world.waker.due(), world.waker.checked()), (Some(world.now), None));
        let called = world.now;
        for _ in 0..3 {
            world.pass(9);
            assert_eq!(world.push(1), None, "{round}");
            assert_eq!((world.waker.due(), world.waker.checked()), (Some(called), Some(world.now)));
            assert_eq!(world.help(), None);
            assert_eq!(world.waker.checked(), Some(world.now));
        }
        assert_eq!(world.visit(), Ran { done: 4, again: false });
        assert_eq!((world.waker.due(), world.waker.checked()), (None, None));
    }
    assert_eq!(world.stats().helped, 0);
}

/// In dedicated mode, packets that arrive while the runner visits are sent in its next visit, which
/// follows at once.
#[test]
fn what_comes_during_a_dedicated_visit_is_not_forgotten() {
    let mut world = World::with("pfifo", 1_000, Mode::Dedicated, None);
    let _ = world.push(1);
    let late = world.packets(1);
    world.wire().comes = Some(late);
    assert_eq!(world.visit(), Ran { done: 1, again: false });
    assert_eq!(world.waker.due(), Some(world.now));
    assert_eq!(world.visit(), Ran { done: 1, again: false });
    assert_eq!(world.waker.due(), None);
}

/// In dedicated mode, no pushing thread ever becomes an owner, however many packets wait.
#[test]
fn a_dedicated_port_has_no_other_owner() {
    let mut world = World::with("pfifo limit 100000", u16::MAX, Mode::Dedicated, None);
    assert_eq!(world.push(65_533), None);
    assert!(!world.port.is_full());
    assert_eq!(world.push(1), None);
    assert!(world.port.is_full(), "one less than a count can tell");
    let list = world.packets(1);
    assert!(matches!(world.port.xmit(list, world.now, &world.waker), Err(Full(_))));
    assert_eq!(world.stats().runs, 0);
}

/// A port whose device is full asks the runner to visit at the device's retry time. When the device
/// has taken everything, the port asks for no visit.
#[test]
fn a_device_that_took_all_calls_nobody() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().room = Some(0);
    let _ = world.push(3);
    world.wire().room = None;
    assert_eq!(world.waker.due(), Some(world.now.after(50_000)));
    assert_eq!(world.next_visit(), Ran { done: 3, again: false });
    assert_eq!(world.waker.due(), None);
    world.check();
}

/// A device may take the whole burst and still give a retry time, before which the port must not
/// call it.
#[test]
fn a_device_that_rests_is_asked_when_it_said() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().rests = true;
    assert_eq!(world.push(3), Some(Ran { done: 3, again: false }));
    let then = world.now.after(50_000);
    assert_eq!(world.waker.due(), Some(then));
    world.wire().rests = false;
    world.pass(49_999);
    assert_eq!(world.push(2), Some(Ran { done: 0, again: false }));
    assert_eq!((world.stats().held, world.stats().bursts), (2, 1));
    assert_eq!(world.waker.due(), Some(then));
    assert_eq!(world.next_visit(), Ran { done: 2, again: false });
    assert_eq!(world.now, then);
    world.check();
}

/// If a run has taken too long, its owner sends no more, but still finds out when the remaining
/// packets may leave. If that is later, the runner is asked to visit then, and not at once.
#[test]
fn an_owner_that_is_late_still_knows_when_the_rest_may_go() {
    let line = "fq maxrate 800kbit initial_quantum 0 quantum 256 timer_slack 0";
    let mut world = World::new(line, 99);
    world.waker.takes(QUOTA_NS);
    // The third packet of 100 bytes uses up `fq`'s quantum of 256 bytes.
    assert_eq!(world.push(6), Some(Ran { done: 3, again: false }));
    assert!(world.waker.due().is_some_and(|due| due > world.now), "{:?}", world.waker.due());
}

/// The time of a new port may be any time, even zero.
#[test]
fn time_may_begin_at_nothing() {
    let mut world = World::new("pfifo", 100);
    world.now = Instant(0);
    assert_eq!(world.push(2), Some(Ran { done: 2, again: false }));
    assert_eq!(world.wire().sent, [(0, Instant(0)), (1, Instant(0))]);
    assert_eq!(world.waker.due(), None);
    world.check();
}

/// A closed port calls its device no more: the packets that it holds are dropped before the device
/// could take them.
#[test]
fn a_close_asks_the_device_for_nothing() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().room = Some(0);
    let _ = world.push(9);
    world.wire().room = None;
    world.pass(1_000_000);
    let ran = world.port.close(world.now, &world.waker).expect("nobody is inside");
    assert_eq!(ran, Ran { done: 9, again: false });
    assert_eq!((world.stats().bursts, world.stats().sent), (1, 0));
    assert_eq!(world.dropped(DropReason::Purged), 9);
}

/// A runner that implements only the required method of the trait `PortWaker`.
struct Plain;

impl PortWaker for Plain {
    fn visit_by(&self, _at: Instant) {}
}

/// The default implementation of `PortWaker::elapsed` needs no clock, and always returns 0.
#[test]
fn without_a_clock_no_time_passes() {
    assert_eq!([Instant(0), Instant(5), Instant::MAX].map(|now| Plain.elapsed(now)), [0; 3]);
}

/// A runner that records each report of a port's death, and whether other threads could see the
/// death at that time.
struct Undertaker<'a> {
    port: &'a Port<Script>,
    learned: RefCell<Vec<(&'static str, bool)>>,
    kept: Cell<u32>,
}

impl PortWaker for Undertaker<'_> {
    fn visit_by(&self, _at: Instant) {
        self.kept.set(self.kept.get() + 1);
    }

    fn dies(&self) {
        self.learned.borrow_mut().push(("dies", self.port.death().is_some()));
    }

    fn died(&self) {
        self.learned.borrow_mut().push(("died", self.port.death().is_some()));
    }
}

/// A port that dies tells its runner twice: before any other thread can see the death, and when the
/// reason can be read. A later panic is not another death.
#[test]
fn a_keeper_learns_of_a_death_before_and_after_it_can_be_seen() {
    let mut world = World::new("pfifo", 100);
    world.wire().panics = true;
    let list = world.packets(3);
    let learned = RefCell::default();
    let waker = Undertaker { port: &world.port, learned, kept: Cell::new(0) };
    let ran = world.port.xmit(list, world.now, &waker).expect("there is room");
    assert_eq!(ran.map(|ran| ran.again), Some(false));
    assert_eq!(*waker.learned.borrow(), [("dies", false), ("died", true)]);
    assert_eq!((waker.kept.get(), world.dropped(DropReason::PortDead)), (0, 3));
}
