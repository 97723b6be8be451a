//! When another thread becomes the owner, the port has the qdisc prefetch the packets that earlier
//! owners have in their caches.

use std::sync::{Arc, Mutex};
use std::thread;

use onramp_core::qdisc::{Backlog, Cx, Dequeue, Peek, Qdisc, Verdict};
use onramp_core::{
    Device, DeviceInfo, Instant, Mode, Port, PortOptions, PortWaker, TICK_NS, Transmitted,
};
use onramp_queue::{DropReason, Packet, PacketList};

use crate::world::{START, packet};

/// A fifo that notes each request to prefetch, and releases at most `gate` packets.
#[derive(Debug)]
struct Noted {
    list: PacketList,
    gate: Arc<Mutex<u32>>,
    asked: Arc<Mutex<Vec<u32>>>,
}

impl Qdisc for Noted {
    fn enqueue(&mut self, pkt: Packet, _cx: &mut Cx<'_>) -> Verdict {
        self.list.push_back(pkt);
        Verdict::Queued
    }

    fn dequeue(&mut self, cx: &mut Cx<'_>) -> Dequeue {
        let mut gate = self.gate.lock().unwrap();
        if *gate == 0 {
            return Dequeue::NotBefore(cx.now.after(TICK_NS));
        }
        *gate -= 1;
        self.list.pop_front().map_or(Dequeue::Empty, Dequeue::Ready)
    }

    fn peek(&mut self, _cx: &mut Cx<'_>) -> Peek {
        unreachable!("it stands below no other")
    }

    fn backlog(&self) -> Backlog {
        Backlog { packets: self.list.len(), bytes: self.list.bytes() }
    }

    fn prefetch_next(&self, most: u32) {
        self.asked.lock().unwrap().push(most);
    }

    fn reset(&mut self, cx: &mut Cx<'_>) {
        while let Some(pkt) = self.list.pop_front() {
            cx.drop(pkt, DropReason::Purged);
        }
    }
}

struct Nobody;

impl PortWaker for Nobody {
    fn visit_by(&self, _at: Instant) {}
}

/// Takes so many packets in one call.
struct Takes(DeviceInfo, u32);

impl Device for Takes {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        (0..self.1).map_while(|_| burst.pop_front()).for_each(|pkt| done.push_back(pkt));
        let retry_at = (!burst.is_empty()).then_some(now);
        Transmitted { calls: 1, messages: 1, retry_at }
    }
}

/// A port with packets, whose device takes `takes` of them in one call.
struct Trial {
    port: Port<Takes>,
    gate: Arc<Mutex<u32>>,
    asked: Arc<Mutex<Vec<u32>>>,
}

impl Trial {
    fn new(takes: u32) -> Self {
        let (gate, asked) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
        let qdisc = Noted { list: PacketList::new(), gate: gate.clone(), asked: asked.clone() };
        let device = Takes(DeviceInfo::new("takes".to_owned(), 1_000), takes);
        let options = PortOptions { mode: Mode::Dedicated, ..PortOptions::default() };
        Self { port: Port::with_options(Box::new(qdisc), device, 1_000, options), gate, asked }
    }

    fn push(&self, count: u64) {
        let list = (0..count).map(|_| packet(0, 1, START)).collect();
        let _ = self.port.xmit(list, START, &Nobody).expect("room");
    }

    /// Lets up to so many packets leave the qdisc, and returns what it was asked to prefetch.
    fn send(&self, packets: u32) -> Vec<u32> {
        *self.gate.lock().unwrap() = packets;
        let _ = self.port.visit(START, &Nobody);
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

#[test]
fn the_packets_of_earlier_owners_are_prefetched_once() {
    let trial = Trial::new(u32::MAX);
    trial.push(200);
    assert_eq!(trial.send(3), [], "this thread has enqueued them");
    let by_another = || {
        assert_eq!(trial.send(0), [], "nothing may leave");
        assert_eq!(trial.send(10), [63], "the rest of a burst");
        assert_eq!(trial.send(54), [], "that burst");
        assert_eq!(trial.send(1), [63], "the next burst");
        assert_eq!(trial.send(64), [], "the rest of it, and one more");
        assert_eq!(trial.send(64), [63], "a third burst");
        assert_eq!(trial.send(4), [3], "the last ones of the other thread");
        trial.push(7);
        assert_eq!(trial.send(4), [], "its own");
    };
    thread::scope(|scope| scope.spawn(by_another).join().unwrap());
    // 207 - 3 - 10 - 54 - 1 - 64 - 64 - 4 - 4 are left.
    assert_eq!(trial.send(1_000), [2]);
    assert_eq!(trial.port.snapshot().held, 0);
}

/// If the device takes a part of a burst, the next burst has room for so many packets.
#[test]
fn as_many_packets_are_prefetched_as_are_dequeued() {
    let trial = Trial::new(10);
    trial.push(200);
    assert_eq!(trial.send(0), []);
    let by_another = || {
        assert_eq!([(); 3].map(|()| trial.send(1_000)), [[63], [9], [9]]);
    };
    thread::scope(|scope| scope.spawn(by_another).join().unwrap());
}
