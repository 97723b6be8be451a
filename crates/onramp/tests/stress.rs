//! Stress test in which everything happens at once: threads send, wait, read counters, start, end
//! and close the link. It is meant for ThreadSanitizer and for machines with many processors. The
//! environment variable `ONRAMP_STRESS_SCALE` multiplies the number of rounds (default 1).

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::dev::{MonotonicClock, Null, Receiver, loopback};
use onramp::{Clock, Credits, Device, Link, Sender, TrySendError};

/// Time limit for waits. A wait that takes longer counts as endless.
const LONG: Duration = Duration::from_secs(120);
const THREADS: u64 = 8;
const STEPS: u32 = 120;

fn scale() -> u64 {
    let text = std::env::var("ONRAMP_STRESS_SCALE").unwrap_or_else(|_| "1".to_owned());
    text.parse().expect("ONRAMP_STRESS_SCALE is a whole number")
}

/// Makes random calls of one sender. Returns the number of packets that the link accepted.
fn live(mut sender: Sender, rng: &mut Rng) -> u64 {
    let completed = std::sync::Arc::new(AtomicU64::new(0));
    let theirs = completed.clone();
    sender.on_complete(move |_| _ = theirs.fetch_add(1, Ordering::Relaxed));
    let flows: Vec<_> = (0..3).map(|_| sender.flow(None)).collect();
    let mut accepted = 0;
    for number in 0..STEPS {
        let flow = &flows[rng.usize(0..3)];
        let size = if rng.u32(0..50) == 0 { rng.usize(0..20_000) } else { rng.usize(0..300) };
        let payload = vec![0; size];
        let outcome = match rng.u32(0..12) {
            0..=3 => sender.try_send(flow, &payload).map(|()| 1),
            4..=5 => sender.send(flow, &payload).map(|()| 1).map_err(|_| TrySendError::Closed),
            6..=7 => {
                let batch = vec![[7; 50]; rng.usize(0..50)];
                sender.try_send_batch(flow, &batch).map(|count| count as u64)
            }
            8 => {
                let later_ns = rng.u64(0..2_000_000);
                sender.packet(flow, b"later").and_then(|mut packet| {
                    packet.txtime_ns = MonotonicClock.now().after(later_ns).0;
                    sender.submit(flow, packet).map(|()| 1).map_err(|back| back.why)
                })
            }
            9 => {
                let waker = Waker::noop();
                let mut ready = pin!(sender.ready(flow, size));
                let _ = ready.as_mut().poll(&mut Context::from_waker(waker));
                Ok(0)
            }
            10 => {
                if number % 2 == 0 {
                    sender.cork();
                    Ok(0)
                } else {
                    sender.uncork().map(|()| 0)
                }
            }
            _ => {
                sender.wait_room_timeout(flow, size, Duration::from_micros(rng.u64(0..200)));
                sender.give_way();
                Ok(0)
            }
        };
        match outcome {
            Ok(count) => accepted += count,
            Err(TrySendError::Closed) => break,
            Err(_) => {}
        }
    }
    if rng.bool() {
        // A flush of a closed link gives up soon, although the owner of a port may rest longer.
        let end = MonotonicClock.now() + LONG;
        while !sender.flush(LONG) {
            assert!(MonotonicClock.now() < end, "all come home: {sender:?}");
        }
        assert_eq!(completed.load(Ordering::Relaxed), accepted, "of one sender");
    }
    accepted
}

/// Makes random calls of one sender that push packets and never wait. Returns the number of packets
/// that the link accepted.
fn push(mut sender: Sender, rng: &mut Rng) -> u64 {
    let flow = sender.flow(None);
    let mut accepted = 0;
    for _ in 0..STEPS {
        let taken = match rng.u32(0..5) {
            0 => sender.try_send(&flow, b"alone").map(|()| 1),
            1 => sender.try_send_batch(&flow, vec![[7; 50]; rng.usize(0..50)]),
            2 => sender.packet(&flow, b"made").and_then(|packet| {
                sender.submit(&flow, packet).map(|()| 1).map_err(|back| back.why)
            }),
            3 => {
                sender.cork();
                Ok(0)
            }
            _ => sender.uncork().map(|()| 0),
        };
        accepted += taken.unwrap_or(0) as u64;
    }
    accepted
}

/// Checks that no sender's count of submitted packets is lost. `LinkStats` never shows fewer
/// submitted packets than packets that left, so a lost count would not show once the packets have
/// left. Here, hardly any packet leaves, so the link shows what the senders counted.
fn counts(burst: u16, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (device, _receives_nothing) = loopback(30);
    // Enough for more packets than the device takes.
    let credits = Credits { packets: rng.u32(2..2_000), bytes: u32::MAX };
    let builder = Link::devices([Box::new(device) as Box<_>]).qdisc("pfifo limit 1mb");
    let link = builder.burst(burst).credits(credits).build().expect("all of it is in range");
    let accepted: u64 = thread::scope(|scope| {
        let workers = [(); 8].map(|()| {
            let (link, mut rng) = (&link, rng.fork());
            scope.spawn(move || (0..3).map(|_| push(link.sender(), &mut rng)).sum::<u64>())
        });
        workers.into_iter().map(|worker| worker.join().expect("a worker panicked")).sum()
    });
    let stats = link.stats();
    let case = format!("burst {burst}, seed {seed}: {stats:?}");
    assert_eq!((stats.submitted, stats.dropped_total()), (accepted, 0), "{case}");
    assert!(stats.sent <= 30 && accepted > 30, "{case}");
    let purged = link.close(Duration::ZERO).purged;
    assert_eq!(link.stats().sent + purged, accepted, "{case}");
}

#[test]
fn no_count_is_lost() {
    for round in 0..15 * scale() {
        let burst = [1, 4, 1_000][(round % 3) as usize];
        let seed = fastrand::u64(..);
        println!("burst {burst}, seed {seed}");
        counts(burst, seed);
    }
}

/// Receives packets, with pauses at random, until the device is dropped. Returns the number of
/// packets that arrived.
fn receive(mut receiver: Receiver, mut rng: Rng) -> u64 {
    let mut count = 0;
    while receiver.recv_timeout(LONG).is_some() {
        count += 1;
        if rng.u32(0..200) == 0 {
            thread::sleep(Duration::from_micros(rng.u64(0..500)));
        }
    }
    count
}

/// Reads the link's counters and makes other calls that change nothing, until `stop` is set.
fn look(link: &Link, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let stats = link.stats();
        assert!(stats.submitted >= stats.sent + stats.dropped_total());
        link.flush(Duration::ZERO);
        drop(link.clone().sender());
    }
}

fn round(qdisc: &str, burst: u16, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (device, receiver) = loopback(30);
    let (null, other) = (Null::default(), Null::default());
    let taken = [null.stats(), other.stats()];
    let devices: [Box<dyn Device>; 3] = [Box::new(null), Box::new(device), Box::new(other)];
    let credits = Credits { packets: rng.u32(1..80), bytes: rng.u32(1..100_000) };
    let builder = Link::devices(devices).qdisc(qdisc).burst(burst).credits(credits);
    let link = builder.build().expect("all of it is in range");
    let (stop, accepted) = (AtomicBool::new(false), AtomicU64::new(0));
    let patience = Duration::from_micros(rng.u64(0..5_000));
    let close_at = rng.u64(0..THREADS * u64::from(STEPS) * 4);
    let receives = rng.fork();
    let (stats, arrived) = thread::scope(|scope| {
        let arrived = scope.spawn(move || receive(receiver, receives));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|_| {
                    let (link, accepted, mut rng) = (&link, &accepted, rng.fork());
                    scope.spawn(move || {
                        for _ in 0..3 {
                            let count = live(link.sender(), &mut rng);
                            accepted.fetch_add(count, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            scope.spawn(|| look(&link, &stop));
            // Close the link when a random number of packets was sent, or when all workers have
            // ended.
            while link.stats().sent < close_at && workers.iter().any(|w| !w.is_finished()) {
                thread::sleep(Duration::from_micros(200));
            }
            link.close(patience);
            workers.into_iter().for_each(|worker| worker.join().expect("a worker panicked"));
            stop.store(true, Ordering::Relaxed);
        });
        // All threads of the test have ended, so no port holds a packet when a runner that rests in
        // one of them has gone on.
        for _ in 0..12_000 {
            if link.stats().held == 0 {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let stats = link.stats();
        drop(link);
        (stats, arrived.join().expect("the receiver panicked"))
    });
    let case = format!("{qdisc}, burst {burst}, seed {seed}: {stats:?}");
    assert_eq!(stats.submitted, accepted.into_inner(), "{case}");
    assert_eq!((stats.submitted, stats.held), (stats.sent + stats.dropped_total(), 0), "{case}");
    let nulls: u64 = taken.iter().map(|stats| stats.packets.get()).sum();
    assert_eq!(stats.sent, nulls + arrived, "{case}");
}

fn rounds(qdisc: &str, burst: u16) {
    for _ in 0..5 * scale() {
        let seed = fastrand::u64(..);
        println!("{qdisc}, burst {burst}, seed {seed}");
        round(qdisc, burst, seed);
    }
}

#[test]
fn pfifo() {
    rounds("pfifo limit 50", 1_000);
}

#[test]
fn fq() {
    rounds("fq", 1_000);
}

#[test]
fn paced_fq() {
    rounds("fq maxrate 50mbit", 1_000);
}

#[test]
fn an_intake_for_few() {
    rounds("fq limit 40 flow_limit 20", 4);
}

/// R5, a bug of Linux (one of R1 to R8 in `onramp-core/tests/port/regressions.rs`): a data race on
/// a qdisc's limit that was changed while packets were sent.
///
/// In this test, qdiscs, their parameters, the rate and the ports of a link change while threads
/// send.
#[test]
fn r5_parameters_change_under_load() {
    let devices = (0..2).map(|_| Box::new(Null::default()) as Box<dyn Device>);
    let rate = "1gbit".parse().expect("a rate");
    let link = Link::devices(devices).rate(rate).runners(2).ports_max(40).build().expect("a link");
    let stop = AtomicBool::new(false);
    let sent: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (mut sender, stop) = (link.sender(), &stop);
                scope.spawn(move || {
                    let flow = sender.flow(None);
                    let mut sent = 0;
                    while !stop.load(Ordering::Relaxed) {
                        sender.send(&flow, &[0; 100]).expect("the link is open");
                        sent += 1;
                    }
                    assert!(sender.flush(LONG));
                    sent
                })
            })
            .collect();
        let qdiscs = ["fq limit 20", "pfifo limit 5", "fq flow_limit 3", "bfifo", "fq quantum 500"];
        for turn in 0..30 {
            link.set_qdisc(qdiscs[turn % qdiscs.len()]).expect("a qdisc");
            link.set_rate(onramp::Rate::bytes_per_second(1_000_000 << (turn % 8)))
                .expect("it has a rate");
            let added = link.add_port(Null::default()).expect("there is room");
            assert!(link.remove_port(turn, LONG).expect("there are others").flushed);
            assert_eq!(added, turn + 2);
            assert!(link.stats().sent <= link.stats().submitted);
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a sender")).sum()
    });
    let stats = link.stats();
    assert_eq!((stats.submitted, stats.held), (sent, 0));
    assert_eq!(stats.submitted, stats.sent + stats.dropped_total());
}
