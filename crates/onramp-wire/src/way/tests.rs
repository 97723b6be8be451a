//! Tests of one direction of a bridge, without interfaces and without a clock.

use std::fs::File;
use std::os::fd::BorrowedFd;

use onramp_dev::Null;

use super::*;

/// A receiver to which nothing comes.
#[derive(Debug)]
struct Silent(File);

impl AsFd for Silent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Receive for Silent {
    fn receive(
        &mut self,
        _most: usize,
        _make: &mut dyn FnMut(usize) -> Option<Packet>,
        _into: &mut PacketList,
    ) -> io::Result<usize> {
        Ok(0)
    }

    fn discarded(&self) -> u64 {
        0
    }
}

const START: Instant = Instant(1_000_000_000);
const MS: u64 = 1_000_000;

/// Returns a direction that carries one frame of 1,000 bytes per millisecond, in which `count`
/// frames wait.
fn way(slack: Duration, count: usize) -> Way {
    let spec = "tbf rate 8mbit burst 1000 limit 500000".parse().expect("a qdisc");
    let from = Silent(File::open("/dev/null").expect("every Linux has it"));
    let tree = Tree::new(&spec, 1_000);
    let mut way = Way::new(Box::new(from), tree, false, Box::new(Null::default())).slack(slack);
    for _ in 0..count {
        let mut frame = Packet::new(1_000);
        frame.len = 1_000;
        way.line.enqueue(frame, START);
    }
    way.due = Some(START);
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
    let late = wake.after(CATCH_UP_NS);
    for ms in 1..=26 {
        prompt.dequeue(START.after(ms * MS)).expect("it carries");
    }
    slack.dequeue(late).expect("it carries");
    assert_eq!((prompt.ready.len(), slack.ready.len()), (27, 27));
    assert_eq!(slack.next(), Some(START.after(47 * MS)));
}
