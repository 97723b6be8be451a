//! The transmit side of a packet socket.

use std::io;

use onramp_core::frame::{self, SuperFrame, VnetHeader};
use onramp_core::{Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{DropReason, Packet, PacketList};

use super::PacketSocket;
use crate::sys::{self, MESSAGES_MAX};

impl PacketSocket {
    /// Moves packets from `burst` to the outbox, ready to be sent, up to one that has to be cut.
    fn load(&mut self, burst: &mut PacketList) {
        while self.outbox.frames.len() < MESSAGES_MAX
            && burst.front().is_some_and(|packet| !self.must_cut(packet))
            && let Some(mut packet) = burst.pop_front()
        {
            mark(&mut packet);
            if !self.options.offload {
                frame::complete_checksum(&mut packet);
            }
            self.outbox.frames.push(packet);
        }
    }

    fn must_cut(&self, packet: &Packet) -> bool {
        let cuts = !self.options.offload || self.begun.is(packet);
        cuts && SuperFrame::of(packet).is_some()
    }

    /// Offers the packets of the outbox to the kernel, until it has taken or refused each of them.
    /// Returns false if it has no room; the packets are then back in `burst`.
    fn offer(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        out: &mut Transmitted,
    ) -> bool {
        while !self.outbox.frames.is_empty() {
            out.calls += 1;
            let error = match self.outbox.send(&self.fd, self.options.offload) {
                Ok(count) => {
                    for packet in self.outbox.frames.drain(..count) {
                        out.messages += 1;
                        self.stats.frames.add(1);
                        self.stats.bytes.add(packet.payload().len() as u64);
                        done.push_back(packet);
                    }
                    self.taken();
                    continue;
                }
                Err(error) => error,
            };
            // The error concerns the first packet.
            let packet = self.outbox.frames.remove(0);
            let result = match SuperFrame::of(&packet) {
                Some(whole) if self.refuses_whole(&error) => self.cut(&packet, whole, out),
                _ => Err((error, 0)),
            };
            if let Err(packet) = self.settle(packet, result, done) {
                for packet in self.outbox.frames.drain(..).rev() {
                    burst.push_front(packet);
                }
                burst.push_front(packet);
                return false;
            }
        }
        true
    }

    /// Cuts the first packet of `burst`, and offers its segments to the kernel. Returns false if it
    /// has no room; the packet is then back in `burst`.
    fn offer_cut(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        out: &mut Transmitted,
    ) -> bool {
        let Some(mut packet) = burst.pop_front() else { return true };
        mark(&mut packet);
        let result = SuperFrame::of(&packet).map_or(Ok(()), |whole| self.cut(&packet, whole, out));
        self.settle(packet, result, done).map_err(|packet| burst.push_front(packet)).is_ok()
    }

    /// Finishes a packet that was sent, or that the kernel has refused after so many segments.
    /// Returns the packet if the kernel had no room for it.
    fn settle(
        &mut self,
        mut packet: Packet,
        result: Result<(), (io::Error, usize)>,
        done: &mut PacketList,
    ) -> Result<(), Packet> {
        match result.map_err(|(error, sent)| (self.reason(&error), sent)) {
            Ok(()) => {}
            Err((None, 0)) => return Err(packet),
            Err((None, sent)) => {
                self.begun.keep(&packet);
                self.left = sent;
                return Err(packet);
            }
            Err((reason, _)) => {
                packet.drop_reason = reason;
                self.patience.dropped();
            }
        }
        done.push_back(packet);
        Ok(())
    }

    /// The kernel has taken a frame.
    fn taken(&mut self) {
        self.backoff.reset();
        self.patience.taken();
    }

    /// Sends a super-frame as its segments, from the first that has not left before. Returns the
    /// kernel's error, and how many segments have left.
    fn cut(
        &mut self,
        packet: &Packet,
        whole: SuperFrame,
        out: &mut Transmitted,
    ) -> Result<(), (io::Error, usize)> {
        let header = VnetHeader::default().to_bytes();
        let header = if self.options.offload { &header[..] } else { &[] };
        let begin = if self.begun.is(packet) { self.left } else { 0 };
        self.begun.forget();
        for index in begin..whole.count() {
            whole.write_segment(packet.payload(), index, &mut self.segment);
            frame::write_checksum(whole.partial_checksum(), &mut self.segment);
            out.calls += 1;
            sys::write_frame(self.fd.owned(), header, &self.segment)
                .map_err(|error| (error, index))?;
            if index == 0 {
                self.stats.segmented.add(1);
            }
            out.messages += 1;
            self.stats.frames.add(1);
            self.stats.bytes.add(self.segment.len() as u64);
            self.taken();
        }
        Ok(())
    }

    /// Whether the error may mean that the interface does not take super-frames.
    fn refuses_whole(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EINVAL) => true,
            Some(libc::ENOBUFS) => self.options.bypass,
            _ => false,
        }
    }

    /// Returns the reason to drop the first packet after this error, or `None` if the packet is to
    /// be offered again.
    fn reason(&mut self, error: &io::Error) -> Option<DropReason> {
        match error.raw_os_error() {
            // With `bypass`, this is also how the kernel reports an interface without carrier.
            Some(libc::ENOBUFS) if self.options.bypass && !self.fd.has_carrier(self.index) => {
                Some(DropReason::Unreachable)
            }
            Some(libc::EAGAIN | libc::EINTR) => None,
            // While the kernel holds frames of the socket, they may be what fills the interface's
            // qdisc: there is room when they have left. Without them, the kernel may refuse this
            // frame for ever.
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                let waits = self.fd.has_unsent() || self.patience.wait();
                (!waits).then_some(DropReason::NoBuffers)
            }
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Some(DropReason::Unreachable),
            Some(libc::EMSGSIZE | libc::EINVAL) => Some(DropReason::MessageSize),
            _ => Some(DropReason::DeviceError),
        }
    }
}

/// Writes the mark of a qdisc into the frame.
fn mark(packet: &mut Packet) {
    if packet.ecn == 3 {
        frame::write_ce(packet);
    }
}

impl Device for PacketSocket {
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
        self.patience.begin();
        if !burst.front().is_some_and(|packet| self.begun.is(packet)) {
            // It was cancelled.
            self.begun.forget();
        }
        while let Some(first) = burst.front() {
            let settled = if self.must_cut(first) {
                self.offer_cut(burst, done, &mut out)
            } else {
                self.load(burst);
                self.offer(burst, done, &mut out)
            };
            if !settled {
                self.stats.full.add(1);
                out.retry_at = Some(self.backoff.wait(now));
                break;
            }
        }
        out
    }
}
