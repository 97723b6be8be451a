//! The number of threads that a link has. The tests in this file run one after another, because
//! each counts the threads of all links of the process.

#[path = "link/common.rs"]
#[expect(dead_code, reason = "other tests need the rest")]
mod common;
#[path = "link/trap.rs"]
#[expect(dead_code, reason = "other tests need the rest")]
mod trap;

use std::fs;
use std::sync::{Mutex, PoisonError};

use onramp::dev::{Null, loopback};
use onramp::{Device, Link, Mapping, Mode};

use crate::common::{LONG, balanced, in_time, until};
use crate::trap::Trap;

/// Returns the number of threads that the links of this process have, all links together.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("this is Linux").flatten();
    // A thread may have ended since `read_dir` listed it. Then its name cannot be read, and it is
    // not counted.
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.starts_with("onramp-run")).count()
}

/// Runs `test` while no other test runs, and checks that no thread of a link is left after it.
fn alone(test: impl FnOnce() + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    in_time(move || {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        test();
        // `/proc` may list a thread for a moment after the thread has ended.
        until("the threads are gone", || threads() == 0);
    });
}

fn null() -> Box<dyn Device> {
    Box::new(Null::default())
}

/// A link whose devices never block, or that has only one port, has no threads but its runners.
#[test]
fn a_link_without_devices_that_block_has_its_runners() {
    alone(|| {
        let mailboxes = || (0..4).map(|_| Box::new(loopback(9).0) as Box<dyn Device>).collect();
        let nulls = || (0..8).map(|_| null()).collect();
        let trap = Trap::new();
        let cases: [(Vec<Box<dyn Device>>, usize); 4] =
            [(nulls(), 1), (mailboxes(), 1), (vec![trap.device()], 1), (nulls(), 3)];
        for (devices, runners) in cases {
            let link = Link::devices(devices).runners(runners).build().unwrap();
            let mut sender = link.sender();
            for _ in 0..8 {
                let flow = sender.flow(None);
                sender.send(&flow, b"x").unwrap();
            }
            assert!(link.flush(LONG));
            until("they have started", || threads() >= runners);
            assert_eq!(threads(), runners);
            let udp = Link::udp("127.0.0.1:0").ports(4).build().unwrap();
            until("it has started", || threads() > runners);
            assert_eq!(threads(), runners + 1, "a socket never blocks");
            drop((udp, sender, link));
            until("the threads are gone", || threads() == 0);
        }
    });
}

/// A link with several ports, one of whose devices may block, has one more thread, which watches
/// the runners. The thread is started even if such a port is added later.
#[test]
fn a_link_with_a_device_that_may_block_has_a_watch() {
    alone(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device(), null()]).build().unwrap();
        until("they have started", || threads() == 2);
        drop(link);
        until("they are gone", || threads() == 0);
        for may_block in [false, true] {
            let first = if may_block { trap.device() } else { null() };
            let link = Link::devices([first]).build().unwrap();
            until("it has started", || threads() == 1);
            link.add_port(Null::default()).unwrap();
            let count = 1 + usize::from(may_block);
            until("the watch has started", || threads() == count);
            link.add_port(Null::default()).unwrap();
            assert_eq!(threads(), count, "one is enough");
            drop(link);
            until("they are gone", || threads() == 0);
        }
    });
}

/// Devices block runners and return again and again. Each time, the same threads take over the
/// roles of the runners, so the number of threads does not grow.
#[test]
fn devices_that_block_again_and_again_cost_no_more_threads() {
    alone(|| {
        let traps = [Trap::new(), Trap::new()];
        let devices: Vec<_> = traps.iter().map(|trap| trap.device()).chain([null()]).collect();
        // In the mode `Dedicated`, senders never call the device, so the devices block only
        // runners.
        let link = Link::devices(devices).mode(Mode::Dedicated).runners(1).build().unwrap();
        let mut sender = link.sender();
        let flows = [0, 1, 2].map(|port| sender.flow_with(None, Mapping::Port(port)));
        let most = 1 + 1 + traps.len();
        for round in 1..=100 {
            for (trap, flow) in traps.iter().zip(&flows) {
                trap.shut();
                sender.send(flow, b"blocks").unwrap();
                until("a runner is inside", || trap.inside() == 1);
            }
            sender.send(&flows[2], b"goes on").unwrap();
            until("another serves the rest", || link.stats().ports[2].sent == round);
            assert!(threads() <= most, "{} of {most} in round {round}", threads());
            traps.iter().for_each(|trap| trap.open());
            assert!(sender.flush(LONG));
            until("they are back", || traps.iter().all(|trap| trap.inside() == 0));
        }
        assert!(link.flush(LONG));
        assert!(threads() <= most);
        balanced(&link.stats());
        assert_eq!(link.close(LONG).blocked, 0);
        until("all threads have ended", || threads() == 0);
    });
}
