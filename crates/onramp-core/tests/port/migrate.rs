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

struct Takes(DeviceInfo);

impl Device for Takes {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

#[test]
fn the_packets_of_earlier_owners_are_prefetched_once() {
    let (gate, asked) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
    let qdisc = Noted { list: PacketList::new(), gate: gate.clone(), asked: asked.clone() };
    let device = Takes(DeviceInfo::new("takes".to_owned(), 1_000));
    let options = PortOptions { mode: Mode::Dedicated, ..PortOptions::default() };
    let port = Port::with_options(Box::new(qdisc), device, 1_000, options);
    let push = |count: u64| {
        let list = (0..count).map(|_| packet(0, 1, START)).collect();
        let _ = port.xmit(list, START, &Nobody).expect("room");
    };
    // Lets some packets leave, and returns what the qdisc was asked to prefetch.
    let send = |packets: u32| {
        *gate.lock().unwrap() = packets;
        let _ = port.visit(START, &Nobody);
        std::mem::take(&mut *asked.lock().unwrap())
    };
    push(200);
    assert_eq!(send(3), [], "this thread has enqueued them");
    let by_another = || {
        assert_eq!(send(0), [64], "a burst at most");
        assert_eq!(send(0), [64], "the next ones");
        assert_eq!(send(10), [64]);
        assert_eq!(send(0), [5], "the last ones of the other thread");
        push(7);
        assert_eq!(send(100), [], "its own");
    };
    thread::scope(|scope| scope.spawn(by_another).join().unwrap());
    // A run ends with its quota of 64 packets, so 207 - 3 - 10 - 64 are left.
    assert_eq!([(); 3].map(|()| send(1_000)), [[64], [64], [2]]);
    assert_eq!(port.snapshot().held, 0);
}
