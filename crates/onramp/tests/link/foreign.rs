//! Foreign code that the link runs, and that calls the link itself: conversions, devices, and
//! destructors of thread-local values. Whatever the thread that runs this code is doing at the
//! moment, it never waits for itself.

use std::cell::OnceCell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{
    Device, DeviceInfo, Instant, Line, Link, Mapping, Mode, PacketList, PortError, Transmitted,
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

/// A device that reads the link's configuration each time it is asked for its properties.
struct Asks(Link, DeviceInfo);

impl Device for Asks {
    fn info(&self) -> &DeviceInfo {
        let _ = self.0.setup();
        &self.1
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        done.append(burst);
        Transmitted::default()
    }
}

/// The device of a port that is added calls the link when it is asked for its properties.
#[test]
fn the_properties_of_a_new_device_need_the_link() {
    in_time(|| {
        let link = Link::devices([null()]).build().unwrap();
        let info = || DeviceInfo::new("asks".to_owned(), 1_514);
        assert_eq!(link.add_port(Asks(link.clone(), info())).unwrap(), 1);
        // Devices of a new link may call another link.
        let other: Box<dyn Device> = Box::new(Asks(link.clone(), info()));
        let other = Link::devices([other]).build().unwrap();
        assert_eq!(other.add_port(Asks(other.clone(), info())).unwrap(), 1);
    });
}

/// A value that closes a link again and again when it is dropped.
struct Closes(Link);

impl Drop for Closes {
    fn drop(&mut self) {
        // The thread that closed the link meanwhile finds that this thread has done its work.
        for _ in 0..100 {
            self.0.close(Duration::ZERO);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

thread_local! {
    static AT_THE_END: OnceCell<Closes> = const { OnceCell::new() };
}

/// A device that takes all packets, and leaves a value in each thread that calls it.
struct Leaves(DeviceInfo, Arc<OnceLock<Link>>);

impl Device for Leaves {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _now: Instant,
    ) -> Transmitted {
        let link = self.1.get().expect("the test has set it");
        AT_THE_END.with(|end| _ = end.get_or_init(|| Closes(link.clone())));
        done.append(burst);
        Transmitted::default()
    }
}

/// The runners end while a thread closes the link, and destructors of their thread-local values
/// close the link, too.
#[test]
fn runners_close_the_link_as_they_end() {
    in_time(|| {
        let cell = Arc::<OnceLock<Link>>::default();
        let device = || -> Box<dyn Device> {
            let info = DeviceInfo::new("leaves".to_owned(), 1_514);
            Box::new(Leaves(info.never_blocks(), cell.clone()))
        };
        let builder = Link::devices([device(), device()]).mode(Mode::Dedicated).runners(2);
        let link = builder.build().unwrap();
        cell.set(link.clone()).expect("once");
        let mut sender = link.sender();
        for port in 0..2 {
            let flow = sender.flow_with(None, Mapping::Port(port));
            sender.send(&flow, b"x").unwrap();
        }
        assert!(sender.flush(LONG));
        assert!(link.close(LONG).flushed);
    });
}
