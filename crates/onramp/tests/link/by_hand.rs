//! Links without threads: the program makes the runner's rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{BuildError, Credits, Device, Link, LinkBuilder, Mode, PortError, TrySendError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::common::{Gate, LONG, gated, in_time};
use super::trap::Trap;

fn nulls(count: usize) -> LinkBuilder {
    Link::devices((0..count).map(|_| Box::new(Null::default()) as Box<dyn Device>)).manual()
}

/// Waits until the link's descriptor is readable, and panics if it is not within the time `LONG`.
#[track_caller]
fn wait(link: &Link) {
    assert!(is_due(link, LONG), "nobody rang");
}

/// Whether the link's descriptor becomes readable within `timeout`.
fn is_due(link: &Link, timeout: Duration) -> bool {
    let descriptor = link.descriptor().expect("the link has no threads");
    let timeout = Timespec::try_from(timeout).expect("a short time");
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).expect("it waits") == 1
}

/// An owner that has been slow leaves the second of two commands to the next round. The thread that
/// waits for it is the one that makes the rounds.
#[test]
fn a_thread_that_waits_for_an_answer_makes_the_rounds() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device()]).manual().build().expect("a link");
        let owner = trap.catch(&link, 0);
        let (_, first) = link.begin_change("qdisc replace root pfifo").expect("it waits");
        let (_, second) = link.begin_change("qdisc change root pfifo limit 9").expect("too");
        // The owner's run becomes late.
        thread::sleep(Duration::from_millis(1));
        trap.open();
        owner.join().expect("it was sent");
        // In 1 s, a caller gives up.
        first.wait().expect("the owner has done it");
        second.wait().expect("this thread makes the round");
    });
}

/// A port that nobody owns answers at once, so no packet leaves in a call that asks it.
#[test]
fn what_is_answered_at_once_sends_nothing() {
    let link = nulls(1).mode(Mode::Dedicated).qdisc("pfifo").build().expect("a link");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.try_send(&flow, b"x").expect("it has room");
    assert_eq!(link.views(0).expect("it answers").len(), 1);
    link.change("qdisc change root pfifo limit 9").expect("it is changed");
    link.measure(true);
    assert_eq!(link.stats().sent, 0, "nobody has run the link");
    while link.run().is_some() {}
    assert_eq!(link.stats().sent, 1);
}

/// Packets whose time has come leave in `run`, and neither earlier nor by themselves.
#[test]
fn packets_leave_when_the_program_runs_the_link() {
    for mode in [Mode::Dedicated, Mode::Hybrid] {
        let link = nulls(1).mode(mode).qdisc("netem delay 2ms").build().expect("a link");
        assert!(!is_due(&link, Duration::ZERO), "nothing was sent");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..3 {
            sender.try_send(&flow, b"x").expect("it has room");
        }
        wait(&link);
        let (sent, held) = (link.stats().sent, link.stats().held);
        assert_eq!(sent + held, 3);
        // In the hybrid mode, a thread that sends also serves the port, and so sends what is due
        // if it is slow.
        assert!(sent == 0 || mode == Mode::Hybrid, "nobody has run the link");
        while link.stats().sent < 3 {
            wait(&link);
            if let Some(next) = link.run() {
                assert!(next.0 < u64::MAX, "a time at which something is due");
            }
        }
        assert_eq!(link.run(), None);
        assert!(!is_due(&link, Duration::ZERO), "nothing is due");
        assert!(sender.flush(Duration::ZERO), "they are home");
        assert_eq!(link.stats().runner_stand_ins, 0);
    }
}

/// No request is lost that comes while the program ends a round: each packet of another thread
/// makes the descriptor readable.
#[test]
fn each_packet_of_another_thread_rings() {
    in_time(|| {
        let link = nulls(1).mode(Mode::Dedicated).qdisc("pfifo").build().expect("a link");
        let (ask, asked) = channel::<()>();
        let sends = link.clone();
        let other = thread::Builder::new().spawn(move || {
            let mut sender = sends.sender();
            let flow = sender.flow(None);
            while asked.recv().is_ok() {
                sender.send(&flow, b"x").expect("the link is open");
            }
        });
        for round in 1..=3_000 {
            ask.send(()).expect("the thread waits");
            while link.stats().sent < round {
                wait(&link);
                link.run();
            }
            if round % 2 == 0 {
                // The next packet comes while this round ends.
                link.run();
            }
        }
        drop(ask);
        other.expect("a thread").join().expect("no panic");
    });
}

/// A call that waits does the program's work meanwhile.
#[test]
fn waits_end_although_nobody_runs_the_link() {
    in_time(|| {
        let few = Credits { packets: 4, bytes: 1 << 16 };
        for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
            let builder = nulls(1).mode(mode).credits(few);
            let link = builder.qdisc("tbf rate 8mbit burst 1600 limit 1mb").build().expect("one");
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for _ in 0..20 {
                sender.send(&flow, &[0; 1_000]).expect("the link is open");
            }
            assert!(sender.flush(LONG), "{mode:?}: all came home");
            sender.send(&flow, &[0; 1_000]).expect("the link is open");
            sender.send(&flow, &[0; 1_000]).expect("the link is open");
            assert!(link.flush(LONG), "{mode:?}: the link is empty");
            sender.send(&flow, &[0; 1_000]).expect("the link is open");
            sender.send(&flow, &[0; 1_000]).expect("the link is open");
            let report = link.close(LONG);
            assert!(report.flushed && report.purged == 0, "{mode:?}: {report:?}");
            assert_eq!((link.stats().submitted, link.stats().sent), (24, 24));
            assert_eq!(link.run(), None, "it is closed");
            assert!(!is_due(&link, Duration::ZERO), "{mode:?}: nothing is due any more");
        }
    });
}

/// A task waits for room, and the program's rounds free it.
#[test]
fn the_program_serves_tasks_that_wait() {
    let gate = Gate::new(false);
    let few = Credits { packets: 2, bytes: 1 << 16 };
    let link = gated(&gate, "pfifo").credits(few).manual().build().expect("a link");
    let mut sender = link.sender();
    let flow = sender.flow(None);
    for _ in 0..2 {
        sender.try_send(&flow, b"x").expect("it has credit");
    }
    let told = Arc::new(Told::default());
    let waker = told.clone().into();
    let mut cx = Context::from_waker(&waker);
    // A poll may send packets itself, and asks to be polled again then.
    while sender.poll_ready(&mut cx, &flow, 1).is_pending() {
        if !told.0.swap(false, Ordering::SeqCst) {
            break;
        }
    }
    gate.open();
    while !told.0.load(Ordering::SeqCst) {
        wait(&link);
        link.run();
    }
    assert!(sender.poll_ready(&mut cx, &flow, 1).is_ready());
    assert!(link.stats().sent > 0 && sender.try_send(&flow, b"x").is_ok());
}

/// Whether a task was woken.
#[derive(Debug, Default)]
struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn trees_change_and_ports_come_and_go_without_threads() {
    in_time(|| {
        let link = nulls(2).qdisc("netem delay 1s").build().expect("a link");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.try_send(&flow, b"x").expect("it has room");
        link.change("qdisc replace root pfifo").expect("the caller makes the change");
        assert_eq!(link.stats().dropped.values().sum::<u64>(), 1, "the netem is gone");
        let port = link.add_port(Null::default()).expect("there is room");
        let report = link.remove_port(port, LONG).expect("the port is there");
        assert!(report.flushed, "{report:?}");
        sender.try_send(&flow, b"x").expect("it has room");
        assert_eq!(link.stats().sent, 1);
        assert!(matches!(link.remove_port(9, LONG), Err(PortError::Unknown(9))));
    });
}

#[test]
fn options_of_threads_do_not_go_with_it() {
    let priority = onramp::dev::Priority::Nice(1);
    for (builder, what) in [
        (nulls(1).runners(1), "the number of runners is 1"),
        (nulls(1).runner_cpus([0]), "the number of processors for runners is 1"),
        (nulls(1).runner_priority(priority), "the number of priorities for runners is 1"),
        (nulls(1).spin(Duration::from_micros(9)), "the nanoseconds to spin is 9000"),
    ] {
        let error = builder.build().expect_err("there are no threads");
        assert!(matches!(error, BuildError::Range(..)), "{error:?}");
        let want = format!("{what}; expected 0, because the program runs the link (`manual`)");
        assert_eq!(error.to_string(), want);
    }
}

#[test]
#[should_panic(expected = "the threads of this link do the work of its runner")]
fn a_link_with_threads_is_not_run_by_hand() {
    let device = Box::new(Null::default()) as Box<dyn Device>;
    let link = Link::devices([device]).build().expect("a link");
    assert!(link.descriptor().is_none());
    link.run();
}

#[test]
fn a_sender_may_have_credits_of_its_own() {
    let gate = Gate::new(false);
    let link = gated(&gate, "pfifo").manual().build().expect("a link");
    for packets in [1, 3, 200] {
        let mut sender = link.sender_with(Credits { packets, bytes: 1 << 16 });
        let flow = sender.flow(None);
        for _ in 0..packets {
            sender.try_send(&flow, b"x").expect("it has credit");
        }
        assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full), "{packets}");
    }
}
