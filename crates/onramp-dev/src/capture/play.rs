//! Plays the packets of a capture file at the times of the file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Clock as _, Instant, frame};
use onramp_queue::{Counter, PAYLOAD_MAX, Packet, PacketList};

use super::blocks::{Advice, Blocks, Broken};
use super::link::Link;
use super::records::Interfaces;
use crate::clock::MonotonicClock;
use crate::receive::Receive;
use crate::sys::Timer;

const ADVICE: Advice = Advice { compressed: "name the file that this makes", other: "" };

/// Options of a [`CaptureReceiver`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlayOptions {
    /// Whether packets come as fast as they are taken, and not at the times of the file.
    pub fast: bool,
    /// Seed of the hash that tells flows apart, see [`frame::describe`]. By default 0: give a
    /// random number if strangers choose the addresses.
    pub seed: u64,
}

/// Receives the packets of a capture file, in the order of the file.
///
/// The first packet comes when the receiver is first asked, or when it is
/// [started](Self::hold); each further packet as much later as its time in the file is later than
/// that of the first. A packet whose time is earlier than that of one before it, or that has no
/// time, comes with the one before it. The [length](onramp_queue::Meta::len) of a packet that was
/// captured in part is the one that it had on the wire. The header of a "Linux cooked" or BSD
/// loopback packet, which was not on the wire, is replaced by an Ethernet header without addresses,
/// or left out.
///
/// After the last packet nothing comes any more, which is no error; [`PlayStats::ended`] says so.
/// The file may end within a packet, as that of a tool that was killed: that is an end as well.
///
/// The descriptor is readable when the next packet is due. The receiver reads the file in pieces of
/// 64 KiB, in [`Receive::receive`], which blocks while the disk is slow.
#[derive(Debug)]
pub struct CaptureReceiver {
    blocks: Blocks<'static>,
    interfaces: Interfaces,
    options: PlayOptions,
    start: CaptureStart,
    /// Whether nothing comes before the caller starts the receiver.
    held: bool,
    /// The time in the file of the first packet, and the latest time of a packet so far.
    first: Option<u64>,
    latest: u64,
    next: Option<Next>,
    /// The bytes of the next packet. The buffer is used again.
    bytes: Vec<u8>,
    /// The damage that ended the reading.
    failed: Option<(io::ErrorKind, String)>,
    stats: Arc<PlayStats>,
}

/// The next packet of the file.
#[derive(Clone, Copy, Debug)]
struct Next {
    /// Nanoseconds after the start.
    after: u64,
    link: Link,
    original: u32,
}

/// Starts a [`CaptureReceiver`] that is held.
#[derive(Clone, Debug)]
pub struct CaptureStart(Arc<Started>);

#[derive(Debug)]
struct Started {
    timer: Timer,
    /// The time of the start, in nanoseconds; 0 before it.
    at: AtomicU64,
}

impl CaptureStart {
    /// Lets the first packet come now. Does nothing if the receiver has started.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it does not set the timer.
    pub fn start(&self) -> io::Result<()> {
        if self.start_at(MonotonicClock.now()) { self.0.timer.set(Some(1)) } else { Ok(()) }
    }

    /// Notes the time of the start. Returns whether the receiver had not started.
    fn start_at(&self, now: Instant) -> bool {
        // Relaxed: the number alone matters, and the receiver may read it late.
        let order = Ordering::Relaxed;
        self.0.at.compare_exchange(0, now.0.max(1), order, order).is_ok()
    }

    fn at(&self) -> Option<u64> {
        // Relaxed: as in `start_at`.
        match self.0.at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(at),
        }
    }
}

/// Counters of a [`CaptureReceiver`].
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PlayStats {
    /// Number of packets that were received.
    pub received: Counter,
    /// Bytes of the packets that were received, as captured.
    pub received_bytes: Counter,
    /// Number of packets that were discarded because they are longer than a packet of Onramp can
    /// be, or because there was no packet with room for them.
    pub no_room: Counter,
    end: Mutex<Option<String>>,
}

impl PlayStats {
    /// Says how the file ended, if it has ended: `end of file`, or at which byte it is cut off or
    /// damaged.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&self, how: &str) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(how.to_owned());
    }
}

impl CaptureReceiver {
    /// Opens the capture in the file at `path`.
    ///
    /// # Errors
    ///
    /// The text says what is wrong: the file cannot be read, or it is not the beginning of a
    /// capture; or the kernel has no timer for the program.
    pub fn open(path: &Path, options: PlayOptions) -> io::Result<Self> {
        let metadata = std::fs::metadata(path);
        // A pipe could block the caller without end.
        if metadata.is_ok_and(|metadata| !metadata.is_file()) {
            let why = format!("cannot read {}: it is no file", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Self::new(Blocks::open(path, ADVICE)?, options)
    }

    fn new(blocks: Blocks<'static>, options: PlayOptions) -> io::Result<Self> {
        let timer = Timer::new()?;
        timer.set(Some(1))?;
        Ok(Self {
            blocks,
            interfaces: Interfaces::default(),
            options,
            start: CaptureStart(Arc::new(Started { timer, at: AtomicU64::new(0) })),
            held: false,
            first: None,
            latest: 0,
            next: None,
            bytes: Vec::new(),
            failed: None,
            stats: Arc::default(),
        })
    }

    /// Lets nothing come before [`CaptureStart::start`] is called.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it does not stop the timer.
    pub fn hold(&mut self) -> io::Result<CaptureStart> {
        self.held = true;
        self.start.0.timer.set(None)?;
        Ok(self.start.clone())
    }

    /// Returns the counters of the receiver, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<PlayStats> {
        Arc::clone(&self.stats)
    }

    /// Reads up to the next packet of the file. Returns false if there is none.
    fn fill(&mut self) -> io::Result<bool> {
        while self.next.is_none() {
            if let Some((kind, why)) = &self.failed {
                return Err(io::Error::new(*kind, why.clone()));
            }
            if self.stats.ended().is_some() {
                return Ok(false);
            }
            let Self { blocks, interfaces, first, latest, bytes, .. } = self;
            let taken = blocks.next(|block| -> Result<_, String> {
                let Some(record) = interfaces.record(&block)? else { return Ok(None) };
                let link = interfaces.all()[record.interface].known_link()?;
                // A packet without a time comes with the one before it, or at once.
                if let Some(time) = record.unix_ns {
                    *latest = time.max(*latest);
                    first.get_or_insert(time);
                }
                let after = first.map_or(0, |first| *latest - first);
                bytes.clear();
                bytes.extend_from_slice(record.data);
                Ok(Some(Next { after, link, original: record.original }))
            });
            let error = match taken {
                Ok(Some(next)) => {
                    self.next = next;
                    continue;
                }
                Ok(None) => {
                    self.stats.end("end of file");
                    continue;
                }
                Err(Broken::Refused(why)) => {
                    let why = format!("{}: {why}", self.blocks.place());
                    io::Error::new(io::ErrorKind::InvalidData, why)
                }
                Err(Broken::Input(error)) => error,
            };
            let why = error.to_string();
            self.stats.end(&why);
            if error.kind() != io::ErrorKind::UnexpectedEof {
                self.failed = Some((error.kind(), why));
            }
        }
        Ok(true)
    }

    /// Makes a packet of the next packet of the file.
    fn packet(
        &self,
        next: Next,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
    ) -> Result<Option<Packet>, ()> {
        let (_, opened) = next.link.open(&self.bytes);
        if opened.len() > PAYLOAD_MAX {
            return Ok(None);
        }
        let mut packet = make(opened.len()).ok_or(())?;
        if packet.capacity() < opened.len() {
            return Ok(None);
        }
        packet.set_payload(&opened);
        packet.set_layer(next.link.layer());
        frame::describe(&mut packet, self.options.seed);
        packet.len = packet.len.max(next.link.wire(next.original));
        Ok(Some(packet))
    }

    /// As [`Receive::receive`], at the time `now`.
    fn receive_at(
        &mut self,
        now: Instant,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        if !self.held {
            self.start.start_at(now);
        }
        let Some(start) = self.start.at() else { return Ok(0) };
        let (mut count, mut seen) = (0, 0);
        loop {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => {
                    self.start.0.timer.set(None)?;
                    return Ok(count);
                }
                Err(error) if count == 0 => return Err(error),
                // The next call returns the error.
                Err(_) => break,
            }
            let Some(next) = self.next else { break };
            let due = if self.options.fast { 0 } else { start.saturating_add(next.after) };
            // A packet that is discarded counts as well, so that the call ends.
            if due > now.0 || seen == most {
                self.start.0.timer.set(Some(due))?;
                return Ok(count);
            }
            // Without a packet for it, it stays.
            let Ok(packet) = self.packet(next, make) else { break };
            (self.next, seen) = (None, seen + 1);
            match packet {
                Some(packet) => {
                    self.stats.received.add(1);
                    self.stats.received_bytes.add(packet.payload().len() as u64);
                    into.push_back(packet);
                    count += 1;
                }
                None => self.stats.no_room.add(1),
            }
        }
        // Something is due now.
        self.start.0.timer.set(Some(1))?;
        Ok(count)
    }
}

impl Receive for CaptureReceiver {
    fn receive(
        &mut self,
        most: usize,
        make: &mut dyn FnMut(usize) -> Option<Packet>,
        into: &mut PacketList,
    ) -> io::Result<usize> {
        self.receive_at(MonotonicClock.now(), most, make, into)
    }

    fn discarded(&self) -> u64 {
        self.stats.no_room.get()
    }
}

impl AsFd for CaptureReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.start.0.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{Block, PACKET};

    /// Makes a capture of packets at these times, in nanoseconds since 1970.
    fn capture(times: &[u64]) -> Blocks<'static> {
        let (mut block, mut bytes) = (Block::default(), Vec::new());
        block.section(&mut bytes).expect("memory");
        block.interface(1, None, &mut bytes).expect("memory");
        for time in times {
            block.packet(0, *time, |bytes| bytes.extend_from_slice(&[7; 60]));
            block.end(PACKET, &mut bytes).expect("memory");
        }
        Blocks::new(io::Cursor::new(bytes), "bytes", ADVICE).expect("a capture")
    }

    /// Receives at most this many packets at this time.
    fn at(receiver: &mut CaptureReceiver, now: u64, most: usize) -> usize {
        let mut list = PacketList::new();
        let mut make = |bytes: usize| Some(Packet::with_capacity(u16::try_from(bytes).ok()?));
        let count = receiver.receive_at(Instant(now), most, &mut make, &mut list);
        assert_eq!(count.expect("it is whole"), list.len() as usize);
        list.len() as usize
    }

    fn is_readable(receiver: &CaptureReceiver) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(receiver.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).expect("it can") > 0
    }

    /// The far future of the clock, which does not come during a test.
    const FAR: u64 = 1 << 60;

    #[test]
    fn packets_come_at_the_times_of_the_file() {
        let times = [500, 1_500, 200, 1_500, 4_500].map(|time| 1_000_000_000 + time);
        let mut receiver =
            CaptureReceiver::new(capture(&times), PlayOptions::default()).expect("it");
        assert!(is_readable(&receiver), "so that somebody asks");
        assert_eq!(at(&mut receiver, FAR, 64), 1);
        assert!(!is_readable(&receiver), "not before the next is due");
        assert_eq!(at(&mut receiver, FAR + 999, 64), 0);
        assert_eq!(at(&mut receiver, FAR + 1_000, 2), 2, "a time that goes back does not count");
        let mut list = PacketList::new();
        let none = receiver.receive_at(Instant(FAR + 1_001), 64, &mut |_| None, &mut list);
        assert_eq!(none.expect("no error"), 0);
        assert!(is_readable(&receiver), "a packet is due that nobody could take");
        assert_eq!(at(&mut receiver, FAR + 1_001, 64), 1);
        assert_eq!(at(&mut receiver, FAR + 3_999, 64), 0);
        assert_eq!(receiver.stats().ended(), None);
        assert_eq!(at(&mut receiver, FAR + 9_999, 64), 1);
        assert_eq!(receiver.stats().ended().as_deref(), Some("end of file"));
        assert!(!is_readable(&receiver), "nothing will come");
        assert_eq!(
            (receiver.stats().received.get(), receiver.stats().received_bytes.get()),
            (5, 300)
        );
    }

    #[test]
    fn a_receiver_that_is_held_waits_for_its_start() {
        let mut receiver =
            CaptureReceiver::new(capture(&[5, 6]), PlayOptions::default()).expect("it");
        let start = receiver.hold().expect("a timer");
        assert!(!is_readable(&receiver));
        assert_eq!(at(&mut receiver, FAR, 64), 0);
        start.start().expect("a timer");
        assert!(is_readable(&receiver));
        let began = start.at().expect("it has started");
        assert_eq!(at(&mut receiver, began, 64), 1);
        start.start().expect("it changes nothing");
        assert_eq!(start.at(), Some(began));
        assert_eq!(at(&mut receiver, began, 64), 0);
        assert_eq!(at(&mut receiver, began + 1, 64), 1);
    }

    #[test]
    fn a_fast_one_asks_for_no_time_and_loses_nothing_without_packets() {
        let options = PlayOptions { fast: true, ..PlayOptions::default() };
        let mut receiver = CaptureReceiver::new(capture(&[5, FAR, FAR]), options).expect("it");
        assert_eq!(at(&mut receiver, 1, 2), 2);
        let mut list = PacketList::new();
        let none = receiver.receive_at(Instant(1), 64, &mut |_| None, &mut list);
        assert_eq!((none.expect("no error"), is_readable(&receiver)), (0, true));
        let small = &mut |_| Some(Packet::with_capacity(59));
        let none = receiver.receive_at(Instant(1), 64, small, &mut list);
        assert_eq!((none.expect("no error"), receiver.discarded()), (0, 1));
        assert_eq!(receiver.stats().ended().as_deref(), Some("end of file"));
    }
}
