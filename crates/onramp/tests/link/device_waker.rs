//! Devices that were full and say that they have room again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use onramp::{
    Device, DeviceInfo, DeviceWaker, Instant, Link, Mode, PacketList, Sender, Transmitted,
};

use crate::common::{LONG, balanced, credits, in_time, until};

/// A device whose packets another thread takes away.
#[derive(Default)]
struct Ring {
    cookies: Mutex<VecDeque<u64>>,
    waker: Mutex<Option<DeviceWaker>>,
}

impl Ring {
    const ROOM: usize = 4;

    fn device(self: &Arc<Self>) -> Box<dyn Device> {
        let info = DeviceInfo::new("ring".to_owned(), 1_514).never_blocks();
        Box::new(ToRing { info, ring: self.clone() })
    }

    fn len(&self) -> usize {
        self.cookies.lock().unwrap().len()
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap().clone();
        waker.expect("the device has a port").wake();
    }

    /// Takes packets away until `count` have come, and says each time that there is room.
    fn empty(&self, count: usize) -> Vec<u64> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let some = std::mem::take(&mut *self.cookies.lock().unwrap());
            if some.is_empty() {
                thread::yield_now();
                continue;
            }
            taken.extend(some);
            self.wake();
        }
        taken
    }
}

struct ToRing {
    info: DeviceInfo,
    ring: Arc<Ring>,
}

impl Device for ToRing {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn attach(&mut self, waker: DeviceWaker) {
        let before = self.ring.waker.lock().unwrap().replace(waker);
        assert!(before.is_none(), "attached once");
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut cookies = self.ring.cookies.lock().unwrap();
        while cookies.len() < Ring::ROOM
            && let Some(packet) = burst.pop_front()
        {
            cookies.push_back(packet.cookie);
            done.push_back(packet);
        }
        // If the port waited for this time, the test would last for hours.
        let retry_at = (!burst.is_empty()).then(|| now + Duration::from_secs(3_600));
        Transmitted { retry_at, ..Transmitted::default() }
    }
}

fn send(sender: &mut Sender, port: usize, cookies: std::ops::Range<u64>) {
    let flow = sender.flow_with(None, onramp::Mapping::Port(port));
    for cookie in cookies {
        let mut packet = loop {
            match sender.packet(&flow, b"x") {
                Ok(packet) => break packet,
                Err(_) => sender.wait_room(&flow, 1),
            }
        };
        packet.cookie = cookie;
        while let Err(rejected) = sender.submit(&flow, packet) {
            packet = rejected.packet;
            sender.wait_room(&flow, 1);
        }
    }
}

/// The device is full again and again, and names a time that never comes. No call of its waker is
/// lost, whichever thread owns the port at the time.
#[test]
fn a_device_that_has_room_gets_packets_at_once() {
    const COUNT: u64 = 2_000;
    in_time(|| {
        for mode in [Mode::Hybrid, Mode::Inline, Mode::Dedicated] {
            let rings: [Arc<Ring>; 3] = Default::default();
            let link = Link::devices(rings.iter().map(Ring::device))
                .mode(mode)
                .runners(2)
                .qdisc("pfifo limit 100000")
                .credits(credits(100))
                .build()
                .unwrap();
            thread::scope(|scope| {
                for (port, ring) in rings.iter().enumerate() {
                    let mut sender = link.sender();
                    scope.spawn(move || {
                        send(&mut sender, port, 0..COUNT);
                        assert!(sender.flush(LONG));
                    });
                    scope.spawn(move || {
                        assert!(
                            ring.empty(usize::try_from(COUNT).unwrap()).into_iter().eq(0..COUNT)
                        )
                    });
                }
            });
            balanced(&link.stats());
        }
    });
}

/// A device of a port that was added later can wake the port too. Its `attach` may call the link.
#[test]
fn a_device_that_is_added_has_a_waker() {
    struct Caller(ToRing, Link);
    impl Device for Caller {
        fn info(&self) -> &DeviceInfo {
            &self.0.info
        }
        fn attach(&mut self, waker: DeviceWaker) {
            self.1.set_qdisc("pfifo limit 1000").unwrap();
            self.0.attach(waker);
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
    in_time(|| {
        let [first, second]: [Arc<Ring>; 2] = Default::default();
        let link = Link::devices([first.device()]).ports_max(2).build().unwrap();
        let info = DeviceInfo::new("ring".to_owned(), 1_514);
        let ring = ToRing { info, ring: second.clone() };
        let port = link.add_port(Caller(ring, link.clone())).unwrap();
        let mut sender = link.sender();
        send(&mut sender, port, 0..50);
        assert!(second.empty(50).into_iter().eq(0..50));
        link.close(Duration::ZERO);
    });
}

/// When a port is closed, calls of the waker do nothing, and the waker keeps neither the device nor
/// the link.
#[test]
fn a_waker_of_a_closed_port_does_nothing() {
    struct Watched(ToRing, Arc<AtomicBool>);
    impl Drop for Watched {
        fn drop(&mut self) {
            self.1.store(true, SeqCst);
        }
    }
    impl Device for Watched {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }
        fn attach(&mut self, waker: DeviceWaker) {
            self.0.attach(waker);
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
    in_time(|| {
        let (ring, gone) = (Arc::<Ring>::default(), Arc::<AtomicBool>::default());
        let info = DeviceInfo::new("ring".to_owned(), 1_514);
        let device = Watched(ToRing { info, ring: ring.clone() }, gone.clone());
        let link = Link::devices([Box::new(device) as Box<dyn Device>]).build().unwrap();
        let mut sender = link.sender();
        send(&mut sender, 0, 0..20);
        until("the ring is full", || ring.len() == Ring::ROOM);
        assert_eq!(link.close(Duration::ZERO).purged, 16);
        ring.cookies.lock().unwrap().clear();
        ring.wake();
        ring.wake();
        let weak: Weak<Ring> = Arc::downgrade(&ring);
        drop((sender, link));
        until("the device goes with its link", || gone.load(SeqCst));
        ring.wake();
        assert_eq!((ring.len(), weak.strong_count()), (0, 1));
    });
}
