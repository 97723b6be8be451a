//! A thread that sends the frames of a receiver through a device.

use std::io;
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onramp::{Flow, Link, Packet, PacketList, Sender, TrySendError};
use onramp_core::{Clock as _, Instant};
use onramp_dev::{MonotonicClock, Receive};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link_end::{LinkEnd, Source};
use super::worker::{self, Worker};

/// The most frames that are received before they are sent.
const BATCH: usize = 64;
/// How often the thread looks at its interface even if nothing comes, because the kernel does not
/// always wake it when the interface is gone; and how often it asks for the frames that were lost.
const LOOK: Duration = Duration::from_secs(1);
/// How long the thread waits for room in the link before it tries again.
const PAUSE: Duration = Duration::from_millis(1);

/// Frames that come in at a device.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The receivers: several if the interface has several queues to receive from.
    pub(crate) from: Vec<Box<dyn Receive>>,
    /// The device at which they come in.
    pub(crate) at: Arc<LinkEnd>,
}

/// A thread that sends frames through a device. Dropping the value ends the thread.
#[derive(Debug)]
pub(crate) struct Feeder {
    _worker: Worker,
}

impl Feeder {
    /// Starts a thread that sends the frames through `link`, which has one queue.
    pub(crate) fn start(frames: Frames, link: &Link) -> io::Result<Self> {
        let sender = link.sender();
        let mover = Mover {
            flow: sender.flow(None),
            sender,
            source: frames.at.source(),
            frames,
            lost: 0,
            looked: MonotonicClock.now(),
        };
        let wake = worker::wake()?;
        let wakes = wake.clone();
        let worker = Worker::start("onramp-feeder", wake, move |end| mover.run(end, &wakes))?;
        Ok(Self { _worker: worker })
    }
}

/// The state of the thread.
struct Mover {
    frames: Frames,
    sender: Sender,
    /// Names the only queue of the link. Each frame keeps the flow that its headers tell.
    flow: Flow,
    source: Arc<Source>,
    /// The frames that the receiver had discarded and missed when it was last asked.
    lost: u64,
    looked: Instant,
}

impl Mover {
    fn run(mut self, end: &AtomicBool, wake: &OwnedFd) {
        // Relaxed: the thread that sets `end` then wakes this thread, which reads `end` again.
        while !end.load(Ordering::Relaxed) {
            match self.turn(end) {
                Ok(true) => {}
                Ok(false) => self.wait(wake),
                Err(_) => {
                    // Nothing will come any more.
                    self.frames.at.set_gone();
                    break;
                }
            }
            let now = MonotonicClock.now();
            if Duration::from_nanos(now.since(self.looked)) >= LOOK {
                self.looked = now;
                self.count_lost();
            }
        }
        self.count_lost();
    }

    /// Sends the frames that have come, at most a batch of each receiver. Returns whether more may
    /// wait.
    fn turn(&mut self, end: &AtomicBool) -> io::Result<bool> {
        let (mut list, mut more, mut failed) = (PacketList::new(), false, None);
        let mut make = |bytes| Some(Packet::with_capacity(u16::try_from(bytes).ok()?));
        for from in &mut self.frames.from {
            match from.receive(BATCH, &mut make, &mut list) {
                Ok(count) => more |= count == BATCH,
                // The frames of the other receivers are sent and counted all the same.
                Err(error) => failed = Some(error),
            }
        }
        let list = if self.frames.at.is_up() { self.filter(list) } else { list };
        self.sender.cork();
        for packet in list {
            let bytes = packet.len;
            if self.frames.at.is_up() && self.sender.submit(&self.flow, packet).is_ok() {
                self.source.packets.add(1);
                self.source.bytes.add(bytes.into());
            } else {
                self.source.dropped.add(1);
            }
        }
        // While the link has no room, further frames wait in the kernel.
        while self.sender.uncork() == Err(TrySendError::Full) {
            // Relaxed: as in `run`.
            if end.load(Ordering::Relaxed) {
                break;
            }
            self.sender.wait_room_timeout(&self.flow, 0, PAUSE);
        }
        failed.map_or(Ok(more), Err)
    }

    /// Returns the frames that the filters at the ingress of the device let pass. As in Linux, the
    /// device has received the others too.
    fn filter(&self, list: PacketList) -> PacketList {
        let Some(mut ingress) = self.source.hold() else { return list };
        let now = MonotonicClock.now();
        let (mut passed, mut stopped) = (PacketList::new(), PacketList::new());
        for mut packet in list {
            let passes = ingress.passes(now, &mut packet);
            if passes { &mut passed } else { &mut stopped }.push_back(packet);
        }
        self.source.packets.add(stopped.len().into());
        self.source.bytes.add(stopped.bytes());
        passed
    }

    fn wait(&self, wake: &OwnedFd) {
        let fds = self.frames.from.iter().map(|from| from.as_fd());
        let fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<_> = iter::once(PollFd::new(wake, PollFlags::IN)).chain(fds).collect();
        let look = Timespec::try_from(LOOK).expect("a second");
        // After an error, the thread looks again.
        let _ = poll(&mut fds, Some(&look));
    }

    /// Counts the frames that were lost before they could be received.
    fn count_lost(&mut self) {
        let lost = self.frames.from.iter().map(|from| from.discarded() + from.missed()).sum();
        let lost = self.lost.max(lost);
        self.source.dropped.add(lost - self.lost);
        self.lost = lost;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::BorrowedFd;

    use onramp_dev::Null;

    use super::*;

    /// A receiver to which some frames come, batch by batch. Then its interface is gone. It has
    /// discarded three frames, and the kernel has dropped two.
    #[derive(Debug)]
    struct Short(usize, File);

    impl AsFd for Short {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    impl Receive for Short {
        fn receive(
            &mut self,
            most: usize,
            make: &mut dyn FnMut(usize) -> Option<Packet>,
            into: &mut PacketList,
        ) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::NotFound.into());
            }
            let count = self.0.min(most);
            self.0 -= count;
            for _ in 0..count {
                let mut packet = make(100).expect("memory");
                packet.len = 100;
                into.push_back(packet);
            }
            Ok(count)
        }

        fn discarded(&self) -> u64 {
            3
        }

        fn missed(&self) -> u64 {
            2
        }
    }

    /// Lets a feeder send all frames that come before a receiver fails, and returns what the device
    /// has received. `counts` are the numbers of frames that come to each receiver.
    fn fed(up: bool, counts: &[usize]) -> super::super::Carried {
        let link = Link::devices([Box::new(Null::new(1_514)) as Box<_>]).qdisc("pfifo");
        let link = link.build().expect("a link");
        let at = Arc::<LinkEnd>::default();
        at.set_up(up);
        let from = counts.iter().map(|count| {
            Box::new(Short(*count, File::open("/dev/null").expect("every Linux has it"))) as Box<_>
        });
        let frames = Frames { from: from.collect(), at: at.clone() };
        let feeder = Feeder::start(frames, &link).expect("a thread");
        while !at.is_gone() {
            std::thread::yield_now();
        }
        drop(feeder);
        assert!(link.flush(Duration::from_secs(20)), "all leaves");
        let received = at.received();
        assert_eq!(link.stats().sent, received.packets);
        received
    }

    /// Every frame is counted: those that were sent, those that came in while the device was down,
    /// and those that were lost before.
    #[test]
    fn every_frame_is_counted() {
        let carried = fed(true, &[1_000]);
        assert_eq!((carried.packets, carried.bytes, carried.dropped), (1_000, 100_000, 5));
        let carried = fed(false, &[1_000]);
        assert_eq!((carried.packets, carried.bytes, carried.dropped), (0, 0, 1_005));
        // When the second receiver fails, the first one has received two batches.
        let carried = fed(true, &[1_000, BATCH]);
        assert_eq!((carried.packets, carried.dropped), (3 * BATCH as u64, 10));
    }
}
