//! Tests that a link does not have bugs that Linux had after its lock-free list in front of qdiscs
//! was added in 2025. Of the eight bugs R1 to R8 that the head of
//! `onramp-core/tests/port/regressions.rs` lists, this file tests R2, R4 and R7. It also tests a
//! few other bugs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Device, DeviceInfo, DropReason, Instant, Link, PacketList, SendError, Transmitted};

use crate::common::{Fates, Gate, LONG, balanced, credits, gated, in_time, until};

/// R2, a bug of Linux (one of R1 to R8 in `onramp-core/tests/port/regressions.rs`): packets were
/// dropped early, because the number of packets in the lock-free list was compared with the qdisc's
/// `limit`, which is 0 in HTB and ten other qdiscs.
///
/// In a link, the intake has a cap of its own for waiting packets, and gives packets beyond the cap
/// back instead of dropping them. The qdisc's limit applies only to packets in the qdisc.
#[test]
fn r2_the_intake_has_a_cap_of_its_own() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo limit 1").burst(200).credits(credits(300)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        // The 200 packets enter the intake with one push. The qdisc takes them out one after
        // another, as fast as the device takes them.
        sender.cork();
        (0..200).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.refused), (200, 0), "the intake took them all");
        assert_eq!((stats.sent, stats.dropped_total()), (200, 0), "{:?}", stats.dropped);
    });
}

/// R4, a bug of Linux (one of R1 to R8 in `onramp-core/tests/port/regressions.rs`): the fate of a
/// packet (sent or dropped) was reported only if its batch had no other packet.
///
/// In a link, the fate of every packet of a batch is reported, with the packet's own cookie.
#[test]
fn r4_each_packet_of_a_batch_learns_its_fate() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo limit 70").credits(credits(500)).build().unwrap();
        let mut sender = link.sender();
        let fates = Arc::new(Mutex::new(BTreeMap::new()));
        let theirs = fates.clone();
        sender.on_complete(move |fate| {
            let before = theirs.lock().unwrap().insert(fate.cookie, fate.drop_reason);
            assert_eq!(before, None, "told once");
        });
        let flow = sender.flow(None);
        sender.cork();
        for cookie in 0..250 {
            let mut packet = sender.packet(&flow, b"x").unwrap();
            packet.cookie = cookie;
            sender.submit(&flow, packet).unwrap();
        }
        sender.uncork().unwrap();
        // Wait until the device was offered some packets, the qdisc is full, and the rest is
        // dropped. If the gate opened before that, packets would leave while others still come.
        until("the qdisc is full", || link.stats().dropped_total() > 0);
        gate.open();
        assert!(sender.flush(LONG));
        let sent = gate.taken();
        let fates = fates.lock().unwrap();
        assert_eq!(fates.len(), 250);
        for (cookie, fate) in fates.iter() {
            let want = (!sent.contains(cookie)).then_some(DropReason::Overlimit);
            assert_eq!(*fate, want, "packet {cookie}");
        }
        assert!((70..250).contains(&sent.len()), "{} of 250", sent.len());
    });
}

/// A device that, while it exists, is counted in `alive`.
struct Counted(Box<dyn Device>, Arc<AtomicU32>);

impl Counted {
    fn over(gate: &Arc<Gate>, alive: &Arc<AtomicU32>) -> Box<dyn Device> {
        alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Self(gate.device(), alive.clone()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Device for Counted {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        self.0.transmit(burst, done, now)
    }
}

/// R7, a bug of Linux (one of R1 to R8 in `onramp-core/tests/port/regressions.rs`): the memory of
/// an array of queues leaked when a qdisc was destroyed, and dropped packets were not counted.
///
/// In this test, a thread closes a link while other threads send over it. Every packet is sent or
/// counted as dropped, and all devices are freed.
#[test]
fn r7_a_link_closed_under_load_leaves_nothing() {
    for qdisc in ["pfifo", "fq", "fq maxrate 8mbit", "pfifo_fast"] {
        in_time(move || {
            let alive = Arc::new(AtomicU32::new(0));
            for round in 0..20 {
                let gates = [Gate::new(true), Gate::new(round % 2 == 0)];
                let devices = gates.each_ref().map(|gate| Counted::over(gate, &alive));
                let link = Link::devices(devices).qdisc(qdisc).build().unwrap();
                let told: u64 = thread::scope(|scope| {
                    let threads: Vec<_> = (0..6)
                        .map(|_| {
                            let mut sender = link.sender();
                            scope.spawn(move || {
                                let fates = Fates::of(&mut sender);
                                let flow = sender.flow(None);
                                while sender.send(&flow, &[0; 200]) != Err(SendError::Closed) {}
                                // A flush of a closed link gives up soon.
                                until("all come home", || sender.flush(LONG));
                                fates.total()
                            })
                        })
                        .collect();
                    until("they send", || link.stats().submitted > 200);
                    link.close(Duration::ZERO);
                    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
                });
                until("all is counted", || link.stats().held == 0);
                let stats = link.stats();
                assert_eq!(told, stats.submitted);
                balanced(&stats);
                drop(link);
                until("the devices are gone", || alive.load(Ordering::SeqCst) == 0);
            }
        });
    }
}

/// The threads of a thousand senders and the runner share one processor. All packets are sent.
#[test]
fn a_thousand_senders_on_one_processor() {
    in_time(|| {
        // A new thread may run only on the processors of the thread that makes it, so this also
        // pins the runner.
        onramp::dev::pin_thread(onramp::dev::current_cpu().unwrap()).unwrap();
        let link = Link::devices([Box::new(Null::default()) as Box<_>]).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..1_000 {
                let mut sender = link.sender();
                let build = thread::Builder::new().stack_size(64 << 10);
                let run = move || {
                    let flow = sender.flow(None);
                    (0..50).for_each(|_| sender.send(&flow, b"x").unwrap());
                    assert!(sender.flush(LONG));
                };
                build.spawn_scoped(scope, run).unwrap();
            }
        });
        let stats = link.stats();
        assert_eq!(stats.sent, 50_000);
        balanced(&stats);
    });
}

/// The intake has room for only one packet. Senders that find it full wait, and all packets get in.
#[test]
fn an_intake_for_one_packet() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "fq").burst(1).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..8 {
                let mut sender = link.sender();
                scope.spawn(move || {
                    let flow = sender.flow(None);
                    (0..500).for_each(|_| sender.send(&flow, b"x").unwrap());
                    assert!(sender.flush(LONG));
                });
            }
        });
        let stats = link.stats();
        assert_eq!(stats.sent, 4_000);
        balanced(&stats);
    });
}

/// A device takes no packets for one second. Senders run out of credit, wait and go on, and no
/// packet is dropped.
#[test]
fn a_device_that_is_full_for_a_second() {
    struct Stuck(DeviceInfo, Option<Instant>, Arc<AtomicU32>);
    impl Device for Stuck {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }
        fn transmit(
            &mut self,
            burst: &mut PacketList,
            done: &mut PacketList,
            now: Instant,
        ) -> Transmitted {
            let until = *self.1.get_or_insert(now + Duration::from_secs(1));
            if now < until {
                self.2.fetch_add(1, Ordering::Relaxed);
                return Transmitted { calls: 1, messages: 0, retry_at: Some(until) };
            }
            done.append(burst);
            Transmitted::default()
        }
    }
    in_time(|| {
        let vain = Arc::new(AtomicU32::new(0));
        let stuck = Stuck(DeviceInfo::new("stuck".to_owned(), 1_514), None, vain.clone());
        let link = Link::devices([Box::new(stuck) as Box<_>]).build().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                let mut sender = link.sender();
                scope.spawn(move || {
                    let flow = sender.flow(None);
                    // Send one packet more than the sender has credits. That packet is refused,
                    // unless the device takes packets again by then.
                    let tries = (0..97).map(|_| sender.try_send(&flow, b"x"));
                    assert!(tries.filter(Result::is_ok).count() >= 96);
                    (0..300).for_each(|_| sender.send(&flow, b"x").unwrap());
                    assert!(sender.flush(LONG));
                });
            }
        });
        let stats = link.stats();
        assert_eq!(stats.sent, stats.submitted);
        assert_eq!(vain.load(Ordering::Relaxed), 1, "it is not asked before it said");
        balanced(&stats);
    });
}
