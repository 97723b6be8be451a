//! No packet is lost or counted twice: 240 threads make random calls, some of them end early, and
//! the link is closed in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::{Null, Receiver, loopback};
use onramp::{Flow, Link, LinkBuilder, Sender, TrySendError};

use crate::common::{Fates, Gate, LONG, balanced, credits, in_time, until};

const THREADS: u64 = 240;
const STEPS: u32 = 40;

/// What one thread knows of its packets when it ends.
struct Books {
    accepted: u64,
    /// The completions that were reported, if the thread stayed until all of its packets were home.
    fates: Option<Fates>,
}

struct Worker {
    sender: Sender,
    flow: Flow,
    rng: Rng,
    accepted: u64,
    corked: bool,
}

impl Worker {
    /// Makes a random call. Returns false if the link is closed.
    fn step(&mut self, number: u32) -> bool {
        let (sender, flow, rng) = (&mut self.sender, &self.flow, &mut self.rng);
        let payload = number.to_be_bytes();
        let mut count = 0;
        let outcome = match rng.u32(0..10) {
            0..=2 => sender.try_send(flow, &payload).map(|()| count = 1),
            3..=4 => {
                let sent = sender.send(flow, &payload).map(|()| count = 1);
                sent.map_err(|_| TrySendError::Closed)
            }
            5..=6 => {
                let batch = vec![payload; rng.usize(0..70)];
                sender.try_send_batch(flow, &batch).map(|n| count = n as u64)
            }
            7 => {
                // Make a packet, change it, and submit or drop it.
                sender.packet(flow, &payload).and_then(|mut packet| {
                    packet.priority = rng.u32(0..16);
                    if rng.bool() {
                        return Ok(());
                    }
                    sender.submit(flow, packet).map(|()| count = 1).map_err(|back| back.why)
                })
            }
            8 => {
                self.corked = !self.corked;
                if self.corked {
                    sender.cork();
                    Ok(())
                } else {
                    sender.uncork()
                }
            }
            _ => {
                let timeout = Duration::from_micros(rng.u64(0..300));
                if rng.bool() {
                    sender.wait_room_timeout(flow, 4, timeout);
                } else {
                    sender.flush(timeout);
                }
                Ok(())
            }
        };
        self.accepted += count;
        outcome != Err(TrySendError::Closed)
    }

    fn work(mut self, steps: &AtomicU64) -> Books {
        let fates = Fates::of(&mut self.sender);
        let leaves_at = if self.rng.u32(0..3) == 0 { self.rng.u32(0..STEPS) } else { u32::MAX };
        for number in 0..STEPS {
            steps.fetch_add(1, Ordering::Relaxed);
            if !self.step(number) {
                break;
            }
            if number == leaves_at {
                // The thread ends early: its sender is dropped while packets are in flight and, if
                // it is corked, while a cork holds packets back.
                return Books { accepted: self.accepted, fates: None };
            }
        }
        // Packets that are paced may stay in the qdisc for a long time, but come home when the link
        // is closed. A flush of a closed link gives up soon, but another thread may not get to
        // leave the port that it owns before.
        until("all come home", || self.sender.flush(LONG));
        Books { accepted: self.accepted, fates: Some(fates) }
    }
}

/// Lets 240 threads make calls until the link is closed. Returns the number of packets that the
/// link accepted from them.
fn storm(link: &Link, seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let steps = Arc::new(AtomicU64::new(0));
    let close_at = rng.u64(THREADS..THREADS * u64::from(STEPS) / 2);
    let patience = Duration::from_micros(rng.u64(0..20_000));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let sender = link.sender();
                let flow = sender.flow(None);
                let rng = rng.fork();
                let worker = Worker { sender, flow, rng, accepted: 0, corked: false };
                let steps = steps.clone();
                let small = thread::Builder::new().stack_size(256 << 10).name(number.to_string());
                small.spawn_scoped(scope, move || worker.work(&steps)).expect("240 threads")
            })
            .collect();
        while steps.load(Ordering::Relaxed) < close_at {
            thread::sleep(Duration::from_micros(100));
        }
        link.close(patience);
        let mut accepted = 0;
        for worker in workers {
            let books = worker.join().unwrap();
            accepted += books.accepted;
            if let Some(fates) = books.fates {
                assert_eq!(fates.total(), books.accepted, "of one sender");
            }
        }
        accepted
    })
}

/// Builds a link, lets 240 threads make random calls on it, and hands the link to `check`. Does all
/// this twice, each time with a new seed.
fn weather(
    build: impl Fn() -> LinkBuilder + Send + 'static,
    check: impl Fn(&Link) + Send + 'static,
) {
    in_time(move || {
        for _ in 0..2 {
            let seed = fastrand::u64(..);
            println!("seed {seed}");
            let link = build().build().unwrap();
            let accepted = storm(&link, seed);
            let stats = link.stats();
            assert_eq!(stats.submitted, accepted, "seed {seed}");
            balanced(&stats);
            check(&link);
        }
    });
}

/// No sender's count of submitted packets is lost. `LinkStats` never shows fewer submitted packets
/// than packets that left, so a lost count would not show once the packets have left. Here, no
/// packet leaves before the check, so the link shows exactly what the senders counted.
#[test]
fn no_count_is_lost() {
    in_time(|| {
        let gate = Gate::new(false);
        // Each of the eight senders may have 4,096 packets in flight, which is more than all of its
        // calls together can send.
        let devices: Vec<_> = (0..4).map(|_| gate.device()).collect();
        let builder = Link::devices(devices).qdisc("pfifo limit 1mb").credits(credits(4_096));
        let link = builder.build().unwrap();
        let mut rng = Rng::with_seed(fastrand::u64(..));
        println!("seed {}", rng.get_seed());
        let workers: Vec<_> = thread::scope(|scope| {
            let threads = [(); 8].map(|()| {
                let sender = link.sender();
                let flow = sender.flow(None);
                let rng = rng.fork();
                let mut worker = Worker { sender, flow, rng, accepted: 0, corked: false };
                scope.spawn(move || {
                    let fates = Fates::of(&mut worker.sender);
                    assert!((0..STEPS).all(|number| worker.step(number)), "it is not closed");
                    assert_eq!(worker.sender.uncork(), Ok(()));
                    assert_eq!(fates.total(), 0, "nothing is out");
                    (worker, fates)
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let accepted: u64 = workers.iter().map(|(worker, _)| worker.accepted).sum();
        let mut told = 0;
        for (number, (mut worker, fates)) in workers.into_iter().enumerate() {
            let stats = link.stats();
            assert_eq!((stats.submitted, stats.sent, stats.dropped_total()), (accepted, 0, 0));
            // The counts must be right while more and more senders are dropped: dropped senders and
            // living senders are summed.
            if number % 2 == 0 {
                drop(worker);
            } else if number == 7 {
                until("all is held", || link.stats().held == accepted);
                gate.open();
                assert!(worker.sender.flush(LONG));
                told = fates.total();
                assert_eq!(told, worker.accepted);
            }
        }
        assert!(told > 0 && link.flush(LONG));
        assert_eq!((link.stats().submitted, link.stats().sent), (accepted, accepted));
        balanced(&link.stats());
    });
}

fn null(qdisc: &'static str) {
    let devices = || (0..2).map(|_| Box::new(Null::default()) as Box<_>);
    weather(move || Link::devices(devices()).qdisc(qdisc), |_| ());
}

#[test]
fn null_pfifo() {
    null("pfifo limit 50");
}

#[test]
fn null_fq() {
    null("fq");
}

#[test]
fn null_fq_paced() {
    null("fq maxrate 1mbit");
}

#[test]
fn null_pfifo_and_an_intake_for_few() {
    let devices = || [Box::new(Null::default()) as Box<_>];
    weather(move || Link::devices(devices()).qdisc("pfifo limit 50").burst(3), |_| ());
}

/// Counts the packets that arrive, until the device is dropped.
fn count(mut receiver: Receiver) -> u64 {
    let mut count = 0;
    while receiver.recv_timeout(LONG).is_some() {
        count += 1;
    }
    count
}

fn over_loopback(qdisc: &'static str) {
    in_time(move || {
        for _ in 0..2 {
            let seed = fastrand::u64(..);
            println!("seed {seed}");
            // The mailbox of the device has little room, so the device is full now and then.
            let (device, receiver) = loopback(50);
            let (arrived, stats) = thread::scope(|scope| {
                let counting = scope.spawn(move || count(receiver));
                let link = Link::devices([Box::new(device) as Box<_>]).qdisc(qdisc);
                let link = link.build().unwrap();
                let accepted = storm(&link, seed);
                let stats = link.stats();
                assert_eq!(stats.submitted, accepted, "seed {seed}");
                drop(link);
                (counting.join().unwrap(), stats)
            });
            balanced(&stats);
            assert_eq!(arrived, stats.sent, "seed {seed}");
        }
    });
}

#[test]
fn loopback_pfifo() {
    over_loopback("pfifo limit 50");
}

#[test]
fn loopback_fq() {
    over_loopback("fq");
}

#[test]
fn loopback_fq_paced() {
    over_loopback("fq maxrate 1mbit");
}

fn over_udp(qdisc: &'static str) {
    let sink = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = sink.local_addr().unwrap();
    let build = move || {
        let sockets = (0..2).map(|_| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(addr).unwrap();
            socket
        });
        Link::sockets(sockets.collect::<Vec<_>>()).qdisc(qdisc)
    };
    weather(build, |link| {
        let segments: u64 = link.udp_stats().iter().map(|stats| stats.segments.get()).sum();
        assert_eq!(segments, link.stats().sent, "what the kernel took");
    });
    drop(sink);
}

#[test]
fn udp_pfifo() {
    over_udp("pfifo limit 50");
}

#[test]
fn udp_fq() {
    over_udp("fq");
}

#[test]
fn udp_fq_paced() {
    over_udp("fq maxrate 1mbit");
}
