//! Ports whose qdisc or device panics.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{Device, DeviceInfo, Instant, Port, PortWaker, Transmitted};
use onramp_queue::{Credits, DropReason, Packet, PacketList, Pool};

use crate::world::{MTU, START};

/// Where the panic occurs, in the qdisc or in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Enqueue(u32),
    Dequeue(u32),
    /// The device panics when it has sent this many packets of a burst.
    Transmit(u32),
    /// The qdisc panics in the second dequeue, and again when it is dropped.
    Drop,
}

/// A FIFO qdisc that panics in the call that `at` names.
#[derive(Debug)]
struct Brittle {
    list: PacketList,
    at: At,
    calls: u32,
}

impl Brittle {
    fn call(&mut self, at: impl Fn(u32) -> At) {
        self.calls += 1;
        assert_ne!(self.at, at(self.calls), "brittle");
    }
}

impl Qdisc for Brittle {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.call(At::Enqueue);
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, _cx: &mut Cx<'_>) -> Dequeue {
        let at = self.at;
        self.call(|n| if at == At::Drop && n > 11 { At::Drop } else { At::Dequeue(n) });
        self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    fn reset(&mut self, _cx: &mut Cx<'_>) {
        panic!("it is not asked after it panicked");
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        assert_ne!(self.at, At::Drop, "brittle to the end");
    }
}

struct Fragile {
    info: DeviceInfo,
    left: Option<u32>,
}

impl Device for Fragile {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        let Some(left) = self.left else {
            done.append(burst);
            return Transmitted::default();
        };
        done.extend(burst.by_ref().take(left as usize));
        let _taken_along = burst.pop_front();
        // As a device does that notes on packets how far they have come.
        burst.metas_mut().for_each(|meta| meta.drop_reason = Some(DropReason::Purged));
        panic!("fragile: {left} packets are gone");
    }
}

#[derive(Default)]
struct Undertaker(Cell<u32>);

impl PortWaker for Undertaker {
    fn visit_by(&self, _at: Instant) {}
    fn died(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Pushes ten packets of a pool, then one more. Returns the port, how often the runner was told
/// that the port died, and how many of the eleven packets were reported as sent, as dropped with
/// the port, and as dropped for another reason.
fn dies(at: At) -> (Port<Fragile>, u32, [u32; 3]) {
    let left = if let At::Transmit(left) = at { Some(left) } else { None };
    let device = Fragile { info: DeviceInfo::new("fragile".to_owned(), MTU), left };
    let qdisc = Brittle { list: PacketList::new(), at, calls: 0 };
    let port = Port::new(Box::new(qdisc), device, 100);
    let mut pool = Pool::new(Credits { packets: 11, bytes: 1_000 });
    let waker = Undertaker::default();
    for count in [10, 1] {
        let mut list: PacketList = (0..count).map(|_| pool.take(10).expect("a credit")).collect();
        list.stamp(START.0, true);
        assert!(port.xmit(list, START, &waker).expect("there is room").is_some(), "it left");
    }
    let mut fates = [0; 3];
    let came = pool.reclaim(|fate| {
        fates[match fate.drop_reason {
            None => 0,
            Some(DropReason::PortDead) => 1,
            Some(_) => 2,
        }] += 1;
    });
    assert_eq!(came, 11, "all of them came home");
    (port, waker.0.get(), fates)
}

/// Wherever the panic occurs, all packets come back to their pool, no thread hangs, and the port's
/// counts balance.
#[test]
fn a_panic_kills_the_port_and_nothing_else() {
    let at = [
        At::Enqueue(1),
        At::Enqueue(5),
        At::Enqueue(10),
        At::Dequeue(11),
        At::Dequeue(15),
        At::Dequeue(21),
        At::Transmit(0),
        At::Transmit(1),
        At::Transmit(9),
        At::Drop,
    ];
    for at in at {
        let (port, deaths, fates) = dies(at);
        assert_eq!(deaths, 1, "{at:?}: it dies once");
        assert_eq!(fates, [0, 11, 0], "{at:?}: what the device did is not known");
        let said = port.death().expect("it died");
        assert!(said.contains("brittle") || said.contains("fragile: "), "{at:?}: {said}");
        let stats = port.snapshot();
        assert_eq!((stats.sent, stats.held), (0, 0), "{at:?}");
        assert_eq!(stats.dropped, [(DropReason::PortDead, 11)], "{at:?}");
        assert!(port.is_quiet() && !port.is_busy(), "{at:?}");
        // Closing a dead port drops nothing more.
        let ran = port.close(START, &Undertaker::default()).expect("nobody is inside");
        assert_eq!(ran.done, 0);
    }
}

/// When a port dies, packets that were sent before the panic still count as sent.
#[test]
fn a_death_counts_only_what_was_held() {
    let mut wire = crate::world::World::new("pfifo", 100);
    let _ = wire.push(40);
    wire.wire().panics = true;
    wire.pass(1_000_000);
    let _ = wire.push(3);
    assert_eq!(wire.port.death(), Some("as the script says"));
    let stats = wire.stats();
    assert_eq!((stats.sent, stats.held), (40, 0));
    assert_eq!(stats.dropped, [(DropReason::PortDead, 3)]);
    let _ = wire.push(2);
    assert_eq!(wire.dropped(DropReason::PortDead), 5);
}

/// A qdisc that panics when its port is closed.
#[test]
fn a_panic_while_closing() {
    let device = Fragile { info: DeviceInfo::new("fragile".to_owned(), MTU), left: None };
    let qdisc = Brittle { list: PacketList::new(), at: At::Enqueue(9), calls: 0 };
    let port = Port::new(Box::new(qdisc), device, 100);
    let waker = Undertaker::default();
    let ran = port.close(START, &waker).expect("nobody is inside");
    assert!(!ran.again);
    assert_eq!(port.death(), Some("it is not asked after it panicked"));
    assert!(port.is_quiet());
}

/// A FIFO qdisc whose `backlog` panics from the moment at which the flag is set.
#[derive(Debug, Default)]
struct Miscounts {
    list: PacketList,
    panics: Arc<AtomicBool>,
}

impl Qdisc for Miscounts {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        // All packets wait until long after the test.
        if self.list.is_empty() {
            Dequeue::Empty
        } else {
            Dequeue::NotBefore(cx.now.after(1 << 40))
        }
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        assert!(!self.panics.load(SeqCst), "it miscounts");
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        self.list.by_ref().for_each(|pkt| cx.drop(pkt, DropReason::Purged));
    }
}

/// The `backlog` of a qdisc panics. Whichever call makes a thread the owner that meets the panic,
/// the panic kills the port as a panic in another method does, and the port has an owner no more.
#[test]
fn a_panic_in_backlog_kills_the_port() {
    type Call = fn(&Port<Fragile>, &Undertaker);
    let one = || PacketList::from_iter([Packet::new(9)]);
    let calls: [(&str, Call); 4] = [
        ("job", |port, waker| {
            assert!(port.with(Box::new(|_, _| ()), START, waker).expect("few jobs wait"));
        }),
        ("visit", |port, waker| _ = port.visit(START, waker).expect("nobody is inside")),
        ("help", |port, waker| _ = port.help(START, waker).expect("nobody is inside")),
        ("close", |port, waker| _ = port.close(START, waker).expect("nobody is inside")),
    ];
    for (what, call) in calls {
        let info = DeviceInfo::new("fragile".to_owned(), MTU);
        let (qdisc, waker) = (Miscounts::default(), Undertaker::default());
        let panics = qdisc.panics.clone();
        let port = Port::new(Box::new(qdisc), Fragile { info, left: None }, 100);
        let _ = port.xmit((0..3).map(Packet::new).collect(), START, &waker);
        panics.store(true, SeqCst);
        call(&port, &waker);
        let _ = port.xmit(one(), START, &waker).expect("there is room");
        // A port that was busy as it died is left to the runner.
        let _ = port.visit(START, &waker).expect("nobody is inside");
        let deaths = waker.0.get();
        let purged = port.snapshot().dropped.iter().map(|(_, count)| *count).sum::<u64>();
        assert_eq!((port.death(), deaths), (Some("it miscounts"), 1), "{what}");
        assert_eq!((purged, port.is_quiet()), (4, true), "{what}");
    }
}
