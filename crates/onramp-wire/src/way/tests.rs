//! Tests of one direction of a bridge, without interfaces and without a clock.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onramp_core::{DeviceInfo, Transmitted};
use onramp_dev::Null;

use super::*;

/// A receiver to which some frames come, and no more. It has discarded one.
#[derive(Debug)]
struct Few(usize, File);

impl Few {
    fn new(count: usize) -> Box<Self> {
        Box::new(Self(count, File::open("/dev/null").expect("every Linux has it")))
    }
}

impl AsFd for Few {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

impl Receive for Few {
    fn receive(
        &mut self,
        most: usize,
        _make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        let count = self.0.min(most);
        self.0 -= count;
        (0..count).for_each(|_| into.push_back(Packet::new(1_000)));
        Ok(count)
    }

    fn discarded(&self) -> u64 {
        1
    }
}

const START: Instant = Instant(1_000_000_000);
const MS: u64 = 1_000_000;

/// Returns a direction that carries one frame of 1,000 bytes per millisecond, in which `count`
/// frames wait.
fn way(slack: Duration, count: usize) -> Way {
    let spec = "tbf rate 8mbit burst 1000 limit 500000".parse().expect("a qdisc");
    let tree = Tree::new(&spec, 1_000);
    let mut way = Way::new(Few::new(0), tree, Box::new(Null::default())).slack(slack);
    for _ in 0..count {
        let mut frame = Packet::new(1_000);
        frame.len = 1_000;
        way.lane.line.enqueue(frame, START);
    }
    way.lane.look(START);
    way.dequeue(START).expect("it carries");
    assert_eq!(way.ready.len(), 1);
    way
}

/// With a slack, the thread wakes later, and the same frames have left as without it.
#[test]
fn a_way_with_slack_wakes_later_and_keeps_its_rate() {
    let mut prompt = way(Duration::ZERO, 40);
    assert_eq!(prompt.next(), Some(START.after(MS)));
    // The slack is longer than the bound on catching up, and the thread comes late by that bound.
    let mut slack = way(Duration::from_millis(20), 40);
    let wake = START.after(21 * MS);
    assert_eq!(slack.next(), Some(wake));
    let late = wake.after(crate::lane::CATCH_UP_NS);
    for ms in 1..=26 {
        prompt.dequeue(START.after(ms * MS)).expect("it carries");
    }
    slack.dequeue(late).expect("it carries");
    assert_eq!((prompt.ready.len(), slack.ready.len()), (27, 27));
    assert_eq!(slack.next(), Some(START.after(47 * MS)));
}

/// A device that takes some frames, and no more until it is told so.
#[derive(Debug)]
struct Slow {
    info: DeviceInfo,
    room: Arc<AtomicUsize>,
}

impl Device for Slow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        // Relaxed: the test has one thread.
        while self.room.load(Ordering::Relaxed) > 0 {
            let Some(packet) = burst.pop_front() else { break };
            self.room.fetch_sub(1, Ordering::Relaxed);
            done.push_back(packet);
        }
        Transmitted::default()
    }
}

/// Frames that the device does not take wait in the qdisc, whose limit holds; when the device has
/// room again, they go on, and each frame is accounted for.
#[test]
fn frames_that_cannot_leave_wait_in_the_qdisc() {
    let room = Arc::new(AtomicUsize::new(5));
    let info = DeviceInfo::new("slow".to_owned(), 1_000).never_blocks();
    let to = Slow { info, room: room.clone() };
    let tree = Tree::new(&"pfifo limit 100".parse().expect("a qdisc"), 1_000);
    let mut way = Way::new(Few::new(0), tree, Box::new(to));
    let frame = |way: &mut Way, now: Instant| {
        let mut frame = Packet::new(1_000);
        frame.len = 1_000;
        way.lane.line.enqueue(frame, now);
        way.look(now).expect("it carries");
        way.send(now).expect("it carries");
    };
    for _ in 0..500 {
        frame(&mut way, START);
    }
    let counts = way.carried();
    assert_eq!((counts.waiting, counts.queued), (BATCH as u64, 100));
    assert_eq!((counts.carried(), counts.qdiscs.dropped_packets()), (5, 500 - 5 - 100 - 64));
    // The device has named no time, so it is asked again after a tick, and not before.
    assert_eq!(way.next(), Some(START.after(TICK_NS)));
    room.store(1_000, Ordering::Relaxed); // Relaxed: as above.
    way.send(START.after(1)).expect("it carries");
    assert_eq!(way.carried().carried(), 5);
    way.send(START.after(TICK_NS)).expect("it carries");
    let counts = way.carried();
    assert_eq!((counts.carried(), counts.held()), (5 + 64 + 100, 0));
    assert_eq!(way.next(), None);
}

/// The frames of all receivers go through the tree, and one that has more is asked again.
#[test]
fn several_receivers_have_one_tree() {
    let tree = Tree::new(&"pfifo limit 1000".parse().expect("a qdisc"), 1_000);
    let way = Way::new(Few::new(2 * BATCH), tree, Box::new(Null::default()));
    let mut way = way.and_from(Few::new(10));
    let mut more = Vec::new();
    for _ in 0..3 {
        more.push(way.run().expect("nothing fails"));
    }
    assert_eq!(more, [true, true, false]);
    let counts = way.carried();
    assert_eq!((counts.carried(), counts.discarded), (10 + 2 * BATCH as u64, 2));
    assert_eq!(way.fds().count(), 2);
}
