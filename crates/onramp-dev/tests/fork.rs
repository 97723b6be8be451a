//! Children of `fork`, and how a process recognizes that it is such a child. The test is a program
//! of its own with a single test, because a child has only the thread that called `fork`, and a
//! lock that another thread held would stay held.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use onramp_core::{Device, Instant};
use onramp_dev::capture::{Advice, Blocks, CaptureFile, CaptureOptions};
use onramp_dev::{forks, loopback, run_in_child, watch_forks};
use onramp_queue::{Packet, PacketList};

/// Runs `child` in a child process, and returns how that process ended.
fn status(child: impl FnOnce() -> i32) -> WaitStatus {
    let number = run_in_child(child).expect("there can be a child");
    assert!(number > 0, "the parent goes on, and knows its child");
    let pid = Pid::from_raw(number);
    let status = waitpid(pid, None).expect("it is ours");
    assert_eq!(status.pid(), Some(pid));
    status
}

fn exit(child: impl FnOnce() -> i32) -> i32 {
    match status(child) {
        WaitStatus::Exited(_, code) => code,
        other => panic!("it did not exit: {other:?}"),
    }
}

fn number(forks: u32) -> i32 {
    i32::try_from(forks).expect("a few")
}

#[test]
fn a_child_knows_that_it_is_one() {
    // Forks are counted only after the first call of `watch_forks`. So the number is still 0, even
    // in a child.
    assert_eq!((forks(), exit(|| number(forks()))), (0, 0));
    assert_eq!((watch_forks(), watch_forks(), forks()), (0, 0, 0));
    // The number of forks is 1 in a child and 2 in a child's child, whichever function reads it and
    // however often.
    assert_eq!(exit(|| number(forks())), 1);
    assert_eq!(exit(|| number(watch_forks() + 10 * watch_forks())), 11);
    assert_eq!(exit(|| 10 * number(forks()) + exit(|| number(forks()))), 12);
    assert_eq!(forks(), 0, "the parent is what it was");
    // The value that the closure returns is the child's exit status, and the child runs nothing
    // else of the program.
    for code in [0, 1, 7, 255] {
        assert_eq!(exit(|| code), code);
    }
    // Replace the default panic hook, because it would take a lock to print.
    std::panic::set_hook(Box::new(|_| {}));
    let code = exit(|| panic!("as the test wants it"));
    drop(std::panic::take_hook());
    assert_eq!(code, 101, "as a Rust program that panics");
    a_receiver_has_ended_in_a_child();
    a_capture_stays_locked_when_a_child_drops_its_copy();
}

/// The copy of a receiver in a child gets none of the packets that its parent gets, and does not
/// wait for packets that cannot come.
fn a_receiver_has_ended_in_a_child() {
    let (mut device, mut receiver) = loopback(8);
    let mut send = |cookies: std::ops::Range<u64>| {
        let mut burst: PacketList = cookies
            .map(|cookie| {
                let mut packet = Packet::with_payload(b"x");
                packet.cookie = cookie;
                packet
            })
            .collect();
        let _ = device.transmit(&mut burst, &mut PacketList::new(), Instant(1));
    };
    let child = |receiver: &mut onramp_dev::Receiver| {
        exit(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let ended = matches!(receiver.poll_recv(&mut cx), Poll::Ready(None));
            if !ended || !receiver.has_ended() {
                return 1;
            }
            let nothing = receiver.try_recv().is_none() && receiver.recv_all().is_empty();
            i32::from(!nothing || receiver.wait(Duration::MAX)) * 2
        })
    };
    assert_eq!(child(&mut receiver), 0, "nothing waits");
    send(0..3);
    assert_eq!(child(&mut receiver), 0, "packets wait in the network");
    assert_eq!(receiver.try_recv().map(|packet| packet.cookie), Some(0));
    assert_eq!(child(&mut receiver), 0, "packets wait in the receiver");
    assert!(!receiver.has_ended(), "the parent is what it was");
    assert_eq!(receiver.recv_all().map(|packet| packet.cookie).collect::<Vec<_>>(), [1, 2]);
    send(3..4);
    assert_eq!(receiver.try_recv().map(|packet| packet.cookie), Some(3));
    // A receiver that a child makes for itself works there.
    let code = exit(|| {
        let (mut device, mut own) = loopback(1);
        let mut burst = PacketList::from_iter([Packet::with_payload(b"x")]);
        let _ = device.transmit(&mut burst, &mut PacketList::new(), Instant(1));
        i32::from(own.has_ended() || own.try_recv().is_none())
    });
    assert_eq!(code, 0);
}

/// A child that drops its copy of a writer, or of a reader, does not let other writers empty the
/// file.
fn a_capture_stays_locked_when_a_child_drops_its_copy() {
    let name = format!("onramp-{}-forked.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    let create = || {
        CaptureFile::create(&path, CaptureOptions { replace: true, ..CaptureOptions::default() })
    };
    let mut writer = Some(create().expect("a file"));
    assert_eq!(exit(|| i32::from(writer.take().is_none())), 0);
    create().expect_err("the parent writes it");
    drop(writer);
    drop(create().expect("nobody has it"));
    let mut reader = Some(Blocks::open(&path, Advice::default()).expect("it is a capture"));
    assert_eq!(exit(|| i32::from(reader.take().is_none())), 0);
    create().expect_err("the parent reads it");
    drop(reader);
    create().expect("nobody has it");
    std::fs::remove_file(&path).expect("it is there");
}
