//! The sender and the receiver, and what is measured of them.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;

use super::bed::{Bed, LOOK};
use super::{Cell, EQUAL_LOAD, Round, SEGMENT, Traffic};
use crate::Error;
use crate::measure::{Finally, Latency, Phase, PhaseCell, pause};

/// How often a paced sender sends what has come due.
const TICK: Duration = Duration::from_millis(1);
/// How long the receiver may need until it has received what is on the way.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of one call that writes to or reads from a TCP connection.
const CHUNK: usize = 256 << 10;

/// Measures a cell. Returns the figures, and the times of single datagrams.
pub(super) fn measure(bed: &Bed, cell: Cell, window: Duration) -> Result<(Round, Latency), Error> {
    let joined = bed.join(cell.path, cell.shaper)?;
    let measured = if cell.traffic == Traffic::Tcp {
        stream(bed.stream(cell.path)?, window).map(|round| (round, Latency::default()))
    } else {
        datagrams(bed, cell, window)
    };
    if joined.carried() == Some(0) {
        return Err(Error::Network(format!("{cell}: no frame has passed Onramp's bridge")));
    }
    measured
}

fn datagrams(bed: &Bed, cell: Cell, window: Duration) -> Result<(Round, Latency), Error> {
    let [sends, receives] = bed.datagrams(cell.path)?;
    let pass = |number, offered, window| {
        Datagrams { cell, number, offered, sends: &sends, receives: &receives }.pass(bed, window)
    };
    let (mut round, _) = pass(1, cell.offered(), window)?;
    if cell.shaper.is_none() {
        let (equal, _) = pass(2, Some(EQUAL_LOAD), window / 2)?;
        round.equal_load_cpu_ns_per_packet = equal.cpu_ns_per_packet;
    }
    let (_, times) = pass(3, Some(1_000), window / 2)?;
    Ok((round, times))
}

/// Numbers that the sender and the receiver count, each its own.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counts {
    // Relaxed: the counts publish no other data.
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    // Relaxed: the counts publish no other data.
    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// What the whole machine and the receiver have done up to a moment.
struct Moment {
    at: Instant,
    busy_ns: u64,
    sent: u64,
    received: u64,
}

impl Moment {
    fn now(counts: &Counts) -> Result<Self, Error> {
        let (sent, received) = (counts.sent(), counts.received());
        Ok(Self { at: MonotonicClock.now(), busy_ns: busy_ns()?, sent, received })
    }

    /// Returns the figures of the time since `earlier`. A unit that was received has `bytes` data
    /// bytes, and there are `packets` packets to a unit.
    fn round(&self, earlier: &Self, bytes: f64, packets: f64, lost_share: Option<f64>) -> Round {
        let sent = (self.sent - earlier.sent) as f64;
        let seconds = self.at.since(earlier.at) as f64 / 1e9;
        let units = (self.received - earlier.received) as f64;
        let count = units * packets;
        let busy_ns = self.busy_ns.saturating_sub(earlier.busy_ns) as f64;
        Round {
            sent_per_second: lost_share.map(|_| sent / seconds),
            packets_per_second: count / seconds,
            goodput_bits_per_second: units * bytes * 8.0 / seconds,
            cpu_ns_per_packet: (count > 0.0).then(|| busy_ns / count),
            equal_load_cpu_ns_per_packet: None,
            lost_share,
        }
    }
}

/// Datagrams between two sockets.
#[derive(Clone, Copy, Debug)]
struct Datagrams<'a> {
    cell: Cell,
    /// Stands in each datagram: those of an earlier pass may still be on the way.
    number: u8,
    /// Number that is sent in a second; `None` for as many as possible.
    offered: Option<u64>,
    sends: &'a UdpSocket,
    receives: &'a UdpSocket,
}

impl Datagrams<'_> {
    /// Sends for the time `window`, after a warm-up of a fifth of it. Returns the figures, and the
    /// time that each datagram took after the warm-up.
    fn pass(&self, bed: &Bed, window: Duration) -> Result<(Round, Latency), Error> {
        let (phase, counts, ends) = (PhaseCell::new(), Counts::default(), PhaseCell::new());
        let full = bed.overflowed();
        thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive(&phase, &ends, &counts));
            let _ends = Finally::new(|| ends.set(Phase::Stop));
            let sender = scope.spawn(|| self.send(&phase, &counts));
            let stops = Finally::new(|| phase.set(Phase::Stop));
            pause(window / 5)?;
            let first = Moment::now(&counts)?;
            phase.set(Phase::Measure);
            pause(window)?;
            // On a crowded machine, nothing may have come yet, so that there would be no figures.
            let until = MonotonicClock.now() + PATIENCE;
            while counts.received() == first.received && MonotonicClock.now() < until {
                pause(LOOK)?;
            }
            let last = Moment::now(&counts)?;
            drop(stops);
            sender.join().map_err(|_| Error::Panicked)??;
            let (sent, received) = (counts.sent(), || counts.received());
            // All is there when nothing more comes.
            let (until, mut before) = (MonotonicClock.now() + PATIENCE, u64::MAX);
            while received() < sent && received() != before && MonotonicClock.now() < until {
                before = received();
                pause(3 * LOOK)?;
            }
            ends.set(Phase::Stop);
            let times = receiver.join().map_err(|_| Error::Panicked)??;
            let arrived = received() + bed.overflowed().saturating_sub(full);
            if arrived > sent {
                let cell = self.cell;
                return Err(Error::Conservation(format!("{cell}: {sent} sent, {arrived} arrived")));
            }
            let lost = (sent > 0).then(|| share(sent - arrived, sent));
            let bytes = self.cell.traffic.payload() as f64;
            Ok((last.round(&first, bytes, 1.0, lost), times))
        })
    }

    /// Sends until the phase says stop.
    fn send(&self, phase: &PhaseCell, counts: &Counts) -> Result<(), Error> {
        let mut payload = vec![0; self.cell.traffic.payload()];
        payload[8] = self.number;
        let began = MonotonicClock.now();
        let mut sent = 0_u64;
        while !phase.is_stop() {
            if let Some(offered) = self.offered {
                let due = began + Duration::from_secs_f64(sent as f64 / offered as f64);
                let wait = Duration::from_nanos(due.since(MonotonicClock.now()));
                if !wait.is_zero() {
                    // At high rates, several datagrams come due in a tick.
                    let gap = Duration::from_secs_f64(1.0 / offered as f64);
                    thread::sleep(if gap < TICK { TICK } else { wait });
                    continue;
                }
            }
            payload[..8].copy_from_slice(&MonotonicClock.now().0.to_ne_bytes());
            match self.sends.send(&payload) {
                Ok(_) => sent += 1,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Network(format!("cannot send: {error}"))),
            }
            // Relaxed: the count publishes no other data.
            counts.sent.store(sent, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Receives until it is to end. Returns the times of the datagrams after the warm-up.
    fn receive(
        &self,
        phase: &PhaseCell,
        ends: &PhaseCell,
        counts: &Counts,
    ) -> Result<Latency, Error> {
        let (mut buffer, mut times, mut received) = ([0; 2_048], Latency::default(), 0);
        while !ends.is_stop() {
            match self.receives.recv(&mut buffer) {
                Ok(len) if len < 9 || buffer[8] != self.number => {}
                Ok(len) => {
                    received += 1;
                    // Relaxed: the count publishes no other data.
                    counts.received.store(received, Ordering::Relaxed);
                    let stamp = buffer[..len].first_chunk().map(|at| u64::from_ne_bytes(*at));
                    if let Some(at) = stamp.filter(|_| phase.get() != Phase::WarmUp) {
                        times.record(MonotonicClock.now().since(Instant(at)));
                    }
                }
                Err(error) if is_pause(error.kind()) => {}
                Err(error) => return Err(Error::Network(format!("cannot receive: {error}"))),
            }
        }
        Ok(times)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// Whether an error says only that nothing has come yet.
fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Sends over a TCP connection for the time `window`, after a warm-up of a fifth of it.
fn stream([near, far]: [TcpStream; 2], window: Duration) -> Result<Round, Error> {
    let told = |error: std::io::Error| Error::Network(format!("TCP: {error}"));
    // A connection that is stuck must not keep the threads.
    near.set_write_timeout(Some(LOOK)).map_err(told)?;
    far.set_read_timeout(Some(LOOK)).map_err(told)?;
    let (phase, counts) = (PhaseCell::new(), Counts::default());
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> std::io::Result<()> {
            let (chunk, mut near) = (vec![0; CHUNK], &near);
            while !phase.is_stop() {
                match near.write(&chunk) {
                    Err(error) if !is_pause(error.kind()) => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
        let receiver = scope.spawn(|| -> std::io::Result<()> {
            let (mut chunk, mut far) = (vec![0; CHUNK], &far);
            while !phase.is_stop() {
                match far.read(&mut chunk) {
                    // Relaxed: the count publishes no other data.
                    Ok(len) => drop(counts.received.fetch_add(len as u64, Ordering::Relaxed)),
                    Err(error) if is_pause(error.kind()) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let stops = Finally::new(|| phase.set(Phase::Stop));
        pause(window / 5)?;
        let first = Moment::now(&counts)?;
        pause(window)?;
        let last = Moment::now(&counts)?;
        drop(stops);
        for ended in [sender, receiver] {
            ended.join().map_err(|_| Error::Panicked)?.map_err(told)?;
        }
        Ok(last.round(&first, 1.0, 1.0 / SEGMENT as f64, None))
    })
}

/// Returns the time that all processors have worked since the machine started, nanoseconds. The
/// kernel samples every 10 ms what each processor does.
fn busy_ns() -> Result<u64, Error> {
    let text = fs::read_to_string("/proc/stat")
        .map_err(|error| Error::Usage("the processors' times", error))?;
    Ok(busy_ticks(&text) * 10_000_000)
}

/// The first line of `/proc/stat` has the ticks of all processors: user, nice, system, idle, I/O
/// wait, interrupts, softirqs, stolen.
fn busy_ticks(text: &str) -> u64 {
    let line = text.lines().next().unwrap_or_default();
    let ticks = line.split_ascii_whitespace().skip(1).map(|ticks| ticks.parse().unwrap_or(0));
    let works = [true, true, true, false, false, true, true];
    ticks.zip(works).filter(|(_, works)| *works).map(|(ticks, _): (u64, _)| ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_do_not_work() {
        let text = "cpu  1 20 300 4000 50000 600000 7000000 80000000 0 0\ncpu0 9 9 9\n";
        assert_eq!(busy_ticks(text), 7_600_321);
    }

    #[test]
    fn figures_are_those_between_two_moments() {
        let moment = |at, busy_ns, received| Moment {
            at: Instant(at),
            busy_ns,
            sent: 2 * received,
            received,
        };
        let first = moment(1_000_000_000, 5_000, 100);
        let last = moment(1_500_000_000, 25_000, 300);
        let round = last.round(&first, 10.0, 1.0, Some(0.5));
        assert!((round.packets_per_second - 400.0).abs() < 1e-9, "{round:?}");
        assert!((round.goodput_bits_per_second - 32_000.0).abs() < 1e-9, "{round:?}");
        assert_eq!((round.cpu_ns_per_packet, round.lost_share), (Some(100.0), Some(0.5)));
        assert!((round.sent_per_second.unwrap_or(0.0) - 800.0).abs() < 1e-9, "{round:?}");
        assert!((share(1, 4) - 0.25).abs() < 1e-9);
        let none = first.round(&first, 10.0, 1.0, None);
        assert_eq!(none.cpu_ns_per_packet, None);
    }
}
