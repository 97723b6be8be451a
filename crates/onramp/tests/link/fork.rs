//! Children of `fork`, which have copies of a link without its threads. In a child, every call
//! returns and no packet is accepted. No packet leaves through the sockets that parent and child
//! share.

use std::ffi::CStr;
use std::fs;
use std::future::Future;
use std::net::UdpSocket;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::{Null, run_in_child};
use onramp::{
    CloseReport, Flow, Link, Mapping, Message, Packet, PortError, Rate, Sender, Setup, TrySendError,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::common::{LONG, SHORT, balanced, credits, in_time, now, until};
use crate::trap::Trap;

/// Time limit for a child that nothing blocks.
const PATIENCE: Duration = Duration::from_secs(120);

/// The copies of a link, a sender and a flow that a child uses.
struct World {
    link: Link,
    sender: Sender,
    flow: Flow,
}

/// The name of a call that a child makes, and the call, which returns whether its result was right.
type Step = (&'static CStr, fn(&mut World) -> bool);

const CLOSED: TrySendError = TrySendError::Closed;

fn is_closed<T>(said: Result<T, PortError>) -> bool {
    matches!(said, Err(PortError::Closed))
}

fn makes_a_sender(World { link, .. }: &mut World) -> bool {
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.try_send(&flow, b"child") == Err(CLOSED) && sender.flush(LONG)
}

fn corks(World { sender, flow, .. }: &mut World) -> bool {
    sender.cork();
    let refused = sender.try_send(flow, b"child") == Err(CLOSED);
    let whole = sender.submit(flow, Packet::with_payload(b"child"));
    let batch = sender.try_send_batch(flow, [b"child"; 3]);
    refused && whole.is_err_and(|rejected| rejected.why == CLOSED) && batch == Err(CLOSED)
}

/// Watches the flow, which cannot send, and takes back what the flow has queued.
fn watches(World { sender, flow, .. }: &mut World) -> bool {
    sender.watch(flow);
    let refused = sender.try_send(flow, b"child") == Err(CLOSED);
    refused && sender.flow_stats(flow).is_some_and(|stats| stats.sent == 0)
}

const STEPS: [Step; 33] = [
    (c"watch", watches),
    (c"try_send", |w| w.sender.try_send(&w.flow, b"child") == Err(CLOSED)),
    (c"send", |w| w.sender.send(&w.flow, b"child").is_err()),
    (c"send_batch", |w| w.sender.send_batch(&w.flow, &[b"child"; 9]).is_err()),
    (c"submit", |w| {
        let said = w.sender.submit(&w.flow, Packet::with_payload(b"child"));
        said.is_err_and(|rejected| rejected.why == CLOSED)
    }),
    (c"messages", |w| {
        let message = Message { payload: b"child", ..Message::default() };
        let one = w.sender.try_send_message(&w.flow, &message) == Err(CLOSED);
        let all = w.sender.try_send_messages(&w.flow, [message]) == Err(CLOSED);
        one && all && w.sender.send_message(&w.flow, &message).is_err()
    }),
    (c"credit_time", |w| {
        w.sender.set_credit_time(Some(Duration::from_millis(1)));
        let refused = w.sender.try_send(&w.flow, b"child") == Err(CLOSED);
        w.sender.set_credit_time(None);
        refused
    }),
    (c"cork", corks),
    (c"cancel", |w| w.sender.cancel(&w.flow).is_some()),
    (c"uncork", |w| w.sender.uncork().is_ok()),
    (c"wait_room", |w| {
        w.sender.wait_room(&w.flow, 1);
        w.sender.wait_room_timeout(&w.flow, 1, LONG)
    }),
    (c"poll_ready", |w| {
        let mut cx = Context::from_waker(Waker::noop());
        w.sender.poll_ready(&mut cx, &w.flow, 1).is_ready()
    }),
    (c"flush", |w| w.sender.flush(LONG) == (w.sender.in_flight() == 0)),
    (c"flushed", |w| {
        let polled = w.sender.poll_flush(&mut Context::from_waker(Waker::noop()));
        polled == Poll::Ready(w.sender.in_flight() == 0)
    }),
    (c"unwatch", |w| {
        let last = w.sender.unwatch(&w.flow);
        let unknown = w.sender.unwatch(&w.flow).is_none() && w.sender.cancel(&w.flow).is_none();
        last.is_some_and(|stats| stats.sent == 0) && unknown
    }),
    (c"flush link", |w| !w.link.flush(LONG)),
    (c"stats", |w| w.link.stats().ports.len() == w.link.ports()),
    (c"views", |w| w.link.views(0).is_err() && w.link.all_views().is_empty()),
    (c"tree", |w| {
        let _ = (w.link.tree_views(), w.link.setup(), w.link.deaths(), w.link.now());
        w.link.measure(true);
        w.link.change("qdisc replace dev d0 root fq").is_err()
    }),
    (c"filters", |w| {
        let none = w.link.filters("1:".parse().unwrap()).is_empty();
        let passes = w.link.ingress().hold().passes(w.link.now(), &mut Packet::with_payload(b"x"));
        none && passes
    }),
    (c"new tree", |w| {
        let mut tree = Setup::default();
        tree.apply("tc qdisc add dev d0 root fq").unwrap();
        is_closed(w.link.set_tree(&tree))
    }),
    (c"add_port", |w| is_closed(w.link.add_port(Null::default()))),
    (c"remove_port", |w| is_closed(w.link.remove_port(0, LONG))),
    (c"set_qdisc", |w| is_closed(w.link.set_qdisc("pfifo limit 1"))),
    (c"set_rate", |w| w.link.set_rate(Rate::bytes_per_second(1)).is_err()),
    (c"new sender", makes_a_sender),
    (c"new flow", |w| {
        let flow = w.sender.flow_with(None, Mapping::Cpu);
        w.sender.try_send(&flow, b"child") == Err(CLOSED)
    }),
    (c"reclaim", |w| w.sender.reclaim() <= 1_000),
    (c"clone", |w| {
        drop(w.link.clone());
        true
    }),
    (c"closing", |w| {
        let mut cx = Context::from_waker(Waker::noop());
        let report = CloseReport { flushed: false, purged: 0, blocked: 0 };
        pin!(w.link.closing(LONG)).poll(&mut cx) == Poll::Ready(report)
    }),
    (c"close", |w| w.link.close(LONG) == CloseReport { flushed: false, purged: 0, blocked: 0 }),
    (c"close again", |w| !w.link.close(Duration::ZERO).flushed),
    (c"at last", |w| w.sender.try_send(&w.flow, b"child") == Err(CLOSED)),
];

/// Makes all the calls in the child, and sets the name of the child's thread to the present call.
/// If the child hangs, the parent reads that name from the kernel.
fn child(world: &mut Option<World>) -> i32 {
    for (number, (name, step)) in (1..).zip(&STEPS) {
        let _ = rustix::thread::set_name(name);
        if !world.as_mut().is_some_and(step) {
            return number;
        }
    }
    let Some(World { link, sender, .. }) = world.take() else { return -1 };
    let _ = rustix::thread::set_name(c"drop sender");
    drop(sender);
    let _ = rustix::thread::set_name(c"drop link");
    drop(link);
    0
}

/// Forks a child that makes all the calls, and checks that each call returned the right result in
/// time.
#[track_caller]
fn fork(world: &mut Option<World>) {
    let number = run_in_child(|| child(world)).expect("there can be a child");
    let pid = Pid::from_raw(number).expect("it has a number");
    let deadline = now() + PATIENCE;
    loop {
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).unwrap() {
            let failed = status.exit_status().and_then(|status| usize::try_from(status).ok());
            let step = failed.and_then(|step| Some(STEPS.get(step.checked_sub(1)?)?.0));
            assert_eq!(status.exit_status(), Some(0), "it failed at {step:?}");
            return;
        }
        if now() >= deadline {
            let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            kill_process(pid, Signal::KILL).unwrap();
            waitpid(Some(pid), WaitOptions::empty()).unwrap();
            panic!("the child hangs at `{}`", name.trim());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a link over sockets that are connected to one receiving socket. Returns that socket, too.
fn sockets(ports: usize, qdisc: &str) -> (UdpSocket, World) {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sockets = (0..ports).map(|_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(receiver.local_addr().unwrap()).unwrap();
        socket
    });
    let builder = Link::sockets(sockets).qdisc(qdisc).credits(credits(100)).ports_max(ports + 1);
    let link = builder.build().unwrap();
    let sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(0));
    (receiver, World { link, sender, flow })
}

/// Checks that exactly `packets` packets have arrived at the receiving socket, all of them from the
/// parent.
#[track_caller]
fn received(receiver: &UdpSocket, packets: usize) {
    let mut buf = [0; 100];
    receiver.set_read_timeout(Some(LONG)).unwrap();
    for _ in 0..packets {
        let len = receiver.recv(&mut buf).unwrap();
        assert_eq!(&buf[..len], b"parent");
    }
    receiver.set_read_timeout(Some(SHORT)).unwrap();
    assert!(receiver.recv(&mut buf).is_err(), "there is one more");
}

/// A process forks while its link holds no packet: the calls of the child send nothing, and the
/// parent's link works as before.
#[test]
fn a_child_of_a_link_at_rest() {
    for ports in [1, 3] {
        in_time(move || {
            let (receiver, world) = sockets(ports, "fq");
            let mut world = Some(world);
            for _ in 0..3 {
                let World { link, sender, flow } = world.as_mut().unwrap();
                (0..10).for_each(|_| sender.send(flow, b"parent").unwrap());
                assert!(sender.flush(LONG) && link.flush(LONG));
                received(&receiver, 10);
                fork(&mut world);
                received(&receiver, 0);
            }
            let World { link, mut sender, flow } = world.unwrap();
            link.set_qdisc("pfifo").unwrap();
            link.add_port(Null::default()).unwrap();
            assert!(link.views(0).is_ok());
            sender.send(&flow, b"parent").unwrap();
            assert!(sender.flush(LONG));
            received(&receiver, 1);
            assert_eq!(link.stats().sent, 31);
            balanced(&link.stats());
            assert!(link.close(LONG).flushed);
        });
    }
}

/// When the process forks, packets wait for their departure times in the qdisc, and others under a
/// cork. They belong to the parent, and each of them leaves once.
#[test]
fn a_child_of_a_link_that_holds_packets() {
    in_time(|| {
        let (receiver, mut world) = sockets(2, "fq");
        let World { link, sender, flow } = &mut world;
        sender.watch(flow);
        for _ in 0..10 {
            let mut packet = sender.packet(flow, b"parent").unwrap();
            packet.txtime_ns = link.now().after(300_000_000).0;
            sender.submit(flow, packet).unwrap();
        }
        sender.cork();
        (0..5).for_each(|_| sender.try_send(flow, b"parent").unwrap());
        let mut world = Some(world);
        fork(&mut world);
        let World { link, mut sender, flow } = world.unwrap();
        sender.uncork().unwrap();
        assert!(sender.flush(LONG) && link.flush(LONG));
        received(&receiver, 15);
        let stats = sender.flow_stats(&flow).unwrap();
        assert_eq!((stats.sent, stats.dropped_total()), (15, 0), "the child has cancelled nothing");
        assert_eq!((link.stats().submitted, link.stats().sent), (15, 15));
        balanced(&link.stats());
    });
}

/// When the process forks, a device blocks the runner, the sender has no credit, and other threads
/// send, change the link and wait. In the child, locks that these threads hold stay locked forever,
/// but no call hangs.
#[test]
fn children_of_a_link_that_others_use() {
    in_time(|| {
        let trap = Trap::for_runners();
        let null = || Box::new(Null::default()) as Box<dyn onramp::Device>;
        let builder = Link::devices([trap.device(), null(), null()]).qdisc("pfifo").burst(4);
        let builder = builder.mode(onramp::Mode::Dedicated).runners(1).credits(credits(64));
        let link = builder.build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        trap.shut();
        sender.try_send(&flow, b"bait").unwrap();
        until("the runner is inside", || trap.inside() == 1);
        while sender.try_send(&flow, b"x").is_ok() {}
        let ends = std::sync::atomic::AtomicBool::new(false);
        let go_on = || !ends.load(std::sync::atomic::Ordering::SeqCst);
        let mut world = Some(World { link: link.clone(), sender, flow });
        thread::scope(|scope| {
            scope.spawn(|| {
                while go_on() {
                    link.set_qdisc("pfifo limit 700").unwrap();
                    link.sender().wait_room(&link.sender().flow(None), 1);
                    let _ = link.stats();
                }
            });
            scope.spawn(|| {
                let mut sender = link.sender();
                let flow = sender.flow_with(None, Mapping::Port(1));
                while go_on() {
                    sender.send(&flow, b"x").unwrap();
                }
                assert!(sender.flush(LONG));
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                (0..5).for_each(|_| fork(&mut world));
            }));
            ends.store(true, std::sync::atomic::Ordering::SeqCst);
            trap.open();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        let World { mut sender, .. } = world.unwrap();
        assert!(sender.flush(LONG) && link.flush(LONG));
        assert_eq!(trap.inside(), 0);
        balanced(&link.stats());
        assert!(link.close(LONG).flushed);
    });
}
