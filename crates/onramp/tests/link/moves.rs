//! Packets of a flow keep their order when the flow's port is removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use onramp::{
    Clock, Device, DeviceInfo, DropReason, Facts, Instant, Link, Mapping, PacketList, Transmitted,
    dev,
};

use crate::common::{Gate, LONG, balanced, credits, in_time, until};

/// A device that records the cookies of the packets that it takes. All devices of a test use the
/// same list.
struct Noting {
    info: DeviceInfo,
    taken: Arc<Mutex<Vec<u64>>>,
}

impl Device for Noting {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _: Instant,
    ) -> Transmitted {
        self.taken.lock().unwrap().extend(burst.metas().map(|meta| meta.cookie));
        done.append(burst);
        Transmitted { calls: 1, messages: 1, retry_at: None }
    }
}

/// A sender uncorks many packets into an empty port while the port is removed, so it takes a long
/// time until all of them are in the port. Later packets of the flow, which go to another port, do
/// not overtake them.
fn pull(wait: Duration) {
    const PACKETS: u32 = 8_000;
    let taken = Arc::new(Mutex::new(Vec::new()));
    let device = || {
        let info = DeviceInfo::new("notes".to_owned(), 1_514);
        Box::new(Noting { info, taken: taken.clone() }) as Box<dyn Device>
    };
    let qdisc = "fq maxrate 2gbit flow_limit 10000";
    let link = Link::devices([device(), device()]).qdisc(qdisc).credits(credits(PACKETS + 1));
    let link = link.build().unwrap();
    let (mut sender, pulls) = (link.sender(), AtomicBool::new(false));
    let flow = sender.flow_with(None, Mapping::Port(0));
    let submit = |sender: &mut onramp::Sender, cookie| {
        let mut packet = sender.packet(&flow, &[0; 100]).unwrap();
        packet.cookie = cookie;
        while let Err(back) = sender.submit(&flow, packet) {
            packet = back.packet;
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.cork();
            (0..PACKETS).for_each(|cookie| submit(&mut sender, cookie.into()));
            pulls.store(true, Ordering::SeqCst);
            while sender.uncork().is_err() {
                thread::yield_now();
            }
            submit(&mut sender, PACKETS.into());
            assert!(sender.flush(LONG));
        });
        until("the cork is pulled", || pulls.load(Ordering::SeqCst));
        let start = dev::MonotonicClock.now();
        while dev::MonotonicClock.now() < start + wait {}
        assert!(link.remove_port(0, LONG).unwrap().flushed);
    });
    assert!(taken.lock().unwrap().is_sorted(), "overtaken");
}

#[test]
fn packets_on_their_way_into_a_port_that_goes_are_not_overtaken() {
    for turn in 0..50 {
        in_time(move || pull(Duration::from_micros(turn * 5)));
    }
}

/// A port whose device takes nothing is removed while a sender pushes many packets into it. The
/// sender's next packets wait for them only until the deadline of the removal, and then leave
/// through another port.
#[test]
fn nobody_waits_for_ever_for_what_came_late() {
    in_time(|| {
        for turn in 0..40 {
            let (shut, open) = (Gate::new(false), Gate::new(true));
            let link = Link::devices([shut.device(), open.device()]).qdisc("pfifo limit 10000");
            let link = link.credits(credits(4_001)).build().unwrap();
            let (mut sender, pulls) = (link.sender(), AtomicBool::new(false));
            let flow = sender.flow_with(None, Mapping::Port(0));
            thread::scope(|scope| {
                scope.spawn(|| {
                    sender.cork();
                    (0..4_000).for_each(|_| sender.try_send(&flow, b"x").unwrap());
                    pulls.store(true, Ordering::SeqCst);
                    while sender.uncork().is_err() {
                        thread::yield_now();
                    }
                    until("it goes on elsewhere", || {
                        let _ = sender.try_send(&flow, b"behind");
                        !open.taken().is_empty()
                    });
                    shut.open();
                    assert!(sender.flush(LONG));
                });
                until("the cork is pulled", || pulls.load(Ordering::SeqCst));
                thread::sleep(Duration::from_micros(turn % 20 * 5));
                let _ = link.remove_port(0, Duration::from_millis(20)).unwrap();
            });
            balanced(&link.stats());
        }
    });
}

/// The flows of all ports move to the first port, because a host describes the link as its device.
/// The packets that the other ports hold are dropped, so that later packets of their flows overtake
/// none.
#[test]
fn flows_move_as_a_device_is_described() {
    in_time(|| {
        let devices = (0..3).map(|_| Box::new(dev::Null::default()) as Box<dyn Device>);
        let link = Link::devices(devices).qdisc("netem delay 200s").build().unwrap();
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(1));
        let mut send = |count| (0..count).for_each(|_| sender.send(&flow, b"x").unwrap());
        let purged = || link.stats().dropped.get(&DropReason::Purged).copied().unwrap_or(0);
        send(4);
        link.describe_device("d0", Facts::default());
        until("the packets are dropped", || purged() == 4);
        send(3);
        let came = link.stats().ports.iter().map(|port| port.enqueued).collect::<Vec<_>>();
        assert_eq!(came, [3, 4, 0], "one root serves all ports");
        // The link is described once more, and no flow moves.
        link.describe_device("d1", Facts::default());
        // The trees follow the description, so the next change only makes the change.
        link.change("qdisc change dev d1 root netem delay 199s").unwrap();
        assert_eq!((purged(), link.stats().held), (4, 3));
    });
}
