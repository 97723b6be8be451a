//! The transmit side of an AF_XDP socket.

use std::io;

use onramp_core::frame::{self, SuperFrame};
use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{DropReason, Packet, PacketList};

use super::{ETHERNET, TAG, Xdp};

/// How long the kernel may take no frame although it reports no error, in nanoseconds, before
/// packets are dropped. A card that is paused by its neighbour goes on much earlier.
const IDLE_NS: u64 = 1_000_000_000;

/// Why the device put no further packet into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The burst is empty.
    Done,
    /// The ring has no room for the first packet of the burst.
    Full,
    /// The first packet of the burst fits the memory at no time.
    Large,
}

/// What became of the frames in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flushed {
    /// The kernel has taken them all, or takes them without a further call.
    Taken,
    /// The kernel takes no more at present.
    Full,
    /// The kernel takes no more until something changes; the reason to drop packets.
    Refused(DropReason),
}

impl Xdp {
    /// Puts packets of the burst into the ring. The newest of them stays in `newest`, the others
    /// move to `done`.
    fn fill(
        &mut self,
        burst: &mut PacketList,
        newest: &mut Option<Packet>,
        done: &mut PacketList,
        out: &mut Transmitted,
    ) -> Stop {
        while let Some(mut packet) = burst.pop_front() {
            let large = !self.can_fit(&packet);
            if large || !self.put(&mut packet, out) {
                burst.push_front(packet);
                return if large { Stop::Large } else { Stop::Full };
            }
            if let Some(older) = newest.replace(packet) {
                done.push_back(older);
            }
        }
        Stop::Done
    }

    /// Whether the packet has an Ethernet header, the interface takes frames of this size, and the
    /// packet fits the frames of the memory when they are all free. The kernel skips an empty frame
    /// and never gives its memory back.
    fn can_fit(&self, packet: &Packet) -> bool {
        let largest = self.size.min((self.info.mtu + TAG) as usize);
        SuperFrame::of(packet).map_or_else(
            || (ETHERNET as usize..=largest).contains(&packet.payload().len()),
            |whole| {
                whole.headers() + usize::from(packet.gso_size) <= largest
                    && whole.count() <= self.options.frames as usize
            },
        )
    }

    /// Puts a packet's frame, or its segments, into the ring. Returns false if there is no room.
    fn put(&mut self, packet: &mut Packet, out: &mut Transmitted) -> bool {
        let whole = SuperFrame::of(packet);
        let frames = whole.as_ref().map_or(1, SuperFrame::count);
        if self.side.room() < frames {
            self.reclaim();
            if self.side.room() < frames {
                return false;
            }
        }
        if packet.ecn == 3 {
            frame::write_ce(packet);
        }
        let Some(whole) = whole else {
            frame::complete_checksum(packet);
            if !self.side.put_in_place(packet.payload()) {
                self.copy(packet.payload());
            }
            self.count(packet.payload().len(), out);
            return true;
        };
        self.stats.segmented.add(1);
        let mut bytes = std::mem::take(&mut self.segment);
        for index in 0..frames {
            whole.write_segment(packet.payload(), index, &mut bytes);
            frame::write_checksum(whole.partial_checksum(), &mut bytes);
            self.copy(&bytes);
            self.count(bytes.len(), out);
        }
        self.segment = bytes;
        true
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.side.put(bytes);
        self.stats.copied.add(1);
    }

    fn count(&self, bytes: usize, out: &mut Transmitted) {
        out.messages += 1;
        self.stats.frames.add(1);
        self.stats.bytes.add(bytes as u64);
    }

    /// Takes frames back that the kernel has sent. Returns whether there were any.
    fn reclaim(&mut self) -> bool {
        let any = self.side.reclaim() > 0;
        if any {
            self.idle_since = None;
            self.backoff.reset();
        }
        any
    }

    /// Lets the kernel send until it has taken all frames of the ring, or takes no more.
    fn flush(&mut self, now: Instant, out: &mut Transmitted) -> Flushed {
        let mut before = self.side.waiting();
        let mut first = true;
        loop {
            let sent = self.side.send();
            out.calls += u32::from(sent.called);
            // In copy mode, this error says that the kernel has taken a frame and dropped it.
            let lost = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
            if !self.side.zero_copy() && sent.result.as_ref().is_err_and(lost) {
                self.stats.lost.add(1);
            }
            // A frame that comes back was taken, even if the kernel has not said so in the ring:
            // Linux before 6.17 says so only when it has taken all that it had seen.
            let moves = self.reclaim() || sent.waiting < before;
            if moves {
                self.idle_since = None;
                self.backoff.reset();
            }
            if sent.waiting == 0 || !sent.called {
                self.idle_since = None;
                return Flushed::Taken;
            }
            match sent.result {
                Ok(()) if moves => {}
                Err(error) if moves && is_full(&error) => {}
                // After its first call, a driver that does without copies may be at work.
                Ok(()) if first => {}
                Ok(()) => {
                    let since = *self.idle_since.get_or_insert(now);
                    if now.since(since) >= IDLE_NS {
                        return Flushed::Refused(DropReason::DeviceError);
                    }
                    return Flushed::Full;
                }
                Err(error) if is_full(&error) => {
                    self.idle_since = None;
                    return Flushed::Full;
                }
                Err(error) => return Flushed::Refused(reason(&error)),
            }
            first = false;
            before = sent.waiting;
        }
    }

    /// Takes the first packet out of the burst if its frame is in the ring.
    fn take_newest(&mut self, burst: &mut PacketList) -> Option<Packet> {
        let known = burst.front().is_some_and(|packet| self.in_ring.is(packet));
        self.in_ring.forget();
        if known { burst.pop_front() } else { None }
    }
}

impl Device for Xdp {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let mut out = Transmitted::default();
        self.reclaim();
        // The newest packet whose frame is in the ring is not done before the kernel has taken the
        // frame: if the kernel takes no more, the packet stays in the burst, so that the port calls
        // again.
        let mut newest = self.take_newest(burst);
        if self.refuses {
            if let Flushed::Refused(reason) = self.flush(now, &mut out) {
                done.extend(newest.take());
                drop_all(burst, done, reason);
                return out;
            }
            self.refuses = false;
        }
        loop {
            let stop = self.fill(burst, &mut newest, done, &mut out);
            let room = self.side.room();
            match self.flush(now, &mut out) {
                Flushed::Taken => done.extend(newest.take()),
                Flushed::Full => {
                    if let Some(packet) = newest.take() {
                        self.in_ring.keep(&packet);
                        burst.push_front(packet);
                    }
                    return self.wait(now, out);
                }
                Flushed::Refused(reason) => {
                    self.refuses = true;
                    done.extend(newest.take());
                    drop_all(burst, done, reason);
                    return out;
                }
            }
            match stop {
                Stop::Done => return out,
                Stop::Large => {
                    let mut packet = burst.pop_front().expect("it is the first of the burst");
                    packet.drop_reason = Some(DropReason::MessageSize);
                    done.push_back(packet);
                }
                Stop::Full => {
                    self.reclaim();
                    if self.side.room() <= room {
                        return self.wait(now, out);
                    }
                }
            }
        }
    }
}

impl Xdp {
    /// Asks to be called again later.
    fn wait(&mut self, now: Instant, mut out: Transmitted) -> Transmitted {
        self.stats.full.add(1);
        out.retry_at = Some(self.backoff.wait(now));
        out
    }
}

/// Drops the packets of a burst.
fn drop_all(burst: &mut PacketList, done: &mut PacketList, reason: DropReason) {
    for packet in burst.metas_mut() {
        packet.drop_reason = Some(reason);
    }
    done.append(burst);
}

/// Whether the kernel takes no further frame at present.
fn is_full(error: &io::Error) -> bool {
    let full = [libc::EAGAIN, libc::EBUSY, libc::ENOBUFS, libc::EINTR];
    error.raw_os_error().is_some_and(|errno| full.contains(&errno))
}

fn reason(error: &io::Error) -> DropReason {
    match error.raw_os_error() {
        Some(libc::ENETDOWN | libc::ENXIO) => DropReason::Unreachable,
        _ => DropReason::DeviceError,
    }
}
