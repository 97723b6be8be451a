//! Counters that are read while packets move.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use onramp::dev::Null;
use onramp::{
    Device, DeviceInfo, DropReason, Instant, Link, PacketList, Transmitted, TrySendError,
};

use crate::common::{Gate, LONG, balanced, credits, gated, in_time, until};

/// At any time, each thread that reads the counters sees at least as many submitted packets as sent
/// ones, and no counter ever decreases.
#[test]
fn a_reader_never_sees_more_sent_than_submitted() {
    in_time(|| {
        let devices = (0..2).map(|_| Box::new(Null::default()) as Box<_>);
        let link = Link::devices(devices).qdisc("pfifo limit 20").burst(40).build().unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..6)
                .map(|_| {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        for _ in 0..40 {
                            let flow = sender.flow(None);
                            sender.send_batch(&flow, &[*b"batch"; 60]).unwrap();
                            (0..200).for_each(|_| sender.send(&flow, b"x").unwrap());
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut before = link.stats();
                while !done.load(Ordering::SeqCst) {
                    let stats = link.stats();
                    let (submitted, out) = (stats.submitted, stats.sent + stats.dropped_total());
                    assert!(submitted >= out, "{submitted} submitted, {out} out");
                    assert!(submitted >= before.submitted && stats.sent >= before.sent);
                    assert!(stats.sent_bytes >= before.sent_bytes);
                    before = stats;
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::SeqCst);
        });
        assert!(link.flush(LONG));
        let stats = link.stats();
        assert_eq!(stats.submitted, 6 * 40 * 260);
        balanced(&stats);
    });
}

#[test]
fn each_count_means_what_it_says() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo limit 5").credits(credits(100)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        // All packets enter the intake with one push. Five of them are offered to the device, which
        // takes none, and five wait in the qdisc. (If the port's owner loses its processor for a
        // long time, the runner goes on: it offers packets to the device again, and takes more
        // packets out of the qdisc for it.)
        sender.cork();
        (0..70).for_each(|_| sender.send(&flow, &[0; 58]).unwrap());
        sender.uncork().unwrap();
        until("all came into the qdisc", || link.stats().ports[0].enqueued == 70);
        // The device first refuses packets that this thread offers; afterwards, only the runner
        // offers packets. When the runner has done so twice, it has also counted its earlier work.
        let refusals = gate.refusals();
        until("the runner asks again", || gate.refusals() > refusals + 1);
        let stats = link.stats();
        assert_eq!((stats.submitted, stats.sent, stats.refused), (70, 0, 0));
        let held = 70 - stats.dropped_total();
        assert!((10..70).contains(&held), "{held} held");
        assert_eq!(stats.dropped, [(DropReason::Overlimit, 70 - held)].into());
        gate.open();
        assert!(sender.flush(LONG));
        let stats = link.stats();
        assert_eq!((stats.sent, stats.dropped_total()), (held, 70 - held));
        assert_eq!(stats.sent_bytes, held * 100, "with headers");
        assert_eq!((stats.ports[0].enqueued, stats.ports[0].sent), (70, held));
        assert!(stats.runner_visits > 0);
        balanced(&stats);
    });
}

/// A device that blocks its caller until it gets the lock in field 1.
struct Locked(DeviceInfo, Arc<Mutex<()>>, Arc<AtomicBool>);

impl Device for Locked {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _: Instant,
    ) -> Transmitted {
        self.2.store(true, Ordering::SeqCst);
        drop(self.1.lock());
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

/// Calls `test` with a link whose intake has a cap of `cap` packets and is empty. No thread takes
/// packets out of the intake, because the device blocks the port's owner, whose own packet is not
/// counted yet. Afterwards, lets the owner return. Returns the link when it holds no packet again.
fn with_a_stuck_port(cap: u16, test: impl FnOnce(&Link)) -> Link {
    let (lock, inside) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
    let info = DeviceInfo::new("locked".to_owned(), 1_514);
    let device = Box::new(Locked(info, lock.clone(), inside.clone()));
    let builder = Link::devices([device as Box<_>]).credits(credits(500));
    let link = builder.burst(cap).build().unwrap();
    thread::scope(|scope| {
        let locked = lock.lock().unwrap();
        let mut owner = link.sender();
        scope.spawn(move || {
            let flow = owner.flow(None);
            owner.send(&flow, b"stuck").unwrap();
            assert!(owner.flush(LONG));
        });
        until("it is inside", || inside.load(Ordering::SeqCst));
        test(&link);
        drop(locked);
    });
    assert!(link.flush(LONG));
    balanced(&link.stats());
    link
}

#[test]
fn refused_is_what_the_intake_gave_back() {
    in_time(|| {
        for cap in 1..=4_u16 {
            let room = usize::from(cap);
            let link = with_a_stuck_port(cap, |link| {
                let mut sender = link.sender();
                let flow = sender.flow(None);
                let mut expected = 0;
                for number in 0..room + 3 {
                    let packet = sender.packet(&flow, b"x").unwrap();
                    match sender.submit(&flow, packet) {
                        Ok(()) => assert!(number < room),
                        Err(back) => {
                            assert_eq!((number >= room, back.why), (true, TrySendError::Full));
                            expected += 1;
                        }
                    }
                    assert_eq!(link.stats().refused, expected, "submit {number} of {cap}");
                }
                for number in 0..3 {
                    assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
                    expected += 1;
                    assert_eq!(link.stats().refused, expected, "try_send {number}");
                }
                for batch in [0, 1, 2, 64] {
                    let staged = sender.try_send_batch(&flow, vec![b"x"; batch]);
                    let full = Err(TrySendError::Full);
                    assert_eq!(staged, if batch == 0 { Ok(0) } else { full });
                    expected += batch as u64;
                    assert_eq!(link.stats().refused, expected, "a batch of {batch}");
                }
                sender.reclaim();
                assert_eq!(sender.in_flight(), u32::from(cap), "who is refused has its packet");
                // The counts of a sender stay after the sender was dropped.
                drop(sender);
                assert_eq!(link.stats().refused, expected);
            });
            let stats = link.stats();
            assert_eq!((stats.submitted, stats.sent), (1 + u64::from(cap), 1 + u64::from(cap)));
        }
    });
}

/// If only a part of a batch finds room in the intake, the rest counts as refused. Packets of the
/// batch that were not tried do not.
#[test]
fn the_rest_of_a_batch_is_refused() {
    in_time(|| {
        for (cap, batch) in (1..=4).flat_map(|cap| [(cap, 5), (cap, 64), (cap, 65), (cap, 200)]) {
            with_a_stuck_port(cap, |link| {
                let mut sender = link.sender();
                let flow = sender.flow(None);
                let staged = sender.try_send_batch(&flow, vec![b"x"; batch]);
                assert_eq!(staged, Ok(usize::from(cap)));
                // A batch is pushed in parts of 64 packets. After a part that does not fit
                // completely, no further part is tried.
                let refused = batch.min(64) as u64 - u64::from(cap);
                let stats = link.stats();
                assert_eq!((stats.refused, stats.submitted), (refused, u64::from(cap)));
                assert_eq!(sender.in_flight(), u32::from(cap));
            });
        }
    });
}

/// Packets that do not fit into the intake at the end of a cork do not count as refused: the cork
/// goes on holding them back, and they will be sent.
#[test]
fn an_uncork_that_does_not_fit_refuses_nothing() {
    in_time(|| {
        let mut corked = None;
        let link = with_a_stuck_port(2, |link| {
            let sender = corked.insert(link.sender());
            let flow = sender.flow(None);
            sender.cork();
            (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
            assert_eq!(sender.uncork(), Err(TrySendError::Full));
            let stats = link.stats();
            assert_eq!((stats.refused, stats.submitted), (0, 2));
        });
        assert!(corked.unwrap().flush(LONG));
        assert_eq!((link.stats().refused, link.stats().sent), (0, 1 + 5));
    });
}
