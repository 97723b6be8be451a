//! Jobs (functions that other threads submit) that the owner of a port runs on the port's tree of
//! qdiscs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use onramp_core::Spec;
use onramp_core::{Change, Edit, Instant, JOBS_MAX, Job, Mode, Port, QUOTA_NS, Setup};
use onramp_queue::DropReason;

use crate::world::{MTU, Notes, Script, World};

/// A value inside a job that counts how often the job ran and how often it was dropped.
struct Counted(Arc<[AtomicU32; 2]>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0[1].fetch_add(1, SeqCst);
    }
}

pub(crate) fn counted(counts: &Arc<[AtomicU32; 2]>) -> Job {
    let counted = Counted(counts.clone());
    Box::new(move |_, _| {
        counted.0[0].fetch_add(1, SeqCst);
    })
}

pub(crate) fn counts(counts: &Arc<[AtomicU32; 2]>) -> [u32; 2] {
    [counts[0].load(SeqCst), counts[1].load(SeqCst)]
}

pub(crate) fn give(world: &World, job: Job) -> bool {
    world.port.with(job, world.now, &world.waker).expect("few jobs wait")
}

#[test]
fn a_free_port_does_it_at_once_and_sends_nothing() {
    for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
        let mut world = World::with("pfifo", 1_000, mode, None);
        world.wire().room = Some(0);
        let _ = world.push(9);
        let offered = world.wire().offered.len();
        let done = Arc::default();
        assert!(give(&world, counted(&done)), "{mode:?}");
        assert_eq!(counts(&done), [1, 1]);
        assert_eq!(world.wire().offered.len(), offered, "who brings a job does not send");
        assert!(world.waker.due().is_some(), "what is held is known to the runner");
        world.check();
        world.wire().room = None;
        world.settle();
        assert_eq!(world.sent().len(), 9);
    }
}

/// If a job runs on a port without packets, the runner need not visit the port afterwards.
#[test]
fn an_idle_port_stays_idle() {
    let world = World::new("fq", 1_000);
    for _ in 0..100 {
        assert!(give(&world, Box::new(|_, _| ())));
    }
    assert_eq!(world.waker.due(), None);
    assert!(world.port.is_quiet() && !world.port.is_busy());
    assert_eq!(world.stats().runs, 0);
    world.check();
}

/// Jobs that are submitted while the device transmits run when the device returns, in the order in
/// which they were submitted.
#[test]
fn an_owned_port_does_it_later() {
    let mut world = World::new("pfifo", 1_000);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let theirs = order.clone();
    world.wire().jobs = (0..20_u32)
        .map(|n| {
            let order = theirs.clone();
            let job: Job = Box::new(move |_, _| order.lock().unwrap().push(n));
            job
        })
        .collect();
    let _ = world.push(1);
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    world.check();
}

#[test]
fn what_waits_is_bounded() {
    let mut world = World::new("pfifo", 1_000);
    let done = Arc::default();
    world.wire().jobs = (0..JOBS_MAX + 7).map(|_| counted(&done)).collect();
    let _ = world.push(1);
    assert_eq!(world.wire().crowded, 7, "they were given back");
    let most = u32::try_from(JOBS_MAX).unwrap();
    assert_eq!(counts(&done), [most, most + 7]);
}

/// A job that panics kills the port, just as a qdisc that panics does.
#[test]
fn a_job_that_panics_kills_the_port() {
    let mut world = World::new("pfifo", 1_000);
    world.wire().room = Some(0);
    let _ = world.push(9);
    assert!(give(&world, Box::new(|_, _| panic!("a bad job"))));
    assert_eq!(world.port.death(), Some("a bad job"));
    assert_eq!(world.dropped(DropReason::PortDead), 9);
    assert!(world.port.is_quiet());
    let done = Arc::default();
    assert!(give(&world, counted(&done)));
    assert_eq!(counts(&done), [0, 1], "a dead port drops all jobs");
    world.check();
}

/// Packets that a job drops are counted, and their memory returns to their homes.
#[test]
fn what_a_job_drops_is_counted() {
    let mut world = World::new("pfifo limit 500", 1_000);
    world.wire().room = Some(0);
    world.enqueue(200);
    let mut setup = Setup::of("pfifo limit 500".parse::<Spec>().unwrap());
    let change: Change = setup.change("qdisc replace dev x root handle 5: fq").unwrap();
    let edit = Edit::new(&Arc::new(setup), &change, Some(0), MTU, 0).expect("a change");
    assert!(give(&world, Box::new(move |root, cx| root.edit(edit, cx))));
    assert_eq!(world.dropped(DropReason::Purged), 200 - 64, "the rest is with the device");
    world.wire().room = None;
    world.settle();
    world.check();
    assert_eq!(world.sent().len(), 64);
}

/// A closed port still runs jobs, even if the job's thread read the clock before the close.
#[test]
fn a_closed_port_still_does_it() {
    let mut world = World::new("pfifo", 1_000);
    let _ = world.push(3);
    let _ = world.port.close(world.now, &world.waker).expect("nobody is inside");
    let done = Arc::default();
    world.now = Instant(world.now.0 - 1);
    assert!(give(&world, counted(&done)));
    assert_eq!(counts(&done), [1, 1]);
    world.check();
}

/// Makes a job that submits another such job when it runs, `left` times in a row.
pub(crate) fn chain(port: Arc<Port<Script>>, done: Arc<AtomicU32>, left: u32) -> Job {
    Box::new(move |_, _| {
        done.fetch_add(1, SeqCst);
        if left > 0 {
            let next = chain(port.clone(), done, left - 1);
            port.with(next, Instant(0), &Notes::default()).expect("few jobs wait");
        }
    })
}

/// A thread that submits a job runs only a few jobs of other threads in that call, because senders
/// need the port too.
#[test]
fn who_brings_a_job_does_few_of_others() {
    let mut world = World::new("pfifo", 1_000);
    let done = Arc::<AtomicU32>::default();
    assert!(!give(&world, chain(world.port.clone(), done.clone(), 99)), "jobs are left");
    assert!(done.load(SeqCst) <= 2, "{done:?}");
    assert!(world.waker.due().is_some(), "the runner knows of the others");
    for _ in 0..100 {
        let _ = world.port.visit(world.now, &world.waker);
    }
    assert_eq!(done.load(SeqCst), 100);
    world.settle();
}

/// If a job takes long, the owner that has run it begins no other job.
#[test]
fn jobs_that_take_long_are_done_one_at_a_time() {
    let world = World::new("pfifo", 1_000);
    world.waker.takes(QUOTA_NS);
    let done = Arc::<AtomicU32>::default();
    assert!(!give(&world, chain(world.port.clone(), done.clone(), 9)));
    assert_eq!(done.load(SeqCst), 1);
}

/// If the list of waiting jobs is full, the port refuses a job, and the thread that submitted it
/// wakes the runner. That thread has locked the list for a moment, so an owner that left the port
/// just then may not have seen the waiting jobs.
#[test]
fn who_finds_no_room_calls_the_keeper() {
    let world = World::new("pfifo", 1_000);
    let port = world.port.clone();
    let last = Arc::new(AtomicU32::new(0));
    let told = last.clone();
    let _ = give(
        &world,
        Box::new(move |_, _| {
            for _ in 0..JOBS_MAX {
                port.with(Box::new(|_, _| ()), Instant(0), &Notes::default()).expect("room");
            }
            let waker = Notes::default();
            assert!(port.with(Box::new(|_, _| ()), Instant(0), &waker).is_err());
            told.store(u32::from(waker.due().is_some()), SeqCst);
        }),
    );
    assert_eq!(last.load(SeqCst), 1);
    assert!(world.port.death().is_none());
}

/// When a job panics, the jobs behind it are dropped, so that the threads that wait for these jobs
/// learn at once that the port is dead.
#[test]
fn jobs_behind_one_that_panics_are_dropped() {
    let world = World::new("pfifo", 1_000);
    let (port, done) = (world.port.clone(), Arc::default());
    let behind = counted(&done);
    let _ = give(
        &world,
        Box::new(move |_, _| {
            let with = |job| port.with(job, Instant(0), &Notes::default()).expect("room");
            with(Box::new(|_, _| panic!("a bad job")));
            with(behind);
        }),
    );
    assert_eq!(world.port.death(), Some("a bad job"));
    assert_eq!(counts(&done), [0, 1]);
}

/// A qdisc that never releases its packets can still be replaced. Its packets move to the new
/// qdisc.
#[test]
fn what_never_leaves_does_not_stop_a_change() {
    let line = "cbs idleslope 900 sendslope -100 hicredit 100 locredit -100";
    let mut world = World::new(line, 1_000);
    world.enqueue(6);
    let fq = "fq".parse::<Spec>().unwrap().build(MTU);
    assert!(world.port.replace(fq, world.now, &world.waker).unwrap());
    world.settle();
    assert_eq!(world.sent().len(), 6, "all of them moved over");
}
