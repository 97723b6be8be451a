//! Foreign code that the link runs, and that calls the link itself: conversions, devices, and
//! destructors of thread-local values. Whatever the thread that runs this code is doing at the
//! moment, it never waits for itself.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{
    Device, DeviceInfo, Instant, Line, Link, Mapping, PacketList, PortError, Transmitted,
};

use crate::common::{LONG, balanced, in_time};

fn null() -> Box<dyn Device> {
    Box::new(Null::default())
}

/// A line of `tc` that reads the link when it is converted.
struct Reads(Link);

impl From<Reads> for Line {
    fn from(Reads(link): Reads) -> Self {
        let _ = link.setup();
        link.change("qdisc replace dev link root pfifo").expect("it can be done");
        Self::from("qdisc replace dev link root fq")
    }
}

/// The conversion of a line of `tc` reads and changes the link.
#[test]
fn a_conversion_calls_the_link() {
    in_time(|| {
        let link = Link::devices([null()]).build().unwrap();
        link.change(Reads(link.clone())).unwrap();
        assert_eq!(link.setup().root_id(), Some("fq"), "the line comes after its conversion");
    });
}

/// A device that takes nothing until `opens_in` is set. When the thread `opens_in` calls it, the
/// device tries to add a port and to remove one, and reports the results.
struct FailsOver {
    info: DeviceInfo,
    link: Arc<OnceLock<Link>>,
    opens_in: Arc<Mutex<Option<ThreadId>>>,
    said: Sender<[Option<PortError>; 2]>,
}

impl Device for FailsOver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if *self.opens_in.lock().unwrap() != Some(thread::current().id()) {
            return Transmitted { retry_at: Some(now), ..Transmitted::default() };
        }
        let link = self.link.get().expect("the test has set it");
        let added = link.add_port(Null::default()).err();
        let _ = self.said.send([added, link.remove_port(1, Duration::ZERO).err()]);
        done.append(burst);
        Transmitted::default()
    }
}

/// A thread that removes a port sends the port's packets, and the port's device adds and removes
/// ports of the same link. The device is told that its thread is changing ports already.
#[test]
fn a_device_changes_ports_during_a_removal() {
    in_time(|| {
        let (said, says) = channel();
        let (cell, opens_in) = (Arc::default(), Arc::default());
        let info = DeviceInfo::new("fails over".to_owned(), 1_514).never_blocks();
        let device =
            FailsOver { info, link: Arc::clone(&cell), opens_in: Arc::clone(&opens_in), said };
        let link = Link::devices([Box::new(device) as Box<dyn Device>, null()]).build().unwrap();
        cell.set(link.clone()).expect("once");
        let mut sender = link.sender();
        let flow = sender.flow_with(None, Mapping::Port(0));
        (0..5).for_each(|_| sender.try_send(&flow, b"x").unwrap());
        *opens_in.lock().unwrap() = Some(thread::current().id());
        // Only this thread can send the packets, so the removal calls the device.
        assert!(link.remove_port(0, LONG).unwrap().flushed);
        let said = says.try_recv().expect("this thread called the device");
        assert!(matches!(said, [Some(PortError::Nested), Some(PortError::Nested)]), "{said:?}");
        assert_eq!(link.add_port(Null::default()).unwrap(), 2, "nobody changes ports any more");
        drop(says);
        assert!(sender.flush(LONG));
        drop(sender);
        balanced(&link.stats());
    });
}
