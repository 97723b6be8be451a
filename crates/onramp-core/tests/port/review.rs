//! A port that has nothing to send, a sender's waker that panics, and a qdisc or device that breaks
//! its contract do no harm to other ports and senders.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;
use std::task::{Wake, Waker};

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{
    Device, DeviceInfo, Instant, Mode, Port, PortWaker, Rate, SharedRate, Transmitted,
};
use onramp_queue::{Armed, Credits, DropReason, Packet, PacketList, Pool};

use crate::world::{MTU, START, World, packet};

/// Two ports share a rate of 1 MB/s. The first port always has packets. Every 100 µs, calls
/// `meanwhile` with the second port. Returns how many packets the first port sends in 100 ms.
fn sent_beside(mut meanwhile: impl FnMut(&mut World)) -> u64 {
    let rate = SharedRate::new(Rate::bytes_per_second(1_000_000), 2);
    let mut worlds: Vec<_> = (0..2)
        .map(|me| World::with("pfifo limit 10000", 10_000, Mode::Hybrid, Some(rate.share(me))))
        .collect();
    let mut other = worlds.pop().unwrap();
    let mut world = worlds.pop().unwrap();
    let _ = world.push(5_000);
    for step in 0..1_000_u64 {
        let now = START.after(step * 100_000);
        (world.now, other.now) = (now, now);
        meanwhile(&mut other);
        if world.waker.due().is_some_and(|due| due <= now) {
            let _ = world.visit();
        }
    }
    world.stats().sent
}

#[test]
fn a_lone_member_has_the_whole_rate() {
    let sent = sent_beside(|_| {});
    assert!((980..=1_020).contains(&sent), "{sent}");
}

/// A port without packets does not take part in the rate, even if threads that wait for credit run
/// it again and again.
#[test]
fn a_visit_takes_nothing_from_others() {
    let sent = sent_beside(|other| {
        let _ = other.help();
    });
    assert!((980..=1_020).contains(&sent), "{sent}");
}

/// A port that is closed while it holds packets no longer takes part in the shared rate.
#[test]
fn a_closed_port_takes_nothing_from_others() {
    let mut step = 0;
    let sent = sent_beside(|other| {
        step += 1;
        if step == 1 {
            let _ = other.push(100);
            assert!(other.port.close(other.now, &other.waker).is_some());
        }
    });
    assert!((980..=1_020).contains(&sent), "{sent}");
}

#[test]
fn a_dead_port_takes_nothing_from_others() {
    let mut step = 0;
    let sent = sent_beside(|other| {
        step += 1;
        if step == 1 {
            other.wire().panics = true;
            let _ = other.push(100);
            assert!(other.port.death().is_some());
        }
    });
    assert!((980..=1_020).contains(&sent), "{sent}");
}

/// A port whose packets may leave only later does not take part in the shared rate now.
#[test]
fn a_packet_for_later_takes_nothing_from_others() {
    let rate = SharedRate::new(Rate::bytes_per_second(1_000_000), 2);
    let mut world = World::with("pfifo limit 10000", 10_000, Mode::Hybrid, Some(rate.share(0)));
    let other = World::with("fq horizon 100s", 10_000, Mode::Hybrid, Some(rate.share(1)));
    let mut late = packet(0, 7, START);
    late.txtime_ns = START.after(9_000_000_000).0;
    let _ = other.port.xmit(PacketList::from_iter([late]), START, &other.waker).unwrap();
    let _ = world.push(5_000);
    for step in 0..1_000_u64 {
        world.now = START.after(step * 100_000);
        if world.waker.due().is_some_and(|due| due <= world.now) {
            let _ = world.visit();
        }
    }
    let sent = world.stats().sent;
    assert!((980..=1_020).contains(&sent), "{sent}");
}

struct Bomb;
impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the panic panics");
    }
}

/// How the test's qdisc or device breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The qdisc panics in the second call of `backlog`.
    Backlog,
    /// The qdisc panics with a value whose destructor panics.
    Bomb,
    /// The device hands over packets that the port never gave it, and then the qdisc panics.
    Forged,
    /// The qdisc panics in the second dequeue, which happens when it is replaced, and again when it
    /// is dropped.
    Twice,
    /// The qdisc panics with an ordinary message.
    Plain,
}

#[derive(Debug)]
struct Broken(How, PacketList, u32, Cell<u32>);

impl Qdisc for Broken {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        match self.0 {
            How::Bomb => panic_any(Bomb),
            How::Plain => panic!("plain"),
            _ => self.1.push_back(pkt),
        }
        Verdict::Queued
    }
    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        self.2 += 1;
        match self.0 {
            How::Forged => self.1.pop_front().map_or(Dequeue::Empty, Dequeue::Ready),
            How::Twice if self.2 > 1 => panic!("once"),
            _ => Dequeue::NotBefore(cx.now.after(1_000)),
        }
    }
    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        self.3.set(self.3.get() + 1);
        if self.0 == How::Backlog && self.3.get() > 1 {
            panic!("cannot count");
        }
        Backlog { packets: self.1.len(), bytes: self.1.bytes() }
    }
    fn reset(&mut self, _cx: &mut Cx<'_>) {}
}

impl Drop for Broken {
    fn drop(&mut self) {
        if self.0 == How::Twice {
            panic!("twice");
        }
    }
}

struct Forger(DeviceInfo, bool);
impl Device for Forger {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        if self.1 {
            panic!("the second time");
        }
        self.1 = true;
        done.append(burst);
        done.extend((0..5).map(|_| Packet::new(1)));
        Transmitted::default()
    }
}

#[derive(Default)]
struct Nobody(Cell<u32>);
impl PortWaker for Nobody {
    fn visit_by(&self, _at: Instant) {}
    fn died(&self) {
        self.0.set(self.0.get() + 1);
    }
}

fn broken(how: How) {
    let device = Forger(DeviceInfo::new("forger".to_owned(), MTU), false);
    let port = Port::new(Box::new(Broken(how, PacketList::new(), 0, Cell::new(0))), device, 100);
    let waker = Nobody::default();
    let push = || {
        let list = PacketList::from_iter([packet(0, 7, START)]);
        catch_unwind(AssertUnwindSafe(|| port.xmit(list, START, &waker).unwrap().is_some()))
    };
    assert!(push().is_ok(), "{how:?}: the panic went to the sender");
    if how == How::Twice {
        let pfifo = "pfifo".parse::<onramp_core::Spec>().unwrap().build(MTU);
        assert!(port.replace(pfifo, START, &waker).unwrap());
    } else {
        assert!(push().is_ok(), "{how:?}: the panic went to the sender");
    }
    assert!(port.death().is_some(), "{how:?}");
    assert_eq!(waker.0.get(), 1, "{how:?}");
    assert!(port.is_quiet(), "{how:?}: somebody owns it for ever");
}

#[test]
fn a_qdisc_that_cannot_count() {
    broken(How::Backlog);
}

#[test]
fn a_panic_whose_value_panics() {
    broken(How::Bomb);
}

#[test]
fn a_device_that_makes_packets() {
    broken(How::Forged);
}

#[test]
fn a_replaced_qdisc_that_panics_twice() {
    broken(How::Twice);
}

struct Grenade;
impl Wake for Grenade {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics");
    }
}

/// Checks that the port, dead or alive, and the other senders still work if the waker that one
/// sender has registered panics.
fn wakes(how: Option<How>) {
    let device = Forger(DeviceInfo::new("forger".to_owned(), MTU), false);
    let qdisc: Box<dyn Qdisc> = match how {
        Some(how) => Box::new(Broken(how, PacketList::new(), 0, Cell::new(0))),
        None => "pfifo".parse::<onramp_core::Spec>().unwrap().build(MTU),
    };
    let port = Port::new(qdisc, device, 100);
    let waker = Nobody::default();
    let pool = || Pool::new(Credits { packets: 2, bytes: 1_000 });
    let (mut theirs, mut mine) = (pool(), pool());
    let mut list = PacketList::from_iter([theirs.take(1).unwrap(), mine.take(1).unwrap()]);
    list.stamp(START.0, true);
    assert_eq!(theirs.arm(&Waker::from(Arc::new(Grenade)), 1), Armed::Armed);
    let pushed = catch_unwind(AssertUnwindSafe(|| port.xmit(list, START, &waker).is_ok()));
    assert!(port.is_quiet(), "nobody has the port");
    assert_eq!(mine.reclaim(|_| ()), 1, "mine came home");
    assert_eq!(theirs.reclaim(|_| ()), 1, "theirs came home");
    assert!(pushed.is_ok(), "it is not the pusher's waker");
    if how.is_some() {
        assert_eq!(port.snapshot().dropped, [(DropReason::PortDead, 2)]);
    }
}

#[test]
fn a_waker_that_panics() {
    wakes(None);
}

#[test]
fn a_waker_that_panics_at_a_death() {
    wakes(Some(How::Plain));
}
