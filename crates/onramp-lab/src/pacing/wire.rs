//! The test bed of the comparison with the kernel: a pair of devices (`veth`) between two network
//! namespaces, and a thread that receives datagrams at the far end, with the kernel's time of
//! arrival.
//!
//! The near end belongs to the thread that lays the wire and to the threads that it starts; the far
//! end to the receiving thread. Nothing needs to be removed after a run: the namespaces end with
//! their threads.

use std::fs;
use std::io::IoSliceMut;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use onramp_core::Clock;
use onramp_dev::{MonotonicClock, set_receive_buffer};

use super::Shaper;
use super::schedule::Schedule;
use crate::Error;
use crate::kernel::bed;
use crate::measure::{Latency, thread_cpu_ns};

/// Names of the near and of the far end.
const NEAR: &str = "pace";
const FAR: &str = "beyond";
/// Addresses of the ends, of the block for benchmarks (RFC 2544), and the port of the receiver.
const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PORT: u16 = 9;
/// Link addresses of the ends, administered locally.
const NEAR_LINK: &str = "02:00:00:00:00:01";
const FAR_LINK: &str = "02:00:00:00:00:02";
/// Number of bytes that headers add to a datagram on the wire: Ethernet, IPv4, UDP.
pub(super) const HEADERS: u32 = 14 + 20 + 8;
/// Size of the receive buffer, bytes: so that a receiver that comes late loses nothing.
const BUFFER: usize = 16 << 20;
/// How long the receiver waits for a datagram before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// The wire, as the thread that has laid it uses it.
#[derive(Debug)]
pub(super) struct Wire {
    far: Arc<Far>,
    thread: Option<JoinHandle<()>>,
}

/// What the receiving thread shares with the thread that has laid the wire.
#[derive(Debug, Default)]
struct Far {
    seen: Mutex<Seen>,
    ends: AtomicBool,
}

/// What the receiver has seen since the last [`Wire::begin`].
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Number of datagrams that were received.
    pub(super) packets: u64,
    /// Number of datagrams that arrived, but that the socket had no room for.
    pub(super) overflowed: u64,
    /// How long after its instant in the schedule each datagram of the window arrived.
    pub(super) error: Latency,
    /// CPU time of the receiving thread, nanoseconds, when it last received or looked.
    pub(super) cpu_ns: u64,
    schedule: Schedule,
    /// Whether the window is being measured.
    measures: bool,
    /// The socket's count of datagrams without room at the last `begin`.
    overflowed_before: u64,
    /// How many of the datagrams without room came before the last one that was received.
    skipped: u64,
    /// Number of times that the receiver found nothing to receive.
    looks: u64,
}

impl Wire {
    /// Moves the calling thread into a network namespace of its own, and makes a pair of devices
    /// whose far end is in another one. The error text says what failed and what to do about it.
    pub(super) fn lay() -> Result<Self, String> {
        for program in ["ip", "tc"] {
            bed::output(program, "-V")?;
        }
        unshared()?;
        let ends =
            format!("{NEAR} address {NEAR_LINK} type veth peer name {FAR} address {FAR_LINK}");
        bed::ip(&format!("link add {ends}"))?;
        let far = Arc::new(Far::default());
        let ((tells, told), (moves, moved)) = (mpsc::channel(), mpsc::channel());
        let theirs = far.clone();
        let body = move || {
            let prepared = unshared().map(|()| rustix::thread::gettid().as_raw_nonzero().get());
            if tells.send(prepared).is_ok() && moved.recv().is_ok() {
                let socket = open();
                let failed = socket.as_ref().err().cloned();
                if tells.send(failed.map_or(Ok(0), Err)).is_ok()
                    && let Ok(socket) = socket
                {
                    receive(&socket, &theirs);
                }
            }
        };
        let thread = thread::Builder::new().name("lab-receiver".to_owned()).spawn(body);
        let thread = thread.map_err(|error| format!("cannot start the receiver: {error}"))?;
        let wire = Self { far, thread: Some(thread) };
        // If a step fails, the ends of the channels are dropped before the wire, so the receiving
        // thread waits for nothing when the wire joins it.
        let steps = move || {
            let gone = || "the receiver ended early".to_owned();
            let number = told.recv().map_err(|_| gone())??;
            for end in [NEAR, FAR] {
                // Without IPv6 addresses, the kernel sends no packets of its own.
                bed::ip(&format!("link set {end} addrgenmode none"))?;
            }
            bed::ip(&format!("link set {FAR} netns {number}"))?;
            bed::ip(&format!("addr add {NEAR_ADDRESS}/30 dev {NEAR}"))?;
            bed::ip(&format!("link set {NEAR} up"))?;
            // With a fixed neighbour, no packet of ARP passes the shaper.
            let neighbour = format!("{FAR_ADDRESS} lladdr {FAR_LINK} dev {NEAR} nud permanent");
            bed::ip(&format!("neigh add {neighbour}"))?;
            moves.send(()).map_err(|_| gone())?;
            told.recv().map_err(|_| gone())?.map(drop)
        };
        steps().map(|()| wire)
    }

    /// Puts a shaper of the kernel in front of the wire, or none. The error text says why the
    /// kernel refused it.
    pub(super) fn set(&self, shaper: Option<(Shaper, u64)>) -> Result<(), String> {
        // Removing the old qdisc also removes its counters.
        bed::tc(&format!("qdisc replace dev {NEAR} root noqueue"))?;
        let lines = shaper.map(|(shaper, rate)| shaper.lines(NEAR, rate)).unwrap_or_default();
        lines.iter().try_for_each(|line| bed::tc(line))
    }

    /// Returns how many packets the kernel's shaper has dropped and how many it holds.
    pub(super) fn held(&self, shaper: Shaper) -> Result<bed::Held, Error> {
        let text = bed::output("tc", &format!("-s -j qdisc show dev {NEAR}"));
        let text = text.map_err(Error::Kernel)?;
        let wrong = || Error::Kernel(format!("the root is no {}: {text}", shaper.name()));
        bed::held(&text, shaper.name()).ok_or_else(wrong)
    }

    /// Opens a socket that sends to the receiver.
    pub(super) fn socket(&self) -> Result<UdpSocket, Error> {
        let socket = UdpSocket::bind((NEAR_ADDRESS, 0)).and_then(|socket| {
            socket.connect(self.receiver())?;
            Ok(socket)
        });
        socket.map_err(|error| Error::Kernel(format!("cannot open a socket: {error}")))
    }

    /// Returns the address of the receiver.
    pub(super) fn receiver(&self) -> SocketAddr {
        (FAR_ADDRESS, PORT).into()
    }

    /// Forgets what the receiver has seen. From now on, packets are expected as `schedule` has it.
    pub(super) fn begin(&self, schedule: Schedule) {
        let mut seen = self.seen();
        *seen = Seen {
            schedule,
            overflowed_before: seen.overflowed_before + seen.overflowed,
            cpu_ns: seen.cpu_ns,
            ..Seen::default()
        };
    }

    /// Begins or ends the window in which arrivals are measured. Returns what was seen until now.
    pub(super) fn measure(&self, measures: bool) -> Seen {
        let mut seen = self.seen();
        seen.measures = measures;
        seen.clone()
    }

    /// Waits until `packets` datagrams have arrived and the receiver has found nothing to receive
    /// twice, but at most for `patience`. Returns what it has seen.
    pub(super) fn settled(&self, packets: u64, patience: Duration) -> Seen {
        let until = MonotonicClock.now() + patience;
        let first = self.seen().looks;
        loop {
            let seen = self.seen().clone();
            let done = seen.looks >= first + 2 && seen.arrived() >= packets;
            if done || MonotonicClock.now() >= until {
                return seen;
            }
            thread::sleep(LOOK / 4);
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.far.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Relaxed: the flag publishes no other data.
        self.far.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Moves the calling thread into a network namespace of its own.
fn unshared() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EPERM => "creating a network namespace is not permitted: run as root, or under \
                         `unshare -Urn`"
            .to_owned(),
        _ => format!("a network namespace cannot be made: {}", errno.desc()),
    })
}

/// Opens the receiver's socket, after the far end has come into the thread's namespace.
fn open() -> Result<UdpSocket, String> {
    bed::ip(&format!("addr add {FAR_ADDRESS}/30 dev {FAR}"))?;
    bed::ip(&format!("link set {FAR} up"))?;
    let socket = UdpSocket::bind((FAR_ADDRESS, PORT)).and_then(|socket| {
        socket.set_read_timeout(Some(LOOK))?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        // Each datagram then says how many before it found no room.
        setsockopt(&socket, sockopt::RxqOvfl, &1)?;
        set_receive_buffer(&socket, BUFFER)?;
        Ok(socket)
    });
    socket.map_err(|error| format!("cannot open the receiver's socket: {error}"))
}

/// Receives datagrams until the wire is dropped.
fn receive(socket: &UdpSocket, far: &Far) {
    let mut buffer = [0; 2_048];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec, u32);
    // Relaxed: the flag publishes no other data.
    while !far.ends.load(Ordering::Relaxed) {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
        let (at_ns, dropped) = match recvmsg::<()>(fd, &mut slices, Some(&mut control), flags) {
            Ok(message) => message.cmsgs().map(told).unwrap_or_default(),
            Err(_) => {
                let overflowed = overflowed();
                let mut seen = far.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.looks += 1;
                seen.cpu_ns = thread_cpu_ns();
                let overflowed = overflowed.saturating_sub(seen.overflowed_before);
                seen.overflowed = overflowed.max(seen.overflowed);
                continue;
            }
        };
        let mut seen = far.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.note(at_ns, dropped);
        if seen.packets.is_multiple_of(16) {
            seen.cpu_ns = thread_cpu_ns();
        }
    }
}

impl Seen {
    /// Notes a datagram that was received. It arrived at `at_ns`, after the socket had had no room
    /// for `dropped` datagrams since it was opened, if the kernel told these.
    fn note(&mut self, at_ns: Option<u64>, dropped: Option<u64>) {
        self.packets += 1;
        let before = dropped.unwrap_or(0).saturating_sub(self.overflowed_before);
        self.schedule.skip(before.saturating_sub(self.skipped));
        self.skipped = before.max(self.skipped);
        self.overflowed = self.overflowed.max(before);
        let Some(at_ns) = at_ns else { return self.schedule.skip(1) };
        let late_ns = self.schedule.arrived(at_ns);
        if self.measures {
            self.error.record(late_ns);
        }
    }

    /// Returns how many datagrams arrived, with those that found no room.
    pub(super) const fn arrived(&self) -> u64 {
        self.packets + self.overflowed
    }

    /// Returns how many datagrams had left the sending side up to the last one that was received.
    pub(super) const fn left(&self) -> u64 {
        self.packets + self.skipped
    }

    /// Returns how much time the sending side could not make up for, nanoseconds.
    pub(super) const fn lost_ns(&self) -> u64 {
        self.schedule.lost_ns()
    }
}

/// Returns the kernel's time of a datagram's arrival, nanoseconds of the wall clock, and how many
/// datagrams the socket had had no room for.
fn told(all: impl Iterator<Item = ControlMessageOwned>) -> (Option<u64>, Option<u64>) {
    let mut told = (None, None);
    for control in all {
        match control {
            ControlMessageOwned::ScmTimestampns(at) => {
                let part = |value: i64| u64::try_from(value).unwrap_or(0);
                told.0 = Some(part(at.tv_sec()) * 1_000_000_000 + part(at.tv_nsec()));
            }
            ControlMessageOwned::RxqOvfl(dropped) => told.1 = Some(dropped.into()),
            _ => {}
        }
    }
    told
}

/// Returns how many datagrams the sockets of this thread's namespace had no room for.
pub(crate) fn overflowed() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/udp").unwrap_or_default();
    let drops = |line: &str| line.split_ascii_whitespace().last()?.parse::<u64>().ok();
    text.lines().skip(1).filter_map(drops).sum()
}

/// Returns the time that all processors have spent in interrupts and softirqs since the machine
/// started, nanoseconds. The kernel counts it in ticks of 10 ms.
pub(super) fn interrupts_ns() -> Result<u64, Error> {
    let text = fs::read_to_string("/proc/stat")
        .map_err(|error| Error::Usage("the processors' times", error))?;
    let line = text.lines().next().unwrap_or_default();
    let ticks = line.split_ascii_whitespace().skip(6).take(2);
    Ok(ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams without room keep their turns in the schedule, each once, and are counted; the
    /// counter goes on over several measurements.
    #[test]
    fn datagrams_without_room_make_no_others_late() {
        let schedule = || Schedule::new(1_000, 1_000_000);
        let mut seen = Seen { schedule: schedule(), measures: true, ..Seen::default() };
        for (at_ms, dropped) in [(100, None), (101, None), (105, Some(3)), (106, Some(3))] {
            seen.note(Some(at_ms * 1_000_000), dropped);
        }
        assert_eq!((seen.error.percentiles().map(|error| error.max), seen.lost_ns()), (Some(0), 0));
        assert_eq!((seen.packets, seen.overflowed, seen.left()), (4, 3, 7));
        let mut seen = Seen { overflowed_before: 3, schedule: schedule(), ..Seen::default() };
        for (at_ms, dropped) in [(200, Some(3)), (202, Some(4))] {
            seen.note(Some(at_ms * 1_000_000), dropped);
        }
        assert_eq!((seen.lost_ns(), seen.overflowed, seen.left()), (0, 1, 3));
    }
}
