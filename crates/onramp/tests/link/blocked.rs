//! Devices that block the link's only runner: the timers of other ports stay on time, and no packet
//! is lost.

use std::sync::Arc;
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Device, DropReason, Flow, Link, Mapping, Mode, Sender, TrySendError};

use crate::common::{Fates, LONG, SHORT, balanced, in_time, now, until};
use crate::trap::Trap;

const PORTS: usize = 8;
/// Longest time that a test allows for a close that waits one second for a blocked device,
/// nanoseconds. It is far longer than a second, because the machine may be slow.
const HANG_NS: u64 = 60_000_000_000;

/// Submits a packet that leaves `ns` nanoseconds from now. So a runner sends the packet, unless the
/// submitting thread is so slow that the packet is already due.
pub(crate) fn later(link: &Link, sender: &mut Sender, flow: &Flow, ns: u64) {
    let mut packet = loop {
        match sender.packet(flow, b"later") {
            Ok(packet) => break packet,
            Err(TrySendError::Full) => sender.wait_room(flow, 5),
            Err(why) => panic!("{why}"),
        }
    };
    packet.txtime_ns = link.now().after(ns).0;
    sender.submit(flow, packet).unwrap();
}

/// Makes the device of a port block a runner. Returns the number of packets that were submitted for
/// this.
pub(crate) fn block(link: &Link, port: usize, trap: &Trap) -> u64 {
    trap.shut();
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Port(port));
    let mut packets = 0;
    while trap.inside() == 0 {
        // Read before the packet is submitted: if the packet is due already, this thread sends it.
        let sent = || link.stats().ports[port].sent;
        let before = sent();
        later(link, &mut sender, &flow, 1_000_000);
        packets += 1;
        until("somebody sends it", || trap.inside() > 0 || sent() > before);
    }
    packets
}

/// Makes a link with `PORTS` ports. The devices of the first `count` ports block runners when a
/// test tells them to.
fn traps(count: usize, mode: Mode) -> (Link, Vec<Arc<Trap>>) {
    let traps: Vec<_> = (0..count).map(|_| Trap::for_runners()).collect();
    let rest = (count..PORTS).map(|_| Box::new(Null::default()) as Box<dyn Device>);
    let devices: Vec<_> = traps.iter().map(|trap| trap.device()).chain(rest).collect();
    let link = Link::devices(devices).qdisc("fq").mode(mode).runners(1).build().unwrap();
    (link, traps)
}

/// Some devices block at the same time. The packets of all other ports still leave at their
/// departure times, and only runners send them. When the devices return, all packets flow.
#[test]
fn the_timers_of_other_ports_go_on() {
    for (blocked, mode) in [
        (1, Mode::Hybrid),
        (3, Mode::Hybrid),
        (5, Mode::Hybrid),
        (7, Mode::Hybrid),
        (5, Mode::Inline),
        (5, Mode::Dedicated),
    ] {
        in_time(move || {
            let (link, traps) = traps(blocked, mode);
            let mut sender = link.sender();
            let fates = Fates::of(&mut sender);
            let mut brought = 0;
            for round in 1..=3 {
                for (port, trap) in traps.iter().enumerate() {
                    brought += block(&link, port, trap);
                }
                for port in blocked..PORTS {
                    let flow = sender.flow_with(None, Mapping::Port(port));
                    // Send one packet at once, and further packets with later departure times.
                    sender.try_send(&flow, b"now").unwrap();
                    for n in 1..=5 {
                        later(&link, &mut sender, &flow, n * 300_000);
                    }
                }
                // The sender makes no call meanwhile, so it does not help to send these packets.
                until("the others send", || {
                    let ports = &link.stats().ports;
                    ports[blocked..].iter().all(|port| port.sent == round * 6)
                });
                assert!(traps.iter().all(|trap| trap.inside() == 1), "they are blocked still");
                assert!(!link.flush(Duration::ZERO));
                // Packets for a port whose device blocks wait in that port.
                for port in 0..blocked {
                    let flow = sender.flow_with(None, Mapping::Port(port));
                    (0..4).for_each(|_| sender.try_send(&flow, b"waits").unwrap());
                    brought += 4;
                }
                traps.iter().for_each(|trap| trap.open());
                assert!(sender.flush(LONG) && link.flush(LONG));
            }
            let stats = link.stats();
            assert_eq!(stats.sent, brought + 3 * 6 * (PORTS - blocked) as u64);
            let taken: usize = traps.iter().map(|trap| trap.taken().len()).sum();
            assert_eq!(taken as u64, brought, "all that was brought to them");
            assert_eq!(fates.total(), fates.get(None));
            balanced(&stats);
            assert_eq!(link.close(LONG).blocked, 0);
        });
    }
}

/// Devices block one after another, in turn. Each time, the other ports go on sending.
#[test]
fn devices_block_in_turn() {
    in_time(|| {
        let (link, traps) = traps(3, Mode::Hybrid);
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(7));
        for round in 0..30 {
            let (port, next) = (round % 3, (round + 1) % 3);
            block(&link, port, &traps[port]);
            block(&link, next, &traps[next]);
            traps[port].open();
            later(&link, &mut sender, &flow, 500_000);
            until("it goes on", || link.stats().ports[7].sent == round as u64 + 1);
            traps[next].open();
            until("they are back", || traps.iter().all(|trap| trap.inside() == 0));
        }
        assert!(link.flush(LONG));
        balanced(&link.stats());
    });
}

/// A close waits for a blocked device for a second at most, and reports the number of ports that it
/// left unclosed. The packets that the device does not take when it returns are purged.
#[test]
fn a_close_leaves_a_runner_that_is_blocked() {
    for (ports, patience) in [(1, Duration::ZERO), (PORTS, SHORT)] {
        in_time(move || {
            let trap = Trap::for_runners();
            let rest = (1..ports).map(|_| Box::new(Null::default()) as Box<dyn Device>);
            let devices: Vec<_> = [trap.device()].into_iter().chain(rest).collect();
            let link = Link::devices(devices).qdisc("fq").build().unwrap();
            let mut sender = link.sender();
            let fates = Fates::of(&mut sender);
            let flow = sender.flow_with(None, Mapping::Port(0));
            let before = block(&link, 0, &trap);
            (0..30).for_each(|_| sender.try_send(&flow, b"waits").unwrap());
            trap.takes(1);
            let began = now();
            let report = link.close(patience);
            assert!(now().since(began) < HANG_NS);
            assert!(!report.flushed && report.blocked > 0, "{report:?}");
            assert_eq!((report.purged, trap.inside()), (0, 1), "it is blocked still");
            // A second close must return, too, while the device still blocks.
            assert!(!link.close(Duration::ZERO).flushed);
            assert_eq!(sender.try_send(&flow, b"x"), Err(TrySendError::Closed));
            assert_eq!(sender.in_flight(), 30);
            trap.open();
            until("they come home", || sender.flush(Duration::ZERO));
            until("all is counted", || link.stats().held == 0);
            let stats = link.stats();
            let taken = trap.taken().len() as u64;
            assert_eq!((stats.submitted, stats.sent), (before + 30, taken));
            assert_eq!(stats.dropped.get(&DropReason::Purged), Some(&(before + 30 - taken)));
            assert_eq!(fates.total(), 30, "each is told");
            balanced(&stats);
        });
    }
}

/// The close of a link does not wait for a port whose device blocks a sender's thread. When the
/// device returns, the sender purges the packets of the port.
#[test]
fn a_close_leaves_a_sender_that_is_blocked() {
    in_time(|| {
        let trap = Trap::new();
        let link = Link::devices([trap.device(), Box::new(Null::default())]).build().unwrap();
        let mut sender = link.sender();
        let fates = Fates::of(&mut sender);
        let flow = sender.flow_with(None, Mapping::Port(0));
        let caught = trap.catch(&link, 0);
        (0..30).for_each(|_| sender.try_send(&flow, b"waits").unwrap());
        let began = now();
        let report = link.close(Duration::ZERO);
        assert!(now().since(began) < HANG_NS);
        assert!(!report.flushed && report.purged == 0, "{report:?}");
        assert!(link.stats().held >= 30, "and what is in the device");
        trap.open();
        caught.join().unwrap();
        assert!(sender.flush(LONG));
        until("all is counted", || link.stats().held == 0);
        let stats = link.stats();
        assert_eq!((stats.sent, trap.taken().len()), (1, 1), "what the device had");
        assert_eq!((stats.dropped.get(&DropReason::Purged), fates.total()), (Some(&30), 30));
        balanced(&stats);
    });
}

/// The last handle and the last sender are dropped while a device blocks. The drop takes no longer
/// than a close, and the device is dropped as soon as its call returns.
#[test]
fn a_link_is_dropped_while_a_device_blocks() {
    in_time(|| {
        let (link, traps) = traps(2, Mode::Hybrid);
        block(&link, 1, &traps[1]);
        let began = now();
        drop(link);
        assert!(now().since(began) < HANG_NS);
        assert_eq!(traps[1].inside(), 1);
        traps[1].open();
        until("the devices are gone", || traps.iter().all(|trap| Arc::strong_count(trap) == 1));
    });
}
