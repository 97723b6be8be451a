//! Devices that panic (their ports die), and callbacks that panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use onramp::dev::Null;
use onramp::{
    Device, DeviceInfo, DropReason, Instant, Link, Mapping, PacketList, PortError, SendError,
    Transmitted, TrySendError,
};

use crate::blocked::block;
use crate::common::{Fates, Gate, LONG, balanced, credits, gated, in_time, until};
use crate::trap::Trap;

/// A device that takes a given number of packets and then panics.
struct Mortal {
    info: DeviceInfo,
    left: u64,
    taken: Arc<AtomicU64>,
}

impl Mortal {
    fn device(left: u64) -> (Box<dyn Device>, Arc<AtomicU64>) {
        let taken = Arc::new(AtomicU64::new(0));
        let info = DeviceInfo::new("mortal".to_owned(), 1_514);
        (Box::new(Self { info, left, taken: taken.clone() }), taken)
    }
}

impl Device for Mortal {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        self.left = self.left.checked_sub(burst.len().into()).expect("it has had enough");
        self.taken.fetch_add(burst.len().into(), Ordering::Relaxed);
        done.append(burst);
        Transmitted::default()
    }
}

/// 16 threads send over two ports, one of which dies. No thread hangs, no packet is lost, and the
/// threads on the other port go on.
#[test]
fn a_port_dies_under_load() {
    in_time(|| {
        let (mortal, taken) = Mortal::device(5_000);
        let link = Link::devices([mortal, Box::new(Null::default())]).build().unwrap();
        // Make all flows before the port dies: flows that are made later all use the other port.
        let senders = [(); 16].map(|()| {
            let sender = link.sender();
            let flow = sender.flow(None);
            (sender, flow)
        });
        let told: Vec<Fates> = thread::scope(|scope| {
            let threads: Vec<_> = senders
                .into_iter()
                .map(|(mut sender, flow)| {
                    scope.spawn(move || {
                        let fates = Fates::of(&mut sender);
                        for n in 0..2_000 {
                            if let Err(why) = sender.send(&flow, b"x") {
                                assert_eq!(why, SendError::PortDead, "packet {n}");
                                break;
                            }
                        }
                        assert!(sender.flush(LONG));
                        assert_eq!(sender.in_flight(), 0);
                        fates
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stats = link.stats();
        balanced(&stats);
        assert_eq!(link.deaths(), [(0, "it has had enough".to_owned())]);
        assert_eq!(stats.ports[1].sent, 8 * 2_000, "the other port");
        assert_eq!(stats.ports[0].sent, taken.load(Ordering::Relaxed));
        let dead = stats.dropped[&DropReason::PortDead];
        let of = |fate| told.iter().map(|fates| fates.get(fate)).sum::<u64>();
        assert_eq!((of(None), of(Some(DropReason::PortDead))), (stats.sent, dead));
        assert!(link.close(LONG).flushed);
    });
}

/// A device panics while a runner calls it. The runner survives and goes on serving the other port.
#[test]
fn the_runner_outlives_a_port() {
    in_time(|| {
        let (mortal, _) = Mortal::device(0);
        let gate = Gate::new(true);
        let link =
            Link::devices([mortal, gate.device()]).qdisc("fq maxrate 8mbit").build().unwrap();
        let mut sender = link.sender();
        let (doomed, other) = (sender.flow(None), sender.flow(None));
        // Packets beyond the first quantum are paced, so they wait for their time, and a runner
        // sends them.
        for _ in 0..40 {
            sender.try_send(&other, &[0; 1_000]).unwrap();
        }
        let mut packet = sender.packet(&doomed, b"x").unwrap();
        packet.txtime_ns = (link.now() + std::time::Duration::from_millis(5)).0;
        sender.submit(&doomed, packet).unwrap();
        until("the port dies by a visit of the runner", || !link.deaths().is_empty());
        assert_eq!(sender.try_send(&doomed, b"x"), Err(TrySendError::PortDead));
        assert!(sender.wait_room_timeout(&doomed, 1, LONG), "to be told why");
        assert!(sender.flush(LONG));
        assert_eq!(gate.taken().len(), 40);
        balanced(&link.stats());
    });
}

/// A sender that waits for room when its port dies is woken, and gets an error that says so.
#[test]
fn those_who_wait_are_told() {
    in_time(|| {
        let (mortal, _) = Mortal::device(0);
        let qdisc = "fq maxrate 8kbit initial_quantum 0";
        let link = Link::devices([mortal]).qdisc(qdisc).credits(credits(2)).build().unwrap();
        let waits = thread::scope(|scope| {
            let mut sender = link.sender();
            let waits = scope.spawn(move || {
                let flow = sender.flow(None);
                loop {
                    if let Err(why) = sender.send(&flow, &[0; 100]) {
                        return why;
                    }
                }
            });
            waits.join().unwrap()
        });
        assert_eq!(waits, SendError::PortDead);
        assert!(link.flush(LONG));
        balanced(&link.stats());
    });
}

/// If a callback panics, its sender loses no credit.
#[test]
fn a_callback_that_panics() {
    in_time(|| {
        let gate = Gate::new(true);
        let link = gated(&gate, "pfifo").credits(credits(8)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        gate.shut();
        (0..8).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        sender.on_complete(|_| panic!("no"));
        gate.open();
        assert!(link.flush(LONG));
        assert!(catch_unwind(AssertUnwindSafe(|| sender.reclaim())).is_err());
        assert_eq!(sender.in_flight(), 0);
        sender.on_complete(|_| ());
        gate.shut();
        (0..8).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Full));
        gate.open();
        assert!(sender.flush(LONG));
        balanced(&link.stats());
    });
}

/// A port that is dead is not called late while another port is late.
#[test]
fn a_dead_port_beside_a_late_one() {
    in_time(|| {
        let (mortal, _) = Mortal::device(0);
        let trap = Trap::for_runners();
        let link = Link::devices([mortal, trap.device()]).qdisc("fq").runners(1).build().unwrap();
        let mut sender = link.sender();
        let doomed = sender.flow_with(None, Mapping::Port(0));
        sender.try_send(&doomed, b"x").unwrap();
        until("the port dies", || !link.deaths().is_empty());
        block(&link, 1, &trap);
        let told: Vec<_> = link.all_views().into_iter().map(|(_, views)| views.map(drop)).collect();
        assert!(matches!(told[..], [Err(PortError::Dead(0)), Err(PortError::Late(1))]), "{told:?}");
        trap.open();
        assert!(link.flush(LONG));
    });
}
