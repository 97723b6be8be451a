//! A device that was full says that it has room again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::Wake;

use onramp_core::{Device, DeviceInfo, DeviceWaker, Instant, Port, PortOptions, Transmitted};
use onramp_queue::{Packet, PacketList};

use crate::world::World;

const HOUR: u64 = 3_600_000_000_000;

/// Makes a world whose device is full, and asks for a pause of an hour.
fn full() -> World {
    let mut world = World::new("pfifo", 1_000);
    (world.wire().room, world.wire().retry_ns) = (Some(0), HOUR);
    let _ = world.push(3);
    assert_eq!(world.waker.due(), Some(world.now.after(HOUR)));
    world
}

/// The next owner offers the device its packets, whatever brings that owner.
#[test]
fn the_next_owner_does_not_wait() {
    let mut world = full();
    world.wire().room = None;
    world.pass(1);
    let _ = world.help();
    assert_eq!(world.sent(), [], "the device has not said that it has room");
    world.wire().wake();
    let _ = world.help();
    assert_eq!(world.sent(), [0, 1, 2]);
    let _ = world.push(1);
    assert_eq!(world.sent(), [0, 1, 2, 3], "the pause is over");
    world.check();
}

/// The device says that it has room, but is full again when the owner comes. The owner then waits
/// as before.
#[test]
fn one_word_is_good_for_one_offer() {
    let mut world = full();
    world.wire().wake();
    world.wire().wake();
    let offers = world.wire().offered.len();
    for _ in 0..3 {
        world.pass(1);
        let _ = world.help();
    }
    assert_eq!(world.wire().offered.len(), offers + 1);
    world.wire().room = None;
    world.settle();
    assert_eq!(world.sent(), [0, 1, 2], "an hour after the last offer");
}

/// The device says that it has room while the owner still has to leave the port. The owner then
/// asks for a visit at once.
#[test]
fn a_word_during_the_refusal_is_not_lost() {
    let mut world = World::new("pfifo", 1_000);
    (world.wire().room, world.wire().retry_ns, world.wire().wakes) = (Some(0), HOUR, true);
    let _ = world.push(3);
    assert_eq!(world.waker.due(), Some(world.now));
    world.wire().room = None;
    let _ = world.visit();
    assert_eq!(world.sent(), [0, 1, 2]);
    world.check();
}

/// The device also says that it has room when no owner waits for it. When the device is full the
/// next time, the port offers the packets once more, and then waits.
#[test]
fn an_old_word_costs_one_offer() {
    let mut world = World::new("pfifo", 1_000);
    let _ = world.push(1);
    world.wire().wake();
    (world.wire().room, world.wire().retry_ns) = (Some(0), HOUR);
    let _ = world.push(1);
    assert_eq!(world.waker.due(), Some(world.now));
    let offers = world.wire().offered.len();
    let _ = world.visit();
    assert_eq!(world.wire().offered.len(), offers + 1);
    assert_eq!(world.waker.due(), Some(world.now.after(HOUR)));
    world.check();
}

#[test]
fn a_closed_port_offers_nothing() {
    let world = full();
    let _ = world.port.close(world.now, &world.waker);
    let offers = world.wire().offered.len();
    (world.wire().room, world.wire().wakes) = (None, false);
    world.wire().wake();
    let _ = world.port.visit(world.now, &world.waker);
    assert_eq!((world.sent(), world.wire().offered.len()), (vec![], offers));
    world.check();
}

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A device that is full, and has been given its handle before it has a port.
struct Full(DeviceInfo);

impl Device for Full {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn attach(&mut self, _: DeviceWaker) {
        panic!("the caller has attached the handle already");
    }

    fn transmit(&mut self, _: &mut PacketList, _: &mut PacketList, now: Instant) -> Transmitted {
        Transmitted { retry_at: Some(now.after(HOUR)), ..Transmitted::default() }
    }
}

/// Whoever manages the port is asked for a visit once for each time that the port waits for room,
/// and never while it does not wait.
#[test]
fn a_visit_is_asked_for_when_the_port_waits() {
    let visits = Arc::<Count>::default();
    let waker = DeviceWaker::new(visits.clone().into());
    let asked = || visits.0.load(SeqCst);
    let options = PortOptions { device_waker: Some(waker.clone()), ..PortOptions::default() };
    let spec: onramp_core::Spec = "pfifo".parse().expect("a qdisc");
    let device = Full(DeviceInfo::new("full".to_owned(), 1_514));
    let port = Port::with_options(spec.build(1_514), device, 100, options);
    let world = World::new("pfifo", 1);
    waker.wake();
    assert_eq!(asked(), 0, "the port has no packets yet");
    let list = PacketList::from_iter([Packet::new(100)]);
    let _ = port.xmit(list, world.now, &world.waker).expect("there is room");
    waker.wake();
    assert_eq!(asked(), 1);
    waker.clone().wake();
    assert_eq!(asked(), 1, "it has not come yet");
    let _ = port.visit(world.now, &world.waker);
    waker.wake();
    assert_eq!(asked(), 2);
    drop(port);
    waker.wake();
    assert_eq!(asked(), 2);
}
