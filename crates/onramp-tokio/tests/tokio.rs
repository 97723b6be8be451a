//! Sockets in real runtimes. No test depends on the speed of anything; a test that hangs fails
//! after two minutes.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{
    CloseReport, Credits, Device, DeviceInfo, Instant, Link, LinkStats, Message, PacketList,
    Transmitted,
};
use onramp_tokio::{Driver, Options, Socket};

const LONG: Duration = Duration::from_secs(120);

/// Runs the body of a test in a runtime with two threads, for two minutes at most.
fn run(body: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let guarded = async { tokio::time::timeout(LONG, body).await };
    runtime.expect("a runtime").block_on(guarded).expect("no hang");
}

/// Runs the body of a test in a runtime with one thread, as `run` does.
fn run_in_one_thread(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let guarded = async { tokio::time::timeout(LONG, body).await };
    runtime.expect("a runtime").block_on(guarded).expect("no hang");
}

fn link(qdisc: &str) -> Link {
    Link::udp("127.0.0.1:0").ports(1).qdisc(qdisc).build().expect("a link")
}

fn bind(addr: &str, qdisc: &str) -> Socket {
    Socket::bind(addr, qdisc).expect("a socket")
}

/// Makes a socket that may have one packet in flight to each destination.
fn tiny(link: Link) -> Socket {
    let options = Options { credits: Credits { packets: 1, bytes: 1 }, ..Options::default() };
    Socket::with(link, options).expect("a socket")
}

/// Polls a future once, and drops it.
fn once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn drops(stats: &LinkStats) -> u64 {
    stats.dropped.values().sum()
}

/// Sends as many numbered datagrams as a receiver can hold, and checks that they arrive in order.
async fn numbered(from: &Socket, to: &Socket, count: u16) {
    let sending = async {
        for number in 0..count {
            let payload = [&number.to_be_bytes()[..], &[7; 500]].concat();
            assert_eq!(from.send_to(&payload, to.local_addr()).await.expect("room"), 502);
        }
    };
    let receiving = async {
        let mut buffer = [0; 1_000];
        for number in 0..count {
            let got = to.recv_from(&mut buffer).await.expect("a datagram");
            assert_eq!(got, (502, from.local_addr()));
            assert_eq!(buffer[..2], number.to_be_bytes());
        }
    };
    tokio::join!(sending, receiving);
}

#[test]
fn datagrams_pass_in_order() {
    run(async {
        for qdisc in ["fq", "pfifo", "tbf rate 50mbit burst 5kb limit 100kb"] {
            let (from, to) = (bind("127.0.0.1:0", qdisc), bind("127.0.0.1:0", qdisc));
            numbered(&from, &to, 100).await;
            assert!(from.link().flush(LONG));
            assert_eq!((from.link().stats().sent, drops(&from.link().stats())), (100, 0));
        }
    });
}

#[test]
fn a_lossy_qdisc_loses_and_counts() {
    run(async {
        let (from, to) = (bind("127.0.0.1:0", "netem loss 50%"), bind("127.0.0.1:0", "fq"));
        for _ in 0..200 {
            from.send_to(b"x", to.local_addr()).await.expect("room");
        }
        assert!(from.link().flush(LONG));
        // The kernel has what the device took.
        let stats = from.link().stats();
        assert!(stats.sent > 0 && drops(&stats) > 0 && stats.sent + drops(&stats) == 200);
        for _ in 0..stats.sent {
            to.recv_from(&mut [0; 9]).await.expect("a datagram");
        }
        let none = to.try_recv_from(&mut [0; 9]).expect_err("no more");
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    });
}

/// `netem` marks what it would lose, if the sender understands marks.
#[test]
fn a_mark_of_a_qdisc_arrives() {
    run(async {
        let (from, to) = (bind("127.0.0.1:0", "netem loss 100% ecn"), bind("127.0.0.1:0", "fq"));
        let message = Message { payload: b"x", ecn: Some(2), ..Message::default() };
        from.send_message(&message, Some(to.local_addr()), None).await.expect("room");
        assert_eq!(to.receive(&mut [0; 9]).await.expect("a datagram").ecn, 3);
    });
}

/// A link without threads, in a runtime of one thread.
#[test]
fn a_task_runs_a_link_without_threads() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let tbf = "tbf rate 20mbit burst 2kb limit 100kb";
        let manual = Link::udp("127.0.0.1:0").ports(1).qdisc(tbf).manual().build();
        let from = tiny(manual.expect("a link"));
        let to = bind("127.0.0.1:0", "fq");
        let guard = tokio::time::timeout(LONG, numbered(&from, &to, 50));
        guard.await.expect("no hang");
        let with_threads = Driver::spawn(&link("fq")).expect_err("its threads do that");
        assert_eq!(with_threads.kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn tasks_that_wait_for_the_same_room_all_go_on() {
    run(async {
        let from = Arc::new(tiny(link("tbf rate 50mbit burst 2kb limit 100kb")));
        let to = bind("127.0.0.1:0", "fq");
        let dest = to.local_addr();
        let mut tasks = Vec::new();
        for task in 0..8_u8 {
            let from = Arc::clone(&from);
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    from.send_to(&[task; 600], dest).await.expect("room");
                }
            }));
        }
        let mut counts = [0; 8];
        for _ in 0..160 {
            let mut buffer = [0; 600];
            to.recv_from(&mut buffer).await.expect("a datagram");
            counts[usize::from(buffer[0])] += 1;
        }
        assert_eq!(counts, [20; 8]);
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

/// A full destination refuses, waits, and keeps no other from sending.
#[test]
fn room_is_for_each_destination() {
    run(async {
        let from = tiny(link("netem delay 100s"));
        let [slow, other] = [(); 2].map(|()| bind("127.0.0.1:0", "fq"));
        // What the qdisc delays keeps its credit.
        from.try_send_to(&[1; 1_000], slow.local_addr()).expect("a credit");
        let full = from.try_send_to(b"x", slow.local_addr()).expect_err("no room");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(once(from.send_to(b"never sent", slow.local_addr())).is_pending());
        assert!(once(from.writable(Some(slow.local_addr()), 1)).is_pending());
        from.writable(Some(other.local_addr()), 1).await.expect("room");
        from.send_to(b"x", other.local_addr()).await.expect("room");
        // The new qdisc sends what the old one held.
        from.link().set_qdisc("fq").expect("a good qdisc");
        assert_eq!(other.recv_from(&mut [0; 9]).await.expect("a datagram").0, 1);
        // The future that was dropped has sent nothing.
        let stats = from.link().stats();
        from.writable(Some(slow.local_addr()), 1).await.expect("room");
        assert_eq!(from.link().stats().submitted, stats.submitted);
    });
}

#[test]
fn what_comes_with_a_datagram_is_told_and_answered() {
    run(async {
        for (bound, asked) in [("0.0.0.0:0", "127.0.0.7"), ("[::]:0", "127.0.0.8")] {
            let server = bind(bound, "fq");
            let client = bind("127.0.0.1:0", "fq");
            let port = server.local_addr().port();
            let dest = SocketAddr::new(asked.parse().expect("an address"), port);
            let message =
                Message { payload: &[5; 250], segment: 100, ecn: Some(1), ..Message::default() };
            client.send_message(&message, Some(dest), None).await.expect("room");
            let mut buffer = [0; 1_000];
            for len in [100, 100, 50] {
                let got = server.receive(&mut buffer).await.expect("a datagram");
                assert_eq!(
                    (got.len, got.ecn, got.source.port()),
                    (len, 1, client.local_addr().port())
                );
                assert_eq!(got.destination.ip().to_canonical(), dest.ip());
                let answer = Message { payload: b"answer", ..Message::default() };
                let source = Some(got.destination.ip());
                server.send_message(&answer, Some(got.source), source).await.expect("room");
                let from = client.recv_from(&mut buffer).await.expect("an answer");
                assert_eq!(from, (6, dest));
            }
        }
    });
}

#[test]
fn a_connected_socket_needs_no_address() {
    run(async {
        let to = bind("127.0.0.1:0", "fq");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(to.local_addr()).expect("an address");
        let link = Link::sockets([socket]).build().expect("a link");
        let from = Socket::with(link, Options::default()).expect("a socket");
        from.send(b"one").await.expect("room");
        from.try_send(b"two").expect("room");
        for _ in 0..2 {
            to.readable().await.expect("a datagram");
        }
        for expected in [b"one", b"two"] {
            let mut buffer = [0; 9];
            let (len, _) = to.recv_from(&mut buffer).await.expect("a datagram");
            assert_eq!(&buffer[..len], expected);
        }
        let error = to.send(b"x").await.expect_err("it is not connected");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    });
}

/// Of several datagrams that one call took from the kernel, each goes to a task that waits, though
/// other tasks stop waiting.
#[test]
fn tasks_that_receive_miss_nothing() {
    run(async {
        let (from, to) = (bind("127.0.0.1:0", "fq"), Arc::new(bind("127.0.0.1:0", "fq")));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let to = Arc::clone(&to);
            tasks.push(tokio::spawn(async move {
                for _ in 0..25 {
                    // A future that is dropped takes no datagram.
                    let mut buffer = [0; 9];
                    if once(to.recv_from(&mut buffer)).is_pending() {
                        to.recv_from(&mut buffer).await.expect("a datagram");
                    }
                }
            }));
        }
        let message = Message { payload: &[1; 100], segment: 5, ..Message::default() };
        for _ in 0..5 {
            from.send_message(&message, Some(to.local_addr()), None).await.expect("room");
        }
        for task in tasks {
            task.await.expect("no panic");
        }
    });
}

#[test]
fn a_future_by_hand_receives() {
    run(async {
        let (from, mut to) = (bind("127.0.0.1:0", "fq"), bind("127.0.0.1:0", "fq"));
        let dest = to.local_addr();
        let mut buffer = [0; 2];
        let none = to.poll_recv_from(&mut Context::from_waker(Waker::noop()), &mut buffer);
        assert!(none.is_pending());
        let sending = tokio::spawn(async move {
            from.send_to(b"too long", dest).await.expect("room");
            from
        });
        let got = poll_fn(|cx| to.poll_recv_from(cx, &mut buffer)).await;
        let from = sending.await.expect("no panic");
        assert_eq!((got.expect("a datagram"), buffer), ((2, from.local_addr()), *b"to"));
    });
}

#[test]
fn a_closed_socket_has_sent_all() {
    run(closed_socket());
    run_in_one_thread(closed_socket());
}

async fn closed_socket() {
    let from = bind("127.0.0.1:0", "tbf rate 8mbit burst 2kb limit 100kb");
    let to = bind("127.0.0.1:0", "fq");
    for _ in 0..20 {
        from.send_to(&[1; 1_000], to.local_addr()).await.expect("room");
    }
    let link = from.link().clone();
    assert!(from.close(LONG).await.flushed);
    assert_eq!(link.stats().sent, 20);
    for _ in 0..20 {
        to.recv_from(&mut [0; 1_000]).await.expect("a datagram");
    }
}

/// A device that takes no packets before it is opened.
struct Door {
    info: DeviceInfo,
    open: Arc<AtomicBool>,
}

impl Device for Door {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if !self.open.load(Ordering::SeqCst) {
            let retry_at = Some(now + Duration::from_micros(50));
            return Transmitted { calls: 1, messages: 0, retry_at };
        }
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

/// While a link closes, the only thread of the runtime runs another task, without which the close
/// would not end in time.
#[test]
fn a_close_blocks_no_thread() {
    run_in_one_thread(async {
        for manual in [false, true] {
            let open = Arc::new(AtomicBool::new(false));
            let door = Door { info: DeviceInfo::new("door".into(), 1_514), open: open.clone() };
            let builder = Link::devices([Box::new(door) as Box<dyn Device>]);
            let link = if manual { builder.manual() } else { builder }.build().expect("a link");
            let _driver = link.descriptor().map(|_| Driver::spawn(&link).expect("no threads"));
            let mut sender = link.sender();
            let flow = sender.flow(None);
            for _ in 0..10 {
                sender.try_send(&flow, b"x").expect("room");
            }
            let opens = async {
                while sender.packet(&flow, b"x").is_ok() {
                    tokio::task::yield_now().await;
                }
                open.store(true, Ordering::SeqCst);
                assert!(sender.flushed().await);
            };
            let (report, ()) = tokio::join!(link.closing(LONG), opens);
            assert_eq!(report, CloseReport { flushed: true, purged: 0, blocked: 0 });
            assert_eq!(link.stats().sent, 10);
        }
    });
}

/// A task waits until its packets have left, while another task of the same thread runs the link.
#[test]
fn a_sender_is_flushed_in_one_thread() {
    run_in_one_thread(async {
        let builder = Link::devices([Box::new(Null::default()) as _]).manual();
        let link = builder.qdisc("netem delay 2ms").build().expect("a link");
        let driver = Driver::spawn(&link).expect("the link has no threads");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for round in 1..=10 {
            for _ in 0..10 {
                sender.try_send(&flow, b"x").expect("room");
            }
            assert!(sender.flushed().await);
            assert_eq!((link.stats().sent, sender.in_flight()), (round * 10, 0));
        }
        sender.try_send(&flow, b"x").expect("room");
        let report = link.closing(LONG).await;
        assert!(report.flushed, "{report:?}");
        drop(driver);
    });
}

#[test]
fn who_waits_for_a_link_that_closes_gets_an_error() {
    run(async {
        let from = Arc::new(tiny(link("netem delay 100s")));
        let to = bind("127.0.0.1:0", "fq");
        let dest = to.local_addr();
        from.try_send_to(&[1; 1_000], dest).expect("a credit");
        let waiting = Arc::clone(&from);
        let waiting = tokio::spawn(async move { waiting.send_to(b"x", dest).await });
        while from.link().stats().waits == 0 {
            tokio::task::yield_now().await;
        }
        from.link().close(Duration::ZERO);
        let error = waiting.await.expect("no panic").expect_err("a closed link");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let too_large = to.try_send_to(&vec![0; 65_508], dest).expect_err("too large");
        assert_eq!(too_large.kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn wrong_links_and_options_are_refused() {
    run(async {
        let none = Options { destinations: 0, ..Options::default() };
        let credits = Credits { packets: 0, bytes: 1 };
        let no_credits = Options { credits, ..Options::default() };
        let two = Link::udp("127.0.0.1:0").ports(2).build().expect("a link");
        let null = Link::devices([Box::new(Null::default()) as _]).build().expect("a link");
        for (link, options, text) in [
            (link("fq"), none, "at least 1 destination"),
            (link("fq"), no_credits, "1 to 32768 packets"),
            (two, Options::default(), "one port, not 2"),
            (null, Options::default(), "no UDP socket"),
        ] {
            let error = Socket::with(link, options).expect_err("wrong");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(text), "{error}");
        }
        let error = Socket::bind("127.0.0.1:0", "fq maxrate").expect_err("wrong");
        assert!(error.to_string().contains("maxrate"), "{error}");
    });
}

/// A task that sends without end lets other tasks run, also while the link takes every datagram.
#[test]
fn a_task_that_sends_lets_others_run() {
    run_in_one_thread(async {
        let socket = bind("127.0.0.1:0", "pfifo");
        let to = socket.local_addr();
        for by_poll in [false, true] {
            let ran = Arc::new(AtomicBool::new(false));
            let other = Arc::clone(&ran);
            // Relaxed, here and below: the runtime has one thread.
            tokio::spawn(async move { other.store(true, Ordering::Relaxed) });
            let mut sent = 0;
            while !ran.load(Ordering::Relaxed) {
                let done = match by_poll {
                    false => socket.send_to(b"x", to).await,
                    true => poll_fn(|cx| socket.poll_send_to(cx, b"x", to)).await,
                };
                done.expect("the link is open");
                sent += 1;
                assert!(sent < 10_000, "no other task ran");
            }
        }
    });
}

/// A socket whose datagrams were all taken is not readable, and one to which a second datagram has
/// come gives it at the first call.
#[test]
fn a_socket_is_readable_while_there_is_a_datagram() {
    run(async {
        let socket = bind("127.0.0.1:0", "pfifo");
        let from = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let mut buffer = [0; 9];
        for word in [&b"one"[..], b"two"] {
            from.send_to(word, socket.local_addr()).expect("it is sent");
            socket.readable().await.expect("it works");
            let (len, _) = socket.try_recv_from(&mut buffer).expect("a datagram");
            assert_eq!(&buffer[..len], word);
            assert!(once(socket.readable()).is_pending(), "nothing has come since");
        }
    });
}

/// More datagrams lie in the kernel than one call takes, all of them too large for the receiver.
/// The one behind them arrives.
#[test]
fn discarded_datagrams_hide_none_behind_them() {
    run(async {
        let socket = std::net::UdpSocket::bind("[::1]:0").expect("a socket");
        onramp::dev::set_receive_buffer(&socket, 8 << 20).expect("a socket has a buffer");
        let dest = socket.local_addr().expect("it is bound");
        let link = Link::sockets([socket]).build().expect("a link");
        let mut socket = Socket::with(link, Options::default()).expect("a socket");
        let from = std::net::UdpSocket::bind("[::1]:0").expect("a socket");
        for how in 0..3 {
            for _ in 0..33 {
                from.send_to(&[7; 65_500], dest).expect("loopback");
            }
            from.send_to(b"x", dest).expect("loopback");
            let mut buffer = [0; 9];
            if how == 0 {
                socket.readable().await.expect("a datagram");
            }
            let (len, _) = match how {
                0 | 1 => socket.recv_from(&mut buffer).await.expect("a datagram"),
                _ => {
                    let received = poll_fn(|cx| socket.poll_recv_from(cx, &mut buffer));
                    received.await.expect("a datagram")
                }
            };
            assert_eq!((len, &buffer[..1]), (1, &b"x"[..]));
        }
    });
}
