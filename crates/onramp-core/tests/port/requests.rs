//! Jobs and the limits of an owner: how many jobs an owner runs before it leaves, who is woken for
//! the other jobs, and what happens to them when the port dies or closes.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use onramp_core::Spec;
use onramp_core::{Change, Edit, Instant, JOBS_MAX, Job, Mode, Port, PortWaker, QUOTA_NS, Setup};
use onramp_core::{Ran, TICK_NS};
use onramp_queue::{DropReason, PacketList};

use crate::busy::make_busy;
use crate::jobs::{chain, counted, counts, give};
use crate::world::{MTU, Notes, Script, World, packet};

/// Makes a job that applies a `tc` line to the port's tree. If the line replaces the root qdisc,
/// the packets of the old root are dropped.
fn edit(line: &str) -> Job {
    let mut setup = Setup::of("pfifo".parse::<Spec>().expect("a qdisc"));
    let change: Change = setup.change(line).expect(line);
    let edit = Edit::new(&Arc::new(setup), &change, Some(0), MTU, 0).expect("a change");
    Box::new(move |root, cx| root.edit(edit, cx))
}

const PURGES: &str = "qdisc replace dev x root handle 5: pfifo";

/// Makes a job that pushes `count` packets while it runs, as another thread would. The port only
/// stages them.
fn pushes(world: &mut World, count: u64) -> Job {
    let (port, now, list) = (world.port.clone(), world.now, world.packets(count));
    Box::new(move |_, _| {
        let staged = port.xmit(list, now, &Notes::default()).expect("there is room");
        assert_eq!(staged, None, "the job's thread owns the port");
    })
}

/// An owner looks for jobs twice, and then leaves. Jobs that are submitted after its second look
/// wait for the next owner.
#[test]
fn an_owner_looks_for_jobs_twice() {
    let mut world = World::new("pfifo", 1_000);
    world.waker.takes(QUOTA_NS - 1);
    let done = Arc::<AtomicU32>::default();
    assert!(!give(&world, chain(world.port.clone(), done.clone(), 9)), "jobs are left");
    assert_eq!((done.load(SeqCst), world.waker.due()), (2, Some(world.now)));
    // Another thread may hold the lock of the list of jobs and need this processor, so the runner
    // is asked to visit only after a tick.
    for expected in [4, 6, 8] {
        assert_eq!(world.visit(), Ran { done: 0, again: false });
        assert_eq!(done.load(SeqCst), expected);
        assert_eq!(world.waker.due(), Some(world.now.after(TICK_NS)));
        world.pass(TICK_NS);
    }
    let _ = world.visit();
    assert_eq!((done.load(SeqCst), world.waker.due()), (10, None));
    assert!(world.port.is_quiet());
}

/// If jobs take long, each run does one job, and the runner is asked to visit at once for the next
/// one.
#[test]
fn jobs_that_are_left_call_the_keeper_at_once() {
    let mut world = World::new("pfifo", 1_000);
    world.waker.takes(QUOTA_NS);
    let done = Arc::default();
    world.wire().jobs = (0..5).map(|_| counted(&done)).collect();
    assert_eq!(world.push(1), Some(Ran { done: 1, again: false }));
    for expected in 1..5 {
        assert_eq!(counts(&done), [expected; 2]);
        assert_eq!(world.waker.due(), Some(world.now));
        let _ = world.visit();
    }
    assert_eq!((counts(&done), world.waker.due()), ([5, 5], None));
    world.check();
}

/// However slow jobs are, at most `JOBS_MAX` jobs wait in the list, and the owner holds at most as
/// many that it has taken from the list.
#[test]
fn the_owner_takes_no_more_jobs_than_may_wait() {
    const BROUGHT: u32 = 2_000;
    let most = u32::try_from(JOBS_MAX).expect("few");
    let mut world = World::new("pfifo", 1_000);
    world.waker.takes(QUOTA_NS);
    let done = Arc::default();
    let mut waits = 0;
    for round in 1..=5 {
        world.wire().jobs = (0..BROUGHT).map(|_| counted(&done)).collect();
        let _ = world.push(1);
        let accepted = round * BROUGHT - world.wire().crowded;
        waits = accepted - counts(&done)[0];
        assert!(waits <= 2 * most, "{waits} jobs wait in round {round}");
    }
    assert!(waits > most, "{waits}");
    world.waker.takes(0);
    world.settle();
    assert_eq!(counts(&done)[0], 5 * BROUGHT - world.wire().crowded, "all were done");
}

/// If a job is submitted with an older time than the port's, the job sees the port's time: the time
/// of a port stands still rather than going back.
#[test]
fn a_job_has_the_time_of_its_port() {
    let mut world = World::new("pfifo", 1_000);
    let _ = world.push(1);
    let (start, seen) = (world.now, Arc::new(Mutex::new(Vec::new())));
    let note = || -> Job {
        let seen = seen.clone();
        Box::new(move |_, cx| seen.lock().unwrap().push(cx.now))
    };
    for at in [Instant(start.0 - 500), start.after(1_000), start.after(700)] {
        assert!(world.port.with(note(), at, &world.waker).expect("few jobs wait"));
    }
    let late = start.after(1_000);
    assert_eq!(*seen.lock().unwrap(), [start, late, late]);
    world.pass(500);
    let _ = world.push(1);
    assert_eq!(world.wire().sent.last(), Some(&(1, late)));
}

/// A thread that submits a job to a port that has an owner wakes the runner, because the owner may
/// not look for jobs again.
#[test]
fn a_job_for_an_owned_port_calls_the_keeper() {
    let world = World::new("pfifo", 1_000);
    let (port, now) = (world.port.clone(), world.now);
    let told = Arc::new(Mutex::new(None));
    let tells = told.clone();
    let job: Job = Box::new(move |_, _| {
        let waker = Notes::default();
        let done = port.with(Box::new(|_, _| ()), now, &waker).expect("few jobs wait");
        *tells.lock().unwrap() = Some((done, waker.due()));
    });
    assert!(give(&world, job), "the second look found it");
    assert_eq!(*told.lock().unwrap(), Some((false, Some(now))));
}

/// A runner that visits as soon as it is asked, within the same call.
struct AtOnce<'a>(&'a Port<Script>);

impl PortWaker for AtOnce<'_> {
    fn visit_by(&self, at: Instant) {
        let _ = self.0.visit(at, self);
    }
}

/// If the runner visits while a job is being refused because too many jobs wait, the runner can run
/// the waiting jobs: the thread that refuses does not hold the lock of the list of jobs.
#[test]
fn a_keeper_may_come_while_a_job_is_refused() {
    let world = World::new("pfifo", 1_000);
    world.waker.takes(QUOTA_NS);
    let (port, done) = (world.port.clone(), Arc::default());
    let jobs: Vec<Job> = (0..JOBS_MAX).map(|_| counted(&done)).collect();
    let brings: Job = Box::new(move |_, _| {
        for job in jobs {
            assert!(!port.with(job, Instant(0), &Notes::default()).expect("there is room"));
        }
    });
    assert!(!give(&world, brings));
    assert_eq!(counts(&done), [0, 0]);
    let refused = world.port.with(Box::new(|_, _| ()), world.now, &AtOnce(&world.port));
    assert!(refused.is_err());
    let all = u32::try_from(JOBS_MAX).expect("few");
    assert_eq!(counts(&done), [all, all]);
}

/// A value whose destructor panics.
struct Grumpy;

impl Drop for Grumpy {
    fn drop(&mut self) {
        panic!("grumpy to the end");
    }
}

/// A port that dies drops all of its waiting jobs in the same call, even if a destructor of a job
/// panics.
#[test]
fn a_death_drops_all_jobs_at_once() {
    let mut world = World::new("pfifo", 1_000);
    world.waker.takes(QUOTA_NS);
    let done = Arc::default();
    let grumpy = Grumpy;
    let grumbles: Job = Box::new(move |_, _| drop(grumpy));
    let jobs = [counted(&done), counted(&done), grumbles, counted(&done), counted(&done)];
    world.wire().jobs = jobs.into_iter().collect();
    let _ = world.push(1);
    assert_eq!(counts(&done), [1, 1]);
    world.wire().panics = true;
    let _ = world.push(1);
    assert_eq!(world.port.death(), Some("as the script says"));
    assert_eq!(counts(&done), [2, 4], "two were done, and nobody waits for the others");
    assert!(world.port.is_quiet());
}

/// The number of packets in the result of a run includes the packets that jobs dropped in the run.
#[test]
fn a_run_tells_what_its_jobs_dropped() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().room = Some(1);
    world.wire().jobs = [edit(PURGES)].into_iter().collect();
    // The device is offered a burst of 64 packets and takes one. The other 36 packets are in the
    // qdisc, and the job drops them.
    assert_eq!(world.push(100), Some(Ran { done: 1 + 36, again: false }));
    assert_eq!(world.stats().dropped, [(DropReason::Purged, 36)]);
    world.check();
}

/// When a job replaces the qdisc by a `netem` that duplicates the packets it takes over, the
/// duplicates count as made.
#[test]
fn what_a_job_makes_is_counted() {
    let mut world = World::new("netem delay 1ms", 1_000);
    let _ = world.push(10);
    let netem = "netem delay 1ms duplicate 100%".parse::<Spec>().expect("a qdisc").build(MTU);
    assert!(world.port.replace(netem, world.now, &world.waker).expect("few jobs wait"));
    let stats = world.stats();
    assert_eq!((stats.enqueued, stats.made, stats.held), (20, 10, 20));
    world.settle();
    assert_eq!((world.stats().sent, world.stats().held), (20, 0));
}

/// If the port is closed while a job runs on it, the thread that runs the job drops all of the
/// port's packets before it returns.
#[test]
fn a_close_during_a_job_drops_all_at_once() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        let mut world = World::with("pfifo limit 100000", 20_000, mode, None);
        world.wire().room = Some(0);
        world.enqueue(9_000);
        let (port, now) = (world.port.clone(), world.now);
        let closes: Job = Box::new(move |_, _| {
            assert_eq!(port.close(now, &Notes::default()), None, "the job's thread owns the port");
        });
        assert!(give(&world, closes), "no job is left");
        assert_eq!(world.dropped(DropReason::Purged), 9_000, "{mode:?}");
        assert!(world.port.is_quiet() && !world.port.is_busy());
        world.check();
        let _ = world.push(2);
        assert_eq!(world.dropped(DropReason::Purged), 9_002, "{mode:?}");
    }
}

/// A job may change when held packets may leave, so the runner is asked to visit at once after the
/// job.
#[test]
fn a_job_beside_packets_calls_the_keeper_at_once() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().room = Some(0);
    let _ = world.push(9);
    assert_eq!(world.waker.due(), Some(world.now.after(50_000)));
    assert!(give(&world, Box::new(|_, _| ())));
    assert_eq!(world.waker.due(), Some(world.now));
    // The runner is also asked to visit at once if the job drops all packets that the port held.
    let mut world = World::new("fq timer_slack 0", 1_000);
    let mut pkt = packet(0, 1, world.now);
    pkt.txtime_ns = world.now.after(5_000_000).0;
    world.pushed = 1;
    let _ = world.port.xmit(PacketList::from_iter([pkt]), world.now, &world.waker);
    assert_eq!(world.waker.due(), Some(world.now.after(5_000_000)));
    assert!(give(&world, edit(PURGES)));
    assert_eq!((world.stats().held, world.waker.due()), (0, Some(world.now)));
    world.check();
}

/// If a packet is staged while a job runs, the runner is asked to visit at once after the job,
/// whether the port was busy or idle before.
#[test]
fn what_was_staged_during_a_job_calls_the_keeper_at_once() {
    for busy in [false, true] {
        let mut world = World::new("pfifo", 1_000);
        if busy {
            let _ = make_busy(&mut world);
            assert_eq!(world.waker.due(), Some(world.now.after(2 * TICK_NS)));
        }
        let job = pushes(&mut world, 1);
        assert!(give(&world, job));
        assert_eq!(world.waker.due(), Some(world.now), "busy: {busy}");
        assert!(world.port.is_busy(), "it waits with no owner");
        assert_eq!(world.stats().held, 1);
        world.check();
        let _ = world.visit();
        assert_eq!(world.stats().held, 0);
        world.settle();
        assert!(!world.port.is_busy());
    }
}

/// After a job that finds no packets, a busy port stays busy, and the time of the runner's visit
/// stays the same.
#[test]
fn a_job_leaves_a_busy_port_as_it_was() {
    let mut world = World::new("pfifo", 1_000);
    let _ = make_busy(&mut world);
    assert!(give(&world, Box::new(|_, _| ())));
    assert!(world.port.is_busy());
    assert_eq!(world.waker.due(), Some(world.now.after(2 * TICK_NS)));
}
