//! What others want done with a port's tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use onramp_core::qdisc::Spec;
use onramp_core::{Change, Edit, Instant, JOBS_MAX, Job, Mode, Setup};
use onramp_queue::DropReason;

use crate::world::{MTU, World};

/// A job that counts how often it was done, and how often it was dropped.
struct Counted(Arc<[AtomicU32; 2]>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0[1].fetch_add(1, SeqCst);
    }
}

fn counted(counts: &Arc<[AtomicU32; 2]>) -> Job {
    let counted = Counted(counts.clone());
    Box::new(move |_, _| {
        counted.0[0].fetch_add(1, SeqCst);
    })
}

fn counts(counts: &Arc<[AtomicU32; 2]>) -> [u32; 2] {
    [counts[0].load(SeqCst), counts[1].load(SeqCst)]
}

fn give(world: &World, job: Job) -> bool {
    world.port.with(job, world.now, &world.keeper).expect("few jobs wait")
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
        assert!(world.keeper.due().is_some(), "what is held is known to the keeper");
        world.check();
        world.wire().room = None;
        world.settle();
        assert_eq!(world.sent().len(), 9);
    }
}

/// Nobody has to come by an empty port.
#[test]
fn an_idle_port_stays_idle() {
    let world = World::new("fq", 1_000);
    for _ in 0..100 {
        assert!(give(&world, Box::new(|_, _| ())));
    }
    assert_eq!(world.keeper.due(), None);
    assert!(world.port.is_quiet() && !world.port.is_busy());
    assert_eq!(world.stats().runs, 0);
    world.check();
}

/// What comes while the device transmits is done when it is back, in order.
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

/// A job is anybody's code, as a qdisc is.
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

/// What a job drops is counted, and goes home.
#[test]
fn what_a_job_drops_is_counted() {
    let mut world = World::new("pfifo limit 500", 1_000);
    world.wire().room = Some(0);
    world.enqueue(200);
    let mut setup = Setup::of("pfifo limit 500".parse::<Spec>().unwrap());
    let change: Change = setup.change("qdisc replace dev x root handle 5: fq").unwrap();
    let edit = Edit::new(&Arc::new(setup), &change, Some(0), MTU, 0).expect("a change");
    assert!(give(&world, Box::new(move |trunk, cx| trunk.edit(edit, cx))));
    assert_eq!(world.dropped(DropReason::Purged), 200 - 64, "the rest is with the device");
    world.wire().room = None;
    world.settle();
    world.check();
    assert_eq!(world.sent().len(), 64);
}

/// Closed ports answer, and what is late does not come back.
#[test]
fn a_closed_port_still_does_it() {
    let mut world = World::new("pfifo", 1_000);
    let _ = world.push(3);
    let _ = world.port.close(world.now, &world.keeper).expect("nobody is inside");
    let done = Arc::default();
    world.now = Instant(world.now.0 - 1);
    assert!(give(&world, counted(&done)));
    assert_eq!(counts(&done), [1, 1]);
    world.check();
}
