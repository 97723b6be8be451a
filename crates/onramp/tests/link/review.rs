//! Corks, flows by processor, rates, removed ports and runners, in combination.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::{Null, Receiver, loopback, pin_thread};
use onramp::{
    Device, DeviceInfo, DropReason, Flow, Instant, Link, Mapping, Mode, PacketList, Rate, Sender,
    Transmitted,
};

use crate::common::{Gate, LONG, SHORT, balanced, credits, gated, in_time, leave, now, until};
use crate::trap::{Mortal, kill};

/// Whether the machine has processors 0 and 1, to which ports 0 and 1 belong. If it has not, prints
/// that the test is skipped.
fn two() -> bool {
    let two = pin_thread(0).is_ok() && pin_thread(1).is_ok();
    if !two {
        // Write to stderr directly, because the test harness hides what passing tests print.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "SKIP: kernel: it takes processors 0 and 1").expect("it is open");
    }
    two
}

/// While a sender is corked, the packets of a flow stay at one port, even if the sender moves to
/// another processor.
#[test]
fn a_corked_flow_stays_at_its_port() {
    if !two() {
        return;
    }
    in_time(|| {
        let gates = [Gate::new(true), Gate::new(true)];
        let link = Link::devices(gates.iter().map(|gate| gate.device())).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Cpu);
        sender.cork();
        pin_thread(1).unwrap();
        sender.try_send(&flow, b"first").unwrap();
        pin_thread(0).unwrap();
        sender.try_send(&flow, b"second").unwrap();
        sender.uncork().unwrap();
        assert!(sender.flush(LONG));
        let taken = gates.map(|gate| gate.taken().len());
        assert!(taken == [0, 2] || taken == [2, 0], "{taken:?}: the second went first");
    });
}

fn payloads(receiver: &mut Receiver) -> Vec<Vec<u8>> {
    receiver.recv_all().map(|packet| packet.payload().to_vec()).collect()
}

/// Makes a sender whose flow is mapped by processor and whose cork holds back a packet with the
/// payload `1` for port 1, which has died. Port 0 leads to the receiver.
fn corked_for_a_dead_port() -> (Link, Sender, Flow, Receiver) {
    let (device, receiver) = loopback(9);
    let (dies, kills) = Mortal::over(Box::new(Null::default()));
    let link = Link::devices([Box::new(device), dies]).qdisc("pfifo").build().unwrap();
    let mut sender = link.sender();
    let flow = sender.flow_with(None, Mapping::Cpu);
    sender.cork();
    pin_thread(1).unwrap();
    sender.try_send(&flow, b"1").unwrap();
    kill(&link, 1, &kills);
    (link, sender, flow, receiver)
}

/// If the port of a corked flow dies and is removed, packets that are sent later still arrive after
/// the corked packets.
#[test]
fn a_corked_flow_outlives_its_port_in_order() {
    if !two() {
        return;
    }
    in_time(|| {
        for batch in [false, true] {
            let (link, mut sender, flow, mut receiver) = corked_for_a_dead_port();
            match batch {
                true => assert_eq!(sender.try_send_batch(&flow, [b"2"]), Ok(1)),
                false => assert_eq!(sender.try_send(&flow, b"2"), Ok(())),
            }
            link.remove_port(1, LONG).unwrap();
            sender.uncork().unwrap();
            sender.try_send(&flow, b"3").unwrap();
            assert!(link.flush(LONG));
            assert_eq!(payloads(&mut receiver), [b"1", b"2", b"3"], "{batch}");
        }
    });
}

/// Under a cork, packets for a port that has died are accepted, and dropped together with the other
/// corked packets. After the cork, the flow uses another port.
#[test]
fn a_corked_flow_leaves_a_dead_port_after_the_cork() {
    if !two() {
        return;
    }
    in_time(|| {
        let (link, mut sender, flow, mut receiver) = corked_for_a_dead_port();
        sender.try_send(&flow, b"2").unwrap();
        // A call that waits ends the cork.
        assert!(sender.wait_room_timeout(&flow, 1, LONG));
        sender.try_send(&flow, b"3").unwrap();
        assert!(link.flush(LONG));
        assert_eq!(payloads(&mut receiver), [b"3"]);
        let dead = link.stats().dropped[&DropReason::PortDead];
        assert!(dead >= 2, "{dead} packets were dropped with the port");
        balanced(&link.stats());
    });
}

/// A flow by processor moves to another port only if no packet is in flight. A packet that was made
/// and dropped without being submitted must not count as one that was in flight and came home.
#[test]
fn a_packet_that_was_never_sent_moves_no_flow() {
    if !two() {
        return;
    }
    in_time(|| {
        let gates = [Gate::new(true), Gate::new(false)];
        let link = Link::devices(gates.iter().map(|gate| gate.device())).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Cpu);
        pin_thread(1).unwrap();
        sender.try_send(&flow, b"first").unwrap();
        drop(sender.packet(&flow, b"never").unwrap());
        pin_thread(0).unwrap();
        sender.try_send(&flow, b"second").unwrap();
        let overtook = link.stats().ports[0].sent;
        gates[1].open();
        assert!(sender.flush(LONG));
        assert_eq!(overtook, 0, "the second overtook the first");
    });
}

/// A flush that waits because of a slow rate returns soon after the rate is raised.
#[test]
fn a_rate_that_rises_lets_those_who_wait_go() {
    in_time(|| {
        let link = Link::devices([Box::new(Null::default()) as Box<dyn Device>])
            .qdisc("pfifo")
            .rate(Rate::bytes_per_second(10))
            .build()
            .unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        for _ in 0..3 {
            sender.try_send(&flow, &[0; 958]).unwrap(); // At this rate, each packet takes 100 s.
        }
        let began = now();
        let waits =
            thread::Builder::new().spawn(move || sender.flush(Duration::from_secs(200))).unwrap();
        thread::sleep(SHORT);
        link.set_rate(Rate::bytes_per_second(0)).unwrap();
        assert!(waits.join().unwrap(), "without a limit");
        assert!(now().since(began) < 100_000_000_000, "it slept to its deadline");
    });
}

/// A device that blocks its callers while the flag in field 1 is set, and counts the threads that
/// it blocks in field 2.
struct Blocks(DeviceInfo, Arc<AtomicBool>, Arc<AtomicU64>);

impl Device for Blocks {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }
    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _: Instant,
    ) -> Transmitted {
        if self.1.load(Ordering::SeqCst) {
            self.2.fetch_add(1, Ordering::SeqCst);
        }
        while self.1.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        done.append(burst);
        Transmitted::default()
    }
}

/// While a device blocks a runner, another runner serves the ports of that runner.
#[test]
fn a_blocked_runner_has_a_stand_in() {
    in_time(|| {
        let inside = Arc::new(AtomicU64::new(0));
        let blocks = Arc::new(AtomicBool::new(true));
        let info = DeviceInfo::new("blocks".to_owned(), 1_514);
        let devices: [Box<dyn Device>; 3] = [
            Box::new(Blocks(info, blocks.clone(), inside.clone())),
            Box::new(Null::default()),
            Box::new(Null::default()),
        ];
        let link = Link::devices(devices).mode(Mode::Dedicated).runners(2).build().unwrap();
        let mut sender = link.sender();
        let flows = [(); 3].map(|()| sender.flow(None));
        sender.try_send(&flows[0], b"blocks").unwrap();
        until("somebody is in the device", || inside.load(Ordering::SeqCst) > 0);
        let mut other = link.sender();
        for _ in 0..10 {
            other.try_send(&flows[2], b"waits").unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        let sent = other.flush(LONG);
        blocks.store(false, Ordering::SeqCst);
        assert!(sent, "nobody came");
    });
}

/// When a port is removed, its flows continue at other ports, but never at a port that is dead.
#[test]
fn a_dead_port_inherits_nothing() {
    struct Dies(DeviceInfo);
    impl Device for Dies {
        fn info(&self) -> &DeviceInfo {
            &self.0
        }
        fn transmit(&mut self, _: &mut PacketList, _: &mut PacketList, _: Instant) -> Transmitted {
            panic!("it dies");
        }
    }
    in_time(|| {
        let devices: [Box<dyn Device>; 3] = [
            Box::new(Null::default()),
            Box::new(Dies(DeviceInfo::new("dies".to_owned(), 1_514))),
            Box::new(Null::default()),
        ];
        let link = Link::devices(devices).build().unwrap();
        let mut sender = link.sender();
        let flows: Vec<_> = (0..12).map(|_| sender.flow(None)).collect();
        let _ = sender.try_send(&flows[1], b"x");
        until("it is dead", || !link.deaths().is_empty());
        link.remove_port(0, LONG).unwrap();
        for flow in flows.iter().filter(|flow| flow.port() == 0) {
            assert_eq!(sender.send(flow, b"x"), Ok(()), "flow {}", flow.key());
        }
        assert!(link.deaths().len() == 1);
    });
}

/// When several ports are removed, their flows spread over the ports that are left.
#[test]
fn heirs_of_heirs_share() {
    let devices = (0..4).map(|_| Box::new(Null::default()) as Box<dyn Device>);
    let link = Link::devices(devices).build().unwrap();
    let mut sender = link.sender();
    let flows: Vec<_> = (0..400).map(|_| sender.flow(None)).collect();
    link.remove_port(0, LONG).unwrap();
    link.remove_port(1, LONG).unwrap();
    for flow in flows.iter().filter(|flow| flow.port() == 1) {
        sender.send(flow, b"x").unwrap();
    }
    assert!(sender.flush(LONG));
    let sent = [2, 3].map(|port: usize| link.stats().ports[port].sent);
    assert!(sent.iter().all(|n| *n > 20), "100 flows of port 1: {sent:?}");
}

struct Counts(AtomicU32);
impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future that was never polled has made no request to be woken, so dropping it withdraws no
/// request that was made before.
#[test]
fn a_future_never_polled_takes_no_request_back() {
    in_time(|| {
        let gate = Gate::new(false);
        let link = gated(&gate, "pfifo").credits(credits(4)).build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow(None);
        while sender.try_send(&flow, b"x").is_ok() {}
        let counts = Arc::new(Counts(AtomicU32::new(0)));
        leave(&Waker::from(counts.clone()), &mut sender, &flow);
        drop(sender.ready(&flow, 1));
        gate.open();
        assert!(link.flush(LONG));
        // The packets come home a little after they were sent, so wait for the wake-up.
        until("it is woken", || counts.0.load(Ordering::SeqCst) > 0);
        assert!(sender.flush(LONG));
        assert_eq!(counts.0.load(Ordering::SeqCst), 1, "once");
    });
}

/// A device blocks for longer than a close waits. A sender that waits until its packets come home
/// gets them after the device has returned.
#[test]
fn a_close_while_a_device_blocks() {
    in_time(|| {
        let blocks = Arc::new(AtomicBool::new(true));
        let info = DeviceInfo::new("blocks".to_owned(), 1_514);
        let inside = Arc::new(AtomicU64::new(0));
        let device = Box::new(Blocks(info, blocks.clone(), inside.clone())) as Box<dyn Device>;
        let link =
            Link::devices([device]).qdisc("fq maxrate 8kbit initial_quantum 0").build().unwrap();
        let (mut sender, mut other) = (link.sender(), link.sender());
        let flow = sender.flow(None);
        let blocked =
            thread::Builder::new().spawn(move || other.try_send(&other.flow(None), b"x")).unwrap();
        until("somebody is in the device", || inside.load(Ordering::SeqCst) > 0);
        for _ in 0..3 {
            sender.try_send(&flow, &[0; 1_000]).unwrap();
        }
        let report = link.close(Duration::ZERO);
        assert!(!report.flushed);
        blocks.store(false, Ordering::SeqCst);
        blocked.join().unwrap().unwrap();
        until("its packets come home", || sender.flush(Duration::ZERO));
    });
}
