//! Runs senders, a port, its runner and credits together, under random schedules.
//!
//! Each loom model tries every interleaving of two or three threads, but in only one part of the
//! code. This test tries many schedules of all parts together. `cargo xtask shuttle` runs it. If a
//! packet is forgotten or a wake-up is lost, a thread sleeps for ever, which shuttle reports as a
//! deadlock. shuttle does not check memory orderings.
#![cfg(shuttle)]

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};

use onramp_core::Spec;
use onramp_core::{
    Change, Device, DeviceInfo, DeviceWaker, Edit, Instant, Job, Lease, Mode, Port, PortOptions,
    PortWaker, Setup, TICK_NS, Transmitted,
};
use onramp_queue::{
    Alarm, Armed, Bell, Credits, Due, Full, Gate, Mailbox, Marks, NEVER, PacketList, Pool,
    Undelivered,
};
use shuttle::sync::atomic::{AtomicBool, AtomicU64};
use shuttle::thread::{self, Thread};

const START: u64 = 1_000_000_000;
const SENDERS: u64 = 3;
const PACKETS: u64 = 4;
/// Number of jobs for the port's tree that an additional thread submits, one after another.
const JOBS: u64 = 3;
/// Number of threads that have to finish: the senders, and the thread that submits jobs.
const ACTORS: u64 = SENDERS + 1;

/// A device that takes two packets and then is full for a while, or, if it has a ring, until the
/// ring has been emptied. If `dies_with` is set, the device panics at the packet with this number,
/// counted from 1.
struct Narrow {
    info: DeviceInfo,
    full_until: u64,
    /// The number of packets in the ring.
    ring: Option<Arc<AtomicU64>>,
    dies_with: Option<u64>,
    taken: u64,
}

impl Device for Narrow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if let Some(ring) = &self.ring {
            while ring.load(SeqCst) < 2
                && let Some(packet) = burst.pop_front()
            {
                ring.fetch_add(1, SeqCst);
                done.push_back(packet);
            }
            // The port waits for ever, unless the device's waker is called.
            self.full_until = u64::MAX;
        } else if now.0 >= self.full_until {
            for packet in burst.by_ref().take(2) {
                self.taken += 1;
                assert_ne!(Some(self.taken), self.dies_with, "as asked for");
                done.push_back(packet);
            }
            self.full_until = now.0 + 5_000;
        }
        let retry_at = (!burst.is_empty()).then_some(Instant(self.full_until));
        Transmitted { calls: 1, messages: 1, retry_at }
    }
}

struct World {
    port: Port<Narrow>,
    due: Due,
    marks: Marks,
    alarm: Alarm,
    now: AtomicU64,
    finished: AtomicU64,
}

impl World {
    fn now(&self) -> Instant {
        Instant(self.now.load(SeqCst))
    }
}

/// How an owner that is not the runner asks the runner for visits.
struct Call<'a>(&'a World, &'a Thread);

impl PortWaker for Call<'_> {
    fn visit_by(&self, at: Instant) {
        if at.0 < self.0.due.note(at.0) {
            self.0.marks.set(0);
            if self.0.alarm.set(at.0) {
                self.1.unpark();
            }
        }
    }
}

/// The waker behind the device's handle: asks the runner for a visit.
#[derive(Default)]
struct RoomCall(OnceLock<(Weak<World>, Thread)>);

impl Wake for RoomCall {
    fn wake(self: Arc<Self>) {
        let (world, runner) = self.0.get().expect("set before anybody sends");
        let Some(world) = world.upgrade() else { return };
        Call(&world, runner).visit_by(world.now());
    }
}

/// Empties the device's ring until all threads have finished.
fn empty(world: &World, ring: &AtomicU64, waker: &DeviceWaker) {
    while world.finished.load(SeqCst) < ACTORS {
        if ring.swap(0, SeqCst) > 0 {
            waker.wake();
        }
        thread::yield_now();
    }
}

/// How the runner asks itself for visits, while it visits.
struct OwnWaker<'a>(&'a World);

impl PortWaker for OwnWaker<'_> {
    fn visit_by(&self, at: Instant) {
        self.0.due.note(at.0);
    }
}

/// The runner's loop, in virtual time: instead of sleeping until a time, it advances the clock to
/// that time.
fn keep(world: &World) {
    while world.finished.load(SeqCst) < ACTORS {
        world.alarm.rise();
        if world.finished.load(SeqCst) == ACTORS {
            return;
        }
        let mut next = NEVER;
        for place in world.marks.iter() {
            world.marks.clear(place);
            let now = world.now();
            if world.due.take(now.0) {
                match world.port.visit(now, &OwnWaker(world)) {
                    Some(ran) if ran.again => OwnWaker(world).visit_by(now),
                    Some(_) => {}
                    None => OwnWaker(world).visit_by(now.after(TICK_NS)),
                }
            }
            next = world.due.at();
            if next != NEVER {
                world.marks.set(place);
            }
        }
        match world.alarm.rest(next) {
            NEVER => thread::park(),
            then => {
                world.now.fetch_max(then, SeqCst);
                thread::yield_now();
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits until `need` packets have come home. Meanwhile, runs the port, as senders without credit
/// do.
fn wait(pool: &mut Pool, need: u32, world: &World, call: &Call<'_>, waker: &Waker) {
    while pool.returned() < need {
        if world.port.help(world.now(), call).is_some_and(|ran| ran.done > 0) {
            continue;
        }
        match pool.arm(waker, need) {
            Armed::Ready => break,
            Armed::Busy => thread::yield_now(),
            Armed::Armed => thread::park(),
        }
    }
}

fn send(world: &World, runner: &Thread) {
    let call = Call(world, runner);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut pool = Pool::new(Credits { packets: 2, bytes: 1_000 });
    let mut told = 0;
    for _ in 0..PACKETS {
        let packet = loop {
            told += pool.reclaim(|_| ());
            match pool.take(8) {
                Some(packet) => break packet,
                None => wait(&mut pool, 1, world, &call, &waker),
            }
        };
        let mut list = PacketList::from_iter([packet]);
        list.stamp(world.now().0, true);
        while let Err(Full(back)) = world.port.xmit(list, world.now(), &call) {
            list = back;
            if world.port.help(world.now(), &call).is_none() {
                thread::yield_now();
            }
        }
    }
    while pool.out() > 0 {
        let out = pool.out();
        wait(&mut pool, out, world, &call, &waker);
        told += pool.reclaim(|_| ());
    }
    assert_eq!(u64::from(told), PACKETS);
    world.finished.fetch_add(1, SeqCst);
    // All threads have finished. Wake the runner so that it ends, as `Runner::stop` does.
    world.alarm.set(0);
    runner.unpark();
}

/// A value inside a job. When it is dropped, it reports that the job has run or was dropped.
struct Told(Arc<AtomicU64>, Thread);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        self.1.unpark();
    }
}

/// Replaces the qdisc several times, one after another, and waits for each replacement. If a job is
/// forgotten, this thread sleeps for ever.
fn control(world: &World, runner: &Thread) {
    let call = Call(world, runner);
    let done = Arc::new(AtomicU64::new(0));
    for (count, qdisc) in (1..=JOBS).zip(["pfifo", "fq", "pfifo limit 9"]) {
        let told = Told(done.clone(), thread::current());
        let spec: Spec = qdisc.parse().expect("a qdisc");
        let job: Job = Box::new(move |root, cx| {
            root.succeed(spec.build(1_514), cx);
            drop(told);
        });
        world.port.with(job, world.now(), &call).expect("one at a time");
        while done.load(SeqCst) < count {
            thread::park();
        }
    }
    world.finished.fetch_add(1, SeqCst);
    world.alarm.set(0);
    runner.unpark();
}

fn run(qdisc: &str, mode: Mode, cap: u16, dies_with: Option<u64>, has_ring: bool) {
    let spec: Spec = qdisc.parse().expect("a qdisc");
    let info = DeviceInfo::new("narrow".to_owned(), 1_514);
    let ring = has_ring.then(|| Arc::new(AtomicU64::new(0)));
    let device = Narrow { info, full_until: 0, ring: ring.clone(), dies_with, taken: 0 };
    let call = Arc::<RoomCall>::default();
    let device_waker = DeviceWaker::new(call.clone().into());
    let options =
        PortOptions { mode, device_waker: Some(device_waker.clone()), ..PortOptions::default() };
    let world = Arc::new(World {
        port: Port::with_options(spec.build(1_514), device, cap, options),
        due: Due::default(),
        marks: Marks::new(1),
        alarm: Alarm::default(),
        now: AtomicU64::new(START),
        finished: AtomicU64::new(0),
    });
    let theirs = world.clone();
    let runner = thread::spawn(move || keep(&theirs));
    assert!(call.0.set((Arc::downgrade(&world), runner.thread().clone())).is_ok());
    let card = ring.map(|ring| {
        let theirs = world.clone();
        thread::spawn(move || empty(&theirs, &ring, &device_waker))
    });
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let (world, runner) = (world.clone(), runner.thread().clone());
            thread::spawn(move || send(&world, &runner))
        })
        .collect();
    let (theirs, their_runner) = (world.clone(), runner.thread().clone());
    let controller = thread::spawn(move || control(&theirs, &their_runner));
    for sender in senders {
        sender.join().expect("a sender");
    }
    controller.join().expect("who wants something done");
    runner.join().expect("the runner");
    card.into_iter().for_each(|card| card.join().expect("who empties the ring"));
    let stats = world.port.snapshot();
    let dropped: u64 = stats.dropped.iter().map(|(_, n)| n).sum();
    assert_eq!(stats.sent + dropped, SENDERS * PACKETS, "{stats:?}");
    assert_eq!(stats.held, 0);
    assert_eq!(world.port.death().is_some(), dies_with.is_some());
}

/// Runs the test with two kinds of schedules: random ones, and those of shuttle's PCT scheduler,
/// which switches between threads only rarely, at random places.
fn check(qdisc: &'static str, mode: Mode, cap: u16, dies_with: Option<u64>) {
    let runs = std::env::var("ONRAMP_SHUTTLE_RUNS").map_or(2_000, |n| n.parse().expect("a number"));
    shuttle::check_random(move || run(qdisc, mode, cap, dies_with, false), runs);
    shuttle::check_pct(move || run(qdisc, mode, cap, dies_with, false), runs, 3);
}

/// The device is full until another thread empties its ring and calls the device's waker. If a call
/// is lost, the port waits for ever.
#[test]
fn a_device_that_says_that_it_has_room() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        shuttle::check_random(move || run("pfifo", mode, 100, None, true), 2_000);
        shuttle::check_pct(move || run("pfifo", mode, 100, None, true), 2_000, 3);
    }
}

#[test]
fn hybrid() {
    check("pfifo", Mode::Hybrid, 3, None);
    check("fq maxrate 80mbit", Mode::Hybrid, 100, None);
}

#[test]
fn inline() {
    check("pfifo", Mode::Inline, 3, None);
    check("fq maxrate 80mbit", Mode::Inline, 100, None);
}

#[test]
fn dedicated() {
    check("pfifo", Mode::Dedicated, 3, None);
    check("fq maxrate 80mbit", Mode::Dedicated, 100, None);
}

/// The device panics at the fifth packet, so the port dies. Its senders learn of the death, and
/// none hangs.
#[test]
fn a_death() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        check("pfifo", mode, 100, Some(5));
    }
}

/// A device that puts every packet into a mailbox, where the packet stays. If `dies_with` is set,
/// the device panics at the packet with this number, counted from 1.
struct Post {
    info: DeviceInfo,
    mailbox: Mailbox,
    dies_with: Option<u64>,
    taken: u64,
}

impl Device for Post {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        for mut packet in burst.by_ref() {
            self.taken += 1;
            assert_ne!(Some(self.taken), self.dies_with, "as asked for");
            packet.drop_reason = None;
            match self.mailbox.post([packet].into_iter().collect()) {
                Ok(()) => {}
                Err(Undelivered::Full(mut back) | Undelivered::Closed(mut back)) => {
                    done.append(&mut back);
                }
            }
        }
        Transmitted::default()
    }
}

/// The parts of a link on which its senders wait: a port whose packets go to a mailbox, and a gate,
/// which tells senders whether the link is closed.
struct Wires {
    port: Port<Post>,
    gate: Gate,
    dead: AtomicBool,
    bells: Vec<Bell>,
}

/// A substitute for the runner that ignores requests for visits, because here no packet is held for
/// later.
struct Tell<'a>(&'a Wires);

impl PortWaker for Tell<'_> {
    fn visit_by(&self, _at: Instant) {}

    fn dies(&self) {
        self.0.gate.note_change();
    }

    fn died(&self) {
        self.0.dead.store(true, SeqCst);
        // Ring the senders' bells (wake the senders), as a runner does when a port has died.
        self.0.bells.iter().for_each(Bell::ring);
    }
}

/// Sends packets, and waits for credit as senders of a link do, until the link is closed or its
/// port has died.
fn send_until_refused(wires: &Wires, mut pool: Pool) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let is_refused = || wires.gate.is_closed() || wires.port.death().is_some();
    loop {
        pool.reclaim(|_| ());
        if !wires.gate.is_open() && is_refused() {
            return;
        }
        let Some(packet) = pool.take(8) else {
            match pool.arm(&waker, 1) {
                Armed::Ready => {}
                Armed::Busy => thread::yield_now(),
                Armed::Armed => thread::park(),
            }
            continue;
        };
        let mut list = PacketList::from_iter([packet]);
        pool.submit(&mut list, START);
        if let Err(Full(mut back)) = wires.port.xmit(list, Instant(START), &Tell(wires)) {
            pool.revoke(&mut back);
            back.for_each(|packet| pool.take_back(packet));
            thread::yield_now();
        }
    }
}

/// The senders' packets stay in a mailbox that no thread reads, so the senders wait for credit.
/// Then the link is closed, or the port dies. Every sender must end: a sender that is not woken
/// sleeps for ever.
fn waits(dies_with: Option<u64>) {
    let mailbox = Mailbox::new(100);
    let reader = mailbox.open().expect("the first");
    let info = DeviceInfo::new("post".to_owned(), 1_514);
    let device = Post { info, mailbox, dies_with, taken: 0 };
    let spec: Spec = "pfifo".parse().expect("a qdisc");
    let mut pools: Vec<_> =
        (0..SENDERS).map(|_| Pool::new(Credits { packets: 2, bytes: 1_000 })).collect();
    let bells = pools.iter_mut().map(|pool| pool.bell().expect("the first")).collect();
    let wires = Arc::new(Wires {
        port: Port::with_options(
            spec.build(1_514),
            device,
            100,
            PortOptions { mode: Mode::Inline, ..PortOptions::default() },
        ),
        gate: Gate::default(),
        dead: AtomicBool::new(false),
        bells,
    });
    let senders: Vec<_> = pools
        .into_iter()
        .map(|pool| {
            let wires = wires.clone();
            thread::spawn(move || send_until_refused(&wires, pool))
        })
        .collect();
    if dies_with.is_none() {
        // Close the link in the way of `Handle::close`.
        wires.gate.close();
        wires.bells.iter().for_each(Bell::ring);
    }
    for sender in senders {
        sender.join().expect("a sender");
    }
    assert_eq!(wires.dead.load(Relaxed), dies_with.is_some());
    drop(reader);
}

#[test]
fn a_close_wakes_who_waits_for_a_reader() {
    shuttle::check_random(|| waits(None), 2_000);
    shuttle::check_pct(|| waits(None), 2_000, 3);
}

#[test]
fn a_death_wakes_who_waits_for_a_reader() {
    // The port dies at its fourth packet: early, but not at the first one.
    shuttle::check_random(|| waits(Some(4)), 2_000);
    shuttle::check_pct(|| waits(Some(4)), 2_000, 3);
}

/// A thread renews a lease while the port's owner finds it at its end. Either the lease goes on, or
/// it is over: both threads see the same.
fn renews() {
    let mut setup = Setup::default();
    setup.apply("qdisc add dev x root handle 1: pfifo limit 10").expect("a line of tc");
    let edit = Edit::new(&setup, &Change::Parameters(1), Some(0), 1_514, 1).expect("an edit");
    let info = DeviceInfo::new("narrow".to_owned(), 1_514);
    let device = Narrow { info, full_until: 0, ring: None, dies_with: None, taken: 0 };
    let tree = setup.build(1_514, 1).expect("a root");
    let port = Arc::new(Port::with_options(tree, device, 100, PortOptions::default()));
    let lease = Lease::new(Instant(START));
    let held = lease.pending();
    let job: Job = Box::new(move |root, _| root.hold(held, edit));
    port.with(job, Instant(START - 1), &Unheard).expect("no job waits");
    let (theirs, visited) = (lease.clone(), port.clone());
    let renews = thread::spawn(move || theirs.renew(Instant(START + 2)));
    let visits = thread::spawn(move || {
        let _ = visited.visit(Instant(START + 1), &Unheard);
    });
    visits.join().expect("an owner");
    let renewed = renews.join().expect("a thread");
    assert_eq!(lease.renew(Instant(START + 2)), renewed);
    let _ = port.visit(Instant(START + 2), &Unheard);
    assert!(!lease.renew(Instant(START + 3)), "its end has come");
}

/// Nobody hears this port's requests.
struct Unheard;

impl PortWaker for Unheard {
    fn visit_by(&self, _: Instant) {}
    fn check_overdue(&self, _: Instant) {}
}

#[test]
fn a_lease_is_renewed_or_over() {
    shuttle::check_dfs(renews, None);
}
