//! The receiving threads of a verified run, which read every datagram and check it.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, MultiHeaders, recvmmsg};
use nix::sys::time::TimeSpec;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::gaps::Gaps;
use super::method::Measurement;
use super::stamp::{self, Content};

/// Number of datagrams that a receiving thread reads in one call.
const BATCH: usize = 64;
/// Number of calls that read from the socket of one flow before the other flows get their turn.
const CALLS_PER_TURN: u32 = 4;
/// Number of sockets that one call of `epoll_wait` reports.
const EVENTS: usize = 256;
/// How often a receiving thread that waits for datagrams checks whether its [`Order`] has changed.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// If no socket gets a datagram for this time after the last datagram was sent, nothing is left to
/// read. This is safe even if a receiving thread got no processor during this time, because
/// `epoll_wait` checks the sockets again before it returns.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// How often a receiving thread that pauses checks whether its [`Order`] has changed.
const PAUSE: Duration = Duration::from_millis(5);

/// What the receiving threads are told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Order {
    Read,
    /// Leave all datagrams in the sockets.
    Pause,
    /// Read until no datagram is left, and then stop.
    Drain,
    /// Stop at once.
    Stop,
}

/// The current order, which one thread sets and all receiving threads read.
#[derive(Debug)]
pub(crate) struct OrderCell(AtomicU8);

impl OrderCell {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(Order::Read as u8))
    }

    pub(crate) fn set(&self, order: Order) {
        // Relaxed: the order does not publish other data, and a receiver may see it a moment late.
        self.0.store(order as u8, Relaxed);
    }

    fn get(&self) -> Order {
        // Relaxed: as in `set`, the order does not publish other data.
        match self.0.load(Relaxed) {
            0 => Order::Read,
            1 => Order::Pause,
            2 => Order::Drain,
            _ => Order::Stop,
        }
    }
}

/// What a receiving thread knows about one flow: the counts of datagrams that arrived, and the
/// errors found in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    /// The number of the flow.
    pub(crate) flow: usize,
    /// Number of datagrams that arrived intact and belong to this flow.
    pub(crate) delivered: u64,
    /// The highest sequence number that arrived.
    pub(crate) last: Option<u64>,
    /// The first error found.
    pub(crate) failure: Option<String>,
    /// The number of errors found.
    pub(crate) failures: u64,
    /// Number of datagrams that arrived at this flow's socket and do not come from this benchmark.
    pub(crate) foreign: u64,
    /// The times at which the first and the last datagram arrived, in nanoseconds of the wall
    /// clock.
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
}

impl Arrivals {
    pub(super) fn take(&mut self, content: &Content, at_ns: u64, gaps: &mut Gaps) -> bool {
        let sequence = match content {
            Content::Sequence(sequence) => *sequence,
            Content::Foreign => {
                self.foreign += 1;
                return false;
            }
            Content::OfFlow(other) => {
                self.fail(|| format!("got a datagram of flow {other}"));
                return false;
            }
            Content::Damaged => {
                self.fail(|| "got a damaged datagram".to_owned());
                return false;
            }
        };
        match self.last {
            None => self.first_ns = at_ns,
            Some(_) => gaps.record(at_ns.saturating_sub(self.last_ns)),
        }
        self.last_ns = at_ns;
        self.delivered += 1;
        match self.last {
            Some(last) if sequence == last => {
                self.fail(|| format!("datagram {sequence} arrived twice"));
            }
            Some(last) if sequence < last => {
                self.fail(|| format!("datagram {sequence} arrived after {last}"));
            }
            _ => self.last = Some(sequence),
        }
        true
    }

    fn fail(&mut self, what: impl FnOnce() -> String) {
        self.failures += 1;
        self.failure.get_or_insert_with(what);
    }
}

/// The flows that one receiving thread reads.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    /// All sockets. This receiving thread reads those whose number divided by `lanes` leaves the
    /// remainder `lane`.
    pub(crate) sockets: &'a [UdpSocket],
    pub(crate) lane: usize,
    pub(crate) lanes: usize,
    pub(crate) size: usize,
    pub(crate) order: &'a OrderCell,
    /// Number of datagrams delivered, for each flow.
    pub(crate) delivered: &'a [Measurement],
}

impl Lane<'_> {
    /// Reads and checks datagrams until the order says to stop.
    pub(crate) fn run(&self) -> Result<(Vec<Arrivals>, Gaps)> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create")?;
        let mut flows = Vec::new();
        for flow in (self.lane..self.sockets.len()).step_by(self.lanes) {
            let data = epoll::EventData::new_u64(flows.len() as u64);
            epoll::add(&poll, &self.sockets[flow], data, epoll::EventFlags::IN)
                .context("epoll_ctl")?;
            flows.push(Arrivals { flow, ..Arrivals::default() });
        }
        let templates: Vec<_> = flows.iter().map(|f| stamp::template(f.flow, self.size)).collect();
        let mut reader = Reader::new(self.size);
        let mut gaps = Gaps::default();
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let order = self.order.get();
            let patience = match order {
                Order::Read => LOOK,
                Order::Drain => QUIET,
                Order::Pause => {
                    thread::sleep(PAUSE);
                    continue;
                }
                Order::Stop => return Ok((flows, gaps)),
            };
            events.clear();
            match epoll::wait(&poll, spare_capacity(&mut events), Some(&patience)) {
                Ok(0) if order == Order::Drain => return Ok((flows, gaps)),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll_wait"),
            }
            for event in &events {
                let at = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                self.read(&mut flows[at], &templates[at], &mut reader, &mut gaps)?;
            }
        }
    }

    fn read(
        &self,
        flow: &mut Arrivals,
        template: &[u8],
        reader: &mut Reader,
        gaps: &mut Gaps,
    ) -> Result<()> {
        let socket = &self.sockets[flow.flow];
        for _ in 0..CALLS_PER_TURN {
            let mut fresh = 0;
            let count = reader.read(socket, |datagram, at_ns| {
                let content = stamp::read(datagram, template);
                fresh += u64::from(flow.take(&content, at_ns, gaps));
            })?;
            self.delivered[flow.flow].0.add(fresh);
            if count < BATCH {
                break;
            }
        }
        Ok(())
    }
}

/// Buffers for many datagrams, and for the times at which they arrived.
struct Reader {
    buffer: Vec<u8>,
    headers: MultiHeaders<()>,
    slot: usize,
}

impl Reader {
    fn new(size: usize) -> Self {
        // Each buffer is one byte longer than a datagram, so that a datagram that is too long is
        // noticed.
        let slot = size + 1;
        let space = nix::cmsg_space!(TimeSpec);
        Self {
            buffer: vec![0; slot * BATCH],
            headers: MultiHeaders::preallocate(BATCH, Some(space)),
            slot,
        }
    }

    /// Reads datagrams that have already arrived, at most [`BATCH`], passes each to `each`, and
    /// returns their number. Does not wait.
    fn read(&mut self, socket: &UdpSocket, mut each: impl FnMut(&[u8], u64)) -> Result<usize> {
        let slots = self.buffer.chunks_exact_mut(self.slot);
        let mut slices: Vec<_> = slots.map(|slot| [IoSliceMut::new(slot)]).collect();
        let fd = socket.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let messages = match recvmmsg(fd, &mut self.headers, &mut slices, flags, None) {
            Ok(messages) => messages,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(0),
            Err(errno) => return Err(errno).context("recvmmsg at a sink"),
        };
        let mut count = 0;
        for message in messages {
            count += 1;
            let mut at_ns = 0;
            for control in message.cmsgs().context("the kernel's time of arrival")? {
                if let ControlMessageOwned::ScmTimestampns(at) = control {
                    at_ns = nanoseconds(at);
                }
            }
            each(message.iovs().next().unwrap_or_default(), at_ns);
        }
        Ok(count)
    }
}

fn nanoseconds(at: TimeSpec) -> u64 {
    let seconds = u64::try_from(at.tv_sec()).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(at.tv_nsec()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(arrivals: &mut Arrivals, sequence: u64) {
        arrivals.take(&Content::Sequence(sequence), sequence * 10, &mut Gaps::default());
    }

    #[test]
    fn losses_are_no_failure_but_reordering_is() {
        let mut arrivals = Arrivals::default();
        for sequence in [3, 7, 8] {
            take(&mut arrivals, sequence);
        }
        assert_eq!((arrivals.failures, arrivals.delivered), (0, 3));
        take(&mut arrivals, 5);
        take(&mut arrivals, 9);
        take(&mut arrivals, 9);
        assert_eq!((arrivals.failures, arrivals.delivered), (2, 6));
        assert_eq!(arrivals.failure.as_deref(), Some("datagram 5 arrived after 8"));
    }

    #[test]
    fn strangers_are_counted_apart() {
        let mut arrivals = Arrivals::default();
        assert!(!arrivals.take(&Content::Foreign, 1, &mut Gaps::default()));
        assert_eq!((arrivals.foreign, arrivals.failures, arrivals.delivered), (1, 0, 0));
        assert!(!arrivals.take(&Content::OfFlow(9), 1, &mut Gaps::default()));
        assert_eq!(arrivals.failure.as_deref(), Some("got a datagram of flow 9"));
    }
}
