//! The life of a world of the chaos test, from creation to end: starts its link, senders, devices
//! and receivers, and ends them.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, Scope};
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::Network;
use onramp::{Credits, Device, Link, Mapping, Rate};

use crate::actor::Actor;
use crate::counts::Met;
use crate::device::{Moody, receive, while_not};
use crate::meddle::meddle;
use crate::plan::{End, Fault, Plan};
use crate::wakers::block_on;
use crate::watch::{Doing, Slot, Watch, lock, now};
use crate::world::{PORTS, World};

/// Runs a world from creation to end, and reports failures to the watchdog. Returns the number of
/// packets that the link accepted.
pub(crate) fn live(plan: &Plan, watch: &Arc<Watch>) -> u64 {
    let mut rng = Rng::with_seed(plan.seed ^ 0x5eed);
    watch.begin(format!("{plan:?}"), plan.slack());
    let slot = watch.register("world".to_owned());
    if plan.one_cpu {
        // Pin this thread to one processor. All threads that it starts are then pinned there, too.
        let cpu = onramp::dev::current_cpu().unwrap_or(0);
        onramp::dev::pin_thread(cpu).expect("a processor that it is on");
    }
    // The world's thread is pinned by now, so the watchdog's thread is pinned, too.
    watch.over(|| through(plan, &slot, &mut rng))
}

/// Builds the world, lets it live, and ends it.
fn through(plan: &Plan, slot: &Slot, rng: &mut Rng) -> u64 {
    let watch = slot.watch();
    let world = World::new(plan.clone(), watch);
    let all = Duration::from_millis(plan.life_ms) + Duration::from_secs(90);
    let mut link = slot.call(Doing::World, all, 0, || Some(build(&world, rng)));
    watch.set_link(link.clone());
    thread::scope(|scope| {
        people(&world, link.as_ref().expect("not dropped yet"), scope, rng);
        while_not(|| watch.found(plan.fault), Duration::from_millis(plan.life_ms));
        end(&world, &mut link, slot, rng);
    });
    if let Some(link) = link {
        last(&world, link, slot);
    }
    world.accepted.load(SeqCst)
}

/// Starts a thread of the world, which the watchdog observes.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    world: &World,
    name: String,
    life: impl FnOnce(Arc<Slot>) + Send + 'scope,
) {
    let watch = world.weather.watch.clone();
    let thread = thread::Builder::new().name(name.clone());
    thread.spawn_scoped(scope, move || life(watch.register(name))).expect("a thread");
}

/// Starts all threads of the world: receivers, senders, the meddler (which changes the link at
/// random) and the closer (which closes the link at a random time).
fn people<'scope>(
    world: &'scope World,
    link: &Link,
    scope: &'scope Scope<'scope, '_>,
    rng: &mut Rng,
) {
    let plan = &world.plan;
    let mute = plan.mute_ms.map(|mute| now() + mute * 1_000_000);
    for index in 0..plan.receivers {
        let mut rng = rng.fork();
        start(scope, world, format!("receiver {index}"), move |slot| {
            receive(&slot, &world.weather, &world.network, index, mute, &mut rng);
        });
    }
    for index in 0..plan.threads {
        let (rng, link) = (rng.fork(), link.clone());
        start(scope, world, format!("sender {index}"), move |slot| {
            Actor::new(world, link, slot, rng, index).live();
        });
    }
    if plan.meddles {
        let (mut rng, link) = (rng.fork(), link.clone());
        start(scope, world, "meddler".to_owned(), move |slot| {
            meddle(world, link, &slot, &mut rng);
        });
    }
    if plan.end == End::ClosedEarly {
        let (mut rng, link) = (rng.fork(), link.clone());
        start(scope, world, "closer".to_owned(), move |slot| {
            let when = Duration::from_millis(rng.u64(0..plan.life_ms));
            while_not(|| world.stop.load(SeqCst), when);
            close(world, &link, &slot, &mut rng);
            slot.call(Doing::DropLink, plan.patience(), 0, || drop(link));
        });
    }
}

fn build(world: &World, rng: &mut Rng) -> Link {
    let (plan, weather) = (&world.plan, &world.weather);
    let device = |rng: &mut Rng, to: Option<&Network>, mortal| {
        Moody::boxed(rng, weather, to, mortal) as Box<dyn Device>
    };
    // In most worlds, the first device never dies.
    let mut devices: Vec<_> =
        (0..plan.sinks).map(|index| device(rng, None, plan.mortal && index > 0)).collect();
    devices.extend((0..plan.queues).map(|_| device(rng, Some(&world.network), plan.mortal)));
    let mut link = Link::devices(devices)
        .qdisc(plan.qdisc)
        .seed(plan.seed)
        .mode(plan.mode)
        .runners(plan.runners)
        .burst(plan.burst)
        .credits(Credits { packets: plan.credits, bytes: 1 << 20 })
        .credits_per_port(8_192) // so that the share of each sender changes
        .ports_max(PORTS);
    if rng.u32(0..4) == 0 {
        link = link.credit_time(Duration::from_micros(rng.u64(0..5_000)));
    }
    if let Some(rate) = plan.rate {
        link = link.rate(Rate::bytes_per_second(rate));
    }
    link.build().expect("a link")
}

fn close(world: &World, link: &Link, slot: &Slot, rng: &mut Rng) {
    if world.plan.hard {
        // Let devices block before the close, so that the close has to deal with devices that do
        // not return in time.
        world.weather.storm.store(true, SeqCst);
        while_not(|| world.weather.blocks(), Duration::from_millis(500));
        thread::sleep(Duration::from_millis(50));
    }
    let time = Duration::from_millis(rng.u64(0..100));
    // The owners of some ports may be calling devices that block, so the close may take longer than
    // its time limit.
    let bound = time + Duration::from_secs(2);
    if slot.watch().waiting() > 0 {
        Met::CloseWithWaiters.note();
    }
    slot.watch().closes();
    let as_future = rng.bool();
    if as_future {
        Met::CloseAsFuture.note();
    }
    let close = || {
        if as_future { block_on(link, link.closing(time)) } else { link.close(time) }
    };
    let report = slot.wait(Doing::Close, bound.max(world.plan.at_once()), 0, close);
    if report.blocked > 0 {
        Met::BlockedClose.note();
    }
}

/// Ends the world in the way that its plan says: stops all senders, and brings all traffic to rest.
fn end(world: &World, link: &mut Option<Link>, slot: &Slot, rng: &mut Rng) {
    let (plan, weather, watch) = (&world.plan, &world.weather, slot.watch());
    let patience = plan.patience();
    let open = |link: &Option<Link>| link.clone().expect("not dropped yet");
    match plan.end {
        End::Sent | End::Dropped | End::Abandoned => weather.revive.store(true, SeqCst),
        End::ClosedEarly => {}
        End::Closed => close(world, &open(link), slot, rng),
        End::Dead => slot.call(Doing::World, patience, 1, || doom(world, &open(link))),
    }
    world.stop.store(true, SeqCst);
    let all = || world.arrived.load(SeqCst) == plan.threads;
    // Wait until every sending thread has made its last call. If one hangs in a call, the watchdog
    // reports it when the time limit of that call has passed, which is earlier than `long`.
    let long = patience * 2 + plan.slack() * 2 + Duration::from_secs(10);
    slot.call(Doing::Rest, long, 0, || while_not(all, long * 2));
    slot.call(Doing::DropPacket, plan.at_once(), 0, || lock(&world.market).clear());
    weather.over.store(true, SeqCst);
    if matches!(plan.end, End::Dropped | End::Sent | End::Dead) {
        let time = plan.rest();
        let flushed = slot.wait(Doing::LinkFlush, time, 1, || open(link).flush(time));
        // Packets that a cork of a waiting sender holds back are not in the link yet, so the flush
        // does not wait for them.
        if !flushed {
            watch.failed(&format!("a link is not idle after {time:?}, although no thread sends"));
        }
    }
    if matches!(plan.end, End::Dropped | End::Abandoned) {
        watch.set_link(None);
        let link = link.take();
        if let Some(link) = &link
            && plan.end == End::Dropped
        {
            // After the last handle is dropped, nobody can read the link's counters, so check them
            // now. Packets that are still corked are not in the counters yet.
            let accepted = world.accepted.load(SeqCst) + world.unknown.load(SeqCst);
            let stats = link.stats();
            let out = stats.sent + stats.dropped_total();
            let came = stats.submitted + stats.made;
            if stats.submitted > accepted || came != out || stats.held > 0 {
                watch.failed(&format!("the COUNTERS are wrong: accepted {accepted}: {stats:?}"));
            }
        }
        slot.call(Doing::DropLink, patience, 0, || drop(link));
    }
    world.settle.store(true, SeqCst);
    let attic = std::mem::take(&mut *lock(&world.attic));
    for (sender, ledger) in attic {
        world.finish(slot, sender, &ledger);
    }
}

/// Kills all ports of the link: the device of each port panics at the next packet.
fn doom(world: &World, link: &Link) {
    world.weather.doom.store(true, SeqCst);
    let (mut sender, ledger) = world.open_calm(link);
    let flows: Vec<_> =
        (0..link.ports()).map(|port| sender.flow_with(None, Mapping::Port(port))).collect();
    while link.deaths().len() < flows.len() {
        for flow in &flows {
            let payload = crate::device::stamp(ledger.id, ledger.next());
            let sent = sender.try_send(flow, &payload).is_ok();
            world.accepted.fetch_add(sent.into(), SeqCst);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Closes the link through its last handle, and checks its counters.
fn last(world: &World, link: Link, slot: &Slot) {
    let (plan, weather, watch) = (&world.plan, &world.weather, slot.watch());
    let patience = plan.patience();
    if plan.end == End::Sent {
        crate::rest::check(slot);
    }
    if plan.end == End::Sent && plan.forks {
        watch.set_link(None);
        let (sender, mut link) = (link.sender(), Some(link.clone()));
        let flow = sender.flow(None);
        let bound = patience + plan.slack();
        crate::fork::fork(watch, &mut link, &mut Some(sender), &flow, false, bound);
    }
    watch.closes();
    let report = slot.wait(Doing::Close, patience, 1, || link.close(Duration::ZERO));
    if plan.end == End::Sent && (!report.flushed || report.purged > 0) {
        watch.failed(&format!("all packets were sent, but close reports {report:?}"));
    }
    // If a device blocked its caller while the link was closed, its port has kept its packets. The
    // port's owner purges them when the device returns.
    while_not(|| !weather.blocks(), plan.rest());
    while_not(|| link.stats().held == 0, Duration::from_secs(2) + plan.slack());
    let stats = link.stats();
    let mut accepted = world.accepted.load(SeqCst);
    if plan.fault == Some(Fault::Books) {
        accepted += 1;
    }
    let all = accepted..=accepted + world.unknown.load(SeqCst);
    let out = stats.sent + stats.dropped_total();
    if !all.contains(&stats.submitted) || stats.submitted + stats.made != out || stats.held > 0 {
        watch.failed(&format!("the COUNTERS are wrong: accepted {all:?}: {stats:?}"));
    }
    watch.set_link(None);
    slot.call(Doing::DropLink, patience, 1, || drop(link));
}
